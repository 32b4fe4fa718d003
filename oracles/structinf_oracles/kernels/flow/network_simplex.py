"""Flows of highest score by the primal network simplex method.

The problem is max Σ_e gain_e flow_e over integer flows with 0 <= flow_e <= capacity_e that balance each node's
supply.

A basis is a spanning tree with an extra root. An artificial edge joins each node to the root. Edges outside the tree
are empty or full. The price of a node is the gain of a unit on the way from the node to the root. An edge enters the
tree if a unit along the edge, and around the cycle closed by the edge, gains. Trees are kept *strongly feasible*:
from every node some flow can be pushed to the root. Then no tree occurs twice, and the method terminates (Cunningham
1976).

Prices are exact, so that neither rounding nor the scale of the scores matters. A unit on an artificial edge costs
more than any score. Such units are counted separately, as the first of two numbers compared lexicographically. The
second number is an unevaluated sum of two floats, 106 bits. It holds sums of float64 scores over any tree exactly,
unless the scores differ by about 15 orders of magnitude or more. A gain smaller than its last bits counts as 0.

References
----------
Cunningham 1976, "A network simplex method", Mathematical Programming 11, pp. 105-116. Király and Kovács 2012,
"Efficient implementations of minimum-cost flow algorithms", Acta Univ. Sapientiae Informatica 4, pp. 67-118, section
3.6. Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B (exact sums of two floats).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

from .limits import UNLIMITED

__all__ = ["FOUND", "INFEASIBLE", "UNBOUNDED", "UNLIMITED", "best_flows"]

FOUND, INFEASIBLE, UNBOUNDED = 0, 1, 2

EMPTY, IN_TREE, FULL = 1, 0, -1

# Scaling scores by a power of two is exact, and prevents overflow in sums of scores near the limit of float64.
SCALE = 2.0**-32
ROUNDING = 2.0**-100


class Edges(NamedTuple):
    """The usable edges, and then an artificial edge for each node; arrays of length edges + nodes."""

    tail: np.ndarray
    head: np.ndarray
    capacity: np.ndarray
    flow: np.ndarray
    gain: np.ndarray  # 0 for artificial edges, which are counted separately
    state: np.ndarray  # EMPTY, IN_TREE or FULL
    part: np.ndarray  # the entry of θ


class Tree(NamedTuple):
    """The tree of the nodes and, last, the root; arrays of length nodes + 1, with −1 for none."""

    parent: np.ndarray
    edge: np.ndarray  # the edge to or from the parent
    depth: np.ndarray
    child: np.ndarray  # the first child
    older: np.ndarray  # the sibling before
    younger: np.ndarray  # the sibling after
    artificial: np.ndarray  # first number of the price: artificial edges against the flow minus those along it
    high: np.ndarray  # second number of the price: high + low
    low: np.ndarray


@jit(inline=True, fastmath=False)
def add(a, b):
    """Return a + b rounded, and the rounding error."""
    total = a + b
    rounding = total - a
    return total, (a - (total - rounding)) + (b - rounding)


@jit(inline=True, fastmath=False)
def gain_of(e, edges, tree):
    """Return the gain of a unit around the cycle closed by edge ``e``: artificial edges avoided, and score."""
    tail, head = edges.tail[e], edges.head[e]
    high, low = add(tree.high[head], -tree.high[tail])
    high, rounding = add(high, edges.gain[e])
    gain = high + (low + (rounding + (tree.low[head] - tree.low[tail])))
    size = abs(tree.high[head]) + abs(tree.high[tail]) + abs(edges.gain[e])
    return tree.artificial[head] - tree.artificial[tail], gain if abs(gain) > ROUNDING * size else 0.0


@jit(fastmath=False)
def set_prices(top, edges, tree, first_artificial):
    """Compute depths and prices of ``top`` and all its descendants from the parent of ``top``."""
    node = top
    while True:
        above, e = tree.parent[node], tree.edge[node]
        sign = 1 if edges.tail[e] == node else -1
        tree.depth[node] = tree.depth[above] + 1
        tree.artificial[node] = tree.artificial[above] - (sign if e >= first_artificial else 0)
        high, rounding = add(tree.high[above], sign * edges.gain[e])
        tree.high[node], tree.low[node] = add(high, rounding + tree.low[above])
        if tree.child[node] >= 0:
            node = tree.child[node]
            continue
        while node != top and tree.younger[node] < 0:
            node = tree.parent[node]
        if node == top:
            return
        node = tree.younger[node]


@jit(inline=True)
def hang(node, parent, edge, tree):
    """Make ``node`` the first child of ``parent``."""
    sibling = tree.child[parent]
    tree.parent[node], tree.edge[node] = parent, edge
    tree.older[node], tree.younger[node] = -1, sibling
    tree.child[parent] = node
    if sibling >= 0:
        tree.older[sibling] = node


@jit(inline=True)
def take_off(node, tree):
    """Remove ``node`` from the children of its parent."""
    older, younger = tree.older[node], tree.younger[node]
    if older >= 0:
        tree.younger[older] = younger
    else:
        tree.child[tree.parent[node]] = younger
    if younger >= 0:
        tree.older[younger] = older


@jit
def residual_capacity(e, forward, edges):
    """Return the amount of flow that edge ``e`` can take forward, or give back."""
    if not forward:
        return edges.flow[e]
    return UNLIMITED if edges.capacity[e] == UNLIMITED else edges.capacity[e] - edges.flow[e]


@jit
def pivot(entering, edges, tree, first_artificial):
    """Push as much flow as possible around the cycle closed by ``entering``; return False if the amount is unlimited.

    Of the edges that limit the flow, the last edge on the way around from the top of the cycle leaves the tree. This
    choice keeps the tree strongly feasible.
    """
    forward = edges.state[entering] == EMPTY
    start, end = edges.tail[entering], edges.head[entering]
    if not forward:
        start, end = end, start
    most, leaving, leaves_after = residual_capacity(entering, forward, edges), -1, False
    before, after = start, end
    while before != after:
        if tree.depth[before] >= tree.depth[after]:
            e = tree.edge[before]
            here = residual_capacity(e, edges.head[e] == before, edges)
            # On the way down from the top, edges met earlier in this loop come later on the way around. So an equal
            # limit nearer to the top does not replace the leaving edge.
            if here < most:
                most, leaving, leaves_after = here, before, False
            before = tree.parent[before]
        else:
            e = tree.edge[after]
            here = residual_capacity(e, edges.tail[e] == after, edges)
            if here < most or (here == most and (most < UNLIMITED)):
                most, leaving, leaves_after = here, after, True
            after = tree.parent[after]
    if most == UNLIMITED:
        return False
    top = before
    edges.flow[entering] += most if forward else -most
    node = start
    while node != top:
        e = tree.edge[node]
        edges.flow[e] += most if edges.head[e] == node else -most
        node = tree.parent[node]
    node = end
    while node != top:
        e = tree.edge[node]
        edges.flow[e] += most if edges.tail[e] == node else -most
        node = tree.parent[node]
    if leaving < 0:
        edges.state[entering] = FULL if forward else EMPTY
        return True
    gone = tree.edge[leaving]
    edges.state[gone] = EMPTY if edges.flow[gone] == 0 else FULL
    edges.state[entering] = IN_TREE
    # The subtree below the leaving edge now hangs from the entering edge: reverse the parents in between.
    node, parent = (end, start) if leaves_after else (start, end)
    lowest, e = node, entering
    while True:
        above, old = tree.parent[node], tree.edge[node]
        take_off(node, tree)
        hang(node, parent, e, tree)
        if node == leaving:
            break
        parent, e, node = node, old, above
    set_prices(lowest, edges, tree, first_artificial)
    return True


@jit(fastmath=False)
def improve(count, edges, tree):
    """Pivot until no edge gains (FOUND), or an edge gains without limit (UNBOUNDED).

    Edges are scanned in blocks of three times the square root of their number, and the best edge of a block enters.
    """
    block = max(3 * int(np.sqrt(count)), 10)
    e, left = 0, count
    while left > 0:
        best, best_artificial, best_gain = -1, 0, 0.0
        for _ in range(min(block, left)):
            if edges.state[e] != IN_TREE:
                artificial, gain = gain_of(e, edges, tree)
                artificial *= edges.state[e]
                gain *= edges.state[e]
                if artificial > best_artificial or (artificial == best_artificial and gain > best_gain):
                    best, best_artificial, best_gain = e, artificial, gain
            e = e + 1 if e + 1 < count else 0
        left -= block
        if best >= 0:
            left = count
            if not pivot(best, edges, tree, count):
                return UNBOUNDED
    return FOUND


@jit
def fill(theta, tails, heads, capacities, supplies, flows):
    """If no flow is given, fill edges of positive score, unless the imbalance would then exceed the flow."""
    left, carried = supplies.astype(np.float64), 0.0
    for e in range(len(tails)):
        if flows[e] > 0:
            return
        if theta[e] > 0 and capacities[e] < UNLIMITED:
            left[tails[e]] -= capacities[e]
            left[heads[e]] += capacities[e]
            carried += capacities[e]
    if np.abs(left).sum() > carried:
        return
    for e in range(len(tails)):
        if theta[e] > 0 and capacities[e] < UNLIMITED:
            flows[e] = capacities[e]


@jit
def lay_out(theta, tails, heads, capacities, supplies, flows, edges, tree):
    """Set up the usable edges with the given flows, and a tree of artificial edges that carry the imbalance."""
    count, root = 0, len(supplies)
    left = supplies.copy()
    for e in range(len(tails)):
        if theta[e] > -np.inf and capacities[e] > 0:
            edges.tail[count], edges.head[count] = tails[e], heads[e]
            edges.capacity[count], edges.flow[count] = capacities[e], flows[e]
            edges.gain[count], edges.part[count] = theta[e] * SCALE, e
            edges.state[count] = FULL if flows[e] == capacities[e] else EMPTY
            left[tails[e]] -= flows[e]
            left[heads[e]] += flows[e]
            count += 1
    tree.parent[root], tree.child[root], tree.depth[root] = -1, -1, 0
    tree.artificial[root], tree.high[root], tree.low[root] = 0, 0.0, 0.0
    for node in range(root):
        e = count + node
        edges.tail[e], edges.head[e] = (node, root) if left[node] >= 0 else (root, node)
        edges.capacity[e], edges.flow[e] = UNLIMITED, abs(left[node])
        edges.gain[e], edges.state[e] = 0.0, IN_TREE
        tree.child[node] = -1
        hang(node, root, e, tree)
        set_prices(node, edges, tree, count)
    return count


@jit
def solve(count, edges, tree, nodes, slack):
    """Find a best flow of the network set up by :func:`lay_out`.

    Returns FOUND, INFEASIBLE or UNBOUNDED, and the amount that no edge can carry, of at most ``slack`` if a flow is
    found.
    """
    for e in range(count):
        # Push a partly filled edge into the tree, or until it is empty or full, in the direction that does not lose.
        if 0 < edges.flow[e] < edges.capacity[e]:
            artificial, gain = gain_of(e, edges, tree)
            gains = artificial > 0 or (artificial == 0 and gain > 0)
            edges.state[e] = EMPTY if gains else FULL
            if not pivot(e, edges, tree, count):
                edges.state[e] = FULL  # pull back, which is limited; the unlimited gain will be found again
                pivot(e, edges, tree, count)
    status = improve(count, edges, tree)
    if status == UNBOUNDED:
        # Check whether any flow exists, with scores of 0, for which no cycle is unbounded.
        edges.gain[:count] = 0.0
        node = tree.child[nodes]
        while node >= 0:
            set_prices(node, edges, tree, count)
            node = tree.younger[node]
        improve(count, edges, tree)
    left = 0
    for e in range(count, count + nodes):
        left += edges.flow[e]
    return INFEASIBLE if left > slack else status, left


@jit
def best_flows(start, stop, theta, tails, heads, capacities, supplies, slack, flows, left, status):
    """Find a flow of highest score for each instance.

    Tables with one row belong to all instances. Edges of capacity 0, and nodes without edges and supply, are padding.

    Parameters
    ----------
    theta : (B, E) float64
        Scores; −inf for edges that may not be used.
    tails, heads, capacities : (B | 1, E) int64
        The end nodes and the capacity of each edge; UNLIMITED for no limit.
    supplies : (B | 1, N) int64
        The supply of each node, with a sum of 0.
    slack : (B | 1,) int64
        The amount of the supplies that may be left, 0 for amounts without rounding errors.
    flows : (B, E) int64, overwritten
        The start, between 0 and the capacities. Any start is correct; a nearly optimal start is fast. Zeros mean no
        start.
    left : (B,) int64, written
        The amount of the supplies that no edge can carry.
    status : (B,) int8, written
        FOUND, INFEASIBLE or UNBOUNDED.
    """
    nodes = supplies.shape[1]
    most = theta.shape[1] + nodes
    edges = Edges(
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most),
        np.empty(most, np.int8),
        np.empty(most, np.int64),
    )
    links = np.empty((7, nodes + 1), np.int64)
    prices = np.empty((2, nodes + 1))
    tree = Tree(links[0], links[1], links[2], links[3], links[4], links[5], links[6], prices[0], prices[1])
    for b in range(start, stop):
        tail, head = tails[b if len(tails) > 1 else 0], heads[b if len(heads) > 1 else 0]
        capacity = capacities[b if len(capacities) > 1 else 0]
        supply = supplies[b if len(supplies) > 1 else 0]
        fill(theta[b], tail, head, capacity, supply, flows[b])
        count = lay_out(theta[b], tail, head, capacity, supply, flows[b], edges, tree)
        status[b], left[b] = solve(count, edges, tree, nodes, slack[b if len(slack) > 1 else 0])
        flows[b] = 0
        for e in range(count):
            flows[b, edges.part[e]] = edges.flow[e]
