"""Shortest paths by Dijkstra's algorithm: what grids of cells and general graphs have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InfeasibleError, InvalidInputError
from structinf.kernels import parallel_rows, to_numpy, zeros
from structinf.oracle import Enumerable
from structinf.shapes import Int
from structinf.validation import MOST_ENUMERATED, check_enumerable, check_instances

from .labels import indicators, reject_labels

__all__ = ["Arcs", "ShortestPath"]

# Elementary operations for each arc and each node: a look at an arc, and the node's way through the heap.
OPERATIONS_PER_ARC = 4

# How many arcs are looked at, a second's work at most, before the order of given nodes is given up.
MAX_SEARCHED_ARCS = 100_000_000

_ACYCLIC = "dag_path, and grid_path by moves that never lead back, have"


class Arcs(NamedTuple):
    """The ways on from each node of a graph, as the compiled loops take them.

    Attributes
    ----------
    offset : (N + 1,) int64 array
        Arcs ``offset[v]:offset[v + 1]`` leave node v.
    head, part : (A,) uint32 array
        The node that each arc leads to, and the part that it uses.
    """

    offset: np.ndarray
    head: np.ndarray
    part: np.ndarray

    @classmethod
    def of(cls, tail: np.ndarray, head: np.ndarray, part: np.ndarray, nodes: int) -> Arcs:
        """Those from ``tail`` to ``head``; loops are left out, as no simple path takes them."""
        order = np.flatnonzero(tail != head)
        order = order[tail[order].argsort(kind="stable")]
        offset = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(tail[order], minlength=nodes), out=offset[1:])
        return cls(offset, head[order].astype(np.uint32), part[order].astype(np.uint32))

    def by_nodes(self) -> Arcs:
        """The same ways where nodes are the parts: an arc uses its head."""
        return Arcs(self.offset, self.head, self.head)

    def pairs(self) -> Int[np.ndarray, " arcs"]:
        """Tail · N + head of each arc."""
        nodes = len(self.offset) - 1
        return np.arange(nodes).repeat(np.diff(self.offset)) * nodes + self.head


class ShortestPath(Enumerable):
    """Simple paths between two nodes, the best of which Dijkstra's algorithm finds where all potentials are 0 or less.

    A path's parts are its edges, or its nodes with both ends.
    """

    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": f"to count the simple paths of a graph is #P-complete (Valiant 1979); {_ACYCLIC} sums",
            "Samplable": f"exact samples are as hard as to count simple paths, #P-complete; {_ACYCLIC} samples",
            "Smoothable": f"where ways lead back, a best path is no recursion of maxima; {_ACYCLIC} one",
            "KBest": "the k best simple paths take another algorithm, which is not here; dag_path lists them",
        }
    )
    alternative_for_any_sign: ClassVar[str]
    """What else takes potentials of any sign, for messages."""

    @property
    def requires_nonpositive_theta(self) -> bool:
        return True

    def hamming_cost(self, y: Tensor) -> Tensor:
        """−y: the distance from ``y`` to another path is the number of its parts that the other misses.

        Parts that the other has besides count nothing, as potentials with their cost could be positive.
        """
        return -y

    # -- what a kind of graph is ---------------------------------------------------------------

    @property
    @abc.abstractmethod
    def parts_are_nodes(self) -> bool:
        """Whether parts are nodes."""

    @abc.abstractmethod
    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        """The graph, for potentials of ``event_shape``, whose parts are numbered in memory's order."""

    @abc.abstractmethod
    def ends(self, like: Tensor) -> Int[Tensor, "batch 2"]:
        """The numbers of the first and the last node, for the potentials or structures ``like`` (B, *event)."""

    def without_missing_parts(self, theta: Tensor) -> Tensor:
        """``theta`` with −inf where an instance has no part."""
        return theta

    # -- optimisation ----------------------------------------------------------------------------

    def argmax(self, theta: Tensor) -> Tensor:
        from ..kernels.path import dijkstra

        batch, arcs, ends = len(theta), self.arcs(theta.shape[1:]), self.checked_ends(theta)
        theta = self.without_missing_parts(theta)
        self._check_signs(theta)
        scores, ends = to_numpy(theta.flatten(1), ends)
        y, results = zeros(*scores.shape, dtype=theta.dtype), np.empty(batch, np.bool_)
        work = OPERATIONS_PER_ARC * batch * (len(arcs.head) + len(arcs.offset))
        parallel_rows(dijkstra.argmax, batch, scores, *arcs, ends, self.parts_are_nodes, y.numpy(), results, work=work)
        if not results.all():
            index = int(np.flatnonzero(~results)[0])
            raise InfeasibleError(
                f"no path of finite score exists for batch index {index}: the graph has no way between its ends, or "
                "too many parts are −inf; allow more parts or drop the instance",
                index,
            )
        return y.reshape(theta.shape).to(theta.device)

    def _check_signs(self, theta: Tensor) -> None:
        positive = theta > 0
        if bool(positive.any()):
            index, *part = positive.nonzero()[0].tolist()
            place = part[0] if len(part) == 1 else tuple(part)
            raise InvalidInputError(
                f"theta: {self.label()} takes potentials of at most 0, minus the costs of its parts, got "
                f"{theta[(index, *part)].item():g} for part {place} at batch index {index}; make them such, as "
                f"-torch.nn.functional.softplus(scores) does, or take {self.alternative_for_any_sign}, for scores "
                "of any sign"
            )

    def checked_ends(self, like: Tensor) -> Tensor:
        """:meth:`ends`, one row for each instance: compiled loops go where they say."""
        ends = self.ends(like)
        check_instances(next(iter(self.instance_ndim)), ends, len(like), shared=False)
        return ends

    # -- labels and lists ------------------------------------------------------------------------

    def parts_in_order(self, y: Tensor, most: int) -> Int[Tensor, "batch most"]:
        """The numbers of the parts of paths ``y`` (B, *event) in order, padded with −1."""
        from ..kernels.path import simple_paths

        arcs = self.arcs(y.shape[1:])
        used, ends = to_numpy(y.flatten(1) != 0, self.checked_ends(y))
        labels, outcome = np.full((len(y), most), -1), np.empty(len(y), np.int64)
        work = OPERATIONS_PER_ARC * y.numel()
        parallel_rows(
            simple_paths.order,
            len(y),
            used,
            *arcs,
            ends,
            self.parts_are_nodes,
            MAX_SEARCHED_ARCS,
            labels,
            outcome,
            work=work,
        )
        if (outcome != 1).any():
            index = int(np.flatnonzero(outcome != 1)[0])
            raise InvalidInputError(
                f"y: its parts are no simple path from the first node to the last at batch index {index}"
                if outcome[index] == 0
                else f"y: no path through exactly its parts was found in time at batch index {index}; give it by its "
                "labels, which are in order"
            )
        return torch.from_numpy(labels).to(y.device)

    def from_nodes(self, nodes: Tensor, used: Tensor, labels: Tensor, like: Tensor) -> Tensor:
        """The structure whose parts are the ``nodes`` (B, L), those in ``used``, of the given ``labels``."""
        self.check_walk(nodes, used, labels, like)
        arcs, count = self.arcs(like.shape[1:]), like.flatten(1).shape[1]
        pairs = torch.from_numpy(arcs.pairs()).to(nodes.device)
        steps = torch.isin(nodes[:, :-1] * count + nodes[:, 1:], pairs)
        reject_labels(used[:, 1:] & ~steps, labels, "the path must go on to a neighbour")
        return indicators(nodes, used, count, like).reshape(like.shape)

    def check_walk(self, nodes: Tensor, used: Tensor, labels: Tensor, like: Tensor) -> None:
        """InvalidInputError unless ``nodes`` (B, L), those in ``used``, go from end to end and never come again."""
        source, target = self.checked_ends(like).to(nodes.device).split(1, 1)
        last = nodes.gather(1, (used.sum(1, keepdim=True) - 1).clamp(min=0))
        reject_labels(~used[:, :1] | (nodes[:, :1] != source), labels, "the path must start where paths start")
        reject_labels(last != target, labels, "the path must end where paths end")
        ordered = torch.where(used, nodes, -1).sort(1).values
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        reject_labels(again, labels, "the path must not come back to where it was")

    def enumerate(self, event_shape: Any) -> Tensor:
        """All simple paths, (|Y|, *event) in float64, at most a million; those of the same parts are one structure."""
        from ..kernels.path import simple_paths

        shape = torch.Size([event_shape] if isinstance(event_shape, int) else event_shape)
        one = torch.zeros(1, *shape, dtype=torch.float64)
        arcs, (source, target) = self.arcs(shape), self.checked_ends(one)[0].tolist()
        usable = to_numpy(self.without_missing_parts(one).flatten() == 0)[0]
        results = np.empty((0, 0), np.int64)
        count = simple_paths.search(usable, *arcs, source, target, -1, MOST_ENUMERATED + 1, -1, results)
        check_enumerable(count, "simple paths or more")
        results = np.full((count, len(arcs.offset)), -1)
        simple_paths.search(usable, *arcs, source, target, -1, max(count, 1), -1, results)
        parts = torch.from_numpy(results)
        y = indicators(parts, parts >= 0, one.numel(), one)
        if self.parts_are_nodes:
            y[:, source] = 1.0
            y = y.unique(dim=0).flip(0)
        return y.reshape(len(y), *shape)
