"""Recording by autograd without the hooks that a caller sets for saved tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .torch_private import has_saved_tensor_hooks

__all__ = ["bypass_saved_tensor_hooks"]


def bypass_saved_tensor_hooks() -> AbstractContextManager[None]:
    """A context in which autograd saves tensors unchanged, whatever hooks are set around the call.

    Checkpointing sets such hooks. It would run its region again each time that a call reads a tensor which it saved
    for its own use.
    """
    return saved_tensors_hooks(_unchanged, _unchanged) if has_saved_tensor_hooks() else nullcontext()


def _unchanged(t: Tensor) -> Tensor:
    return t
