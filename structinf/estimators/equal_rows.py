"""Grouping of equal structures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["first_of_each_group", "group_equal_rows"]


def group_equal_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return a group number below N for each of N structures, given as rows of one or several (N, P) tensors."""
    keys = _keys([t for t in parts if t.numel()])
    if keys is not None:
        values, group_id = keys.unique(return_inverse=True)
        like = first_of_each_group(group_id, len(values))[group_id]
        merged = (like != torch.arange(len(like), device=like.device)).nonzero()[:, 0]
        if all(torch.equal(t[like[rows]], t[rows]) for t in parts for rows in merged.split(_block(t))):
            return group_id
    # Add a column, because unique rejects rows of length 0.
    return torch.nn.functional.pad(torch.cat(list(parts), 1), (0, 1)).unique(dim=0, return_inverse=True)[1]


def first_of_each_group(group_id: Tensor, count: int) -> Tensor:
    """Return the index of one member of each of the ``count`` groups, (count,)."""
    return group_id.new_empty(count).scatter_(0, group_id, torch.arange(len(group_id), device=group_id.device))


def _keys(parts: Sequence[Tensor]) -> Tensor | None:
    """Hash structures whose parts are whole numbers to (N,) numbers; return None for other parts.

    The sums stay below 2⁵³, so they are exact in any order.
    """
    if not parts or any(bool((b != b.round()).any()) for t in parts for b in t.split(_block(t))):
        return None
    max_value = sum(t.shape[1] * float(t.abs().amax()) for t in parts)
    fixed = torch.Generator().manual_seed(0)
    total = torch.zeros(len(parts[0]), dtype=torch.float64, device=parts[0].device)
    for t in parts:
        factors = torch.rand(t.shape[1], dtype=torch.float64, generator=fixed, device="cpu").to(t.device)
        factors = (factors * (2.0**53 / max(max_value, 1.0))).floor()
        total += torch.cat([b.double() @ factors for b in t.split(_block(t))])
    return total


def _block(t: Tensor) -> int:
    """Return the number of rows that fit the cache."""
    return max(1, 2**17 // max(1, t.shape[1]))
