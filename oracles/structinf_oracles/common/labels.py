"""Labels that list the parts of a structure: numbers in order, padded with −1."""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float, Int

__all__ = ["indicators", "nonzero_positions", "reject_labels"]


def nonzero_positions(y: Float[Tensor, "batch parts"], most: int) -> Int[Tensor, "batch most"]:
    """Where ``y`` is not 0, in order; InvalidInputError if an instance has more than ``most`` such parts."""
    batch, part = y.nonzero().unbind(1)
    count = torch.bincount(batch, minlength=len(y))
    if bool((count > most).any()):
        index = int((count > most).nonzero()[0, 0])
        raise InvalidInputError(
            f"y: a structure has at most {most} parts, got {int(count[index])} at batch index {index}"
        )
    place = torch.arange(len(batch), device=y.device) - (count.cumsum(0) - count)[batch]
    positions = torch.full((len(y), most), -1, device=y.device)
    positions[batch, place] = part
    return positions


def indicators(
    positions: Int[Tensor, "batch most"], used: Bool[Tensor, "batch most"], parts: int, like: Tensor
) -> Float[Tensor, "batch parts"]:
    """1 at the positions ``positions`` that are ``used``, in the dtype of ``like``."""
    y = torch.zeros(len(positions), parts + 1, dtype=like.dtype, device=like.device)
    return y.scatter_(1, torch.where(used, positions, parts), 1.0)[:, :-1]


def reject_labels(wrong: Tensor, labels: Tensor, why: str) -> None:
    """InvalidInputError for the first instance with an entry of ``wrong``, (B, ...)."""
    instances = wrong.flatten(1).any(1)
    if bool(instances.any()):
        index = int(instances.nonzero()[0, 0])
        raise InvalidInputError(f"labels: {why} at batch index {index}, got {labels[index].tolist()}")
