"""Subsets of d elements: the elements in use, and labels (..., d), 1 for elements taken and 0 for the others."""

from __future__ import annotations

import operator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.deferred_checks import check_number
from structinf.dp import Hypergraph
from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.oracle import Oracle
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths, check_lengths_later, check_natural

from .labels import reject_labels

__all__ = [
    "check_lengths_within",
    "check_size_option",
    "check_sizes",
    "cost_of_wrong_elements",
    "elements_in_use",
    "elements_within",
    "fits_kernel",
    "index_by_size",
    "largest_size",
    "mask_unusable_cells",
    "single_size",
    "sizes_of",
    "taken_elements",
]


_MOST_ELEMENTS = 256
"""The largest d for which a hypergraph has subsets of each size up to d, if k is on a device: d² / 2 nodes of sums."""

_LARGEST = 2**31 - 1


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


def largest_size(oracle: Oracle, size: int) -> int:
    """Return the largest k of the instances of ``size`` elements, or 0 without instances.

    Python would wait to read k on a device, so the result is then ``size``, up to `_MOST_ELEMENTS`.
    """
    k = oracle.bound["k"]
    if not len(k):
        return 0
    if k.is_cpu:
        return int(k.max())
    is_known = oracle.knows_data_on_cpu
    return size if size <= _MOST_ELEMENTS and not is_known else int(oracle.data_on_cpu()["k"].max())


def index_by_size(oracle: Oracle, graph: Hypergraph) -> Tensor | None:
    """Return the index [length, k] of each instance's goal; the bound lengths without bound k."""
    lengths, k = oracle.bound.get("lengths"), oracle.bound.get("k")
    if k is None:
        return lengths
    if lengths is None:
        index = pad(k.unsqueeze(1), (1, 0), value=graph.goals.shape[0] - 1)
    elif (step := _step_between(lengths, k)) > 0:
        index = lengths.as_strided((len(k), 2), (lengths.stride(0), step))
    else:
        index = torch.stack([lengths.to(k.device), k], 1)
    length, most = (size - 1 for size in graph.goals.shape)
    # Without a limit below the number of elements, a larger k allows all elements. No length is larger.
    return index.clamp(max=most) if most == length and getattr(oracle, "at_most", False) else index


def _step_between(lengths: Tensor, k: Tensor) -> int:
    """Return how many numbers after ``lengths`` the same memory has ``k``, as copied by ``Oracle.bind``; else 0."""
    if k.is_cpu or lengths.is_cpu or k.untyped_storage().data_ptr() != lengths.untyped_storage().data_ptr():
        return 0
    return int(k.storage_offset() - lengths.storage_offset())


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
    if lengths is not None and len(lengths) != len(k):
        raise InvalidInputError(f"lengths and k must be given for the same batch, got {len(lengths)} and {len(k)}")
    if not k.is_cpu:
        largest = _LARGEST if at_most else size
        columns, highs = ((k,), (largest,)) if lengths is None else ((lengths, k), (size, largest))
        if check_lengths_later(columns, 0, *highs, nested=not at_most):
            return
    check_lengths_within(lengths, 0, size)
    most = size if lengths is None else lengths
    wrong = k < 0 if at_most else (k < 0) | (k > most)
    number = wrong.sum(dtype=torch.float64)  # joined with the numbers of other checks in one launch
    check_number(number, operator.not_, partial(_reject_sizes, k, wrong, most))


def check_lengths_within(lengths: Tensor | None, least: int, size: int) -> None:
    """Raise InvalidInputError unless all ``lengths`` (B,) lie between ``least`` and ``size``."""
    if lengths is not None:
        check_lengths(lengths, least, size, f"k = {least} of up to d = {size} elements")


def _reject_sizes(k: Tensor, wrong: Tensor, most: int | Tensor) -> None:
    index = int(wrong.nonzero()[0, 0])
    own = int(most[index]) if isinstance(most, Tensor) else most
    raise InvalidInputError(
        f"k must lie between 0 and the {own} elements in use, got {int(k[index])} at batch index {index}"
    )


def elements_in_use(lengths: Tensor | None, theta: Tensor) -> Bool[Tensor, "rows d"] | None:
    """Mask the elements of θ (B | 1, d) within ``lengths`` (B,); None if all are in use.

    If the batch shares θ, an element counts if any instance uses it.
    """
    if lengths is None:
        return None
    mask = elements_within(lengths, theta.shape[1])
    return mask.any(0, keepdim=True) if len(theta) == 1 != len(lengths) else mask


def elements_within(lengths: Tensor, size: int) -> Bool[Tensor, "batch size"]:
    """Mask the first of ``size`` elements, as many as ``lengths`` (B,)."""
    if uses_triton(lengths):
        from structinf.kernels.padding import triton_masks

        return triton_masks.mask((1, size), lengths.device, lengths, columns=0)[:, 0]
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


def fits_kernel(lengths: Tensor | None, theta: Tensor) -> bool:
    """Return whether the Triton kernel of subsets serves for θ (B, d), without a graph of autograd."""
    if not uses_triton(theta) or (theta.requires_grad and torch.is_grad_enabled()):
        return False
    from ..kernels.subset import triton_top_k

    return triton_top_k.fits(theta) and (lengths is None or len(lengths) == len(theta))


def mask_unusable_cells(lengths: Tensor | None, theta: Tensor) -> Float[Tensor, "batch d"]:
    """Return θ with −inf for elements beyond the length."""
    if lengths is not None and fits_kernel(lengths, theta):
        from ..kernels.subset import triton_top_k

        return triton_top_k.usable(theta, lengths=lengths)[0]
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
