"""Parallel belief propagation: all messages change at once. Importing this module imports numba.

The factors of group g lie next to each other: entry i of their tables is a row of ``factors[g]`` numbers, from
``table_at[g] + i * factors[g]`` on. A slot is the variable of one axis of a group. Value x of the messages of slot s
is a row from ``message_at[s] + x * factors[g]`` on. All inner loops run along rows, so that LLVM vectorises them.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log

__all__ = ["parallel_messages"]


@jit
def _receive(graph, base, message, total, received):
    """Write M_i to ``total`` and n_ik to ``received``."""
    total[:] = base
    for s in range(len(graph.cardinality)):
        count = graph.factors[graph.group[s]]
        values = graph.value[graph.value_at[s] : graph.value_at[s] + count]
        weights = graph.weight[graph.weight_at[graph.group[s]] : graph.weight_at[graph.group[s]] + count]
        for x in range(graph.cardinality[s]):
            row = message[graph.message_at[s] + x * count : graph.message_at[s] + (x + 1) * count]
            for f in range(count):
                total[values[f] + x] += weights[f] * row[f]
    for s in range(len(graph.cardinality)):
        count = graph.factors[graph.group[s]]
        values = graph.value[graph.value_at[s] : graph.value_at[s] + count]
        for x in range(graph.cardinality[s]):
            at = graph.message_at[s] + x * count
            row, out = message[at : at + count], received[at : at + count]
            for f in range(count):
                out[f] = total[values[f] + x] - row[f]


@jit
def _send(s, table, graph, received, maximise, scores, top, pending):
    """Write the messages of slot ``s`` to ``pending``, up to a constant; −inf for values that are not allowed."""
    g = graph.group[s]
    count, own, first, last = graph.factors[g], graph.cardinality[s], graph.first_slot[g], graph.first_slot[g + 1]
    stride = 1
    for t in range(s + 1, last):
        stride *= graph.cardinality[t]
    for x in range(own):
        top[x * count : (x + 1) * count] = -np.inf
    for i in range(graph.entries[g]):
        row = scores[i * count : (i + 1) * count]
        at = graph.table_at[g] + i * count
        row[:] = table[at : at + count]
        rest = i
        for t in range(last - 1, first - 1, -1):
            digit = rest % graph.cardinality[t]
            rest //= graph.cardinality[t]
            if t != s:
                at = graph.message_at[t] + digit * count
                other = received[at : at + count]
                for f in range(count):
                    row[f] += other[f]
        x = (i // stride) % own
        best = top[x * count : (x + 1) * count]
        for f in range(count):
            best[f] = max(best[f], row[f])
    at = graph.message_at[s]
    if maximise:
        pending[at : at + own * count] = top[: own * count]
        return
    pending[at : at + own * count] = 0.0
    for i in range(graph.entries[g]):
        x = (i // stride) % own
        row, best = scores[i * count : (i + 1) * count], top[x * count : (x + 1) * count]
        out = pending[at + x * count : at + (x + 1) * count]
        for f in range(count):
            out[f] += exp(row[f] - (best[f] if best[f] > -np.inf else 0.0))
    for x in range(own):
        best, out = top[x * count : (x + 1) * count], pending[at + x * count : at + (x + 1) * count]
        for f in range(count):
            out[f] = log(out[f]) + (best[f] if best[f] > -np.inf else 0.0)


@jit
def _mix(s, graph, kept, high, pending, message):
    """Change the messages of slot ``s`` to ``pending``, less its largest value, and return the largest change."""
    count, at = graph.factors[graph.group[s]], graph.message_at[s]
    high[:count] = -np.inf
    for x in range(graph.cardinality[s]):
        new = pending[at + x * count : at + (x + 1) * count]
        for f in range(count):
            high[f] = max(high[f], new[f])
    change = 0.0
    for x in range(graph.cardinality[s]):
        new, old = pending[at + x * count : at + (x + 1) * count], message[at + x * count : at + (x + 1) * count]
        for f in range(count):
            value = new[f] - high[f] if new[f] > -np.inf else 0.0
            change = max(change, abs(value - old[f]))
            old[f] = value + kept * (old[f] - value)
    return change


@jit
def parallel_messages(
    start, stop, tables, base, graph, maximise, limit, max_iter, damping, rise, message, residual
):  # fmt: skip
    """Write the messages of the instances ``start:stop``, from messages of 0 on, and their last change.

    With a ``damping`` of −1, damping rises from 0 as in `structinf.solvers.fixed_point`: ``rise`` holds the number of
    iterations before the first rise and between two rises, and the largest damping.
    """
    total, received, pending = np.empty(base.shape[1]), np.empty(message.shape[1]), np.empty(message.shape[1])
    patience, window, most_damping = rise
    scores, top, high = np.empty(graph.largest_group), np.empty(graph.largest_slot), np.empty(graph.factors.max())
    for b in range(start, stop):
        table, m = tables[min(b, len(tables) - 1)], message[b]
        m[:] = 0.0
        kept, last, look = max(damping, 0.0), np.inf, patience
        for iteration in range(1, max_iter + 1):
            _receive(graph, base[b], m, total, received)
            change = 0.0
            for s in range(len(graph.cardinality)):
                _send(s, table, graph, received, maximise, scores, top, pending)
                change = max(change, _mix(s, graph, kept, high, pending, m))
            residual[b] = change
            if change <= limit[b]:
                break
            if damping < 0.0 and iteration >= look:
                look += window
                if change > last / 2:
                    kept = min((1.0 + kept) / 2, most_damping)
                last = change
