"""Dependency trees: scores (n + 1, n + 1) of the arcs from head to word, for n words and the root, node 0."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.kernels.arrays import has_numpy_view
from structinf.kernels.gpu import uses_triton
from structinf.oracle import Oracle
from structinf.shapes import Bool, Int
from structinf.validation import bound_lengths, check_lengths

from .labels import agreeing_choices

__all__ = ["arcs_in_use", "arcs_that_agree", "check_arcs", "describe_arc", "lengths_in_use"]


def check_arcs(oracle: Oracle, theta: Tensor, *, labelled: bool = False) -> None:
    """Raise InvalidInputError unless θ is (B, n + 1, n + 1), with L labels if ``labelled``, and lengths are valid."""
    size, *others = theta.shape[1:]
    if size < 2 or others[0] != size or 0 in others:
        form = "(n + 1, n + 1, L) of labelled arcs" if labelled else "(n + 1, n + 1) of arcs"
        raise InvalidInputError(
            f"theta: {oracle.label()} takes scores {form} from head to word, where node 0 is the root, for n >= 1 "
            f"words; got {tuple(theta.shape[1:])} after the batch dimension"
        )
    if "lengths" in oracle.bound:
        check_lengths(oracle.bound["lengths"], 1, size - 1, _words(size - 1), has_empty=True)


def lengths_in_use(oracle: Oracle, theta: Tensor) -> Int[Tensor, " batch"]:
    """Return the bound lengths (B,) in words, or n for each instance."""
    n = theta.shape[1] - 1
    return bound_lengths(oracle, len(theta), n, theta.device)


def arcs_in_use(oracle: Oracle, theta: Tensor) -> Bool[Tensor, "batch nodes nodes"]:
    """Mask all arcs except arcs into the root, from a word to itself, and in the padding.

    Without bound lengths the mask has a batch dimension of 1.
    """
    if uses_triton(theta):
        from structinf.kernels.padding import triton_masks

        size, lengths = theta.shape[1], oracle.bound.get("lengths")
        side = None if lengths is None else 0
        order = "0 < column != row"
        return triton_masks.mask((size, size), theta.device, lengths, side, side, order=order, more=1)
    if not theta.is_cpu and "lengths" not in oracle.bound:
        size = theta.shape[1]
        arcs = torch.ones(1, size, size, dtype=torch.bool, device=theta.device)
        arcs[:, :, 0] = False
        arcs[0].fill_diagonal_(False)
        return arcs
    if "lengths" not in oracle.bound and has_numpy_view(theta):
        return torch.from_numpy(_all_arcs(theta.shape[1]))
    lengths = lengths_in_use(oracle, theta[:1])
    if has_numpy_view(lengths):  # numpy's operations on small arrays are several times faster
        return torch.from_numpy(_arcs_in_use(np.arange(theta.shape[1]), lengths.numpy()))
    return _arcs_in_use(torch.arange(theta.shape[1], device=theta.device), lengths)


@functools.lru_cache(maxsize=64)
def _all_arcs(size: int) -> np.ndarray:
    """Return :func:`arcs_in_use` without padding, (1, size, size). Calls for one size share its memory."""
    nodes = np.arange(size)
    return _arcs_in_use(nodes, nodes[-1:])


def _arcs_in_use(nodes: Any, lengths: Any) -> Any:
    """Return :func:`arcs_in_use` for arrays or tensors: the nodes (n + 1,), and the lengths (B,)."""
    inside = nodes <= lengths[:, None]
    return ((nodes > 0) & (nodes != nodes[:, None])) & (inside[:, :, None] & inside[:, None, :])


def arcs_that_agree(oracle: Oracle, labels: Tensor, like: Tensor) -> Bool[Tensor, "batch nodes nodes"]:
    """Return which arcs agree with the heads ``labels`` (B, n), of which −1 is unknown."""
    n = like.shape[1] - 1
    if labels.ndim != 2 or labels.shape[1] != n:
        raise InvalidInputError(f"labels must be heads of shape (B, {n}), got shape {tuple(labels.shape)}")
    lengths = lengths_in_use(oracle, like).expand(len(labels))[:, None]
    inside = torch.arange(n, device=labels.device) < lengths
    heads = agreeing_choices(labels, inside, lengths + 1, n + 1).transpose(1, 2)
    return torch.cat([torch.ones_like(heads[:, :, :1]), heads], 2)


def describe_arc(index: tuple[int, ...]) -> str:
    """Return the words of messages for the arc [head, word] or [head, word, label]."""
    head, word, *label = index
    return f"arc {head} -> {word}" + (f" with label {label[0]}" if label else "")


def _words(n: int) -> str:
    return f"n = {n} words, root not included"
