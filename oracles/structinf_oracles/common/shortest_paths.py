"""Shortest paths by Dijkstra's algorithm: the base of the oracles for grids and for general graphs."""

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
from structinf.oracle import Enumerable, KBest, computed_on_cpu
from structinf.shapes import Int
from structinf.validation import MOST_ENUMERATED, check_enumerable, check_instances, check_k, list_instances

from .labels import indicators, reject_labels
from .ranked_paths import RankedPaths

__all__ = ["Arcs", "ShortestPath"]

# Estimated elementary operations per arc and per node, including the heap.
OPERATIONS_PER_ARC = 4

# The search for the order of a path's parts stops after this number of visited arcs, about a second.
MAX_SEARCHED_ARCS = 100_000_000

_ACYCLIC = 'dag_path, and grid_path with moves="down-right" or "with-diagonal", support'


class Arcs(NamedTuple):
    """The arcs out of each node of a graph, in the arrays used by the compiled loops.

    Attributes
    ----------
    offset : (N + 1,) int64 array
        Arcs ``offset[v]:offset[v + 1]`` leave node v.
    head, part : (A,) uint32 array
        The node where each arc ends, and the part used by each arc.
    """

    offset: np.ndarray
    head: np.ndarray
    part: np.ndarray

    @classmethod
    def of(cls, tail: np.ndarray, head: np.ndarray, part: np.ndarray, nodes: int) -> Arcs:
        """Return the arcs from ``tail`` to ``head`` without self-loops, which no simple path takes."""
        order = np.flatnonzero(tail != head)
        order = order[tail[order].argsort(kind="stable")]
        offset = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(tail[order], minlength=nodes), out=offset[1:])
        return cls(offset, head[order].astype(np.uint32), part[order].astype(np.uint32))

    def by_nodes(self) -> Arcs:
        """Return the same arcs with nodes as parts: each arc uses its head."""
        return Arcs(self.offset, self.head, self.head)

    def pairs(self) -> Int[np.ndarray, " arcs"]:
        """Return tail · N + head of each arc."""
        nodes = len(self.offset) - 1
        return np.arange(nodes).repeat(np.diff(self.offset)) * nodes + self.head


class ShortestPath(KBest, Enumerable):
    """Simple paths between two nodes. If all scores are 0 or less, Dijkstra's algorithm finds the best path.

    The parts of a path are its edges, or its nodes including both ends.
    """

    has_labels_on_cpu: ClassVar[bool] = True
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": f"counting the simple paths of a graph is #P-complete (Valiant 1979); {_ACYCLIC} sums",
            "Samplable": f"exact sampling is as hard as counting simple paths, #P-complete; {_ACYCLIC} samples",
            "Smoothable": "in a graph with cycles, Dijkstra's algorithm is not a dynamic program (a recursion of "
            f"maxima); {_ACYCLIC} smoothing",
        }
    )
    alternative_for_any_sign: ClassVar[str]
    """The oracle for scores of any sign, named in messages."""

    @property
    def requires_nonpositive_theta(self) -> bool:
        return True

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return −y, so that the distance is the number of parts of ``y`` missing from another path.

        Additional parts of the other path cost nothing, since scores plus their cost could be positive.
        """
        return -y

    # -- the graph, described by subclasses ----------------------------------------------------

    @property
    @abc.abstractmethod
    def parts_are_nodes(self) -> bool:
        """Whether the parts are nodes; otherwise they are edges."""

    @abc.abstractmethod
    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        """Return the graph for scores of ``event_shape``. Parts are numbered in memory order."""

    @abc.abstractmethod
    def ends(self, like: Tensor) -> Int[Tensor, "batch 2"]:
        """Return the numbers of the first and the last node, for the scores or structures ``like`` (B, *event)."""

    def nodes_of_instances(self, batch: int, nodes: int) -> Int[np.ndarray, "batch 2"]:
        """Return the first node of the graph of each instance, and the node after its last node, by default all nodes.

        Parameters
        ----------
        batch, nodes : int
            The number of instances, and of nodes.
        """
        return np.tile([0, nodes], (batch, 1))

    def without_missing_parts(self, theta: Tensor) -> Tensor:
        """Return ``theta`` with −inf for parts that an instance does not have."""
        return theta

    # -- optimisation ----------------------------------------------------------------------------

    @computed_on_cpu
    def argmax(self, theta: Tensor) -> Tensor:
        from ..kernels.path import dijkstra

        batch, arcs, ends = len(theta), self.arcs(theta.shape[1:]), self.checked_ends(theta)
        theta = self.without_missing_parts(theta)
        self._check_signs(theta)
        scores, ends = to_numpy(theta.flatten(1), ends)
        y, results = zeros(*scores.shape, dtype=theta.dtype), np.empty(batch, np.bool_)
        nodes_of = self.nodes_of_instances(batch, len(arcs.offset) - 1)
        work = OPERATIONS_PER_ARC * int(np.diff(nodes_of + arcs.offset[nodes_of], axis=1).sum())
        graph = (*arcs, ends, nodes_of, self.parts_are_nodes)
        parallel_rows(dijkstra.argmax, batch, scores, *graph, y.numpy(), results, work=work)
        if not results.all():
            indices = np.flatnonzero(~results).tolist()
            raise InfeasibleError(
                f"no path of finite score exists for {list_instances(indices)}, as the parts above −inf do not "
                "connect the source and the target; allow more parts or drop the instances",
                indices[0],
                indices,
            )
        return y.reshape(theta.shape)

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k best paths, by Yen's method: sets of paths have a common beginning and forbidden next arcs.

        J. Y. Yen, Finding the k shortest loopless paths in a network (Management Science 17, 1971).
        """
        check_k(k)
        self.argmax(theta)  # raises the errors of scores and of instances without a path
        scores = self.without_missing_parts(theta).double().flatten(1)
        paths = RankedPaths(self.arcs(theta.shape[1:]), self.checked_ends(theta), scores, self.parts_are_nodes)
        y, valid = paths.best(k)
        totals = torch.where(y != 0, scores, 0.0).sum(2).masked_fill(~valid, -torch.inf)
        return y.reshape(k, *theta.shape).to(theta), totals.to(theta), valid

    def _check_signs(self, theta: Tensor) -> None:
        positive = theta > 0
        if bool(positive.any()):
            index, *part = positive.nonzero()[0].tolist()
            place = part[0] if len(part) == 1 else tuple(part)
            raise InvalidInputError(
                f"theta: {self.label()} takes scores of at most 0, minus the costs of the parts, got "
                f"{theta[(index, *part)].item():g} for part {place} at batch index {index}; pass for example "
                f"-torch.nn.functional.softplus(scores), or for scores of any sign use {self.alternative_for_any_sign}"
            )

    def checked_ends(self, like: Tensor) -> Tensor:
        """Return :meth:`ends` with one row per instance, checked because compiled loops index by the node numbers."""
        ends = self.ends(like)
        check_instances(next(iter(self.instance_ndim)), ends, len(like), shared=False)
        return ends

    # -- labels and lists ------------------------------------------------------------------------

    def parts_in_order(self, y: Tensor, most: int) -> Int[Tensor, "batch most"]:
        """Return the numbers of the parts of paths ``y`` (B, *event) in order, padded with −1."""
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
                f"y: the parts do not form a simple path from the source to the target at batch index {index}"
                if outcome[index] == 0
                else f"y: the search for the order of the parts took too long at batch index {index}; use labels, "
                "which list the parts in order"
            )
        return torch.from_numpy(labels).to(y.device)

    def from_nodes(self, nodes: Tensor, used: Tensor, labels: Tensor, like: Tensor) -> Tensor:
        """Return the structure with the used ``nodes`` (B, L), of the given ``labels``, as parts."""
        self.check_walk(nodes, used, labels, like)
        arcs, count = self.arcs(like.shape[1:]), like.flatten(1).shape[1]
        pairs = torch.from_numpy(arcs.pairs()).to(nodes.device)
        steps = torch.isin(nodes[:, :-1] * count + nodes[:, 1:], pairs)
        reject_labels(used[:, 1:] & ~steps, labels, "each node of the path must be a neighbour of the node before")
        return indicators(nodes, used, count, like).reshape(like.shape)

    def check_walk(self, nodes: Tensor, used: Tensor, labels: Tensor, like: Tensor) -> None:
        """Raise InvalidInputError unless the used ``nodes`` (B, L) lead from source to target without repetition."""
        source, target = self.checked_ends(like).to(nodes.device).split(1, 1)
        last = nodes.gather(1, (used.sum(1, keepdim=True) - 1).clamp(min=0))
        reject_labels(~used[:, :1] | (nodes[:, :1] != source), labels, "the path must start at the source")
        reject_labels(last != target, labels, "the path must end at the target")
        ordered = torch.where(used, nodes, -1).sort(1).values
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        reject_labels(again, labels, "the path must not visit a node twice")

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all simple paths, (|Y|, *event) in float64, at most a million.

        Paths with the same parts are one structure.
        """
        from ..kernels.path import simple_paths

        shape = torch.Size(event_shape)
        one = torch.zeros(1, *shape, dtype=torch.float64, device="cpu")
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
