"""Learn to sort images of digits, from sorted lists alone.

A set holds eight images of different handwritten digits. A small network scores each image
against each rank, and the structure is an assignment of images to ranks. Nothing tells the
network which digits it sees: it is trained, end to end, on the right orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

import structinf as si
from structinf import plot

from .report import Table, percent

__all__ = ["run"]

SIZE = 8  # images in a set


class Images(NamedTuple):
    """Images (N, 8, 8), with values between 0 and 1, and the digits (N,) that they show."""

    pixels: Tensor
    digits: Tensor


class Sets(NamedTuple):
    """Sets of images (B, 8, 8, 8), and the rank of each image in its set (B, 8)."""

    pixels: Tensor
    ranks: Tensor


class Ranker(nn.Module):
    """Scores each image of a set against each rank, without looking at the other images."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, SIZE),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores (B, images, ranks) for sets of images (B, images, 8, 8)."""
        return self.network(pixels.reshape(-1, 1, 8, 8)).unflatten(0, pixels.shape[:2])


def load_images(seed: int) -> tuple[Images, Images]:
    """Images for training and, apart from them, images for testing."""
    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32) / 16
    digits = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    test, train = order[:400], order[400:]
    return Images(pixels[train], digits[train]), Images(pixels[test], digits[test])


def draw_sets(images: Images, count: int, generator: torch.Generator) -> Sets:
    """Sets of different digits in random order."""
    digits = torch.rand(count, 10, generator=generator).argsort(1)[:, :SIZE]
    shuffled = torch.randperm(len(images.digits), generator=generator)
    by_digit = [shuffled[images.digits[shuffled] == digit] for digit in range(10)]
    draws = torch.rand(count, SIZE, generator=generator)
    chosen = torch.empty(count, SIZE, dtype=torch.int64)
    for digit, candidates in enumerate(by_digit):
        here = digits == digit
        chosen[here] = candidates[(draws[here] * len(candidates)).long()]
    return Sets(images.pixels[chosen], digits.argsort(1).argsort(1))


# ----------------------------------------------------------------------------- three ways to train


class Method(NamedTuple):
    """A loss of scores (B, 8, 8) and ranks (B, 8), and the relaxation that it comes from."""

    name: str
    relaxation: str
    loss: Callable[[Tensor, Tensor], Tensor]


def make_methods() -> list[Method]:
    layer = si.Layer("assignment", "sparsemap")

    def squared_error(scores: Tensor, ranks: Tensor) -> Tensor:
        gold = si.encode(ranks, scores, "assignment")
        return (layer(scores) - gold).square().sum((1, 2)).mean()

    return [
        Method("map, perceptron loss", "map", si.FenchelYoungLoss("assignment", "map")),
        Method("sparsemap layer, squared error", "sparsemap", squared_error),
        Method("sparsemap loss", "sparsemap", si.FenchelYoungLoss("assignment", "sparsemap")),
    ]


def train(method: Method, images: Images, epochs: int, steps: int, seed: int) -> Ranker:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Ranker()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=epochs * steps)
    for epoch in range(epochs):
        progress = tqdm(range(steps), desc=f"{method.name}, epoch {epoch + 1} of {epochs}", leave=False)
        for _ in progress:
            sets = draw_sets(images, 32, generator)
            loss = method.loss(model(sets.pixels), sets.ranks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.set_postfix(loss=f"{loss.item():.3f}")
    return model


# ----------------------------------------------------------------------------- results


class Accuracy(NamedTuple):
    """Shares of the images and of the whole sets that are ranked rightly, and structures in the mean support."""

    elements: float
    lists: float
    structures: float


@torch.no_grad()
def evaluate(model: Ranker, sets: Sets, relaxation: str) -> Accuracy:
    scores = model(sets.pixels)
    ranks = si.decode(si.relax(scores, "assignment", "map"), "assignment")
    right = ranks == sets.ranks
    weights = si.infer(scores, "assignment", relaxation).weights  # (structures, sets)
    return Accuracy(
        elements=right.float().mean().item(),
        lists=right.all(1).float().mean().item(),
        structures=(weights > 0).sum(0).float().mean().item(),
    )


@torch.no_grad()
def draw_picture(model: Ranker, sets: Sets, path: Path) -> None:
    """The test set over which the network hesitates most, among those with few candidate orders."""
    scores = model(sets.pixels)
    weights = si.infer(scores, "assignment", "sparsemap").weights
    few = (weights > 0).sum(0) <= 4
    doubt = torch.where(few, 1 - weights.amax(0), -1)
    index = int(doubt.argmax())
    order = sets.ranks[index].argsort()  # the right order: the true assignment is the diagonal
    solution = si.infer(scores[index, order], "assignment", "sparsemap")
    figure = plot.assignment(
        solution,
        rows=list(sets.pixels[index, order]),
        columns=[f"{rank + 1}" for rank in range(SIZE)],
        title="Eight images, from the smallest digit to the largest, and the ranks given to them",
    )
    figure.savefig(path)


def run(*, epochs: int = 6, seed: int = 0, out: Path = Path(), quick: bool = False) -> Path:
    """Train and test each method, print a table, and save a picture.

    Parameters
    ----------
    epochs : int
        Of 100 batches of 32 sets.
    seed : int
    out : Path
        Folder for the picture.
    quick : bool
        Stop after a few batches: a trial of the machinery, not of the methods.

    Returns
    -------
    Path
        The picture.
    """
    train_images, test_images = load_images(seed)
    test_sets = draw_sets(test_images, 100 if quick else 1000, torch.Generator().manual_seed(seed))
    epochs, steps = (1, 20) if quick else (epochs, 100)
    methods = make_methods()
    print(
        f"Sorting sets of {SIZE} images: {len(train_images.digits)} to train on, {len(test_images.digits)} others to test.\n"
    )
    table = Table({"trained by": max(len(m.name) for m in methods), "images": 7, "sets": 7, "orders": 0, "seconds": 0})
    for method in methods:
        start = time.perf_counter()
        model = train(method, train_images, epochs, steps, seed)
        seconds = time.perf_counter() - start
        result = evaluate(model, test_sets, method.relaxation)
        table.add(
            method.name, percent(result.elements), percent(result.lists), f"{result.structures:.2f}", f"{seconds:.1f}"
        )
    print(
        "\nimages, sets: share of the test images, and of the whole sets, that are ranked rightly.\n"
        "orders: candidate orders with a weight above 0, on average over the test sets."
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "structinf-sort.png"
    draw_picture(model, test_sets, path)
    print(f"picture: {path.resolve()}")
    return path
