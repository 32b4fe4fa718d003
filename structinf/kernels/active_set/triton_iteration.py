"""An iteration of the active-set method as one Triton launch, for the programs of all instances, in float64.

The algorithm is that of :mod:`.iteration`, with the storage of `structinf.solvers.active_set_torch`: a vertex stays in
its slot, and A⁻¹ over the slots in use is updated by rank one. A program handles an instance. Vectors over the slots
are in registers; matrices and vertices are in global memory, in blocks of rows.

Barriers separate each store to global memory from the reads of other threads of the program: after a vertex, a vector
of ``scratch``, or a block of a matrix is stored, and before ``scratch`` is overwritten.

Arguments, for B instances with C slots and W coordinates:

    rows        (n,) int64: the instances of this launch
    fresh       (n, W): the vertices to add
    theta       (B, W), penalised (W,) or (B, W): scores, and 1 for the coordinates of the penalty, else 0
    mean        (B, W), vertices (B, C, W), used (B, C) uint8, weight (B, C), score (B, C)
    matrix      (B, C, C): A = R Rᵀ + 1 1ᵀ over the slots in use, inverse (B, C, C): A⁻¹; 0 in other rows and columns
    scale, size, gap, objective (B,): see `structinf.solvers.active_set.active_set`
    iterations, status (B,) int64, stalled (B,) uint8
    scratch     (B, C)
    direction   (n, W), written: the gradient of the objective at the mean, in the order of ``rows``
    report      (n,) float64, written: the status · REPORTED + the number of slots in use
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["CONVERGED", "INVALID", "REPORTED", "RUNNING", "STOPPED", "add_and_solve"]

RUNNING, CONVERGED, STOPPED, INVALID = 0, 1, 2, 3
REPORTED = 2**32

_RUNNING, _CONVERGED, _STOPPED, _INVALID = (tl.constexpr(code) for code in (0, 1, 2, 3))
_REPORTED = tl.constexpr(float(REPORTED))


@triton.jit
def _multiply(matrix, scratch, vector, SLOTS: tl.constexpr, ROWS: tl.constexpr):
    """Return the product of a symmetric ``matrix`` with ``vector``."""
    k = tl.arange(0, SLOTS)
    tl.store(scratch + k, vector)
    tl.debug_barrier()
    total = tl.zeros([SLOTS], tl.float64)
    for first in range(0, SLOTS, ROWS):
        r = first + tl.arange(0, ROWS)
        factor = tl.load(scratch + r)
        total += tl.sum(factor[:, None] * tl.load(matrix + r[:, None] * SLOTS + k[None, :]), 0)
    tl.debug_barrier()
    return total


@triton.jit
def _add_outer_product(matrix, scratch, vector, factor, SLOTS: tl.constexpr, ROWS: tl.constexpr):
    """Add factor · vector vectorᵀ to ``matrix``."""
    k = tl.arange(0, SLOTS)
    tl.store(scratch + k, vector)
    tl.debug_barrier()
    for first in range(0, SLOTS, ROWS):
        r = first + tl.arange(0, ROWS)
        place = matrix + r[:, None] * SLOTS + k[None, :]
        tl.store(place, tl.load(place) + factor * tl.load(scratch + r)[:, None] * vector[None, :])
    tl.debug_barrier()


@triton.jit
def _write_row_and_column(matrix, slot, row, SLOTS: tl.constexpr):
    k = tl.arange(0, SLOTS)
    tl.store(matrix + slot * SLOTS + k, row)
    tl.debug_barrier()
    tl.store(matrix + k * SLOTS + slot, row)
    tl.debug_barrier()


@triton.jit
def _remove(matrix, inverse, scratch, slot, SLOTS: tl.constexpr, ROWS: tl.constexpr):
    """Remove the vertex in ``slot`` from A and from A⁻¹."""
    k = tl.arange(0, SLOTS)
    column = tl.load(inverse + slot * SLOTS + k)
    pivot = tl.sum(tl.where(k == slot, column, 0.0), 0)
    _add_outer_product(inverse, scratch, column, -1.0 / pivot, SLOTS, ROWS)
    none = tl.zeros([SLOTS], tl.float64)
    _write_row_and_column(inverse, slot, none, SLOTS)
    _write_row_and_column(matrix, slot, none, SLOTS)


@triton.jit
def _first(mask, SLOTS: tl.constexpr):
    """Return the first slot where ``mask`` holds, or the number of slots."""
    return tl.min(tl.where(mask, tl.arange(0, SLOTS), SLOTS), 0)


@triton.jit
def _distance(fresh, vertices, penalised, column, W, SLOTS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the squared distance of the vertex from Σ_k column_k y_k over the penalised coordinates."""
    k, total = tl.arange(0, SLOTS), tl.zeros([], tl.float64)
    for first in range(0, W, WIDTH):
        w = first + tl.arange(0, WIDTH)
        y = tl.load(fresh + w, mask=w < W, other=0.0)
        v = tl.load(vertices + k[:, None].to(tl.int64) * W + w[None, :], mask=(w < W)[None, :], other=0.0)
        rest = (y - tl.sum(column[:, None] * v, 0)) * tl.load(penalised + w, mask=w < W, other=0.0)
        total += tl.sum(rest * rest, 0)
    return total


@triton.jit
def add_and_solve(
    rows, fresh, theta, penalised, mean, vertices, used, weight, score, matrix, inverse, scale, size, gap, objective,
    iterations, status, stalled, scratch, direction, report,
    W, penalised_stride, tolerance, half_square_accuracy,
    LAST: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    DEPENDENT: tl.constexpr, ROUNDING: tl.constexpr, VANISHING: tl.constexpr,
):  # fmt: skip
    """Add a vertex to each running instance and solve its program, or finish the instance.

    ``tolerance`` is a pointer to the relative tolerance, and ``half_square_accuracy`` to half the squared accuracy.
    ``LAST`` finishes all instances.
    """
    a = tl.program_id(0).to(tl.int64)
    b = tl.load(rows + a)
    fresh += a * W
    theta += b * W
    mean += b * W
    penalised += b * penalised_stride
    vertices += b * SLOTS * W
    matrix += b * SLOTS * SLOTS
    inverse += b * SLOTS * SLOTS
    scratch += b * SLOTS
    k = tl.arange(0, SLOTS)
    if tl.load(status + b) == _RUNNING:
        # The score of the vertex, ‖r‖², its products with the mean and with the vertices, and theirs with the mean.
        value, absolute, square, along = (
            tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64),
        )  # fmt: skip
        gram, read = tl.zeros([SLOTS], tl.float64), tl.zeros([SLOTS], tl.float64)
        for first in range(0, W, WIDTH):
            w = first + tl.arange(0, WIDTH)
            inside = w < W
            y = tl.load(fresh + w, mask=inside, other=0.0)
            term = y * tl.where(y != 0, tl.load(theta + w, mask=inside, other=0.0), 0.0)
            kept = tl.load(penalised + w, mask=inside, other=0.0)
            m = tl.load(mean + w, mask=inside, other=0.0) * kept
            v = tl.load(vertices + k[:, None].to(tl.int64) * W + w[None, :], mask=inside[None, :], other=0.0)
            value += tl.sum(term, 0)
            absolute += tl.sum(tl.abs(term), 0)
            square += tl.sum(y * y * kept, 0)
            along += tl.sum(y * m, 0)
            gram += tl.sum(v * (y * kept)[None, :], 1)
            read += tl.sum(v * m[None, :], 1)
        u = tl.load(used + b * SLOTS + k) > 0
        p = tl.load(weight + b * SLOTS + k)
        s = tl.load(score + b * SLOTS + k)
        gram = tl.where(u, gram + 1.0, 0.0)
        gradient = tl.where(u, s - read, 0.0)
        slope = value - along
        average = tl.sum(p * gradient, 0)
        is_first = tl.max(u.to(tl.int32), 0) == 0
        valid = tl.abs(value) < float("inf")  # False for NaN
        scale_b = tl.maximum(tl.load(scale + b), tl.where(valid, absolute, 0.0) + square)
        size_b = tl.maximum(tl.load(size + b), square)
        tl.store(scale + b, scale_b)
        tl.store(size + b, size_b)
        gap_b = tl.where(is_first, tl.load(gap + b), tl.maximum(slope - average, 0.0))
        limit = tl.maximum(tl.load(tolerance) * scale_b, tl.load(half_square_accuracy) * size_b)
        converged = (gap_b <= limit) & (is_first == 0)
        if valid:
            tl.store(gap + b, gap_b)
            at_mean = (tl.sum(p * s, 0) + average) / 2
            tl.store(objective + b, tl.where(is_first, tl.load(objective + b), at_mean))
        is_done = converged
        if LAST:
            is_done = is_done | (is_first == 0)
        outcome = tl.where(valid, tl.where(converged, _CONVERGED, tl.where(is_done, _STOPPED, _RUNNING)), _INVALID)
        if outcome != _RUNNING:
            tl.store(status + b, outcome.to(tl.int64))
        else:
            slot = _first(u == 0, SLOTS)
            for first in range(0, W, WIDTH):
                w = first + tl.arange(0, WIDTH)
                y = tl.load(fresh + w, mask=w < W, other=0.0)
                tl.store(vertices + slot.to(tl.int64) * W + w, y, mask=w < W)
            s = tl.where(k == slot, value, s)
            tl.debug_barrier()
            # Add the vertex. If it is an affine combination of the others, weight moves to it until one of them leaves.
            extra = tl.where(is_first, 1.0, 0.0).to(tl.float64)
            entered = tl.zeros([], tl.int32)
            open = entered + 1
            while open > 0:
                column = _multiply(inverse, scratch, gram, SLOTS, ROWS)
                # The slot of the vertex itself is unused: column is 0 there.
                distance = _distance(fresh, vertices, penalised, column, W, SLOTS, WIDTH)
                beyond = 1.0 - tl.sum(column, 0)
                remainder = distance + beyond * beyond
                open = open * 0
                if remainder > DEPENDENT * (square + 1.0):
                    vector = tl.where(k == slot, -1.0, column)
                    _add_outer_product(inverse, scratch, vector, 1.0 / remainder, SLOTS, ROWS)
                    _write_row_and_column(matrix, slot, tl.where(k == slot, square + 1.0, gram), SLOTS)
                    u = u | (k == slot)
                    p = tl.where(k == slot, extra, p)
                    gradient = tl.where(k == slot, slope, gradient)
                    entered = entered + 1
                else:
                    rise = slope - tl.sum(column * gradient, 0)
                    if (rise > ROUNDING * scale_b) | (extra > 0):
                        falling = u & (column > 1e-9 * tl.max(column, 0))
                        ratio = tl.where(falling, p / tl.where(falling, column, 1.0), float("inf"))
                        step = tl.min(ratio, 0)
                        spent = _first(ratio == step, SLOTS)
                        p = tl.where(k == spent, 0.0, tl.maximum(p - step * column, 0.0))
                        extra = extra + step
                        u = u & (k != spent)
                        _remove(matrix, inverse, scratch, spent, SLOTS, ROWS)
                        gram = tl.where(u, gram, 0.0)
                        open = open + 1
            # Move the weights to the solution: over all p with Σ p = 1 it is p + q, where A q = g − λ 1 and Σ q = 0.
            open = tl.where(is_first, 0, 1)
            while open > 0:
                gradient = tl.where(u, gradient - tl.sum(p * gradient, 0), 0.0)
                q = _multiply(inverse, scratch, gradient, SLOTS, ROWS)
                ones = _multiply(inverse, scratch, tl.where(u, 1.0, 0.0).to(tl.float64), SLOTS, ROWS)
                q = q - tl.sum(q, 0) / tl.sum(ones, 0) * ones
                falling = (q < 0) & (p + q <= VANISHING)
                ratio = tl.where(falling, -p / tl.where(falling, q, -1.0), float("inf"))
                least = tl.min(ratio, 0)
                step = tl.minimum(least, 1.0)
                p = p + step * q
                gradient = gradient * (1.0 - step)
                # The newest vertex stays: its weight may be below VANISHING when the weight of another vertex is 0.
                is_kept = (k == slot) & (entered > 0)
                drop = (u & (p <= VANISHING) & (is_kept == 0)) | (k == _first(ratio == least, SLOTS))
                is_blocked = tl.zeros([SLOTS], tl.float64) + least < float("inf")
                drop = drop & is_blocked
                leaving = _first(drop, SLOTS)
                while leaving < SLOTS:
                    p = tl.where(k == leaving, 0.0, p)
                    u = u & (k != leaving)
                    _remove(matrix, inverse, scratch, leaving, SLOTS, ROWS)
                    drop = drop & (k != leaving)
                    leaving = _first(drop, SLOTS)
                open = tl.where(step < 1.0, 1, 0)
            p = p / tl.sum(p, 0)
            for first in range(0, W, WIDTH):
                w = first + tl.arange(0, WIDTH)
                v = tl.load(vertices + k[:, None].to(tl.int64) * W + w[None, :], mask=(w < W)[None, :], other=0.0)
                tl.store(mean + w, tl.sum(p[:, None] * v, 0), mask=w < W)
            tl.store(used + b * SLOTS + k, u.to(tl.uint8))
            tl.store(weight + b * SLOTS + k, p)
            tl.store(score + b * SLOTS + k, s)
            # If no vertex can enter, the gap came from an inexact solution, which has just been corrected. If none can
            # enter in the next round either, the instance stops.
            is_in = tl.max(((k == slot) & u).to(tl.int32), 0)
            idle = (is_first == 0) & ((entered == 0) | (is_in == 0))
            was_stalled = tl.load(stalled + b) > 0
            tl.store(status + b, tl.where(idle & was_stalled, _STOPPED, _RUNNING).to(tl.int64))
            tl.store(stalled + b, tl.where(is_first, was_stalled, idle).to(tl.uint8))
            tl.store(iterations + b, tl.load(iterations + b) + tl.where(is_first, 0, 1))
    tl.debug_barrier()
    direction += a * W
    for first in range(0, W, WIDTH):
        w = first + tl.arange(0, WIDTH)
        kept = tl.load(penalised + w, mask=w < W, other=0.0)
        m = tl.load(mean + w, mask=w < W, other=0.0)
        tl.store(direction + w, tl.load(theta + w, mask=w < W, other=0.0) - kept * m, mask=w < W)
    held = tl.sum(tl.load(used + b * SLOTS + k).to(tl.float64), 0)
    tl.store(report + a, tl.load(status + b).to(tl.float64) * _REPORTED + held)
