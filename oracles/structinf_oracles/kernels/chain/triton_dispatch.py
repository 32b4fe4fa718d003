"""Entry points of the Triton kernels of chains: the functions of :mod:`.dispatch`, best tags, and k best tags.

Tensors are in the common form of :mod:`structinf_oracles.common.chain_potentials`, on one device, with at most
1024 states. DP_Ω is float64. α is 1, 1.5 or 2, or infinity for the value alone. No function synchronises.

=====================  =============================  ===========================================================
function               launches                       scratch memory, in numbers of θ's dtype
=====================  =============================  ===========================================================
value                  1                              none; 2 B S in tiles
value_and_mean         1; 2 in tiles                  3 B T S
hessian_product        1; 2 in tiles                  6 B T S
best_tags              1                              B T S
sample                 2                              3 B T S
topk                   1                              2 B S k in float64, and B T S k in int32
=====================  =============================  ===========================================================

Matrices of more than 64 states are processed in tiles, and in float64 or for Hessian products, of more than 32 states.
A gradient summed over the instances that share a tensor takes one more launch for each tensor, and the memory of the
gradients of all instances.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structinf.kernels.gpu import launch

from .triton_k_best import k_best
from .triton_sampling import walks
from .triton_sums import sums
from .triton_tiled_sums import edge_sums, tiled_sums
from .triton_viterbi import viterbi

__all__ = ["best_tags", "hessian_product", "sample", "topk", "value", "value_and_mean"]


def value(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """Return DP_Ω, (B,)."""
    return _sums(unary, transition, lengths, alpha, 0)[0]


def value_and_mean(
    unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω, and its gradient for nodes (B, T, S) and edges (B, P, S, S).

    With ``weight`` (B,), each gradient is multiplied by its weight. The gradient of a tensor shared by the batch is
    summed over the batch.
    """
    results = _results(unary, transition, lengths)
    if weight is None:
        return _sums(unary, transition, lengths, alpha, 3, results)[0], *results
    values, _ = _sums(unary, transition, lengths, alpha, 3, results, weight.to(unary).contiguous())
    nodes, edges = (
        t.sum(0, keepdim=True) if len(scores) == 1 else t
        for t, scores in zip(results, (unary, transition), strict=True)
    )
    return values, nodes, edges


def hessian_product(
    unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, v_unary: Tensor, v_transition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω, and its Hessian times v for nodes (B, T, S) and edges (B, P, S, S)."""
    results = _results(unary, transition, lengths)
    return _sums(unary, transition, lengths, alpha, 6, results, v=(v_unary, v_transition))[0], *results


def best_tags(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tags (B, T) of the best sequences, 0 in the padding, and whether any sequence is allowed, (B,)."""
    (u, u_stride), (a, a_stride), n = _rows(unary), _rows(transition), lengths.contiguous()
    batch, (steps, states) = len(n), u.shape[1:]
    tags, feasible = n.new_empty(batch, steps), n.new_empty(batch, dtype=torch.bool)
    arrays = u, a, n, u.new_empty(batch, steps, states), tags, feasible, u_stride, a_stride, steps, states
    launch(viterbi, (batch,), *arrays, SHARED=a.shape[1] == 1, **_tile(u))
    return tags, feasible


def sample(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return DP_Ω, and tags (n, B, T), 0 in the padding, sampled by walks along q with ``uniforms`` (n, B, T)."""
    values, tables = _sums(unary, transition, lengths, alpha, 3)
    (a, a_stride), n, (walk_count, batch, steps) = _rows(transition), lengths.contiguous(), uniforms.shape
    tags, options = n.new_empty(uniforms.shape), _tile(unary)
    options["W"] = 1 if walk_count == 1 else 4
    del options["BJ"]
    arrays = a, n, tables, uniforms.contiguous(), tags, a_stride, walk_count, batch, steps, unary.shape[2]
    grid = batch, -(-walk_count // options["W"])
    launch(walks, grid, *arrays, ALPHA=alpha, SHARED=a.shape[1] == 1, **options)
    return values, tags


def topk(unary: Tensor, transition: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the tags (k, B, T) of the k best sequences, best first, 0 in the padding, and their scores (k, B) float64.

    If fewer than k sequences are allowed, the scores of the others are −inf, and their tags are 0.
    """
    (u, u_stride), (a, a_stride), n = _rows(unary), _rows(transition), lengths.contiguous()
    batch, (steps, states) = len(n), u.shape[1:]
    best = u.new_empty(batch, 2, states, k, dtype=torch.float64)
    origins = n.new_empty(batch, steps, states, k, dtype=torch.int32)
    tags, scores = n.new_empty(k, batch, steps), best.new_empty(k, batch)
    arrays = u, a, n, best, origins, tags, scores, u_stride, a_stride, batch, steps, states, k
    options = {"KP": 1 << (k - 1).bit_length(), "SHARED": a.shape[1] == 1}
    launch(k_best, (batch,), *arrays, **options, **_tile(u, is_tangent=True))
    return tags, scores


def _sums(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    alpha: float,
    count: int,
    results: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
    weight: Tensor | None = None,
    v: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return DP_Ω and ``count`` tables, and write ``results``: gradients times ``weight``, or Hessian products."""
    (u, u_stride), (a, a_stride), n = _rows(unary), _rows(transition), lengths.contiguous()
    (d_u, du_stride), (d_a, da_stride) = ((None, 0), (None, 0)) if v is None else (_rows(v[0]), _rows(v[1]))
    batch, (steps, states) = len(n), u.shape[1:]
    options = _tile(u, v is not None)
    options |= {"ALPHA": alpha, "SHARED": a.shape[1] == 1, "TANGENT": v is not None}
    values = u.new_empty(batch, dtype=torch.float64)
    strides = u_stride, a_stride, du_stride, da_stride
    nodes, edges = results
    if options["BJ"] == options["SP"]:
        del options["BJ"]
        tables = u.new_empty(batch, count, steps, states) if count else None
        arrays = u, a, n, values, tables, weight, nodes, edges, d_u, d_a, *strides, steps, states, a.shape[1]
        launch(sums, (batch,), *arrays, TABLES=count, **options)
        return values, tables
    tables = u.new_empty(batch, count or 1, steps if count else 2, states)
    arrays = u, a, n, values, tables, weight, nodes, d_u, d_a, *strides, steps, states
    launch(tiled_sums, (batch,), *arrays, TABLES=count, RING=count == 0, **options)
    if edges is not None:
        arrays = a, n, tables, nodes, edges, d_a, a_stride, da_stride, steps, states, a.shape[1]
        grid = batch * a.shape[1], -(-states // options["BJ"])
        launch(edge_sums, grid, *arrays, TABLES=count, **options)
    return values, tables


def _results(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return uninitialised memory for nodes and edges."""
    batch = len(lengths)
    return unary.new_empty(batch, *unary.shape[1:]), unary.new_empty(batch, *transition.shape[1:])


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Return ``x`` (B | 1, ...) in contiguous memory, and the distance between instances, 0 if the batch shares one."""
    if len(x) > 1 and x.stride(0) == 0:
        x = x[:1]
    x = x.contiguous()
    return x, x.stride(0) if len(x) > 1 else 0


def _tile(x: Tensor, is_tangent: bool = False) -> dict[str, Any]:
    """Return the size of a tile for scores ``x`` (..., S), and the number of warps.

    A thread has at most 255 registers. It therefore holds 16 numbers of a tile, or 8 in float64 and for Hessian
    products. A tile is the whole matrix if 8 warps suffice.
    """
    padded = max(16, 1 << (x.shape[-1] - 1).bit_length())
    numbers = 8 if is_tangent or x.dtype == torch.float64 else 16
    if padded**2 <= 256 * numbers:
        return {"SP": padded, "BJ": padded, "warps": max(1, padded**2 // (32 * numbers))}
    return {"SP": padded, "BJ": 256 * numbers // padded, "warps": 8}
