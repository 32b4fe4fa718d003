"""Conversions between tensors and the arrays, dtypes and other arguments of CPU kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..compile.torch_private import functorch_is_active
from ..deferred_checks import copies_on_cpu

__all__ = [
    "HALF_DTYPES",
    "LARGE_BYTES",
    "all_parts",
    "as_tensor",
    "compiled_alpha",
    "copy_together",
    "empty",
    "finite_if_all_are",
    "from_library",
    "has_numpy_view",
    "is_small",
    "log_softmax",
    "numpy_if_small",
    "take_columns",
    "to_numpy",
    "upcast_half",
    "with_columns",
    "zeros",
]


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``value``, a tensor, or a CPU tensor of numbers, a list or an array.

    torch.as_tensor would move the result to torch's default device.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device="cpu")


def copy_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the tensors; on a device, one launch copies tensors of one shape and dtype, as rows of one."""
    if len({(t.shape, t.dtype, t.device) for t in tensors}) == 1:
        whole = torch.stack(list(tensors))
        return [whole[i] for i in range(len(tensors))]
    return [t.clone() for t in tensors]


_SMALL = 4096
"""The largest number of entries for which operations of numpy, in one thread, take less time than those of torch."""


def finite_if_all_are(t: Tensor) -> float:
    """Return a number that is finite only if all entries of ``t`` are; it may overflow for finite entries.

    For small tensors, numpy's inner product takes less time than an operation of torch. ``t`` requires no gradient.
    """
    if is_small(t):
        return float(np.vdot(x := t.numpy(), x))
    return t.sum().item()


def is_small(t: Tensor) -> bool:
    """Return whether ``t`` has a numpy view, and so few entries that numpy takes less time than torch."""
    return t.numel() <= _SMALL and has_numpy_view(t)


def numpy_if_small(*tensors: Tensor) -> tuple[Any, list[Any]]:
    """Return numpy and float64 arrays of small ``tensors``; or torch and the tensors in float64, without gradients.

    An operation of numpy on a small array takes a third of the time of an operation of torch.
    """
    if all(map(is_small, tensors)):
        return np, [t.detach().numpy().astype(np.float64, copy=False) for t in tensors]
    return torch, [t.detach().double() for t in tensors]


def from_library(array: Any) -> Tensor:
    """Return a tensor, or an array in the library of :func:`numpy_if_small`, as a tensor."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def take_columns(values: Any, index: Any) -> Any:
    """Return the number in the column ``index`` (B,) of each row of ``values`` (B, K), (B, 1), as array or tensor."""
    if isinstance(values, Tensor):
        return values.gather(1, index[:, None].expand(len(values), 1))
    return values[np.arange(len(values)), index][:, None]


def with_columns(values: Any, index: Any, column: Any) -> Any:
    """Return ``values`` with the numbers ``column`` (B, 1) in the columns ``index`` (B,); see :func:`take_columns`."""
    if isinstance(values, Tensor):
        return values.scatter(1, index[:, None].expand(len(values), 1), column)
    values = values.copy()
    values[np.arange(len(values)), index] = column[:, 0]
    return values


def log_softmax(scores: Any) -> Any:
    """Return the logarithm of the softmax of each row of ``scores`` (B, K), an array of numpy or a tensor."""
    if isinstance(scores, Tensor):
        return scores.log_softmax(1)
    below = scores - scores.max(1, keepdims=True)
    return below - np.log(np.exp(below).sum(1, keepdims=True))


def has_numpy_view(t: Tensor) -> bool:
    """Return whether ``t.numpy()`` works: on the CPU, outside of torch.func, whose transforms hide the values."""
    return t.is_cpu and not functorch_is_active()


def to_numpy(*tensors: Tensor) -> list[Any]:
    """Return C-contiguous numpy arrays: views of contiguous CPU tensors, copies of other tensors.

    Compiled loops need valid scores, so checks of scores on a device do not wait any longer. One copy reads the tensors
    of a device and the checks.
    """
    return [t.contiguous().numpy() for t in copies_on_cpu(*tensors)]


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a CPU tensor of zeros, allocated by numpy.

    The operating system clears numpy's memory on first use. torch.zeros would wake its threads to fill the memory.
    """
    return torch.from_numpy(np.zeros(shape, _numpy_dtype(dtype)))


LARGE_BYTES = 2**19
"""Results of at least this size are written to memory from :func:`empty`."""


def all_parts(like: Tensor) -> Tensor:
    """Return a mask (1, ...) of all entries of an instance of ``like`` (B, ...); later calls share its memory."""
    one = torch.ones((), dtype=torch.bool, device="cpu") if like.is_cpu else _true_on(like.device)
    return one.expand(1, *like.shape[1:])


@functools.lru_cache(maxsize=64)
def _true_on(device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # autograd cannot save tensors of the inference mode
        return torch.ones((), dtype=torch.bool, device=device)


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised CPU tensor, allocated by numpy.

    Writing to new memory of numpy takes less time than to memory of torch: numpy reuses memory or asks for huge pages.
    """
    return torch.from_numpy(np.empty(shape, _numpy_dtype(dtype)))


HALF_DTYPES = (torch.float16, torch.bfloat16)


def upcast_half(t: Tensor) -> Tensor:
    """Return ``t``, converted to float32 if its dtype is float16 or bfloat16."""
    return t.float() if t.dtype in HALF_DTYPES else t


def _numpy_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compiled_alpha(alpha: float) -> float | None:
    """Return the α of a regularizer as compiled loops take it: None in place of 1.

    numba compiles a loop for None without the powers of other α.
    """
    return None if alpha == 1 else alpha
