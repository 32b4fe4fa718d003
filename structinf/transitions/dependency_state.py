"""What the transition systems for dependency trees share: states, structures, costs and gold actions."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..validation import check_flag, check_natural
from .inputs import check_action_scores, split_lengths
from .sequences import roll_out
from .states import Shared, select
from .system import CheckedSystem, TransitionSystem

__all__ = ["DependencyParser", "ParserState"]


@dataclass(frozen=True)
class ParserState:
    """A stack of words, and the words not read yet (the buffer). Words are numbered from 1, and 0 is the root.

    Attributes
    ----------
    inputs : Shared
        The inputs of the instances, (I, n + 1, ...).
    lengths : (N,) int64 Tensor
        The number of words.
    stack : (N, n + 1) int64 Tensor
        The words on the stack, with the root at the bottom.
    depth : (N,) int64 Tensor
        The number of nodes on the stack.
    front : (N,) int64 Tensor
        The first word of the buffer; beyond the length if the buffer is empty.
    heads : (N, n + 1) int64 Tensor
        The head of each word; −1 for words without a head so far.
    labels : (N, n + 1) int64 Tensor
        The label of the arc from the head of each word; −1 for words without a head so far.
    """

    inputs: Shared
    lengths: Tensor
    stack: Tensor
    depth: Tensor
    front: Tensor
    heads: Tensor
    labels: Tensor

    def top(self, place: int) -> Tensor:
        """Return the node at ``place`` from the top of the stack, (N,); 0 if there is none.

        Parameters
        ----------
        place : int
            0 for the top of the stack, 1 for the node below it.
        """
        found = self.stack.gather(1, (self.depth - 1 - place).clamp(min=0)[:, None])[:, 0]
        return torch.where(self.depth > place, found, 0)

    def first(self) -> Tensor:
        """Return the first word of the buffer, (N,); 0 if the buffer is empty."""
        return torch.where(self.front <= self.lengths, self.front, 0)


@dataclass(frozen=True)
class DependencyParser(TransitionSystem):
    """Base class of :class:`structinf.transitions.ArcStandard` and :class:`structinf.transitions.ArcHybrid`.

    Parameters
    ----------
    score : callable, optional
        Returns the scores of the actions, (N, 3) or (N, 1 + 2 L), given a :class:`ParserState`.
    labels : int, optional
        The number L of labels of arcs. By default, arcs have no labels.
    single_root : bool
        Whether exactly one word has the root as its head.
    """

    score: Callable[[ParserState], Tensor] | None = None
    labels: int | None = None
    single_root: bool = False

    def __post_init__(self) -> None:
        if self.labels is not None:
            check_natural("labels", self.labels)
        check_flag("single_root", self.single_root)

    # ------------------------------------------------------------------------- what a system defines

    @abc.abstractmethod
    def arcs(self, state: ParserState) -> Tensor:
        """Return the arcs of "left" and of "right": head and dependent, (N, 2, 2) int64.

        Parameters
        ----------
        state : ParserState
            The states.
        """

    @abc.abstractmethod
    def allowed(self, state: ParserState) -> Tensor:
        """Return whether "shift", "left" and "right" are allowed, (N, 3) bool.

        Parameters
        ----------
        state : ParserState
            The states.
        """

    @abc.abstractmethod
    def future_loss(self, state: ParserState, wrong: Tensor) -> Tensor:
        """Return the least number of wrong arcs among the arcs that are still missing, (N,) float64.

        Parameters
        ----------
        state : ParserState
            The states.
        wrong : (N, n + 1, n + 1) float64 Tensor
            1 for an arc from the head (second dimension) to the dependent (third) that is not gold, else 0.
        """

    @abc.abstractmethod
    def without(self, state: ParserState, is_left: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stack and the depth after "left" or "right", (N, n + 1) and (N,).

        Parameters
        ----------
        state : ParserState
            The states.
        is_left : (N,) bool Tensor
            Whether the action is "left".
        """

    # ------------------------------------------------------------------------- the protocol

    def start(self, inputs: Any) -> ParserState:
        values, lengths = split_lengths(inputs, 1)
        batch, size = values.shape[:2]
        if self.score is None and values.shape[1:] != (size, size, *self._label_shape()):
            expected = ", ".join(map(str, ("B", "n + 1", "n + 1", *self._label_shape())))
            raise InvalidInputError(f"inputs without a score must have shape ({expected}), got {tuple(values.shape)}")
        nothing = lengths.new_full((batch, size), -1)
        one = torch.ones_like(lengths)
        return ParserState(Shared.of(values), lengths, lengths.new_zeros(batch, size), one, one, nothing, nothing)

    def actions(self, state: ParserState) -> Tensor:
        scores = self._arc_scores(state) if self.score is None else self.score(state)
        check_action_scores(scores, len(state.depth), 1 + 2 * self._kinds)
        return torch.where(self._per_action(self.allowed(state)), scores, -torch.inf)

    def step(self, state: ParserState, action: Tensor) -> ParserState:
        is_shift, is_left = action == 0, (action >= 1) & (action <= self._kinds)
        arcs = self.arcs(state)
        head, dependent = torch.where(is_left[:, None], arcs[:, 0], arcs[:, 1]).unbind(1)
        # Column 0, the root, takes the writes of "shift" and stays −1.
        dependent = torch.where(is_shift, 0, dependent)[:, None]
        heads = state.heads.scatter(1, dependent, torch.where(is_shift, -1, head)[:, None])
        label = torch.where(is_shift, -1, (action - 1) % self._kinds)
        labels = state.labels.scatter(1, dependent, label[:, None])
        stack, depth = self.without(state, is_left)
        pushed = state.stack.scatter(1, state.depth.clamp(max=state.stack.shape[1] - 1)[:, None], state.front[:, None])
        stack = torch.where(is_shift[:, None], pushed, stack)
        depth = torch.where(is_shift, state.depth + 1, depth)
        return replace(state, stack=stack, depth=depth, front=state.front + is_shift, heads=heads, labels=labels)

    def done(self, state: ParserState) -> Tensor:
        return (state.depth == 1) & (state.front > state.lengths)

    def structure(self, state: ParserState) -> Tensor:
        batch, size = state.heads.shape
        tree = state.inputs.values.new_zeros(batch, size, size, self._kinds, requires_grad=False)
        row, word = (state.heads >= 0).nonzero(as_tuple=True)
        tree[row, state.heads[row, word], word, state.labels[row, word]] = 1
        return tree if self.labels is not None else tree[..., 0]

    # ------------------------------------------------------------------------- gold actions

    @torch.no_grad()
    def costs(self, state: ParserState, heads: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return how many gold arcs each action loses, (N, A) float64; +inf for actions that are not allowed.

        The loss of a state is the least number of words with a wrong head (or label) among the trees that the system
        can still build. The cost of an action is the increase of the loss, 0 for at least one action of every state.

        Parameters
        ----------
        state : ParserState
            States of the instances.
        heads : (I, n) int64 Tensor
            The gold head of each word of an instance, 0 for the root; −1 beyond the length.
        labels : (I, n) int64 Tensor, optional
            The gold label of each arc. By default, labels do not count. A system without labels raises
            InvalidInputError.
        """
        gold = self._gold(state, heads, "heads", state.heads.shape[1])
        wrong = torch.arange(gold.shape[1], device=gold.device)[:, None] != gold[:, None]
        wrong = wrong.double()
        allowed, arcs = self.allowed(state), self.arcs(state)
        rows = torch.arange(len(gold), device=gold.device)
        arc_loss = wrong[rows[:, None], arcs[..., 0], arcs[..., 1]]
        before = self.future_loss(state, wrong)
        kind = []
        for action in range(3):
            found = torch.full_like(before, torch.inf)
            some = allowed[:, action].nonzero()[:, 0]
            after = self.step(
                select(state, some), torch.full_like(some, 1 + (action - 1) * self._kinds if action else 0)
            )
            found[some] = self.future_loss(after, wrong[some]) - before[some]
            kind.append(found + arc_loss[:, action - 1] if action else found)
        found = self._per_action(torch.stack(kind, 1))
        return found + self._label_costs(state, arcs, gold, labels)

    def gold_actions(self, inputs: Any, heads: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return a sequence of actions of cost 0 for each instance, (B, T) int64, −1 beyond the end.

        The sequence builds the gold tree, or for a gold tree that is not projective, a projective tree with the most
        gold arcs. Of several actions of cost 0, the sequence has "right", else "left", else "shift".

        Parameters
        ----------
        inputs : Tensor, or tuple of Tensor and lengths
            The inputs of the system; their values do not matter.
        heads : (B, n) int64 Tensor
            The gold head of each word.
        labels : (B, n) int64 Tensor, optional
            The gold label of each arc.
        """
        values, lengths = split_lengths(inputs, 1)
        plain = replace(self, score=lambda state: values.new_zeros(len(state.depth), 1 + 2 * self._kinds))

        def choose(state: ParserState, _: Tensor) -> Tensor:
            costs = self.costs(state, heads, labels)
            return costs.shape[1] - 1 - costs.flip(1).argmin(1)

        return roll_out(CheckedSystem(plain), (values.detach(), lengths), 1, choose).actions[0]

    # ------------------------------------------------------------------------- helpers

    @property
    def _kinds(self) -> int:
        return self.labels or 1

    def _label_shape(self) -> tuple[int, ...]:
        return () if self.labels is None else (self.labels,)

    def _per_action(self, of_kind: Tensor) -> Tensor:
        """Return the columns "shift", "left" and "right" (N, 3), repeated for each label, (N, A)."""
        return torch.cat([of_kind[:, :1], of_kind[:, 1:].repeat_interleave(self._kinds, 1)], 1)

    def _gold(self, state: ParserState, labels: Tensor, name: str, count: int) -> Tensor:
        """Return the row (n + 1) of gold labels of each state, with −1 for the root."""
        size = state.heads.shape[1]
        if not isinstance(labels, Tensor):
            raise TypeError(f"{name} must be an int64 tensor, got {type(labels).__name__}")
        if labels.shape != (len(state.inputs.values), size - 1) or labels.dtype != torch.int64:
            raise InvalidInputError(
                f"{name} must be an int64 tensor of shape ({len(state.inputs.values)}, {size - 1}), got "
                f"{tuple(labels.shape)} in {labels.dtype}"
            )
        if labels.numel() and int(labels.max()) >= count:
            raise InvalidInputError(f"{name} must be below {count}, got {int(labels.max())}")
        return torch.nn.functional.pad(labels, (1, 0), value=-1)[state.inputs.rows]

    def _label_costs(self, state: ParserState, arcs: Tensor, gold: Tensor, labels: Tensor | None) -> Tensor | float:
        """Return 1 for actions that add a gold arc with a wrong label, (N, A)."""
        if labels is None:
            return 0.0
        if self.labels is None:
            raise InvalidInputError(
                f"labels must not be given, as the arcs of this {type(self).__name__} have no labels; construct it "
                "with labels=..., their number"
            )
        gold_label = self._gold(state, labels, "labels", self.labels).gather(1, arcs[..., 1])
        is_gold = gold.gather(1, arcs[..., 1]) == arcs[..., 0]
        wrong = is_gold[..., None] & (torch.arange(self.labels, device=gold.device) != gold_label[..., None])
        return torch.nn.functional.pad(wrong.flatten(1).double(), (1, 0))

    def _arc_scores(self, state: ParserState) -> Tensor:
        arcs = self.arcs(state)
        scores = [state.inputs.at(arcs[:, i, 0], arcs[:, i, 1]).view(len(arcs), self._kinds) for i in range(2)]
        return torch.cat([scores[0].new_zeros(len(arcs), 1), *scores], 1)
