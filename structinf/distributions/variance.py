"""Variances of the parts under a Gibbs distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import autograd
from ..oracle import GibbsOracle
from ..parts import (
    Parts,
    as_tuple,
    batch_size,
    differentiate,
    enable_autograd,
    inner_product,
    map_parts,
    pack_like,
    total_inner_product,
)
from ..smoothing import log_partition_function
from ..solvers.perturbation import repeat_instances

__all__ = ["variances"]

_MAX_ELEMENTS = 2**22  # in one oracle call


def variances(oracle: GibbsOracle, theta: Parts) -> Parts:
    """Return the diagonal of Cov[Y] for θ (B | 1, *event), shaped like a structure, (B, *event); differentiable in θ.

    Each part takes one Hessian-vector product of log Z. An oracle call computes many products on copies of the batch.
    """
    shapes, size = [t.shape[1:] for t in as_tuple(theta)], batch_size(theta)
    counts = [shape.numel() for shape in shapes]
    parts = torch.arange(sum(counts), device=as_tuple(theta)[0].device)
    step = max(_MAX_ELEMENTS // max(size * len(parts), 1), 1)
    found = torch.cat(
        [
            _variance_along(
                oracle, theta, (direction_chunk[:, None] == parts).to(as_tuple(theta)[0]).split(counts, 1), size
            )
            for direction_chunk in parts.split(step)
        ]
    )
    diagonals = zip(found.clamp(min=0).split(counts), shapes, strict=True)
    return pack_like([v.T.reshape(size, *shape) for v, shape in diagonals], theta)


def _variance_along(oracle: GibbsOracle, theta: Parts, directions: tuple[Tensor, ...], size: int) -> Tensor:
    """Return vᵀ Cov[Y] v for each direction v, (n, B)."""
    n, is_recorded = len(directions[0]), torch.is_grad_enabled() and any(t.requires_grad for t in as_tuple(theta))
    copies = repeat_instances(theta, n)
    v = map_parts(lambda t, d: d.repeat_interleave(size, 0).view_as(t), copies, directions)
    with enable_autograd():
        leaves = map_parts(lambda t: t if t.requires_grad and is_recorded else t.detach().requires_grad_(), copies)
        mean = autograd.gradient(log_partition_function(oracle.repeat(n)), leaves)
        total = total_inner_product(as_tuple(mean), as_tuple(v))
        products = differentiate(total, as_tuple(leaves), create_graph=is_recorded)
    return inner_product(pack_like(products, theta), v).view(n, size)
