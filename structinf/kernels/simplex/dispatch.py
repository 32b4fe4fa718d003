"""Points of the simplex and products with their Jacobians on the CPU, by compiled loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import empty, to_numpy, zeros
from ..threads import parallel_rows

__all__ = ["capped", "entmax", "pull_back"]

# Elementary operations for each number, where all steps but the first see few of them and where they see many.
FEW, MANY = 4, 60


def entmax(x: Float[Tensor, "*rows n"], alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """α-entmax along the last dimension, in float32 or float64.

    Parameters
    ----------
    x : (..., n) Tensor
    alpha : float or (..., 1) Tensor
        Of at least 1, of the same leading dimensions.
    """
    from .entmax import entmax as kernel

    return _points(kernel, x, alpha, FEW if not isinstance(alpha, Tensor) and alpha in (1, 1.5, 2) else MANY)


def capped(x: Float[Tensor, "*rows n"], budget: float | Tensor) -> Float[Tensor, "*rows n"]:
    """The nearest point of the capped simplex, of sum ``budget``; as :func:`entmax`."""
    from .capped import nearest as kernel

    return _points(kernel, x, budget, MANY)


def _points(kernel: Callable[..., None], x: Tensor, parameter: float | Tensor, cost: int) -> Tensor:
    out = zeros(*x.shape, dtype=x.dtype)
    (scores,) = to_numpy(x)
    rows, size = x.shape[:-1].numel(), x.shape[-1]
    arrays: tuple[Any, ...] = scores.ravel(), size, _doubles(parameter), out.numpy().ravel()
    parallel_rows(kernel, rows, *arrays, work=cost * scores.size)
    return out


def pull_back(
    p: Float[Tensor, "*rows n"],
    g: Float[Tensor, "*rows n"],
    alpha: float | Tensor,
    *,
    is_capped: bool = False,
    with_parameter_grad: bool = False,
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows 1"] | None]:
    """The product of ``g`` with the Jacobian of :func:`entmax`, or of :func:`capped`, whose result was ``p``.

    And, ``with_parameter_grad``, of ``g`` with the derivative in α, or in the budget, in float64.
    """
    from .jacobian_products import pull_back as kernel

    out = zeros(*p.shape, dtype=p.dtype)
    points, cotangents = to_numpy(p, g)
    rows, size = p.shape[:-1].numel(), p.shape[-1]
    slopes = empty(*p.shape[:-1], 1, dtype=torch.float64) if with_parameter_grad else None
    flat = np.empty(0) if slopes is None else slopes.numpy().ravel()
    arrays: tuple[Any, ...] = points.ravel(), cotangents.ravel(), size, _doubles(alpha), is_capped
    parallel_rows(kernel, rows, *arrays, out.numpy().ravel(), flat, work=FEW * points.size)
    return out, slopes


def _doubles(parameter: float | Tensor) -> Any:
    """A number for all rows, or one for each, as an array."""
    if isinstance(parameter, Tensor):
        return to_numpy(parameter.double())[0].ravel()
    return np.full(1, float(parameter))
