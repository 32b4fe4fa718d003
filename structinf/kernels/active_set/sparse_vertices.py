"""The vertices of the active set method, stored as lists of non-zeros, and sums over the non-zeros."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import is_zero
from ..simd.vector import LANES, load

__all__ = [
    "Layout",
    "SearchState",
    "Support",
    "Vertices",
    "add_scaled",
    "add_unpenalised",
    "dot",
    "load_vertices",
    "score_nonzeros",
    "support_products",
    "update_mean",
    "write_dense",
]


class Layout(NamedTuple):
    """Positions of the coordinates in flat arrays. Coordinates are numbered consecutively over all tensors of θ."""

    offset: np.ndarray  # (tensors + 1,) first coordinate of each tensor
    theta: np.ndarray  # flat, all tensors
    theta_start: np.ndarray  # (tensors,) start of each tensor in theta
    theta_step: np.ndarray  # (tensors,) distance between two instances in theta: 0 if the batch shares the tensor
    direction: np.ndarray  # flat: θ minus the penalty's gradient, by position in the batch of running instances
    direction_start: np.ndarray  # (tensors,) start of each tensor in direction; -1 for tensors without a penalty
    penalised: np.ndarray  # (1 or B, coordinates) bool


class Support(NamedTuple):
    """The support of each instance. Each vertex has a slot, and ``order`` lists the slots, the slots in use first.

    At least one slot is always free.
    """

    count: np.ndarray  # (B,) vertices in use
    order: np.ndarray  # (B, C)
    weight: np.ndarray  # (B, C) by slot, 0 for free slots
    ones: np.ndarray  # (B, C) by position in order: the solution z of Uᵀz = 1
    factor: np.ndarray  # (B, C, C) by position in order: the upper triangular U
    index: np.ndarray  # (B, C, N) by slot: coordinates of the non-zeros, penalised from the front, others from the back
    value: np.ndarray  # (B, C, N) by slot: values of the non-zeros
    size: np.ndarray  # (B, C, 2) by slot: numbers of penalised and of other non-zeros
    score: np.ndarray  # (B, C) by slot: ⟨θ, y⟩


class Vertices(NamedTuple):
    """The slots of one instance: a row of the arrays of :class:`Support`."""

    index: np.ndarray
    value: np.ndarray
    size: np.ndarray
    score: np.ndarray


class SearchState(NamedTuple):
    """The mean, the gap and the status of each instance while the method runs."""

    mean: np.ndarray  # (B, coordinates) Σ_k p_k y_k; penalised coordinates only until add_unpenalised() runs
    seen: np.ndarray  # (B, coordinates) bool: penalised coordinates used by a vertex so far
    seen_coordinates: np.ndarray  # (B, coordinates) the seen coordinates in order of first use
    seen_count: np.ndarray  # (B,) number of seen coordinates
    scale: np.ndarray  # (B,) largest Σ |θ_i y_i| + ‖r‖² of a vertex: gaps are differences of numbers of this size
    size: np.ndarray  # (B,) largest ‖r‖² of a vertex
    gap: np.ndarray  # (B,)
    objective: np.ndarray  # (B,)
    iterations: np.ndarray  # (B,) programs solved
    stalled: np.ndarray  # (B,) bool: the last iteration did not add its vertex
    status: np.ndarray  # (B,)


@jit
def load_vertices(start, stop, rows, dense, layout, support, need):
    """Write the non-zeros of a dense vertex for each instance ``rows[a]`` into its first free slot.

    If ``need[a]`` exceeds the capacity of a slot, the contents of the slot are invalid.

    Parameters
    ----------
    dense : tuple of (n, coordinates of the tensor) float64 arrays
        The vertices.
    need : (n,) int64 array, written
        The number of non-zeros of each vertex.
    """
    capacity = support.index.shape[2]
    for a in range(start, stop):
        b = rows[a]
        slot = support.order[b, support.count[b]]
        index = support.index[b, slot]
        value = support.value[b, slot]
        mask = layout.penalised[b if layout.penalised.shape[0] > 1 else 0]
        front = 0
        back = 0
        for t in range(len(dense)):
            y = dense[t][a]
            for low in range(0, y.size, LANES):
                # Most parts are zero, so vectors of zeros are skipped.
                if low + LANES <= y.size and is_zero(load(y, low)):
                    continue
                for j in range(low, min(low + LANES, y.size)):
                    if y[j] != 0.0:
                        c = layout.offset[t] + j
                        if mask[c]:
                            place = front
                            front += 1
                        else:
                            back += 1
                            place = capacity - back
                        if front + back <= capacity:
                            index[place] = c
                            value[place] = y[j]
        support.size[b, slot, 0] = front
        support.size[b, slot, 1] = back
        need[a] = front + back


# ----------------------------------------------------------------------------- sums over non-zeros


@jit
def dot(index, value, size, vector):
    """Return ⟨y, vector⟩ over the first ``size`` non-zeros of y."""
    total = 0.0
    for e in range(size):
        total += value[e] * vector[index[e]]
    return total


@jit
def add_scaled(index, value, size, weight, vector):
    """Add weight · y to ``vector`` at the first ``size`` non-zeros of y."""
    for e in range(size):
        vector[index[e]] += weight * value[e]


@jit
def score_nonzeros(index, value, size, b, layout):
    """Return ⟨θ, y⟩ over the first ``size`` non-zeros of y, and the sum of the absolute values of its terms."""
    total = 0.0
    absolute = 0.0
    t = 0
    for e in range(size):
        c = index[e]
        while c >= layout.offset[t + 1]:
            t += 1
        while c < layout.offset[t]:
            t -= 1
        term = value[e] * layout.theta[layout.theta_start[t] + b * layout.theta_step[t] + c - layout.offset[t]]
        total += term
        absolute += abs(term)
    return total, absolute


@jit
def support_products(n, order, vertices, vector, out):
    """Write ⟨r_k, vector⟩ to ``out``, by slot, for the ``n`` vertices in the support of an instance."""
    for k in range(n):
        slot = order[k]
        out[slot] = dot(vertices.index[slot], vertices.value[slot], vertices.size[slot, 0], vector)


@jit(inline=True)
def update_mean(a, b, n, order, weight, vertices, layout, state):
    """Recompute the penalised coordinates of the mean, and the direction of the next oracle call."""
    mean = state.mean[b]
    seen_coordinates = state.seen_coordinates[b]
    for i in range(state.seen_count[b]):
        mean[seen_coordinates[i]] = 0.0
    for k in range(n):
        slot = order[k]
        add_scaled(vertices.index[slot], vertices.value[slot], vertices.size[slot, 0], weight[slot], mean)
    t = 0
    for i in range(state.seen_count[b]):
        c = seen_coordinates[i]
        while c >= layout.offset[t + 1]:
            t += 1
        while c < layout.offset[t]:
            t -= 1
        first = layout.direction_start[t]
        if first >= 0:
            j = c - layout.offset[t]
            theta = layout.theta[layout.theta_start[t] + b * layout.theta_step[t] + j]
            layout.direction[first + a * (layout.offset[t + 1] - layout.offset[t]) + j] = theta - mean[c]


# ----------------------------------------------------------------------------- results


@jit
def add_unpenalised(start, stop, support, state):
    """Add the unpenalised coordinates of the vertices to the means."""
    for b in range(start, stop):
        for k in range(support.count[b]):
            slot = support.order[b, k]
            back = support.size[b, slot, 1]
            first = support.index.shape[2] - back
            index = support.index[b, slot, first:]
            add_scaled(index, support.value[b, slot, first:], back, support.weight[b, slot], state.mean[b])


@jit
def write_dense(start, stop, slots, support, out):
    """Write the vertices in ``slots`` (K, B) to ``out`` (K, B, coordinates), initially zero."""
    for b in range(start, stop):
        for k in range(min(support.count[b], slots.shape[0])):
            slot = slots[k, b]
            first = support.index.shape[2] - support.size[b, slot, 1]
            for e in range(support.index.shape[2]):
                if e < support.size[b, slot, 0] or e >= first:
                    out[k, b, support.index[b, slot, e]] = support.value[b, slot, e]
