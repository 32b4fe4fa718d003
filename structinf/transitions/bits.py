"""Bits, decided one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .inputs import check_action_scores, split_lengths
from .states import Shared
from .system import TransitionSystem

__all__ = ["BitsInOrder", "BitsState"]


@dataclass(frozen=True)
class BitsState:
    """The bits decided so far.

    Attributes
    ----------
    inputs : Shared
        The inputs of the instances, (I, d, ...).
    lengths : (N,) int64 Tensor
        The number of bits.
    bits : (N, d) Tensor
        The bits; 0 for those not decided yet.
    position : (N,) int64 Tensor
        The index of the next bit.
    """

    inputs: Shared
    lengths: Tensor
    bits: Tensor
    position: Tensor


@dataclass(frozen=True)
class BitsInOrder(TransitionSystem):
    """Vectors of d bits, decided from the first to the last.

    Actions: 0 and 1, the value of the next bit. Structures: (B, d), as for the oracle ``bits``. The action sequence of
    a structure y is y itself.

    Inputs: a tensor (B, d, ...), or a tuple of the tensor and lengths (B,). Bits beyond the length are 0.

    Parameters
    ----------
    score : callable, optional
        Returns the scores (N, 2) of the values 0 and 1 of the bit at ``state.position``, given a :class:`BitsState`. By
        default, the inputs θ (B, d) are the scores of the value 1, and the value 0 has score 0: the bits are
        independent, with the distribution of the oracle ``bits``.

    References
    ----------
    Larochelle & Murray 2011, The Neural Autoregressive Distribution Estimator.

    Examples
    --------
    A bit of 1 makes 1 likely for the next bit:

    >>> import structinf as si
    >>> def score(state):
    ...     place = (state.position - 1).clamp(min=0)[:, None]
    ...     before = state.bits.gather(1, place)[:, 0]
    ...     logit = state.inputs.at(state.position) + 2 * before
    ...     return torch.stack([torch.zeros_like(logit), logit], 1)
    >>> theta = torch.tensor([[0.5, -1.0, -3.0]])
    >>> si.decode_greedy(BitsInOrder(score), theta).structures
    tensor([[1., 1., 0.]])
    """

    score: Callable[[BitsState], Tensor] | None = None

    def start(self, inputs: Any) -> BitsState:
        values, lengths = split_lengths(inputs, 0)
        zero = torch.zeros_like(lengths)
        return BitsState(Shared.of(values), lengths, values.detach().new_zeros(values.shape[:2]), zero)

    def actions(self, state: BitsState) -> Tensor:
        if self.score is not None:
            scores = self.score(state)
            check_action_scores(scores, len(state.position), 2)
            return scores
        own = state.inputs.at(state.position)
        return torch.stack([torch.zeros_like(own), own], 1)

    def step(self, state: BitsState, action: Tensor) -> BitsState:
        bits = state.bits.scatter(1, state.position[:, None], action[:, None].to(state.bits.dtype))
        return replace(state, bits=bits, position=state.position + 1)

    def done(self, state: BitsState) -> Tensor:
        return state.position >= state.lengths

    def structure(self, state: BitsState) -> Tensor:
        return state.bits
