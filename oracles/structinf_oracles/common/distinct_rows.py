"""Data of instances that stand for options: their checks, and the instances with equal data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError

__all__ = ["check_integer_amounts", "distinct_rows", "number_of_dimensions", "refuse_gradient"]

_LARGEST = 2**53


def distinct_rows(*tables: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """Return the instances of each distinct row of integer ``tables`` (B, k), with this row of each table.

    The rows are in the order of their first instances.
    """
    whole = torch.cat([table.cpu() for table in tables], 1).numpy()
    _, first, which = np.unique(whole, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    members = np.split(np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))[:-1])
    return [(torch.from_numpy(members[i]), tuple(table[first[i]].cpu() for table in tables)) for i in order]


def check_integer_amounts(name: str, amounts: Tensor) -> None:
    """Raise InvalidInputError unless ``amounts`` (B, ...) are integers of at least 0 with small sums."""
    if amounts.is_floating_point() or amounts.dtype is torch.bool:
        raise InvalidInputError(f"{name} must be integers, got {amounts.dtype}; round, after scaling if needed")
    flat = amounts.unsqueeze(1).flatten(1)
    wrong = (flat < 0).any(1) | (flat > _LARGEST).any(1) | (flat.double().sum(1) > _LARGEST)
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        own = amounts[index]
        bad = ((own < 0) | (own > _LARGEST)).nonzero()
        received = f"a sum of {int(own.double().sum()):,}"
        if len(bad):
            place = tuple(bad[0].tolist())
            received = f"{own[place].item()}{f' at {list(place)}' if place else ''}"
        raise InvalidInputError(
            f"{name} must be integers of at least 0, with a sum of at most 2^53, got {received} at batch index {index}"
        )


def refuse_gradient(name: str, data: Tensor) -> None:
    """Raise InvalidInputError if the instance data called ``name`` require a gradient, which only scores receive."""
    if data.requires_grad:
        raise InvalidInputError(
            f"{name} requires a gradient, but only theta receives one; pass {name}=tensor.detach(), or with "
            "requires_grad=False"
        )


def number_of_dimensions(value: Any) -> int:
    """Return the number of dimensions of a tensor, an array, or nested lists or tuples; 0 for other objects."""
    if hasattr(value, "ndim"):
        return int(value.ndim)
    if isinstance(value, list | tuple):
        return 1 + (number_of_dimensions(value[0]) if value else 0)
    return 0
