"""States of transition systems: tensors, and dicts, lists, tuples and dataclasses of them, with one batch dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import PluginError

__all__ = ["Shared", "State", "concatenate", "leaves", "map_states", "select", "size"]

State = Any
"""A tensor, a :class:`Shared`, None, or a dict, list, tuple or dataclass of states."""


@dataclass(frozen=True)
class Shared:
    """A tensor with one row for each instance, shared by all states of an instance.

    A search has many states for each instance, and copies their tensors in each step. Of a ``Shared`` it copies the
    row numbers only. Use it for encoder outputs and other large tensors that do not change.

    Attributes
    ----------
    values : (I, ...) Tensor
        The tensor.
    rows : (N,) int64 Tensor
        The row of ``values`` for each state.

    Examples
    --------
    >>> words = Shared.of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> words = select(words, torch.tensor([1, 1, 0]))
    >>> words.at(torch.tensor([0, 1, 1]))
    tensor([3., 4., 2.])
    """

    values: Tensor
    rows: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Return ``values`` with one state for each row.

        Parameters
        ----------
        values : (I, ...) Tensor
            The tensor.
        """
        return cls(values, torch.arange(len(values), device=values.device))

    def at(self, *index: Tensor) -> Tensor:
        """Return ``values[rows, *index]``, the entry or row at position ``index`` for each state.

        Parameters
        ----------
        *index : (N,) int64 Tensor
            A position in each of the dimensions after the first.
        """
        return self.values[(self.rows, *index)]


def map_states(function: Callable[..., Tensor], *states: State) -> State:
    """Return a state of the form of the first, with ``function`` of the corresponding tensors of all ``states``."""
    first = states[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*states)
    if isinstance(first, Shared):
        return replace(first, rows=function(*(state.rows for state in states)))
    if isinstance(first, dict):
        return {key: map_states(function, *(state[key] for state in states)) for key in first}
    if isinstance(first, list | tuple):
        mapped = [map_states(function, *entries) for entries in zip(*states, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else type(first)(mapped)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        changes = {name: map_states(function, *(getattr(state, name) for state in states)) for name in names}
        return replace(first, **changes)
    raise PluginError(
        "a state of a transition system must consist of tensors, structinf.transitions.Shared, dicts, lists, tuples "
        f"and dataclasses, got {type(first).__name__}; store a number of each instance in a tensor (B,)"
    )


def leaves(state: State) -> Iterator[Tensor]:
    """Yield the tensors of ``state`` that have a batch dimension; the rows of a :class:`Shared`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_states(note, state)
    yield from found


def size(state: State) -> int:
    """Return the batch size of ``state``."""
    sizes = {len(tensor) if tensor.ndim else None for tensor in leaves(state)}
    if len(sizes) != 1 or None in sizes:
        shown = ", ".join(sorted(str(tuple(tensor.shape)) for tensor in leaves(state))) or "no tensors"
        raise PluginError(f"the tensors of a state must have the same first dimension, the batch; got shapes {shown}")
    return int(sizes.pop())  # type: ignore[arg-type]


def select(state: State, rows: Tensor) -> State:
    """Return some states of a batch of states.

    Parameters
    ----------
    state : State
        The states (B): a tensor, a :class:`Shared`, or a dict, list, tuple or dataclass of them.
    rows : (M,) int64 Tensor
        The indices of the states, in any order, and possibly repeated.

    Examples
    --------
    >>> state = {"count": torch.tensor([0, 1, 2])}
    >>> select(state, torch.tensor([2, 0]))
    {'count': tensor([2, 0])}
    """
    return map_states(lambda tensor: tensor.index_select(0, rows), state)


def concatenate(states: Sequence[State]) -> State:
    """Return one batch with all ``states``."""
    return states[0] if len(states) == 1 else map_states(lambda *tensors: torch.cat(tensors), *states)
