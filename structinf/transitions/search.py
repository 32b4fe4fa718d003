"""Beams of sequences: the best, or a sample without replacement, of a batch of instances at once."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..errors import InfeasibleError, InvalidInputError, UnsupportedError
from ..noise import Gumbel
from ..parts import Parts, map_parts
from .action_blocks import ActionBlocks
from .states import concatenate, select
from .system import CheckedSystem

__all__ = ["Beam", "GumbelKeys", "Keys", "LengthPenalty", "Slots", "best_columns", "gather_structures", "search"]


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


class Keys(abc.ABC):
    """Keys by which a search compares sequences: the largest stay.

    The key of a set of sequences is the largest key in it. The best score of a block of actions gives the key of the
    block, from which the keys of its actions follow.
    """

    needs_sums: ClassVar[bool] = False
    """Whether the keys depend on the log-sum-exp of each block."""

    @abc.abstractmethod
    def start(self, batch: int, device: torch.device) -> Tensor:
        """Return the keys of the first states, (B, 1)."""

    @abc.abstractmethod
    def of_blocks(self, blocks: ActionBlocks, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        """Return the keys of blocks of actions, (N, J) in float64.

        Parameters
        ----------
        blocks : ActionBlocks
            The actions of N states, after ``steps`` actions in all.
        base : (N,) float64 Tensor
            The number to add to the score of an action for the score of its sequence.
        keys : (N,) float64 Tensor
            The keys of the states.
        """

    @abc.abstractmethod
    def of_actions(self, scores: Tensor, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        """Return the keys of actions with ``scores`` (M, n), in M blocks with ``keys`` (M,), in float64."""


def _log_expm1(x: Tensor) -> Tensor:
    """Return log(e^x − 1) of x ≥ 0, the inverse of softplus."""
    return x + (-torch.expm1(-x)).log()


@dataclass(frozen=True)
class LengthPenalty(Keys):
    """Keys of beam search: the score of a sequence of n actions, divided by ((5 + n) / 6)^exponent.

    References
    ----------
    Wu et al. 2016, Google's Neural Machine Translation System, Equation 14.
    """

    exponent: float = 0.0

    def start(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(batch, 1, dtype=torch.float64, device=device)

    def of_blocks(self, blocks: ActionBlocks, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        return self.of_actions(blocks.best, base, keys, steps)

    def of_actions(self, scores: Tensor, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        try:
            divisor = ((5 + steps) / 6) ** self.exponent
        except OverflowError:
            raise InvalidInputError(
                f"length_penalty {self.exponent!r} is too large for sequences of {steps} actions: "
                "((5 + n) / 6)^length_penalty overflows; use a smaller length_penalty"
            ) from None
        total = base[:, None] + scores
        return total if divisor == 1 else total / divisor


@dataclass(frozen=True)
class GumbelKeys(Keys):
    """Keys of stochastic beam search: perturbed log-probabilities, whose k largest are a sample without replacement.

    The key of a state is the largest of the keys of its sequences, a Gumbel variable with the state's log-probability
    as location. The keys of its blocks of actions are Gumbel variables conditioned on their maximum, the key of the
    state, and the keys of the actions of a block are conditioned on the key of the block. A search draws noise for the
    actions of few blocks.

    References
    ----------
    Kool, van Hoof & Welling 2019, Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for Sampling
    Sequences Without Replacement, Algorithm 1 and Appendix B.3.
    """

    generator: torch.Generator | None = None

    needs_sums: ClassVar[bool] = True

    def start(self, batch: int, device: torch.device) -> Tensor:
        return self._draw((batch, 1), device)

    def of_blocks(self, blocks: ActionBlocks, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        return self.of_actions(blocks.log_sums(), base, keys, steps)

    def of_actions(self, scores: Tensor, base: Tensor, keys: Tensor, steps: int) -> Tensor:
        if not scores.shape[1]:
            return scores.double()
        noisy = self._draw(scores.shape, scores.device).add_(scores)
        best = noisy.amax(1, keepdim=True)
        # −log(e^−key − e^−best + e^−own) with y = best − own is key − log(1 + e^(key − best) (e^y − 1)).
        offset = (keys - base)[:, None] - best
        found = keys[:, None] - softplus(offset + _log_expm1(best - noisy), threshold=40)
        return found.masked_fill_(noisy == -torch.inf, -torch.inf)

    def _draw(self, shape: Any, device: torch.device) -> Tensor:
        return Gumbel().sample(shape, dtype=torch.float64, device=device, generator=self.generator)


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
    keys: Keys,
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
        blocks = ActionBlocks.of(system.raw_scores(state), sums=system.normalize or keys.needs_sums)
        best = blocks.best_of_rows()
        system.check_best_scores(best)
        if on_dead_end == "raise":
            is_dead = best == -torch.inf
            if bool(is_dead.any()):
                raise dead_end_error(system.label, int(taken[is_dead][0]) // slots.live.shape[1])
        base = slots.totals.flatten()[taken]
        if system.normalize:
            base = base - blocks.log_sums_of_rows().masked_fill(best == -torch.inf, 0.0)
        slots, parents, action = _choose(blocks, base, slots, taken, keys, steps, k)
        del blocks  # so that the next scores take the same memory
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
    blocks: ActionBlocks, base: Tensor, slots: Slots, taken: Tensor, keys: Keys, steps: int, k: int | None
) -> tuple[Slots, Tensor, Tensor]:
    """Return the best children: their slots with ``live`` as index of the parent's state, parent slots and actions.

    Finished sequences compete with the children of the others. Row i of the ``blocks``, and of the ``base`` of their
    scores, belongs to the slot ``taken[i]``.
    """
    batch, width = slots.keys.shape
    totals, own_keys = slots.totals.flatten(), slots.keys.flatten()
    row, action, score, key = _candidates(blocks, base, slots, taken, keys, steps, k)
    ended = (slots.finished.flatten() >= 0).nonzero()[:, 0]
    place = torch.cat([taken[row], ended])
    found_keys = torch.cat([key, own_keys[ended]])
    found_totals = torch.cat([base[row] + score, totals[ended]])
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


def _candidates(
    blocks: ActionBlocks, base: Tensor, slots: Slots, taken: Tensor, keys: Keys, steps: int, k: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows, actions, scores and keys of children that include the k best of each instance; of all for None.

    They are sorted by row and action. A block has a child with the key of the block, so that the k-th largest key of
    the blocks of an instance bounds its k-th best child from below.
    """
    batch, width = slots.keys.shape
    of_blocks = keys.of_blocks(blocks, base, slots.keys.flatten()[taken], steps)
    least = torch.full_like(base, -torch.inf)
    if k is not None:
        # The largest keys of groups of blocks bound the k-th best child too, and 16 k groups almost as tightly.
        groups = of_blocks.shape[1]
        while groups % 2 == 0 and groups // 2 * width >= 16 * k:
            groups //= 2
        table = slots.keys.new_full((batch * width, groups), -torch.inf)
        table[taken] = of_blocks.unflatten(1, (-1, groups)).amax(1) if groups < of_blocks.shape[1] else of_blocks
        bounds = torch.cat([table.view(batch, -1), slots.keys.masked_fill(slots.finished < 0, -torch.inf)], 1)
        if bounds.shape[1] >= k:
            least = bounds.topk(k, 1).values[:, -1][taken.div(width, rounding_mode="floor")]
    lowest = torch.finfo(base.dtype).min
    least = least.clamp(min=lowest)
    rows, block = (of_blocks >= least[:, None]).nonzero().unbind(1)
    scores = blocks.children(rows, block)
    of_children = keys.of_actions(scores, base[rows], of_blocks[rows, block], steps)
    index, place = (of_children >= least[rows, None]).nonzero().unbind(1)
    rows, actions = rows[index], block[index] + place * of_blocks.shape[1]
    order = (rows * max(blocks.scores.shape[1], 1) + actions).argsort()
    return rows[order], actions[order], scores[index, place][order], of_children[index, place][order]


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
