"""B-hypergraphs, the common form of recursions with maxima over sums.

A hyperedge leads from at most two tail nodes to one head node. The score of a hyperedge is the score of its part plus
the values of its tails. The value of a node is the maximum score of its hyperedges. A derivation of a node chooses one
hyperedge of the node and, recursively, a derivation of each tail. The structure of a derivation has the parts of all
chosen hyperedges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import parallel_rows
from ..kernels.gpu import uses_triton
from .blocks import Blocks, split_into_blocks

__all__ = ["Hypergraph"]

_MAX_SIZE = 2**60
_MOST_KEPT = 1024
"""The largest batch without lengths whose goals a hypergraph keeps."""
_Plan = TypeVar("_Plan")


@dataclass(frozen=True, eq=False, repr=False)
class Hypergraph:
    """A hypergraph with nodes in topological order and hyperedges grouped by head; see `HypergraphBuilder`.

    N as a tail means no tail, with value 0. P as a part means no part, with score 0.

    Attributes
    ----------
    offset : (N + 1,) int64 array
        The hyperedges of node i are ``offset[i]`` up to ``offset[i + 1]``, excluded.
    part : (E,) int32 array
        The part of each hyperedge: an index into the flattened and concatenated tensors of θ.
    tails : (E, 2) int32 array
        The tails of each hyperedge.
    goals : int64 array
        The goal node, or an array of goal nodes indexed by the lengths of an instance, with −1 for no goal.
    level : (N,) int32 array
        0 for nodes without tails; otherwise 1 plus the highest level of a tail.
    parts : int
        P, the number of parts.
    begin : (N,) int64 array, optional
        The first node of the component of each node. The nodes of a component, which are connected by hyperedges with
        each other only, are consecutive. Compiled loops visit only the components of an instance's goal. By default
        one component.
    plans : dict
        Results of :meth:`cached`.
    """

    offset: np.ndarray
    part: np.ndarray
    tails: np.ndarray
    goals: np.ndarray
    level: np.ndarray
    parts: int
    begin: np.ndarray | None = None
    plans: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InvalidInputError for arrays with which the compiled loops would leave their memory."""
        n, degree, tails = len(self.level), np.diff(self.offset), self.tails
        known = np.append(self.level, -1)  # of no tail
        shapes = (self.offset.shape, self.part.shape, tails.shape)
        if shapes != ((n + 1,), (len(self.part),), (len(self.part), 2)):
            wrong = "the shapes of its arrays do not agree"
        elif n == 0 or self.offset[0] != 0 or self.offset[-1] != len(self.part) or (degree < 1).any():
            wrong = "offset must rise from 0 to the number of hyperedges, by at least 1 for each node"
        elif _is_outside(self.part, 0, self.parts) or _is_outside(tails, 0, n) or _is_outside(self.goals, -1, n - 1):
            wrong = "a part, a tail or a goal is out of range"
        elif (np.diff(self.level) < 0).any() or (known[tails].max(1) >= np.repeat(self.level, degree)).any():
            wrong = "the nodes are not in topological order, by levels"
        elif self.begin is not None and not self._has_components(self.begin):
            wrong = "begin must be the first node of each node's component"
        else:
            return
        raise InvalidInputError(f"Hypergraph: {wrong}; use HypergraphBuilder")

    def _has_components(self, begin: np.ndarray) -> bool:
        if begin.shape != (self.nodes,) or _is_outside(begin, 0, self.nodes - 1):
            return False
        known = np.append(begin, -1)
        own, tails = np.repeat(begin, np.diff(self.offset))[:, None], known[self.tails]
        first = begin == np.arange(self.nodes)
        starts_are_first = bool(first[0] and ((np.diff(begin) == 0) | first[1:]).all())
        return starts_are_first and bool(((tails == own) | (tails < 0)).all())

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
        """The head node of each hyperedge, (E,) int32."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.offset))

    @cached_property
    def degree(self) -> int:
        """The largest number of hyperedges of a node."""
        return int(np.diff(self.offset).max())

    @cached_property
    def blocks(self) -> Blocks:
        """The graph in the layout of the compiled loops."""
        begin = np.zeros(self.nodes, np.int64) if self.begin is None else self.begin
        return split_into_blocks(self.offset, self.part, self.tails, self.level, self.parts, begin)

    def size_of(self, goal: Tensor) -> int:
        """Return the largest number of hyperedges in a derivation of the nodes ``goal`` (B,).

        Python would wait to read goals on a device, so the result is then the number for all goals of the hypergraph.

        Parameters
        ----------
        goal : (B,) integer Tensor
            The number of the goal node of each instance.
        """
        return int(self.derivation_size[goal.numpy()].max(initial=1)) if goal.is_cpu else self._largest_size

    @cached_property
    def _largest_size(self) -> int:
        return int(self.derivation_size[self.goals].max(initial=1))  # goals of −1 have the size of no node, 0

    @cached_property
    def last_goal(self) -> int:
        """The goal node of instances without lengths; −1 if there is none."""
        return self.goals[(-1,) * self.goals.ndim].item()

    @cached_property
    def _last_goals(self) -> np.ndarray:
        """The goals of instances without lengths. A smaller batch takes a part of the array."""
        return np.full(_MOST_KEPT, self.last_goal, np.int64)

    @cached_property
    def derivation_size(self) -> np.ndarray:
        """The largest number of hyperedges in a derivation of each node, (N + 1,) int64."""
        size = np.zeros(self.nodes + 1, np.int64)
        for nodes, edges in self.by_level:
            most = 1 + size[self.tails[edges]].sum(1)
            most = np.maximum.reduceat(most, np.searchsorted(self.head[edges], nodes))
            size[nodes] = np.minimum(most, _MAX_SIZE)  # two tails a level can double the size and overflow int64
        return size

    @cached_property
    def by_level(self) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """For each level, the nodes in order and the numbers of their hyperedges, grouped by node."""
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

    def cached(self, build: Callable[[Hypergraph, torch.device], _Plan], device: torch.device) -> _Plan:
        """Return ``build(self, device)``, computed once for each function and device.

        A call would otherwise copy tables from the host, and wait for the copy.

        Parameters
        ----------
        build : callable
            A function that builds tables of a hypergraph on a device.
        device : torch.device
            The device of the tables.
        """
        key = build, device
        if key not in self.plans:
            self.plans[key] = build(self, device)
        return self.plans[key]

    def goal(self, lengths: Tensor | None, batch: int) -> np.ndarray:
        """Return the goal node of each instance, (B,) int64, with −1 for lengths without a goal.

        Parameters
        ----------
        lengths : (B, ...) integer Tensor or None
            One length for each dimension of ``goals``. None selects the last goal.
        batch : int
            B, the number of instances.

        Raises
        ------
        InvalidInputError
            If the number of lengths differs from the number of dimensions of ``goals``.
        """
        if self.goals.ndim == 0 or lengths is None:
            return self._last_goals[:batch] if batch <= _MOST_KEPT else np.full(batch, self.last_goal, np.int64)
        self._check_number_of(lengths)
        index = lengths.cpu().numpy().reshape(len(lengths), self.goals.ndim)
        unknown = np.any((index < 0) | (index >= self.goals.shape), axis=1)
        index = np.where(unknown[:, None], 0, index)
        return np.where(unknown, -1, self.goals[tuple(index.T)])

    def goal_on(self, device: torch.device, lengths: Tensor | None, batch: int) -> Tensor:
        """Return :meth:`goal` as a tensor on ``device``, computed there, so that nothing waits for the device.

        Parameters
        ----------
        device : torch.device
            The device of the result.
        lengths : (B, ...) integer Tensor or None
            One length for each dimension of ``goals``. None selects the last goal.
        batch : int
            B, the number of instances.
        """
        table = self.cached(_padded_goals, device)
        if self.goals.ndim == 0 or lengths is None:
            return table[(-2,) * self.goals.ndim].expand(batch)
        self._check_number_of(lengths)
        rows = lengths.to(device, torch.int64, non_blocking=True).reshape(len(lengths), self.goals.ndim)
        if self.goals.ndim <= 2 and uses_triton(table):
            from ..kernels.padding import triton_masks

            return triton_masks.goals(table, rows)
        # The last entry of each dimension is −1, so that −1 and the size of ``goals`` both index no goal.
        columns = zip(rows.unbind(1), self.goals.shape, strict=True)
        return table[tuple(column.clamp(-1, size) for column, size in columns)]

    def _check_number_of(self, lengths: Tensor) -> None:
        if math.prod(lengths.shape[1:]) != self.goals.ndim:
            count = self.goals.ndim
            expected_form, instance_ndim = ("(...)", 0) if count == 1 else (f"(..., {count})", 1)
            raise InvalidInputError(
                f"lengths must have shape {expected_form}, since goals have {count} dimension"
                f"{'s' if count > 1 else ''}; got {tuple(lengths.shape)} with the batch dimensions flattened. Declare "
                f'instance_ndim = {{"lengths": {instance_ndim}}} in the oracle'
            )

    def part_mask(self, goals: np.ndarray, device: torch.device) -> Tensor:
        """Return a mask of the parts used by derivations of the goal of each instance, (B, P) bool.

        Parameters
        ----------
        goals : (B,) integer array
            The number of the goal node of each instance, or −1 for none.
        device : torch.device
            The device of the mask.
        """
        from ..kernels.hypergraph import derivations as kernels

        different, which = np.unique(goals, return_inverse=True)
        masks = np.zeros((len(different), self.parts), np.bool_)
        parallel_rows(kernels.used_parts, -(-len(different) // 64), different, self.blocks, masks)
        mask = torch.from_numpy(masks).to(device)
        if len(different) == 1:
            return mask.expand(len(goals), -1)
        return mask[torch.from_numpy(which).to(device)]


def _padded_goals(graph: Hypergraph, device: torch.device) -> Tensor:
    """Return the goals with −1 at the end of each dimension."""
    return torch.from_numpy(np.pad(graph.goals.astype(np.int64), (0, 1), constant_values=-1)).to(device)


def _is_outside(numbers: np.ndarray, low: int, high: int) -> bool:
    return bool(numbers.size and (numbers.min() < low or numbers.max() > high))
