"""Random derivations of a hypergraph, in a Triton kernel. Importing this module imports triton.

The walks are those of :func:`.derivations.sample`, with the same uniform numbers in the same order. The nodes are
evaluated in one launch (:mod:`.triton_inside`), and all walks take another. A program walks ``LANES`` derivations at a
time, each with a stack in global memory for the first tails of hyperedges with two tails.

Barriers: several threads may hold the same walk. A barrier therefore separates the reads of stacks and counts in a step
from the writes, and the writes from the reads of the next step.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from .triton_inside import inside, probabilities, scores

__all__ = ["nodes_of", "sample"]

_LARGEST_INT32 = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["goal_stride", "walks", "batch", "size", "depth", "N", "P", "count"])
def _walk(
    theta, goal, goal_stride, offset, links, value, v, top, t, uniforms, stack, out, walks, batch, size, depth, N, P,
    count,
    ALPHA: tl.constexpr, IS_SINGLE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the uses of each part in derivation ``lane`` of instance ``lane`` mod B to ``out`` (walks, P)."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_lane = lane < walks
    b = tl.where(is_lane, lane % batch, 0)
    kind = theta.dtype.element_ty
    theta_rows = (theta + b * P)[:, None]
    v_rows = (v + b * N)[:, None]
    stack_rows = stack + lane * depth
    out_rows = out + lane * P
    c = tl.arange(0, COLUMNS)
    is_walking = is_lane & (tl.load(value + b) > float("-inf"))
    node = tl.load(goal + b * goal_stride).to(tl.int32)
    waiting = tl.zeros([LANES], tl.int32)
    drawn = 0
    going = tl.max(is_walking.to(tl.int32), 0)
    while going > 0:
        lo = tl.load(offset + node, mask=is_walking, other=0)
        hi = tl.load(offset + node + 1, mask=is_walking, other=0)
        if ALPHA > 2:
            edge = tl.load(t + b * N + node, mask=is_walking, other=0)
        else:
            peak = tl.load(top + b * N + node, mask=is_walking, other=0.0)[:, None]
            threshold = tl.load(t + b * N + node, mask=is_walking, other=0.0)[:, None]
            most = COLUMNS
            if not IS_SINGLE:
                most = tl.max(hi - lo, 0)
            k = lo[:, None] + c[None, :]
            x = scores(theta_rows, v_rows, links, count, k, k < hi[:, None], N, P)
            total = tl.zeros([LANES], tl.float64)
            for done in range(0, most, COLUMNS):
                if not IS_SINGLE:
                    k = lo[:, None] + done + c[None, :]
                    x = scores(theta_rows, v_rows, links, count, k, k < hi[:, None], N, P)
                q, _ = probabilities(x, peak, threshold, kind, ALPHA)
                total += tl.sum(q.to(tl.float64), 1)
            target = tl.load(uniforms + lane * size + drawn, mask=is_walking, other=0.0) * total
            before = tl.zeros([LANES], tl.float64)
            # The first hyperedge that takes the sum of q beyond the target, or else, by rounding, the last with q > 0.
            edge = tl.zeros([LANES], tl.int32) + _LARGEST_INT32
            last = lo
            for done in range(0, most, COLUMNS):
                if not IS_SINGLE:
                    k = lo[:, None] + done + c[None, :]
                    x = scores(theta_rows, v_rows, links, count, k, k < hi[:, None], N, P)
                q, _ = probabilities(x, peak, threshold, kind, ALPHA)
                after = before[:, None] + tl.cumsum(q.to(tl.float64), 1)
                is_beyond = (q > 0) & (after > target[:, None])
                edge = tl.minimum(edge, tl.min(tl.where(is_beyond, k, _LARGEST_INT32), 1))
                last = tl.maximum(last, tl.max(tl.where(q > 0, k, 0), 1))
                before += tl.sum(q.to(tl.float64), 1)
            edge = tl.where(edge < _LARGEST_INT32, edge, last)
        part = tl.load(links + edge, mask=is_walking, other=0)
        one = tl.load(links + count + edge, mask=is_walking, other=0)
        two = tl.load(links + 2 * count + edge, mask=is_walking, other=0)
        has_part = is_walking & (part < P)
        has_one = is_walking & (one < N)
        has_two = is_walking & (two < N)
        is_leaf = is_walking & (one >= N) & (two >= N)
        uses = tl.load(out_rows + part, mask=has_part, other=0.0)
        popped = tl.load(stack_rows + waiting - 1, mask=is_leaf & (waiting > 0), other=0)
        tl.debug_barrier()
        tl.store(out_rows + part, uses + 1.0, mask=has_part)
        tl.store(stack_rows + waiting, one, mask=has_one & has_two)
        tl.debug_barrier()
        is_walking = is_walking & ((one < N) | (two < N) | (waiting > 0))
        waiting = waiting + (has_one & has_two).to(tl.int32) - (is_leaf & (waiting > 0)).to(tl.int32)
        node = tl.where(is_leaf, popped, tl.where(has_two, two, one))
        drawn += 1
        going = tl.max(is_walking.to(tl.int32), 0)


def nodes_of(tables: Any, theta: Tensor, goal: Tensor, alpha: float) -> list[Tensor]:
    """Return DP_Ω(θ), (B,) float64, and the numbers v, max x and t of the nodes, which :func:`sample` reads."""
    value, nodes = inside(tables, theta, goal, alpha, keep=True)
    return [value, *nodes[:3]]


def sample(
    tables: Any, theta: Tensor, goal: Tensor, alpha: float, nodes: list[Tensor], uniforms: Tensor, out: Tensor
) -> None:
    """Add the uses of the parts in random derivations to ``out`` (n, B, P), in θ's dtype.

    ``nodes`` is the result of :func:`nodes_of`, and ``uniforms`` (n, B, size) float64 holds numbers in [0, 1), one for
    each hyperedge of a derivation. Instances without derivations of finite score get none.
    """
    walks = out.shape[0] * out.shape[1]
    stack = torch.empty(walks, tables.depth, dtype=torch.int32, device=theta.device)
    offset, links, tile = tables.by_head
    lanes = max(1, 128 // tile.columns)
    launch(
        _walk, (-(-walks // lanes),), theta, goal, goal.stride(0), offset, links, *nodes, uniforms, stack, out, walks,
        len(theta), uniforms.shape[-1], tables.depth, tables.nodes, tables.parts, links.shape[1],
        warps=max(1, lanes * tile.columns // 64), ALPHA=alpha, IS_SINGLE=tile.is_single, LANES=lanes,
        COLUMNS=tile.columns,
    )  # fmt: skip
