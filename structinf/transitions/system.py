"""The protocol of transition systems, and checked calls of its methods."""

from __future__ import annotations

import abc
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ..errors import PluginError
from ..parts import Parts, as_tuple, divide_by_temperature
from .states import State, size

__all__ = ["CheckedSystem", "TransitionSystem"]


class TransitionSystem(abc.ABC):
    """Structures built one action at a time, from the scores of the next action given the state.

    The probability of a sequence of actions is the product of the softmax of the scores of each step:
    p(a) = Π_t softmax(actions(state_t))[a_t].

    A state is a tensor, or a dict, list, tuple or dataclass of tensors, in which every tensor has one batch dimension,
    the first. Large tensors that all states of an instance share can be :class:`structinf.transitions.Shared`.
    Laws for every method: row i of the result depends only on row i of the arguments, and no method writes to its
    arguments. ``step`` keeps the form of the state, and the dtypes and shapes of its tensors.
    :func:`structinf.check_transition_system` tests the laws.

    A system with a network can inherit from both ``TransitionSystem`` and ``torch.nn.Module``.

    Attributes
    ----------
    max_steps : int
        The largest number of actions. A search with a longer sequence raises PluginError.

    Examples
    --------
    Tokens up to the first end token 0, of at most two tokens:

    >>> class Tokens(TransitionSystem):
    ...     def start(self, inputs):
    ...         tokens = inputs.new_zeros(len(inputs), 2)
    ...         count = torch.zeros(len(inputs), dtype=torch.int64)
    ...         return {"scores": inputs, "tokens": tokens, "count": count}
    ...
    ...     def actions(self, state):
    ...         return state["scores"]
    ...
    ...     def step(self, state, action):
    ...         place, token = state["count"][:, None], action[:, None]
    ...         tokens = state["tokens"].scatter(1, place, token.float())
    ...         count = torch.where(action == 0, 2, state["count"] + 1)
    ...         return {**state, "tokens": tokens, "count": count}
    ...
    ...     def done(self, state):
    ...         return state["count"] >= 2
    ...
    ...     def structure(self, state):
    ...         return state["tokens"]
    >>> import structinf as si
    >>> scores = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> best = si.decode_beam(Tokens(), scores, 3)
    >>> best.structures[:, 0].tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    >>> best.scores[:, 0].exp()
    tensor([0.5000, 0.1500, 0.1000], dtype=torch.float64)
    """

    max_steps: ClassVar[int] = 100_000

    @abc.abstractmethod
    def start(self, inputs: Any) -> State:
        """Return the states before the first action, one for each instance.

        Parameters
        ----------
        inputs : any
            Whatever the system needs; usually a tensor (B, ...), or a tuple or dict of tensors.
        """

    @abc.abstractmethod
    def actions(self, state: State) -> Tensor:
        """Return the scores of all actions, (B, A) in a floating-point dtype; −inf for an action that is not allowed.

        A is the same in all states. If no action is allowed, the sequence is a dead end, of probability 0. The method
        is not called for finished states.

        Parameters
        ----------
        state : State
            The states (B).
        """

    @abc.abstractmethod
    def step(self, state: State, action: Tensor) -> State:
        """Return the states after an action.

        Parameters
        ----------
        state : State
            The states (B), not finished.
        action : (B,) int64 Tensor
            An allowed action of each state.
        """

    @abc.abstractmethod
    def done(self, state: State) -> Tensor:
        """Return whether each sequence is complete, (B,) bool.

        Parameters
        ----------
        state : State
            The states (B).
        """

    @abc.abstractmethod
    def structure(self, state: State) -> Parts:
        """Return the structures of finished states, (B, *event): a tensor or a tuple of tensors.

        Parameters
        ----------
        state : State
            The states (B), all finished. B can be 0.
        """


@dataclass(frozen=True)
class CheckedSystem:
    """A transition system whose results are checked.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    normalize : bool
        Whether the scores of the actions are log-probabilities, by a log-softmax, or the scores of the system.
    temperature : float
        The divisor of the scores before the log-softmax.
    """

    system: TransitionSystem
    normalize: bool = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.system, TransitionSystem):
            hint = "pass an object, such as structinf.transitions.ShiftReduce(); transition systems have no names"
            if inspect.isclass(self.system):
                hint = f"call it first: {self.system.__name__}(...)"
            raise TypeError(f"system must be a structinf.TransitionSystem, got {self.system!r}; {hint}")

    @property
    def label(self) -> str:
        """The name of the system in messages."""
        return type(self.system).__name__

    def start(self, inputs: Any) -> tuple[State, int]:
        """Return the states before the first action, and their number."""
        state = self.system.start(inputs)
        return state, size(state)

    def raw_scores(self, state: State) -> Tensor:
        """Return the scores of the next action, (N, A), divided by the temperature, in float32 or float64."""
        count = size(state)
        scores = self.system.actions(state)
        if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != count or not scores.is_floating_point():
            shown = f"{tuple(scores.shape)} in {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
            raise PluginError(
                f"actions() of {self.label} must return scores of shape ({count}, A) in a floating-point dtype, got "
                f"{shown}"
            )
        if scores.dtype not in (torch.float32, torch.float64):
            scores = scores.float()
        return cast(Tensor, divide_by_temperature(scores, self.temperature))

    def check_best_scores(self, best: Tensor) -> None:
        """Raise PluginError if the best score (N,) of a state is NaN or +inf."""
        wrong = (~(best < torch.inf)).nonzero()[:, 0]
        if len(wrong):
            raise PluginError(f"actions() of {self.label} returned NaN or +inf for the state in row {int(wrong[0])}")

    def action_scores(self, state: State) -> Tensor:
        """Return the log-probabilities, or the scores, of the next action, (N, A); all −inf for a dead end."""
        scores = self.raw_scores(state)
        best = scores.detach().amax(1) if scores.shape[1] else scores.new_full((len(scores),), -torch.inf)
        self.check_best_scores(best)
        if not self.normalize:
            return scores
        is_dead = best == -torch.inf
        if not bool(is_dead.any()):
            return scores.log_softmax(1)
        return scores.masked_fill(is_dead[:, None], 0.0).log_softmax(1).masked_fill(is_dead[:, None], -torch.inf)

    def step(self, state: State, action: Tensor) -> State:
        """Return the states after ``action``."""
        state = self.system.step(state, action)
        if (count := size(state)) != len(action):
            raise PluginError(f"step() of {self.label} returned {count} states for {len(action)} states")
        return state

    def done(self, state: State) -> Tensor:
        """Return whether each state is finished, (N,) bool."""
        count, done = size(state), self.system.done(state)
        if not isinstance(done, Tensor) or done.shape != (count,) or done.dtype != torch.bool:
            shown = f"{tuple(done.shape)} in {done.dtype}" if isinstance(done, Tensor) else type(done).__name__
            raise PluginError(f"done() of {self.label} must return a bool tensor of shape ({count},), got {shown}")
        return done

    def structure(self, state: State) -> Parts:
        """Return the structures of finished states, (N, *event)."""
        count, found = size(state), self.system.structure(state)
        if not isinstance(found, Tensor | tuple) or any(
            not isinstance(part, Tensor) or not part.ndim or len(part) != count for part in as_tuple(found)
        ):
            raise PluginError(
                f"structure() of {self.label} must return a tensor of shape ({count}, *event), or a tuple of such "
                "tensors"
            )
        return found

    def check_number_of_steps(self, steps: int) -> None:
        """Raise PluginError if a sequence has more than ``max_steps`` actions."""
        if steps > self.system.max_steps:
            raise PluginError(
                f"a sequence of {self.label} has not ended after max_steps = {self.system.max_steps} actions; let "
                "done() return True, or set max_steps of the class to a larger number"
            )
