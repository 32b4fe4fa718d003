"""Whole flows through a network, which all instances share: the one of highest score, all of them, and their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InfeasibleError, InvalidInputError, UnboundedError
from structinf.kernels import parallel_rows, to_numpy
from structinf.shapes import Float, Float64, Int
from structinf.validation import check_enumerable

from .labels import reject_labels

__all__ = ["LARGEST", "Network", "Solver", "check_amounts", "check_solver"]

Solver = Literal["simplex", "ortools"]

LARGEST = 2**53
"""Amounts up to here are whole numbers of float64."""

# Elementary operations for each edge and node: the pivots of small networks.
OPERATIONS = 500


def check_amounts(name: str, amounts: Iterable[Any], least: float = 0, *, unlimited: bool = False) -> tuple[Any, ...]:
    """``amounts`` as Python's integers, or ``math.inf`` where that may be; InvalidInputError if they are none.

    Parameters
    ----------
    least : float
        None may be smaller.
    unlimited : bool
        Whether ``math.inf`` is an amount.
    """
    checked = []
    for i, amount in enumerate(amounts):
        value = amount.item() if hasattr(amount, "item") else amount
        infinite = unlimited and value == math.inf
        if isinstance(value, bool) or not (infinite or (isinstance(value, int) and least <= value <= LARGEST)):
            expected = "integers" if least < 0 else f"integers of at least {least}"
            raise InvalidInputError(
                f"{name} must be {expected}, of at most 2^53{', or math.inf' if unlimited else ''}, got {amount!r} as "
                f"number {i}"
            )
        checked.append(value)
    if not unlimited and sum(map(abs, checked)) > LARGEST:
        raise InvalidInputError(f"{name} must sum up to at most 2^53")
    return tuple(checked)


def check_solver(solver: str) -> None:
    """InvalidInputError unless ``solver`` is one of :data:`Solver`; ImportError if it is not installed."""
    if solver not in ("simplex", "ortools"):
        raise InvalidInputError(f'solver must be "simplex" or "ortools", got {solver!r}')
    if solver == "ortools":
        _ortools()


def _ortools() -> Any:
    try:
        from ortools.graph.python import min_cost_flow
    except ImportError as error:
        raise ImportError("solver=\"ortools\" needs it: pip install 'structinf[solvers]'") from error
    return min_cost_flow


@dataclass(frozen=True, eq=False)
class Network:
    """Edges with capacities between nodes with supplies.

    Attributes
    ----------
    tails, heads : (E,) int64 array
        Numbers of nodes.
    capacities : (E,) array
        Integers, or ``math.inf``; in float64.
    supplies : (N,) int64 array
        What more leaves each node than enters it, with a sum of 0.
    free : int
        So many edges at the end have no potentials, but score 0.
    what : str
        How messages call a flow.
    """

    tails: np.ndarray
    heads: np.ndarray
    capacities: np.ndarray
    supplies: np.ndarray
    free: int = field(default=0, kw_only=True)
    what: str = field(default="flow", kw_only=True)

    @property
    def total(self) -> int:
        """All supplies together."""
        return int(self.supplies.clip(min=0).sum())

    def best(self, theta: Float[Tensor, "batch parts"], solver: Solver = "simplex") -> Tensor:
        """A flow of highest score for each instance, (B, parts) like ``theta``.

        Raises InfeasibleError, or UnboundedError where scores grow without end. ``solver="ortools"`` has its
        cost-scaling algorithm begin, with integers in the place of scores: from there it is not far.
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
                raise error(int((status == outcome).argmax()))
        return torch.from_numpy(flows[:, : given.shape[1]]).to(theta)

    def _infeasible(self, index: int) -> InfeasibleError:
        return InfeasibleError(
            f"no {self.what} of finite score exists for batch index {index}: what capacities and parts of −inf leave "
            "open does not take all supplies to where they end; allow more or drop the instance",
            index,
        )

    def _unbounded(self, index: int) -> UnboundedError:
        return UnboundedError(
            f"scores grow without end for batch index {index}: round some cycle of edges of unlimited capacity they "
            "sum up to more than 0; give such edges a capacity",
            index,
        )

    def _approach(self, scores: np.ndarray, flows: np.ndarray) -> None:
        """Write flows of nearly the highest score to ``flows``, where ortools, which keeps the GIL, finds some."""
        solver = _ortools()
        nodes = np.arange(len(self.supplies), dtype=np.int32)
        # Prices within ortools sum up scores over paths, times the number of nodes, and must stay within int64.
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
        """Every flow, by the amounts on the edges in order; at most a million."""
        bound = self.total + self.capacities[np.isfinite(self.capacities)].sum()
        capacities = self.capacities.clip(max=bound).astype(np.int64)
        # What edges after the first e may still take from, and bring to, each node.
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
        """InvalidInputError unless all ``labels`` are amounts that edges can take."""
        most = torch.from_numpy(self.capacities[: labels.shape[1]]).to(labels.device)
        reject_labels((labels < 0) | (labels > most), labels, "amounts lie between 0 and the capacities")

    def left(self, labels: Int[Tensor, "batch parts"]) -> Int[Tensor, "batch nodes"]:
        """What more should leave each node than does by the amounts ``labels``."""
        left = torch.from_numpy(self.supplies).to(labels.device).repeat(len(labels), 1)
        for side, sign in ((self.tails, -1), (self.heads, 1)):
            nodes = torch.from_numpy(side[: labels.shape[1]]).to(labels.device)
            left.index_add_(1, nodes, sign * labels)
        return left

    def hamming_cost(self, y: Float[Tensor, "batch parts"]) -> Tensor:
        """Half a unit for each that an edge empty in ``y`` takes, or one full in it misses.

        This is the Hamming distance where all amounts are 0 or 1. Else it is a lower bound on half the sum of all
        differences: no linear cost counts those of an edge that may have more and less.
        """
        most = torch.from_numpy(self.capacities[: y.shape[1]]).to(y)
        return 0.5 * ((y == 0).to(y) - (y == most).to(y))
