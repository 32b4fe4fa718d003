"""Check and flatten the arguments of public calls: batch shapes, instance data, finite scores."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor, finite_if_all_are
from ..oracle import Oracle
from ..parts import Parts, as_tuple, broadcast_shapes
from ..validation import check_choice, check_values
from ..validation.scores import wrong_instance_shape

__all__ = [
    "OnInfeasible",
    "argument_shapes",
    "batch_shape_of",
    "blame_argument",
    "broadcasts",
    "check_all_finite",
    "check_form",
    "check_instance_data",
    "check_on_infeasible",
    "count_dimensions",
    "describe",
    "flatten_batch",
    "mask_hint",
    "shape_text",
]

OnInfeasible = Literal["raise", "zero"]


def check_on_infeasible(on_infeasible: Any) -> None:
    """Raise InvalidInputError unless the option is "raise" or "zero"."""
    check_choice("on_infeasible", on_infeasible, ("raise", "zero"))


def argument_shapes(theta: Parts, oracle: Oracle) -> tuple[torch.Size, tuple[torch.Size, ...]]:
    """Return the batch shape, and the event shape of each tensor."""
    tensors, ndims = as_tuple(theta), oracle.resolve_event_ndim(theta)
    batch = torch.broadcast_shapes(*(t.shape[: t.ndim - n] for t, n in zip(tensors, ndims, strict=True)))
    return batch, tuple(t.shape[t.ndim - n :] for t, n in zip(tensors, ndims, strict=True))


def batch_shape_of(tensors: tuple[Tensor, ...], ndims: tuple[int, ...], oracle: Oracle) -> torch.Size:
    """Return the batch shape that the tensors of θ broadcast to. ``ndims``: the number of event dimensions of each."""
    shapes = []
    for i, (t, n) in enumerate(zip(tensors, ndims, strict=True)):
        if t.ndim < n:
            name = f"theta[{i}]" if len(tensors) > 1 else "theta"
            raise InvalidInputError(
                f"{name}: {oracle.label()} needs at least {n} dimensions (batch dimensions first, then the "
                f"structure's {n}), got shape {shape_text(t.shape)}"
            )
        shapes.append(t.shape[: t.ndim - n])
    if len(shapes) == 1:
        return shapes[0]
    longest = max(shapes, key=len)
    if all(shape == longest or math.prod(shape) == 1 for shape in shapes):
        return longest  # the other tensors are shared by the batch
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        received = " and ".join(shape_text(t.shape) for t in tensors)
        raise InvalidInputError(
            f"theta: the batch dimensions of its tensors must broadcast, got shapes {received}"
        ) from None


def flatten_batch(t: Tensor, ndim: int, batch_shape: torch.Size) -> Tensor:
    """Return ``t`` as (B, *event), or as (1, *event) if the batch shares the tensor."""
    shape = t.shape
    event, own = shape[t.ndim - ndim :], shape[: t.ndim - ndim]
    if len(batch_shape) == 1 and own == batch_shape:
        return t
    if math.prod(own) == 1 and math.prod(batch_shape) != 1:
        return t.reshape(1, *event)
    return t.expand(batch_shape + event).reshape(math.prod(batch_shape), *event)


def check_instance_data(name: str, value: Any, oracle: Oracle, batch_shape: torch.Size, theta: Parts) -> Tensor:
    """Return instance data as a tensor (B, *own dimensions) on the device of ``theta``; integers as int64."""
    if name not in oracle.instance_ndim:
        try:
            oracle.bind(**{name: value})  # raises the TypeError that lists the known names
        except TypeError as error:
            raise TypeError(f"{error}{mask_hint(name, oracle.instance_ndim)}") from None
    if isinstance(value, Tensor):
        check_values(name, value)
    try:
        t = as_tensor(value)
        t = t.to("cpu") if as_tuple(theta)[0].is_cpu else t
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a tensor or a list of numbers, got {value!r}") from error
    integral = not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)
    if name == "lengths" and not integral:
        if t.numel():  # an empty list has no dtype of its own
            hint = f"; lengths of a {MASK}" if t.dtype is torch.bool else ""
            raise InvalidInputError(f"lengths must be integers, got {t.dtype}{hint}")
        integral = True
    if integral:
        t = t.to(torch.int64)
    n = oracle.resolve_instance_ndim(name, t.ndim, len(batch_shape))
    own = t.shape[: t.ndim - n]
    # Data with own dimensions must have the batch dimensions too. For a batch of two, lengths [1, 2] are
    # ambiguous: one number for each instance, or two numbers shared by the batch.
    if t.ndim < n or not broadcasts(own, batch_shape) or (n and len(own) != len(batch_shape)):
        raise wrong_instance_shape(name, t, n, batch_shape, theta)
    event = t.shape[t.ndim - n :]
    return t.expand(batch_shape + event).reshape(math.prod(batch_shape), *event)


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether ``shape`` broadcasts to ``to`` without a change of ``to``."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def check_all_finite(t: Tensor, what: str) -> None:
    """Raise InvalidInputError if ``t`` (B, ...) holds NaN or infinity."""
    # A sum of finite entries may overflow.
    if not (math.isfinite(finite_if_all_are(t.detach())) or bool(t.isfinite().all())):
        index = int((~t.isfinite()).nonzero()[0, 0])
        raise InvalidInputError(f"{what} holds NaN or infinity at batch index {index}; it must be finite")


def check_form(oracle: Oracle, theta: Parts) -> None:
    """Raise InvalidInputError if θ has a wrong form. An error about instance data would then be misleading."""
    try:
        oracle.validate(theta)
    except InvalidInputError as error:
        if str(error).startswith("theta"):
            raise InvalidInputError(str(error)) from None


MASK = "mask whose true positions come first are mask.sum(-1)"


def mask_hint(name: str, known: Iterable[str]) -> str:
    """Return a clause that converts a mask to lengths if ``name`` contains "mask", else an empty string."""
    if "mask" not in name.lower() or "lengths" not in known:
        return ""
    return f"; lengths of a {MASK}, or, for masks with holes, structinf.TokenMask(mask) moves the tokens together"


@contextlib.contextmanager
def blame_argument(name: str, but: str = "") -> Iterator[None]:
    """Replace "theta" by ``name`` in error messages, except in messages that start with ``but``."""
    try:
        yield
    except (InvalidInputError, TypeError) as error:
        message = str(error)
        if but and message.startswith(but):
            raise
        raise type(error)(re.sub(r"\btheta\b", name, message)) from None


def describe(y: Any) -> str:
    """Return the type of an argument, and shape and dtype of a tensor, for an error message."""
    if isinstance(y, tuple | list):
        return f"a {type(y).__name__} of {len(y)}"
    return (
        f"a tensor of shape {shape_text(y.shape)} and {y.dtype}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
    )


def count_dimensions(n: int) -> str:
    """Return "1 more dimension", or the plural, for an error message."""
    return f"{n} more dimension" + ("s" if n != 1 else "")


def shape_text(shape: Any) -> str:
    """Return a shape as the text of a tuple."""
    return str(tuple(shape))
