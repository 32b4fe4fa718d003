"""Fractional amounts of networks as integers, for the network simplex method."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from structinf.shapes import Bool, Float64

from ..kernels.flow.limits import UNLIMITED

__all__ = ["LARGEST", "Integers", "rows_of", "to_integers"]

LARGEST = 2**53
"""The largest amount; float64 represents all integers up to here exactly."""


def rows_of(*tables: np.ndarray | Tensor) -> int:
    """Return the number of rows of ``tables`` (1 | B, ...) together, 1 or B."""
    return np.broadcast_shapes(*((len(table),) for table in tables))[0]


class Integers(NamedTuple):
    """The numbers of networks as integers, in units of 2^−exponent; tables of 1 or B rows.

    Attributes
    ----------
    lower, capacities : (1 | B, E) int64 array
        The lower bound of each edge, and its capacity; ``UNLIMITED`` without a limit.
    supplies : (1 | B, N) int64 array
        The supply of each node, with a sum of exactly 0.
    slack : (1 | B,) int64 array
        The amount of the supplies that may be left.
    exponent : (1 | B,) int64 array
        0 for networks of integers.
    """

    lower: np.ndarray
    capacities: np.ndarray
    supplies: np.ndarray
    slack: np.ndarray
    exponent: np.ndarray


def to_integers(
    lower: np.ndarray, capacities: np.ndarray, supplies: np.ndarray, limits: np.ndarray, precision: float
) -> Integers:
    """Return the numbers of networks as integers.

    Fractional amounts become integers in units of the largest power of two for which no sum overflows. This conversion
    is exact for amounts within a factor of 2^−7 of their sum, and has an error of 2^−60 of the sum otherwise. Equal
    vertices then have equal numbers.

    Parameters
    ----------
    lower, capacities : (1 | B, E) float64 array
        The bounds of the edges.
    supplies : (1 | B, N) float64 array
        The supplies.
    limits : (1 | B, 1) int64 array
        How many groups of large fractional capacities are limits.
    precision : float
        The relative rounding error of fractional amounts.
    """
    rows = rows_of(lower, capacities, supplies, limits)
    tables = (lower, capacities, supplies, limits)
    lower, capacities, supplies, limits = (np.broadcast_to(t, (rows, t.shape[1])) for t in tables)
    size = np.abs(supplies).sum(1) + lower.sum(1)
    is_integral = _are_integers(lower, capacities, supplies)
    capacities = np.where(is_integral[:, None], capacities, _without_large(capacities, size, limits))
    finite = np.where(np.isinf(capacities), 0.0, capacities)
    is_integral |= _are_integers(lower, finite, supplies)
    exponent = np.where(is_integral, 0, 59 - np.frexp(size + 2 * finite.sum(1))[1]).astype(np.int64)
    exact = [np.ldexp(t, exponent[:, None]) for t in (lower, finite, supplies)]
    low, most, outflow = (np.rint(t).astype(np.int64) for t in exact)
    # Rounded supplies need not add up to 0. The node of the largest supply takes the difference.
    if outflow.shape[1]:
        outflow[np.arange(rows), np.abs(outflow).argmax(1)] -= outflow.sum(1)
    slack = np.where(is_integral, 0, np.rint(np.ldexp(64 * precision * size, exponent))).astype(np.int64)
    # Rounding moves each amount by half a unit at most. The capacities of a cut then miss its supply by at most this
    # number of units, half of which is left on each side.
    is_rounded = np.any([(t != np.rint(t)).any(1) for t in exact], 0)
    slack += is_rounded * 2 * (capacities.shape[1] + supplies.shape[1])
    return Integers(low, np.where(np.isinf(capacities), UNLIMITED, most), outflow, slack, exponent)


def _are_integers(lower: np.ndarray, capacities: np.ndarray, supplies: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Return which rows hold only integers of at most 2^53, or infinite capacities, with sums that do not overflow."""
    finite = np.where(np.isinf(capacities), 0.0, capacities)
    whole = np.concatenate([lower, finite, supplies], 1)
    size = np.abs(supplies).sum(1) + lower.sum(1)
    return (whole == np.rint(whole)).all(1) & (np.abs(whole) <= LARGEST).all(1) & (size < 2.0**60)


def _without_large(capacities: np.ndarray, size: np.ndarray, limits: np.ndarray) -> Float64[np.ndarray, "rows edges"]:
    """Return capacities (R, E), infinite from the first that is more than 1,024 times the sum of all smaller amounts.

    A vertex has on each edge at most the sum of the supplies, of the lower bounds and of the capacities that limit it.
    So an edge whose capacity is above the sum of all smaller amounts never limits a vertex, unless edges without limits
    form a cycle of positive score.

    Parameters
    ----------
    capacities : (R, E) float64 array
        The capacities.
    size : (R,) float64 array
        The sum of the magnitudes of the supplies, and of the lower bounds.
    limits : (R, 1) int64 array
        The number of such capacities to pass over, from the smallest on.
    """
    ordered = np.sort(capacities, axis=1)
    finite = np.where(np.isinf(ordered), 0.0, ordered)
    below = np.cumsum(np.column_stack([size, finite]), 1)[:, :-1]
    is_large = (ordered > 1024 * below) & (below > 0) & np.isfinite(ordered)
    is_large &= np.cumsum(is_large, 1) > limits
    least = np.where(is_large, ordered, np.inf).min(1, initial=np.inf, keepdims=True)
    return np.where(capacities >= least, np.inf, capacities)
