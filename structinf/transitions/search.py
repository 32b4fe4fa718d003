"""Beams of sequences: the best, or a sample without replacement, of a batch of instances at once."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import InfeasibleError, InvalidInputError, UnsupportedError
from ..noise import Gumbel
from ..parts import Parts, map_parts
from .states import concatenate, select
from .system import CheckedSystem

_BLOCK = 16
"""The number of actions in a block."""

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


class RowKeys(abc.ABC):
    """Keys of the children of N states, as increasing functions of their scores."""

    @abc.abstractmethod
    def of(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Return the keys of children with ``scores`` (M, ...) of the states ``rows`` (M,), in float64."""

    @abc.abstractmethod
    def least_scores(self, keys: Tensor) -> Tensor:
        """Return the least scores of children with keys of at least ``keys`` (N,), for each state."""


@dataclass(frozen=True)
class _PenalizedTotals(RowKeys):
    totals: Tensor
    divisor: float

    def of(self, rows: Tensor, scores: Tensor) -> Tensor:
        return (_like(self.totals[rows], scores) + scores) / self.divisor

    def least_scores(self, keys: Tensor) -> Tensor:
        scaled = keys * self.divisor
        rounding = 4 * torch.finfo(scaled.dtype).eps * (scaled.abs() + self.totals.abs())
        return scaled - torch.where(rounding < torch.inf, rounding, 0.0) - self.totals


@dataclass(frozen=True)
class _ConditionedGumbels(RowKeys):
    """Keys −log(e^−parent − e^−best + e^−own) of children, for their perturbed log-probabilities and the best of these.

    With y = best − own, the key is parent − log(1 + e^(parent − best) (e^y − 1)).
    """

    parents: Tensor
    best: Tensor
    """The largest score of the children of each state."""
    offset: Tensor
    """parent − best, for the perturbed log-probabilities of whole sequences."""

    def of(self, rows: Tensor, scores: Tensor) -> Tensor:
        gap = _like(self.best[rows], scores) - scores.double()
        return _like(self.parents[rows], scores) - softplus(_like(self.offset[rows], scores) + _log_expm1(gap))

    def least_scores(self, keys: Tensor) -> Tensor:
        room = self.parents - keys
        found = self.best - softplus(_log_expm1(room.clamp(min=0)) - self.offset)
        return torch.where(room >= 0, found, torch.inf)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), of ±inf as well."""
    return x.clamp(min=0) + torch.log1p((-x.abs()).exp())


def _log_expm1(x: Tensor) -> Tensor:
    """Return log(e^x − 1) of x ≥ 0, the inverse of :func:`softplus`."""
    return x + (-torch.expm1(-x)).log()


def _like(values: Tensor, scores: Tensor) -> Tensor:
    return values.view(-1, *[1] * (scores.ndim - 1))


@dataclass(frozen=True)
class LengthPenalty:
    """Keys of beam search: the score of a sequence of n actions, divided by ((5 + n) / 6)^exponent.

    References
    ----------
    Wu et al. 2016, Google's Neural Machine Translation System, Equation 14.
    """

    exponent: float = 0.0

    def start(self, batch: int, device: torch.device) -> Tensor:
        """Return the keys of the first states, (B, 1)."""
        return torch.zeros(batch, 1, dtype=torch.float64, device=device)

    def children(self, scores: Tensor, totals: Tensor, keys: Tensor, steps: int) -> tuple[Tensor, RowKeys]:
        """Return scores (N, A) that rank the children of each state, and their keys after ``steps`` actions."""
        try:
            divisor = ((5 + steps) / 6) ** self.exponent
        except OverflowError:
            raise InvalidInputError(
                f"length_penalty {self.exponent!r} is too large for sequences of {steps} actions: "
                "((5 + n) / 6)^length_penalty overflows; use a smaller length_penalty"
            ) from None
        return scores, _PenalizedTotals(totals, divisor)


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
        """Return the keys of the first states, (B, 1)."""
        return self._draw((batch, 1), torch.float64, device)

    def children(self, scores: Tensor, totals: Tensor, keys: Tensor, steps: int) -> tuple[Tensor, RowKeys]:
        """Return scores (N, A) that rank the children of each state, and their keys after ``steps`` actions."""
        noisy = self._draw(scores.shape, scores.dtype, scores.device).add_(scores)
        best = noisy.amax(1).double() if noisy.shape[1] else keys.new_full((len(noisy),), -torch.inf)
        return noisy, _ConditionedGumbels(keys, best, keys - totals - best)

    def _draw(self, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return Gumbel().sample(shape, dtype=dtype, device=device, generator=self.generator)


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


def dead_end_error(label: str, instance: int) -> InfeasibleError:
    """Return the error of a sequence of the instance that has no further action."""
    return InfeasibleError(f"{label} ran into a dead end, a state without an allowed action", instance)


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
def search(
    system: CheckedSystem,
    inputs: Any,
    k: int | None,
    keys: LengthPenalty | GumbelKeys,
    most: int = 0,
    *,
    on_dead_end: str = "drop",
) -> Beam:
    """Return the k sequences of largest key of each instance, found step by step; all sequences if k is None.

    In each step, the actions of all unfinished sequences of all instances come from one call of the system. With k
    None, an instance with more than ``most`` sequences raises UnsupportedError. With ``on_dead_end="raise"``, a state
    without an allowed action raises InfeasibleError.
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
        scores = system.action_scores(state)
        if on_dead_end == "raise":
            is_dead = ~(scores > -torch.inf).any(1)
            if bool(is_dead.any()):
                raise dead_end_error(system.label, int(taken[is_dead][0]) // slots.live.shape[1])
        slots, parents, action = _choose(scores, slots, taken, keys, steps, k)
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

    Finished sequences compete with the children of the others. Row i of ``scores`` belongs to the slot ``taken[i]``.
    """
    batch, width = slots.keys.shape
    totals, own_keys = slots.totals.flatten(), slots.keys.flatten()
    ranked, row_keys = keys.children(scores, totals[taken], own_keys[taken], steps)
    row, action = _candidates(ranked, row_keys, slots, taken, k)
    ended = (slots.finished.flatten() >= 0).nonzero()[:, 0]
    place = torch.cat([taken[row], ended])
    found_keys = torch.cat([row_keys.of(row, ranked[row, action]), own_keys[ended]])
    found_totals = torch.cat([totals[taken[row]] + scores[row, action], totals[ended]])
    # By instance, then by key, then by slot and action.
    order = place.argsort(stable=True)
    order = order[found_keys[order].argsort(descending=True, stable=True)]
    order = order[place[order].div(width, rounding_mode="floor").argsort(stable=True)]
    instance = place[order].div(width, rounding_mode="floor")
    counts = instance.bincount(minlength=batch)
    rank = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[instance]
    if k is None:
        k = max(int(counts.max()), 1)
    order, instance, rank = order[rank < k], instance[rank < k], rank[rank < k]

    def table(values: Tensor, filler: float) -> Tensor:
        return values.new_full((batch, k), filler).index_put((instance, rank), values[order])

    no_state, no_action = torch.full_like(ended, -1), torch.full_like(ended, -1)
    slots = Slots(
        table(found_totals, -torch.inf),
        table(found_keys, -torch.inf),
        table(torch.cat([row, no_state]), -1),
        table(torch.cat([torch.full_like(row, -1), slots.finished.flatten()[ended]]), -1),
    )
    return slots, table(place % width, 0), table(torch.cat([action, no_action]), -1)


def _candidates(ranked: Tensor, keys: RowKeys, slots: Slots, taken: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
    """Return rows and actions, sorted, of children that include the k best of each instance; all children for None.

    The k-th largest of the maxima of blocks of actions bounds the k-th best child from below. The bound takes two
    passes over the scores, much less than a partial sort of each row.
    """
    count, actions = ranked.shape
    least: Any = torch.finfo(ranked.dtype).min
    if k is not None and actions > _BLOCK:
        blocks = actions // _BLOCK
        # Block j holds the actions j, j + blocks, ...; the last block holds the rest.
        maxima = ranked[:, : blocks * _BLOCK].view(count, _BLOCK, blocks).amax(1)
        if blocks * _BLOCK < actions:
            maxima = torch.cat([maxima, ranked[:, blocks * _BLOCK :].amax(1, keepdim=True)], 1)
        batch, width = slots.keys.shape
        rows = torch.arange(count, device=ranked.device)
        table = slots.keys.new_full((batch * width, maxima.shape[1]), -torch.inf)
        best = keys.of(rows, maxima)
        table[taken] = best
        bounds = torch.cat([table.view(batch, -1), slots.keys.masked_fill(slots.finished < 0, -torch.inf)], 1)
        bound = bounds.topk(min(k, bounds.shape[1]), 1).values[:, -1] if bounds.shape[1] >= k else None
        if bound is not None:
            bound = bound[taken.div(width, rounding_mode="floor")]
            exact = keys.least_scores(bound)
            slack = 16 * torch.finfo(ranked.dtype).eps * (1 + exact.abs())
            bounded = torch.where(exact.isfinite(), exact - slack, exact).to(ranked.dtype)
            # The maxima that decide the bound stay, whatever the rounding errors of their least score.
            bounded = bounded.minimum(maxima.masked_fill(best < bound[:, None], torch.inf).amin(1))
            least = bounded.clamp(min=least)[:, None]
    rows, columns = (ranked >= least).nonzero().unbind(1)
    return rows, columns


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
