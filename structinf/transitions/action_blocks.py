"""Scores of the actions of a batch of states, summarized by blocks of actions.

A search keeps few children of many states and actions. The best score and the log-sum-exp of each block tell which
blocks have such children, after one pass over the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ActionBlocks", "number_of_blocks"]

_LANES = 64
"""The number of blocks is a multiple, so that vector instructions run along the blocks."""

_CHUNK = 2**18
"""The number of scores that are summarized at once on a CPU: 1 MB in float32, which stays in a core's cache."""


def number_of_blocks(actions: int) -> int:
    """Return the number of blocks for so many actions: about its square root. Few actions are not grouped."""
    return actions if actions < 2 * _LANES else max(round(math.sqrt(actions) / _LANES), 1) * _LANES


@dataclass(frozen=True)
class ActionBlocks:
    """Scores of A actions of N states, in J blocks. Block j has the actions j, j + J, j + 2J, ...

    Attributes
    ----------
    scores : (N, A) Tensor
        The scores.
    best : (N, J) Tensor
        The best score of each block.
    log_sums : (N, J) float64 Tensor, or None
        log Σ exp(score) over the actions of each block.
    """

    scores: Tensor
    best: Tensor
    log_sums: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, *, sums: bool) -> ActionBlocks:
        """Summarize ``scores`` (N, A), with the sums if needed."""
        count, actions = scores.shape
        blocks = number_of_blocks(actions)
        if blocks == actions:
            return cls(scores, scores, scores.double() if sums else None)
        layers = actions // blocks
        whole, rest = scores[:, : layers * blocks].unflatten(1, (layers, blocks)), scores[:, layers * blocks :]
        last = rest.shape[1]
        step = max(_CHUNK // actions, 1) if scores.device.type == "cpu" else max(count, 1)
        best = scores.new_empty(count, blocks)
        total, memory = (torch.empty_like(best), torch.empty_like(whole[:step])) if sums else (best, best)
        for start in range(0, count, step):
            rows = slice(start, start + step)
            part, top = whole[rows], best[rows]
            torch.amax(part, 1, out=top)
            torch.maximum(top[:, :last], rest[rows], out=top[:, :last])
            if sums:
                # A block of −inf alone has the sum 0.
                base = top.masked_fill(top == -torch.inf, 0.0)
                away = torch.sub(part, base[:, None], out=memory[: len(part)])
                torch.sum(away.exp_(), 1, out=total[rows])
                total[rows, :last] += (rest[rows] - base[:, :last]).exp_()
        return cls(scores, best, total.double().log_().add_(best) if sums else None)

    def best_of_rows(self) -> Tensor:
        """Return the best score of each state, (N,); −inf without actions, and NaN if a score is NaN."""
        if not self.best.shape[1]:
            return self.best.new_full((len(self.best),), -torch.inf)
        return self.best.amax(1)

    def children(self, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actions in the blocks (M,) of the states ``rows`` (M,), and their scores, both (M, size).

        Places beyond the last action have the score −inf.
        """
        actions, width = self.scores.shape[1], self.best.shape[1]
        size = -(-actions // max(width, 1))
        action = blocks[:, None] + width * torch.arange(size, device=blocks.device)
        if size * width == actions:
            return action, self.scores.take(action + rows[:, None] * actions)
        scores = self.scores.take(action.clamp(max=actions - 1) + rows[:, None] * actions)
        return action, scores.masked_fill_(action >= actions, -torch.inf)
