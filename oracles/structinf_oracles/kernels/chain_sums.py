"""Log-partition, marginals and Hessian products of a batch of chains on the CPU.

Chooses the domain, cuts the batch into ranges for the threads and allocates the results. Tensors are in the common
form of :mod:`structinf_oracles.chain_form`; log Z comes in float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from structinf.kernels import parallel_rows, to_numpy

from . import chain_log, chain_scaled

__all__ = ["covariance_product", "log_partition", "marginals"]


def log_partition(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """log Z, (B,)."""
    u, a, n = to_numpy(unary, transition, lengths)
    log_z, rest, work = np.empty(len(n)), np.arange(len(n)), _products(u, a, n)
    if a.shape[1] == 1:
        parallel_rows(chain_scaled.log_partition, len(n), u, *_factors(a[:, 0]), n, log_z, work=work)
        rest = np.flatnonzero(np.isnan(log_z))
    parallel_rows(chain_log.log_partition, len(rest), rest, u, a, n, log_z, work=8 * work)
    return torch.from_numpy(log_z)


def marginals(
    unary: Tensor, transition: Tensor, lengths: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z, node marginals (B, T, S) and edge marginals (B, P, S, S).

    With ``weight`` (B,), marginals times it, summed over the batch for a tensor that all instances share.
    """
    u, a, n = to_numpy(unary, transition, lengths)
    (w,) = to_numpy(torch.ones(len(n), dtype=unary.dtype) if weight is None else weight)
    summed = weight is not None and len(a) == 1
    log_z, rest, work = np.empty(len(n)), np.arange(len(n)), _products(u, a, n)
    nodes, edges = np.zeros((len(n), *u.shape[1:]), u.dtype), None
    if a.shape[1] == 1:
        factor, top, reserve = _factors(a[:, 0])
        alpha, ratio = np.empty_like(nodes), np.empty_like(nodes)
        arrays = u, factor, top, reserve, n, w, log_z, alpha, ratio, nodes
        parallel_rows(chain_scaled.marginals, len(n), *arrays, work=2 * work)
        edges = _outer_products(alpha, ratio, summed).mul_(torch.from_numpy(factor)).unsqueeze(1)
        rest = np.flatnonzero(np.isnan(log_z))
    if edges is None or len(rest):
        groups = min(torch.get_num_threads(), len(rest)) if summed else len(rest)
        add = summed or a.shape[1] == 1
        out = (torch.zeros if add else torch.empty)(groups if summed else len(n), *a.shape[1:], dtype=unary.dtype)
        arrays = rest, u, a, n, w, log_z, nodes, out.numpy(), add
        parallel_rows(chain_log.marginals, groups, groups, *arrays, work=16 * work)
        out = out.sum(0, keepdim=True) if summed else out
        edges = out if edges is None else edges.add_(out)
    found = torch.from_numpy(nodes)
    return torch.from_numpy(log_z), found.sum(0, keepdim=True) if weight is not None and len(u) == 1 else found, edges


def covariance_product(
    unary: Tensor, transition: Tensor, lengths: Tensor, v_unary: Tensor, v_transition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z, and the Hessian of log Z times v for nodes (B, T, S) and edges (B, P, S, S)."""
    u, a, n, v, v_a = to_numpy(unary, transition, lengths, v_unary, v_transition)
    log_z, nodes, add = np.empty(len(n)), np.zeros((len(n), *u.shape[1:]), u.dtype), a.shape[1] == 1
    edges = (torch.zeros if add else torch.empty)(len(n), *a.shape[1:], dtype=unary.dtype)
    arrays = u, a, n, v, v_a, log_z, nodes, edges.numpy(), add
    parallel_rows(chain_log.covariance_product, len(n), *arrays, work=32 * _products(u, a, n))
    return torch.from_numpy(log_z), torch.from_numpy(nodes), edges


def _products(u: np.ndarray, a: np.ndarray, n: np.ndarray) -> int:
    """Edges of the batch, of which some 8 cost what one exponential does."""
    return len(n) * u.shape[1] * a.shape[-1] ** 2


def _factors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the scaled recursion needs to know of the matrices (R, S, S); see :mod:`.chain_scaled`."""
    info = np.finfo(a.dtype)
    limit = math.log(info.eps) - math.log(info.tiny) - math.log(a.shape[-1]) - 4
    factor, top, reserve = np.zeros_like(a), np.empty(len(a)), np.empty(len(a))
    parallel_rows(chain_scaled.factors, len(a), a, limit, factor, top, reserve, work=a.size)
    return factor, top, reserve


def _outer_products(alpha: np.ndarray, ratio: np.ndarray, summed: bool) -> Tensor:
    """Σ_t α_t r_tᵀ, (B, S, S), or (1, S, S) if summed over the batch."""
    a, r = torch.from_numpy(alpha), torch.from_numpy(ratio)
    if summed:
        return (a.flatten(0, 1).T @ r.flatten(0, 1)).unsqueeze(0)
    return torch.bmm(a.transpose(1, 2), r)
