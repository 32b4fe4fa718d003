"""B-hypergraphs: what a recursion of maxima over sums looks like, whatever it computes.

A node's value is a maximum over the hyperedges that lead to it, its head; a hyperedge's score is that of its part,
plus the values of at most two tail nodes. A derivation of a node chooses one hyperedge for it and, so on, for each
tail; the structure that it describes has the parts of all chosen hyperedges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import parallel_rows
from .blocks import Blocks, split_into_blocks

__all__ = ["Hypergraph"]

_MAX_SIZE = 2**60


@dataclass(frozen=True, eq=False, repr=False)
class Hypergraph:
    """Nodes in topological order, and the hyperedges of each node one after another; made by `HypergraphBuilder`.

    The numbers after the last stand for "none": as a tail, the node N has value 0; as a part, the number P has score 0.

    Attributes
    ----------
    offset : (N + 1,) int64 array
        The hyperedges of node i are ``offset[i]`` up to ``offset[i + 1]``.
    part : (E,) int32 array
        The part that each hyperedge scores, a number in the flattened and joined tensors of θ.
    tails : (E, 2) int32 array
    goals : int64 array
        The node whose value counts, or an array of such nodes, indexed by instances' lengths; −1 where there is none.
    level : (N,) int32 array
        0 for nodes without tails, else one more than the highest of a node's tails.
    parts : int
        P, the number of parts.
    plans : dict
        What `structinf.dp.torch_backend` made of the graph, by device.
    """

    offset: np.ndarray
    part: np.ndarray
    tails: np.ndarray
    goals: np.ndarray
    level: np.ndarray
    parts: int
    plans: dict[torch.device, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Hypergraph({self.nodes} nodes, {self.edges} hyperedges, {self.parts} parts)"

    @property
    def nodes(self) -> int:
        """N, the number of nodes."""
        return len(self.level)

    @property
    def edges(self) -> int:
        """E, the number of hyperedges."""
        return len(self.part)

    @cached_property
    def head(self) -> np.ndarray:
        """(E,) int32: the node that each hyperedge leads to."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.offset))

    @cached_property
    def degree(self) -> int:
        """The largest number of hyperedges of a node."""
        return int(np.diff(self.offset).max())

    @cached_property
    def blocks(self) -> Blocks:
        """The graph as the compiled loops take it."""
        return split_into_blocks(self.offset, self.part, self.tails, self.level, self.parts)

    def size_of(self, goal: Tensor) -> int:
        """The largest number of hyperedges of a derivation of one of the nodes ``goal``, (B,)."""
        return int(self.derivation_size[goal.cpu().numpy()].max(initial=1))

    @cached_property
    def derivation_size(self) -> np.ndarray:
        """(N + 1,) int64: the largest number of hyperedges of a derivation of each node."""
        size = np.zeros(self.nodes + 1, np.int64)
        for nodes, edges in self.by_level:
            most = 1 + size[self.tails[edges]].sum(1)
            most = np.maximum.reduceat(most, np.searchsorted(self.head[edges], nodes))
            size[nodes] = np.minimum(most, _MAX_SIZE)  # doubled at each level, it would overflow
        return size

    @cached_property
    def by_level(self) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """For each level, its nodes in order and the numbers of their hyperedges, node after node."""
        order = np.argsort(self.level, kind="stable")
        ends = np.cumsum(np.bincount(self.level))
        degree = np.diff(self.offset)
        levels = []
        for nodes in np.split(order, ends[:-1]):
            count = degree[nodes]
            start = np.cumsum(count) - count
            edges = np.arange(count.sum()) + np.repeat(self.offset[nodes] - start, count)
            levels.append((nodes, edges))
        return levels

    def goal(self, lengths: Tensor | None, batch: int) -> np.ndarray:
        """The goal node of each instance, (B,) int64, −1 where its lengths have none.

        Parameters
        ----------
        lengths : (B, ...) integer Tensor or None
            With as many last entries as ``goals`` has dimensions; None chooses the last goal.

        Raises
        ------
        InvalidInputError
            If there are not as many.
        """
        if self.goals.ndim == 0 or lengths is None:
            return np.full(batch, self.goals[(-1,) * self.goals.ndim].item(), np.int64)
        if math.prod(lengths.shape[1:]) != self.goals.ndim:
            count = self.goals.ndim
            expected_form, instance_ndim = ("(...)", 0) if count == 1 else (f"(..., {count})", 1)
            raise InvalidInputError(
                f"lengths: {expected_form} are needed, since goals have {count} dimension{'s' if count > 1 else ''}; "
                f"got {tuple(lengths.shape)} with the batch flat. An oracle declares them as instance_ndim = "
                f'{{"lengths": {instance_ndim}}}'
            )
        index = lengths.cpu().numpy().reshape(len(lengths), self.goals.ndim)
        unknown = np.any((index < 0) | (index >= self.goals.shape), axis=1)
        index = np.where(unknown[:, None], 0, index)
        return np.where(unknown, -1, self.goals[tuple(index.T)])

    def part_mask(self, goals: np.ndarray, device: torch.device) -> Tensor:
        """(B, P) bool: the parts that derivations of each instance's goal may have."""
        from ..kernels.hypergraph import derivations as kernels

        different, which = np.unique(goals, return_inverse=True)
        masks = np.zeros((len(different), self.parts), np.bool_)
        parallel_rows(kernels.used_parts, -(-len(different) // 64), different, self.blocks, masks)
        mask = torch.from_numpy(masks).to(device)
        if len(different) == 1:
            return mask.expand(len(goals), -1)
        return mask[torch.from_numpy(which).to(device)]
