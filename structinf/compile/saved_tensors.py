"""What autograd saves while it records, out of reach of hooks around the call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["bypass_saved_tensor_hooks"]

# torch 2.8 and later say which hooks there are; without them, saving takes a detour through Python for nothing.
_TOP_HOOKS = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # pyright: ignore[reportAttributeAccessIssue]


def bypass_saved_tensor_hooks() -> AbstractContextManager[None]:
    """A context in which tensors are saved as they are.

    Checkpointing would compute its region anew each time that a call reads what it saved for itself.
    """
    if _TOP_HOOKS is not None and _TOP_HOOKS(True) is None:
        return nullcontext()
    return saved_tensors_hooks(_same, _same)


def _same(t: Tensor) -> Tensor:
    return t
