"""Vertices of the active set method by their non-zeros, and what is summed over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .jit import jit

__all__ = ["Layout", "Search", "Support", "appraise", "densify", "finish", "load", "products", "touch", "write"]


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

    There is always room for one vertex more than those in use.
    """

    count: np.ndarray  # (B,) vertices in use
    order: np.ndarray  # (B, C)
    weight: np.ndarray  # (B, C) by position in order, as are ones and factor
    ones: np.ndarray  # (B, C) the solution z of Uᵀz = 1
    factor: np.ndarray  # (B, C, C) the upper triangular U
    index: np.ndarray  # (B, C, N) by slot: coordinates of the non-zeros, penalised from the front, others from the back
    value: np.ndarray  # (B, C, N)
    size: np.ndarray  # (B, C, 2) number of penalised and of other non-zeros
    score: np.ndarray  # (B, C) ⟨θ, y⟩


class Search(NamedTuple):
    """What else is known of each instance while the method runs."""

    mean: np.ndarray  # (B, coordinates) Σ_k p_k y_k, up to finish() over the penalised coordinates alone
    touched: np.ndarray  # (B, coordinates) bool: penalised coordinates that some vertex has used,
    trace: np.ndarray  # (B, coordinates) these in order of first use
    traced: np.ndarray  # (B,) and their number
    scale: np.ndarray  # (B,) size of the numbers of whose difference a gap consists
    gap: np.ndarray  # (B,)
    objective: np.ndarray  # (B,)
    iterations: np.ndarray  # (B,) programs solved
    stalled: np.ndarray  # (B,) bool: the last vertex did not help
    status: np.ndarray  # (B,)


@jit
def load(start, stop, rows, dense, layout, support, need):
    """Put the non-zeros of a dense vertex for each instance ``rows[a]`` into its first free slot.

    Where they are too many the slot's content is void.

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


@jit
def weigh(b, index, value, layout):
    """⟨θ, y⟩ over some non-zeros, and the sum of the terms' absolute values."""
    total = 0.0
    absolute = 0.0
    t = 0
    for e in range(index.size):
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
def touch(b, slot, support, search):
    """Note the penalised coordinates that a vertex uses."""
    for c in support.index[b, slot, : support.size[b, slot, 0]]:
        if not search.touched[b, c]:
            search.touched[b, c] = True
            search.trace[b, search.traced[b]] = c
            search.traced[b] += 1


@jit
def write(a, b, layout, support, search):
    """Recompute the mean over penalised coordinates and, from it, the direction of the next oracle call."""
    mean = search.mean[b]
    trace = search.trace[b, : search.traced[b]]
    for c in trace:
        mean[c] = 0.0
    for k in range(support.count[b]):
        slot = support.order[b, k]
        index = support.index[b, slot]
        value = support.value[b, slot]
        weight = support.weight[b, k]
        for e in range(support.size[b, slot, 0]):
            mean[index[e]] += weight * value[e]
    t = 0
    for c in trace:
        while c >= layout.offset[t + 1]:
            t += 1
        while c < layout.offset[t]:
            t -= 1
        first = layout.direction_start[t]
        if first >= 0:
            j = c - layout.offset[t]
            width = layout.offset[t + 1] - layout.offset[t]
            theta = layout.theta[layout.theta_start[t] + b * layout.theta_step[t] + j]
            layout.direction[first + a * width + j] = theta - mean[c]


@jit
def appraise(b, slot, layout, support, search):
    """Score, ‖r‖², gradient with respect to the weight, and size of the terms, of a vertex."""
    index = support.index[b, slot]
    value = support.value[b, slot]
    front = support.size[b, slot, 0]
    back = index.size - support.size[b, slot, 1]
    score, absolute = weigh(b, index[:front], value[:front], layout)
    rest, more = weigh(b, index[back:], value[back:], layout)
    score += rest
    square = 0.0
    slope = score
    for e in range(front):
        square += value[e] * value[e]
        slope -= value[e] * search.mean[b, index[e]]
    support.score[b, slot] = score
    return score, square, slope, absolute + more + square


@jit
def products(b, fresh, gram, gradient, support, search):
    """⟨r_k, fresh⟩ + 1 and the gradient with respect to p_k, for each vertex of the support."""
    mean = search.mean[b]
    for k in range(support.count[b]):
        slot = support.order[b, k]
        index = support.index[b, slot]
        value = support.value[b, slot]
        penalty = 0.0
        product = 1.0
        for e in range(support.size[b, slot, 0]):
            penalty += value[e] * mean[index[e]]
            product += value[e] * fresh[index[e]]
        gram[k] = product
        gradient[k] = support.score[b, slot] - penalty


@jit
def finish(start, stop, support, search):
    """Complete the means by the coordinates that the penalty does not see."""
    for b in range(start, stop):
        for k in range(support.count[b]):
            slot = support.order[b, k]
            for e in range(support.index.shape[2] - support.size[b, slot, 1], support.index.shape[2]):
                search.mean[b, support.index[b, slot, e]] += support.weight[b, k] * support.value[b, slot, e]


@jit
def densify(start, stop, rank, support, out):
    """Write the vertices at positions ``rank`` (K, B) into ``out`` (K, B, coordinates), zero so far."""
    for b in range(start, stop):
        for k in range(support.count[b]):
            slot = support.order[b, rank[k, b]]
            index = support.index[b, slot]
            value = support.value[b, slot]
            for e in range(index.size):
                if e < support.size[b, slot, 0] or e >= index.size - support.size[b, slot, 1]:
                    out[k, b, index[e]] = value[e]
