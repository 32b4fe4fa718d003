"""The choice between Triton kernels and torch operations for a tensor."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from ...errors import InvalidInputError

__all__ = ["interprets_kernels", "uses_triton"]

# Triton compiles for this compute capability and above.
_LEAST_CAPABILITY = (7, 0)


def uses_triton(tensor: Tensor) -> bool:
    """Return whether Triton kernels process ``tensor``, in float32 or float64.

    They do on CUDA devices of compute capability 7.0 and above, if triton is installed. The environment variable
    ``STRUCTINF_GPU`` is for finding faults: ``torch`` selects torch operations, and ``triton`` raises an error where
    triton is missing. With ``TRITON_INTERPRET=1`` and ``STRUCTINF_GPU=triton``, kernels process CPU tensors in the
    interpreter of triton. Both variables are read once in a process.
    """
    if tensor.is_cuda:
        return _choice() != "torch" and _supports(tensor.device.index)
    return interprets_kernels() and tensor.device.type == "cpu"


@functools.cache
def interprets_kernels() -> bool:
    """Return whether Triton kernels run on CPU tensors, in the interpreter of triton."""
    return _choice() == "triton" and os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _choice() -> str:
    choice = os.environ.get("STRUCTINF_GPU", "")
    if choice not in ("", "torch", "triton"):
        raise InvalidInputError(f"the environment variable STRUCTINF_GPU must be torch or triton, got {choice!r}")
    return choice


@functools.cache
def _supports(index: int) -> bool:
    if not importlib.util.find_spec("triton"):
        if _choice() == "triton":
            raise InvalidInputError(
                "STRUCTINF_GPU is triton, but the package triton is not installed. The CUDA builds of torch install "
                "it; unset STRUCTINF_GPU to use torch operations"
            )
        return False
    return torch.cuda.get_device_capability(index) >= _LEAST_CAPABILITY
