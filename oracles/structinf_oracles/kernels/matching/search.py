"""The search of the blossom algorithm: a tree of alternating paths from one free node, grown by least slack.

With scores w, the dual problem has a variable u for each node and z ≥ 0 for each blossom. The slack of an edge,
u_i + u_j + Σ z − 2 w_ij with the z of all blossoms around both ends, is at least 0, and 0 for matched edges and within
blossoms. A search raises a level from 0 on. Per unit, it lowers u of all nodes in outer blossoms by 1, raises u of all
nodes in inner blossoms by 1, and changes z of these blossoms by +2 and −2. In the tree, the records hold the values
that the variables would have at level 0. So a change of the level costs nothing, and each event has a fixed level:

- an edge from an outer blossom to a blossom outside the tree has slack 0: the tree grows, or the search ends;
- an edge between two outer blossoms has slack 0: the circle becomes a blossom;
- z of an inner blossom is 0: its children become outermost blossoms;
- u of an outer node is 0, if nodes may stay free: the node takes the place of the root, and the search ends.

All levels are integers: 2 w and z are even, and edges of slack 0 join all nodes of the tree, so that u of all these
nodes is even, or u of all is odd.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .blossoms import (
    FREE,
    INNER,
    LABELLED,
    OUTER,
    QUEUE,
    TOUCHED,
    append,
    dissolve,
    from_tail,
    is_before_mate,
    join,
    matched_arc,
    set_outermost,
    shift_base,
    tail,
    to_head,
)
from .event_heap import pop, push
from .wide_integers import LARGEST, add, half, is_less, scale, subtract

__all__ = ["improve"]


@jit
def _change(s, blossom, change):
    """Add to the dual variable of a node or a blossom."""
    x = s.node[blossom]
    x.high, x.low = add((x.high, x.low), change)


@jit
def _set_label(s, blossom, label, level):
    """Change the label of an outermost blossom, and the records of its dual variables. Queue the nodes if outer."""
    x = s.node[blossom]
    steps = label - x.label
    x.label = label
    if label != FREE and not x.is_labelled:
        x.is_labelled = 1
        append(s, LABELLED, blossom)
    if blossom >= len(s.first_arc) - 1:
        _change(s, blossom, scale(level, -2 * steps))
    change, v = scale(level, steps), x.first_leaf
    while True:
        _change(s, v, change)
        if label == OUTER:
            append(s, QUEUE, v)
        if v == x.last_leaf:
            break
        v = s.node[v].next_leaf


@jit
def _contract(s, arc, level):
    """Make an outer blossom of the circle that an arc between two outer blossoms closes."""
    blossom = join(s, arc)
    first = child = s.node[blossom].first_child
    while True:
        if s.node[child].label == INNER:
            _set_label(s, child, OUTER, level)
        s.node[child].label = FREE
        if child >= len(s.first_arc) - 1:
            _change(s, child, scale(level, 2))  # the variable is constant within a blossom
        child = s.node[child].following
        if child == first:
            break
    set_outermost(s, blossom)
    x = s.node[blossom]
    x.high, x.low = scale(level, -2)  # 0 at this level
    x.label = OUTER
    if not x.is_labelled:
        x.is_labelled = 1
        append(s, LABELLED, blossom)


@jit
def _add_inner(s, blossom, arc, level, keys, items, size):
    """Label a blossom as inner; return the number of events."""
    x = s.node[blossom]
    x.entry = arc
    if blossom >= len(s.first_arc) - 1:
        size = push(keys, items, size, add(half((x.high, x.low)), level), -1 - blossom)
    _set_label(s, blossom, INNER, level)
    return size


@jit
def _expand(s, blossom, level, end, keys, items, size):
    """Replace an inner blossom whose variable is 0 by its children; return the number of events."""
    _set_label(s, blossom, FREE, level)
    arc, first = s.node[blossom].entry, s.node[blossom].first_child
    dissolve(s, blossom)
    # The children on the path of an even number of arcs from the entry to the base stay in the tree.
    child = to_head(s, arc)
    forwards = is_before_mate(s, first, child)
    size = _add_inner(s, child, arc, level, keys, items, size)
    while child != first:
        outer = s.node[child].following if forwards else s.node[child].preceding
        _set_label(s, outer, OUTER, level)
        child = s.node[outer].following if forwards else s.node[outer].preceding
        arc = s.node[outer].link if forwards else s.arc[s.node[child].link].twin
        size = _add_inner(s, child, arc, level, keys, items, size)
    child = s.node[first].following
    while child != first:
        x = s.node[child]
        v = x.first_leaf if x.label == FREE else -1
        while v >= 0:
            y = s.node[v]
            if y.best_arc >= 0:
                key = add((y.best_high, y.best_low), (y.high, y.low))
                if is_less(key, end):
                    size = push(keys, items, size, key, 2 * y.best_arc)
            v = y.next_leaf if v != x.last_leaf else -1
        child = x.following
    return size


@jit
def _augment(s, arc):
    """Exchange matched and other arcs between the root and the head of an arc, or node −1 − arc if ``arc`` < 0."""
    if arc < 0:
        node, new = -1 - arc, -1
    else:
        node, new, other = tail(s, arc), arc, s.arc[arc].head
        shift_base(s, s.node[other].outermost, other)
        s.node[other].mate = s.arc[arc].twin
    while True:
        outer = s.node[node].outermost
        matched = matched_arc(s, outer)
        shift_base(s, outer, node)
        s.node[node].mate = new
        if matched < 0:
            return
        inner = to_head(s, matched)
        new = s.node[inner].entry
        node, other = tail(s, new), s.arc[new].head
        shift_base(s, inner, other)
        s.node[other].mate = s.arc[new].twin


@jit
def _scan(s, v, perfect, end, last, keys, items, size):
    """Visit the arcs from an outer node. Return the first known level at which the search ends, its arc, and events.

    Events from the level of the end on are left out.
    """
    x = s.node[v]
    x.is_scanned = 1
    u = x.high, x.low
    if not perfect and is_less(u, end):
        end, last = u, -1 - v
    for a in range(s.first_arc[v], s.first_arc[v + 1]):
        arc = s.arc[a]
        y = s.node[arc.head]
        if y.outermost == x.outermost:
            continue
        label = s.node[y.outermost].label
        value = subtract(u, (arc.high, arc.low))
        key = add(value, (y.high, y.low))
        if label == OUTER:
            key = half(key)
            if y.is_scanned and is_less(key, end):
                size = push(keys, items, size, key, 2 * a + 1)
        elif is_less(key, end) and (y.best_arc < 0 or is_less(value, (y.best_high, y.best_low))):
            if label == FREE and matched_arc(s, y.outermost) < 0:
                end, last = key, a
                continue
            if y.best_arc < 0:
                append(s, TOUCHED, arc.head)
            y.best_arc, y.best_high, y.best_low = a, value[0], value[1]
            if label == FREE:
                size = push(keys, items, size, key, 2 * a)
    return end, last, size


@jit
def _clear(s, level):
    """Remove all labels, and empty the lists of the search."""
    for k in range(s.sizes[LABELLED]):
        blossom = s.lists[LABELLED, k]
        s.node[blossom].is_labelled = 0
        if s.node[blossom].label != FREE:  # else it is within another blossom, or does not exist now
            _set_label(s, blossom, FREE, level)
    for k in range(s.sizes[QUEUE]):
        s.node[s.lists[QUEUE, k]].is_scanned = 0
    for k in range(s.sizes[TOUCHED]):
        s.node[s.lists[TOUCHED, k]].best_arc = -1
    s.sizes[QUEUE] = s.sizes[LABELLED] = s.sizes[TOUCHED] = 0


@jit
def improve(s, root, perfect, keys, items):
    """Match the free node ``root``, or, if not ``perfect``, let a node with u = 0 be free in its place.

    ``keys`` and ``items`` are space for events.

    Returns
    -------
    found : bool
        Whether this is possible.
    keys, items : arrays
        The space for events, perhaps larger than before.
    """
    none = -1 - len(s.first_arc)
    size, done, level, end, last = 0, 0, (0, 0), LARGEST, none
    _set_label(s, s.node[root].outermost, OUTER, level)
    while True:
        while done < s.sizes[QUEUE]:
            v = s.lists[QUEUE, done]
            keys, items = _reserve(keys, items, size, s.first_arc[v + 1] - s.first_arc[v])
            end, last, size = _scan(s, v, perfect, end, last, keys, items, size)
            done += 1
        if size == 0 or not is_less((keys[0, 0], keys[0, 1]), end):
            break
        key, item = (keys[0, 0], keys[0, 1]), items[0]
        size = pop(keys, items, size)
        keys, items = _reserve(keys, items, size, 2 * len(s.first_arc))
        if item < 0:
            x = s.node[-1 - item]
            if x.label == INNER:  # else it is within another blossom, or does not exist now
                level = key
                size = _expand(s, -1 - item, level, end, keys, items, size)
            continue
        arc = s.arc[item >> 1]
        other = s.node[arc.head].outermost
        if item & 1:
            if from_tail(s, item >> 1) != other:
                level = key
                _contract(s, item >> 1, level)
        elif s.node[other].label == FREE:
            x, y = s.node[s.arc[arc.twin].head], s.node[arc.head]
            if key == add(subtract((x.high, x.low), (arc.high, arc.low)), (y.high, y.low)):
                level = key
                size = _add_inner(s, other, item >> 1, level, keys, items, size)
                _set_label(s, to_head(s, matched_arc(s, other)), OUTER, level)
            # else the head has been within an inner blossom since, which raised u
    if last != none:
        level = end
        _augment(s, last)
    _clear(s, level)
    return last != none, keys, items


@jit
def _reserve(keys, items, size, more):
    """Return space for ``more`` events than ``size``."""
    if size + more <= len(items):
        return keys, items
    more_keys, more_items = np.empty((2 * (size + more), 2), np.int64), np.empty(2 * (size + more), np.int64)
    for k in range(size):
        more_keys[k, 0], more_keys[k, 1], more_items[k] = keys[k, 0], keys[k, 1], items[k]
    return more_keys, more_items
