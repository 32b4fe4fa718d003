"""Rows and matrices of a chain in whole vectors, for loops over :mod:`structinf.kernels.simd.vector`.

An instance has P matrices (S, S), in an array (B, P, S, S), where P = T − 1, or 1 for a matrix shared by all steps.
If S is no multiple of 16, the last vector of a row overlaps the vector before. If S is less than 16, or all steps
share the matrix, the matrix is copied to an array (1, 1, S, W) with rows padded to whole vectors.
"""

from __future__ import annotations

from structinf.kernels.jit import jit
from structinf.kernels.simd.memory import rows
from structinf.kernels.simd.vector import LANES, load, store

__all__ = [
    "add_row",
    "clear",
    "copy_in",
    "copy_out",
    "filled",
    "load_row",
    "matrix_offset",
    "padded",
    "store_row",
    "stride_of",
    "width_of",
]


@jit
def width_of(states):
    """Return S rounded up to whole vectors."""
    return -(-states // LANES) * LANES


@jit
def stride_of(matrices):
    """Return the distance between the rows of a matrix: S if the matrix is used in place, W if it is copied."""
    states = matrices.shape[3]
    return states if states > LANES and matrices.shape[1] > 1 else width_of(states)


@jit
def filled(count, number, dtype):
    """Return ``count`` vectors of one number, aligned to cache lines."""
    out = rows(count, dtype).reshape(count * LANES)
    for at in range(0, len(out), LANES):
        store(out, at, number)
    return out


@jit
def padded(matrices, padding):
    """Return an array for a copied matrix, filled with ``padding``, or the ``matrices`` if used in place."""
    states, stride = matrices.shape[3], stride_of(matrices)
    if stride == states:
        return matrices
    return filled(states * stride // LANES, padding, matrices.dtype).reshape((1, 1, states, stride))


@jit
def matrix_offset(b, t, instances, count, states):
    """Return the place of the matrix of instance ``b`` for the step to t, with ``count`` matrices per instance."""
    return (min(b, instances - 1) * count + min(t, count) - 1) * states * states


@jit
def copy_in(matrices, b, t, workspace):
    """Copy the matrix of the instance ``b`` for the step to t to ``workspace``."""
    count, states = matrices.shape[1:3]
    b, p = min(b, len(matrices) - 1), min(t, count) - 1
    for i in range(states):
        for j in range(states):
            workspace[0, 0, i, j] = matrices[b, p, i, j]


@jit
def copy_out(workspace, matrices, b, t, add):
    """Copy or add the matrix in ``workspace`` to its place among ``matrices``, and reset ``workspace`` to 0."""
    p = min(t, matrices.shape[1]) - 1
    for i in range(matrices.shape[2]):
        for j in range(matrices.shape[3]):
            matrices[b, p, i, j] = workspace[0, 0, i, j] + (matrices[b, p, i, j] if add else 0)
            workspace[0, 0, i, j] = 0


@jit
def clear(matrices, b, first):
    """Set the matrices of the instance ``b`` to 0 for all steps from ``first`` on."""
    for p in range(first - 1, matrices.shape[1]):
        for i in range(matrices.shape[2]):
            for j in range(matrices.shape[3]):
                matrices[b, p, i, j] = 0


@jit
def load_row(rows, b, t, workspace, place):
    """Copy row t of the instance ``b`` of ``rows`` (B, T, S) to ``workspace``."""
    count, states = rows.shape[1:]
    start, whole = (b * count + t) * states, states - states % LANES
    for at in range(0, whole, LANES):
        store(workspace, place + at, load(rows, start + at))
    for j in range(whole, states):
        workspace[place + j] = rows[b, t, j]


@jit
def add_row(rows, b, t, workspace, place):
    """Add row t of the instance ``b`` of ``rows`` (B, T, S) to the row in ``workspace``."""
    count, states = rows.shape[1:]
    start, whole = (b * count + t) * states, states - states % LANES
    for at in range(0, whole, LANES):
        store(workspace, place + at, load(workspace, place + at) + load(rows, start + at))
    for j in range(whole, states):
        workspace[place + j] += rows[b, t, j]


@jit
def store_row(workspace, place, rows, b, t):
    """Copy a row in ``workspace`` to row t of the instance ``b`` of ``rows`` (B, T, S)."""
    count, states = rows.shape[1:]
    start, whole = (b * count + t) * states, states - states % LANES
    for at in range(0, whole, LANES):
        store(rows, start + at, load(workspace, place + at))
    for j in range(whole, states):
        rows[b, t, j] = workspace[place + j]
