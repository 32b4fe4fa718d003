"""Predict, then optimise: linear predictions of what a decision is worth, trained by its losses, and its regret."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import structinf as si

from .training import Fit, fit, relax

__all__ = ["Decisions", "Training", "losses", "regret", "train"]


class Decisions(NamedTuple):
    """Features (N, ...), what the parts are worth, (N, d), and the best structures for that, (N, d)."""

    features: Tensor
    values: Tensor
    best: Tensor

    def take(self, rows: Tensor | slice) -> Decisions:
        """Some of them."""
        return Decisions(self.features[rows], self.values[rows], self.best[rows])


Loss = Callable[[Tensor, Decisions], Tensor]
"""Of predicted values, for decisions."""


def losses(oracle: si.Oracle) -> Mapping[str, Loss]:
    """The losses compared, by name."""
    perceptron = si.FenchelYoungLoss(oracle, "map")
    hinge = si.FenchelYoungLoss(oracle, "map", cost="hamming")
    crf = si.FenchelYoungLoss(oracle, "marginals")
    # The gap that is left after so many structures, while little is learned, does no harm.
    sparsemap = si.FenchelYoungLoss(oracle, "sparsemap", tolerance=1e-6, max_iter=300, on_failure="ignore")
    return {
        "two-stage MSE": lambda theta, batch: mse_loss(theta, batch.values),
        "perceptron": lambda theta, batch: perceptron(theta, batch.best),
        "hinge": lambda theta, batch: hinge(theta, batch.best),
        # The margin is the regret: Elmachtoub & Grigas 2022, Smart "Predict, then Optimize".
        "SPO+": lambda theta, batch: perceptron(2 * theta - batch.values, batch.best),
        "marginals": lambda theta, batch: crf(theta, batch.best),
        "SparseMAP": lambda theta, batch: sparsemap(theta, batch.best),
    }


@torch.no_grad()
def regret(theta: Tensor, test: Decisions, oracle: si.Oracle) -> float:
    """What the structures that are best for ``theta`` lose, in per cent of what the best are worth."""
    chosen = relax(theta, oracle)
    worth, most = ((test.values * y).sum().item() for y in (chosen, test.best))
    return 100 * (most - worth) / abs(most)


@dataclass(frozen=True)
class Training:
    """How the predictions are learned."""

    epochs: int
    batch: int
    rate: float


def train(
    make: Callable[[], nn.Module],
    loss: Loss,
    data: Decisions,
    how: Training,
    seed: int,
    about: str,
    score: Callable[[nn.Module], float] | None = None,
) -> tuple[nn.Module, Fit]:
    """A model from features to values, as it is after the last epoch, or after that of the highest score."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = make()

    def batches() -> Sequence[Decisions]:
        return [data.take(rows) for rows in torch.randperm(len(data.best), generator=generator).split(how.batch)]

    result = fit(
        model,
        [lambda batch: loss(model(batch.features), batch)] * how.epochs,
        batches,
        None if score is None else lambda: score(model),
        rate=how.rate,
        about=about,
        decay=False,
        clip=torch.inf,
    )
    return model.eval(), result
