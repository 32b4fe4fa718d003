"""The k best simple paths by Yen's method (1971), with Dijkstra's algorithm for every set of paths of a batch at once.

A set of paths has a common beginning and forbidden next arcs. Scores of −inf for the other arcs out of the nodes of
the beginning force the beginning, also if the parts of a path are nodes.

References
----------
J. Y. Yen, Finding the k shortest loopless paths in a network (Management Science 17, 1971). E. L. Lawler, A procedure
for computing the K best solutions to discrete optimization problems (Management Science 18, 1972).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from structinf.kernels import parallel_rows, to_numpy
from structinf.restriction import Ranked, Solved, ranked_search

__all__ = ["RankedPaths"]


class RankedPaths:
    """The best paths of a batch, as sets of arcs.

    Parameters
    ----------
    arcs : (offset, head, part)
        The arrays of the arcs: ``offset[v]:offset[v + 1]`` leave node v, (N + 1,); the node where each arc ends, and
        its part, (A,).
    ends : (B, 2) int64 Tensor
        The first and the last node of each instance.
    scores : (B, parts) float64 Tensor
        Scores of the parts, at most 0. Each instance has a path.
    parts_are_nodes : bool
        Whether the parts are nodes; otherwise they are edges.
    """

    def __init__(
        self, arcs: tuple[np.ndarray, np.ndarray, np.ndarray], ends: Tensor, scores: Tensor, parts_are_nodes: bool
    ) -> None:
        self.ends, self.parts_are_nodes = ends, parts_are_nodes
        offset, head, part = arcs
        nodes = len(offset) - 1
        # The parts of the search are the arcs themselves.
        self.arcs = offset, head, np.arange(len(head), dtype=np.uint32)
        self.part, self.head = (torch.from_numpy(array.astype(np.int64)) for array in (part, head))
        self.tail = torch.arange(nodes, device="cpu").repeat_interleave(torch.from_numpy(np.diff(offset)))
        self.nodes, self.parts = nodes, scores.shape[1]
        self.scores = scores[:, self.part]

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best structures, (k, B, parts) float64, and which of them exist, (k, B) bool."""
        size, count = self.scores.shape
        instances = torch.arange(size, device="cpu")
        zeros = torch.zeros(size, count, dtype=torch.float32, device="cpu")
        root = self._solve(instances, zeros, zeros + 1)
        wanted = k
        while True:
            paths = ranked_search(
                lambda rows, low, high, _: self._solve(rows, low, high),
                root,
                zeros,
                zeros + 1,
                wanted,
                nested=False,
                order=self._places,
            )
            y, valid = self._structures(paths)
            # Paths through the same nodes are one structure, so that k paths can be fewer than k structures.
            if bool(((valid.sum(0) >= k) | paths.scores[-1].isneginf()).all()):
                break
            wanted *= 2
        order = (~valid).to(torch.int8).sort(dim=0, stable=True).indices[:k]
        valid = valid.gather(0, order)
        return y.take_along_dim(order[:, :, None], 0) * valid[:, :, None], valid

    def _solve(self, rows: Tensor, low: Tensor, high: Tensor) -> Solved:
        """Return the best paths with the beginning ``low`` and only arcs of ``high``."""
        from ..kernels.path import dijkstra

        forced = torch.zeros(len(rows), self.nodes, dtype=torch.bool, device="cpu")
        row, arc = (low > 0).nonzero().unbind(1)
        forced[row, self.tail[arc]] = True
        scores = self.scores[rows].masked_fill((high < 1) | (forced[:, self.tail] & (low < 1)), -torch.inf)
        given, ends = to_numpy(scores, self.ends[rows])
        y, found = np.zeros(given.shape, np.float32), np.empty(len(rows), np.bool_)
        graph = (*self.arcs, ends, np.tile([0, self.nodes], (len(rows), 1)), False)
        parallel_rows(dijkstra.argmax, len(rows), given, *graph, y, found, work=4 * given.size)
        paths = torch.from_numpy(y)
        totals = torch.where(paths > 0, scores, 0.0).sum(1)
        return Solved(paths, totals.masked_fill(~torch.from_numpy(found), -torch.inf))

    def _places(self, rows: Tensor, paths: Tensor) -> Tensor:
        """Return the place of each arc on its path, (M, arcs); the number of nodes for the other arcs."""
        onward = torch.full((len(rows), self.nodes), -1, device="cpu")
        row, arc = (paths > 0).nonzero().unbind(1)
        onward[row, self.tail[arc]] = arc
        places = torch.full(paths.shape, self.nodes, device="cpu")
        active, node = torch.arange(len(rows), device="cpu"), self.ends[rows, 0]
        for place in range(self.nodes):
            arc = onward[active, node]
            active, arc = active[arc >= 0], arc[arc >= 0]
            if len(active) == 0:
                break
            places[active, arc] = place
            node = self.head[arc]
        return places

    def _structures(self, paths: Ranked) -> tuple[Tensor, Tensor]:
        """Return the parts of all paths, (n, B, parts), and which paths are the first with their parts, (n, B)."""
        rank, instance, arc = (paths.values > 0).nonzero().unbind(1)
        y = self.scores.new_zeros(*paths.scores.shape, self.parts)
        y[rank, instance, self.part[arc]] = 1
        valid = ~paths.scores.isneginf()
        if self.parts_are_nodes:
            y[:, torch.arange(y.shape[1], device="cpu"), self.ends[:, 0]] = 1
            for b in range(y.shape[1]):
                _, group = y[:, b].unique(dim=0, return_inverse=True)
                first = torch.full((len(group),), len(group), device="cpu")
                first.scatter_reduce_(0, group, torch.arange(len(group), device="cpu"), "amin")
                valid[:, b] &= first[group] == torch.arange(len(group), device="cpu")
        return y, valid
