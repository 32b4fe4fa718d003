"""Checks of the weights of knapsacks."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from structinf.errors import InvalidInputError

from .distinct_rows import number_of_dimensions

__all__ = ["LARGEST_SUM", "check_weights"]

LARGEST_SUM = 2**53
"""The largest sum of weights. Sums of indices and weights stay within 64 bits."""


def check_weights(weights: Any) -> tuple[Any, ...]:
    """Return weights as a tuple of integers, or as a tuple of such tuples; InvalidInputError for others."""
    if number_of_dimensions(weights) == 2:
        matrix = tuple(_check_row(row) for row in weights)
        if len({len(row) for row in matrix}) > 1:
            raise InvalidInputError(f"weights must have the same number of items in each row, got {weights!r}")
        return matrix
    return _check_row(weights)


def _check_row(weights: Any) -> tuple[int, ...]:
    shape = getattr(weights, "shape", None)
    numbers: Any = weights.tolist() if hasattr(weights, "tolist") else weights
    is_sequence = isinstance(numbers, Sequence) and not isinstance(numbers, str | bytes)
    if not is_sequence or (shape is not None and len(shape) != 1):
        received = repr(weights) if shape is None else f"shape {tuple(shape)}"
        raise InvalidInputError(
            f"weights must be a sequence of one integer for each item, got {received}; for several capacities, pass a "
            "matrix with a row for each"
        )
    for i, weight in enumerate(numbers):
        if isinstance(weight, bool) or not isinstance(weight, Integral) or int(weight) < 0:
            remedy = ""
            if isinstance(weight, float) and weight.is_integer():
                remedy = "; pass numbers of an integer type"
            elif isinstance(weight, float):
                remedy = "; scale and round fractional weights, and scale the capacity alike"
            raise InvalidInputError(f"weights must be integers of at least 0, got {weight!r} for item {i}{remedy}")
    total = sum(map(int, numbers))
    if total > LARGEST_SUM:
        raise InvalidInputError(
            f"weights must have a sum of at most 2^53, got {total}; divide all weights and the capacity by a common "
            "number and round"
        )
    return tuple(int(weight) for weight in numbers)
