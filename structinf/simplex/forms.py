"""What all maps to the simplex take and give back: scores along any dimension, of any rank and precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from ..autograd.simplex import SimplexMap, apply_simplex_map
from ..autograd.value_check import check_under_vmap
from ..errors import InvalidInputError
from ..kernels.arrays import upcast_half
from ..validation import check_floating

__all__ = [
    "AlongDim",
    "apply_along",
    "check_parameter",
    "check_scores",
    "extent",
    "restored",
    "row_parameter",
    "to_last",
]


class AlongDim(nn.Module):
    """A map along ``dim`` as a module in the place of torch.nn.Softmax, with the options that the map takes before it.

    Parameters
    ----------
    dim : int
    **options
        Of the map, by name.
    """

    map: ClassVar[Callable[..., Tensor]]

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__()
        self.dim, self._options = dim, tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """The result for scores x, of their shape."""
        return type(self).map(x, *(getattr(self, name) for name in self._options), self.dim)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self._options, "dim"))


def apply_along(function: SimplexMap, x: Tensor, dim: int, parameter: Tensor | None = None) -> Tensor:
    """``function`` of the scores ``x`` along ``dim``, of their shape and dtype; half precision is computed in float32.

    Parameters
    ----------
    parameter : Tensor, optional
        As :func:`row_parameter` gives it.
    """
    check_scores(x, dim)
    return restored(apply_simplex_map(function, to_last(upcast_half(x), dim), parameter), x, dim)


def to_last(x: Tensor, dim: int) -> Tensor:
    """``x`` with ``dim`` as its last dimension; a number has one of size 1."""
    if x.ndim == 0:
        return x.view(1)
    return x if dim in (-1, x.ndim - 1) else x.movedim(dim, -1)


def restored(found: Tensor, x: Tensor, dim: int) -> Tensor:
    """``found``, as :func:`to_last` would give it, in the shape and dtype of ``x``, contiguous as torch's softmax."""
    if x.ndim == 0:
        found = found.squeeze(0)
    elif dim not in (-1, x.ndim - 1):
        found = found.movedim(-1, dim).contiguous()
    return found if found.dtype == x.dtype else found.to(x.dtype)


def check_scores(x: Tensor, dim: int) -> None:
    """Raise TypeError unless ``x`` is a tensor in floating point, InvalidInputError unless it has a ``dim``."""
    check_floating("x, the scores", x)
    rank = max(x.ndim, 1)  # a number counts as a row of one, as for torch.softmax
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        raise InvalidInputError(f"dim must be a dimension of x, which has shape {tuple(x.shape)}, got {dim!r}")


def check_parameter(name: str, value: float | Tensor, least: float, *, is_open: bool = False) -> None:
    """Raise InvalidInputError unless all of ``value`` is finite and at least ``least``, or above it if ``is_open``."""
    if isinstance(value, Tensor):
        low, high = extent(value) if value.numel() else (least + 1.0, least + 1.0)
        is_right, received = least <= low and high < math.inf, f"a tensor from {low:g} to {high:g}"
        is_right = is_right and not (is_open and low == least)
    else:
        is_right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf
        is_right, received = is_right and not (is_open and value == least), repr(value)
    if not is_right:
        bound = f"above {least:g}" if is_open else f"of at least {least:g}"
        raise InvalidInputError(f"{name} must be a finite number {bound}, or a tensor of such numbers, got {received}")


def extent(value: Tensor) -> tuple[float, float]:
    """The least and the largest of numbers, NaN if one is; of all that vmap is to go through, within it."""
    found = 0.0, 0.0

    def look(numbers: Tensor) -> None:
        nonlocal found
        low, high = numbers.aminmax()
        found = low.item(), high.item()

    check_under_vmap(value.detach(), look)
    return found


def row_parameter(name: str, value: Tensor, x: Tensor, dim: int) -> Tensor:
    """``value``, one number for all rows of ``x`` or any that broadcast to one for each, with ``dim`` last.

    Parameters
    ----------
    value : Tensor
        Of no dimension, or of a shape that broadcasts to that of ``x`` with 1 at ``dim``.
    """
    check_scores(x, dim)
    if not value.is_floating_point():
        raise TypeError(f"{name}: a number or a tensor in floating point is needed, got a tensor of {value.dtype}")
    shape = list(x.shape) or [1]
    shape[dim] = 1
    try:
        rows = value.to(x.device).expand(shape)
    except RuntimeError:
        raise InvalidInputError(
            f"{name}: one number, or a tensor that broadcasts to shape {tuple(shape)}, which is one for each row of x "
            f"along dim {dim}, is needed; got shape {tuple(value.shape)}"
        ) from None
    return to_last(rows, dim)
