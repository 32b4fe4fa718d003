"""CPU entry points of chains: smoothed sums, expected structures and Hessian-vector products of a batch.

The functions choose between scaled products and the log domain, split the batch over threads, and allocate the
results. Tensors are in the common form of :mod:`structinf_oracles.common.chain_potentials`. DP_Ω is float64. The
regularizer Ω is given by its α, from 1 to 2, or infinity for the value alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from structinf.kernels import parallel_rows, to_numpy, zeros
from structinf.kernels.arrays import is_small
from structinf.kernels.simd.vector import LANES

from . import log_domain, sampling, scaled, scaled_hessian, two_states

__all__ = ["hessian_product", "sample", "value", "value_and_mean"]


def _exact(alpha: float, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return ``tensors``, in float64 if 1 < α < 1.1, as float32 is too coarse for the power 1 / (α − 1)."""
    return tuple(t.double() for t in tensors) if 1 < alpha < 1.1 else tensors


def value(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """Return DP_Ω, (B,)."""
    u, a, n = to_numpy(*_exact(alpha, unary, transition), lengths)
    results, remaining, work = np.empty(len(n)), np.arange(len(n)), _count_edges(u, a, n)
    if _has_two_states(u, a, alpha):
        parallel_rows(two_states.value, _count_blocks(n), u, a, n, _power(alpha), results, work=work)
        remaining = np.flatnonzero(np.isnan(results))
    elif _may_be_scaled(a, alpha):
        parallel_rows(scaled.log_partition, len(n), u, *_scaling_factors(a[:, 0]), n, results, work=work)
        remaining = np.flatnonzero(np.isnan(results))
    parallel_rows(log_domain.value, len(remaining), remaining, u, a, n, _power(alpha), results, work=8 * work)
    return torch.from_numpy(results)


def value_and_mean(
    unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω, and its gradient for nodes (B, T, S) and edges (B, P, S, S).

    With ``weight`` (B,), each gradient is multiplied by its weight. The gradient of a tensor shared by the batch is
    summed over the batch.
    """
    dtype, (unary, transition) = unary.dtype, _exact(alpha, unary, transition)
    is_summed = weight is not None and len(transition) == 1
    u, a, n, *given = to_numpy(unary, transition, lengths, *([] if weight is None else [weight.to(unary)]))
    w = given[0] if given else np.ones(len(n), u.dtype)
    values, remaining, work = np.empty(len(n)), np.arange(len(n)), _count_edges(u, a, n)
    nodes, edges = zeros(len(n), *u.shape[1:], dtype=unary.dtype), None
    if _has_two_states(u, a, alpha):
        matrices = zeros(len(n), 1, 2, 2, dtype=unary.dtype)
        arrays = u, a, n, _power(alpha), w, values, nodes.numpy(), matrices.numpy()
        parallel_rows(two_states.mean, _count_blocks(n), *arrays, work=2 * work)
        edges = matrices.sum(0, keepdim=True) if is_summed else matrices
        remaining = np.flatnonzero(np.isnan(values))
    elif _may_be_scaled(a, alpha):
        factor, top, reserve = _scaling_factors(a[:, 0])
        left, right = np.empty(nodes.shape, u.dtype), np.empty(nodes.shape, u.dtype)
        arrays = u, factor, top, reserve, n, w, values, left, right, nodes.numpy()
        parallel_rows(scaled.marginals, len(n), *arrays, work=2 * work)
        edges = _outer_products(left, right, factor, is_summed)
        remaining = np.flatnonzero(np.isnan(values))
    if edges is None or len(remaining):
        groups = min(torch.get_num_threads(), len(remaining)) if is_summed else len(remaining)
        results = _matrices(groups if is_summed else len(n), a, unary.dtype, is_summed)
        arrays = remaining, u, a, n, _power(alpha), w, values, nodes.numpy(), results.numpy()
        parallel_rows(log_domain.mean, groups, groups, *arrays, work=16 * work)
        results = results.sum(0, keepdim=True) if is_summed else results
        edges = results if edges is None else edges.add_(results)
    nodes = nodes.sum(0, keepdim=True) if weight is not None and len(u) == 1 else nodes
    if unary.dtype is not dtype:
        nodes, edges = nodes.to(dtype), edges.to(dtype)
    return torch.from_numpy(values), nodes, edges


def hessian_product(
    unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, v_unary: Tensor, v_transition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω, and its Hessian times v for nodes (B, T, S) and edges (B, P, S, S)."""
    dtype, (unary, *tensors) = unary.dtype, _exact(alpha, unary, transition, v_unary, v_transition)
    u, n, a, v, v_a = to_numpy(unary, lengths, *tensors)
    values, remaining, work = np.empty(len(n)), np.arange(len(n)), _count_edges(u, a, n)
    nodes, edges = zeros(len(n), *u.shape[1:], dtype=unary.dtype), _matrices(len(n), a, unary.dtype, False)
    results = values, nodes.numpy(), edges.numpy()
    if _has_two_states(u, a, alpha):
        parallel_rows(
            two_states.hessian_product, _count_blocks(n), u, a, n, _power(alpha), v, v_a, *results, work=4 * work
        )
        remaining = np.flatnonzero(np.isnan(values))
    elif _may_be_scaled(a, alpha):
        arrays = u, *_scaling_factors(a[:, 0]), n, v, v_a[:, 0], values, results[1], results[2][:, 0]
        parallel_rows(scaled_hessian.covariance_product, len(n), *arrays, work=8 * work)
        remaining = np.flatnonzero(np.isnan(values))
    arrays = remaining, u, a, n, _power(alpha), v, v_a, *results
    parallel_rows(log_domain.hessian_product, len(remaining), *arrays, work=32 * work)
    return torch.from_numpy(values), nodes.to(dtype), edges.to(dtype)


def sample(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return DP_Ω, and tags (n, B, T), 0 in the padding, sampled by walks along q with ``uniforms`` (n, B, T)."""
    u, a, n, chosen = to_numpy(*_exact(alpha, unary, transition), lengths, uniforms)
    values, tags = np.empty(len(n)), zeros(*uniforms.shape, dtype=torch.int64)
    work = 8 * _count_edges(u, a, n) + uniforms.numel() * u.shape[2]
    parallel_rows(sampling.sample, len(n), u, a, n, _power(alpha), chosen, values, tags.numpy(), work=work)
    return torch.from_numpy(values), tags


def _matrices(rows: int, a: np.ndarray, dtype: torch.dtype, is_summed: bool) -> Tensor:
    """Return memory for results of the matrices ``a``: zeros if results are added up, else uninitialised."""
    if is_summed or a.shape[1] == 1:
        return zeros(rows, *a.shape[1:], dtype=dtype)
    return torch.empty(rows, *a.shape[1:], dtype=dtype, device="cpu")


def _power(alpha: float) -> float:
    """Return the exponent p of :mod:`.smooth_step`."""
    return math.inf if alpha == 1 else 1 / (alpha - 1)


def _has_two_states(u: np.ndarray, a: np.ndarray, alpha: float) -> bool:
    """Return whether there are two states, one transition for all steps, and a closed-form max_Ω of two numbers."""
    return u.shape[2] == 2 and a.shape[1] == 1 and alpha in (1, 2)


def _count_blocks(n: np.ndarray) -> int:
    """Return the number of blocks of instances, one instance per lane of a vector."""
    return -(-len(n) // LANES)


def _may_be_scaled(a: np.ndarray, alpha: float) -> bool:
    """Return whether sums may be scaled matrix products, if the range of the scores allows it."""
    return alpha == 1 and a.shape[1] == 1


def _count_edges(u: np.ndarray, a: np.ndarray, n: np.ndarray) -> int:
    """Return the number of edges of the batch; about 8 edges take the time of one exponential."""
    return len(n) * u.shape[1] * a.shape[-1] ** 2


def _scaling_factors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return F, max A and the reserve of the matrices (R, S, S) for the scaled recursion; see :mod:`.scaled`."""
    info = np.finfo(a.dtype)
    limit = math.log(info.eps) - math.log(info.tiny) - math.log(a.shape[-1]) - 4
    factor, top, reserve = np.zeros_like(a), np.empty(len(a)), np.empty(len(a))
    parallel_rows(scaled.factors, len(a), a, limit, factor, top, reserve, work=a.size)
    return factor, top, reserve


def _outer_products(left: np.ndarray, right: np.ndarray, factor: np.ndarray, is_summed: bool) -> Tensor:
    """Return F ∘ Σ_t α_t r_tᵀ, (B, 1, S, S), or (1, 1, S, S) if summed over the batch."""
    a, r = torch.from_numpy(left), torch.from_numpy(right)
    if is_summed:
        products = (a.flatten(0, 1).T @ r.flatten(0, 1)).unsqueeze(0)
    elif is_small(a):
        products = np.matmul(left.transpose(0, 2, 1), right)
        return torch.from_numpy(np.multiply(products, factor, out=products)[:, None])
    else:
        products = torch.bmm(a.transpose(1, 2), r)
    return products.mul_(torch.from_numpy(factor)).unsqueeze(1)
