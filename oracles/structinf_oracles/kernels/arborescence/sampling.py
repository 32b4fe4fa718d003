"""Exact samples of rooted trees from their elimination, compiled. Importing this module imports numba.

Reversing the elimination of :mod:`.elimination` draws a tree. Words return in the order 0, 1, ..., n − 1. Before word
k returns, there is a random tree over the words i < k, of the walk in which k is rerouted. In this walk, the step
from i to j has weight a[j, i] + a[k, i] p_k[j]. Then

1. each arc i -> j goes through k with probability a[k, i] p_k[j] / (a[j, i] + a[k, i] p_k[j]), and is cut;
2. k picks its head with probability proportional to p_k, among the root and the words that still lead to the root;
3. the words whose arcs were cut get k as their head.

Proof of exactness. Fix the set C of the cut words and the other arcs. Sum over the possible heads of the words in C
before the cut. The weight of these trees is Π_C a[k, i] times a sum over trees of the |C| cut components and the
root's component. In this sum, an arc into a component has weight Σ p_k over the component. These weights sum to 1. So
by Cayley's formula with weights, the sum over trees is the Σ p_k over the root's component. The trees after step 3
have the same total weight times s_k, as the head of k may be any node of the root's component.

The history of an arc is drawn when the arc is made. The weight of i -> j in the walk over 0, ..., k is the sum of
a[j, i] and of a[m, i] p_m[j] over all m > k. In proportion to these terms, the arc will go through no word or through
m.

One elimination serves all samples. A sample takes about n² operations (n³ at most), whatever the weights. Wilson's
algorithm (1996) takes as many steps as the random walk to the root: exp(100) steps if two words prefer each other by
100.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .elimination import (
    BASE,
    CHAIN,
    HIGH,
    INFEASIBLE,
    INVERSE,
    LOW,
    OUT_OF_RANGE,
    STEP,
    eliminate,
    load_weights,
    workspace,
)

__all__ = ["sample_heads"]


@jit
def _uniform(state):
    """Return a uniform number in [0, 1) by SplitMix64 (Steele, Lea & Flood 2014, OOPSLA)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@jit
def _choose(weights, exponents, count, state):
    """Return a random index below ``count``, with probabilities proportional to the weights; −1 if all are 0."""
    if exponents is not None:
        top = -np.inf
        for j in range(count):
            if weights[j] > HIGH:
                weights[j], exponents[j] = weights[j] * INVERSE, exponents[j] + 1
            elif 0 < weights[j] < LOW:
                weights[j], exponents[j] = weights[j] * BASE, exponents[j] - 1
            top = exponents[j] if weights[j] > 0 and exponents[j] > top else top
        for j in range(count):
            gap = top - exponents[j]
            weights[j] *= 1.0 if gap == 0 else (INVERSE if gap == 1 else 0.0)
    total = 0.0
    for j in range(count):
        total += weights[j]
    target = _uniform(state) * total
    last = -1
    for j in range(count):
        if weights[j] > 0:
            last = j
            target -= weights[j]
            if target < 0:
                break
    return last


@jit
def _route(x, e, k, i, row, size, weights, exponents, state):
    """Draw the word m > k that an arc from i to the head at ``row`` goes through; ``size`` if none.

    The arc is made when word k returns.
    """
    for m in range(k + 1, size):
        weights[m] = x[1, CHAIN, 2 + m, i] * x[1, STEP, m, row]
    weights[size] = x[0, CHAIN, row, i]
    if e is not None:
        for m in range(k + 1, size):
            exponents[m] = e[1, CHAIN, 2 + m, i] + e[1, STEP, m, row]
        exponents[size] = e[0, CHAIN, row, i]
    for m in range(k + 1):
        weights[m] = 0
    return _choose(weights, exponents, size + 1, state)


@jit
def _leads_to_root(heads, routes, k, reach):
    """Set ``reach[i]`` to 1 if word i < k leads to the root, and to 0 if an arc cut by k blocks the way."""
    for i in range(k):
        reach[i] = -1
    for i in range(k):
        end = i
        while reach[end] < 0 and routes[end] != k and heads[end] > 1:
            end = heads[end] - 2
        found = reach[end] if reach[end] >= 0 else (0 if routes[end] == k else 1)
        j = i
        while reach[j] < 0:
            reach[j] = found
            if j != end:
                j = heads[j] - 2


@jit
def _factor(theta, b, x, e, size, single_root, certain):
    """Write the weights of instance b to level 0, and their elimination to level 1.

    ``certain[k]`` is set to 1 if the pivot of word k has order t. Returns 0, INFEASIBLE or OUT_OF_RANGE.
    """
    code = load_weights(theta, b, None, x, e, None, size, single_root)
    if code < 0:
        return code
    for j in range(size + 2):
        for i in range(size):
            x[1, CHAIN, j, i] = x[0, CHAIN, j, i]
            if e is not None:
                e[1, CHAIN, j, i] = e[0, CHAIN, j, i]
    orders = 0
    for k in range(size - 1, -1, -1):
        order = eliminate(x, e, None, 1, k + 1, k, code > 0)
        if order < 0:
            return order
        certain[k] = order
        orders += order
    return INFEASIBLE if orders > 1 else 0


@jit
def _draw(x, e, size, weights, exponents, certain, heads, routes, reach, state):
    """Draw one tree: ``heads[i]`` is the row of word i's head in a chain (0 and 1: the root)."""
    for k in range(size):
        cut = 0
        for i in range(k):
            cut += 1 if routes[i] == k else 0
        if cut > 0:
            _leads_to_root(heads, routes, k, reach)
        weights[0] = x[1, STEP, k, 0]
        for j in range(k):
            weights[1 + j] = x[1, STEP, k, 2 + j] if cut == 0 or reach[j] == 1 else 0.0
        if e is not None:
            exponents[0] = e[1, STEP, k, 0]
            for j in range(k):
                exponents[1 + j] = e[1, STEP, k, 2 + j]
        pick = _choose(weights, exponents, k + 1, state)
        # The root at order t is a candidate only if no other head is possible.
        row = 1 + pick if pick > 0 else (1 if pick < 0 or certain[k] == 1 else 0)
        heads[k] = row
        routes[k] = _route(x, e, k, k, row, size, weights, exponents, state)
        if cut > 0:
            for i in range(k):
                if routes[i] == k:
                    heads[i] = 2 + k
                    routes[i] = _route(x, e, k, i, 2 + k, size, weights, exponents, state)


@jit
def sample_heads(start, stop, theta, lengths, single_root, with_exponents, seeds, heads, status):
    """Write the heads of exact samples of the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float64
        Scores of the arcs.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    with_exponents : None or bool
        None: without exponents.
    seeds : (samples, B) uint64
        Seed of the random stream of each tree.
    heads : (samples, B, n) int64
        Written inside each length: 0 for the root, 1, ..., n for a word.
    status : (B,) int64
        Read and written: only instances with OUT_OF_RANGE are computed. They become 0, or INFEASIBLE without a tree,
        or keep OUT_OF_RANGE if samples are missing.
    """
    n = theta.shape[1] - 1
    kinds = 1 if with_exponents is None else 2
    numbers = workspace(kinds, 2, n)
    x = numbers[0]
    e = None if with_exponents is None else numbers[1]
    choices = np.empty((kinds, n + 1))
    weights = choices[0]
    exponents = None if with_exponents is None else choices[1]
    stack = np.empty((4, n), np.int64)
    certain, rows, routes, reach = stack[0], stack[1], stack[2], stack[3]
    state = np.empty(1, np.uint64)
    for b in range(start, stop):
        if status[b] != OUT_OF_RANGE:
            continue
        size = lengths[b]
        status[b] = _factor(theta, b, x, e, size, single_root, certain)
        if status[b] != 0:
            continue
        for sample in range(seeds.shape[0]):
            state[0] = seeds[sample, b]
            _draw(x, e, size, weights, exponents, certain, rows, routes, reach, state)
            for i in range(size):
                heads[sample, b, i] = max(rows[i] - 1, 0)
