"""Restrictions of the set of structures: masks of allowed parts, and labels that are known in part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, list_to_tuple, pack_like
from ..solution import Fill
from ..validation import check_values
from ..validation.tensors import check_dense
from .arguments import broadcasts
from .gold import flatten_labels, gold_structures
from .problem import Problem

__all__ = ["allowed_masks", "has_unknown_labels", "is_labels", "restrict_flat", "restrict_scores"]

Masks = list[Tensor | None]
"""For each tensor of θ, (B | 1, *event) bool, True for allowed parts; None if all parts are allowed."""

_ALL_ALLOWED = Fill(1.0, 1.0)


def is_labels(y: Any) -> bool:
    """Return whether ``y`` is a tensor of integers."""
    return isinstance(y, Tensor) and not (y.is_floating_point() or y.is_complex() or y.dtype is torch.bool)


def allowed_masks(problem: Problem, allowed: Any, name: str = "allowed") -> Masks:
    """Return the masks of the argument ``allowed`` for the instances of the problem.

    Parameters
    ----------
    problem : Problem
        The batch.
    allowed : integer Tensor, bool Tensor, or tuple of bool Tensor or None
        Labels with −1 for unknown labels, or masks in the form of θ. A single mask for θ in the form of a tuple is the
        mask of the first tensor.
    name : str
        The argument that the caller has passed as ``allowed``, for messages about labels.
    """
    if problem.has_size_0:
        return [None] * len(as_tuple(problem.theta))
    if is_labels(allowed):
        with problem.plain_modes():
            return _of_labels(problem, allowed, name)
    like = as_tuple(problem.theta)
    given = list_to_tuple(allowed)
    masks = given if isinstance(given, tuple) else (given, *[None] * (len(like) - 1))
    if len(masks) != len(like) or not any(isinstance(mask, Tensor) for mask in masks):
        raise InvalidInputError(
            f"allowed must be masks in the form of theta, {len(like)} tensor{'s' * (len(like) > 1)}"
            f"{' of which at least one is not None' * (len(like) > 1)}, or labels, got {_describe(allowed)}"
        )
    return [
        None if mask is None else _flat_mask(problem, mask, t, i)
        for i, (mask, t) in enumerate(zip(masks, like, strict=True))
    ]


def _of_labels(problem: Problem, labels: Tensor, name: str) -> Masks:
    oracle = problem.oracle
    if type(oracle).allowed_parts is Oracle.allowed_parts:
        reason = "has no integer labels" if type(oracle).encode is Oracle.encode else "has no unknown labels"
        raise UnsupportedError(
            f"{oracle.label()} {reason}: scores of −inf forbid parts, and cannot require a part; pass boolean masks of "
            "the allowed parts, in the form of theta"
        )
    flat = flatten_labels(problem, labels, name)
    return list(as_tuple(oracle.allowed_parts(flat, problem.theta)))


def _flat_mask(problem: Problem, mask: Any, like: Tensor, i: int) -> Tensor:
    event, batch = like.shape[1:], problem.batch_shape
    where = f"allowed[{i}]" if isinstance(problem.theta, tuple) else "allowed"
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        raise TypeError(
            f"{where} must be a tensor of booleans, True for allowed parts, got {_describe(mask)}; pass structures as y"
        )
    check_dense(where, mask)
    check_values(where, mask)
    own = mask.shape[: mask.ndim - len(event)]
    if mask.shape[mask.ndim - len(event) :] != event or not broadcasts(own, batch):
        raise InvalidInputError(
            f"{where} must have shape {tuple(batch + event)} (batch {tuple(batch)}, structure {tuple(event)}), got "
            f"{tuple(mask.shape)}"
        )
    mask = mask.to(like.device)
    if own.numel() == 1:
        return mask.reshape(1, *event)
    return problem.select(mask.expand(batch + event).reshape(batch.numel(), *event))


def restrict_flat(problem: Problem, theta: Parts, masks: Masks) -> Parts:
    """Return ``theta`` (B | 1, *event) with −inf for parts that are not allowed, and 0 in the padding."""
    tensors = [
        t if mask is None else t.masked_fill(~mask, -torch.inf) for t, mask in zip(as_tuple(theta), masks, strict=True)
    ]
    return problem.without_padding(pack_like(tensors, theta))


def restrict_scores(problem: Problem, theta: Any, masks: Masks) -> Parts:
    """Return the user's scores ``theta`` (..., *event) with −inf for parts that are not allowed."""
    given = list_to_tuple(theta)
    return pack_like([_restrict(problem, t, m) for t, m in zip(as_tuple(given), masks, strict=True)], given)


def _restrict(problem: Problem, t: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return t.clone()
    rows = problem.batch_shape.numel() if problem.solved is None else len(problem.solved.index)
    if mask.shape[0] == rows:
        mask = problem.scatter(mask, fill=_ALL_ALLOWED).view(problem.batch_shape + mask.shape[1:])
    else:
        mask = mask[0]  # shared by the batch
    return torch.where(mask, t, -torch.inf)


def has_unknown_labels(problem: Problem, y: Any, error: InvalidInputError) -> bool:
    """Return whether ``y`` are labels of which some inside the lengths are −1, for an oracle that takes such labels.

    For other oracles, the ``error`` about the labels gets a hint.
    """
    if not is_labels(y) or not bool((y == -1).any()):
        return False
    if type(problem.oracle).allowed_parts is Oracle.allowed_parts:
        if str(error).startswith("labels"):
            error.args = (
                f"{error}; if −1 stands for unknown labels, pass allowed=, boolean masks of the allowed parts, instead "
                f"of y, as {problem.oracle.label()} takes no unknown labels",
            )
        return False
    try:
        # Labels of −1 in the padding are no unknown labels.
        with problem.plain_modes():
            gold_structures(problem, y, "y")
    except InvalidInputError:
        return True
    return False


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
