"""Losses of decisions compared with the ones of PyEPO: regret, solved instances and seconds for each problem.

Both libraries train the same model from the same initial weights with the same batches. PyEPO calls Gurobi. The scale
of each loss that has one is chosen on validation data.

Without PyEPO and gurobipy (pip install pyepo gurobipy), the program shows the results of structinf alone. The
portfolios need cvxpy.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import structinf as si
from structinf.adapters.wrapper import Wrapper
from structinf.noise import SumOfGamma
from structinf.parts import AnyParts, Parts, batch_size, map_parts

from .command import Report, run
from .decision_problems import PROBLEMS, Task, pyepo_module
from .decisions import Decisions, Loss, Training, train
from .training import relax

__all__ = ["main"]

SAMPLES, KAPPA, SOLVE_RATIO, INTERIOR = 3, 5, 1.0, 0.2

TUNED = {"perturbed Fenchel-Young": "σ", "blackbox": "λ / B", "I-MLE": "λ / B", "perturbation gradient": "h"}
"""The losses with a scale, in units of the standard deviation of the values; B is the size of a batch."""


TRAINING = Training(epochs=10, batch=10, rate=3e-2, fused=True)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 100
    validation: int = 100
    test: int = 400
    training: Training = TRAINING
    scales: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)

    @property
    def parts(self) -> list[slice]:
        """The rows for training, validation and test."""
        first = self.train + self.validation
        return [slice(self.train), slice(self.train, first), slice(first, first + self.test)]


def sizes(quick: bool) -> Sizes:
    if not quick:
        return Sizes()
    return Sizes(
        train=20, validation=10, test=20, training=Training(epochs=2, batch=10, rate=0.1, fused=True), scales=(0.3, 1.0)
    )


class Counted(Wrapper):
    """An oracle that counts the solved instances. It offers its argmax alone, so that no loss solves in another way.

    Parameters
    ----------
    task : Task
        The problem. Affine and integer programs do not know that their structures are 0/1, but the best decisions tell.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task.oracle, {}, {})
        self.solved: list[int] = []
        self._is_binary = bool(((task.data.best == 0) | (task.data.best == 1)).all())

    def argmax(self, theta: AnyParts) -> Parts:
        self.solved.append(batch_size(theta))
        return self.inner.argmax(theta)

    def has_binary_parts(self, theta: AnyParts) -> bool:
        return self._is_binary

    def hamming_cost(self, y: AnyParts) -> Parts:
        return map_parts(lambda t: 1 - 2 * t, y)


# ----------------------------------------------------------------------------- the losses


def own_losses(
    task: Task, oracle: si.Oracle, data: Decisions, scale: Mapping[str, float], batch: int
) -> dict[str, Loss]:
    """Return the losses of structinf by name, for the decisions of ``oracle``.

    Parameters
    ----------
    task : Task
        The problem.
    oracle : Oracle
        The oracle of the problem, possibly counted.
    data : Decisions
        The data for training.
    scale : mapping of str to float
        The scale of each loss in TUNED.
    batch : int
        The size of a batch.
    """
    pool = data.best.unique(dim=0)
    spo_plus = si.SPOPlusLoss(oracle)
    fenchel_young = si.FenchelYoungLoss(oracle, "perturbed", samples=SAMPLES, sigma=scale["perturbed Fenchel-Young"])
    gradient = si.PerturbationGradientLoss(oracle, h=scale["perturbation gradient"])
    pooled: dict[str, Any] = {"pool": pool, "solve_ratio": SOLVE_RATIO}
    contrastive = {kind: si.ContrastiveLoss(oracle, kind, **pooled) for kind in ("nce", "map")}
    ranking = {kind: si.RankingLoss(oracle, kind, **pooled) for kind in ("pointwise", "pairwise", "listwise")}
    drawn = {"noise": SumOfGamma(k=KAPPA), "samples": SAMPLES}

    def of_regret(relaxation: str, **options: Any) -> Loss:
        layer = si.Layer(oracle, relaxation, **options)
        return lambda theta, batch: (batch.values * (batch.best - layer(theta))).flatten(1).sum(1).mean()

    found: dict[str, Loss] = {
        "two-stage MSE": lambda theta, batch: mse_loss(theta, batch.values),
        "SPO+": lambda theta, batch: spo_plus(theta, batch.values),
        "perturbed Fenchel-Young": lambda theta, batch: fenchel_young(theta, batch.best),
        "blackbox": of_regret("blackbox", lambda_=scale["blackbox"] * batch),
        "negative identity": of_regret("negative_identity"),
        "I-MLE": of_regret("imle", lambda_=scale["I-MLE"] * batch, **drawn),
        # PyEPO counts the share of non-zeros among all parts, with the target 1.
        "adaptive I-MLE": of_regret("adaptive_imle", target_nonzeros=float(data.values[0].numel()), **drawn),
        "perturbation gradient": lambda theta, batch: gradient(theta, batch.values),
        "contrastive (NCE)": lambda theta, batch: contrastive["nce"](theta, batch.best),
        "contrastive (MAP)": lambda theta, batch: contrastive["map"](theta, batch.best),
        "ranking, pointwise": lambda theta, batch: ranking["pointwise"](theta, batch.values),
        "ranking, pairwise": lambda theta, batch: ranking["pairwise"](theta, batch.values),
        "ranking, listwise": lambda theta, batch: ranking["listwise"](theta, batch.values),
    }
    if task.has_facets:
        cone = si.ConeLoss(oracle)
        found["cone (CaVE)"] = lambda theta, batch: cone(theta, batch.best)
    return found


def peer_losses(task: Task, data: Decisions, scale: Mapping[str, float], batch: int) -> dict[str, Loss]:
    """Return the losses of PyEPO by the same names, of scores; none without PyEPO's model."""
    if task.peer is None:
        return {}
    func, model, sign = pyepo_module("func"), task.peer, task.sign
    dataset = pyepo_module("data.dataset").optDataset(model, data.features.numpy(), (sign * data.values).numpy())
    drawn = {"n_samples": SAMPLES}
    pooled = {"solve_ratio": SOLVE_RATIO, "dataset": dataset}
    spo_plus = func.SPOPlus(model)
    fenchel_young = func.PFY(model, sigma=scale["perturbed Fenchel-Young"], **drawn)
    gradient = func.PG(model, sigma=scale["perturbation gradient"], two_sides=True)
    nce, contrastive = func.NCE(model, **pooled), func.CMAP(model, **pooled)
    ranking = {kind: getattr(func, f"{kind}LTR")(model, **pooled) for kind in ("pt", "pr", "ls")}

    def of_regret(module: Any) -> Loss:
        return lambda theta, batch: (batch.values * (batch.best - module(sign * theta))).sum(1).mean()

    def of_values(module: Any) -> Loss:
        return lambda theta, batch: module(sign * theta, sign * batch.values)

    def of_best(module: Any) -> Loss:
        return lambda theta, batch: module(sign * theta, batch.best)

    def spo(theta: Tensor, batch: Decisions) -> Tensor:
        values = sign * batch.values
        return spo_plus(sign * theta, values, batch.best, (values * batch.best).sum(1, keepdim=True))

    found = {
        "SPO+": spo,
        "perturbed Fenchel-Young": of_best(fenchel_young),
        "blackbox": of_regret(func.DBB(model, lambd=scale["blackbox"] * batch)),
        "negative identity": of_regret(func.NID(model)),
        "I-MLE": of_regret(func.IMLE(model, lambd=scale["I-MLE"] * batch, **drawn)),
        "adaptive I-MLE": of_regret(func.AIMLE(model, **drawn)),
        "perturbation gradient": of_values(gradient),
        "contrastive (NCE)": of_best(nce),
        "contrastive (MAP)": of_best(contrastive),
        "ranking, pointwise": of_values(ranking["pt"]),
        "ranking, pairwise": of_values(ranking["pr"]),
        "ranking, listwise": of_values(ranking["ls"]),
    }
    if task.has_facets:
        found["cone (CaVE)"] = _cone_loss(task, data)
    return found


def _cone_loss(task: Task, data: Decisions) -> Loss:
    """Return CaVE with the binding constraints of each decision."""
    dataset, loss = pyepo_module("data.dataset"), pyepo_module("func").CaVE(task.peer)
    values = (task.sign * data.values).numpy()
    bound = dataset.optDatasetConstrs(task.peer, data.features.numpy(), values)
    normals = {tuple(x.tolist()): rows for x, rows in zip(data.features, bound.ctrs, strict=True)}

    def cone(theta: Tensor, batch: Decisions) -> Tensor:
        rows = [normals[tuple(x.tolist())] for x in batch.features]
        return loss(task.sign * theta, nn.utils.rnn.pad_sequence(rows, batch_first=True))

    return cone


# ----------------------------------------------------------------------------- the experiment


class Result(NamedTuple):
    """The regret on the validation and the test data, the seconds of training, and the solved instances."""

    validation: float
    test: float
    seconds: float
    solved: int


def evaluate(
    name: str, task: Task, size: Sizes, seed: int, scale: Mapping[str, float], is_peer: bool = False
) -> Result | None:
    """Train with a loss of structinf, or of PyEPO; None if the library has no such loss for the problem."""
    oracle, batch = Counted(task), size.training.batch
    rows, *held_out = size.parts
    data = task.data.take(rows)
    found = peer_losses(task, data, scale, batch) if is_peer else own_losses(task, oracle, data, scale, batch)
    if name not in found:
        return None
    model, fitted = train(task.network, found[name], data, size.training, seed, f"{name}, seed {seed}")
    solved = sum(oracle.solved)
    with torch.no_grad():
        validation, test = (task.regret(relax(model(task.data.features[part]), task.oracle), part) for part in held_out)
    return Result(validation, test, fitted.seconds, solved)


def choose(task: Task, size: Sizes, seed: int) -> dict[str, float]:
    """Return the scale of each loss in TUNED with the lowest regret on the validation data."""
    chosen = {}
    for name in TUNED:
        results = [(evaluate(name, task, size, seed, dict.fromkeys(TUNED, c)), c) for c in size.scales]
        chosen[name] = min((result.validation, c) for result, c in results if result is not None)[1]
    return chosen


def experiment(
    size: Sizes, seeds: Sequence[int], report: Report, problems: Mapping[str, Callable[[int, int], Task]] = PROBLEMS
) -> None:
    """Train with each loss of both libraries, on data drawn for each seed, and print the regret on test data."""
    report.line(
        f"{size.train} instances for training, {size.validation} for validation and {size.test} for the test, "
        f"{len(seeds)} times. The scale after a name is chosen on the validation data of the first draw.\n"
    )
    for title, make in problems.items():
        if title == "portfolios" and importlib.util.find_spec("cvxpy") is None:
            continue
        tasks = [make(size.parts[-1].stop, seed) for seed in seeds]
        scale = choose(tasks[0], size, seeds[0])
        widths = {"regret, %": 12, "PyEPO's regret, %": 12, "solved instances": 0, "seconds (PyEPO's)": 0}
        report.columns({f"loss, {title}": 36, **widths})
        for name in own_losses(tasks[0], Counted(tasks[0]), tasks[0].data, scale, size.training.batch):
            runs = [
                [evaluate(name, task, size, seed, scale, is_peer) for seed, task in zip(seeds, tasks, strict=True)]
                for is_peer in (False, True)
            ]
            own, peers = ([run for run in library if run is not None] for library in runs)
            seconds = [f"{sum(run.seconds for run in library):.1f}" for library in (own, peers) if library]
            report.row(
                f"{name}, {TUNED[name]} = {scale[name]:g}" if name in TUNED else name,
                [run.test for run in own],
                [run.test for run in peers] or "",
                sum(run.solved for run in own),
                seconds[0] + (f" ({seconds[1]})" if peers else ""),
            )
        report.line()


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=5, reads=False)


if __name__ == "__main__":
    sys.exit(main())
