"""Labels that list the parts of a structure: part numbers in order, padded with −1."""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_number, skips_checks

__all__ = ["agreeing_choices", "indicators", "nonzero_positions", "reject_labels"]


def agreeing_choices(labels: Tensor, used: Tensor, size: int | Tensor, choices: int) -> Tensor:
    """Return which of the ``choices`` agree with each label, (..., choices) bool; all for the unknown label −1.

    Parameters
    ----------
    labels : (B, ...) integer Tensor
        The labels. Entries that are not used are unknown.
    used : bool Tensor that broadcasts to ``labels``
        Which labels are inside the lengths.
    size : int or integer Tensor that broadcasts to ``labels``
        The number of valid labels.
    choices : int
        The number of choices.
    """
    reject_labels(
        (used & ((labels < -1) | (labels >= size))).unsqueeze(-1),
        labels,
        "a label is neither a choice nor −1 (unknown)",
        defers=True,
    )
    known = torch.where(used, labels, -1).unsqueeze(-1)
    return (known == -1) | (known == torch.arange(choices, device=labels.device))


def nonzero_positions(y: Float[Tensor, "batch parts"], most: int) -> Int[Tensor, "batch most"]:
    """Return the positions of the nonzero parts of ``y``, in order.

    Raises InvalidInputError if an instance has more than ``most``.
    """
    if not y.is_cpu:
        return _nonzero_positions_on_device(y, most)
    batch, part = y.nonzero().unbind(1)
    count = torch.bincount(batch, minlength=len(y))
    _check_counts(count, most)
    place = torch.arange(len(batch), device=y.device) - (count.cumsum(0) - count)[batch]
    positions = torch.full((len(y), most), -1, device=y.device)
    positions[batch, place] = part
    return positions


def _nonzero_positions_on_device(y: Tensor, most: int) -> Tensor:
    """Return :func:`nonzero_positions` without a wait, by operations whose results have a size known before."""
    is_part = y != 0
    place = is_part.cumsum(1)
    if y.numel() and not skips_checks(y):
        count = place[:, -1].clone()  # place changes below
        check_number(count.amax(), functools.partial(operator.ge, most), functools.partial(_check_counts, count, most))
    # The first column receives all zeros of y, and the last one the parts that are too many.
    place.mul_(is_part).clamp_(max=most + 1)
    positions = torch.full((len(y), most + 2), -1, device=y.device)
    return positions.scatter_(1, place, torch.arange(y.shape[1], device=y.device).expand(y.shape))[:, 1 : most + 1]


def _check_counts(count: Tensor, most: int) -> None:
    if bool((count > most).any()):
        index = int((count > most).nonzero()[0, 0])
        raise InvalidInputError(
            f"y must have at most {most} nonzero parts, got {int(count[index])} at batch index {index}"
        )


def indicators(
    positions: Int[Tensor, "batch most"], used: Bool[Tensor, "batch most"], parts: int, like: Tensor
) -> Float[Tensor, "batch parts"]:
    """Return y with a 1 at each used position, in the dtype of ``like``.

    On a device, a check of the positions may wait, so positions outside are moved inside.
    """
    if not positions.is_cpu:
        positions = positions.clamp(0, parts).masked_fill_(~used, parts)
    else:
        positions = torch.where(used, positions, parts)
    y = torch.zeros(len(positions), parts + 1, dtype=like.dtype, device=like.device)
    return y.scatter_(1, positions, 1.0)[:, :-1]


def reject_labels(wrong: Tensor, labels: Tensor, why: str, *, defers: bool = False, entry: str = "") -> None:
    """Raise InvalidInputError for the first instance with a True entry of ``wrong``, (B, ...).

    Parameters
    ----------
    wrong : (B, ...) Tensor
        Which labels are invalid.
    labels : (B, ...) Tensor
        The labels.
    why : str
        What is wrong, for the message.
    defers : bool
        Whether the check may wait for the end of the call on a GPU. Then no kernel may take the labels as indices
        before it moves them inside of its arrays, as :func:`indicators` does.
    entry : str
        What an entry of ``wrong``, (B, N), stands for. The message then names the first wrong entry instead of all
        labels of the instance.
    """
    if skips_checks(wrong):
        return
    check = functools.partial(_reject_labels, wrong, labels, why, entry)
    if defers and not wrong.is_cpu:
        check_number(wrong.any(), operator.not_, check)
    else:
        check()


def _reject_labels(wrong: Tensor, labels: Tensor, why: str, entry: str) -> None:
    instances = wrong.flatten(1).any(1)
    if bool(instances.any()):
        index = int(instances.nonzero()[0, 0])
        if entry:
            k = int(wrong[index].nonzero()[0, 0])
            found = f"{entry} {k} at batch index {index} is {labels[index, k].tolist()}"
            raise InvalidInputError(f"labels: {why}, but {found}")
        raise InvalidInputError(f"labels: {why} at batch index {index}, got {labels[index].tolist()}")
