"""Inputs of the built-in transition systems: a tensor, or a tensor with lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError

__all__ = ["check_action_scores", "split_lengths"]


def check_action_scores(scores: Any, states: int, actions: int) -> None:
    """Raise an error unless ``scores``, the result of the option ``score``, is a tensor (``states``, ``actions``)."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"score must return a tensor ({states}, {actions}), got {type(scores).__name__}; return the scores of the "
            "actions, a row for each state"
        )
    if scores.shape != (states, actions):
        raise InvalidInputError(f"score must return a tensor ({states}, {actions}), got {tuple(scores.shape)}")


def split_lengths(inputs: Any, extra: int) -> tuple[Tensor, Tensor]:
    """Return the tensor (B, n + extra, ...) of ``inputs``, and the lengths (B,), by default n."""
    if isinstance(inputs, tuple | list) and len(inputs) != 2:
        raise InvalidInputError(
            f"inputs must be a tensor, or a tuple of it and lengths (B,), got {len(inputs)} entries"
        )
    values, lengths = inputs if isinstance(inputs, tuple | list) else (inputs, None)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        shown = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"inputs must be a floating-point tensor, or a tuple of it and lengths (B,), got {shown}")
    if values.ndim < 2 or values.shape[1] <= extra:
        least = f"n + {extra}" if extra else "n"
        raise InvalidInputError(f"inputs must have shape (B, {least}, ...), n at least 1, got {tuple(values.shape)}")
    n = values.shape[1] - extra
    if lengths is None:
        return values, torch.full((len(values),), n, device=values.device)
    if not isinstance(lengths, Tensor | list | tuple):
        raise TypeError(f"lengths must be a tensor or list of integers, got {type(lengths).__name__}")
    lengths = torch.as_tensor(lengths, device=values.device)
    if lengths.shape != (len(values),) or lengths.dtype not in (torch.int64, torch.int32):
        raise InvalidInputError(
            f"lengths must be integers of shape ({len(values)},), got {tuple(lengths.shape)} in {lengths.dtype}"
        )
    if len(lengths) and not bool(((lengths >= 1) & (lengths <= n)).all()):
        raise InvalidInputError(f"lengths must be between 1 and n = {n}, got {lengths.tolist()}")
    return values, lengths.long()
