"""Subsets of d elements: the elements in use, and labels (..., d), 1 for elements taken and 0 for the others."""

from __future__ import annotations

import operator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from structinf.deferred_checks import check_number
from structinf.dp import Hypergraph
from structinf.errors import InvalidInputError
from structinf.oracle import Oracle
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths, check_natural

from .labels import reject_labels

__all__ = [
    "check_lengths_within",
    "check_size_option",
    "check_sizes",
    "cost_of_wrong_elements",
    "elements_in_use",
    "index_by_size",
    "largest_size",
    "mask_unusable_cells",
    "single_size",
    "sizes_of",
    "taken_elements",
]


def check_size_option(k: int | None) -> None:
    """Raise InvalidInputError unless the option ``k`` is an integer of at least 0, or None."""
    if isinstance(k, Tensor | list | np.ndarray):
        raise InvalidInputError(
            f"the option k must be an integer, got {k!r}; pass the k of each instance with the scores: "
            "layer(theta, k=...), or relax(theta, ..., k=...)"
        )
    if k is not None:
        check_natural("k", k, 0)


def single_size(oracle: Oracle) -> int:
    """Return the option k; InvalidInputError without it."""
    k: int | None = getattr(oracle, "k", None)
    if k is None:
        raise InvalidInputError(f"{oracle.label()} needs k, as an option or with the scores as instance data")
    return k


def sizes_of(oracle: Oracle, like: Tensor) -> Int[Tensor, "rows 1"]:
    """Return k of each instance, (B | 1, 1), on the device of ``like``."""
    k = oracle.bound.get("k")
    if k is None:
        return torch.full((1, 1), single_size(oracle), dtype=torch.int64, device=like.device)
    return k.to(like.device).unsqueeze(1)


def largest_size(oracle: Oracle) -> int:
    """Return the largest k of the instances, or 0 without instances."""
    return int(oracle.bound["k"].max()) if len(oracle.bound["k"]) else 0


def index_by_size(oracle: Oracle, graph: Hypergraph) -> Tensor | None:
    """Return the index [length, k] of each instance's goal; the bound lengths without bound k."""
    lengths, k = oracle.bound.get("lengths"), oracle.bound.get("k")
    if k is None:
        return lengths
    length, most = (size - 1 for size in graph.goals.shape)
    whole = torch.full_like(k, length) if lengths is None else lengths.to(k.device)
    return torch.stack([whole, k.clamp(max=most)], 1)


def check_sizes(oracle: Oracle, theta: Tensor, *, at_most: bool = False) -> None:
    """Raise InvalidInputError unless d and all lengths are at least k, or without ``at_most`` at least 0."""
    size, lengths, k = theta.shape[1], oracle.bound.get("lengths"), oracle.bound.get("k")
    if k is None:
        least = 0 if at_most else single_size(oracle)
        if size < least:
            raise InvalidInputError(
                f"theta: {oracle.label()} takes {least} of d elements, got d = {size}; score more elements or reduce k"
            )
        single_size(oracle)
        check_lengths_within(lengths, least, size)
        return
    if k.is_floating_point() or k.dtype is torch.bool:
        raise InvalidInputError(f"k must hold integers, got {k.dtype}")
    check_instances("k", k, len(theta))
    check_lengths_within(lengths, 0, size)
    if lengths is not None and len(lengths) != len(k):
        raise InvalidInputError(f"lengths and k must be given for the same batch, got {len(lengths)} and {len(k)}")
    most = torch.full_like(k, size) if lengths is None else lengths
    check_number(((k < 0) | ((k > most) & (not at_most))).any(), operator.not_, partial(_reject_sizes, k, most))


def check_lengths_within(lengths: Tensor | None, least: int, size: int) -> None:
    """Raise InvalidInputError unless all ``lengths`` (B,) lie between ``least`` and ``size``."""
    if lengths is not None:
        check_lengths(lengths, least, size, f"k = {least} of up to d = {size} elements")


def _reject_sizes(k: Tensor, most: Tensor) -> None:
    index = int(((k < 0) | (k > most)).nonzero()[0, 0])
    raise InvalidInputError(
        f"k must lie between 0 and the {int(most[index])} elements in use, got {int(k[index])} at batch index {index}"
    )


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
    wrong = used & (labels != 0) & (labels != 1)
    reject_labels(wrong, labels, "an element in use is labelled neither 0 nor 1 (taken)", defers=True)
    return used & (labels == 1)
