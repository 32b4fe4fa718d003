"""The instances of a batch that an oracle solves, and the results of infeasible and of empty instances."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..shapes import Bool, Int
from ..solution import Fill

__all__ = ["SolvedRows", "without_empty_instances"]


@dataclass(frozen=True)
class SolvedRows:
    """A selection of a flat batch of B instances, and the reason why each other instance is left out.

    Attributes
    ----------
    index : (K,) int64 Tensor
        The batch indices of the instances that the oracle solves, in ascending order.
    infeasible : (B,) bool Tensor
        Whether an instance is left out because no structure has a finite score. Other instances that are left out are
        empty: their only structure has no parts.
    oracle : Oracle
        The oracle of all B instances.
    event_shapes : tuple of torch.Size or None
        The event shapes of the user's scores, if these have a size of 0 that the oracle refuses.
    """

    index: Int[Tensor, " rows"]
    infeasible: Bool[Tensor, " batch"]
    oracle: Oracle
    event_shapes: tuple[torch.Size, ...] | None = None

    @classmethod
    def all_of(cls, oracle: Oracle, size: int, device: torch.device) -> SolvedRows:
        """Return the selection of all ``size`` instances."""
        return cls(torch.arange(size, device=device), torch.zeros(size, dtype=torch.bool, device=device), oracle)

    def without(self, rows: Iterable[int], *, infeasible: bool) -> SolvedRows:
        """Return the selection without the instances ``rows``, batch indices in the whole batch."""
        dropped = torch.zeros_like(self.infeasible)
        dropped[torch.as_tensor(list(rows), dtype=torch.int64, device=dropped.device)] = True
        marked = self.infeasible | dropped if infeasible else self.infeasible
        return dataclasses.replace(self, index=self.index[~dropped[self.index]], infeasible=marked)

    def repeat(self, n: int) -> SolvedRows:
        """Return the selection for the batch tiled ``n`` times, as :meth:`Oracle.repeat` tiles it."""
        size = len(self.infeasible)
        index = self.index + size * torch.arange(n, device=self.index.device).unsqueeze(1)
        return SolvedRows(index.flatten(), self.infeasible.repeat(n), self.oracle.repeat(n), self.event_shapes)

    @cached_property
    def empty(self) -> Int[Tensor, " rows"]:
        """The batch indices of the empty instances."""
        left_out = torch.ones_like(self.infeasible)
        left_out[self.index] = False
        return (left_out & ~self.infeasible).nonzero()[:, 0]

    def select(self, t: Tensor, dim: int = 0) -> Tensor:
        """Return the solved instances of ``t``, whose dimension ``dim`` is the whole batch."""
        return t.index_select(dim, self.index.to(t.device))

    def select_parts(self, theta: Parts) -> Parts:
        """Return the solved instances of ``theta`` (B | 1, *event); tensors shared by the batch stay shared."""
        size = len(self.infeasible)
        return map_parts(lambda t: t if t.shape[0] == 1 != size else self.select(t), theta)

    def scatter(self, t: Tensor, dim: int, fill: Fill) -> Tensor:
        """Return the results ``t`` of the solved instances for the whole batch in dimension ``dim``.

        Parameters
        ----------
        t : (..., K, ...) Tensor
            The results, with the solved instances in dimension ``dim``.
        dim : int
            The batch dimension.
        fill : Fill
            The results of the other instances.
        """
        shape = list(t.shape)
        shape[dim] = len(self.infeasible)
        if fill.later is not None and len(self.empty):
            shape[0] = max(shape[0], 1)
        whole = t.new_full(shape, fill.infeasible)
        if len(self.empty):
            whole.index_fill_(dim, self.empty, fill.empty if fill.later is None else fill.later)
            if fill.later is not None:
                whole[:1].index_fill_(dim, self.empty, fill.empty)
        if whole.shape[0] != t.shape[0] and dim:
            return whole  # no instance is solved, and an empty instance has one structure
        return whole.index_copy(dim, self.index, t)


def without_empty_instances(oracle: Oracle, bound: Mapping[str, Any], theta: Parts, size: int) -> SolvedRows | None:
    """Return the selection without the instances of length 0.

    Return None if no length is 0, or if the oracle has no structure of length 0.

    Parameters
    ----------
    oracle : Oracle
        The oracle, which has refused the lengths.
    bound : mapping of str to Tensor
        The instance data of the call.
    theta : (B | 1, *event) Parts
        The scores.
    size : int
        B.
    """
    if not oracle.has_empty_structure:
        return None
    device = as_tuple(theta)[0].device
    whole = oracle.bind(**{name: t.to(device) for name, t in bound.items()}) if bound else oracle
    lengths = whole.bound.get("lengths")
    if lengths is None or lengths.ndim != oracle.instance_ndim["lengths"] + 1 or len(lengths) != size:
        return None
    is_empty = (lengths == 0).unsqueeze(-1).flatten(1).all(1)
    if not bool(is_empty.any()):
        return None
    return SolvedRows.all_of(whole, size, device).without(is_empty.nonzero()[:, 0].tolist(), infeasible=False)
