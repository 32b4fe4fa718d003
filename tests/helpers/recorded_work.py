"""Record the work that a call gives to a GPU, and repeat it with other values, as a CUDA graph does.

A CUDA graph repeats the kernels of a call without Python, with the memory of the recorded call. So a call may not read
a value from the GPU, copy from the CPU, or choose shapes or kernels by values. :class:`RecordedWork` repeats a call on
a machine without a GPU: its results for other inputs are right only if the call has kept these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from launch_counter import LaunchCounter

__all__ = ["RecordedWork"]


class RecordedWork(LaunchCounter):
    """A :class:`LaunchCounter` that also records all operations of torch and Triton kernels inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Callable[[], Any]] = []

    def repeat(self) -> None:
        """Run all recorded operations again, in their order, on the memory of the recorded call."""
        with torch.no_grad():
            for step in self._steps:
                step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if not self._is_paused:
            self._steps.append(lambda: _run_again(func, args, kwargs or {}, out))
        return out

    def _kernel(self, own: Any) -> Any:
        run = super()._kernel(own)

        def record(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps.append(lambda: own(kernel, *args, **kwargs))
            return run(kernel, *args, **kwargs)

        return record


def _run_again(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Run an operation of torch, and write its results over ``out``, the results of the recorded call."""
    for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
        # Views and results of operations in place are the recorded memory already.
        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
            old.copy_(new)
