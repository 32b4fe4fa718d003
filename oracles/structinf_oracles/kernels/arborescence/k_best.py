"""The k best rooted trees in O(k n²), compiled. Importing this module imports numba.

Sets of trees have forced and forbidden arcs. The best tree of a set gives the second best tree of the set in O(n²):
each node or contracted cycle, at the time of its choice of an arc, could have chosen another arc into it. The second
best tree makes one such exchange, the exchange that loses the least, from a head that is no descendant. Its arc divides
the set in two: trees with the arc, whose best tree is known, and trees without, whose best tree is the second best. So
a tree takes two searches instead of one search for each word.

References
----------
P. M. Camerini, L. Fratta & F. Maffioli, The k best spanning arborescences of a network (Networks 10, 1980). R. Zmigrod,
T. Vieira & R. Cotterell, On finding the K-best non-projective dependency trees (ACL 2021), for one root.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .argmax import best_head, grow

__all__ = ["topk"]

# Columns of the table of restrictions: the set that is restricted further, an arc, and whether the arc is forced.
_SET, _HEAD, _WORD, _FORCED = 0, 1, 2, 3


@jit
def _fill(scores, theta, n, restrictions, number):
    """Write the scores of set ``number``, [word, head], with −inf for arcs that its trees do not use."""
    for h in range(n + 1):
        for i in range(n):
            scores[i, h] = theta[h, i + 1]
    for i in range(n):
        scores[i, i + 1] = -np.inf
    while number > 0:
        head, word = restrictions[number, _HEAD], restrictions[number, _WORD]
        if restrictions[number, _FORCED] == 1:
            kept = scores[word, head]
            for h in range(n + 1):
                scores[word, h] = -np.inf
            scores[word, head] = kept
        else:
            scores[word, head] = -np.inf
        number = restrictions[number, _SET]


@jit
def _mark_descendants(sources, order, word, n, below):
    """Mark the words under ``word``, itself included. ``order`` lists heads before their dependents."""
    for place in range(n):
        i = order[place]
        below[i] = i == word or (sources[i] > 0 and below[sources[i] - 1])


@jit
def _sort_by_depth(sources, n, order, below):
    """Write the words to ``order``, heads before their dependents; ``below`` marks words already listed."""
    below[:n] = False
    count = 0
    while count < n:
        for i in range(n):
            if not below[i] and (sources[i] == 0 or below[sources[i] - 1]):
                below[i] = True
                order[count] = i
                count += 1


@jit
def _least_loss(scores, entries, parent, sources, first, order, below, n, single_root):
    """Return the loss of the best exchange, and the head and the word of the arc that it drops; inf if there is none.

    The arguments are those of :func:`grow` after a search. ``first``, ``order`` and ``below`` are memory.
    """
    nodes = n
    for i in range(2 * n):
        if i < nodes and parent[i] >= nodes:
            nodes = parent[i] + 1
    _sort_by_depth(sources, n, order, below)
    for node in range(nodes):
        first[node] = best_head(scores, node, n, single_root)
    loss, head, word = np.inf, -1, -1
    for node in range(nodes):
        source = first[node]
        if source != sources[node]:  # the arc into a contracted cycle has replaced this choice
            continue
        entry, top = entries[node, source], scores[node, source]
        _mark_descendants(sources, order, entry, n, below)
        for h in range(n + 1):
            # Another number of arcs from the root is no tree with a single root.
            if h == source or (h > 0 and below[h - 1]) or (single_root and (h == 0) != (source == 0)):
                continue
            if top - scores[node, h] < loss:
                loss, head, word = top - scores[node, h], source, entry
    # Arcs from the same head to another word of a contracted cycle, of which the rows of scores keep only the best.
    for i in range(n):
        node = i
        while parent[node] >= 0:
            node = parent[node]
            source = first[node]
            if source != sources[node] or entries[node, source] == i or scores[i, source] == -np.inf:
                continue
            score, member = scores[i, source], i
            while member != node:
                score -= scores[member, first[member]]
                member = parent[member]
            if scores[node, source] - score < loss:
                loss, head, word = scores[node, source] - score, source, entries[node, source]
    return loss, head, word


@jit
def _total(theta, sources, n, single_root):
    """Return the score of a tree; −inf if it has several roots and may not."""
    total, roots = 0.0, 0
    for i in range(n):
        roots += 1 if sources[i] == 0 else 0
        total += theta[sources[i], i + 1]
    return -np.inf if single_root and roots != 1 else total


@jit
def topk(start, stop, theta, lengths, single_root, y, value):
    """Find the k best trees of the instances start : stop, best first up to rounding.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float32 or float64
        Scores of the arcs.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    y : (k, B, n + 1, n + 1), as theta
        Zero on entry; the arcs of the trees are set to 1.
    value : (k, B) float64
        −inf on entry. Written: scores of the trees.
    """
    k, width = y.shape[0], theta.shape[1]
    scores, entries = np.empty((2 * width, width)), np.empty((2 * width, width), np.int64)
    stack = np.empty((7, 2 * width), np.int64)
    owner, parent, sources, state, path, first, order = (
        stack[0],
        stack[1],
        stack[2],
        stack[3],
        stack[4],
        stack[5],
        stack[6],
    )
    below = np.empty(2 * width, np.bool_)
    # A candidate is a set, its best tree, an arc of this tree, and the best score in the set without the arc.
    restrictions = np.zeros((2 * k, 4), np.int64)
    bound, arc, tree = np.empty(2 * k), np.empty((2 * k, 3), np.int64), np.empty((2 * k, width), np.int64)
    for b in range(start, stop):
        n = lengths[b]
        _fill(scores, theta[b], n, restrictions, 0)
        if not grow(scores, entries, owner, parent, sources, state, path, n, single_root):
            continue
        total = _total(theta[b], sources, n, single_root)
        if total == -np.inf:
            continue
        value[0, b] = total
        for i in range(n):
            y[0, b, sources[i], i + 1] = 1
            tree[0, i] = sources[i]
        loss, head, word = _least_loss(scores, entries, parent, sources, first, order, below, n, single_root)
        bound[0], arc[0, 0], arc[0, 1], arc[0, 2] = total - loss, head, word, 0
        candidates, sets, rank = 1, 1, 1
        while rank < k:
            chosen = 0
            for c in range(candidates):
                if bound[c] > bound[chosen]:
                    chosen = c
            if bound[chosen] == -np.inf:
                break
            head, word, number = arc[chosen, 0], arc[chosen, 1], arc[chosen, 2]
            bound[chosen] = -np.inf
            for forced in range(2):
                own = sets
                sets += 1
                restrictions[own, _SET], restrictions[own, _FORCED] = number, forced
                restrictions[own, _HEAD], restrictions[own, _WORD] = head, word
                _fill(scores, theta[b], n, restrictions, own)
                if not grow(scores, entries, owner, parent, sources, state, path, n, single_root):
                    continue
                total = _total(theta[b], sources, n, single_root)
                if total == -np.inf:
                    continue
                # The set without the arc takes a new place; the set with the arc keeps the place and the tree.
                place = chosen
                if forced == 0:
                    value[rank, b] = total
                    place = candidates
                    candidates += 1
                    for i in range(n):
                        y[rank, b, sources[i], i + 1] = 1
                        tree[place, i] = sources[i]
                other = -1
                for i in range(n):
                    if sources[i] != tree[place, i]:
                        other = i
                if other >= 0:
                    # An equally good tree, by the order of ties or by rounding: it is the second best of the set.
                    bound[place], arc[place, 0], arc[place, 1] = total, tree[place, other], other
                else:
                    loss, head_out, word_out = _least_loss(
                        scores, entries, parent, sources, first, order, below, n, single_root
                    )
                    bound[place], arc[place, 0], arc[place, 1] = total - loss, head_out, word_out
                arc[place, 2] = own
            rank += 1
