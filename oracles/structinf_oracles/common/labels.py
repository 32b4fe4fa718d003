"""Labels that list the parts of a structure: part numbers in order, padded with −1."""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float, Int
from structinf.validation import skips_checks

__all__ = ["indicators", "nonzero_positions", "reject_labels"]


def nonzero_positions(y: Float[Tensor, "batch parts"], most: int) -> Int[Tensor, "batch most"]:
    """Return the positions of the nonzero parts of ``y``, in order.

    Raises InvalidInputError if an instance has more than ``most``.
    """
    batch, part = y.nonzero().unbind(1)
    count = torch.bincount(batch, minlength=len(y))
    if bool((count > most).any()):
        index = int((count > most).nonzero()[0, 0])
        raise InvalidInputError(
            f"y must have at most {most} nonzero parts, got {int(count[index])} at batch index {index}"
        )
    place = torch.arange(len(batch), device=y.device) - (count.cumsum(0) - count)[batch]
    positions = torch.full((len(y), most), -1, device=y.device)
    positions[batch, place] = part
    return positions


def indicators(
    positions: Int[Tensor, "batch most"], used: Bool[Tensor, "batch most"], parts: int, like: Tensor
) -> Float[Tensor, "batch parts"]:
    """Return y with a 1 at each used position, in the dtype of ``like``."""
    y = torch.zeros(len(positions), parts + 1, dtype=like.dtype, device=like.device)
    return y.scatter_(1, torch.where(used, positions, parts), 1.0)[:, :-1]


def reject_labels(wrong: Tensor, labels: Tensor, why: str) -> None:
    """Raise InvalidInputError for the first instance with a True entry of ``wrong``, (B, ...).

    On a GPU the check waits, since invalid labels would let later kernels write outside of their arrays.
    """
    if skips_checks(wrong):
        return
    instances = wrong.flatten(1).any(1)
    if bool(instances.any()):
        index = int(instances.nonzero()[0, 0])
        raise InvalidInputError(f"labels: {why} at batch index {index}, got {labels[index].tolist()}")
