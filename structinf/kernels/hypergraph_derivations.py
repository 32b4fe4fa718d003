"""Single derivations of a hypergraph: exact samples, and the k best. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from .elementary import exp, log
from .hypergraph import LANES, inside
from .jit import jit

__all__ = ["kbest", "sample"]


@jit
def sample(start, stop, theta, goal, offset, part, tails, degree, alpha, size, uniforms, out_value, out):
    """Random walks from the goals down, a hyperedge of a node with its probability q.

    Parameters
    ----------
    size : int64
        The largest number of hyperedges of a derivation of a goal.
    uniforms : (n, B, size) float64
    out_value : (B,) float64
        DP_Ω; where it is −inf, nothing is drawn.
    out : (n, B, P) zeros
    """
    nodes = 1
    for b in range(start, stop):
        nodes = max(nodes, goal[b] + 1)
    stack, q, parts = np.empty(size + 1, np.int64), np.empty(degree), theta.shape[1]
    for first in range(start, stop, LANES):
        lanes = min(LANES, stop - first)
        v, tau, x = np.empty((len(offset), lanes)), np.empty((nodes, lanes)), np.empty((degree, lanes))
        inside(theta, first, offset, part, tails, alpha, v, tau, x)
        for c in range(lanes):
            b = first + c
            out_value[b] = v[goal[b], c]
            if out_value[b] == -np.inf:
                continue
            for n in range(len(out)):
                stack[0], waiting, drawn = goal[b], 1, 0
                while waiting:
                    waiting -= 1
                    i = stack[waiting]
                    edge, count = offset[i], offset[i + 1] - offset[i]
                    total = 0.0
                    for k in range(count):
                        score = v[tails[edge + k, 0], c] + v[tails[edge + k, 1], c]
                        if part[edge + k] < parts:
                            score += theta[b, part[edge + k]]
                        q[k] = _probability(score, k, tau[i, c], alpha)
                        total += q[k]
                    rest, chosen = uniforms[n, b, drawn] * total, 0
                    drawn += 1
                    # The last one of positive probability, should rounding leave something of ``rest``.
                    for k in range(count):
                        if q[k] > 0:
                            chosen = k
                            rest -= q[k]
                            if rest < 0:
                                break
                    edge += chosen
                    if part[edge] < parts:
                        out[n, b, part[edge]] += 1
                    for j in range(2):
                        if tails[edge, j] < len(offset) - 1:
                            stack[waiting] = tails[edge, j]
                            waiting += 1


@jit
def _probability(score, k, tau, alpha):
    if alpha == 1:
        return exp(score - tau)
    if alpha == np.inf:
        return 1.0 if k == tau else 0.0
    return exp(log(max((alpha - 1.0) * (score - tau), 0.0)) / (alpha - 1.0))


@jit
def kbest(start, stop, scores, by_edge, goal, offset, part, tails, size, out_score, out):
    """The k derivations of each goal with the highest scores, best first; ties in the order of the hyperedges.

    Parameters
    ----------
    scores : (B, P) or (B, E) float64
        Of the parts; or of the hyperedges, if ``by_edge``.
    size : int64
        The largest number of hyperedges of a derivation of a goal.
    out_score : (k, B) float64
        −inf where there are fewer.
    out : (k, B, P) zeros
    """
    most, nodes = len(out_score), 1
    for b in range(start, stop):
        nodes = max(nodes, goal[b] + 1)
    found = np.zeros(len(offset), np.int64)
    best, edge_of, ranks = (
        np.empty((len(offset), most)),
        np.empty((nodes, most), np.int64),
        np.empty((nodes, most, 2), np.int64),
    )
    # No tail: one derivation, of score 0.
    found[-1], best[-1, 0] = 1, 0.0
    stack, rank = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64)
    for b in range(start, stop):
        for i in range(nodes):
            found[i] = 0
            for edge in range(offset[i], offset[i + 1]):
                number = edge if by_edge else part[edge]
                own = scores[b, number] if number < scores.shape[1] else 0.0
                if own == -np.inf:
                    continue
                one, other = tails[edge, 0], tails[edge, 1]
                for r in range(found[one]):
                    # The (r + 1)(t + 1) − 1 pairs of lower ranks are no worse.
                    for t in range(min(found[other], most // (r + 1))):
                        score = own + best[one, r] + best[other, t]
                        if found[i] == most and score <= best[i, most - 1]:
                            break
                        place = min(found[i], most - 1)
                        while place > 0 and best[i, place - 1] < score:
                            best[i, place], edge_of[i, place] = best[i, place - 1], edge_of[i, place - 1]
                            ranks[i, place, 0], ranks[i, place, 1] = ranks[i, place - 1, 0], ranks[i, place - 1, 1]
                            place -= 1
                        best[i, place], edge_of[i, place] = score, edge
                        ranks[i, place, 0], ranks[i, place, 1] = r, t
                        found[i] = min(found[i] + 1, most)
        for n in range(most):
            if n >= found[goal[b]]:
                out_score[n, b] = -np.inf
                continue
            out_score[n, b] = best[goal[b], n]
            stack[0], rank[0], waiting = goal[b], n, 1
            while waiting:
                waiting -= 1
                i, r = stack[waiting], rank[waiting]
                edge = edge_of[i, r]
                if part[edge] < out.shape[2]:
                    out[n, b, part[edge]] += 1
                for j in range(2):
                    if tails[edge, j] < len(offset) - 1:
                        stack[waiting], rank[waiting] = tails[edge, j], ranks[i, r, j]
                        waiting += 1
