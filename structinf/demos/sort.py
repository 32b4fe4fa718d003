"""Learn to sort images of digits from sorted lists.

A set holds eight images of different handwritten digits. A small network scores each image
against each rank, and the structure is an assignment of images to ranks. The network never gets
the digits: the training data are only the correct orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import structinf as si
from structinf import plot

from ..calls.resolution import works_with
from ..errors import UnknownNameError
from ..registry import did_you_mean
from .report import Table, percent, progress

__all__ = ["run"]

SIZE = 8  # images in a set

PICTURE = "structinf-sort.png"


class Ranker(nn.Module):
    """Scores each image of a set against each rank, without looking at the other images.

    Standardised scores have mean 0 and variance 1 at each rank, over the images of a batch.
    """

    def __init__(self, standardise: bool) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(128, SIZE),
            nn.BatchNorm1d(SIZE, affine=False) if standardise else nn.Identity(),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores (B, images, ranks) for sets of images (B, images, 8, 8)."""
        return self.network(pixels.flatten(0, 1)[:, None]).unflatten(0, pixels.shape[:2])


# ----------------------------------------------------------------------------- methods


class Method(NamedTuple):
    """A loss of scores (B, images, ranks) and correct ranks (B, images), with its relaxation."""

    name: str
    relaxation: si.Relaxation
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def standardise(self) -> bool:
        """Whether the loss depends only on the best order, and not on the scale of the scores.

        The perceptron loss is also 0 for equal scores, and its gradient leads to equal scores, like the gradients of
        surrogates. Standardised scores cannot all be equal.
        """
        smooth = isinstance(self.relaxation, si.RegularizedRelaxation) and not self.relaxation.piecewise_constant
        return not (smooth or self.relaxation.is_stochastic)


def list_methods() -> list[str]:
    """Return the names of all methods: RELAXATION-layer and RELAXATION-loss, with hyphens, for each relaxation of
    assignments.
    """
    methods = []
    for name in works_with(si.get_oracle("assignment")):
        relaxation, stem = si.get_relaxation(name), name.replace("_", "-")
        if not relaxation.piecewise_constant:
            methods.append(f"{stem}-layer")
        if isinstance(relaxation, si.RegularizedRelaxation):
            methods.append(f"{stem}-loss")
    return methods


def make_method(name: str) -> Method:
    """Return the Fenchel-Young loss or the squared error of a layer called ``name``; raise UnknownNameError for other
    names.
    """
    known = list_methods()
    if name not in known:
        close = did_you_mean(name, known) or "."
        raise UnknownNameError(f"no method is called {name!r}{close} Known: {', '.join(known)}")
    stem, _, kind = name.rpartition("-")
    relaxation = si.get_relaxation(stem.replace("-", "_"))
    layer = si.Layer("assignment", relaxation)

    def squared_error(scores: Tensor, ranks: Tensor) -> Tensor:
        gold = si.encode(ranks, scores, "assignment")
        return (layer(scores) - gold).square().sum((1, 2)).mean()

    loss = si.FenchelYoungLoss("assignment", relaxation) if kind == "loss" else squared_error
    return Method(name, relaxation, loss)


# ----------------------------------------------------------------------------- training


def train(method: Method, images: Images, *, epochs: int, steps: int, seed: int) -> Ranker:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Ranker(method.standardise)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=epochs * steps)
    bar = progress(range(epochs * steps), method.name)
    for _ in bar:
        sets = draw_sets(images, 32, generator)
        loss = method.loss(model(sets.pixels), sets.ranks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


class Result(NamedTuple):
    """Fractions of images and of sets with correct ranks, and the mean number of orders in a support."""

    images: float
    sets: float
    support: float | None


@torch.no_grad()
def evaluate(model: Ranker, sets: Sets, relaxation: str | si.Relaxation) -> Result:
    scores = model(sets.pixels)
    ranks = si.decode(si.relax(scores, "assignment", "map"), "assignment")
    right = (ranks == sets.ranks).float()
    solution = si.infer(scores, "assignment", relaxation, generator=torch.Generator().manual_seed(0))
    return Result(right.mean().item(), right.amin(1).mean().item(), count_orders(solution))


def count_orders(solution: si.Solution) -> float | None:
    """Return the mean number of orders in the support of a set; None if the relaxation keeps no support."""
    if solution.support is None or solution.weights is None:
        return None
    orders = si.decode(solution.support, "assignment")  # (structures, sets, images)
    # The same order can be drawn twice.
    counts = [len(orders[used, i].unique(dim=0)) for i, used in enumerate((solution.weights > 0).unbind(1))]
    return sum(counts) / len(counts)


@torch.no_grad()
def draw_picture(model: Ranker, sets: Sets, path: Path) -> None:
    """Draw the test set with at most four candidate orders and the smallest weight of the best order."""
    scores = model(sets.pixels)
    weights = cast(Tensor, si.infer(scores, "assignment", "sparsemap").weights)
    num_orders = (weights > 0).sum(0) <= 4
    index = int(torch.where(num_orders, 1 - weights.amax(0), -1).argmax())
    order = sets.ranks[index].argsort()
    figure = plot.assignment(
        si.infer(scores[index, order], "assignment", "sparsemap"),
        rows=list(sets.pixels[index, order]),
        title="Eight images in the right order, and the ranks given to them",
    )
    figure.savefig(path)


# ----------------------------------------------------------------------------- data


class Images(NamedTuple):
    """Images (N, 8, 8) with values between 0 and 1, and their digits (N,)."""

    pixels: Tensor
    digits: Tensor


class Sets(NamedTuple):
    """Sets of images (B, 8, 8, 8), and the rank of each image in its set, from 0, (B, 8)."""

    pixels: Tensor
    ranks: Tensor


def load_images(seed: int) -> tuple[Images, Images]:
    """Load images for training, and other images for the test."""
    pixels, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = Images(pixels.float().unflatten(1, (8, 8)) / 16, digits.long())
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    train, test = (Images(images.pixels[part], images.digits[part]) for part in (order[400:], order[:400]))
    return train, test


def draw_sets(images: Images, count: int, generator: torch.Generator) -> Sets:
    """Draw sets of images of different digits, in random order."""
    digits = torch.rand(count, 10, generator=generator).argsort(1)[:, :SIZE]
    by_digit = images.digits.argsort(stable=True)
    sizes = images.digits.bincount(minlength=10)
    first = sizes.cumsum(0) - sizes
    indices = (torch.rand(count, SIZE, generator=generator, dtype=torch.float64) * sizes[digits]).long()
    return Sets(images.pixels[by_digit[first[digits] + indices]], digits.argsort(1).argsort(1))


# ----------------------------------------------------------------------------- the demo


def run(methods: Sequence[str], *, epochs: int = 3, seed: int = 0, out: Path = Path(), quick: bool = False) -> None:
    """Train and test each method, print a table, and save a picture of the first method's orders in the folder ``out``.

    ``methods`` are names of :func:`list_methods`, or "all". Each method trains on 100 batches of 32 sets per epoch.
    With ``quick``, each method trains on 10 batches, enough to test the program, but not to compare the methods.
    """
    names = [name for method in methods for name in (list_methods() if method == "all" else [method])]
    chosen = [make_method(name) for name in dict.fromkeys(names)]
    train_images, test_images = load_images(seed)
    test_sets = draw_sets(test_images, 100 if quick else 1000, torch.Generator().manual_seed(seed))
    epochs, steps = (1, 10) if quick else (epochs, 100)
    counts = f"{len(train_images.digits)} images to train on, {len(test_images.digits)} others to test on"
    print(f"Sorting sets of {SIZE} images of digits by their digit: {counts}.\n")
    table = Table({"trained by": max(len(m.name) for m in chosen), "images": 7, "sets": 7, "support": 0, "seconds": 0})
    for method in chosen:
        start = time.perf_counter()
        model = train(method, train_images, epochs=epochs, steps=steps, seed=seed)
        seconds = time.perf_counter() - start
        result = evaluate(model, test_sets, method.relaxation)
        support = "-" if result.support is None else f"{result.support:.2f}"
        table.add(method.name, percent(result.images), percent(result.sets), support, f"{seconds:.1f}")
        if method is chosen[0]:
            out.mkdir(parents=True, exist_ok=True)
            draw_picture(model, test_sets, out / PICTURE)
    kinds = {
        "loss": "NAME-loss is the Fenchel-Young loss of the relaxation NAME",
        "layer": "NAME-layer is the squared error of a layer with the relaxation NAME",
    }
    shown = [text for suffix, text in kinds.items() if any(m.name.endswith(f"-{suffix}") for m in chosen)]
    print(
        f"\ntrained by: {'; '.join(shown)}\n"
        "images, sets: share of the test images, and of whole test sets, with correct ranks\n"
        "support: mean number of different orders with weight above 0 for a test set\n"
        "seconds: training, with the compilation of kernels that are used for the first time\n\n"
        f"picture: {(out / PICTURE).resolve()}"
    )
