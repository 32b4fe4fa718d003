"""The residual schedule of messages between oracles: the factor whose messages change most sends them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .factor_projections import GroupScores
from .fixed_point import WINDOW, FixedPoint, raise_damping

__all__ = ["residual_messages"]


def residual_messages(
    groups: Sequence[GroupScores],
    neighbours: Tensor,
    receive: Callable[[list[Tensor]], list[Tensor]],
    answer: Callable[[GroupScores, Tensor, Tensor], Tensor],
    measure: Callable[[Tensor, Tensor, Tensor], Tensor],
    joint_change: Callable[[list[Tensor], list[Tensor], list[Tensor]], Tensor],
    start: list[Tensor],
    limit: Tensor,
    max_iter: int,
    damping: float | None,
) -> FixedPoint:
    """Pass messages until none changes by more than the limit, one factor of each instance at a time.

    After an update, only the factors next to the updated factor compute their messages again. All factors of a group,
    for all instances, take one call of their oracle. An instance keeps its messages once it has converged.

    Messages that change no probability alone can change it together, or later through another factor. So an instance
    has converged only if all its messages were sent at once, and the next messages change no probability either.

    Parameters
    ----------
    groups : sequence of GroupScores
        The factors, K in all.
    neighbours : (K, K) bool Tensor
        Whether the messages of a factor, by column, depend on the messages of another factor, by row.
    receive : callable
        Maps the messages (B, F, m) of each group to the messages to its factors.
    answer : callable
        Returns the messages (R, F, m) of a group for the messages to its factors, of the instances (R,).
    measure : callable
        Returns the change (B, F, m) for the messages to a group, and the last and the new messages from it.
    joint_change : callable
        Returns the change (B,) if all factors send their messages, for the messages to all groups, and the last and the
        new messages from them.
    start : list of (B, F, m) Tensor
        The first messages of each group.
    limit : (B,) Tensor
        The accepted change.
    max_iter : int
        The number of updates of each factor, on average.
    damping : float, optional
        The share of the old message in a new one. None starts with 0, and raises it for each instance whose change
        has not fallen by half within 32 updates of each factor, on average.

    References
    ----------
    G. Elidan, I. McGraw & D. Koller, Residual belief propagation, UAI 2006.
    """
    messages, everything = start, torch.arange(len(limit), device=limit.device)
    counts = [len(g) for g in groups]
    kept, last = torch.full_like(limit, damping or 0.0), torch.full_like(limit, torch.inf)
    place = torch.arange(sum(counts), device=limit.device).split(counts)
    received = receive(messages)
    new = [answer(g, n, everything) for g, n in zip(groups, received, strict=True)]
    update, most = 0, max_iter * sum(counts)
    converged = torch.zeros_like(limit, dtype=torch.bool)
    unsettled = ~converged
    while True:
        triples = zip(received, messages, new, strict=True)
        change = torch.cat([measure(*t).abs().amax(2) for t in triples], 1)
        residual, factor = change.max(1)
        quiet = (residual <= limit) & ~converged
        if bool(quiet.any()):
            joint = torch.where(quiet, joint_change(received, messages, new), 0)
            residual = residual.maximum(joint)
            converged |= quiet & (joint <= limit) & ~unsettled
        together = quiet & ~converged
        send = torch.nn.functional.one_hot(factor, sum(counts)).bool() | together[:, None]
        send &= ~converged[:, None]
        if update == most or not bool(send.any()):
            return FixedPoint([m.flatten(1)[None] for m in messages], residual, converged)
        if damping is None and update and update % (WINDOW * sum(counts)) == 0:
            kept, last = raise_damping(kept, residual, last, converged), residual
        weight, unsettled = kept.masked_fill(together, 0), ~quiet
        for numbers, old, candidate in zip(place, messages, new, strict=True):
            at = send[:, numbers].nonzero().unbind(1)
            old[at] = torch.lerp(candidate[at], old[at], weight[at[0], None])
        received = receive(messages)
        depends = send.double() @ neighbours.double() > 0
        for numbers, g, n, candidate in zip(place, groups, received, new, strict=True):
            at = depends[:, numbers].nonzero().unbind(1)
            if len(at[0]):
                candidate[at] = answer(g.select(*at), n[at][:, None], at[0])[:, 0]
        update += 1
