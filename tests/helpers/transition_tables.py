"""Transition systems whose scores are tables, and the list of all sequences of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import structinf as si
from structinf.transitions import Shared


@dataclass(frozen=True)
class Prefix:
    """The tokens of a sequence so far, −1 for no token."""

    table: Shared
    tokens: Tensor
    count: Tensor
    ended: Tensor


class Table(si.TransitionSystem):
    """Sequences of at most ``longest`` tokens, which end with token 0, with scores by the number of the prefix.

    A table (B, prefixes, A) holds the scores. The prefix of tokens a, b has the number (a + 1) (A + 1) + (b + 1).
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def start(self, inputs: Any) -> Prefix:
        batch = len(inputs)
        tokens = torch.full((batch, self.longest), -1)
        zero = torch.zeros(batch, dtype=torch.int64)
        return Prefix(Shared.of(inputs), tokens, zero, zero.bool())

    def actions(self, state: Prefix) -> Tensor:
        number = torch.zeros_like(state.count)
        base = state.table.values.shape[2] + 1
        for i in range(self.longest):
            number = torch.where(state.count > i, number * base + state.tokens[:, i] + 1, number)
        return state.table.at(number)

    def step(self, state: Prefix, action: Tensor) -> Prefix:
        tokens = state.tokens.scatter(1, state.count[:, None], action[:, None])
        return replace(state, tokens=tokens, count=state.count + 1, ended=action == 0)

    def done(self, state: Prefix) -> Tensor:
        return state.ended | (state.count == self.longest)

    def structure(self, state: Prefix) -> Tensor:
        return state.tokens


def table(batch: int, actions: int, longest: int, seed: int = 0, forbidden: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = batch, (actions + 1) ** longest, actions
    scores = torch.randn(shape, dtype=torch.float64, generator=generator)
    return scores.masked_fill(torch.rand(shape, generator=generator) < forbidden, -torch.inf)


def listed(scores: Tensor, longest: int) -> dict[tuple[int, ...], float]:
    """Return all complete sequences with their log-probabilities, from the scores (prefixes, A) of an instance."""
    found, base = {}, scores.shape[1] + 1
    waiting: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while waiting:
        prefix, total = waiting.pop()
        number = 0
        for token in prefix:
            number = number * base + token + 1
        row = scores[number]
        if row.max() == -torch.inf:
            continue
        for token, log_p in enumerate((row - row.logsumexp(0)).tolist()):
            after = (*prefix, token)
            if log_p == -math.inf:
                continue
            if token == 0 or len(after) == longest:
                found[after] = total + log_p
            else:
                waiting.append((after, total + log_p))
    return found


def as_dict(found: Any, b: int) -> dict[tuple[int, ...], float]:
    return {
        tuple(a for a in actions if a >= 0): score
        for actions, score, valid in zip(
            found.actions[:, b].tolist(), found.scores[:, b].tolist(), found.valid[:, b].tolist(), strict=True
        )
        if valid
    }


class LongSequences(si.TransitionSystem):
    """Sequences of one action for each row of a table (T, A), with scores that do not depend on the prefix."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def start(self, inputs: Any) -> Tensor:
        return torch.zeros(len(inputs), dtype=torch.int64)

    def actions(self, state: Tensor) -> Tensor:
        return self.scores[state]

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        return state + 1

    def done(self, state: Tensor) -> Tensor:
        return state == len(self.scores)

    def structure(self, state: Tensor) -> Tensor:
        return state


def within(counts: Tensor, p: Tensor, draws: int) -> bool:
    """Whether frequencies are within six standard errors of the probabilities."""
    return bool(((counts / draws - p).abs() <= 6 * (p * (1 - p) / draws).sqrt()).all())
