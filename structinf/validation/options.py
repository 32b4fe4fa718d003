"""Checks of options and arguments other than instance data."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..compile.functorch import check_not_captured
from ..compile.torch_private import is_functorch_wrapped_tensor
from ..errors import InvalidInputError
from .tensors import check_floating

__all__ = [
    "check_choice",
    "check_count",
    "check_flag",
    "check_fraction",
    "check_generator",
    "check_in_range",
    "check_k",
    "check_natural",
    "check_nonnegative",
    "check_not_too_large_integer",
    "check_positive",
    "check_ratio",
    "check_scale",
    "check_size",
    "check_step",
    "number_of_step",
]


def check_count(n: int) -> None:
    """Raise InvalidInputError unless the number of samples ``n`` is an integer of at least 0."""
    check_natural("n, the number of samples,", n, 0)
    check_not_too_large_integer("n, the number of samples,", n)


def check_flag(name: str, value: bool | None, *, allow_none: bool = False) -> None:
    """Raise InvalidInputError unless the option called ``name`` is True or False, or None if ``allow_none``."""
    if not (isinstance(value, bool) or (allow_none and value is None)):
        raise InvalidInputError(f"{name} must be True{', False or None' if allow_none else ' or False'}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...], other: str = "") -> None:
    """Raise InvalidInputError unless ``value`` is one of ``choices``. ``other`` describes other accepted values."""
    if not (isinstance(value, str) and value in choices):
        *most, last = [f'"{choice}"' for choice in choices] + ([other] if other else [])
        raise InvalidInputError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a number of at least 0 and below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidInputError(f"{name} must be a number of at least 0 and below 1, got {value!r}")


def check_generator(generator: Any) -> None:
    """Raise TypeError unless ``generator`` is a torch.Generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")


def check_natural(name: str, value: int, least: int = 1) -> None:
    """Raise InvalidInputError unless the option called ``name`` is an integer of at least 1, or ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_nonnegative(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInputError(f"{name} must be a number of at least 0, got {value!r}")


_MARGIN = 2.0**20
_RANGES = {
    dtype: (torch.finfo(dtype).tiny * _MARGIN, torch.finfo(dtype).max / _MARGIN)
    for dtype in (torch.float32, torch.float64)
}
"""The factors and divisors accepted for each dtype of scores: products with numbers up to a million do not overflow."""


def check_in_range(name: str, value: float, dtype: torch.dtype, remedy: str = ", or pass theta in float64") -> None:
    """Raise InvalidInputError unless scores of ``dtype`` can be multiplied and divided by the option called ``name``.

    Parameters
    ----------
    name : str
        The name of the option.
    value : float
        The option, above 0.
    dtype : torch.dtype
        The dtype of computations: float32 or float64. Half precision is cast to float32.
    remedy : str
        A remedy other than another value, as a clause, if ``dtype`` is not float64.
    """
    low, high = _RANGES.get(dtype, (0.0, math.inf))
    if not low <= value <= high:
        raise InvalidInputError(
            f"{name} {value!r} is too {'small' if value < low else 'large'} for computations in {dtype}: {name} must "
            f"lie between {low:.1e} and {high:.1e}; change {name}{'' if dtype == torch.float64 else remedy}"
        )


def check_positive(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a finite number above 0."""
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not 0 < value < float("inf"):
        raise InvalidInputError(f"{name} must be a finite number above 0, got {value!r}")
    check_not_too_large_integer(name, value)


def check_scale(name: str, value: float | Tensor) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a finite number above 0, or a tensor with one."""
    if not isinstance(value, Tensor):
        check_positive(name, value)
        return
    check_floating(name, value, "a number or a tensor")
    if value.numel() != 1:
        raise InvalidInputError(
            f"{name} must be one number, got a tensor of shape {tuple(value.shape)}; for numbers of instances, divide "
            "the scores of each instance instead"
        )
    # Under torch.func the number is hidden, and checked when it is used.
    if not is_functorch_wrapped_tensor(value):
        check_positive(name, value.item())


def check_step(name: str, value: float | Tensor, method: str) -> None:
    """Raise InvalidInputError as :func:`check_scale`, or for a tensor that requires a gradient.

    Parameters
    ----------
    name : str
        The name of the option.
    value : float or Tensor
        The step of a surrogate gradient.
    method : str
        The name of the surrogate, for messages.
    """
    check_scale(name, value)
    if isinstance(value, Tensor) and value.requires_grad:
        raise InvalidInputError(
            f"{name}: {method} has no gradient in the step; pass {name}=tensor.detach(), or an nn.Parameter with "
            "requires_grad=False"
        )


def number_of_step(name: str, value: float | Tensor) -> float:
    """Return the number that the option called ``name`` holds now; InvalidInputError unless it is above 0."""
    if not isinstance(value, Tensor):
        return value
    check_not_captured(name, value)
    number = value.item()
    check_positive(name, number)
    return number


def check_not_too_large_integer(name: str, value: float) -> None:
    """Raise InvalidInputError for a Python integer of 2^63 or more, which torch does not accept."""
    if isinstance(value, int) and value >= 2**63:
        raise InvalidInputError(f"{name} must be below 2^63 as an integer, got {value!r}")


def check_k(k: int) -> None:
    """Raise InvalidInputError unless the number of structures ``k`` is an integer of at least 1.

    Parameters
    ----------
    k : int
        The number of structures.
    """
    check_natural("k", k)
    check_not_too_large_integer("k", k)


def check_ratio(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a number between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInputError(f"{name} must be a number between 0 and 1, got {value!r}")


def check_size(name: str, size: Sequence[int]) -> torch.Size:
    """Return ``size`` as a torch.Size; raise TypeError or InvalidInputError unless it is a sequence of naturals.

    Parameters
    ----------
    name : str
        The name of the argument, for messages.
    size : sequence of int
        The argument.
    """
    try:
        found = tuple(operator.index(n) for n in size)
        is_valid = not any(isinstance(n, bool) for n in size)
    except TypeError:
        found, is_valid = (), False
    if not is_valid:
        hint = f"; write {name}=({size},)" if isinstance(size, int) and not isinstance(size, bool) else ""
        raise TypeError(f"{name} must be a sequence of integers, such as (5,), got {size!r}{hint}")
    if min(found, default=0) < 0:
        raise InvalidInputError(f"{name} must hold integers of at least 0, got {size!r}")
    return torch.Size(found)
