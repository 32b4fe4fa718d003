"""The vertices of the active set method, stored by their non-zeros, and sums over these."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import jit

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
    """Where the coordinates lie. Those of all tensors are numbered through, tensor after tensor."""

    offset: np.ndarray  # (tensors + 1,) first coordinate of each tensor
    theta: np.ndarray  # flat, all tensors
    theta_start: np.ndarray  # (tensors,) where the tensor starts in theta
    theta_step: np.ndarray  # (tensors,) what an instance adds: 0 if the tensor is shared
    direction: np.ndarray  # flat: θ minus the penalty's gradient, by place in the running batch
    direction_start: np.ndarray  # (tensors,) likewise; -1 for tensors that the penalty does not move
    penalised: np.ndarray  # (1 or B, coordinates) bool


class Support(NamedTuple):
    """The support of each instance. A vertex lies in a slot; ``order`` lists the slots, those in use first.

    There is always a free slot for one more vertex.
    """

    count: np.ndarray  # (B,) vertices in use
    order: np.ndarray  # (B, C)
    weight: np.ndarray  # (B, C) by slot, 0 for those not in use
    ones: np.ndarray  # (B, C) by position in order: the solution z of Uᵀz = 1
    factor: np.ndarray  # (B, C, C) by position in order: the upper triangular U
    index: np.ndarray  # (B, C, N) by slot: coordinates of the non-zeros, penalised from the front, others from the back
    value: np.ndarray  # (B, C, N) by slot
    size: np.ndarray  # (B, C, 2) by slot: number of penalised and of other non-zeros
    score: np.ndarray  # (B, C) by slot: ⟨θ, y⟩


class Vertices(NamedTuple):
    """The slots of one instance, as in :class:`Support`."""

    index: np.ndarray
    value: np.ndarray
    size: np.ndarray
    score: np.ndarray


class SearchState(NamedTuple):
    """The mean, the gap and the status of each instance while the method runs."""

    mean: np.ndarray  # (B, coordinates) Σ_k p_k y_k, up to add_unpenalised() over the penalised coordinates alone
    seen: np.ndarray  # (B, coordinates) bool: penalised coordinates that some vertex has used,
    seen_coordinates: np.ndarray  # (B, coordinates) these in order of first use
    seen_count: np.ndarray  # (B,) and their number
    scale: np.ndarray  # (B,) size of the numbers whose difference a gap is
    gap: np.ndarray  # (B,)
    objective: np.ndarray  # (B,)
    iterations: np.ndarray  # (B,) programs solved
    stalled: np.ndarray  # (B,) bool: the last vertex did not help
    status: np.ndarray  # (B,)


@jit
def load_vertices(start, stop, rows, dense, layout, support, need):
    """Put the non-zeros of a dense vertex for each instance ``rows[a]`` into its first free slot.

    If these are more than the slot holds, its content is void; ``need`` tells.

    Parameters
    ----------
    dense : tuple of (n, coordinates of the tensor) float64 arrays
    need : (n,) int64 array
        Out: the number of non-zeros.
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
            for low in range(0, y.size, 8):
                # Most parts are zero: vector code finds the few eights that need a look.
                if low + 8 <= y.size and (
                    (abs(y[low]) + abs(y[low + 1])) + (abs(y[low + 2]) + abs(y[low + 3]))
                    + (abs(y[low + 4]) + abs(y[low + 5])) + (abs(y[low + 6]) + abs(y[low + 7]))
                ) == 0.0:  # fmt: skip
                    continue
                for j in range(low, min(low + 8, y.size)):
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
    """⟨y, vector⟩ over the first ``size`` non-zeros of y."""
    total = 0.0
    for e in range(size):
        total += value[e] * vector[index[e]]
    return total


@jit
def add_scaled(index, value, size, weight, vector):
    """Add weight · y to ``vector``, over the first ``size`` non-zeros of y."""
    for e in range(size):
        vector[index[e]] += weight * value[e]


@jit
def score_nonzeros(index, value, size, b, layout):
    """⟨θ, y⟩ over the first ``size`` non-zeros of y, and the sum of the terms' absolute values."""
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
    """⟨r_k, vector⟩ by slot, for the ``n`` vertices of an instance's support."""
    for k in range(n):
        slot = order[k]
        out[slot] = dot(vertices.index[slot], vertices.value[slot], vertices.size[slot, 0], vector)


@jit(inline=True)
def update_mean(a, b, n, order, weight, vertices, layout, state):
    """Recompute the mean over penalised coordinates and, from it, the direction of the next oracle call."""
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
    """Add to the means the coordinates that the penalty does not include."""
    for b in range(start, stop):
        for k in range(support.count[b]):
            slot = support.order[b, k]
            back = support.size[b, slot, 1]
            first = support.index.shape[2] - back
            index = support.index[b, slot, first:]
            add_scaled(index, support.value[b, slot, first:], back, support.weight[b, slot], state.mean[b])


@jit
def write_dense(start, stop, slots, support, out):
    """Write the vertices in slots ``slots`` (K, B) into ``out`` (K, B, coordinates), zero so far."""
    for b in range(start, stop):
        for k in range(min(support.count[b], slots.shape[0])):
            slot = slots[k, b]
            first = support.index.shape[2] - support.size[b, slot, 1]
            for e in range(support.index.shape[2]):
                if e < support.size[b, slot, 0] or e >= first:
                    out[k, b, support.index[b, slot, e]] = support.value[b, slot, e]
