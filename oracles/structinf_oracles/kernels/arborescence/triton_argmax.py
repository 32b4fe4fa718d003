"""Best arborescences as a Triton kernel, one launch for a batch: the algorithm of :mod:`.argmax` in dense form.

A program handles an instance. The state of the nodes is in registers. The tables ``scores`` and ``entries`` hold, for
each contracted node, a row of scores and the member of the cycle that each arc enters. All numbers and all choices
between equal numbers are those of the CPU, so that the trees are too.

The barrier after a contraction is there because threads read single entries that other threads have stored. Scores of
NaN and +inf count as forbidden, so that searches end for all scores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

__all__ = ["argmax"]

_FRESH, _ON_PATH, _HANGS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _entry(values, is_place):
    """Return the entry of ``values`` at the only place where ``is_place``, and 0 without such a place."""
    return tl.sum(tl.where(is_place, values, 0), 0)


@triton.jit
def _row(theta, scores, node, h, n, size):
    """Return the scores of the arcs from all heads h into ``node``, −inf for forbidden arcs."""
    is_arc = (h <= size) & (h != node + 1)
    of_word = tl.load(theta + h * (n + 1) + node + 1, mask=is_arc & (h < tl.where(node < size, size + 1, 0)), other=0.0)
    of_cycle = tl.load(scores + (node - size) * (n + 1) + h, mask=h < tl.where(node < size, 0, size + 1), other=0.0)
    row = tl.where(node < size, of_word.to(tl.float64), of_cycle)
    is_allowed = (h <= size) & (h != tl.where(node < size, node + 1, -1)) & (row > float("-inf"))
    return tl.where(is_allowed & (row < float("inf")), row, float("-inf"))


# A size of 1 stays a variable: as a constant it would not be a tensor, as the conditions below need.
@triton.jit(do_not_specialize=["n", "rows"])
def best_arborescence(
    theta, lengths, y, feasible, scores, entries, n, rows,
    COLS: tl.constexpr, NODES: tl.constexpr, SINGLE_ROOT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    theta += b * (n + 1) * (n + 1)
    y += b * (n + 1) * (n + 1)
    scores += b * rows * (n + 1)
    entries += b * rows * (n + 1)
    size = tl.minimum(tl.load(lengths + b), n).to(tl.int32)
    h, node_of = tl.arange(0, COLS), tl.arange(0, NODES)
    owner = h - 1
    parent = tl.full([NODES], -1, tl.int32)
    state = tl.full([NODES], _FRESH, tl.int32)
    sources = tl.full([NODES], -1, tl.int32)
    path = tl.full([NODES], -1, tl.int32)
    nodes = size
    is_feasible = size >= 0
    for word in range(size):
        top = _entry(owner, h == word + 1)
        walks = is_feasible & (_entry(state, node_of == top) != _HANGS)
        depth = tl.where(walks, 1, 0)
        path = tl.where(node_of == tl.where(walks, 0, -1), word, path)
        state = tl.where(node_of == tl.where(walks, word, -1), _ON_PATH, state)
        while walks:
            node = _entry(path, node_of == depth - 1)
            row = _row(theta, scores, node, h, n, size)
            usable = tl.where(h == 0, float("-inf"), row) if SINGLE_ROOT else row
            best = tl.max(usable, 0)
            source = tl.min(tl.where((usable == best) & (usable > float("-inf")), h, _NOWHERE), 0)
            if SINGLE_ROOT:
                root = tl.sum(tl.where((h == 0) & (row > float("-inf")), 1, 0), 0)
                source = tl.where((source == _NOWHERE) & (root > 0), 0, source)
            is_feasible = source < _NOWHERE
            sources = tl.where(node_of == node, source, sources)
            head = _entry(owner, h == source)
            head_state = tl.where(head < 0, _HANGS, _entry(state, node_of == head))
            walks = is_feasible & (head_state != _HANGS)
            if walks:
                if head_state == _FRESH:
                    path = tl.where(node_of == depth, head, path)
                    state = tl.where(node_of == head, _ON_PATH, state)
                    depth += 1
                else:
                    # The path from ``head`` on is a cycle, which becomes the node ``nodes``.
                    first = tl.min(tl.where((path == head) & (node_of < depth), node_of, _NOWHERE), 0)
                    new = tl.full([COLS], float("-inf"), tl.float64)
                    entry = tl.zeros([COLS], tl.int32)
                    for p in range(first, depth):
                        member = _entry(path, node_of == p)
                        own = _row(theta, scores, member, h, n, size)
                        displaced = _entry(own, h == _entry(sources, node_of == member))
                        difference = own - displaced
                        is_better = difference > new
                        new = tl.where(is_better, difference, new)
                        inner = tl.load(
                            entries + (member - size) * (n + 1) + h,
                            mask=h < tl.where(member < size, 0, size + 1),
                            other=0,
                        )
                        entry = tl.where(is_better, tl.where(member < size, member, inner), entry)
                        parent = tl.where(node_of == member, nodes, parent)
                        owner = tl.where((owner == member) & (h > 0), nodes, owner)
                    new = tl.where(owner == nodes, float("-inf"), new)
                    place = (nodes - size) * (n + 1) + h
                    tl.store(scores + place, new, mask=h <= size)
                    tl.store(entries + place, entry, mask=h <= size)
                    tl.debug_barrier()
                    state = tl.where(node_of == nodes, _ON_PATH, state)
                    path = tl.where(node_of == first, nodes, path)
                    depth = first + 1
                    nodes += 1
        # All nodes of the path are connected to the root.
        for p in range(depth):
            state = tl.where(node_of == _entry(path, node_of == p), _HANGS, state)

    # Undo the contractions, latest first: the arc into a cycle replaces the cycle's arc into the same member.
    for back in range(tl.where(is_feasible, nodes - size, 0)):
        node = nodes - 1 - back
        source = _entry(sources, node_of == node)
        member = tl.load(entries + (node - size) * (n + 1) + source)
        while _entry(parent, node_of == member) != node:
            member = _entry(parent, node_of == member)
        sources = tl.where(node_of == member, source, sources)

    is_word = node_of < size
    if SINGLE_ROOT:
        is_feasible = is_feasible & (tl.sum(tl.where(is_word & (sources == 0), 1, 0), 0) == 1)
    tl.store(y + sources * (n + 1) + node_of + 1, 1.0, mask=node_of < tl.where(is_feasible, size, 0))
    tl.store(feasible + b, is_feasible)


def argmax(theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return a tree of highest score, (B, n + 1, n + 1) in θ's dtype, and whether there is one, (B,) bool.

    Without a tree the result is 0. θ is (B, n + 1, n + 1), and ``lengths`` (B,) int64 are the numbers of words.
    """
    theta = theta.contiguous()
    batch, n = theta.shape[0], theta.shape[1] - 1
    y, feasible = torch.zeros_like(theta), torch.empty(batch, dtype=torch.bool, device=theta.device)
    rows = max(n - 1, 1)  # at most as many contractions as words, without the last
    scores = theta.new_empty(batch, rows, n + 1, dtype=torch.float64)
    entries = theta.new_empty(batch, rows, n + 1, dtype=torch.int32)
    columns = triton.next_power_of_2(n + 1)
    launch(
        best_arborescence,
        (batch,),
        *(theta, lengths, y, feasible, scores, entries, n, rows),
        COLS=columns,
        NODES=triton.next_power_of_2(2 * n),
        SINGLE_ROOT=single_root,
        warps=1 if columns <= 128 else 4,
    )
    return y, feasible
