"""Checks of scores and parameters, and application of a map along any dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from ..autograd.simplex_map import Parameter, SimplexMap, apply_simplex_map
from ..autograd.vmap_check import check_under_vmap
from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor, upcast_half
from ..validation import check_floating, check_real

__all__ = [
    "RowParameter",
    "apply_along_dim",
    "check_parameter",
    "check_scores",
    "move_to_last",
    "per_row",
    "read_parameter",
    "restore_layout",
    "value_range",
]

RowParameter: TypeAlias = float | Tensor | Sequence[Any] | np.ndarray
"""A number for all rows, or a number for each row: a tensor, or nested lists of numbers."""


def apply_along_dim(
    simplex_map: SimplexMap, x: Tensor, dim: int, parameter: Parameter, *, in_float64: bool = False
) -> Tensor:
    """Apply ``simplex_map`` to the scores ``x`` along ``dim``, and return the result in the shape and dtype of ``x``.

    Parameters
    ----------
    simplex_map : SimplexMap
        A map along the last dimension.
    x : Tensor
        Floating-point scores of any shape.
    dim : int
        The dimension of the map.
    parameter : float or Tensor
        The parameter of the map, from :func:`per_row`.
    in_float64 : bool
        Whether to compute in float64. Otherwise, half precision is computed in float32, and other dtypes are kept.
    """
    check_scores(x, dim)
    scores = move_to_last(x.double() if in_float64 else upcast_half(x), dim)
    if in_float64 and isinstance(parameter, Tensor):
        parameter = parameter.double()
    return restore_layout(apply_simplex_map(simplex_map, scores, parameter), x, dim)


def move_to_last(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` with ``dim`` as the last dimension. A tensor without dimensions becomes a row of size 1."""
    if x.ndim == 0:
        return x.view(1)
    return x if dim in (-1, x.ndim - 1) else x.movedim(dim, -1)


def restore_layout(result: Tensor, x: Tensor, dim: int) -> Tensor:
    """Undo :func:`move_to_last`: return ``result`` in the shape and dtype of ``x``, contiguous like torch.softmax."""
    if x.ndim == 0:
        result = result.squeeze(0)
    elif dim not in (-1, x.ndim - 1):
        result = result.movedim(-1, dim).contiguous()
    return result if result.dtype == x.dtype else result.to(x.dtype)


def check_scores(x: Tensor, dim: int) -> None:
    """Raise TypeError unless ``x`` is a floating-point tensor, and InvalidInputError if ``x`` has no ``dim``."""
    check_floating("x", x, "a tensor of scores")
    rank = max(x.ndim, 1)  # a tensor without dimensions counts as a row of size 1, as in torch.softmax
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        raise InvalidInputError(f"dim must be a dimension of x, which has shape {tuple(x.shape)}, got {dim!r}")


def read_parameter(name: str, value: RowParameter) -> Parameter:
    """Return nested lists, tuples and arrays of numbers as a float64 tensor on the CPU, and other values unchanged.

    Parameters
    ----------
    name : str
        The name of the parameter in error messages.
    value : RowParameter
        The parameter.
    """
    if isinstance(value, np.number):
        return value.item()
    if not isinstance(value, list | tuple | np.ndarray):
        return value  # type: ignore[return-value]  # check_parameter refuses other sequences
    if _holds_tensors(value):
        raise InvalidInputError(
            f"{name} must hold numbers, got tensors in a {type(value).__name__}; pass one tensor, such as "
            "torch.stack of them"
        )
    try:
        numbers = np.asarray(value)
    except ValueError:
        numbers = np.array(None)
    if numbers.dtype.kind not in "fiu":
        raise InvalidInputError(f"{name} must be numbers in nested lists of equal lengths, got {value!r}")
    return as_tensor(numbers.astype(np.float64))


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensors, value)))


def check_parameter(name: str, value: Parameter, least: float, *, is_exclusive: bool = False) -> None:
    """Raise InvalidInputError unless all of ``value`` is finite and ≥ ``least``, or > ``least`` if ``is_exclusive``."""
    if isinstance(value, Tensor):
        check_real(name, value)
        low, high = value_range(value) if value.numel() else (least + 1.0, least + 1.0)
        is_valid, received = least <= low and high < math.inf, f"a tensor from {low:g} to {high:g}"
        is_valid = is_valid and not (is_exclusive and low == least)
    else:
        is_valid = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf
        is_valid, received = is_valid and not (is_exclusive and value == least), repr(value)
    if not is_valid:
        bound = f"above {least:g}" if is_exclusive else f"of at least {least:g}"
        raise InvalidInputError(f"{name} must be a finite number {bound}, or a tensor of such numbers, got {received}")


def value_range(t: Tensor) -> tuple[float, float]:
    """Return the smallest and largest number of ``t``, NaN if ``t`` has NaN; under vmap, of the whole hidden batch."""
    found = 0.0, 0.0

    def inspect(numbers: Tensor) -> None:
        nonlocal found
        low, high = numbers.aminmax()
        found = low.item(), high.item()

    check_under_vmap(t.detach(), inspect)
    return found


def per_row(name: str, value: Parameter, x: Tensor, dim: int) -> Parameter:
    """Return the parameter ``value`` for the rows of ``x``: a number, or a tensor with a last dimension of 1.

    Parameters
    ----------
    name : str
        The name of the parameter in error messages.
    value : float or Tensor
        A number, a scalar tensor, or a tensor that broadcasts to the shape of ``x`` with size 1 at ``dim``.
    x : Tensor
        The scores.
    dim : int
        The dimension of the map.
    """
    if not isinstance(value, Tensor):
        return float(value)
    check_scores(x, dim)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a number or a tensor in floating point, got a tensor of {value.dtype}")
    shape = list(x.shape) or [1]
    shape[dim] = 1
    try:
        rows = value.to(x.device).expand(shape)
    except RuntimeError:
        raise InvalidInputError(
            f"{name} must be one number, or a tensor that broadcasts to shape {tuple(shape)} with one number for each "
            f"row of x along dim {dim}; got shape {tuple(value.shape)}"
        ) from None
    return move_to_last(rows, dim)
