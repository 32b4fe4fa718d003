"""A structure from the messages of max-product belief propagation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from .factor_groups import FactorTables, Layout, along, reduce_to

__all__ = ["decode"]


def decode(
    model: FactorTables,
    messages: Sequence[Sequence[Tensor]],
    sums: dict[int, Tensor],
    rhos: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """Return the tables of a structure, and which instances have none of finite score, (B,) bool.

    Each variable takes its best value given the values of variables before it. If all its values have score −inf, it
    takes the best value of its own messages, and the structure has score −inf.

    On a tree of converged messages, the structure has the highest score, also on ties: its variables are in
    breadth-first order, so that the messages hold the best score of everything beyond a variable.

    Parameters
    ----------
    model : FactorTables
        The model, with θ_k / ρ_k in groups of several variables.
    messages : sequence of sequences of (c, B, F) Tensor
        m_ki of each group with several variables.
    sums : dict of (c, B, n) Tensor
        M_i of each variable.
    rhos : sequence of (F,) Tensor
        ρ_k of each group with several variables.
    """
    layout = model.layout
    uses: list[list[tuple[int, int, int]]] = [[] for _ in layout.cardinalities]
    for j, group in enumerate(layout.groups[layout.first_joint :]):
        for f, k in enumerate(group.factors):
            for s, v in enumerate(layout.factors[k]):
                uses[v].append((j, s, f))
    # n_ik, and later −inf at all values of a variable except its value in the structure.
    received = [
        [sums[c][:, :, i] - m for c, i, m in zip(group.shape, index, sent, strict=True)]
        for (_, group, _, index), sent in zip(model.joint(), messages, strict=True)
    ]
    tables = [t for _, _, t, _ in model.joint()]
    chosen, failed = model.zeros(), torch.zeros(model.size, dtype=torch.bool, device=model.device)
    for v in _breadth_first(layout):
        c, place = layout.cardinalities[v], layout.places[v]
        score = model.base[c][:, :, place]
        for j, s, f in uses[v]:
            arity = tables[j].ndim - 2
            entries = tables[j][..., f : f + 1]
            for t in reduce_to(s, arity):
                entries = entries + along(received[j][t][..., f : f + 1], t, arity)
            score = score + rhos[j][f] * entries.amax(reduce_to(s, arity))[..., 0]
        stuck = ~(score.amax(0) > -torch.inf)  # also NaN, of messages that grow without end
        failed |= stuck
        best = torch.where(stuck, sums[c][:, :, place].nan_to_num(nan=-torch.inf), score).argmax(0)
        chosen[c][:, :, place] = torch.nn.functional.one_hot(best, c).T.double()
        outside = chosen[c][:, :, place] == 0
        for j, s, f in uses[v]:
            received[j][s][:, :, f].masked_fill_(outside, -torch.inf)
    found = []
    for group, index in zip(layout.groups, model.index, strict=True):
        arity = len(group.shape)
        table = torch.ones(*[1] * arity, model.size, len(group.factors), dtype=torch.float64, device=model.device)
        for s, (c, i) in enumerate(zip(group.shape, index, strict=True)):
            table = table * along(chosen[c][:, :, i], s, arity)
        found.append(table)
    return found, failed


def _breadth_first(layout: Layout) -> list[int]:
    """Return the variables of each component, from its first variable on, in breadth-first order."""
    of_variable: list[list[int]] = [[] for _ in layout.cardinalities]
    for k, factor in enumerate(layout.factors):
        for v in factor:
            of_variable[v].append(k)
    order, seen = [], set()
    for root in range(len(layout.cardinalities)):
        queue = deque([root] if root not in seen else [])
        seen.add(root)
        while queue:
            v = queue.popleft()
            order.append(v)
            for u in (u for k in of_variable[v] for u in layout.factors[k]):
                if u not in seen:
                    seen.add(u)
                    queue.append(u)
    return order
