"""A binary heap of events with wide keys, in two arrays. The caller provides enough space."""

from __future__ import annotations

from structinf.kernels.jit import jit

from .wide_integers import is_less

__all__ = ["pop", "push"]


@jit
def push(keys, items, size, key, item):
    """Add an event and return the new number of events."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if not is_less(key, (keys[above, 0], keys[above, 1])):
            break
        keys[at, 0], keys[at, 1], items[at] = keys[above, 0], keys[above, 1], items[above]
        at = above
    keys[at, 0], keys[at, 1], items[at] = key[0], key[1], item
    return size + 1


@jit
def pop(keys, items, size):
    """Remove the first event, whose values the caller has read, and return the new number of events."""
    size -= 1
    key, item, at = (keys[size, 0], keys[size, 1]), items[size], 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        other = below + 1
        if other < size and is_less((keys[other, 0], keys[other, 1]), (keys[below, 0], keys[below, 1])):
            below = other
        if not is_less((keys[below, 0], keys[below, 1]), key):
            break
        keys[at, 0], keys[at, 1], items[at] = keys[below, 0], keys[below, 1], items[below]
        at = below
    keys[at, 0], keys[at, 1], items[at] = key[0], key[1], item
    return size
