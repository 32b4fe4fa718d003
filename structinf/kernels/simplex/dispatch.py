"""Maps to the simplex, their vector-Jacobian products and conjugates of entropies, without autograd.

CPU tensors are processed by compiled loops over rows. Tensors on CUDA devices are processed by Triton kernels
(`triton_maps`, `triton_vjp`, `triton_conjugate`, `triton_capped_simplex`), if triton is available, and tensors on other
devices by torch operations. Fusedmax and oscarmax have compiled loops only: their scores are copied to the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import empty, to_numpy, zeros
from ..gpu import uses_triton
from ..threads import parallel_rows
from . import torch_backend

__all__ = [
    "capped_simplex",
    "entmax",
    "fusedmax",
    "group_means",
    "has_kernels",
    "oscarmax",
    "tsallis_conjugate",
    "vjp",
]

# Elementary operations per number. Most maps read each number once, and then process only the support.
READ, AVERAGE, FUSE, POWER, SORT, ITERATE = 3, 4, 12, 20, 24, 60


def has_kernels(x: Tensor) -> bool:
    """Return whether compiled loops or Triton kernels process ``x``, and not torch operations."""
    return x.is_cpu or uses_triton(x)


def entmax(x: Float[Tensor, "*rows n"], alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return α-entmax along the last dimension, in float32 or float64.

    Parameters
    ----------
    x : (..., n) Tensor
        The scores.
    alpha : float or (..., 1) Tensor
        At least 1.
    """
    if uses_triton(x):
        from . import triton_maps

        return triton_maps.entmax(x, alpha)
    if not x.is_cpu:
        return torch_backend.entmax(x, alpha)
    from . import entmax as kernels

    alphas = _as_doubles(alpha)
    least, largest = (alphas.min(), alphas.max()) if alphas.size else (1.0, 1.0)
    if least == largest and least in (1.5, 2):
        return _map_rows(kernels.sparsemax if least == 2 else kernels.entmax15, (x,), cost=AVERAGE)
    kernel = kernels.entmax  # for every α, which takes three times as long to compile
    if least > 2:
        kernel = kernels.entmax_above_2
    elif least > 1 and largest < 2 and not (alphas == 1.5).any():
        kernel = kernels.entmax_below_2
    return _map_rows(kernel, (x,), alphas, cost=ITERATE)


def capped_simplex(x: Float[Tensor, "*rows n"], k: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return the projection onto the capped simplex with sum ``k``, a number or (..., 1), in float32 or float64."""
    if uses_triton(x):
        from . import triton_capped_simplex

        return triton_capped_simplex.capped_simplex(x, k)
    if not x.is_cpu:
        return torch_backend.capped_simplex(x, k)
    from .capped_simplex import project as kernel

    return _map_rows(kernel, (x,), _as_doubles(k), cost=ITERATE)


def vjp(
    p: Float[Tensor, "*rows n"],
    g: Float[Tensor, "*rows n"],
    alpha: float | Tensor,
    *,
    is_capped: bool = False,
    with_parameter_grad: bool = False,
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows 1"] | None]:
    """Return the products of the cotangent ``g`` with the Jacobians of :func:`entmax`, or :func:`capped_simplex`.

    The first Jacobian is with respect to the scores, the second with respect to α or k. The second product is None
    unless ``with_parameter_grad``. ``p`` is the result of the map, for which :func:`has_kernels` is true.
    """
    if uses_triton(p):
        from . import triton_vjp

        if is_capped:
            return triton_vjp.capped_simplex_vjp(p, g, with_parameter_grad)
        return triton_vjp.entmax_vjp(p, g, alpha, with_parameter_grad)
    from . import vjp as kernels

    in_parameter = empty(*p.shape[:-1], 1, dtype=torch.float64) if with_parameter_grad else None
    flat = np.empty(0) if in_parameter is None else in_parameter.numpy().ravel()
    if is_capped or (not isinstance(alpha, Tensor) and alpha == 2 and not with_parameter_grad):
        product = _map_rows(kernels.sparsemax_vjp, (p, g), is_capped, flat, cost=AVERAGE)
    elif isinstance(alpha, Tensor) or with_parameter_grad:
        product = _map_rows(kernels.vjp_with_alpha, (p, g), _as_doubles(alpha), flat, cost=AVERAGE)
    elif alpha == 1:
        product = _map_rows(kernels.softmax_vjp, (p, g), cost=AVERAGE)
    else:
        kernel = kernels.vjp if alpha < 2 else kernels.vjp_above_2
        product = _map_rows(kernel, (p, g), None if alpha == 1.5 else _as_doubles(alpha), cost=AVERAGE)
    return product, in_parameter


def fusedmax(x: Float[Tensor, "*rows n"], weight: float) -> Float[Tensor, "*rows n"]:
    """Return fusedmax in float32 or float64. Scores on another device are copied to the CPU, and the result back."""
    from .fusedmax import fusedmax as kernel

    return _map_rows(kernel, (x,), weight, cost=FUSE)


def oscarmax(x: Float[Tensor, "*rows n"], weight: float) -> Float[Tensor, "*rows n"]:
    """Return oscarmax in float32 or float64. Scores on another device are copied to the CPU, and the result back."""
    from .oscarmax import oscarmax as kernel

    return _map_rows(kernel, (x,), weight, cost=SORT)


def group_means(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], is_contiguous: bool
) -> Float[Tensor, "*rows n"]:
    """Return the product of the cotangent ``g`` with the Jacobian of :func:`fusedmax` or :func:`oscarmax` at ``p``.

    Parameters
    ----------
    is_contiguous : bool
        Whether each group is a run of neighbours, as in fusedmax.
    """
    if is_contiguous:
        from .fusedmax import run_means

        return _map_rows(run_means, (p, g), cost=AVERAGE)
    from .oscarmax import group_means as kernel

    return _map_rows(kernel, (p, g), cost=SORT)


def tsallis_conjugate(
    x: Float[Tensor, "*rows n"],
    p: Float[Tensor, "*rows n"],
    origin: Float[Tensor, "*rows"],
    alpha: float,
) -> Float[Tensor, "*rows"]:
    """Return ⟨p, x − origin⟩ + (1 − Σ p^α) / (α (α − 1)) in float64, for the maximizer p in the dtype of x.

    Tensors for which :func:`has_kernels` is false are not accepted.
    """
    if uses_triton(x):
        from . import triton_conjugate

        return triton_conjugate.tsallis_conjugate(x, p, origin, alpha)
    from .tsallis_conjugate import tsallis_conjugate as kernel

    out = empty(*origin.shape, dtype=torch.float64)
    scores, points, origins = (array.ravel() for array in to_numpy(x, p, origin))
    cost = READ if alpha in (1.5, 2) else POWER
    arrays: tuple[Any, ...] = scores, points, origins, x.shape[-1], float(alpha), out.numpy().ravel()
    parallel_rows(kernel, origin.numel(), *arrays, work=cost * x.numel())
    return out


def _map_rows(kernel: Callable[..., None], tensors: tuple[Tensor, ...], *options: Any, cost: int) -> Tensor:
    """Return the result of ``kernel`` for the rows of ``tensors`` (..., n), in the first tensor's dtype and device."""
    first = tensors[0]
    out = zeros(*first.shape, dtype=first.dtype)
    arrays = [array.ravel() for array in to_numpy(*tensors)]
    rows, size = first.shape[:-1].numel(), first.shape[-1]
    parallel_rows(kernel, rows, *arrays, size, *options, out.numpy().ravel(), work=cost * first.numel())
    return out.to(first.device)


def _as_doubles(parameter: float | Tensor) -> Any:
    """Return a float64 array with one number for all rows, or one number per row."""
    if isinstance(parameter, Tensor):
        return to_numpy(parameter.double())[0].ravel()
    return np.full(1, float(parameter))
