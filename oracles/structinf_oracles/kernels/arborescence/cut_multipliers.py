"""Projections onto trees with a fixed list of cuts, by Newton's method, compiled. Importing this module imports numba.

The problem is max ⟨θ, x⟩ − ½ ‖x‖² over x ≥ 0, Σ_h x[h, m] = 1 for each word m, and x(δ⁻(S)) ≥ 1 for each set S of
words in the list, where x(δ⁻(S)) is the sum of x over the arcs that enter S. With a multiplier λ_S ≥ 0 for each set,
the dual function is

    D(λ) = max_x ⟨θ, x⟩ − ½ ‖x‖² + Σ_S λ_S (x(δ⁻(S)) − 1).

The heads of each word are independent in this maximum: x[:, m] is the projection onto the simplex of θ[:, m] plus the
multipliers of the arcs. Up to a constant, θ[h, m] decreases by λ_S if S contains h and m. D is convex and piecewise
quadratic, with gradient x(δ⁻(S)) − 1. Each step minimizes the quadratic of the current piece (L. Qi & J. Sun, A
nonsmooth version of Newton's method, Mathematical Programming 58, 1993) and searches along the line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["Cuts", "Point", "Program", "minimize_dual", "project_onto_face"]

_LEAST_CURVATURE = 1e-12
_UNIT = 2e-15


class Cuts(NamedTuple):
    """The sets of words, of which the first ``count`` are in use; ``count`` is an argument of all functions."""

    members: np.ndarray  # (capacity, n + 1): 1 for the words of each set; column 0, the root, is 0
    multipliers: np.ndarray  # (capacity,)
    trial: np.ndarray  # (capacity,): other multipliers


class Point(NamedTuple):
    """A point x, by word and head."""

    mean: np.ndarray  # (n, n + 1)
    thresholds: np.ndarray  # (n,): x[i, h] is the part of word i's score above its threshold
    heads: np.ndarray  # (n, n + 1) int64: the heads h with x[i, h] > 0
    sizes: np.ndarray  # (n,) int64: their number


class Program(NamedTuple):
    """Memory of Newton's method."""

    slopes: np.ndarray  # (capacity,): x(δ⁻(S)) − 1
    trial_slopes: np.ndarray  # (capacity,)
    direction: np.ndarray  # (capacity,)
    curvature: np.ndarray  # (capacity, capacity): the Hessian of D, then its Cholesky factor
    inside: np.ndarray  # (capacity,): number of a word's heads inside each set that contains the word
    holders: np.ndarray  # (capacity,) int64: these sets
    free: np.ndarray  # (capacity,) int64: the sets whose multipliers change


@jit
def _project_heads(scores, n, members, multipliers, count, point):
    """Set ``point`` to the maximum of D for the given multipliers. Its thresholds are starting values."""
    for i in range(n):
        x = point.mean[i]
        for h in range(n + 1):
            x[h] = scores[i, h]
        for k in range(count):
            if members[k, i + 1] > 0 and multipliers[k] != 0:
                for h in range(n + 1):
                    x[h] -= multipliers[k] * members[k, h]
        # Newton's method for Σ_h max(x[h] − t, 0) = 1. After one step t is too low or exact. Then t only rises, so
        # more passes can only be due to rounding.
        t, before = point.thresholds[i], -1.0
        for _ in range(n + 4):
            total, size = 0.0, 0.0
            for h in range(n + 1):
                above = x[h] - t
                total += above if above > 0 else 0.0
                size += 1.0 if above > 0 else 0.0
            if size == before:
                break
            if size > 0:
                t += (total - 1.0) / size
                before = size
            else:
                top = -np.inf
                for h in range(n + 1):
                    top = x[h] if x[h] > top else top
                t = top - 1.0
        point.thresholds[i] = t
        for h in range(n + 1):
            above = x[h] - t
            x[h] = above if above > 0 else 0.0
        used = 0
        for h in range(n + 1):  # without branches, which the processor would mispredict
            point.heads[i, used] = h
            used += x[h] > 0
        point.sizes[i] = used


@jit
def _fill_slopes(n, members, count, point, slopes):
    """Set ``slopes`` to x(δ⁻(S)) − 1 for each set S."""
    for k in range(count):
        total = -1.0
        for i in range(n):
            if members[k, i + 1] > 0:
                for p in range(point.sizes[i]):
                    h = point.heads[i, p]
                    total += point.mean[i, h] * (1.0 - members[k, h])
        slopes[k] = total


@jit
def _fill_curvature(n, members, number, point, program):
    """Set the lower half of the curvature to the Hessian of D in the first ``number`` free multipliers.

    Each word adds the covariance of the sets' indicators over its heads, times the number of heads.
    """
    hessian, inside = program.curvature, program.inside
    for a in range(number):
        for c in range(a + 1):
            hessian[a, c] = 0.0
    for i in range(n):
        size = point.sizes[i]
        heads = point.heads[i]
        holders = 0
        for a in range(number):
            k = program.free[a]
            if members[k, i + 1] > 0:
                within = 0.0
                for p in range(size):
                    within += members[k, heads[p]]
                if 0 < within < size:
                    program.holders[holders], inside[holders] = a, within
                    holders += 1
        for e in range(holders):
            a = program.holders[e]
            k = program.free[a]
            for f in range(e + 1):
                c = program.holders[f]
                other = program.free[c]
                both = 0.0
                for p in range(size):
                    both += members[k, heads[p]] * members[other, heads[p]]
                hessian[a, c] += both - inside[e] * inside[f] / size


@jit
def _solve(matrix, x, size):
    """Solve ``matrix`` · x' = x in place; the lower half of the matrix is replaced by its Cholesky factor.

    The matrix is positive semidefinite. Its other eigenvalues are far above the number added to the diagonal.
    """
    for a in range(size):
        for c in range(a + 1):
            total = matrix[a, c]
            for e in range(c):
                total -= matrix[a, e] * matrix[c, e]
            # The diagonal of the factor is stored inverted.
            matrix[a, c] = total * matrix[c, c] if c < a else 1.0 / np.sqrt(max(total, 0.0) + _LEAST_CURVATURE)
        for e in range(a):
            x[a] -= matrix[a, e] * x[e]
        x[a] *= matrix[a, a]
    for a in range(size - 1, -1, -1):
        for e in range(a + 1, size):
            x[a] -= matrix[e, a] * x[e]
        x[a] *= matrix[a, a]


@jit
def _value(scores, n, multipliers, slopes, count, point):
    """Return D."""
    value = 0.0
    for k in range(count):
        value += multipliers[k] * slopes[k]
    for i in range(n):
        for p in range(point.sizes[i]):
            h = point.heads[i, p]
            x = point.mean[i, h]
            value += x * (scores[i, h] - 0.5 * x)
    return value


@jit
def _find_direction(n, cuts, count, bounded, slack, point, program):
    """Set the direction to Newton's step. Return the number of free sets, 0 at the minimum.

    A set is free if its multiplier is positive, or rises. The multipliers of sets before ``bounded`` have any sign.
    """
    number, is_minimum = np.int64(0), True  # numba would compile functions for a literal 0, too
    for k in range(count):
        if k < bounded or cuts.multipliers[k] > 0 or program.slopes[k] < -slack:
            program.free[number] = k
            number += 1
            is_minimum = is_minimum and abs(program.slopes[k]) <= slack
    if is_minimum:
        return 0
    while True:
        _fill_curvature(n, cuts.members, number, point, program)
        for a in range(number):
            program.direction[a] = -program.slopes[program.free[a]]
        _solve(program.curvature, program.direction, number)
        kept = np.int64(0)
        for a in range(number):
            k = program.free[a]
            if k < bounded or cuts.multipliers[k] > 0 or program.direction[a] > 0:
                program.free[kept] = k
                kept += 1
        if kept == number:
            return number
        number = kept


@jit
def minimize_dual(scores, n, cuts, count, bounded, most, point, program):
    """Minimize D, starting from the given multipliers.

    Parameters
    ----------
    scores : (n, n + 1) float64
        θ by word and head; the highest score of each word is 0.
    count : int
        Number of sets.
    bounded : int
        The first ``bounded`` sets have the constraint x(δ⁻(S)) = 1 instead of x(δ⁻(S)) ≥ 1.
    most : int
        Maximal number of steps.

    Returns
    -------
    steps : int
        Number of steps, −1 if more than ``most`` are necessary.
    slack : float
        Bound of the rounding error of x(δ⁻(S)).
    """
    _project_heads(scores, n, cuts.members, cuts.multipliers, count, point)
    _fill_slopes(n, cuts.members, count, point, program.slopes)
    radius = 2.0
    for step in range(most + 1):
        slack = 1.0 * n
        for i in range(n):
            slack += abs(point.thresholds[i])
        for k in range(count):
            slack += abs(cuts.multipliers[k])
        slack *= _UNIT
        number = _find_direction(n, cuts, count, bounded, slack, point, program)
        if number == 0:
            return step, slack
        # The step ends where a multiplier becomes 0, or, in a flat direction, at the radius.
        length, slope, largest = 1.0, 0.0, 0.0
        for a in range(number):
            k, d = program.free[a], program.direction[a]
            slope += program.slopes[k] * d
            largest = max(largest, abs(d))
            if d < 0 and k >= bounded:
                length = min(length, -cuts.multipliers[k] / d)
        if length * largest > radius:
            length = radius / largest
            radius *= 4
        value = _value(scores, n, cuts.multipliers, program.slopes, count, point)
        while True:
            for k in range(count):
                cuts.trial[k] = cuts.multipliers[k]
            for a in range(number):
                k = program.free[a]
                moved = cuts.multipliers[k] + length * program.direction[a]
                cuts.trial[k] = moved if k < bounded or moved > 1e-15 * cuts.multipliers[k] else 0.0
            _project_heads(scores, n, cuts.members, cuts.trial, count, point)
            _fill_slopes(n, cuts.members, count, point, program.trial_slopes)
            end = 0.0
            for a in range(number):
                end += program.trial_slopes[program.free[a]] * program.direction[a]
            # Close to the minimum, differences of values are rounding errors, and the quadratic is exact.
            if end <= 0 or -slope * length <= 1e-10:
                break
            if _value(scores, n, cuts.trial, program.trial_slopes, count, point) <= value + 1e-4 * length * slope:
                break
            length *= max(0.1, min(0.9, slope / (slope - end)))
        for k in range(count):
            cuts.multipliers[k] = cuts.trial[k]
            program.slopes[k] = program.trial_slopes[k]
    return -1, 0.0


@jit
def project_onto_face(n, members, count, total, point, program):
    """Move ``point`` to the nearest vector whose sum over the heads of each word, and over the arcs into each set, is
    ``total``. Arcs that are not in the lists of heads keep their values.
    """
    x, heads, sizes = point.mean, point.heads, point.sizes
    for i in range(n):
        _shift(x[i], heads[i], sizes[i], total)
    _fill_slopes(n, members, count, point, program.slopes)
    for k in range(count):
        program.free[k] = k
        program.direction[k] = total - 1.0 - program.slopes[k]
    _fill_curvature(n, members, count, point, program)
    _solve(program.curvature, program.direction, count)
    for i in range(n):
        for k in range(count):
            if members[k, i + 1] > 0:
                for p in range(sizes[i]):
                    x[i, heads[i, p]] -= program.direction[k] * members[k, heads[i, p]]
        _shift(x[i], heads[i], sizes[i], total)


@jit
def _shift(x, heads, size, total):
    """Add a number to x[heads[: size]] such that their sum is ``total``."""
    rest = total
    for p in range(size):
        rest -= x[heads[p]]
    for p in range(size):
        x[heads[p]] += rest / size
