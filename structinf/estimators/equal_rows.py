"""Which of many structures are equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["first_of_each_group", "numbered"]


def numbered(parts: Sequence[Tensor]) -> Tensor:
    """A number below N for each of N structures, given as one or several (N, P) tensors; the same for equal ones."""
    keys = _keys([t for t in parts if t.numel()])
    if keys is not None:
        values, kind = keys.unique(return_inverse=True)
        like = first_of_each_group(kind, len(values))[kind]
        merged = (like != torch.arange(len(like), device=like.device)).nonzero()[:, 0]
        if all(torch.equal(t[like[rows]], t[rows]) for t in parts for rows in merged.split(_block(t))):
            return kind
    # A column more, since unique takes no rows of length 0.
    return torch.nn.functional.pad(torch.cat(list(parts), 1), (0, 1)).unique(dim=0, return_inverse=True)[1]


def first_of_each_group(kind: Tensor, count: int) -> Tensor:
    """Where one of each of the ``count`` kinds stands in ``kind``, (count,)."""
    return kind.new_empty(count).scatter_(0, kind, torch.arange(len(kind), device=kind.device))


def _keys(parts: Sequence[Tensor]) -> Tensor | None:
    """Numbers (N,), the same for equal structures and hardly ever for others; None unless all parts are whole numbers.

    They are sums of whole numbers that stay below 2⁵³, and so exact in any order.
    """
    if not parts or any(bool((b != b.round()).any()) for t in parts for b in t.split(_block(t))):
        return None
    max_value = sum(t.shape[1] * float(t.abs().amax()) for t in parts)
    fixed = torch.Generator().manual_seed(0)
    total = torch.zeros(len(parts[0]), dtype=torch.float64, device=parts[0].device)
    for t in parts:
        factors = torch.rand(t.shape[1], dtype=torch.float64, generator=fixed).to(t.device)
        factors = (factors * (2.0**53 / max(max_value, 1.0))).floor()
        total += torch.cat([b.double() @ factors for b in t.split(_block(t))])
    return total


def _block(t: Tensor) -> int:
    """How many rows to work on at a time, so that they stay in the cache."""
    return max(1, 2**17 // max(1, t.shape[1]))
