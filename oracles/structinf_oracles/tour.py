"""Tours: round trips that visit every node once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.kernels import parallel_rows, to_numpy
from structinf.linear_constraints import LinearConstraints, LinearlyConstrained
from structinf.oracle import Enumerable
from structinf.parts import Parts
from structinf.restriction import Restrictable
from structinf.shapes import Int
from structinf.solver_oracle import Maximiser, Outcome, SolverOracle
from structinf.validation import bound_lengths, check_enumerable, check_lengths

from .common.connecting_constraints import connecting_constraints
from .common.constraint_program import ConstraintProgram, load_cp_model
from .common.labels import reject_labels

__all__ = ["Tour"]

_MOST_NODES = 16
"""The largest number of nodes for the recursion, whose time doubles with each node."""


@dataclass(frozen=True)
class Tour(SolverOracle, Restrictable, Enumerable, LinearlyConstrained):
    """Round trips through n nodes: Hamiltonian cycles of a directed graph.

    - Scores θ, shape (..., n, n), any sign: θ[i, j] is the score of the arc from node i to node j. The diagonal is
      never read. −inf forbids an arc. For an undirected graph let θ be symmetric; a tour and its reverse then have
      equal scores.
    - Structure y, shape (..., n, n): 1 for each arc of the tour. Each node has one outgoing and one incoming arc, and
      all arcs form a single cycle. A tour of two nodes goes there and back; a tour of one node, or of none, has no
      arcs.
    - Labels, shape (..., n): the nodes in the order of the visit, from node 0 on. Decoded labels are −1 beyond the
      length.
    - Instance data ``lengths``, shape (...): the number of nodes in use, an integer in [0, n]. Default: n. In y all
      arcs from and to other nodes are 0.

    Parameters
    ----------
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float, default 0.0
        Relative gap to the optimal score at which the solver may stop; see :class:`SolverOracle`.
    seed : int, default 0
        Seed of the solver's random choices.
    on_limit : {"raise", "warn"}, default "raise"
        Whether a tour not proved optimal within ``time_limit`` raises an error or gives a warning; see
        :class:`SolverOracle`.

    Notes
    -----
    Instances of at most 16 nodes are solved by Held and Karp's recursion over sets of nodes: 8 nodes in 0.05 ms, 12 in
    0.3 ms and 16 in 5 ms, on one thread of an Intel Xeon. Ties go to the lowest node, decided from the last node of the
    tour backwards. The recursion needs no ``time_limit``, ``gap`` and ``seed``.

    CP-SAT solves larger instances. The travelling salesman problem is NP-hard: with independent scores of the arcs, one
    thread of an AMD EPYC takes 0.1 s for 40 nodes, and 0.3 s to 1.7 s for 80 nodes. With distances between random
    points, 25 nodes take 0.2 s to 2.5 s, 30 nodes 0.5 s to 5 s, and 40 nodes 2 s to 20 s (5 instances of each size).
    For larger problems set a ``time_limit``. Each instance is solved by one CPU thread, deterministically.

    Scores are rounded to integers: multiples of 2^-56 of the largest score for the recursion, and with a sum of
    magnitudes of about 2^60 for CP-SAT. Sums of float32 or float64 scores are not more precise.

    References
    ----------
    M. Held & R. Karp, A dynamic programming approach to sequencing problems, Journal of the SIAM 10(1), 1962.

    L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    >>> miles = torch.tensor([[
    ...     [0.0, 2.0, 9.0, 1.0],
    ...     [1.0, 0.0, 6.0, 4.0],
    ...     [7.0, 3.0, 0.0, 8.0],
    ...     [6.0, 3.0, 2.0, 0.0],
    ... ]])
    >>> oracle = Tour()
    >>> y = oracle.argmax(-miles)
    >>> oracle.decode(y), oracle.score(miles, y)
    (tensor([[0, 3, 2, 1]]), tensor([7.]))
    """

    name: ClassVar[str] = "tour"
    search_terms: ClassVar[tuple[str, ...]] = ("tsp", "travelling_salesman", "traveling_salesman", "hamiltonian_cycle")
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    has_empty_structure: ClassVar[bool] = True
    label_ndim: ClassVar[int] = 1
    structure_name: ClassVar[str] = "tour"
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "summing over all tours is #P-hard, like counting tours",
            "Samplable": "drawing a tour includes finding a tour, which is NP-hard",
            "Smoothable": "no dynamic program (a recursion of maxima) of polynomial size finds a best tour",
        }
    )

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        n = theta.shape[1]
        if theta.shape[2] != n:
            raise InvalidInputError(
                f"theta: tour takes scores (n, n) of the arcs between n nodes, got {tuple(theta.shape[1:])} after the "
                "batch dimensions"
            )
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], min(n, 1), n, f"n = {n} nodes", has_empty=True)

    def valid_parts(self, theta: Tensor) -> Tensor:
        """Mask the arcs between different nodes in use."""
        nodes = torch.arange(theta.shape[1], device=theta.device)
        inside = nodes < self._lengths(theta[:1])[:, None]
        return (nodes != nodes[:, None]) & inside[:, :, None] & inside[:, None, :]

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = like.shape[1]
        if labels.shape[1:] != (n,):
            raise InvalidInputError(
                f"labels must list the {n} nodes in the order of the visit, shape (..., {n}), from node 0 on; got "
                f"{tuple(labels.shape)} with the batch dimensions flattened"
            )
        lengths = self._lengths(like, len(labels))[:, None]
        place = torch.arange(n, device=labels.device)
        used = place < lengths
        reject_labels(
            used & ((labels < 0) | (labels >= lengths)), labels, "nodes must lie between 0 and the length minus 1"
        )
        visits = torch.where(used, labels, place)
        reject_labels(visits.sort(1).values != place, labels, "a node is visited twice")
        reject_labels(used[:, :1] & (visits[:, :1] != 0), labels, "a tour must start at node 0")
        onward = torch.where(place + 1 < lengths, visits.roll(-1, 1), 0)
        y = like.new_zeros(len(labels), n, n)
        rows, places = (used & (lengths > 1)).nonzero().unbind(1)
        y[rows, visits[rows, places], onward[rows, places]] = 1.0
        return y

    def decode(self, y: Tensor) -> Int[Tensor, "batch n"]:
        n = y.shape[1]
        onward = y.argmax(2) if n else y.new_zeros(y.shape[:2], dtype=torch.long)
        visits = torch.zeros_like(onward)
        for place in range(1, n):
            visits[:, place] = onward.gather(1, visits[:, place - 1 : place])[:, 0]
        lengths = self._lengths(y)[:, None]
        return visits.where(torch.arange(n, device=y.device) < lengths, -1)

    def _lengths(self, like: Tensor, batch: int | None = None) -> Tensor:
        n = like.shape[1]
        return bound_lengths(self, len(like) if batch is None else batch, n, like.device)

    # -- optimisation ----------------------------------------------------------------------

    def maximiser(self, theta: Tensor) -> Maximiser:
        n = theta.shape[1]
        (lengths,) = to_numpy(self._lengths(theta))

        def solve(index: int, scores: np.ndarray) -> Outcome:
            size = int(lengths[index])
            y = np.zeros((n, n))
            if size > 1:
                start, end, program = _circuits(size)
                outcome = program.maximise(scores.reshape(n, n)[start, end], self)
                if outcome.values is None:
                    return outcome
                y[start, end] = outcome.values
                return Outcome(outcome.status, y.ravel(), outcome.gap)
            return Outcome("best", y.ravel())

        return solve

    def _outcomes(self, theta: Tensor, maximiser: Maximiser) -> list[Outcome]:
        scores, lengths = to_numpy(theta.detach().double(), self._lengths(theta))
        small = (lengths > 1) & (lengths <= _MOST_NODES)
        if not small.any():
            return super()._outcomes(theta, maximiser)
        found = _best_tours(scores[small], lengths[small])
        if small.all():
            return found
        rest = np.flatnonzero(~small)
        others = super()._outcomes(theta[torch.from_numpy(rest)], lambda i, row: maximiser(int(rest[i]), row))
        place = np.argsort(np.concatenate([np.flatnonzero(small), rest]))
        return [[*found, *others][i] for i in place]

    @property
    def has_nested_structures(self) -> bool:
        return False

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        n, lengths = event_shape[0], self.bound.get("lengths")
        nodes = n if lengths is None else int(lengths[0])
        tails, heads = np.nonzero(~np.eye(nodes, dtype=np.bool_))
        parts = tails * n + heads
        # Each node has one arc from it, and one to it.
        rows, degree = (np.concatenate([tails, nodes + heads]), np.tile(parts, 2)), np.full(2 * nodes, float(nodes > 1))
        return connecting_constraints((tails, heads, parts), nodes, n * n, rows, (degree, degree))

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        # A forced arc excludes the other arcs out of its first node and into its second node.
        excluded = (low.amax(1, keepdim=True) > low) | (low.amax(2, keepdim=True) > low)
        return self.best_of_feasible(theta.masked_fill((high < 1) | excluded, -torch.inf))

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all tours, (|Y|, n, n) in float64, in the order of their labels; at most a million."""
        n = event_shape[0]
        lengths = self.bound.get("lengths")
        size = n if lengths is None else int(lengths[0])
        count = math.factorial(max(size - 1, 0))
        check_enumerable(count, f"tours of {size} nodes")
        labels = torch.full((count, n), -1, device="cpu")
        orders = [list(order) for order in itertools.permutations(range(1, size))]
        labels[:, :1] = 0
        labels[:, 1:size] = torch.tensor(orders, dtype=torch.long, device="cpu").reshape(count, max(size - 1, 0))
        return self[[0] * count].encode(labels, torch.zeros(1, n, n, dtype=torch.float64, device="cpu"))


def _best_tours(theta: np.ndarray, lengths: np.ndarray) -> list[Outcome]:
    """Return the best tours for scores (B, n, n) of instances of 2 to 16 nodes, by Held and Karp's recursion."""
    from .kernels.tour.held_karp import FORBIDDEN, LEAST, best_tours

    batch, n, _ = theta.shape
    used = np.arange(n) < lengths[:, None]
    allowed = np.isfinite(theta) & used[:, :, None] & used[:, None] & ~np.eye(n, dtype=np.bool_)
    finite = np.where(allowed, theta, 0.0)
    # Powers of two keep the proportions. Magnitudes are at most 2^56, and sums at most 2^60.
    exponent = np.frexp(np.abs(finite).max((1, 2), initial=0.0))[1]
    scores = np.rint(np.ldexp(finite, (56 - exponent)[:, None, None]))
    integers = np.where(allowed, scores, FORBIDDEN).astype(np.int64)
    value, y = np.empty(batch, np.int64), np.zeros((batch, n, n))
    work = int((np.exp2(lengths - 1.0) * lengths**2).sum())
    parallel_rows(best_tours, batch, integers, lengths, value, y, work=work)
    flat = y.reshape(batch, n * n)
    found = zip(flat, value, strict=True)
    return [Outcome("best", row) if total >= LEAST else Outcome("infeasible") for row, total in found]


@functools.lru_cache(maxsize=32)
def _circuits(n: int) -> tuple[np.ndarray, np.ndarray, ConstraintProgram]:
    """Return the tails and the heads of all arcs between ``n`` nodes, and the program of all tours."""
    model = load_cp_model().CpModel()
    start, end = (~np.eye(n, dtype=np.bool_)).nonzero()
    taken = [model.new_bool_var("") for _ in start]
    model.add_circuit(list(zip(start.tolist(), end.tolist(), taken, strict=True)))
    return start, end, ConstraintProgram(model, taken)
