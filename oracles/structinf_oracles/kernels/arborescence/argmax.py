"""Rooted trees of highest score in O(n²), compiled. Importing this module imports numba.

The algorithm is Chu-Liu & Edmonds' contraction, organised by growing a path (Gabow, Galil, Spencer & Tarjan 1986,
Efficient algorithms for finding minimum spanning trees in undirected and directed graphs, Combinatorica 6; Tarjan
1977, Finding optimum branchings, Networks 7, for dense graphs). From any word, walk from each node to its best head.
If the walk reaches a node already connected to the root, the whole path is connected. If the walk closes a cycle, the
cycle becomes one node. An arc into the cycle replaces the cycle's arc into the same member. So the score of an arc
into the new node is its own score minus the score of the replaced arc. The row of scores of each node is merged into
another row once, in O(n).

Single root. Compare scores as pairs (− number of root arcs, score). The best tree then has the highest score among
the trees with the fewest root arcs. The algorithm works in every ordered group, such as these pairs. A cycle never
contains a root arc. So the first component of subtracted scores is always 0, and a root arc always ranks below all
other arcs. A root arc is therefore taken only if no other arc is left. If two root arcs are taken, no tree has a
single root. (For two numbers in one, see Stanojević & Cohen 2021, A root of a problem, EMNLP; for other degrees,
Gabow & Tarjan 1984.)
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["argmax", "argmax_indices", "best_head", "grow"]

_FRESH, _ON_PATH, _HANGS = 0, 1, 2


@jit
def best_head(scores, node, n, single_root):
    """Return the source of the best arc into ``node``, the lowest of equals; −1 if every arc is forbidden."""
    best, source = -np.inf, -1
    for h in range(1 if single_root else 0, n + 1):
        score = scores[node, h]
        if score > best:
            best, source = score, h
    if source < 0 and scores[node, 0] > -np.inf:
        source = 0
    return source


@jit
def _contract(scores, entries, owner, parent, sources, path, first, depth, new, n):
    """Merge the nodes path[first : depth], which form a cycle, into node ``new``."""
    for h in range(n + 1):
        scores[new, h], entries[new, h] = -np.inf, 0
    for p in range(first, depth):
        member = path[p]
        displaced = scores[member, sources[member]]
        parent[member] = new
        for h in range(n + 1):
            score = scores[member, h] - displaced
            better = score > scores[new, h]
            scores[new, h] = score if better else scores[new, h]
            entries[new, h] = entries[member, h] if better else entries[new, h]
    for h in range(1, n + 1):
        if parent[owner[h]] == new:
            owner[h] = new
        if owner[h] == new:
            scores[new, h] = -np.inf


@jit
def _expand(entries, parent, sources, nodes, n):
    """Undo the contractions, latest first: the arc into a contracted node replaces one arc of the cycle."""
    for node in range(nodes - 1, n - 1, -1):
        source = sources[node]
        member = entries[node, source]
        while parent[member] != node:
            member = parent[member]
        sources[member] = source


@jit
def grow(scores, entries, owner, parent, sources, state, path, n, single_root):
    """Write the best head of each of n words to ``sources``, for scores[word, head]; return False if there is no tree.

    Nodes 0, ..., n − 1 are the words. ``owner[h]`` is the node that contains vertex h of θ, −1 for the root.
    """
    owner[0] = -1
    for i in range(n):
        owner[i + 1], parent[i], state[i] = i, -1, _FRESH
        for h in range(n + 1):
            entries[i, h] = i
    nodes = n
    for word in range(n):
        if state[owner[word + 1]] == _HANGS:
            continue
        path[0], depth = word, 1
        state[word] = _ON_PATH
        while True:
            node = path[depth - 1]
            source = best_head(scores, node, n, single_root)
            if source < 0:
                return False
            sources[node] = source
            head = owner[source]
            if head < 0 or state[head] == _HANGS:
                break
            if state[head] == _FRESH:
                path[depth] = head
                state[head] = _ON_PATH
                depth += 1
            else:
                first = depth - 1
                while path[first] != head:
                    first -= 1
                parent[nodes], state[nodes] = -1, _ON_PATH
                _contract(scores, entries, owner, parent, sources, path, first, depth, nodes, n)
                path[first], depth = nodes, first + 1
                nodes += 1
        for p in range(depth):
            state[path[p]] = _HANGS
    _expand(entries, parent, sources, nodes, n)
    return True


@jit
def _new_memory(width):
    """Return memory for :func:`_find_heads`: scores, entries and a stack, whose row 2 has the heads."""
    return np.empty((2 * width, width)), np.empty((2 * width, width), np.int64), np.empty((5, 2 * width), np.int64)


@jit
def _find_heads(theta, n, single_root, memory):
    """Write the heads of ``n`` words to ``memory``; return the score of the tree, −inf if there is none."""
    scores, entries, stack = memory
    sources = stack[2]
    for h in range(n + 1):
        for i in range(n):
            scores[i, h] = theta[h, i + 1]
    for i in range(n):
        scores[i, i + 1] = -np.inf
    if not grow(scores, entries, stack[0], stack[1], sources, stack[3], stack[4], n, single_root):
        return -np.inf
    roots, total = 0, 0.0
    for i in range(n):
        roots += 1 if sources[i] == 0 else 0
        total += theta[sources[i], i + 1]
    return total if not single_root or roots == 1 else -np.inf


@jit
def argmax(start, stop, theta, lengths, single_root, y, value):
    """Find trees of highest score of the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float32 or float64
        Scores of the arcs.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    y : as theta
        Zero on entry; the arcs of the tree are set to 1.
    value : (B,) float64
        Written: score of the tree, −inf if there is none.
    """
    memory = _new_memory(theta.shape[1])
    heads = memory[2][2]
    for b in range(start, stop):
        value[b] = _find_heads(theta[b], lengths[b], single_root, memory)
        if value[b] > -np.inf:
            for i in range(lengths[b]):
                y[b, heads[i], i + 1] = 1


@jit
def argmax_indices(start, stop, theta, lengths, single_root, value, parts):
    """Find the trees of :func:`argmax` as lists of arcs.

    ``parts`` (B, n) is written: head · (n + 1) + word for each word, and −1 beyond the length.
    """
    width = theta.shape[1]
    memory = _new_memory(width)
    heads = memory[2][2]
    for b in range(start, stop):
        value[b] = _find_heads(theta[b], lengths[b], single_root, memory)
        for i in range(width - 1):
            parts[b, i] = heads[i] * width + i + 1 if i < lengths[b] else -1
