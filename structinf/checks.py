"""What is checked in more than one place: options, instance data, and whether there is a structure at all."""

from __future__ import annotations

import math
from collections.abc import Sized
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import InfeasibleError, InvalidInputError

if TYPE_CHECKING:
    from .oracle import Oracle

__all__ = [
    "MOST_ENUMERATED",
    "bound_lengths",
    "check_choice",
    "check_count",
    "check_enumerable",
    "check_feasible",
    "check_flag",
    "check_floating",
    "check_fraction",
    "check_generator",
    "check_instances",
    "check_k",
    "check_lengths",
    "check_natural",
    "check_positive",
]

MOST_ENUMERATED = 1_000_000


def check_feasible(value: Tensor, what: str) -> None:
    """Raise InfeasibleError for the first instance whose best or summed score is −inf.

    Parameters
    ----------
    value : (B,) Tensor
        Value of each instance, −inf where no structure of finite score exists; or whether one does, as bool.
    what : str
        What does not exist, in the singular: ``"assignment"``.
    """
    infeasible = ~value if value.dtype is torch.bool else torch.isneginf(value)
    if bool(infeasible.any()):
        index = int(infeasible.nonzero()[0, 0])
        raise InfeasibleError(
            f"no {what} of finite score exists for batch index {index}: too many of its parts are −inf; "
            "allow more parts or drop the instance",
            index,
        )


def check_lengths(lengths: Tensor, low: int, high: int, padding: str) -> None:
    """Raise InvalidInputError unless ``low <= lengths <= high`` everywhere.

    ``padding`` names the dimension that the lengths count in: ``"T = 7 steps"``.
    """
    wrong = (lengths < low) | (lengths > high)
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"lengths must lie between {low} and {high} ({padding}), "
            f"got {lengths[index].tolist()} at batch index {index}"
        )


def bound_lengths(oracle: Oracle, batch: int, whole: int, padding: str, device: torch.device) -> Tensor:
    """The lengths bound to ``oracle``, or ``whole`` for each instance, (B,) int64; ``padding`` as in check_lengths.

    They are checked here too, as compiled loops would go where they say, whoever bound them; on the CPU, where those
    loops run. With ``batch`` 1, potentials are shared by all instances.
    """
    lengths = oracle.bound.get("lengths")
    if lengths is None:
        return torch.full((batch,), whole, device=device)
    check_instances("lengths", lengths, batch)
    if lengths.is_cpu:
        check_lengths(lengths, 1, whole, padding)
    return lengths


def check_instances(name: str, bound: Sized, batch: int, *, shared: bool = True) -> None:
    """Raise InvalidInputError unless what is ``bound`` as ``name`` is of ``batch`` instances.

    One set of potentials may be ``shared`` by any number of them.
    """
    if len(bound) != batch and not (shared and batch == 1):
        raise InvalidInputError(f"{name}: those of {len(bound)} instances are bound, but theta has {batch}")


def check_count(n: int) -> None:
    """Raise InvalidInputError unless ``n``, the number of samples asked for, is an integer of at least 0."""
    check_natural("n, the number of samples,", n, 0)


def check_flag(name: str, value: bool) -> None:
    """Raise InvalidInputError unless the option called ``name`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...], other: str = "") -> None:
    """Raise InvalidInputError unless the option ``value`` is one of ``choices``; ``other`` says what else it may be."""
    if not (isinstance(value, str) and value in choices):
        *most, last = [f'"{choice}"' for choice in choices] + ([other] if other else [])
        raise InvalidInputError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


def check_floating(name: str, value: Any, what: str = "a tensor") -> None:
    """Raise TypeError unless the argument called ``name`` is a tensor in floating point; ``what`` says what it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name}: {what} in floating point is needed, got {came}")


def check_fraction(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a number of at least 0 and below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidInputError(f"{name} must be a number of at least 0 and below 1, got {value!r}")


def check_generator(generator: Any) -> None:
    """Raise TypeError unless it is a torch.Generator, or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: a torch.Generator is needed, got {type(generator).__name__}")


def check_natural(name: str, value: int, least: int = 1) -> None:
    """Raise InvalidInputError unless the option called ``name`` is an integer of at least 1, or ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise InvalidInputError unless the option called ``name`` is a finite number above 0."""
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not 0 < value < float("inf"):
        raise InvalidInputError(f"{name} must be a finite number above 0, got {value!r}")


def check_k(k: int) -> None:
    """Raise InvalidInputError unless ``k``, the number of structures asked for, is an integer of at least 1."""
    check_natural("k", k)


def check_enumerable(count: int, name: str) -> None:
    """Raise InvalidInputError if there are more than a million structures; ``name`` is their plural, with sizes."""
    if count > MOST_ENUMERATED:
        number = count if count < 10**30 else f"about 10^{math.log10(count):.0f}"
        raise InvalidInputError(
            f"there are {number} {name}, too many to list (more than {MOST_ENUMERATED}); choose smaller sizes"
        )
