"""Beams of sequences: the best, or a sample without replacement, of a batch of instances at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..noise import Gumbel
from ..parts import Parts, map_parts
from .states import concatenate, select
from .system import CheckedSystem

__all__ = ["Beam", "GumbelKeys", "LengthPenalty", "Slots", "best_columns", "gather_structures", "search"]


def best_columns(scores: Tensor, k: int) -> Tensor:
    """Return the columns of the min(k, n) largest scores of each row (R, n), best first; of equal scores the first.

    Columns of score −inf are in any order.
    """
    k, n = min(k, scores.shape[1]), scores.shape[1]
    values, index = scores.topk(min(k + 1, n), 1)
    tied = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(1).nonzero()[:, 0]
    if len(tied):
        index[tied] = scores[tied].sort(dim=1, descending=True, stable=True).indices[:, : index.shape[1]]
    return index[:, :k]


@dataclass(frozen=True)
class LengthPenalty:
    """Keys of beam search: the score of a sequence of n actions, divided by ((5 + n) / 6)^exponent.

    References
    ----------
    Wu et al. 2016, Google's Neural Machine Translation System, Equation 14.
    """

    exponent: float = 0.0

    def start(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(batch, 1, dtype=torch.float64, device=device)

    def candidates(
        self, scores: Tensor, totals: Tensor, keys: Tensor, steps: int, k: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the best columns (N, c) of ``scores`` (N, A), with their keys, after ``steps`` actions."""
        columns = best_columns(scores, scores.shape[1] if k is None else k)
        return columns, (totals[:, None] + scores.gather(1, columns)) / ((5 + steps) / 6) ** self.exponent


@dataclass(frozen=True)
class GumbelKeys:
    """Keys of stochastic beam search: perturbed log-probabilities, whose k largest are a sample without replacement.

    The key of a state is the largest of the keys of its sequences, a Gumbel variable with the state's log-probability
    as location. The keys of the children are Gumbel variables conditioned on their maximum, the key of the parent.

    References
    ----------
    Kool, van Hoof & Welling 2019, Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for Sampling
    Sequences Without Replacement, Algorithm 1 and Appendix B.3.
    """

    generator: torch.Generator | None = None

    def start(self, batch: int, device: torch.device) -> Tensor:
        return self._draw((batch, 1), torch.float64, device)

    def candidates(
        self, scores: Tensor, totals: Tensor, keys: Tensor, steps: int, k: int | None
    ) -> tuple[Tensor, Tensor]:
        noisy = scores + self._draw(scores.shape, scores.dtype, scores.device)
        columns = best_columns(noisy, scores.shape[1] if k is None else k)
        perturbed = totals[:, None] + noisy.gather(1, columns)
        # −log(e^−parent − e^−best + e^−perturbed), without overflow and with the key of the parent for the best child.
        gap = perturbed - perturbed.amax(1, keepdim=True)
        difference = keys[:, None] - perturbed + torch.where(gap < 0, _log1mexp(gap), -torch.inf)
        own = keys[:, None] - difference.clamp(min=0) - torch.log1p((-difference.abs()).exp())
        return columns, torch.where(perturbed > -torch.inf, own, -torch.inf)

    def _draw(self, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return Gumbel().sample(shape, dtype=dtype, device=device, generator=self.generator)


def _log1mexp(x: Tensor) -> Tensor:
    """Return log(1 − e^x) of x < 0, accurately for small and large |x| (Mächler 2012)."""
    return torch.where(x > -0.6931471805599453, (-torch.expm1(x)).log(), torch.log1p(-x.exp()))


@dataclass(frozen=True)
class Slots:
    """The k sequences that a beam keeps of each instance, the largest key first.

    Attributes
    ----------
    totals, keys : (B, k) float64 Tensor
        The score of each sequence, and its key; −inf for an empty slot.
    live, finished : (B, k) int64 Tensor
        The index of an unfinished sequence in the batch of states, and of a finished sequence among the finished
        states; else −1.
    """

    totals: Tensor
    keys: Tensor
    live: Tensor
    finished: Tensor


@dataclass
class Beam:
    """The result of a search.

    Attributes
    ----------
    slots : Slots
        The sequences.
    actions : (B, k, T) int64 Tensor
        The actions, −1 beyond the end.
    structures : Parts
        The structures of the F finished states, (F, *event).
    """

    slots: Slots
    actions: Tensor
    structures: Parts


@dataclass
class _History:
    """The parents and actions of the slots in each step."""

    parents: list[Tensor] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)

    def sequences(self, batch: int, width: int, device: torch.device) -> Tensor:
        """Return the actions of the last slots, (B, width, T)."""
        slot = torch.arange(width, device=device).expand(batch, width)
        found = []
        for parents, actions in zip(reversed(self.parents), reversed(self.actions), strict=True):
            found.append(actions.gather(1, slot))
            slot = parents.gather(1, slot)
        return torch.stack(found[::-1], 2) if found else slot.new_zeros(batch, width, 0)


@torch.no_grad()
def search(system: CheckedSystem, inputs: Any, k: int | None, keys: LengthPenalty | GumbelKeys, most: int = 0) -> Beam:
    """Return the k sequences of largest key of each instance, found step by step; all sequences if k is None.

    In each step, the actions of all unfinished sequences of all instances come from one call of the system. With k
    None, an instance with more than ``most`` sequences raises UnsupportedError.
    """
    state, batch = system.start(inputs)
    done = system.done(state)
    device = done.device
    slots = Slots(
        torch.zeros(batch, 1, dtype=torch.float64, device=device),
        keys.start(batch, device),
        _numbered(~done, 0)[:, None],
        _numbered(done, 0)[:, None],
    )
    finished, history, count = [select(state, done.nonzero()[:, 0])], _History(), int(done.sum())
    state = select(state, (~done).nonzero()[:, 0])
    for steps in range(1, system.system.max_steps + 2):
        taken = (slots.live.flatten() >= 0).nonzero()[:, 0]
        if not len(taken):
            break
        system.check_number_of_steps(steps)
        slots, parents, action = _choose(system.action_scores(state), slots, taken, keys, steps, k)
        if k is None and slots.keys.shape[1] > most:
            raise UnsupportedError(
                f"an instance of {system.label} has more than {most} sequences of actions; use samples instead of all "
                "sequences"
            )
        alive = slots.live >= 0
        history.parents.append(parents)
        history.actions.append(torch.where(alive, action, -1))
        state = system.step(select(state, slots.live[alive]), action[alive])
        done = system.done(state)
        live, ended = slots.live.clone(), slots.finished.clone()
        live[alive] = _numbered(~done, 0)
        ended[alive] = _numbered(done, count)
        slots = Slots(slots.totals, slots.keys, live, ended)
        if bool(done.any()):
            finished.append(select(state, done.nonzero()[:, 0]))
            count += int(done.sum())
            state = select(state, (~done).nonzero()[:, 0])
    actions = history.sequences(batch, slots.keys.shape[1], device)
    return Beam(slots, actions, system.structure(concatenate(finished)))


def _choose(
    scores: Tensor, slots: Slots, taken: Tensor, keys: LengthPenalty | GumbelKeys, steps: int, k: int | None
) -> tuple[Slots, Tensor, Tensor]:
    """Return the best children: their slots with ``live`` as index of the parent's state, parent slots and actions.

    Finished sequences compete with the children of the others.
    """
    batch, width = slots.keys.shape
    totals, own_keys = slots.totals.flatten(), slots.keys.flatten()
    columns, new_keys = keys.candidates(scores, totals[taken], own_keys[taken], steps, k)
    new_totals = totals[taken, None] + scores.gather(1, columns)
    fan = max(columns.shape[1], 1)
    tables = [t.new_full((batch * width, fan), -torch.inf) for t in (totals, own_keys)]
    ended = (slots.finished.flatten() >= 0).nonzero()[:, 0]
    for table, new, old in zip(tables, (new_totals, new_keys), (totals, own_keys), strict=True):
        table[taken, : columns.shape[1]] = new
        table[ended, 0] = old[ended]
    flat = tables[1].view(batch, width * fan)
    if k is None:
        k = max(int((flat > -torch.inf).sum(1).max()), 1)
    chosen = best_columns(flat, k)
    parents = chosen.div(fan, rounding_mode="floor")
    found = [table.view(batch, width * fan).gather(1, chosen) for table in tables]
    live = torch.where(found[1] > -torch.inf, slots.live.gather(1, parents), -1)
    finished = slots.finished.gather(1, parents)
    finished = torch.where(found[1] > -torch.inf, finished, -1)
    rank = chosen % fan
    action = torch.where(live >= 0, columns[live.clamp(min=0), rank.clamp(max=max(columns.shape[1] - 1, 0))], -1)
    return Slots(found[0], found[1], live, finished), parents, action


def _numbered(flags: Tensor, first: int) -> Tensor:
    """Return ``first``, ``first`` + 1, ... for the true entries of ``flags`` (N,), and −1 for the others."""
    return torch.where(flags, flags.cumsum(0) - 1 + first, -1)


def gather_structures(structures: Parts, index: Tensor) -> Parts:
    """Return the structures at ``index`` (...), each (F, *event) in ``structures``; 0 where the index is −1."""

    def gather(tensor: Tensor) -> Tensor:
        if not len(tensor):
            return tensor.new_zeros(*index.shape, *tensor.shape[1:])
        found = tensor[index.clamp(min=0)]
        empty = (index < 0).view(*index.shape, *[1] * (tensor.ndim - 1))
        return found.masked_fill(empty, 0)

    return map_parts(gather, structures)
