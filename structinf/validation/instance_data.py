"""Checks of instance data and of the number and existence of structures."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..deferred_checks import check_data_later, check_number, data_may_be_checked_later, skips_checks
from ..errors import MOST_LISTED, InfeasibleError, InvalidInputError
from ..kernels.arrays import is_small
from ..kernels.gpu import uses_triton

if TYPE_CHECKING:
    from ..oracle import Oracle

__all__ = [
    "MOST_ENUMERATED",
    "bound_lengths",
    "check_enumerable",
    "check_feasible",
    "check_instances",
    "check_lengths",
    "check_lengths_later",
    "list_instances",
]

MOST_ENUMERATED = 1_000_000


def check_feasible(value: Tensor, what: str, explain: Callable[[], object] | None = None) -> None:
    """Raise InfeasibleError if the best or summed score of an instance is −inf. The message names the instances.

    Parameters
    ----------
    value : (B,) Tensor
        Value of each instance, −inf where no structure of finite score exists; or whether one does, as bool.
    what : str
        What does not exist, in the singular: ``"assignment"``.
    explain : callable, optional
        A function that raises a more specific error if a value is −inf for another reason than the scores.
    """
    if value.is_cpu:
        if not _is_small_and_feasible(value.detach() if value.requires_grad else value):
            _check_feasible(value, what, explain)
    elif value.numel() and not skips_checks(value):
        is_flag = value.dtype is torch.bool
        # Numbers of one dtype take one launch to join. A product is 1 if all flags are.
        number, passes = (
            (value.prod(dtype=torch.float64), bool) if is_flag else (value.amin(), _is_above_minus_infinity)
        )
        check_number(number, passes, functools.partial(_check_feasible, value, what, explain))


def _is_small_and_feasible(value: Tensor) -> bool:
    """Return whether all values are known to be feasible from an operation of numpy, which takes less time than torch.

    The answer is False beside a NaN, which :func:`_check_feasible` accepts.
    """
    if not is_small(value) or value.dtype is torch.bfloat16:
        return False
    array = value.numpy()
    return bool(np.logical_and.reduce(array if value.dtype is torch.bool else array > -math.inf))


def _is_above_minus_infinity(number: float) -> bool:
    return number > -math.inf


def _check_feasible(value: Tensor, what: str, explain: Callable[[], object] | None) -> None:
    infeasible = ~value if value.dtype is torch.bool else torch.isneginf(value)
    if bool(infeasible.any()):
        if explain is not None:
            explain()
        indices = infeasible.nonzero()[:, 0].tolist()
        raise InfeasibleError(
            f"no {what} of finite score exists for {list_instances(indices)}: too many of "
            f"{'its' if len(indices) == 1 else 'their'} parts are −inf; allow more parts or drop the "
            f"instance{'s' * (len(indices) > 1)}",
            indices[0],
            indices,
        )


def list_instances(indices: Sequence[int]) -> str:
    """Return the first ten of the batch indices ``indices`` as words: "batch index 3" or "batch index 3, 5 and 7"."""
    shown = [str(index) for index in indices[:MOST_LISTED]]
    if more := len(indices) - len(shown):
        shown.append(f"{more} more")
    *others, last = shown
    return f"batch index {', '.join(others)} and {last}" if others else f"batch index {last}"


def check_lengths(
    lengths: Tensor, low: int, high: int, padding: str, of_empty: str = "", *, has_empty: bool = False
) -> None:
    """Raise InvalidInputError unless ``low <= lengths <= high`` everywhere.

    In a public call with lengths on a GPU, the check may wait for the end of the call. The lengths are then moved into
    the range in place, so that kernels stay inside of their arrays.

    ``padding`` describes the counted dimension: ``"T = 7 steps"``.

    Parameters
    ----------
    lengths : integer Tensor
        The lengths to check.
    low : int
        The least valid length.
    high : int
        The largest valid length.
    padding : str
        The counted dimension with its size, for the message.
    of_empty : str
        A clause that says why a length of 0 is refused, for the message.
    has_empty : bool
        Whether public calls take a length of 0 (``Oracle.has_empty_structure``), which the message then names.
    """
    if lengths.numel() == 0 or skips_checks(lengths):
        return
    if check_lengths_later(lengths, low, high):
        return
    ends = lengths.aminmax()
    least, largest = map(int, ends if lengths.is_cpu else torch.stack(ends).tolist())  # one copy from a device
    if least < low or largest > high:
        wrong = (lengths < low) | (lengths > high)
        index = int(wrong.nonzero()[0, 0])
        is_empty = int(lengths[index]) == 0
        if has_empty and is_empty:
            of_empty = (
                "structinf.relax and other public calls take empty instances, but methods of oracles and factors of a "
                "graph do not; leave them out there"
            )
        raise InvalidInputError(
            f"lengths must lie between {0 if has_empty and not is_empty else low} and {high} ({padding}), "
            f"got {lengths[index].tolist()} at batch index {index}" + (f"; {of_empty}" if of_empty and is_empty else "")
        )


def check_lengths_later(lengths: Tensor | Sequence[Tensor], low: int, *highs: int, nested: bool = False) -> bool:
    """Move lengths on a GPU into their range, and check at the end of the call that none has moved.

    Returns False, and does nothing, if the check cannot wait. Without checks, returns True.

    Parameters
    ----------
    lengths : (B,) or (B, n) int64 Tensor, or sequence of n (B,) int64 Tensor
        The lengths, n = 1 or 2, in the memory of a binding.
    low : int
        The least valid length.
    *highs : int
        The largest valid length, of each column.
    nested : bool
        Whether a length of the second column must not exceed the length of the first column.
    """
    if not isinstance(lengths, Tensor):
        columns = tuple(lengths)
    elif lengths.is_cpu:
        return False
    else:
        columns = lengths.unbind(1) if lengths.ndim == 2 else (lengths,)
    if all(map(skips_checks, columns)):
        return True
    if not all(map(data_may_be_checked_later, columns)):
        return False
    if uses_triton(columns[0]):
        from ..kernels.padding import triton_padding

        return check_data_later(triton_padding.clamp_lengths(columns, low, highs, nested=nested), operator.not_)
    before = torch.stack(columns)
    for column, high in zip(columns, highs, strict=True):
        column.clamp_(low, high)
    if nested and len(columns) == 2:
        columns[1].copy_(torch.minimum(*columns))
    return check_data_later((before != torch.stack(columns)).any(), operator.not_)


def bound_lengths(oracle: Oracle, batch: int, whole: int, device: torch.device) -> Tensor:
    """Return the lengths bound to ``oracle``, (B,) int64, or ``whole`` for each instance without bound lengths.

    With ``batch`` 1, all instances share the scores.
    """
    lengths = oracle.bound.get("lengths")
    if lengths is None:
        if device.type == "cpu":
            return torch.from_numpy(np.full(batch, whole))  # takes less time than torch.full
        return torch.full((batch,), whole, device=device)
    check_instances("lengths", lengths, batch)
    return lengths


def check_instances(name: str, bound: Sized, batch: int, *, shared: bool = True) -> None:
    """Raise InvalidInputError unless the tensor ``bound`` as ``name`` has ``batch`` instances.

    With ``shared``, scores of one instance fit any number of bound instances.
    """
    if len(bound) != batch and not (shared and batch == 1):
        raise InvalidInputError(
            f"{name} is bound for a batch of {len(bound)}, but theta has a batch of {batch}; bind an entry for each "
            "instance"
        )


def check_enumerable(count: int, name: str) -> None:
    """Raise InvalidInputError for more than a million structures. ``name`` is their plural with sizes.

    Parameters
    ----------
    count : int
        The number of structures.
    name : str
        The plural of the structures with their sizes, for the message.
    """
    if count > MOST_ENUMERATED:
        number = count if count < 10**30 else f"about 10^{math.log10(count):.0f}"
        raise InvalidInputError(
            f"there are {number} {name}, too many to list (more than {MOST_ENUMERATED}); choose smaller sizes"
        )
