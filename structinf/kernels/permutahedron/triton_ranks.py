"""Ranks of scores in ascending order, in one launch of a Triton kernel. Importing this module imports triton.

The rank of a score is 1 plus the number of lower scores and of equal scores before it, as in a stable sort. A program
compares a block of scores with all scores of its row, n² comparisons for each row, and needs no barrier.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch

__all__ = ["MOST_ELEMENTS", "ranks"]

MOST_ELEMENTS = 8192
"""The largest number of elements: 67 million comparisons."""

_BLOCK = 64


def ranks(theta: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the ranks of the scores in use, from 1, and 0 elsewhere, (B, n), and whether all of them are above −inf.

    Parameters
    ----------
    theta : (B, n) Tensor
        The scores.
    lengths : (B,) int64 Tensor, optional
        The number of elements in use.

    Returns
    -------
    y : (B, n) Tensor
        The ranks.
    allowed : (B, n) bool Tensor
        Whether an element is unused, or has a score above −inf.
    """
    theta, n = theta.detach().contiguous(), theta.shape[1]
    y, allowed = torch.empty_like(theta), torch.empty_like(theta, dtype=torch.bool)
    lengths = None if lengths is None else lengths.contiguous()
    launch(_rank, (len(theta), triton.cdiv(n, _BLOCK)), theta, lengths, y, allowed, n, BLOCK=_BLOCK)
    return y, allowed


@triton.jit(do_not_specialize=["n"])
def _rank(theta, lengths, y, allowed, n, BLOCK: tl.constexpr):
    """Write the ranks of a block of scores."""
    b = tl.program_id(0).to(tl.int64)
    size = n
    if lengths is not None:
        size = tl.minimum(tl.load(lengths + b), n).to(tl.int32)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(theta + b * n + i, mask=i < size, other=0.0)
    rank = tl.where(i < size, 1, 0)
    for first in range(0, size, BLOCK):
        j = first + tl.arange(0, BLOCK)
        other = tl.load(theta + b * n + j, mask=j < size, other=float("inf"))[None, :]
        is_before = (other < own[:, None]) | ((other == own[:, None]) & (j[None, :] < i[:, None]))
        rank += tl.sum((is_before & (i < size)[:, None] & (j < size)[None, :]).to(tl.int32), 1)
    tl.store(y + b * n + i, rank.to(y.dtype.element_ty), mask=i < n)
    tl.store(allowed + b * n + i, own > float("-inf"), mask=i < n)
