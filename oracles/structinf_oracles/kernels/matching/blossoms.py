"""The nested blossoms of a matching: odd sets of nodes that the search for better matchings treats as one node.

A blossom has an odd number of children: nodes, or smaller blossoms. They form a circle, in which arcs of slack 0 join
each child to the next child. All nodes of a blossom but one, its base, are matched with each other. So the matching
inside the blossom can leave any of its nodes free (Edmonds 1965).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["FREE", "INNER", "OUTER", "State", "dissolve", "first_common", "join", "new_state", "shift_base"]

FREE, OUTER, INNER = 0, 1, -1
"""Labels of outermost blossoms: outside the tree; at an even, or at an odd number of edges from the root."""

# Each edge is two arcs. A wide integer has the fields "high" and "low".
ARC = np.dtype(
    [
        ("high", np.int64),  # twice the score
        ("low", np.int64),
        ("head", np.int32),
        ("twin", np.int32),  # the opposite arc
        ("edge", np.int64),
    ],
    align=True,
)

# Numbers below n are nodes; from n on, they are blossoms of several nodes. "None" is −1.
NODE = np.dtype(
    [
        ("high", np.int64),  # the dual variable
        ("low", np.int64),
        ("mate", np.int64),  # of nodes: the matched arc from the node, or none
        ("outermost", np.int64),  # of nodes: the outermost blossom around the node, or the node itself
        ("next_leaf", np.int64),  # of nodes: the next node of the same blossom
        ("first_leaf", np.int64),
        ("last_leaf", np.int64),
        ("parent", np.int64),  # the blossom around the blossom, or none
        ("following", np.int64),  # the next child in the circle of the parent
        ("preceding", np.int64),
        ("link", np.int64),  # the arc to the next child
        ("first_child", np.int64),  # the child that contains the base
        ("base", np.int64),
        ("label", np.int64),
        ("entry", np.int64),  # the arc through which the tree reached an inner blossom
        ("is_labelled", np.int64),  # whether the search has labelled the blossom
        ("mark", np.int64),  # the last walk to the root that visited the blossom
        ("best_high", np.int64),  # of nodes: the least dual of the tail − weight over arcs from outer nodes
        ("best_low", np.int64),
        ("best_arc", np.int64),  # of nodes: the arc of this value, or none
        ("is_scanned", np.int64),  # of nodes: whether the search has visited the arcs from the node
    ],
    align=True,
)


class State(NamedTuple):
    """A graph, a matching, its blossoms, and the lists of a search. The arcs from each node are consecutive."""

    first_arc: np.ndarray
    """The first arc from each node, and the number of all arcs (n + 1,)."""
    arc: np.ndarray
    """Records of :data:`ARC`."""
    node: np.ndarray
    """Records of :data:`NODE`, (2 n,)."""
    lists: np.ndarray
    """Rows of numbers (6, 2 n)."""
    sizes: np.ndarray
    """The lengths of these rows, and the number of the last walk to a root."""


UNUSED, QUEUE, LABELLED, TOUCHED, STACK, STACKED = 0, 1, 2, 3, 4, 5
"""Rows of ``State.lists``: blossoms that do not exist now; outer nodes, in the order in which their arcs are visited;
all nodes and blossoms that may have a label; nodes with a best arc; two rows of scratch space."""
WALK = 6


@jit
def new_state(n, arcs):
    """Return a state without blossoms and without matched edges; the arcs are to be filled in."""
    s = State(
        np.zeros(n + 1, np.int64),
        np.empty(arcs, ARC),
        np.zeros(2 * n, NODE),
        np.empty((6, 2 * n), np.int64),
        np.zeros(7, np.int64),
    )
    for b in range(2 * n):
        x = s.node[b]
        x.outermost = x.first_leaf = x.last_leaf = x.base = b
        x.mate = x.next_leaf = x.parent = x.first_child = x.entry = x.best_arc = -1
    for b in range(2 * n - 1, n - 1, -1):
        append(s, UNUSED, b)
    return s


@jit
def append(s, row, number):
    s.lists[row, s.sizes[row]] = number
    s.sizes[row] += 1


@jit
def tail(s, arc):
    return s.arc[s.arc[arc].twin].head


@jit
def matched_arc(s, blossom):
    """Return the matched arc out of a blossom, or −1."""
    return s.node[s.node[blossom].base].mate


@jit
def from_tail(s, arc):
    """Return the outermost blossom around the tail of an arc."""
    return s.node[tail(s, arc)].outermost


@jit
def to_head(s, arc):
    """Return the outermost blossom around the head of an arc."""
    return s.node[s.arc[arc].head].outermost


@jit
def first_common(s, a, b):
    """Return the first common blossom of the paths from two outer blossoms to the root."""
    s.sizes[WALK] += 1
    while s.node[a].mark != s.sizes[WALK]:
        s.node[a].mark = s.sizes[WALK]
        arc = matched_arc(s, a)
        a = -1 if arc < 0 else from_tail(s, s.node[to_head(s, arc)].entry)
        if b >= 0:
            a, b = b, a
    return a


@jit
def _append_child(s, blossom, child, link):
    """Make ``child`` the last child of a blossom that is being formed; ``link`` leads to the child after it."""
    x, y = s.node[blossom], s.node[child]
    y.parent, y.link = blossom, link
    if x.first_child < 0:
        x.first_child = y.following = y.preceding = child
        x.first_leaf = y.first_leaf
    else:
        last = s.node[x.first_child].preceding
        s.node[last].following, y.preceding = child, last
        y.following, s.node[x.first_child].preceding = x.first_child, child
        s.node[x.last_leaf].next_leaf = y.first_leaf
    x.last_leaf = y.last_leaf


@jit
def join(s, arc):
    """Form a blossom of the circle that an arc between two outer blossoms closes; return the blossom.

    ``outermost``, labels and dual variables stay as they are.
    """
    common = first_common(s, from_tail(s, arc), to_head(s, arc))
    s.sizes[UNUSED] -= 1
    blossom = s.lists[UNUSED, s.sizes[UNUSED]]
    x = s.node[blossom]
    x.first_child, x.parent, x.base = -1, -1, s.node[common].base
    # From the common blossom down to the tail of the arc: the path upwards, in reverse order.
    depth, outer = 0, from_tail(s, arc)
    while outer != common:
        inner = to_head(s, matched_arc(s, outer))
        s.lists[STACK, depth], s.lists[STACK, depth + 1] = outer, inner
        depth, outer = depth + 2, from_tail(s, s.node[inner].entry)
    child = common
    for k in range(depth - 1, -1, -1):
        below = s.lists[STACK, k]
        _append_child(s, blossom, child, s.node[below].entry if k % 2 else s.arc[matched_arc(s, below)].twin)
        child = below
    _append_child(s, blossom, child, arc)
    # Up from the head of the arc.
    outer = to_head(s, arc)
    while outer != common:
        matched = matched_arc(s, outer)
        inner = to_head(s, matched)
        back = s.arc[s.node[inner].entry].twin
        _append_child(s, blossom, outer, matched)
        _append_child(s, blossom, inner, back)
        outer = to_head(s, back)
    return blossom


@jit
def set_outermost(s, blossom):
    """Make a blossom the outermost blossom of its nodes."""
    v, last = s.node[blossom].first_leaf, s.node[blossom].last_leaf
    s.node[v].outermost = blossom
    while v != last:
        v = s.node[v].next_leaf
        s.node[v].outermost = blossom


@jit
def dissolve(s, blossom):
    """Make the children of an outermost blossom outermost blossoms."""
    first = child = s.node[blossom].first_child
    while True:
        s.node[child].parent = -1
        set_outermost(s, child)
        child = s.node[child].following
        if child == first:
            break
    append(s, UNUSED, blossom)


@jit
def is_before_mate(s, first, child):
    """Return whether ``child`` is matched with the next child of the circle, given the child of the base.

    The children after the child of the base are matched in pairs.
    """
    is_odd = False
    while first != child:
        first, is_odd = s.node[first].following, not is_odd
    return is_odd


@jit
def shift_base(s, blossom, node):
    """Change the matching inside a blossom, so that ``node`` is its base."""
    n = len(s.first_arc) - 1
    depth = 0
    if blossom >= n:
        s.lists[STACK, 0], s.lists[STACKED, 0], depth = blossom, node, 1
    while depth > 0:
        depth -= 1
        blossom, node = s.lists[STACK, depth], s.lists[STACKED, depth]
        child = node
        while s.node[child].parent != blossom:
            child = s.node[child].parent
        old = s.node[blossom].first_child
        s.node[blossom].base, s.node[blossom].first_child = node, child
        if child >= n:
            s.lists[STACK, depth], s.lists[STACKED, depth] = child, node
            depth += 1
        # The path of an even number of arcs from the new to the old child of the base exchanges its matched arcs.
        forwards, at = is_before_mate(s, old, child), child
        while at != old:
            one = s.node[at].following if forwards else s.node[at].preceding
            at = s.node[one].following if forwards else s.node[one].preceding
            arc = s.node[one].link if forwards else s.arc[s.node[at].link].twin
            back = s.arc[arc].twin
            u, v = s.arc[back].head, s.arc[arc].head
            s.node[u].mate, s.node[v].mate = arc, back
            if one >= n:
                s.lists[STACK, depth], s.lists[STACKED, depth] = one, u
                depth += 1
            if at >= n:
                s.lists[STACK, depth], s.lists[STACKED, depth] = at, v
                depth += 1
