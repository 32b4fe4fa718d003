"""Launches of Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["launch"]


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Launch ``kernel`` on the device of the first tensor among ``arguments``; do nothing for an empty grid.

    Products and sums are not fused, so that results do not depend on the version of triton.

    Parameters
    ----------
    kernel : triton.JITFunction
        The kernel.
    grid : tuple of int
        The numbers of programs.
    *arguments
        The arguments of the kernel: tensors and integers, no floats, which triton would round to float32.
    warps : int
        The number of warps of a program, a power of 2.
    **constants
        The ``tl.constexpr`` parameters of the kernel.
    """
    if 0 in grid:
        return
    if any(isinstance(a, float) for a in arguments):
        raise TypeError("pass floats in a tensor, since triton rounds them to float32")
    tensor = next(a for a in arguments if isinstance(a, Tensor))
    options = {"num_warps": warps, "enable_fp_fusion": False, **constants}
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        with torch.cuda.device(tensor.device):
            kernel[grid](*arguments, **options)
    else:
        kernel[grid](*arguments, **options)
