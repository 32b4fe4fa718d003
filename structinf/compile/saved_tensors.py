"""Recording by autograd without the saved-tensor hooks of a caller."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .torch_private import has_saved_tensor_hooks

__all__ = ["bypass_saved_tensor_hooks"]


def bypass_saved_tensor_hooks() -> AbstractContextManager[None]:
    """Return a context in which autograd saves tensors unchanged, without the hooks set around the call.

    Checkpointing sets hooks for saved tensors, and would run the checkpointed region again for each saved tensor that a
    call reads internally.
    """
    return saved_tensors_hooks(_unchanged, _unchanged) if has_saved_tensor_hooks() else nullcontext()


def _unchanged(t: Tensor) -> Tensor:
    return t
