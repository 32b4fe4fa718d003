"""Euclidean projection onto the means of rooted trees, compiled. Importing this module imports numba.

The problem is max ⟨θ, μ⟩ − ½ ‖μ‖² over the convex hull of the trees: the points μ ≥ 0 with Σ_h μ[h, m] = 1 for each
word m, of which at least one unit enters each set S of words. Few of the 2ⁿ sets matter. The algorithm solves the
problem with a list of sets (:mod:`.cut_multipliers`), finds sets that too little enters (:mod:`.cut_separation`),
adds them to the list, and repeats.

The list starts with the set of all words, and with the sets that Chu-Liu & Edmonds' algorithm contracts to find the
best tree. The score of the best arc into a contracted set, which is relative to the arc that it replaces, is minus
the set's multiplier in the linear program max ⟨θ, μ⟩. For large θ, these multipliers are close to the solution.
Multipliers below ½ are no better than 0.

With a single root, exactly one unit enters the set of all words.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .argmax import grow
from .cut_multipliers import Cuts, Point, Program, minimize_dual, project_onto_face
from .cut_separation import add_violated_cuts

__all__ = ["project", "vjp"]

_LEAST_MULTIPLIER = 0.5


@jit
def _add_contracted_sets(scores, n, single_root, members, multipliers, count, work, entries, stack):
    """Append the sets contracted by Chu-Liu & Edmonds' algorithm. Return the new number of sets, −1 without a tree.

    The first set is that of all words.
    """
    for i in range(n):
        for h in range(n + 1):
            work[i, h] = scores[i, h]
    parent, sources = stack[1], stack[2]
    if not grow(work, entries, stack[0], parent, sources, stack[3], stack[4], n, single_root):
        return -1
    roots = 0
    for i in range(n):
        roots += 1 if sources[i] == 0 else 0
    if single_root and roots != 1:
        return -1
    for node in range(n, 2 * n - 1):
        size = 0
        row = members[count]
        row[0] = 0.0
        for i in range(n):
            ancestor = i
            while 0 <= ancestor < node:
                ancestor = parent[ancestor]
            row[i + 1] = 1.0 if ancestor == node else 0.0
            size += 1 if ancestor == node else 0
        if size == 0:
            break
        best = -np.inf
        for h in range(1 if single_root else 0, n + 1):
            best = max(best, work[node, h])
        if best == -np.inf:
            best = work[node, 0]
        if -best > _LEAST_MULTIPLIER or (single_root and size == n and best > _LEAST_MULTIPLIER):
            multipliers[0 if size == n else count] = -best
            count += 1 if size < n else 0
    return count


@jit
def _keep_active(n, members, multipliers, count, kept):
    """Remove the sets from ``kept`` on whose multiplier is 0. Return the number of sets."""
    for k in range(kept, count):
        if multipliers[k] > 0:
            for h in range(n + 1):
                members[kept, h] = members[k, h]
            multipliers[kept] = multipliers[k]
            kept += 1
    return kept


@jit
def project(start, stop, theta, lengths, single_root, most, mean, active, counts, value, gap, is_exact):
    """Project the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float64
        Scores of the arcs.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    most : int
        Maximal number of rounds for each instance, and of Newton steps in each round.
    mean : (B, n + 1, n + 1) float64
        Zero on entry; written.
    active : (B, 3n, n + 1) bool
        Written: the words of the sets that restrict μ.
    counts : (B,) int64
        Written: the numbers of these sets.
    value : (B,) float64
        Written: the objective at μ, −inf if there is no tree.
    gap : (B,) float64
        Written: upper bound of the difference between the maximum and the value; +inf if μ is not the solution.
    is_exact : (B,) bool
        Written: whether μ is the solution up to rounding.
    """
    width = theta.shape[1]
    capacity = active.shape[1]
    scores, work = np.empty((width, width)), np.empty((2 * width, width))
    entries, stack = np.empty((2 * width, width), np.int64), np.empty((5, 2 * width), np.int64)
    cuts = Cuts(np.empty((capacity, width)), np.empty(capacity), np.empty(capacity))
    point = Point(
        np.empty((width, width)), np.empty(width), np.empty((width, width), np.int64), np.empty(width, np.int64)
    )
    vectors, places = np.empty((4, capacity)), np.empty((2, capacity), np.int64)
    program = Program(
        vectors[0], vectors[1], vectors[2], np.empty((capacity, capacity)), vectors[3], places[0], places[1]
    )
    for b in range(start, stop):
        n = lengths[b]
        for i in range(n):
            top = -np.inf
            for h in range(n + 1):
                scores[i, h] = theta[b, h, i + 1] if h != i + 1 else -np.inf
                top = max(top, scores[i, h])
            for h in range(n + 1):
                scores[i, h] -= top if top > -np.inf else 0.0
            point.thresholds[i] = -1.0
        for h in range(n + 1):
            cuts.members[0, h] = 1.0 if h > 0 else 0.0
        cuts.multipliers[0] = 0.0
        counts[b], value[b], gap[b], is_exact[b] = 0, -np.inf, 0.0, False
        count = _add_contracted_sets(scores, n, single_root, cuts.members, cuts.multipliers, 1, work, entries, stack)
        if count < 0:
            continue
        bounded = 1 if single_root else 0
        for _ in range(most):
            steps, slack = minimize_dual(scores, n, cuts, count, bounded, most, point, program)
            if steps < 0 or not 20 * slack < 1e-6:  # huge scores leave rounding errors of the size of μ
                break
            if count + n > capacity:
                count = _keep_active(n, cuts.members, cuts.multipliers, count, 1)
                if count + n > capacity:
                    break
            known = count
            count = add_violated_cuts(point.mean, n, 20 * slack, cuts.members, cuts.multipliers, count, work, entries)
            is_exact[b] = count == known
            if is_exact[b]:
                break
        count = _keep_active(n, cuts.members, cuts.multipliers, count, bounded)
        if is_exact[b]:  # the scores may be far larger than μ; remove their rounding errors from the sums of μ
            project_onto_face(n, cuts.members, count, 1.0, point, program)
        counts[b], value[b], gap[b] = count, 0.0, 0.0 if is_exact[b] else np.inf
        for i in range(n):
            for p in range(point.sizes[i]):
                h = point.heads[i, p]
                x = max(point.mean[i, h], 0.0)
                mean[b, h, i + 1] = x
                value[b] += x * (theta[b, h, i + 1] - 0.5 * x)
        for k in range(count):
            total = -1.0
            for h in range(n + 1):
                active[b, k, h] = cuts.members[k, h] > 0
                for i in range(n):
                    total += mean[b, h, i + 1] * cuts.members[k, i + 1] * (1.0 - cuts.members[k, h])
            gap[b] += abs(cuts.multipliers[k] * total)


@jit
def vjp(start, stop, cotangent, lengths, mean, active, counts, product):
    """Set ``product`` to the product of ``cotangent`` with the Jacobian of the projections start : stop.

    The Jacobian is the orthogonal projection onto the changes of μ that keep the zeros of μ, the sum 1 of each word's
    heads, and the sum 1 of the arcs into each active set.

    Parameters
    ----------
    cotangent : (B, n + 1, n + 1) float64
        The vector.
    lengths, mean, active, counts
        As in :func:`project`, which wrote all but the first.
    product : (B, n + 1, n + 1) float64
        Zero on entry; written.
    """
    width, capacity = mean.shape[1], active.shape[1]
    members = np.empty((capacity, width))
    rows, heads, sizes = np.empty((width, width)), np.empty((width, width), np.int64), np.empty(width, np.int64)
    point = Point(rows, rows[0], heads, sizes)
    vectors, places = np.empty((4, capacity)), np.empty((2, capacity), np.int64)
    program = Program(
        vectors[0], vectors[1], vectors[2], np.empty((capacity, capacity)), vectors[3], places[0], places[1]
    )
    for b in range(start, stop):
        n, count = lengths[b], counts[b]
        for i in range(n):
            sizes[i] = 0
            for h in range(n + 1):
                if mean[b, h, i + 1] > 0:
                    heads[i, sizes[i]], rows[i, h] = h, cotangent[b, h, i + 1]
                    sizes[i] += 1
        for k in range(count):
            for h in range(n + 1):
                members[k, h] = 1.0 if active[b, k, h] else 0.0
        project_onto_face(n, members, count, 0.0, point, program)
        for i in range(n):
            for p in range(sizes[i]):
                product[b, heads[i, p], i + 1] = rows[i, heads[i, p]]
