"""Derivations of a hypergraph: samples, the k best, all, and their parts. Importing this module imports numba.

The kernels walk a derivation from the goal down, with a stack of nodes whose hyperedge is not chosen yet. A node leaves
the stack before its tails enter, so the stack holds at most one node more than the graph has levels. ``graph`` is
a `structinf.dp.blocks.Blocks`, and ``goal`` is (B,) int64.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from ..simd.memory import rows
from ..simd.vector import LANES
from .smoothed_passes import first_node, inside, last_node

__all__ = ["k_best", "list_derivations", "sample", "sample_from_probabilities", "used_parts"]


@jit
def _descend(edge, graph, parts, stack, waiting):
    """Count the part of a hyperedge in ``parts`` (P,), push its tails on the stack, and return the stack's size."""
    if graph.part[edge] < len(parts):
        parts[graph.part[edge]] += 1
    for j in range(2):
        if graph.tails[edge, j] < len(graph.offset) - 1:
            stack[waiting] = graph.tails[edge, j]
            waiting += 1
    return waiting


# ----------------------------------------------------------------------------- samples


@jit
def sample(start, stop, tables, theta, goal, graph, alpha, out_value, uniforms, out):
    """Draw n derivations of each goal by random walks, for the groups ``start:stop`` of LANES instances.

    From the goal down, each node gets a hyperedge drawn with the probabilities q.

    Parameters
    ----------
    tables : (3, N + 1, LANES) float64
        Scratch.
    theta : (B, P) float32 or float64
        The scores.
    alpha : None or float64
        The α of the regularizer, None for 1, see :mod:`structinf.kernels.smooth_max`.
    out_value : (B,) float64, written
        DP_Ω. Instances with the value −inf get no samples.
    uniforms : (n, B, size) float64
        Random numbers in [0, 1). ``size`` is the largest number of hyperedges of a derivation.
    out : (n, B, P), initially zero, written
        The number of uses of each part.
    """
    v, top, t = tables[0], tables[1], tables[2]
    part_scores, x = rows(graph.height + 1, theta.dtype), rows(graph.degree, np.float64)
    scaled = rows(graph.degree, theta.dtype)
    stack, q = np.empty(graph.depth + 1, np.int64), np.empty(graph.degree)
    for first in range(start * LANES, min(stop * LANES, len(goal)), LANES):
        begin, nodes = first_node(goal, first, graph), last_node(goal, first)
        inside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, part_scores, x, scaled)
        for c in range(min(LANES, len(goal) - first)):
            b = first + c
            out_value[b] = v[goal[b], c]
            for n in range(len(out) if out_value[b] > -np.inf else 0):
                stack[0], waiting, drawn = goal[b], 1, 0
                while waiting:
                    i = stack[waiting - 1]
                    edge, count = graph.offset[i], graph.offset[i + 1] - graph.offset[i]
                    for k in range(count):
                        score = v[graph.tails[edge + k, 0], c] + v[graph.tails[edge + k, 1], c]
                        if graph.part[edge + k] < theta.shape[1]:
                            score += theta[b, graph.part[edge + k]]
                        q[k] = _probability(score - top[i, c], k, t[i, c], alpha)
                    edge += _choose(q[:count], uniforms[n, b, drawn])
                    waiting = _descend(edge, graph, out[n, b], stack, waiting - 1)
                    drawn += 1


@jit
def sample_from_probabilities(start, stop, q, goal, graph, uniforms, out):
    """Draw derivations as :func:`sample` does, from given ``q`` (B, E) float64, for the instances ``start:stop``."""
    stack = np.empty(graph.depth + 1, np.int64)
    for b in range(start, stop):
        for n in range(len(out)):
            stack[0], waiting, drawn = goal[b], 1, 0
            while waiting:
                i = stack[waiting - 1]
                edge = graph.offset[i]
                edge += _choose(q[b, edge : graph.offset[i + 1]], uniforms[n, b, drawn])
                waiting = _descend(edge, graph, out[n, b], stack, waiting - 1)
                drawn += 1


@jit
def _probability(difference, k, t, alpha):
    """Return q of the hyperedge k, given its score minus the best score, which is finite."""
    if alpha is None:
        return exp(difference - t)
    if alpha == np.inf:
        return 1.0 if k == t else 0.0
    return exp(log(max((alpha - 1.0) * (difference - t), 0.0)) / (alpha - 1.0))


@jit
def _choose(q, uniform):
    """Draw an index with probabilities proportional to ``q``, never an index with probability 0."""
    remaining, chosen = uniform * q.sum(), 0
    # If rounding leaves ``remaining`` positive, the last index of positive probability is chosen.
    for k in range(len(q)):
        if q[k] > 0:
            chosen = k
            remaining -= q[k]
            if remaining < 0:
                break
    return chosen


# ----------------------------------------------------------------------------- lists


@jit
def k_best(start, stop, theta, goal, graph, out_score, out):
    """Write the k best derivations of each goal, best first. The order of the hyperedges breaks ties.

    Parameters
    ----------
    theta : (B, P) float64
        The scores.
    out_score : (k, B) float64, written
        The scores of the derivations; −inf beyond the number of derivations.
    out : (k, B, P), initially zero, written
        The number of uses of each part.
    """
    k, nodes = len(out_score), 1
    for b in range(start, stop):
        nodes = max(nodes, goal[b] + 1)
    count, best = np.zeros(len(graph.offset), np.int64), np.empty((len(graph.offset), k))
    best_edge, ranks = np.empty((nodes, k), np.int32), np.empty((nodes, k, 2), np.int32)
    # A missing tail has one derivation, with score 0.
    count[-1], best[-1, 0] = 1, 0.0
    stack, rank = np.empty(graph.depth + 1, np.int64), np.empty(graph.depth + 1, np.int64)
    for b in range(start, stop):
        for i in range(graph.begin[goal[b]], goal[b] + 1):
            count[i] = 0
            for edge in range(graph.offset[i], graph.offset[i + 1]):
                part_score = theta[b, graph.part[edge]] if graph.part[edge] < theta.shape[1] else 0.0
                one, other = graph.tails[edge, 0], graph.tails[edge, 1]
                for r in range(count[one] if part_score > -np.inf else 0):
                    # The other (r + 1)(t + 1) − 1 pairs of ranks up to r and t have at least the score of this pair.
                    for t in range(min(count[other], k // (r + 1))):
                        score = part_score + best[one, r] + best[other, t]
                        if count[i] == k and score <= best[i, k - 1]:
                            break
                        place = min(count[i], k - 1)
                        while place > 0 and best[i, place - 1] < score:
                            best[i, place], best_edge[i, place] = best[i, place - 1], best_edge[i, place - 1]
                            ranks[i, place] = ranks[i, place - 1]
                            place -= 1
                        best[i, place], best_edge[i, place] = score, edge
                        ranks[i, place, 0], ranks[i, place, 1] = r, t
                        count[i] = min(count[i] + 1, k)
        for n in range(k):
            out_score[n, b] = best[goal[b], n] if n < count[goal[b]] else -np.inf
            stack[0], rank[0], waiting = goal[b], n, 1 if n < count[goal[b]] else 0
            while waiting:
                i, r = stack[waiting - 1], rank[waiting - 1]
                waiting = _descend_ranked(
                    best_edge[i, r], ranks[i, r, 0], ranks[i, r, 1], graph, out[n, b], stack, rank, waiting - 1
                )


@jit
def _descend_ranked(edge, one, other, graph, parts, stack, rank, waiting):
    """Do the work of `_descend`, and push the rank of each tail's derivation. Ranks of missing tails are ignored."""
    rank[waiting] = one if graph.tails[edge, 0] < len(graph.offset) - 1 else other
    above = _descend(edge, graph, parts, stack, waiting)
    if above == waiting + 2:
        rank[waiting + 1] = other
    return above


@jit
def list_derivations(start, stop, scores, goal, graph, out_score, out):
    """Write all derivations of each goal that use no hyperedge with score −inf.

    Derivations are ordered by their hyperedges, compared from the goal down.

    Parameters
    ----------
    scores : (B, E) float64
        The scores of the hyperedges.
    out_score : (K, B) float64, written
        The score of each derivation; −inf beyond the number of derivations. K is the largest number in the batch.
    out : (K, B, P), initially zero, written
        The number of uses of each part.
    """
    # Counts of nodes in no derivation of the goal may overflow, but are not used.
    counts = np.ones(len(graph.offset), np.int64)
    stack, rank = np.empty(graph.depth + 1, np.int64), np.empty(graph.depth + 1, np.int64)
    for b in range(start, stop):
        for i in range(graph.begin[goal[b]], goal[b] + 1):
            counts[i] = 0
            for edge in range(graph.offset[i], graph.offset[i + 1]):
                counts[i] += _count_derivations(edge, scores[b], graph, counts)
        for n in range(len(out)):
            stack[0], rank[0], waiting = goal[b], n, 1 if n < counts[goal[b]] else 0
            out_score[n, b] = 0.0 if waiting else -np.inf
            while waiting:
                edge, left = graph.offset[stack[waiting - 1]], rank[waiting - 1]
                derivations = _count_derivations(edge, scores[b], graph, counts)
                while left >= derivations:
                    left -= derivations
                    edge += 1
                    derivations = _count_derivations(edge, scores[b], graph, counts)
                out_score[n, b] += scores[b, edge]
                below = counts[graph.tails[edge, 1]]
                waiting = _descend_ranked(edge, left // below, left % below, graph, out[n, b], stack, rank, waiting - 1)


@jit
def _count_derivations(edge, scores, graph, counts):
    return counts[graph.tails[edge, 0]] * counts[graph.tails[edge, 1]] if scores[edge] > -np.inf else 0


# ----------------------------------------------------------------------------- parts


@jit
def used_parts(start, stop, goal, graph, out):
    """Write to ``out`` (B, P) bool whether a derivation of each goal uses each part, for groups of 64 goals."""
    parts = out.shape[1]
    for first in range(start * 64, min(stop * 64, len(goal)), 64):
        # The masks have one bit for each goal of the group.
        needed, used = np.zeros(len(graph.offset), np.uint64), np.zeros(parts + 1, np.uint64)
        begin, nodes, count = len(graph.offset), 0, min(64, len(goal) - first)
        for c in range(count):
            needed[goal[first + c]] |= np.uint64(1) << np.uint64(c)
            begin, nodes = min(begin, graph.begin[goal[first + c]]), max(nodes, goal[first + c] + 1)
        for i in range(nodes - 1, begin - 1, -1):
            for edge in range(graph.offset[i], graph.offset[i + 1] if needed[i] else graph.offset[i]):
                used[graph.part[edge]] |= needed[i]
                needed[graph.tails[edge, 0]] |= needed[i]
                needed[graph.tails[edge, 1]] |= needed[i]
        for c in range(count):
            row = out[first + c]
            for p in range(parts):
                row[p] = (used[p] >> np.uint64(c)) & np.uint64(1)
