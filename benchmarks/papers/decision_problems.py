"""Problems whose values are predicted: those of PyEPO, paths through maps, vehicles and maintenance.

Paths, knapsacks, tours and portfolios follow Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", §6.1, and Tang &
Khalil 2024, PyEPO. Maps follow Vlastelica et al. 2020, Differentiation of Blackbox Combinatorial Solvers. Vehicles and
maintenance follow problems of InferOpt (Dalle, Baty, Bouvier & Parmentier 2022, Learning with Combinatorial
Optimization Layers), at small sizes whose best decisions are known.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import structinf as si

from .decisions import Decisions
from .training import relax

__all__ = ["PROBLEMS", "Task", "draw_costs", "grid_arcs", "pyepo_module"]

SIDE, ITEMS, CAPACITY, NODES, ASSETS, RISK = 5, 16, 20.0, 8, 20, 2.25
FEATURES, DEGREE, NOISE = 5, 4, 0.5
MAP, TILE, TERRAINS = 8, 4, (0.8, 1.2, 5.3, 7.7, 9.2)
TRIPS, SCENARIOS, VEHICLE_COST, DELAY_COST = 7, 20, 100.0, 2.0
MACHINES, STATES, DISCOUNT = 4, 3, 0.9


@dataclass(frozen=True)
class Task:
    """Drawn decisions of a problem.

    Attributes
    ----------
    oracle : Oracle
        The decisions.
    data : Decisions
        The features, the values of the parts with a standard deviation of 1, and the best decisions.
    network : callable
        Returns a model from features to values.
    costs : callable, optional
        Returns the costs of decisions (n, ...) for the instances of a slice, and the least costs. Default: the
        decisions lose values.
    sign : float
        −1 if PyEPO's costs are the negative values.
    peer : object, optional
        PyEPO's model.
    has_facets : bool
        Whether finitely many linear constraints describe the decisions.
    """

    oracle: si.Oracle
    data: Decisions
    network: Callable[[], nn.Module]
    costs: Callable[[Tensor, slice], tuple[Tensor, Tensor]] | None = None
    sign: float = 1.0
    peer: Any = None
    has_facets: bool = True

    def regret(self, y: Tensor, rows: slice) -> float:
        """Return what decisions ``y`` lose, in per cent of the value or the cost of the best decisions."""
        if self.costs is not None:
            own, least = self.costs(y, rows)
            return (100 * (own - least).sum() / least.sum()).item()
        data = self.data.take(rows)
        lost, most = data.values * (data.best - y), data.values * data.best
        return (100 * lost.double().sum() / most.double().sum().abs()).item()


def pyepo_module(name: str) -> Any:
    """Return a module of PyEPO, or None unless PyEPO and gurobipy are installed."""
    is_installed = all(importlib.util.find_spec(package) is not None for package in ("pyepo", "gurobipy"))
    return importlib.import_module(f"pyepo.{name}") if is_installed else None


def _task(oracle: si.Oracle, features: np.ndarray | Tensor, values: np.ndarray | Tensor, **more: Any) -> Task:
    scores = torch.as_tensor(values, dtype=torch.float32)
    scores = scores / scores.std()
    x = torch.as_tensor(features, dtype=torch.float32)
    more.setdefault("network", lambda: nn.Linear(x.shape[1], scores.shape[1]))
    return Task(oracle, Decisions(x, scores, relax(scores, oracle)), **more)


def _peer(generator: str, own: Sequence[np.ndarray], arguments: Mapping[str, Any], model: str, *parts: Any) -> Any:
    """Return PyEPO's model, after a check that PyEPO draws the same data; None without PyEPO."""
    data, models = pyepo_module(f"data.{generator}"), pyepo_module("model.grb")
    if data is None:
        return None
    count, seed = len(own[-1]), arguments["seed"]
    common = {"num_data": count, "num_features": FEATURES, "deg": DEGREE, "seed": seed}
    for a, b in zip(own, data.genData(**{**common, **arguments}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    return getattr(models, model)(*parts)


# ----------------------------------------------------------------------------- the problems of PyEPO


def grid_arcs(side: int) -> list[tuple[int, int]]:
    """Return the arcs to the right in a row, then the arcs down from the row, row by row: the order of PyEPO."""
    arcs = []
    for i in range(side):
        arcs += [(side * i + j, side * i + j + 1) for j in range(side - 1)]
        arcs += [(side * i + j, side * (i + 1) + j) for j in range(side)] if i + 1 < side else []
    return arcs


def _polynomial(
    random: np.random.RandomState, count: int, parts: int, factor: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw features x, values factor · ((B x / √p + 3)^deg + 1) / 3.5^deg, and these times a uniform factor."""
    mixing = random.binomial(1, 0.5, (parts, FEATURES))
    features = random.normal(0, 1, (count, FEATURES))
    expected = ((features @ mixing.T / np.sqrt(FEATURES) + 3) ** DEGREE + 1) * factor / 3.5**DEGREE
    return features, expected, expected * random.uniform(1 - NOISE, 1 + NOISE, (count, parts))


def draw_costs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, and costs of the arcs without and with noise."""
    features, expected, costs = _polynomial(np.random.RandomState(seed), count, len(grid_arcs(SIDE)), 1.0)
    return features, expected, costs.astype(np.float32)


def draw_items(count: int, seed: int, capacities: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights (capacities, items) in hundredths, features, and values of the items."""
    random = np.random.RandomState(seed)
    weights = random.choice(range(300, 800), size=(capacities, ITEMS)) / 100
    features, _, values = _polynomial(random, count, ITEMS, 5.0)
    return weights, features, np.ceil(values).astype(np.float32)


def draw_distances(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and costs of the edges i < j: the distance of two points, plus a noisy polynomial."""
    random, edges = np.random.RandomState(seed), np.triu_indices(NODES, 1)
    uniform, normal = random.uniform(-2, 2, (NODES // 2, 2)), random.normal(0, 1, (NODES - NODES // 2, 2))
    points = np.concatenate([uniform, normal])
    distances = np.linalg.norm(points[edges[0]] - points[edges[1]], axis=1)
    size = len(distances), FEATURES
    mixing = random.binomial(1, 0.5, size) * random.uniform(-2, 2, size)
    features = random.normal(0, 1, (count, FEATURES))
    expected = (features @ mixing.T / np.sqrt(FEATURES) + 3) ** DEGREE / 3 ** (DEGREE - 1)
    costs = distances + expected * random.uniform(1 - NOISE, 1 + NOISE, (count, len(distances)))
    return features, np.around(costs, 4).astype(np.float32)


def draw_returns(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the covariance (assets, assets), features and returns of the assets."""
    random = np.random.RandomState(seed)
    mixing = random.binomial(1, 0.5, (ASSETS, FEATURES))
    loadings = random.uniform(-2.5e-3, 2.5e-3, (ASSETS, FEATURES))
    features = random.normal(0, 1, (count, FEATURES))
    returns = (0.05 * (features @ mixing.T) / np.sqrt(FEATURES) + 0.1 ** (1 / DEGREE)) ** DEGREE
    common, own = np.split(random.randn(count, FEATURES + ASSETS), [FEATURES], axis=1)
    returns += common @ loadings.T + 0.01 * own
    return loadings @ loadings.T + 1e-4 * np.eye(ASSETS), features, returns.astype(np.float32)


def paths(count: int, seed: int) -> Task:
    features, _, costs = draw_costs(count, seed)
    options = {"grid": (SIDE, SIDE), "noise_width": NOISE, "seed": seed}
    peer = _peer("shortestpath", (features, costs), options, "shortestPathModel", (SIDE, SIDE))
    oracle = si.get_oracle("dag_path", graph=grid_arcs(SIDE))
    return _task(oracle, features, -costs, sign=-1.0, peer=peer)


def knapsacks(count: int, seed: int, capacities: int = 1) -> Task:
    drawn = weights, features, values = draw_items(count, seed, capacities)
    options = {"num_items": ITEMS, "dim": capacities, "noise_width": NOISE, "seed": seed}
    peer = _peer("knapsack", drawn, options, "knapsackModel", weights, np.full(capacities, CAPACITY))
    whole, upper = np.rint(weights * 100).astype(int).tolist(), round(CAPACITY * 100)
    oracle = si.get_oracle("knapsack", weights=whole, capacity=[upper] * capacities)
    return _task(oracle, features, values, peer=peer)


def knapsacks_of_two_capacities(count: int, seed: int) -> Task:
    return knapsacks(count, seed, 2)


def tours(count: int, seed: int) -> Task:
    drawn = draw_distances(count, seed)
    options = {"num_nodes": NODES, "noise_width": NOISE, "seed": seed}
    peer = _peer("tsp", drawn, options, "tspDFJModel", NODES)
    arcs = torch.zeros(drawn[1].shape[1], NODES, NODES)
    for edge, (i, j) in enumerate(itertools.combinations(range(NODES), 2)):
        arcs[edge, i, j] = arcs[edge, j, i] = 1.0
    oracle = si.Affine("tour", g=arcs.flatten(1), event_shape=(NODES, NODES))
    return _task(oracle, drawn[0], -drawn[1], sign=-1.0, peer=peer)


def portfolios(count: int, seed: int) -> Task:
    """Shares of assets of the highest return, whose variance is at most 2.25 times the mean covariance."""
    drawn = covariance, features, returns = draw_returns(count, seed)
    options = {"num_assets": ASSETS, "noise_level": 1.0, "seed": seed}
    peer = _peer("portfolio", drawn, options, "portfolioModel", ASSETS, covariance, RISK)
    cvxpy: Any = importlib.import_module("cvxpy")
    shares = cvxpy.Variable(ASSETS, nonneg=True)
    # A bound on the norm is better scaled than a bound on the square.
    root = np.linalg.cholesky(covariance / (RISK * covariance.mean())).T
    limits = [cvxpy.sum(shares) == 1, cvxpy.norm(root @ shares) <= 1]
    oracle = si.from_cvxpy(cvxpy.Problem(cvxpy.Minimize(0), limits), shares, solver="CLARABEL")
    return _task(oracle, features, returns, peer=peer, has_facets=False)


# ----------------------------------------------------------------------------- maps


class _TileReader(nn.Module):
    """The value of each tile of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, TILE, TILE), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).squeeze(1)


def maps(count: int, seed: int) -> Task:
    """Paths from corner to corner of a map of five terrains, by moves down, right and diagonal, seen as an image."""
    g = torch.Generator().manual_seed(seed)
    hills = nn.functional.interpolate(torch.randn(count, 1, 4, 4, generator=g), MAP, mode="bicubic")[:, 0]
    terrain = torch.bucketize(hills + 0.3 * torch.randn(hills.shape, generator=g), torch.tensor([-0.9, -0.3, 0.3, 0.9]))
    colours = torch.rand(len(TERRAINS), 3, generator=g)[terrain]
    tiles = (colours + 0.15 * torch.randn(colours.shape, generator=g)).movedim(3, 1)  # light differs between tiles
    pixels = tiles.repeat_interleave(TILE, 2).repeat_interleave(TILE, 3)
    images = pixels + 0.3 * torch.randn(pixels.shape, generator=g)
    oracle = si.get_oracle("grid_path", moves="with-diagonal")
    return _task(oracle, images, -torch.tensor(TERRAINS)[terrain], network=_TileReader)


# ----------------------------------------------------------------------------- vehicles


def vehicles(count: int, seed: int) -> Task:
    """Vehicles that drive a list of trips one after the other, under random delays.

    The decision is the set of pairs i < j of trips that one vehicle drives in a row. The cost is the one of the
    vehicles, of empty travel, and of mean delay, which a late vehicle passes on to its next trips: the cost is no sum
    over pairs. The best decision among all 877 is known, and all losses imitate it: a pair has the value 1 in the best
    decision, and −1 otherwise.
    """
    g = torch.Generator().manual_seed(seed)
    pairs = list(itertools.combinations(range(TRIPS), 2))
    first, second = torch.tensor(pairs).T
    begin = 240 * torch.rand(count, TRIPS, generator=g).sort(1).values
    places = 30 * torch.rand(count, TRIPS, 2, 2, generator=g)
    length = (places[:, :, 0] - places[:, :, 1]).norm(dim=2)
    travel = (places[:, first, 1] - places[:, second, 0]).norm(dim=2)
    spread = torch.rand(count, TRIPS, 1, generator=g)
    delays = 10 * spread * torch.randn(count, TRIPS, SCENARIOS, generator=g).exp()
    slower = (0.3 * torch.randn(count, len(pairs), SCENARIOS, generator=g)).exp()
    # the minutes between two trips, if the first begins in time
    slack = (begin[:, second] - (begin + length)[:, first]).unsqueeze(2) - delays[:, first] - travel[..., None] * slower

    oracle: Any = si.get_oracle("matching", edges=[(("from", i), ("to", j)) for i, j in pairs], perfect=False)
    every = oracle.enumerate((len(pairs),)).float()
    late = torch.zeros(count, len(every), TRIPS, SCENARIOS)
    for pair, (i, j) in enumerate(pairs):  # in the order of i: the delay of trip i is complete
        passed_on = (late[:, :, i] - slack[:, None, pair]).clamp(min=0)
        late[:, :, j] += every[:, pair, None] * passed_on
    costs = VEHICLE_COST * (TRIPS - every.sum(1)) + travel @ every.T + DELAY_COST * late.mean(3).sum(2)

    def of(y: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        index = (2 * y @ every.T - every.sum(1)).argmax(1, keepdim=True)  # of the decision at Hamming distance 0
        return costs[rows].gather(1, index)[:, 0], costs[rows].amin(1)

    levels = torch.quantile(slack, torch.tensor([0.1, 0.5, 0.9]), dim=2).movedim(0, 2)
    is_late, lateness = (slack < 0).float().mean(2), (-slack).clamp(min=0).mean(2)
    features = torch.cat([torch.stack([travel / 30, is_late, lateness / 30], 2), levels / 60], 2)
    best = every[costs.argmin(1)]
    values = 2 * best - 1

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(features.shape[2], 1), nn.Flatten())

    return Task(oracle, Decisions(features, values, best), network, of)


# ----------------------------------------------------------------------------- maintenance


def maintenance(count: int, seed: int) -> Task:
    """At most one of four machines to maintain, in a random state of a Markov decision process.

    A machine wears by a step with its own probability, until a failure that costs in each period. Maintenance costs and
    makes a machine new. The value of a machine is what its maintenance saves, if all later decisions are the best.
    """
    g = torch.Generator().manual_seed(seed)
    wear = 0.1 + 0.4 * torch.rand(count, MACHINES, generator=g)
    failure, repair = (
        low + (high - low) * torch.rand(count, MACHINES, generator=g) for low, high in ((5, 15), (2, 10))
    )
    states = torch.randint(STATES, (count, MACHINES), generator=g)
    steps = torch.eye(STATES).expand(count, MACHINES, -1, -1).clone()
    for s in range(STATES - 1):
        steps[:, :, s, s], steps[:, :, s, s + 1] = 1 - wear, wear
    renewal = torch.zeros(count, STATES, STATES)
    renewal[:, :, 0] = 1.0

    def expected(value: Tensor, renewed: int | None) -> Tensor:
        """Return the mean of ``value`` (count, STATES, ..., STATES) after a period."""
        for machine in range(MACHINES):
            step = renewal if machine == renewed else steps[:, machine]
            value = torch.einsum("bst,bt...->bs...", step, value.movedim(machine + 1, 1)).movedim(1, machine + 1)
        return value

    shape = [1] * MACHINES
    failed = torch.zeros(count, *[STATES] * MACHINES)
    for machine in range(MACHINES):
        cost = failure[:, machine, None] * (torch.arange(STATES) == STATES - 1)
        failed = failed + cost.view(count, *shape[:machine], STATES, *shape[machine + 1 :])

    def after(value: Tensor) -> list[Tensor]:
        """Return the cost of no maintenance, and of the maintenance of each machine."""
        later = [DISCOUNT * expected(value, machine) for machine in (None, *range(MACHINES))]
        return [failed + c + (0.0 if m == 0 else repair[:, m - 1].view(count, *shape)) for m, c in enumerate(later)]

    value = torch.zeros_like(failed)
    for _ in range(150):  # the error of the values falls below 1e-6 of their size
        value = torch.stack(after(value)).amin(0)
    rows = torch.arange(count)
    nothing, *each = (cost[(rows, *states.T)] for cost in after(value))
    features = torch.cat([torch.stack([wear, failure / 10, repair / 10], 2), nn.functional.one_hot(states, STATES)], 2)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(features.shape[2], 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten())

    oracle = si.get_oracle("knapsack", weights=[1] * MACHINES, capacity=1)
    return _task(oracle, features, torch.stack([nothing - cost for cost in each], 1), network=network)


PROBLEMS: Mapping[str, Callable[[int, int], Task]] = {
    "paths": paths,
    "knapsacks": knapsacks,
    "knapsacks of two capacities": knapsacks_of_two_capacities,
    "tours": tours,
    "portfolios": portfolios,
    "maps": maps,
    "vehicles": vehicles,
    "maintenance": maintenance,
}
