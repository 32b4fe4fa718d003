"""Integer flows through a network shared by all instances: best flows, lists of flows, and their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InfeasibleError, InvalidInputError, UnboundedError
from structinf.kernels import parallel_rows, to_numpy
from structinf.shapes import Float, Float64, Int
from structinf.validation import check_enumerable, list_instances

from .labels import reject_labels

__all__ = ["LARGEST", "Network", "Solver", "as_sequence", "check_amounts", "check_solver"]

Solver = Literal["simplex", "ortools"]

LARGEST = 2**53
"""The largest amount; float64 represents all integers up to here exactly."""

# Estimated elementary operations per edge and node, from the pivots of small networks.
OPERATIONS = 500


def as_sequence(name: str, values: Any, expected: str) -> list[Any]:
    """Return ``values``, a sequence or an array of one dimension, as a list.

    Parameters
    ----------
    name : str
        The name of the option, for messages.
    values : sequence, array or Tensor
        The values of the option.
    expected : str
        The expected form of the option, for messages.

    Raises
    ------
    InvalidInputError
        If ``values`` is another object, such as a number, a mapping or a matrix.
    """
    if hasattr(values, "tolist"):
        if values.ndim != 1:
            raise InvalidInputError(f"{name} must be {expected}, got an array of shape {tuple(values.shape)}")
        return values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InvalidInputError(f"{name} must be {expected}, got {values!r}")
    return list(values)


def check_amounts(name: str, amounts: Iterable[Any], least: float = 0, *, unlimited: bool = False) -> tuple[Any, ...]:
    """Return ``amounts`` as Python integers or ``math.inf``; InvalidInputError for other values.

    Parameters
    ----------
    name : str
        The name of the option, for messages.
    amounts : iterable
        The amounts to check.
    least : float
        The least allowed amount.
    unlimited : bool
        Whether ``math.inf`` is allowed.
    """
    checked = []
    for i, amount in enumerate(amounts):
        value = amount.item() if hasattr(amount, "item") else amount
        infinite = unlimited and value == math.inf
        if isinstance(value, bool) or not (infinite or (isinstance(value, int) and least <= value <= LARGEST)):
            expected = "integers" if least < 0 else f"integers of at least {least}"
            raise InvalidInputError(
                f"{name} must be {expected}, and at most 2^53{', or math.inf' if unlimited else ''}, got {amount!r} at "
                f"index {i}"
            )
        checked.append(value)
    if not unlimited and sum(map(abs, checked)) > LARGEST:
        raise InvalidInputError(f"{name} must have a sum of magnitudes of at most 2^53, got {sum(map(abs, checked))}")
    return tuple(checked)


def check_solver(solver: str) -> None:
    """Raise InvalidInputError unless ``solver`` is one of :data:`Solver`; ImportError if ortools is not installed."""
    if solver not in ("simplex", "ortools"):
        raise InvalidInputError(f'solver must be "simplex" or "ortools", got {solver!r}')
    if solver == "ortools":
        _ortools()


def _ortools() -> Any:
    try:
        from ortools.graph.python import min_cost_flow
    except ImportError as error:
        raise ImportError("solver=\"ortools\" needs ortools; run pip install 'structinf[solvers]'") from error
    return min_cost_flow


@dataclass(frozen=True, eq=False)
class Network:
    """A network of edges with capacities between nodes with supplies.

    Attributes
    ----------
    tails, heads : (E,) int64 array
        The node numbers where each edge begins and ends.
    capacities : (E,) float64 array
        Integers, or ``math.inf``.
    supplies : (N,) int64 array
        The outflow minus the inflow of each node, with a sum of 0.
    free : int
        The number of edges at the end of the lists without an entry in θ, with score 0.
    what : str
        The name of a flow in messages.
    """

    tails: np.ndarray
    heads: np.ndarray
    capacities: np.ndarray
    supplies: np.ndarray
    free: int = field(default=0, kw_only=True)
    what: str = field(default="flow", kw_only=True)

    @property
    def total(self) -> int:
        """The sum of all positive supplies."""
        return int(self.supplies.clip(min=0).sum())

    def best(self, theta: Float[Tensor, "batch parts"], solver: Solver = "simplex") -> Tensor:
        """Return a flow of highest score for each instance, (B, parts) like ``theta``.

        Raises InfeasibleError, or UnboundedError if scores are unbounded. With ``solver="ortools"``, a cost-scaling
        algorithm on integer scores finds the flow from which the network simplex method starts.
        """
        from ..kernels.flow import network_simplex as simplex

        (given,) = to_numpy(theta)
        scores = np.zeros((len(given), len(self.tails)))
        scores[:, : given.shape[1]] = given
        flows, status = np.zeros(scores.shape, np.int64), np.empty(len(scores), np.int8)
        if solver == "ortools":
            self._approach(scores, flows)
        capacities = np.where(np.isinf(self.capacities), simplex.UNLIMITED, self.capacities).astype(np.int64)
        work = OPERATIONS * len(scores) * (len(self.tails) + len(self.supplies))
        network = (self.tails, self.heads, capacities, self.supplies)
        parallel_rows(simplex.best_flows, len(scores), scores, *network, flows, status, work=work)
        for outcome, error in ((simplex.INFEASIBLE, self._infeasible), (simplex.UNBOUNDED, self._unbounded)):
            if (status == outcome).any():
                raise error(np.flatnonzero(status == outcome).tolist())
        return torch.from_numpy(flows[:, : given.shape[1]]).to(theta)

    def best_within(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return a best flow with low ≤ y ≤ high of each instance, and which instances have a flow, (B,) bool.

        The network of an instance carries the amounts above ``low``, by the capacities ``high`` − ``low``.

        Parameters
        ----------
        theta, low, high : (B, parts) Tensor
            Scores and bounds.
        """
        from ..kernels.flow import network_simplex as simplex

        given, least, most = to_numpy(theta.double(), low.double(), high.double())
        batch, parts = given.shape
        edges = len(self.tails)
        scores, base = np.zeros((batch, edges)), np.zeros((batch, edges), np.int64)
        scores[:, :parts], base[:, :parts] = given, least
        capacities = np.tile(self.capacities, (batch, 1))
        capacities[:, :parts] = np.minimum(most, capacities[:, :parts])
        found = np.array((base <= capacities).all(1) & ~(np.isneginf(scores) & (base > 0)).any(1))
        free = np.where(np.isinf(capacities), simplex.UNLIMITED, capacities - base).astype(np.int64)
        supplies = np.tile(self.supplies, (batch, 1))
        for nodes, sign in ((self.tails, -1), (self.heads, 1)):
            np.add.at(supplies.T, nodes, sign * base.T)
        flows, status = np.zeros((batch, edges), np.int64), np.empty(1, np.int8)
        for b in np.flatnonzero(found):
            row = slice(b, b + 1)
            network = (self.tails, self.heads, free[b], supplies[b])
            parallel_rows(simplex.best_flows, 1, scores[row], *network, flows[row], status, work=0)
            if status[0] == simplex.UNBOUNDED:
                raise self._unbounded([int(b)])
            found[b] = status[0] != simplex.INFEASIBLE
        return torch.from_numpy((flows + base)[:, :parts]).to(theta), torch.from_numpy(found).to(theta.device)

    def _infeasible(self, indices: list[int]) -> InfeasibleError:
        return InfeasibleError(
            f"no {self.what} of finite score exists for {list_instances(indices)}, as the capacities and the parts "
            "above −inf cannot carry all supplies; allow more parts, raise capacities or drop the instances",
            indices[0],
            indices,
        )

    def _unbounded(self, indices: list[int]) -> UnboundedError:
        return UnboundedError(
            f"scores are unbounded for {list_instances(indices)}, as a cycle of edges with unlimited capacity has a "
            "positive score; give these edges a finite capacity",
            indices[0],
            indices,
        )

    def _approach(self, scores: np.ndarray, flows: np.ndarray) -> None:
        """Write nearly optimal flows to ``flows`` for the instances solved by ortools, which holds the GIL."""
        solver = _ortools()
        nodes = np.arange(len(self.supplies), dtype=np.int32)
        # ortools multiplies scores by the number of nodes and sums them over paths. The sums must stay within int64.
        bits = min(40, 58 - 2 * (len(nodes) + 1).bit_length())
        most = min(
            self.total + int(self.capacities[np.isfinite(self.capacities)].sum()), 2**61 // (len(self.tails) + 1)
        )
        capacities = self.capacities.clip(max=most).astype(np.int64)
        for b in range(len(scores)):
            used = np.flatnonzero((scores[b] > -np.inf) & (capacities > 0))
            largest = np.abs(scores[b, used]).max(initial=0.0)
            costs = np.rint(np.ldexp(-scores[b, used], bits - np.frexp(largest)[1])).astype(np.int64)
            problem = solver.SimpleMinCostFlow()
            ends = (side[used].astype(np.int32) for side in (self.tails, self.heads))
            edges = problem.add_arcs_with_capacity_and_unit_cost(*ends, capacities[used], costs)
            problem.set_nodes_supplies(nodes, self.supplies)
            if problem.solve() == problem.OPTIMAL:
                flows[b, used] = problem.flows(edges)

    def all(self) -> Float64[np.ndarray, "flows parts"]:
        """Return all flows, sorted by the amounts on the edges; at most a million."""
        bound = self.total + self.capacities[np.isfinite(self.capacities)].sum()
        capacities = self.capacities.clip(max=bound).astype(np.int64)
        # [e]: the amounts that the edges from e on can take from, and bring to, each node.
        out, into = (np.zeros((len(capacities) + 1, len(self.supplies)), np.int64) for _ in range(2))
        for e in reversed(range(len(capacities))):
            out[e], into[e] = out[e + 1], into[e + 1]
            if self.tails[e] != self.heads[e]:
                out[e, self.tails[e]] += capacities[e]
                into[e, self.heads[e]] += capacities[e]
        flows, left = np.zeros((1, 0), np.int64), self.supplies[None]
        for e, capacity in enumerate(capacities):
            check_enumerable(len(flows) * (int(capacity) + 1), "beginnings of flows or more")
            amounts = np.tile(np.arange(capacity + 1), len(flows))
            flows = np.column_stack([flows.repeat(capacity + 1, 0), amounts])
            left = left.repeat(capacity + 1, 0)
            left[:, self.tails[e]] -= amounts
            left[:, self.heads[e]] += amounts
            possible = ((left <= out[e + 1]) & (left >= -into[e + 1])).all(1)
            flows, left = flows[possible], left[possible]
        flows = flows[(left == 0).all(1)]
        return flows[:, : len(self.tails) - self.free].astype(np.float64)

    def check_labels(self, labels: Int[Tensor, "batch parts"]) -> None:
        """Raise InvalidInputError unless all ``labels`` lie between 0 and the capacities."""
        most = torch.from_numpy(self.capacities[: labels.shape[1]]).to(labels.device)
        reject_labels((labels < 0) | (labels > most), labels, "amounts must lie between 0 and the capacities")

    def left(self, labels: Int[Tensor, "batch parts"]) -> Int[Tensor, "batch nodes"]:
        """Return the supply of each node minus its net outflow under the amounts ``labels``."""
        left = torch.from_numpy(self.supplies).to(labels.device).repeat(len(labels), 1)
        for side, sign in ((self.tails, -1), (self.heads, 1)):
            nodes = torch.from_numpy(side[: labels.shape[1]]).to(labels.device)
            left.index_add_(1, nodes, sign * labels)
        return left

    def hamming_cost(self, y: Float[Tensor, "batch parts"]) -> Tensor:
        """Return costs of half a unit, for units on edges empty in ``y`` and units missing on edges full in ``y``.

        The costs give the Hamming distance if all amounts are 0 or 1. Otherwise they give a lower bound on half the
        sum of all differences. No linear cost counts the differences of an edge that is neither empty nor full.
        """
        most = torch.from_numpy(self.capacities[: y.shape[1]]).to(y)
        return 0.5 * ((y == 0).to(y) - (y == most).to(y))
