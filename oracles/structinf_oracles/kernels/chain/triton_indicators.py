"""Triton kernel of structures in the form of chain scores, from sequences of tags.

A program writes a block of the indicators of nodes, or of edges, of one sequence. Each number is written once, so that
no barrier is necessary. Counts of edges are whole numbers, and thus exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

__all__ = ["tag_indicators"]

_BLOCK = 1024


def tag_indicators(
    tags: Tensor, lengths: Tensor | None, states: int, dtype: torch.dtype, *, has_nodes: bool, is_shared: bool
) -> tuple[Tensor | None, Tensor]:
    """Return indicators of nodes (..., B, T, S) and edges (..., B, T − 1, S, S) in one launch.

    Parameters
    ----------
    tags : (..., B, T) int64 Tensor
        The tags.
    lengths : (B,) or (..., B) int64 Tensor, or None
        The numbers of tags in use; by default T.
    states : int
        S.
    dtype : torch.dtype
        The dtype of the indicators.
    has_nodes : bool
        Whether to return nodes; None otherwise.
    is_shared : bool
        Whether edges are counts over all steps, (..., B, 1, S, S).
    """
    tags, steps = tags.contiguous(), tags.shape[-1]
    nodes = tags.new_empty(*tags.shape, states, dtype=dtype) if has_nodes else None
    edges = tags.new_empty(*tags.shape[:-1], 1 if is_shared else steps - 1, states, states, dtype=dtype)
    blocks, rows = triton.cdiv(steps * states, _BLOCK) if has_nodes else 0, tags[..., 0].numel()
    of_edges = triton.cdiv(edges.shape[-3] * states**2, _BLOCK)
    n = None if lengths is None else lengths.contiguous()
    sizes = 1 if n is None else n.numel(), blocks, steps, states, edges.shape[-3]
    launch(_indicate, (rows, blocks + of_edges), tags, n, nodes, edges, *sizes, SHARED=is_shared, BLOCK=_BLOCK)
    return nodes, edges


@triton.jit(do_not_specialize=["batch", "blocks", "T", "P"])
def _indicate(
    tags, lengths, nodes, edges, batch, blocks, T, S, P, SHARED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a block of the indicators of a sequence: of nodes in the first ``blocks`` programs, else of edges."""
    row, block, n = tl.program_id(0).to(tl.int64), tl.program_id(1), T
    if lengths is not None:
        n = tl.load(lengths + row % batch).to(tl.int32)
    own = tags + row * T
    if block < blocks:
        if nodes is not None:
            i = block * BLOCK + tl.arange(0, BLOCK)
            tag = tl.load(own + i // S, mask=(i < T * S) & (i // S < n), other=-1)
            tl.store(nodes + row * T * S + i, tl.where(tag == i % S, 1.0, 0.0), mask=i < T * S)
    else:
        i = (block - blocks) * BLOCK + tl.arange(0, BLOCK)
        before, after = i // S % S, i % S
        count = tl.zeros([BLOCK], tl.float32)
        if SHARED:
            for t in range(1, n):
                is_move = (tl.load(own + t - 1) == before) & (tl.load(own + t) == after)
                count += tl.where(is_move, 1.0, 0.0)
        else:
            t = i // (S * S)
            inside = (i < P * S * S) & (t + 1 < n)
            one, two = tl.load(own + t, mask=inside, other=-1), tl.load(own + t + 1, mask=inside, other=-1)
            count += tl.where((one == before) & (two == after), 1.0, 0.0)
        tl.store(edges + row * P * S * S + i, count, mask=i < P * S * S)
