"""Points of the simplex whose numbers are in groups of equals, and products with their Jacobians, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import to_numpy, zeros
from ..threads import parallel_rows

__all__ = ["differentiable_group_means", "fusedmax", "group_means", "oscarmax"]

# Elementary operations for each number.
PULLING, SORTING, AVERAGING = 12, 24, 4


def fusedmax(x: Float[Tensor, "*rows n"], weight: float) -> Float[Tensor, "*rows n"]:
    """The loops of :mod:`.simplex_fused`, in float32 or float64; from another device x is copied once, and p back."""
    from .fused import fusedmax as kernel

    return _by_rows(kernel, PULLING, (x,), weight)


def oscarmax(x: Float[Tensor, "*rows n"], weight: float) -> Float[Tensor, "*rows n"]:
    """The loops of :mod:`.simplex_oscar`; otherwise as :func:`fusedmax`."""
    from .oscar import oscarmax as kernel

    return _by_rows(kernel, SORTING, (x,), weight)


def group_means(p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], is_chain: bool) -> Float[Tensor, "*rows n"]:
    """The product of ``g`` with the Jacobian of :func:`fusedmax` or :func:`oscarmax`, from the point alone.

    Parameters
    ----------
    is_chain : bool
        Whether only neighbours may be in a group, as in the former.
    """
    from .oscar import group_means as kernel

    return _by_rows(kernel, AVERAGING if is_chain else SORTING, (p, g), is_chain)


def _by_rows(kernel: Callable[..., None], cost: int, tensors: tuple[Tensor, ...], option: Any) -> Tensor:
    """What ``kernel`` writes for the rows of ``tensors``."""
    x = tensors[0]
    out = zeros(*x.shape, dtype=x.dtype)
    arrays = [array.ravel() for array in to_numpy(*tensors)]
    rows, size = x.shape[:-1].numel(), x.shape[-1]
    parallel_rows(kernel, rows, *arrays, size, option, out.numpy().ravel(), work=cost * x.numel())
    return out.to(x.device)


def differentiable_group_means(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], is_chain: bool
) -> Float[Tensor, "*rows n"]:
    """The same in torch operations that autograd can follow, on any device."""
    support = (p > 0) | p.isnan()
    ordered, order = (p, None) if is_chain else p.sort(-1)
    begins = torch.ones_like(support)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    group = begins.cumsum(-1) - 1
    if order is not None:
        group = torch.empty_like(group).scatter(-1, order, group)
    v = torch.where(support, g, 0.0)
    size = torch.zeros_like(v).scatter_add(-1, group, torch.ones_like(v))
    mean = (torch.zeros_like(v).scatter_add(-1, group, v) / size.clamp(min=1)).gather(-1, group)
    all_mean = (v + 0 * p).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(support, mean - all_mean, 0.0)
