"""The passes of a smoothed recursion over any hypergraph, in Triton kernels. Importing this module imports triton.

The formulas, of Mensch & Blondel (2018, Algorithms 1 and 2), are in :mod:`.smoothed_passes`. Launches: 1 for the value
(:mod:`.triton_inside`); 2 more for the gradient, the way down through the nodes, and the sums over the hyperedges of
each part. A Hessian product takes 3 launches, which carry the derivatives along.

Nothing is added atomically: a node collects the flow of the hyperedges that use it, and a part the flow of its
hyperedges. Results therefore repeat bit for bit, and do not depend on the other instances. Probabilities are recomputed
from three numbers a node, so memory does not grow with the number of hyperedges: 8 bytes for each node and instance for
a value, 32 for a gradient (20 for α = inf), 56 for a Hessian product.

Barriers: on the way down, the nodes of a level read w and ẇ of higher levels, which other threads of the program have
written, so a barrier follows each level. Every node is written once, so no barrier is needed before a write.

Nodes above the goal are neither written nor read: nodes are sorted by level, so all nodes of a derivation of the goal
have smaller numbers. A goal of −1 has the value −inf, and no flow.

Arguments: ``tables``, a `structinf.dp.device_tables.DeviceTables`; ``theta`` (B, P) float32 or float64, contiguous;
``goal`` (B,) int64, with any stride; ``alpha``, the α of the regularizer: 1, 1.5, 2 or inf. Values are float64, and
probabilities have the dtype of ``theta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from .triton_inside import SIZES, inside, probabilities, runs, scores

__all__ = ["hessian_product", "used_parts", "value", "value_and_mean"]

# ----------------------------------------------------------------------------- kernels


@triton.jit
def _flow(
    theta, direction, links, count, k, ok, end, v, top, t, v_dot, m, w, w_dot, N, P,
    ALPHA: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Return the flow f of the entries ``k`` of ``links``, and its derivative, in float64.

    For α = 0, all hyperedges of a node receive its whole flow.
    """
    head = tl.load(links + 3 * count + k, mask=ok, other=0)
    ok = ok & (head <= end)
    flow = tl.load(w + head, mask=ok, other=0.0)
    change = flow
    if ALPHA > 2:
        edge = tl.load(links + 4 * count + k, mask=ok, other=0)
        flow = tl.where(tl.load(t + head, mask=ok, other=-1) == edge, flow, 0.0)
    elif ALPHA > 0:
        kind = theta.dtype.element_ty
        if TANGENT:
            change = tl.load(w_dot + head, mask=ok, other=0.0)
            ok = ok & ((flow != 0) | (change != 0))
        else:
            ok = ok & (flow != 0)
        # Where nothing flows, the scores are not read. They may be −inf, as may those with q = 0.
        x = scores(theta, v, links, count, k, ok, N, P)
        q, s = probabilities(
            x, tl.load(top + head, mask=ok, other=0.0), tl.load(t + head, mask=ok, other=0.0), kind, ALPHA
        )
        if TANGENT:
            x_dot = tl.where(ok, scores(direction, v_dot, links, count, k, ok, N, P), 0.0)
            x_dot = (x_dot - tl.load(m + head, mask=ok, other=0.0)).to(kind)
            change = (s * x_dot * flow.to(kind) + q * change.to(kind)).to(tl.float64)
        flow = (q * flow.to(kind)).to(tl.float64)
    return flow, change


@triton.jit
def _collect(
    theta, direction, lo, hi, links, b, end, v, top, t, v_dot, m, w, w_dot, N, P, count,
    ALPHA: tl.constexpr, TANGENT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return the sum of the flows of the entries from ``lo`` to ``hi`` of ``links``, and its derivative, in float64."""
    nodes = b * N
    total = tl.zeros_like(lo).to(tl.float64)
    total_dot = total
    for done in range(0, tl.max(hi - lo, 0), COLUMNS):
        k = lo[:, None] + done + tl.arange(0, COLUMNS)[None, :]
        flow, flow_dot = _flow(
            theta + b * P, direction + b * P, links, count, k, k < hi[:, None], end, v + nodes, top + nodes, t + nodes,
            v_dot + nodes, m + nodes, w + nodes, w_dot + nodes, N, P, ALPHA, TANGENT,
        )  # fmt: skip
        total += tl.sum(flow, 1)
        if TANGENT:
            total_dot += tl.sum(flow_dot, 1)
    return total, total_dot


@triton.jit(do_not_specialize=SIZES)
def _outside(
    theta, direction, goal, goal_stride, weight, level_of, level_offset, offset, links, v, top, t, v_dot, m, w, w_dot,
    first_level, last_level, blocks, N, P, count,
    ALPHA: tl.constexpr, WEIGHTED: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the flow w through each node, the weight at the goal plus the flow of the hyperedges that use the node."""
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    end = tl.load(goal + b * goal_stride).to(tl.int32)
    source = 1.0
    if WEIGHTED:
        source = tl.load(weight + b).to(tl.float64)
    r = tl.arange(0, ROWS)
    stop = tl.minimum(last_level, tl.load(level_of + end, mask=end >= 0, other=-1) + 1)
    for back in range(first_level, stop):
        level = first_level + stop - 1 - back
        low = tl.load(level_offset + level)
        high = tl.minimum(tl.load(level_offset + level + 1), end + 1)
        for start in range(low + block * ROWS, high, blocks * ROWS):
            node = start + r
            is_node = node < high
            lo = tl.load(offset + node, mask=is_node, other=0)
            hi = tl.load(offset + node + 1, mask=is_node, other=0)
            total, total_dot = _collect(
                theta, direction, lo, hi, links, b, end, v, top, t, v_dot, m, w, w_dot, N, P, count,
                ALPHA, TANGENT, COLUMNS,
            )  # fmt: skip
            tl.store(w + b * N + node, tl.where(node == end, total + source, total), mask=is_node)
            if TANGENT:
                tl.store(w_dot + b * N + node, total_dot, mask=is_node)
        tl.debug_barrier()


@triton.jit(do_not_specialize=SIZES)
def _part_sums(
    theta, direction, goal, goal_stride, offset, links, v, top, t, v_dot, m, w, w_dot, out, blocks, N, P, count,
    ALPHA: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the flow of the hyperedges of each part, with TANGENT its derivative, to ``out`` (B, P).

    For α = 0, write whether anything flows.
    """
    b = (tl.program_id(0) // blocks).to(tl.int64)
    part = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    end = tl.load(goal + b * goal_stride).to(tl.int32)
    is_part = part < P
    lo = tl.load(offset + part, mask=is_part, other=0)
    hi = tl.load(offset + part + 1, mask=is_part, other=0)
    total, total_dot = _collect(
        theta, direction, lo, hi, links, b, end, v, top, t, v_dot, m, w, w_dot, N, P, count, ALPHA, TANGENT, COLUMNS
    )
    if TANGENT:
        total = total_dot
    if ALPHA == 0:
        tl.store(out + b * P + part, (total > 0).to(tl.uint8), mask=is_part)
    else:
        tl.store(out + b * P + part, total.to(out.dtype.element_ty), mask=is_part)


# ----------------------------------------------------------------------------- launches


def _outside_and_parts(
    tables: Any, theta: Tensor, goal: Tensor, alpha: float, nodes: Sequence[Tensor], out: Tensor,
    weight: Tensor | None = None, direction: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write the flow through each part, or its derivative along ``direction``, to ``out`` (B, P).

    ``nodes`` is the second result of :func:`inside`.
    """
    batch, is_tangent = len(theta), direction is not None
    w = torch.empty(batch, tables.nodes, dtype=torch.float64, device=theta.device)
    w_dot = torch.empty_like(w) if is_tangent else w
    along = theta if direction is None else direction
    rows, columns, _, warps = tables.by_tail.tile
    for first, last, blocks in reversed(list(runs(tables, batch, rows))):
        launch(
            _outside, (batch * blocks,), theta, along, goal, goal.stride(0), w if weight is None else weight,
            tables.level, tables.level_offset, *tables.by_tail[:2], *nodes, w, w_dot, first, last, blocks,
            tables.nodes, tables.parts, tables.by_tail.links.shape[1], warps=warps, ALPHA=alpha,
            WEIGHTED=weight is not None, TANGENT=is_tangent, ROWS=rows, COLUMNS=columns,
        )  # fmt: skip
    rows, columns, _, warps = tables.by_part.tile
    blocks = -(-tables.parts // rows)
    launch(
        _part_sums, (batch * blocks,), theta, along, goal, goal.stride(0), *tables.by_part[:2], *nodes, w,
        w_dot, out, blocks, tables.nodes, tables.parts, tables.by_part.links.shape[1], warps=warps, ALPHA=alpha,
        TANGENT=is_tangent, ROWS=rows, COLUMNS=columns,
    )  # fmt: skip
    return out


def value(tables: Any, theta: Tensor, goal: Tensor, alpha: float) -> Tensor:
    """Return DP_Ω(θ), (B,) float64."""
    return inside(tables, theta, goal, alpha, keep=False)[0]


def value_and_mean(
    tables: Any, theta: Tensor, goal: Tensor, alpha: float, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) float64, and its gradient, (B, P) in θ's dtype, times the ``weight`` (B,)."""
    value, nodes = inside(tables, theta, goal, alpha, keep=True)
    weight = None if weight is None else weight.contiguous()
    return value, _outside_and_parts(tables, theta, goal, alpha, nodes, torch.empty_like(theta), weight)


def hessian_product(tables: Any, theta: Tensor, direction: Tensor, goal: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) float64, and ∇²DP_Ω(θ) times ``direction``, (B, P), for finite α."""
    direction = direction.to(theta.dtype).contiguous()
    value, nodes = inside(tables, theta, goal, alpha, True, direction)
    out = torch.empty_like(theta)
    return value, _outside_and_parts(tables, theta, goal, alpha, nodes, out, direction=direction)


def used_parts(tables: Any, goal: Tensor) -> Tensor:
    """Return a mask of the parts that derivations of each goal use, (B, P) bool, in 2 launches."""
    nothing = torch.empty(len(goal), 0, dtype=torch.float64, device=goal.device)
    out = torch.empty(len(goal), tables.parts, dtype=torch.uint8, device=goal.device)
    return _outside_and_parts(tables, nothing, goal, 0.0, [nothing] * 5, out).view(torch.bool)
