"""Checks of scores θ, of structures in the form of θ, and of instance data bound to an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.arrays import HALF_DTYPES
from .tensors import FLOATING_DTYPES, check_dense, check_values

__all__ = [
    "check_bound_data",
    "check_broadcast_forms",
    "check_flat_scores",
    "check_same_form",
    "check_score_tensors",
    "have_one_form",
    "wrong_instance_shape",
]


def check_score_tensors(theta: Any) -> None:
    """Raise TypeError or InvalidInputError unless θ is a dense floating-point tensor, or a tuple of such tensors.

    The tensors of a tuple must have one device and one dtype; half precision counts as float32. UnsupportedError is
    raised for tensors without values.
    """
    tensors = _as_tuple(theta)
    for i, t in enumerate(tensors):
        _check_score_tensor(f"theta[{i}]" if isinstance(theta, tuple) else "theta", t, theta)
    if not tensors:
        raise InvalidInputError("theta must hold at least one tensor, got an empty tuple")
    if len(tensors) > 1:
        _check_same_kind(tensors)
    for i, t in enumerate(tensors):
        check_values(f"theta[{i}]" if isinstance(theta, tuple) else "theta", t)


def _check_score_tensor(name: str, t: Any, theta: Any) -> None:
    if not isinstance(t, Tensor):
        kind = "a tensor" if "[" in name else "a tensor or a tuple of tensors"
        raise TypeError(f"{name} must be {kind}, got {type(t).__name__}{_conversion(name, t, theta)}")
    if t.dtype not in FLOATING_DTYPES:
        other = ", which has less than 16 bits" if t.is_floating_point() else ""
        is_integer = not t.is_floating_point() and not t.is_complex()
        raise TypeError(
            f"{name} must be real floating-point scores, got {t.dtype}{other}; "
            "convert them with .float() (.real if complex) first"
            + (", or pass the scores before the labels if these are labels" if is_integer else "")
        )
    check_dense(name, t)


def _conversion(name: str, t: Any, theta: Any) -> str:
    """Return a clause with a conversion of ``t`` to a tensor; empty for an object that is no list of numbers."""
    if type(t).__module__ == "numpy":
        return f"; convert it with torch.from_numpy({name})" if type(t).__name__ == "ndarray" else ""
    if not isinstance(t, list | tuple | float | int):
        return ""
    whole = not any(isinstance(each, Tensor) for each in theta) if isinstance(theta, tuple) else True
    return f"; convert with torch.tensor({'theta' if whole else name})"


def _check_same_kind(tensors: tuple[Tensor, ...]) -> None:
    # Autocast mixes half precision (the output of a layer) with float32 (a parameter). Both are cast to float32.
    lifted = [torch.float32 if t.dtype in HALF_DTYPES else t.dtype for t in tensors]
    for what, values in (("device", [t.device for t in tensors]), ("dtype", lifted)):
        if any(v != values[0] for v in values):
            raise InvalidInputError(
                f"theta: all tensors must have the same {what}, got {' and '.join(map(str, values))}"
            )


def check_flat_scores(label: str, theta: Any, event_ndim: Sequence[int]) -> int:
    """Return the batch size B; raise an error unless θ has the flat form taken by methods of oracles.

    Parameters
    ----------
    label : str
        The name of the oracle in messages.
    theta : Tensor, or tuple of Tensor
        Scores that :func:`check_score_tensors` accepts.
    event_ndim : sequence of int
        The number of dimensions of one structure, for each tensor.
    """
    tensors, size = _as_tuple(theta), 1
    for i, (t, n) in enumerate(zip(tensors, event_ndim, strict=True)):
        name = f"theta[{i}]" if isinstance(theta, tuple) else "theta"
        if t.ndim != n + 1:
            raise InvalidInputError(
                f"{name}: methods of {label} take {n + 1} dimensions (one batch dimension, then the structure's {n}), "
                f"got shape {tuple(t.shape)}; flatten or add batch dimensions, or call structinf.relax, which takes "
                "any number of them"
            )
        if t.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"{name}: methods of {label} take float32 or float64, got {t.dtype}; convert it with .float(), or "
                "call structinf.relax, which does"
            )
        if t.shape[0] != 1 and size not in (1, t.shape[0]):
            received = " and ".join(str(tuple(t.shape)) for t in tensors)
            raise InvalidInputError(
                f"theta: the batch dimensions of its tensors must be equal, or 1 for a tensor shared by the batch, got "
                f"shapes {received}"
            )
        size = t.shape[0] if t.shape[0] != 1 else size
    return size


def check_same_form(name: str, parts: Any, theta: Any, batch: int) -> None:
    """Raise an error unless ``parts`` has the event shapes and device of θ, and a batch dimension of ``batch`` or 1."""
    tensors = _as_tuple(parts)
    if isinstance(parts, tuple) != isinstance(theta, tuple) or len(tensors) != len(_as_tuple(theta)):
        received = f"a tuple of {len(parts)}" if isinstance(parts, tuple) else f"a {type(parts).__name__}"
        raise InvalidInputError(f"{name} must have the form of theta, got {received}")
    for i, (t, like) in enumerate(zip(tensors, _as_tuple(theta), strict=True)):
        where = f"{name}[{i}]" if isinstance(theta, tuple) else name
        if not isinstance(t, Tensor) or not t.is_floating_point():
            received = f"a tensor of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"{where} must be a tensor in the form of theta, in floating point, got {received}")
        if t.shape[1:] != like.shape[1:] or t.shape[0] not in (1, batch):
            expected = (batch, *like.shape[1:])
            raise InvalidInputError(f"{where} must have shape {expected}, the form of theta, got {tuple(t.shape)}")
        if t.device != like.device:
            raise InvalidInputError(f"{where} must be on {like.device}, the device of theta, got {t.device}")


def check_broadcast_forms(theta: Any, y: Any) -> None:
    """Raise InvalidInputError unless θ and ``y`` have the same event shapes, and batch dimensions that broadcast."""
    if have_one_form(theta, y):
        return
    tensors, others = _as_tuple(theta), _as_tuple(y)
    same_form = isinstance(theta, tuple) == isinstance(y, tuple) and len(tensors) == len(others)
    for name, parts in (("theta", tensors), ("y", others)):
        for t in parts:
            if isinstance(t, Tensor):
                check_dense(name, t)
    if same_form and all(map(_is_pair, tensors, others)):
        for t, z in zip(tensors, others, strict=True):
            if t.dtype != z.dtype or t.device != z.device:
                raise TypeError(
                    f"y must have the dtype and the device of theta, {t.dtype} on {t.device}, got {z.dtype} on "
                    f"{z.device}; convert it with y.to(theta)"
                )
        return
    raise InvalidInputError(
        f"y must have the form of theta, {_describe(theta)}, got {_describe(y)}; the first dimension is the batch"
    )


def have_one_form(t: Any, z: Any) -> bool:
    """Return whether both are dense tensors of one shape, dtype and device."""
    if type(t) is not Tensor or type(z) is not Tensor or t.is_nested or z.is_nested:
        return False
    return t.layout is z.layout is torch.strided and t.dtype is z.dtype and t.shape == z.shape and t.device == z.device


def _is_pair(t: Any, z: Any) -> bool:
    if not isinstance(t, Tensor) or not isinstance(z, Tensor):
        return False
    first, second = t.shape, z.shape
    return first == second or (
        first[1:] == second[1:] and t.ndim > 0 and z.ndim > 0 and (first[0] == 1 or second[0] == 1)
    )


def _describe(parts: Any) -> str:
    if isinstance(parts, tuple):
        return f"a tuple of {len(parts)} tensors: {', '.join(map(_describe, parts))}"
    return f"shape {tuple(parts.shape)}" if isinstance(parts, Tensor) else f"a {type(parts).__name__}"


def check_bound_data(oracle: Any, theta: Any, batch: int) -> None:
    """Raise InvalidInputError unless all bound tensors hold a value for each of ``batch`` instances, beside θ."""
    first = _as_tuple(theta)[0]
    for name, t in oracle.bound.items():
        n = oracle.resolve_instance_ndim(name, t.ndim, 1) if name in oracle.instance_ndim else t.ndim - 1
        if t.ndim != n + 1:
            raise wrong_instance_shape(name, t, n, (batch,), theta)
        if name == "lengths" and t.dtype is not torch.int64:
            raise InvalidInputError(f"lengths must be integers, got {t.dtype}")
        if t.shape[0] != batch:
            raise InvalidInputError(
                f"{name} is bound for a batch of {t.shape[0]}, but theta has a batch of {batch}; bind an entry for "
                "each instance"
            )
        if t.device != first.device:
            raise InvalidInputError(f"{name} must be on {first.device}, the device of theta, got {t.device}")


def wrong_instance_shape(name: str, value: Tensor, n: int, batch_shape: Sequence[int], theta: Any) -> InvalidInputError:
    """Return the error for instance data ``value`` whose shape is not ``batch_shape`` and ``n`` dimensions."""
    more = f" followed by {n} more dimension{'s' * (n != 1)}" if n else ""
    events = " and ".join(str(tuple(t.shape[1:])) for t in _as_tuple(theta))
    return InvalidInputError(
        f"{name} must have the batch shape of theta, {tuple(batch_shape)}{more}, got shape {tuple(value.shape)}; the "
        f"dimensions of theta after the batch, {events}, are the dimensions of one structure"
    )


def _as_tuple(theta: Any) -> tuple[Any, ...]:
    return theta if isinstance(theta, tuple) else (theta,)
