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


_SMALLEST = -80.0
"""A lower limit of the arguments of exp. exp takes 10 to 100 times as long for numbers whose powers are not normal."""

_LEAST, _MOST = -40.0, 60.0
"""If the best scores of all blocks are between these numbers, exp needs no shift: smaller scores add nothing."""


def _is_moderate(best: Tensor) -> bool:
    """Return whether the ``best`` scores of all blocks are moderate; False for NaN."""
    least, most = torch.aminmax(best)
    return float(least) > _LEAST and float(most) < _MOST


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
    powers : (N, J) Tensor, or None
        Σ exp(score − shift) over the actions of each block, if there are fewer blocks than actions.
    shift : (N, J) Tensor, or None
        The shift of each block, or None for 0.
    """

    scores: Tensor
    best: Tensor
    powers: Tensor | None
    shift: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, *, sums: bool) -> ActionBlocks:
        """Summarize ``scores`` (N, A), with the sums if needed."""
        count, actions = scores.shape
        blocks, on_cpu = number_of_blocks(actions), scores.device.type == "cpu"
        if blocks == actions:
            return cls(scores, scores, None, None)
        step = max(_CHUNK // actions, 1) if on_cpu else max(count, 1)
        best, total, shift = scores.new_empty(count, blocks), scores.new_zeros(count, blocks), None
        memory, last = scores.new_empty(min(step, count), actions if sums else 0), actions % blocks
        for start in range(0, count, step):
            rows = slice(start, start + step)
            own, top, powers = scores[rows], best[rows], memory[: count - start]
            if not sums:
                _best_of_blocks(own, top)
                continue
            of_whole, of_rest = _fold(powers, blocks)
            # Scores are read once if no shift is necessary. Later chunks are probably like this chunk.
            is_moderate = on_cpu and shift is None
            if is_moderate:
                torch.clamp(own, min=_SMALLEST, out=powers)
                _best_of_blocks(powers, top)
                is_moderate = _is_moderate(top)
            if not is_moderate:
                shift = torch.zeros_like(best) if shift is None else shift
                _best_of_blocks(own, top)
                base = shift[rows].copy_(top).masked_fill_(top == -torch.inf, 0.0)
                whole, rest = _fold(own, blocks)
                torch.sub(whole, base[:, None], out=of_whole)
                torch.sub(rest, base[:, :last], out=of_rest)
                powers.clamp_(min=_SMALLEST)
            powers.exp_()
            torch.sum(of_whole, 1, out=total[rows])
            total[rows, :last].add_(of_rest)
        if shift is not None:  # A block of −inf alone has the sum 0.
            total.masked_fill_(best == -torch.inf, 0.0)
        return cls(scores, best, total if sums else None, shift)

    def log_sums(self) -> Tensor:
        """Return log Σ exp(score) over the actions of each block, (N, J) in float64."""
        if self.powers is None:
            return self.scores.double()
        found = self.powers.double().log()
        return found if self.shift is None else found.add_(self.shift)

    def log_sums_of_rows(self) -> Tensor:
        """Return log Σ exp(score) over the actions of each state, (N,) in float64."""
        if self.powers is not None and self.shift is None:
            return self.powers.sum(1, dtype=torch.float64).log_()
        return self.log_sums().logsumexp(1)

    def best_of_rows(self) -> Tensor:
        """Return the best score of each state, (N,); −inf without actions, and NaN if a score is NaN."""
        if not self.best.shape[1]:
            return self.best.new_full((len(self.best),), -torch.inf)
        return self.best.amax(1)

    def children(self, rows: Tensor, blocks: Tensor) -> Tensor:
        """Return the scores of the actions in the blocks (M,) of the states ``rows`` (M,), (M, size).

        Place i belongs to the action ``block`` + i J. Places beyond the last action have the score −inf.
        """
        actions, width = self.scores.shape[1], max(self.best.shape[1], 1)
        whole, rest = _fold(self.scores, width)
        found = self.scores.new_full((len(rows), -(-actions // width)), -torch.inf)
        found[:, : whole.shape[1]] = whole[rows, :, blocks]
        if actions % width:
            has_more = (blocks < actions % width).nonzero()[:, 0]
            found[has_more, -1] = rest[rows[has_more], blocks[has_more]]
        return found


def _fold(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return views of scores (n, A): (n, A // width, width), and the rest (n, A % width)."""
    layers = scores.shape[1] // width
    return scores[:, : layers * width].unflatten(1, (layers, width)), scores[:, layers * width :]


def _best_of_blocks(scores: Tensor, out: Tensor) -> None:
    """Write the best score of each block of scores (n, A) into ``out`` (n, J)."""
    whole, rest = _fold(scores, out.shape[1])
    torch.amax(whole, 1, out=out)
    torch.maximum(out[:, : rest.shape[1]], rest, out=out[:, : rest.shape[1]])
