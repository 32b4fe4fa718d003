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
from structinf.kernels import to_numpy
from structinf.oracle import Enumerable
from structinf.shapes import Int
from structinf.validation import bound_lengths, check_enumerable, check_lengths

from .common.constraint_program import ConstraintProgram, load_cp_model
from .common.integer_solver import Maximiser, Outcome, SolverOracle
from .common.labels import reject_labels

__all__ = ["Tour"]


@dataclass(frozen=True)
class Tour(SolverOracle, Enumerable):
    """Round trips through n nodes: Hamiltonian cycles of a directed graph.

    θ is (..., n, n): θ[i, j] scores the arc i -> j, any sign, and y has a 1 for each arc that is taken, one out of and
    one into each node, in a single cycle. The diagonal is never read, and y is 0 there; −inf forbids an arc. For the
    best tour of an undirected graph let θ be symmetric: a tour and its reverse score alike then. The tour of two nodes
    goes there and back; that of one node, or none, has no arcs.

    Instance data: ``lengths`` (...), integers from 1 to n, the nodes in use; arcs from and to others are 0. Labels are
    the nodes in the order of the visit, (..., n), from node 0 on; beyond the length they are −1.

    Parameters
    ----------
    time_limit, gap, seed, on_limit
        As :class:`SolverOracle` says.

    Notes
    -----
    The travelling salesman problem is NP-hard. CP-SAT's circuit constraint takes milliseconds for 10 nodes. Of arcs
    with independent scores it solves 40 nodes in some 0.1 s, 80 in about a second; distances between places, the same
    both ways, are much harder: 25 nodes some 0.5 s, 30 a few seconds, 40 ten and more. Beyond that set a
    ``time_limit``. Instances are solved on CPU threads, one each, the same way every time.

    Scores are rounded to integers that add up to some 2^60: sums of float32 and float64 cannot tell the difference.

    References
    ----------
    L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    >>> miles = torch.tensor([[[0.0, 2.0, 9.0, 1.0], [1.0, 0.0, 6.0, 4.0], [7.0, 3.0, 0.0, 8.0], [6.0, 3.0, 2.0, 0.0]]])
    >>> oracle = Tour()
    >>> y = oracle.argmax(-miles)
    >>> oracle.decode(y), oracle.score(miles, y)
    (tensor([[0, 3, 2, 1]]), tensor([7.]))
    """

    name: ClassVar[str] = "tour"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1
    structure_name: ClassVar[str] = "tour"
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "to sum over all tours is #P-hard, as to count them is",
            "Samplable": "to draw a tour is to find one, which is NP-hard",
            "KBest": "the solver looks for one tour",
            "Smoothable": "a best tour is no short recursion of maxima",
        }
    )

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        n = theta.shape[1]
        if theta.shape[2] != n:
            raise InvalidInputError(
                f"theta: tour takes scores (n, n) of arcs from node to node, got {tuple(theta.shape[1:])} after the "
                "batch dimensions"
            )
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], min(n, 1), n, f"n = {n} nodes")

    def valid_parts(self, theta: Tensor) -> Tensor:
        """All arcs but those from a node to itself, and in the padding."""
        nodes = torch.arange(theta.shape[1], device=theta.device)
        inside = nodes < self._lengths(theta[:1])[:, None]
        return (nodes != nodes[:, None]) & inside[:, :, None] & inside[:, None, :]

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = like.shape[1]
        if labels.shape[1:] != (n,):
            raise InvalidInputError(
                f"labels: a tour lists its {n} nodes in order, (..., {n}), from node 0 on; got {tuple(labels.shape)} "
                "with the batch flat"
            )
        lengths = self._lengths(like, len(labels))[:, None]
        place = torch.arange(n, device=labels.device)
        used = place < lengths
        reject_labels(used & ((labels < 0) | (labels >= lengths)), labels, "nodes lie between 0 and the length less 1")
        visits = torch.where(used, labels, place)
        reject_labels(visits.sort(1).values != place, labels, "a node is visited twice")
        reject_labels(used[:, :1] & (visits[:, :1] != 0), labels, "a tour starts at node 0")
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
        return bound_lengths(self, len(like) if batch is None else batch, n, f"n = {n} nodes", like.device)

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

    def enumerate(self, event_shape: Any) -> Tensor:
        """All tours, (|Y|, n, n) in float64, in the order of their labels. At most a million."""
        n = event_shape[0]
        lengths = self.bound.get("lengths")
        size = n if lengths is None else int(lengths[0])
        count = math.factorial(max(size - 1, 0))
        check_enumerable(count, f"tours of {size} nodes")
        labels = torch.full((count, n), -1)
        orders = [list(order) for order in itertools.permutations(range(1, size))]
        labels[:, :1] = 0
        labels[:, 1:size] = torch.tensor(orders, dtype=torch.long).reshape(count, max(size - 1, 0))
        return self[[0] * count].encode(labels, torch.zeros(1, n, n, dtype=torch.float64))


@functools.lru_cache(maxsize=32)
def _circuits(n: int) -> tuple[np.ndarray, np.ndarray, ConstraintProgram]:
    """The arcs' two ends and the program of all tours of ``n`` nodes."""
    model = load_cp_model().CpModel()
    start, end = (~np.eye(n, dtype=np.bool_)).nonzero()
    taken = [model.new_bool_var("") for _ in start]
    model.add_circuit(list(zip(start.tolist(), end.tolist(), taken, strict=True)))
    return start, end, ConstraintProgram(model, taken)
