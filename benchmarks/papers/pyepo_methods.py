"""Losses of decisions compared with the ones of PyEPO: regret and seconds, with equal data, models and batches.

The data follow Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", §6.1, as in Tang & Khalil 2024, PyEPO: paths
on a grid of 5 x 5 nodes, and knapsacks of 16 items. Both libraries train the same linear model from the same initial
weights with the same batches. PyEPO calls Gurobi.

Without PyEPO and gurobipy (pip install pyepo gurobipy), the program shows the rows of structinf alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import structinf as si
from structinf.noise import SumOfGamma

from .command import Report, run
from .decisions import Decisions, Loss, Training, losses, regret, train
from .training import relax

__all__ = ["main"]

SIDE, ITEMS, CAPACITY = 5, 16, 20.0
FEATURES, DEGREE, NOISE = 5, 4, 0.5
SAMPLES, SIGMA, STEP, LAMBDA, IMLE_LAMBDA, KAPPA, SOLVE_RATIO, INTERIOR = 3, 1.0, 1.0, 20.0, 10.0, 5, 1.0, 0.2

TRAINING = Training(epochs=20, batch=32, rate=1e-2)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 200
    test: int = 1000
    training: Training = TRAINING


def sizes(quick: bool) -> Sizes:
    return Sizes(train=64, test=64, training=Training(epochs=20, batch=32, rate=3e-2)) if quick else Sizes()


class Task(NamedTuple):
    """A problem: the oracle, the sign of costs in scores, PyEPO's model or None, and drawn decisions."""

    oracle: si.Oracle
    sign: float
    peer: Any
    data: Decisions


def grid_arcs(side: int) -> list[tuple[int, int]]:
    """Return the arcs to the right in a row, then the arcs down from the row, row by row: the order of PyEPO."""
    arcs = []
    for i in range(side):
        arcs += [(side * i + j, side * i + j + 1) for j in range(side - 1)]
        arcs += [(side * i + j, side * (i + 1) + j) for j in range(side)] if i + 1 < side else []
    return arcs


def _polynomial(random: np.random.RandomState, count: int, parts: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw features x and values factor · ((B x / √p + 3)^deg + 1) / 3.5^deg times a uniform factor."""
    mixing = random.binomial(1, 0.5, (parts, FEATURES))
    features = random.normal(0, 1, (count, FEATURES))
    expected = ((features @ mixing.T / np.sqrt(FEATURES) + 3) ** DEGREE + 1) * factor / 3.5**DEGREE
    return features, expected * random.uniform(1 - NOISE, 1 + NOISE, (count, parts))


def draw_costs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and costs of the arcs."""
    features, costs = _polynomial(np.random.RandomState(seed), count, len(grid_arcs(SIDE)), 1.0)
    return features, costs.astype(np.float32)


def draw_items(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights (1, items) in hundredths, features, and values of the items."""
    random = np.random.RandomState(seed)
    weights = random.choice(range(300, 800), size=(1, ITEMS)) / 100
    features, values = _polynomial(random, count, ITEMS, 5.0)
    return weights, features, np.ceil(values).astype(np.float32)


def decisions(features: np.ndarray, values: np.ndarray, oracle: si.Oracle) -> Decisions:
    """Return the decisions for ``values``, which are scores."""
    scores = torch.from_numpy(values)
    return Decisions(torch.from_numpy(features).float(), scores, relax(scores, oracle))


def paths(count: int, seed: int) -> Task:
    oracle = si.get_oracle("dag_path", graph=grid_arcs(SIDE))
    features, costs = draw_costs(count, seed)
    peer = None
    if has_peer():
        _check_equal((features, costs), _pyepo("data.shortestpath").genData(*_drawn(count, (SIDE, SIDE), seed)))
        peer = _pyepo("model.grb").shortestPathModel((SIDE, SIDE))
    return Task(oracle, -1.0, peer, decisions(features, -costs, oracle))


def knapsacks(count: int, seed: int) -> Task:
    weights, features, values = draw_items(count, seed)
    whole = np.rint(weights[0] * 100).astype(int).tolist()
    oracle = si.get_oracle("knapsack", weights=whole, capacity=round(CAPACITY * 100))
    peer = None
    if has_peer():
        _check_equal((weights, features, values), _pyepo("data.knapsack").genData(*_drawn(count, ITEMS, seed)))
        peer = _pyepo("model.grb").knapsackModel(weights, np.array([CAPACITY]))
    return Task(oracle, 1.0, peer, decisions(features, values, oracle))


TASKS: Mapping[str, Callable[[int, int], Task]] = {"paths": paths, "knapsacks": knapsacks}


def has_peer() -> bool:
    """Return whether PyEPO and gurobipy are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyepo", "gurobipy"))


def _pyepo(module: str) -> Any:
    return importlib.import_module(f"pyepo.{module}")


def _drawn(count: int, size: Any, seed: int) -> tuple[Any, ...]:
    more = (1,) if isinstance(size, int) else ()  # the dimensions of a knapsack
    return (count, FEATURES, size, *more, DEGREE, NOISE, seed)


def _check_equal(own: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> None:
    for a, b in zip(own, others, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


# ----------------------------------------------------------------------------- the methods


def own_losses(task: Task, data: Decisions) -> dict[str, Loss]:
    """Return the losses of structinf by name."""
    oracle, pool = task.oracle, data.best.unique(dim=0)
    shared = losses(oracle)
    fenchel_young = si.FenchelYoungLoss(oracle, "perturbed", samples=SAMPLES, sigma=SIGMA)
    gradient = si.PerturbationGradientLoss(oracle, h=STEP)
    cone = si.ConeLoss(oracle, interior_weight=INTERIOR)
    pooled: dict[str, Any] = {"pool": pool, "solve_ratio": SOLVE_RATIO}
    contrastive = {kind: si.ContrastiveLoss(oracle, kind, **pooled) for kind in ("nce", "map")}
    ranking = {kind: si.RankingLoss(oracle, kind, **pooled) for kind in ("pointwise", "pairwise", "listwise")}
    drawn = {"noise": SumOfGamma(k=KAPPA), "samples": SAMPLES}

    def of_regret(relaxation: str, **options: Any) -> Loss:
        layer = si.Layer(oracle, relaxation, **options)
        return lambda theta, batch: (batch.values * (batch.best - layer(theta))).sum(1).mean()

    return {
        "two-stage MSE": shared["two-stage MSE"],
        "SPO+": shared["SPO+"],
        "perturbed Fenchel-Young": lambda theta, batch: fenchel_young(theta, batch.best),
        "blackbox": of_regret("blackbox", lambda_=LAMBDA),
        "negative identity": of_regret("negative_identity"),
        "I-MLE": of_regret("imle", lambda_=IMLE_LAMBDA, **drawn),
        # PyEPO counts the share of non-zeros among all parts, with the target 1.
        "adaptive I-MLE": of_regret("adaptive_imle", target_nonzeros=float(data.values.shape[1]), **drawn),
        "perturbation gradient": lambda theta, batch: gradient(theta, batch.values),
        "contrastive (NCE)": lambda theta, batch: contrastive["nce"](theta, batch.best),
        "contrastive (MAP)": lambda theta, batch: contrastive["map"](theta, batch.best),
        "ranking, pointwise": lambda theta, batch: ranking["pointwise"](theta, batch.values),
        "ranking, pairwise": lambda theta, batch: ranking["pairwise"](theta, batch.values),
        "ranking, listwise": lambda theta, batch: ranking["listwise"](theta, batch.values),
        "cone (CaVE)": lambda theta, batch: cone(theta, batch.best),
    }


def peer_losses(task: Task, data: Decisions) -> dict[str, Loss]:
    """Return the losses of PyEPO by the same names, of scores."""
    func, model, sign = _pyepo("func"), task.peer, task.sign
    dataset = _pyepo("data.dataset").optDataset(model, data.features.numpy(), (sign * data.values).numpy())
    drawn = {"n_samples": SAMPLES}
    pooled = {"solve_ratio": SOLVE_RATIO, "dataset": dataset}
    spo_plus = func.SPOPlus(model)
    fenchel_young = func.PFY(model, sigma=SIGMA, **drawn)
    gradient = func.PG(model, sigma=STEP, two_sides=True)
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

    return {
        "SPO+": spo,
        "perturbed Fenchel-Young": of_best(fenchel_young),
        "blackbox": of_regret(func.DBB(model, lambd=LAMBDA)),
        "negative identity": of_regret(func.NID(model)),
        "I-MLE": of_regret(func.IMLE(model, lambd=IMLE_LAMBDA, **drawn)),
        "adaptive I-MLE": of_regret(func.AIMLE(model, **drawn)),
        "perturbation gradient": of_values(gradient),
        "contrastive (NCE)": of_best(nce),
        "contrastive (MAP)": of_best(contrastive),
        "ranking, pointwise": of_values(ranking["pt"]),
        "ranking, pairwise": of_values(ranking["pr"]),
        "ranking, listwise": of_values(ranking["ls"]),
        "cone (CaVE)": _cone_loss(task, data),
    }


def _cone_loss(task: Task, data: Decisions) -> Loss:
    """Return CaVE with the binding constraints of each decision."""
    dataset, loss = _pyepo("data.dataset"), _pyepo("func").CaVE(task.peer)
    values = (task.sign * data.values).numpy()
    bound = dataset.optDatasetConstrs(task.peer, data.features.numpy(), values)
    normals = {tuple(x.tolist()): rows for x, rows in zip(data.features, bound.ctrs, strict=True)}

    def cone(theta: Tensor, batch: Decisions) -> Tensor:
        rows = [normals[tuple(x.tolist())] for x in batch.features]
        return loss(task.sign * theta, nn.utils.rnn.pad_sequence(rows, batch_first=True))

    return cone


# ----------------------------------------------------------------------------- the experiment


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss of both libraries, on data drawn for each seed, and print the regret on test data."""
    report.line(f"{size.train} instances for training and {size.test} for the test, {len(seeds)} times\n")
    first, last = slice(size.train), slice(size.train, None)
    for title, make in TASKS.items():
        tasks = [make(size.train + size.test, seed) for seed in seeds]
        widths = {"regret, %": 12, "PyEPO's regret, %": 12, "seconds": 0, "PyEPO's seconds": 0}
        report.columns({f"loss, {title}": 25, **widths})
        for name in own_losses(tasks[0], tasks[0].data.take(first)):
            cells: list[object] = []
            for library in (own_losses, peer_losses):
                found, seconds = [], 0.0
                for seed, task in zip(seeds, tasks, strict=True):
                    data, test = task.data.take(first), task.data.take(last)
                    loss = None if library is peer_losses and task.peer is None else library(task, data).get(name)
                    if loss is None:
                        continue
                    model, result = train(
                        lambda task=task: nn.Linear(FEATURES, task.data.values.shape[1]),
                        loss,
                        data,
                        size.training,
                        seed,
                        f"{name}, seed {seed}",
                    )
                    found.append(regret(model(test.features), test, task.oracle))
                    seconds += result.seconds
                cells += [found or "", f"{seconds:.1f}" if found else ""]
            report.row(name, cells[0], cells[2], cells[1], cells[3])
        report.line()


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3, reads=False)


if __name__ == "__main__":
    sys.exit(main())
