"""Flows through a network shared by all instances, or of each instance: best flows, lists of flows, and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InfeasibleError, InvalidInputError, UnboundedError
from structinf.kernels import parallel_rows, to_numpy
from structinf.shapes import Bool, Float, Float64, Int
from structinf.validation import list_instances

from ..kernels.flow.limits import UNLIMITED
from .flow_lists import integer_flows, vertices
from .integer_amounts import LARGEST, Integers, rows_of, to_integers
from .labels import reject_labels

__all__ = ["Network", "Solver", "as_sequence", "check_amounts", "check_solver"]

Solver = Literal["simplex", "ortools"]

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


def check_amounts(name: str, amounts: Iterable[Any]) -> tuple[int, ...]:
    """Return ``amounts`` as Python integers; InvalidInputError for other values.

    Parameters
    ----------
    name : str
        The name of the option, for messages.
    amounts : iterable
        The amounts to check.
    """
    checked = []
    for i, amount in enumerate(amounts):
        value = amount.item() if hasattr(amount, "item") else amount
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise InvalidInputError(
                f"{name} must be integers of at least 0, and at most 2^53, got {amount!r} at index {i}"
                + ("; flow takes fractional amounts" if isinstance(value, float) else "")
            )
        checked.append(value)
    if sum(checked) > LARGEST:
        raise InvalidInputError(f"{name} must have a sum of at most 2^53, got {sum(checked)}")
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
        raise ImportError('solver="ortools" needs ortools; run pip install ortools') from error
    return min_cost_flow


@dataclass(frozen=True, eq=False)
class Network:
    """A network of edges with capacities between nodes with supplies; each table has 1 or B rows.

    Attributes
    ----------
    tails, heads : (1 | B, E) int64 array
        The node numbers where each edge begins and ends.
    lower, capacities : (1 | B, E) float64 array
        The least and the largest amount of each edge; the latter may be ``math.inf``.
    supplies : (1 | B, N) float64 array
        The outflow minus the inflow of each node, with a sum of 0.
    free : int
        The number of edges at the end of the lists without an entry in θ, with score 0.
    what : str
        The name of a flow in messages.
    precision : float
        The relative rounding error of fractional amounts. Supplies may be left up to 64 times this share of their sum.
    limits : (1 | B,) int64 array
        How many groups of large fractional capacities are limits, from the smallest group on. A capacity is large if it
        is far above all smaller amounts. By default none is a limit, unless an edge could then carry any amount: the
        unit of all amounts would else grow with them.
    """

    tails: np.ndarray
    heads: np.ndarray
    lower: np.ndarray
    capacities: np.ndarray
    supplies: np.ndarray
    free: int = field(default=0, kw_only=True)
    what: str = field(default="flow", kw_only=True)
    precision: float = field(default=2.0**-52, kw_only=True)
    limits: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64), kw_only=True)

    @cached_property
    def integers(self) -> Integers:
        """The numbers of the networks as integers."""
        tables = (self.lower, self.capacities, self.supplies, self.limits[:, None])
        return to_integers(*tables, precision=self.precision)

    @property
    def fractional(self) -> Bool[np.ndarray, " rows"]:
        """Which networks have fractional amounts, (1 | B,)."""
        return self.integers.exponent != 0

    def best(self, theta: Float[Tensor, "batch parts"], solver: Solver = "simplex") -> Tensor:
        """Return a flow of highest score for each instance, (B, parts) like ``theta``.

        Raises InfeasibleError, or UnboundedError if scores are unbounded. With ``solver="ortools"``, a cost-scaling
        algorithm on integer scores finds the flow from which the network simplex method starts, for networks of
        integers.
        """
        from ..kernels.flow import network_simplex as simplex

        scores = self._scores(theta)
        # An edge of score −inf cannot carry its lower bound.
        impossible = (np.isneginf(scores) & (self.integers.lower > 0)).any(1)
        flows, status = self._solve(scores, *self.integers[:2], solver)
        if (exact := self._with_capacities(status)) is not None:
            return exact.best(theta, solver)
        for outcome, error in (
            ((status == simplex.INFEASIBLE) | impossible, self._infeasible),
            (status == simplex.UNBOUNDED, self._unbounded),
        ):
            if outcome.any():
                raise error(np.flatnonzero(outcome).tolist())
        return torch.from_numpy(flows[:, : theta.shape[1]]).to(theta)

    def best_within(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return a best flow with low ≤ y ≤ high of each instance, and which instances have a flow, (B,) bool.

        Parameters
        ----------
        theta, low, high : (B, parts) Tensor
            Scores and bounds.
        """
        from ..kernels.flow import network_simplex as simplex

        scores, parts = self._scores(theta), theta.shape[1]
        least, most = (np.broadcast_to(table, scores.shape).copy() for table in self.integers[:2])
        exponent = self.integers.exponent[:, None]
        for bound, own, table, choose in zip(
            (low, high), self.bounds, (least, most), (np.maximum, np.minimum), strict=True
        ):
            (given,) = to_numpy(bound.double())
            # A bound that is the network's own bound, rounded to the dtype of the scores, allows all values.
            is_own = given == torch.from_numpy(own[:, :parts]).to(bound).double().cpu().numpy()
            limited = ~is_own & np.isfinite(given)
            amounts = np.ldexp(np.where(limited, given, 0.0), exponent).clip(max=2.0**61)
            amounts = np.rint(amounts).astype(np.int64)
            table[:, :parts] = np.where(limited, choose(table[:, :parts], amounts), table[:, :parts])
        found = np.array((least <= most).all(1) & ~(np.isneginf(scores) & (least > 0)).any(1))
        flows, status = self._solve(scores, least * found[:, None], most * found[:, None])
        if (exact := self._with_capacities(np.where(found, status, simplex.FOUND))) is not None:
            return exact.best_within(theta, low, high)
        if (unbounded := found & (status == simplex.UNBOUNDED)).any():
            raise self._unbounded(np.flatnonzero(unbounded).tolist())
        found &= status != simplex.INFEASIBLE
        return torch.from_numpy(flows[:, :parts]).to(theta), torch.from_numpy(found).to(theta.device)

    def _with_capacities(self, status: np.ndarray) -> Network | None:
        """Return the network with more capacities of the instances that are unbounded without them; None without any.

        Parameters
        ----------
        status : (B,) int8 array
            The outcome of each instance.
        """
        from ..kernels.flow import network_simplex as simplex

        raised = (self.integers.capacities == UNLIMITED) & np.isfinite(self.capacities)
        wrong = (status == simplex.UNBOUNDED) & raised.any(1)
        return replace(self, limits=self.limits + wrong) if wrong.any() else None

    def _scores(self, theta: Tensor) -> Float64[np.ndarray, "batch edges"]:
        """Return the scores of all edges, with 0 for edges without an entry in θ."""
        (given,) = to_numpy(theta)
        scores = np.zeros((len(given), self.capacities.shape[1]))
        scores[:, : given.shape[1]] = given
        return scores

    def _solve(
        self, scores: np.ndarray, lower: np.ndarray, capacities: np.ndarray, solver: Solver = "simplex"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return best flows (B, E) in float64, and the outcome of each instance, (B,) int8.

        The edges of the solved network carry the amounts above ``lower``, by the capacities above ``lower``.
        """
        from ..kernels.flow import network_simplex as simplex

        numbers = self.integers
        room = np.where(capacities == UNLIMITED, capacities, capacities - lower)
        supplies = numbers.supplies - self.net_outflow(lower) if lower.any() else numbers.supplies
        flows = np.zeros(scores.shape, np.int64)
        left, status = np.zeros(len(scores), np.int64), np.empty(len(scores), np.int8)
        if solver == "ortools":
            self._approach(scores, room, supplies, flows)
        work = OPERATIONS * len(scores) * (scores.shape[1] + supplies.shape[1])
        network = (self.tails, self.heads, room, supplies, numbers.slack)
        parallel_rows(simplex.best_flows, len(scores), scores, *network, flows, left, status, work=work)
        if left.any():
            # Amounts that differ from a bound by at most the rounding errors of the supplies are the bound.
            missing = left[:, None]
            flows = np.where(flows >= room - missing, room, np.where(flows <= missing, 0, flows))
        return self._as_floats(flows + lower), status

    def _as_floats(self, amounts: np.ndarray, rows: slice = slice(None)) -> Float64[np.ndarray, "batch edges"]:
        """Return the integer ``amounts`` (B, E) of instances as numbers within the bounds of their edges."""
        numbers = self.integers
        if not numbers.exponent[rows].any():
            return amounts.astype(np.float64)
        found = np.ldexp(amounts.astype(np.float64), -numbers.exponent[rows, None])
        least, most = self.lower[rows], self.capacities[rows]
        is_full, is_empty = amounts == numbers.capacities[rows], amounts == numbers.lower[rows]
        return np.where(is_full, most, np.where(is_empty, least, np.clip(found, least, most)))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower bounds and the capacities, (1 | B, E) in float64."""
        return self.lower, self.capacities

    def net_outflow(self, amounts: np.ndarray) -> np.ndarray:
        """Return the outflow minus the inflow of each node, (1 | B, N), for ``amounts`` (1 | B, E) on the edges."""
        rows = rows_of(amounts, self.tails)
        amounts, *ends = (np.broadcast_to(t, (rows, t.shape[1])) for t in (amounts, self.tails, self.heads))
        net, row = np.zeros((rows, self.supplies.shape[1]), amounts.dtype), np.arange(rows)[:, None]
        np.add.at(net, (row, ends[0]), amounts)
        np.subtract.at(net, (row, ends[1]), amounts)
        return net

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

    def _approach(self, scores: np.ndarray, room: np.ndarray, supplies: np.ndarray, flows: np.ndarray) -> None:
        """Write nearly optimal flows to ``flows`` for the instances solved by ortools, which holds the GIL."""
        solver = _ortools()
        batch, nodes = len(scores), np.arange(supplies.shape[1], dtype=np.int32)
        # ortools multiplies scores by the number of nodes and sums them over paths. The sums must stay within int64.
        bits = min(40, 58 - 2 * (len(nodes) + 1).bit_length())
        tables = (self.tails, self.heads, room, supplies, self.fractional[:, None])
        tables = [np.broadcast_to(t, (batch, t.shape[1])) for t in tables]
        for b, (tails, heads, most, outflow, fractional) in enumerate(zip(*tables, strict=True)):
            if fractional[0]:
                continue
            limited = most[most < UNLIMITED].astype(np.float64).sum()
            total = min(outflow.clip(min=0).astype(np.float64).sum() + limited, 2**61 // (len(tails) + 1))
            used = np.flatnonzero((scores[b] > -np.inf) & (most > 0))
            largest = np.abs(scores[b, used]).max(initial=0.0)
            costs = np.rint(np.ldexp(-scores[b, used], bits - np.frexp(largest)[1])).astype(np.int64)
            problem = solver.SimpleMinCostFlow()
            ends = (side[used].astype(np.int32) for side in (tails, heads))
            edges = problem.add_arcs_with_capacity_and_unit_cost(*ends, most[used].clip(max=int(total)), costs)
            problem.set_nodes_supplies(nodes, outflow)
            if problem.solve() == problem.OPTIMAL:
                flows[b, used] = problem.flows(edges)

    def all(self) -> Float64[np.ndarray, "flows parts"]:
        """Return all flows of the first instance, sorted by the amounts on the edges; at most a million.

        Of a network with fractional amounts, all vertices of its polytope.
        """
        if not self.limits.all():
            return replace(self, limits=np.full(1, UNLIMITED)).all()
        first = slice(0, 1)
        lower, capacities, supplies, _, exponent = (table[first] for table in self.integers)
        room = np.where(capacities == UNLIMITED, UNLIMITED, capacities - lower)
        supplies = (supplies - self.net_outflow(lower)[:1])[0]
        if exponent[0]:
            flows = vertices(self.tails[0], self.heads[0], room[0], supplies, UNLIMITED)
        else:
            bound = supplies.clip(min=0).sum() + room[room < UNLIMITED].sum()
            flows = integer_flows(self.tails[0], self.heads[0], room[0].clip(max=bound), supplies)
        amounts = self._as_floats(flows + lower, first)
        return amounts[:, : amounts.shape[1] - self.free]

    def check_labels(self, labels: Int[Tensor, "batch parts"]) -> None:
        """Raise InvalidInputError unless all ``labels`` lie between the lower bounds and the capacities."""
        least, most = (torch.from_numpy(table[:, : labels.shape[1]]).to(labels.device) for table in self.bounds)
        shown = "0" if not self.lower.any() else "the lower bounds"
        reject_labels(
            (labels < least) | (labels > most), labels, f"amounts must lie between {shown} and the capacities"
        )

    def left(self, labels: Int[Tensor, "batch parts"]) -> Float[Tensor, "batch nodes"]:
        """Return the supply of each node minus its net outflow under the amounts ``labels``."""
        net = self.net_outflow(labels.cpu().double().numpy())
        return torch.from_numpy(self.supplies - net).to(labels.device)

    def hamming_cost(self, y: Float[Tensor, "batch parts"]) -> Tensor:
        """Return costs of half a unit, for units on edges empty in ``y`` and units missing on edges full in ``y``.

        An edge is empty at its lower bound. The costs give the Hamming distance if all amounts are 0 or 1. Otherwise
        they give a lower bound on half the sum of all differences. No linear cost counts the differences of an edge
        that is neither empty nor full.
        """
        least, most = (torch.from_numpy(table[:, : y.shape[1]]).to(y) for table in self.bounds)
        return 0.5 * ((y == least).to(y) - (y == most).to(y))
