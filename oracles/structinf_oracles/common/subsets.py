"""Subsets of d elements: the elements in use, and labels (..., d), 1 for elements taken and 0 for the others."""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float
from structinf.validation import check_lengths

from .labels import reject_labels

__all__ = ["check_sizes", "cost_of_wrong_elements", "elements_in_use", "mask_unusable_cells", "taken_elements"]


def check_sizes(name: str, least: int, size: int, lengths: Tensor | None) -> None:
    """Raise InvalidInputError unless ``size`` and all ``lengths`` (B,) are at least ``least``."""
    if size < least:
        raise InvalidInputError(
            f"theta: {name} takes {least} of d elements, got d = {size}; score more elements or reduce k"
        )
    if lengths is not None:
        check_lengths(lengths, least, size, f"k = {least} of up to d = {size} elements")


def elements_in_use(lengths: Tensor | None, theta: Tensor) -> Bool[Tensor, "rows d"] | None:
    """Mask the elements of θ (B | 1, d) within ``lengths`` (B,); None if all are in use.

    If the batch shares θ, an element counts if any instance uses it.
    """
    if lengths is None:
        return None
    mask = torch.arange(theta.shape[1], device=lengths.device) < lengths.unsqueeze(1)
    return mask.any(0, keepdim=True) if len(theta) == 1 else mask


def mask_unusable_cells(lengths: Tensor | None, theta: Tensor) -> Float[Tensor, "batch d"]:
    """Return θ with −inf for elements beyond the length."""
    mask = elements_in_use(lengths, theta)
    return theta if mask is None else torch.where(mask, theta, -torch.inf)


def cost_of_wrong_elements(y: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
    """Return costs that count the elements wrongly taken or left, relative to the gold structure ``y``."""
    return 1 - 2 * y


def taken_elements(labels: Tensor, lengths: Tensor | None, size: int) -> Bool[Tensor, "batch size"]:
    """Return the elements in use taken by ``labels`` (B, size); InvalidInputError unless these are 0 and 1."""
    if labels.ndim != 2 or labels.shape[1] != size:
        raise InvalidInputError(
            f"labels must be 1 for each element taken and 0 for the others, shape (..., {size}); "
            f"got {tuple(labels.shape)} with the batch dimensions flattened"
        )
    mask = elements_in_use(lengths, labels)
    used = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    reject_labels(used & (labels != 0) & (labels != 1), labels, "an element in use is labelled neither 0 nor 1 (taken)")
    return used & (labels == 1)
