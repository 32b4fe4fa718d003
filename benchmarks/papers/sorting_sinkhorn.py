"""Sort lists with a network that scores each number for each place: Sinkhorn compared with SparseMAP.

After Mena, Belanger, Linderman & Snoek 2018, Learning Latent Permutations with Gumbel-Sinkhorn Networks, §5.1,
without the Gumbel noise. A network reads one number at a time and never sees the other numbers. Training makes the
relaxed permutation sort the list, or, by a Fenchel-Young loss, match the right permutation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .training import Fit, fit, relax

__all__ = ["main"]

ASSIGNMENT = si.get_oracle("assignment")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    lengths: tuple[int, ...] = (5, 15, 50)
    sparse: int = 15  # longest lists for SparseMAP, with up to (n - 1)² + 1 permutations at first
    epochs: int = 10
    steps: int = 30  # in an epoch
    batch: int = 32
    test: int = 1000


def sizes(quick: bool) -> Sizes:
    return Sizes(lengths=(5,), epochs=4, steps=25, batch=20, test=200) if quick else Sizes()


# ----------------------------------------------------------------------------- losses

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of scores (B, n, n), of each number for each place, and the numbers, (B, n)."""


def sorted_list_loss(relaxation: str, **options: Any) -> Loss:
    """Return a loss: the squared distance between μᵀx, for the relaxed permutation μ, and the sorted list."""

    def loss(theta: Tensor, numbers: Tensor) -> Tensor:
        mean = relax(theta, ASSIGNMENT, relaxation, **options)
        soft_sorted = (mean * numbers[:, :, None]).sum(1)
        return (soft_sorted - numbers.sort(1).values).square().sum(1).mean()

    return loss


def right_permutation(relaxation: str, **options: Any) -> Loss:
    """Return the Fenchel-Young loss of the right permutation."""
    loss = si.FenchelYoungLoss(ASSIGNMENT, relaxation, **options)
    return lambda theta, numbers: loss(theta, places(numbers))


def places(numbers: Tensor) -> Tensor:
    """Return the place of each number in the sorted list, (B, n)."""
    return numbers.argsort(1).argsort(1)


# A gap or a residual below this value does no harm to a gradient.
LOOSE_TOLERANCE = {"tolerance": 1e-6, "on_failure": "ignore"}
LOSSES: dict[tuple[str, str], Loss] = {
    ("in order", "Sinkhorn"): sorted_list_loss("sinkhorn", **LOOSE_TOLERANCE),
    ("in order", "Sinkhorn, 10 iterations"): sorted_list_loss(
        "sinkhorn", backward="unrolled", max_iter=10, on_failure="ignore"
    ),
    ("in order", "SparseMAP"): sorted_list_loss("sparsemap", **LOOSE_TOLERANCE),
    ("Fenchel-Young", "Sinkhorn"): right_permutation("sinkhorn", **LOOSE_TOLERANCE),
    ("Fenchel-Young", "SparseMAP"): right_permutation("sparsemap", **LOOSE_TOLERANCE),
    ("Fenchel-Young", "perceptron"): right_permutation("map"),
    ("Fenchel-Young", "hinge"): right_permutation("map", cost="hamming"),
}


# ----------------------------------------------------------------------------- model


class Network(nn.Module):
    """A network that returns scores (B, n, n) of each number of lists (B, n) for each place. It sees one number at a
    time.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.of_number = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, length))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.of_number(numbers[:, :, None])


class Errors(NamedTuple):
    """Per cent of numbers in a wrong place, and of lists with a wrong place."""

    numbers: float
    lists: float


@torch.no_grad()
def errors(model: Network, numbers: Tensor) -> Errors:
    """Return the errors of the best assignments."""
    found = si.decode(relax(model(numbers), ASSIGNMENT), ASSIGNMENT)
    wrong = found != places(numbers)
    return Errors(100 * wrong.double().mean().item(), 100 * wrong.any(1).double().mean().item())


def train(length: int, loss: Loss, size: Sizes, seed: int, description: str) -> tuple[Network, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Network(length)
    result = fit(
        model,
        [lambda numbers: loss(model(numbers), numbers)] * size.epochs,
        lambda: list(torch.rand(size.steps, size.batch, length, generator=generator)),
        rate=0.1,
        description=description,
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, for each length of lists, and print the errors."""
    steps = size.epochs * size.steps
    report.line(f"{steps} steps of {size.batch} lists of numbers, uniform from 0 to 1; {size.test} test lists\n")
    titles = {f"n = {length}, wrong {what}, %": 13 for length in size.lengths for what in Errors._fields}
    report.columns({"loss": 13, "relaxation": 23, **titles, "seconds": 0})
    for (kind, relaxation), loss in LOSSES.items():
        cells, seconds = [], 0.0
        for length in size.lengths:
            if relaxation == "SparseMAP" and length > size.sparse:
                cells += ["", ""]
                continue
            numbers = torch.rand(size.test, length, generator=torch.Generator().manual_seed(len(seeds)))
            found = []
            for seed in seeds:
                model, result = train(length, loss, size, seed, f"{kind}, {relaxation}, n = {length}, seed {seed}")
                found.append(errors(model, numbers))
                seconds += result.seconds
            cells += [[f.numbers for f in found], [f.lists for f in found]]
        report.row(kind, relaxation, *cells, f"{seconds:.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3, reads=False)


if __name__ == "__main__":
    sys.exit(main())
