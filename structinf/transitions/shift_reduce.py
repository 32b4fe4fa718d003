"""Shift-reduce parsing: binary trees over a sequence of words, built from the left to the right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..validation import check_natural
from .inputs import check_action_scores, split_lengths
from .states import Shared
from .system import TransitionSystem

__all__ = ["ShiftReduce", "ShiftReduceState"]


@dataclass(frozen=True)
class ShiftReduceState:
    """A stack of spans, and the words not read yet.

    Attributes
    ----------
    inputs : Shared
        The inputs of the instances, (I, n, ...).
    lengths : (N,) int64 Tensor
        The number of words.
    stack : (N, n) int64 Tensor
        The first word of each span on the stack, the bottom first. A span ends before the next one begins.
    depth : (N,) int64 Tensor
        The number of spans on the stack.
    front : (N,) int64 Tensor
        The next word to read.
    spans : (N, 2n − 1, 3) int64 Tensor
        First word, last word and label of the nodes built so far, in order; −1 for nodes not built yet.
    """

    inputs: Shared
    lengths: Tensor
    stack: Tensor
    depth: Tensor
    front: Tensor
    spans: Tensor

    def first_word(self, place: int) -> Tensor:
        """Return the first word of the span at ``place`` from the top of the stack, (N,); 0 if there is none.

        Parameters
        ----------
        place : int
            0 for the top of the stack, 1 for the span below it.
        """
        found = self.stack.gather(1, (self.depth - 1 - place).clamp(min=0)[:, None])[:, 0]
        return torch.where(self.depth > place, found, 0)


@dataclass(frozen=True)
class ShiftReduce(TransitionSystem):
    """Binary trees over n words: "shift" puts the next word on a stack, "reduce" joins the two spans at its top.

    A tree has one sequence, of 2n − 1 actions. Actions: 0 for shift and 1 for reduce; with L labels, the numbers 0 to
    L − 1 shift and L to 2L − 1 reduce, and label the new span. Structures: (B, n, n), or (B, n, n, L) with labels, as
    for the oracle ``binary_tree``.

    Inputs: a tensor (B, n, ...), or a tuple of the tensor and lengths (B,).

    Parameters
    ----------
    score : callable, optional
        Returns the scores of the actions, (N, 2) or (N, 2 L), given a :class:`ShiftReduceState`. The scores of actions
        that are not allowed are ignored. By default, the inputs are scores θ of spans, as for ``binary_tree``, and the
        score of an action is the score of its new span: the sum over a sequence is the score of the tree.
    labels : int, optional
        The number L of labels of spans. By default, spans have no labels.

    References
    ----------
    Sagae & Lavie 2005, A Classifier-Based Parser with Linear Run-Time Complexity.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.zeros(1, 4, 4)
    >>> found = si.transitions.enumerate_sequences(ShiftReduce(), theta)
    >>> ["".join("SR"[a] for a in one) for one in found.actions[:, 0]]
    ['SSRSSRR', 'SSRSRSR', 'SSSSRRR', 'SSSRSRR', 'SSSRRSR']
    >>> found.scores[:, 0].exp()
    tensor([0.2500, 0.2500, 0.2500, 0.1250, 0.1250], dtype=torch.float64)
    """

    score: Callable[[ShiftReduceState], Tensor] | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        if self.labels is not None:
            check_natural("labels", self.labels)

    def start(self, inputs: Any) -> ShiftReduceState:
        values, lengths = split_lengths(inputs, 0)
        batch, n = values.shape[:2]
        if self.score is None and values.shape[1:] != (n, n, *self._label_shape()):
            expected = ", ".join(map(str, ("B", "n", "n", *self._label_shape())))
            raise InvalidInputError(f"inputs without a score must have shape ({expected}), got {tuple(values.shape)}")
        zero = torch.zeros_like(lengths)
        stack, spans = lengths.new_zeros(batch, n), lengths.new_full((batch, 2 * n - 1, 3), -1)
        return ShiftReduceState(Shared.of(values), lengths, stack, zero, zero, spans)

    def actions(self, state: ShiftReduceState) -> Tensor:
        scores = self._span_scores(state) if self.score is None else self.score(state)
        kinds = self.labels or 1
        check_action_scores(scores, len(state.depth), 2 * kinds)
        allowed = torch.stack([state.front < state.lengths, state.depth >= 2], 1).repeat_interleave(kinds, 1)
        return torch.where(allowed, scores, -torch.inf)

    def step(self, state: ShiftReduceState, action: Tensor) -> ShiftReduceState:
        kinds = self.labels or 1
        is_shift = action < kinds
        first = torch.where(is_shift, state.front, state.first_word(1))
        front, depth = state.front + is_shift, state.depth + torch.where(is_shift, 1, -1)
        stack = state.stack.scatter(1, depth[:, None] - 1, first[:, None])
        # Of 2n − 1 nodes, one for each word read and each of the joins so far is built.
        count = 2 * state.front - state.depth
        node = torch.stack([first, front - 1, action % kinds], 1)
        spans = state.spans.scatter(1, count[:, None, None].expand(-1, 1, 3), node[:, None])
        return replace(state, stack=stack, depth=depth, front=front, spans=spans)

    def done(self, state: ShiftReduceState) -> Tensor:
        return (state.front == state.lengths) & (state.depth == 1)

    def structure(self, state: ShiftReduceState) -> Tensor:
        batch, n = state.stack.shape
        tree = state.inputs.values.new_zeros(batch, n, n, self.labels or 1, requires_grad=False)
        row, node = (state.spans[..., 0] >= 0).nonzero(as_tuple=True)
        tree[(row, *state.spans[row, node].unbind(1))] = 1
        return tree if self.labels is not None else tree[..., 0]

    def gold_actions(self, spans: Tensor) -> Tensor:
        """Return the actions that build gold trees, (B, 2n − 1) int64, −1 beyond the end.

        Parameters
        ----------
        spans : (B, 2n − 1, 2 or 3) int64 Tensor
            The first word, the last word and, with labels, the label of each span, in any order, as the labels of the
            oracle ``binary_tree``; −1 beyond the end.

        Raises
        ------
        InvalidInputError
            If the spans of an instance do not form a binary tree, or a label is not between 0 and L − 1.
        """
        if not isinstance(spans, Tensor) or spans.dtype != torch.int64:
            raise TypeError("spans must be an int64 tensor (B, 2n − 1, 2 or 3)")
        columns = 2 if self.labels is None else 3
        if spans.ndim != 3 or spans.shape[2] != columns or not spans.shape[1] % 2:
            raise InvalidInputError(f"spans must have shape (B, 2n − 1, {columns}), got {tuple(spans.shape)}")
        first, last, *label = spans.unbind(2)
        n = (spans.shape[1] + 1) // 2
        is_padding = last < 0
        order = torch.where(is_padding, n * (n + 1), last * (n + 1) - first).argsort(dim=1, stable=True)
        _check_trees(first.gather(1, order), last.gather(1, order))
        kinds = self.labels or 1
        if label and bool((wrong := ~is_padding & ((label[0] < 0) | (label[0] >= kinds))).any()):
            b, i = wrong.nonzero()[0].tolist()
            raise InvalidInputError(
                f"spans must have labels between 0 and {kinds - 1}, got {int(label[0][b, i])} at batch index {b}"
            )
        action = torch.where(first == last, 0, kinds) + (label[0] if label else 0)
        return torch.where(is_padding, -1, action).gather(1, order)

    def _label_shape(self) -> tuple[int, ...]:
        return () if self.labels is None else (self.labels,)

    def _span_scores(self, state: ShiftReduceState) -> Tensor:
        n, first = state.stack.shape[1], state.first_word(1)
        word, last = state.front.clamp(max=n - 1), (state.front - 1).clamp(min=0)
        scores = torch.stack([state.inputs.at(word, word), state.inputs.at(first, last)], 1)
        return scores.flatten(1)


def _check_trees(first: Tensor, last: Tensor) -> None:
    """Raise InvalidInputError unless spans (B, 2n − 1), in the order of their actions, form binary trees."""
    batch, count = first.shape
    stack = first.new_full((batch, count + 1), -1)
    front, depth = (first.new_zeros(batch) for _ in range(2))
    is_tree = torch.ones_like(front, dtype=torch.bool)
    for begin, end in zip(first.unbind(1), last.unbind(1), strict=True):
        is_used, is_word = end >= 0, begin == end
        below = stack.gather(1, (depth - 2).clamp(min=0)[:, None])[:, 0]
        # A word is the next one. A longer span joins the two spans at the top of the stack, and ends at the last word.
        fits = torch.where(is_word, begin == front, (depth >= 2) & (begin == below) & (end == front - 1))
        is_tree &= fits | ~is_used
        front = front + (is_used & is_word)
        depth = (depth + torch.where(is_used, torch.where(is_word, 1, -1), 0)).clamp(0, count)
        top = (depth - 1).clamp(min=0)[:, None]
        stack = stack.scatter(1, top, torch.where(is_used[:, None], begin[:, None], stack.gather(1, top)))
    is_tree &= depth == 1
    if not bool(is_tree.all()):
        b = int((~is_tree).nonzero()[0])
        shown = [pair for pair in zip(first[b].tolist(), last[b].tolist(), strict=True) if pair[1] >= 0]
        raise InvalidInputError(
            f"spans must form a binary tree: a span for each word 0, ..., n − 1, and a span for each of n − 1 joins of "
            f"two neighbouring spans; got {shown} at batch index {b}"
        )
