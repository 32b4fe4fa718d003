"""Subsets of d elements: which of them an instance has, and labels (..., d), 1 for those taken and 0 for others."""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float
from structinf.validation import check_lengths

from .labels import reject_labels

__all__ = ["check_sizes", "cost_of_wrong_elements", "elements_in_use", "mask_unusable_cells", "taken_elements"]


def check_sizes(name: str, least: int, size: int, lengths: Tensor | None) -> None:
    """InvalidInputError unless ``size`` elements, and the ``lengths`` (B,) of them in use, hold ``least``."""
    if size < least:
        raise InvalidInputError(
            f"theta: {name} takes {least} of d elements, got d = {size}; score more elements, or choose a smaller k"
        )
    if lengths is not None:
        check_lengths(lengths, least, size, f"k = {least} of up to d = {size} elements")


def elements_in_use(lengths: Tensor | None, theta: Tensor) -> Bool[Tensor, "rows d"] | None:
    """The first of the elements of θ (B | 1, d), by ``lengths`` (B,); those of any instance if all share θ."""
    if lengths is None:
        return None
    mask = torch.arange(theta.shape[1], device=lengths.device) < lengths.unsqueeze(1)
    return mask.any(0, keepdim=True) if len(theta) == 1 else mask


def mask_unusable_cells(lengths: Tensor | None, theta: Tensor) -> Float[Tensor, "batch d"]:
    """θ, and −inf for what is not in use."""
    mask = elements_in_use(lengths, theta)
    return theta if mask is None else torch.where(mask, theta, -torch.inf)


def cost_of_wrong_elements(y: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
    """Costs of 1 for each element wrongly taken or left, where those of ``y`` are right."""
    return 1 - 2 * y


def taken_elements(labels: Tensor, lengths: Tensor | None, size: int) -> Bool[Tensor, "batch size"]:
    """The elements in use that ``labels`` (B, size) take; InvalidInputError if these are not 0 and 1."""
    if labels.ndim != 2 or labels.shape[1] != size:
        raise InvalidInputError(
            f"labels: a 1 for each element taken and a 0 for each other one, (..., {size}), is needed; "
            f"got {tuple(labels.shape)} with the batch flat"
        )
    mask = elements_in_use(lengths, labels)
    used = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    reject_labels(used & (labels != 0) & (labels != 1), labels, "neither 1, taken, nor 0 stands for an element in use")
    return used & (labels == 1)
