"""Predict, then optimize: linear predictions of the values of parts, trained by losses of decisions, and their
regret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import structinf as si
from structinf.noise import SumOfGamma

from .training import Fit, fit

__all__ = ["Decisions", "Training", "losses", "regret", "surrogates", "train"]


class Decisions(NamedTuple):
    """Features (N, ...), values of the parts (N, d), and the best structures for the values (N, d)."""

    features: Tensor
    values: Tensor
    best: Tensor

    def take(self, rows: Tensor | slice) -> Decisions:
        """Return the selected rows."""
        return Decisions(self.features[rows], self.values[rows], self.best[rows])


Loss = Callable[[Tensor, Decisions], Tensor]
"""Of predicted values, for decisions."""


def losses(oracle: si.Oracle) -> Mapping[str, Loss]:
    """Return the compared losses by name."""
    perceptron = si.FenchelYoungLoss(oracle, "map")
    hinge = si.FenchelYoungLoss(oracle, "map", cost="hamming")
    crf = si.FenchelYoungLoss(oracle, "marginals")
    spo_plus = si.SPOPlusLoss(oracle)
    # A gap left after so many structures, early in training, does no harm.
    sparsemap = si.FenchelYoungLoss(oracle, "sparsemap", tolerance=1.5e-3, max_iter=300, on_failure="ignore")
    return {
        "two-stage MSE": lambda theta, batch: mse_loss(theta, batch.values),
        "perceptron": lambda theta, batch: perceptron(theta, batch.best),
        "hinge": lambda theta, batch: hinge(theta, batch.best),
        "SPO+": lambda theta, batch: spo_plus(theta, batch.values),
        "marginals": lambda theta, batch: crf(theta, batch.best),
        "SparseMAP": lambda theta, batch: sparsemap(theta, batch.best),
    }


def surrogates(oracle: si.Oracle, parts: int) -> Mapping[str, Loss]:
    """Return losses with noise, and surrogate gradients of the mean regret, by name. Stateful losses learn during
    training.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the decisions.
    parts : int
        Number of parts of a structure, for the noise of I-MLE.
    """

    def fenchel_young(relaxation: str, **options: Any) -> Loss:
        loss = si.FenchelYoungLoss(oracle, relaxation, **options)
        return lambda theta, batch: loss(theta, batch.best)

    def of_regret(relaxation: str, **options: Any) -> Loss:
        layer = si.Layer(oracle, relaxation, **options)
        return lambda theta, batch: (batch.values * (batch.best - layer(theta))).sum(1).mean()

    drawn = {"noise": SumOfGamma(k=parts), "samples": 3}
    return {
        "perturbed Fenchel-Young": fenchel_young("perturbed", samples=3, sigma=1.0),
        "regularised Frank-Wolfe Fenchel-Young": fenchel_young(
            "frank_wolfe", variant="vanilla", max_iter=10, on_failure="ignore"
        ),
        "adaptive I-MLE": of_regret("adaptive_imle", **drawn),
        "I-MLE": of_regret("imle", lambda_=10.0, **drawn),
        "blackbox": of_regret("blackbox", lambda_=20.0),
        "negative identity": of_regret("negative_identity"),
        "straight-through marginals": of_regret("straight_through", backward="marginals"),
        "SPIGOT": of_regret("spigot"),
    }


@torch.no_grad()
def regret(theta: Tensor, test: Decisions, oracle: si.Oracle) -> float:
    """Return the value lost by the best structures for ``theta``, in per cent of the value of the best structures."""
    lost, most = si.regret(theta, test.values, oracle).sum().item(), (test.values * test.best).sum().item()
    return 100 * lost / abs(most)


@dataclass(frozen=True)
class Training:
    """Options of the training."""

    epochs: int
    batch: int
    rate: float
    fused: bool = False


def train(
    make: Callable[[], nn.Module],
    loss: Loss,
    data: Decisions,
    training_options: Training,
    seed: int,
    description: str,
    score: Callable[[nn.Module], float] | None = None,
) -> tuple[nn.Module, Fit]:
    """Train a model from features to values. Return the model after the last epoch, or after the epoch of the highest
    score.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = make()

    def batches() -> Sequence[Decisions]:
        return [
            data.take(rows)
            for rows in torch.randperm(len(data.best), generator=generator).split(training_options.batch)
        ]

    result = fit(
        model,
        [lambda batch: loss(model(batch.features), batch)] * training_options.epochs,
        batches,
        None if score is None else lambda: score(model),
        rate=training_options.rate,
        description=description,
        decay=False,
        clip=torch.inf,
        fused=training_options.fused,
    )
    return model.eval(), result
