"""From what users pass to what oracles see: the only place with more than one batch dimension.

A :class:`Problem` is made by every public call: potentials validated, instance data bound,
half precision lifted to float32, padding overwritten, batch dimensions flattened.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InvalidInputError
from .oracle import Oracle, Potentials, as_tuple, like_potentials, map_parts

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """A flat batch of instances, and the way back to the user's shapes.

    Attributes
    ----------
    oracle : Oracle
        With the instance data bound.
    theta : (B | 1, *event) Potentials
        Differentiable functions of the user's tensors, float32 or float64.
    batch_shape : torch.Size
    dtype : torch.dtype
        Of the user's tensors; results are cast back to it.
    """

    oracle: Oracle
    theta: Potentials
    batch_shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def build(cls, theta: Any, oracle: Oracle, structure: Mapping[str, Any]) -> Problem:
        """Validate and flatten. InvalidInputError or TypeError say what is wrong and where."""
        theta = _check_tensors(theta)
        ndims = oracle.event_ndims(theta)
        tensors = as_tuple(theta)
        batch_shape = _batch_shape(tensors, ndims, oracle)
        dtype = tensors[0].dtype
        flat = [_flatten(t, n, batch_shape) for t, n in zip(tensors, ndims, strict=True)]
        if dtype in (torch.float16, torch.bfloat16):
            flat = [t.float() for t in flat]
        bound = {
            name: _check_structure(name, value, oracle, batch_shape, flat[0].device)
            for name, value in structure.items()
            if value is not None
        }
        oracle = oracle.bind(**bound) if bound else oracle
        form = like_potentials(flat, theta)
        oracle.validate(form)
        masks = oracle.valid_parts(form)
        if masks is not None:
            # Not a product: 0 · NaN is NaN, and where() gives the padding a gradient of exactly 0.
            form = map_parts(lambda t, mask: torch.where(_rows_like(mask, t), t, 0.0), form, masks)
        for i, t in enumerate(as_tuple(form)):
            _check_finite(t, f"theta[{i}]" if isinstance(theta, tuple) else "theta", batch_shape)
        return cls(oracle, form, batch_shape, dtype)

    # -- other arguments of the same batch ---------------------------------------------------

    def encode(self, labels: Tensor, what: str) -> Potentials:
        """The structures (B, *event) that integer labels of the user's batch shape describe."""
        n = self.oracle.label_ndim
        if labels.ndim < n or labels.shape[: labels.ndim - n] != self.batch_shape:
            raise InvalidInputError(
                f"{what}: integer labels of {self.oracle.label()} have batch shape {_shape(self.batch_shape)} "
                f"and {n} more dimensions, got shape {_shape(labels.shape)}"
            )
        device = as_tuple(self.theta)[0].device
        flat = labels.to(device, torch.int64).reshape(math.prod(self.batch_shape), *labels.shape[labels.ndim - n :])
        return self.oracle.encode(flat, self.theta)

    def flatten_parts(self, y: Any, what: str) -> Potentials:
        """A structure, or a cost of its parts, in θ's form, as (B, *event); the padding is put to 0."""
        y = tuple(y) if isinstance(y, list) else y
        if isinstance(y, tuple) != isinstance(self.theta, tuple) or len(as_tuple(y)) != len(as_tuple(self.theta)):
            raise InvalidInputError(f"{what}: the form of theta is needed, got {_describe(y)}")
        flat = []
        for i, (t, like) in enumerate(zip(as_tuple(y), as_tuple(self.theta), strict=True)):
            event = like.shape[1:]
            if not isinstance(t, Tensor):
                raise TypeError(f"{what}: a tensor is needed, got {type(t).__name__}")
            if t.shape[t.ndim - len(event) :] != event or not _broadcasts(
                t.shape[: t.ndim - len(event)], self.batch_shape
            ):
                where = f"{what}[{i}]" if isinstance(y, tuple) else what
                raise InvalidInputError(
                    f"{where} must have shape {_shape(self.batch_shape + event)} "
                    f"(batch {_shape(self.batch_shape)}, structure {_shape(event)}), got {_shape(t.shape)}"
                )
            t = t.to(like).expand(self.batch_shape + event)
            flat.append(t.reshape(math.prod(self.batch_shape), *event))
        form = like_potentials(flat, self.theta)
        masks = self.oracle.valid_parts(form)
        if masks is not None:
            form = map_parts(lambda t, mask: torch.where(mask, t, 0.0), form, masks)
        for t in as_tuple(form):
            if not bool(t.isfinite().all()):
                index = int((~t.isfinite()).nonzero()[0, 0])
                raise InvalidInputError(f"{what} holds NaN or infinity at batch index {index}; it must be finite")
        return form

    # -- the way back -------------------------------------------------------------------------

    def restore(self, t: Tensor, dim: int = 0) -> Tensor:
        """``t`` with its flat batch dimension ``dim`` unflattened and, if floating, in the user's dtype."""
        t = t.reshape(t.shape[:dim] + self.batch_shape + t.shape[dim + 1 :])
        return t.to(self.dtype) if t.is_floating_point() else t

    def full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast is off inside: sums of exponentials need the precision that the inputs were lifted to."""
        kind = as_tuple(self.theta)[0].device.type
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
        return contextlib.nullcontext()


# ----------------------------------------------------------------------------- checks


def _check_tensors(theta: Any) -> Potentials:
    theta = tuple(theta) if isinstance(theta, list) else theta
    for i, t in enumerate(as_tuple(theta)):
        name = f"theta[{i}]" if isinstance(theta, tuple) else "theta"
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: a tensor or a tuple of tensors is needed, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeError(f"{name}: floating-point potentials are needed, got {t.dtype}; call .float() first")
        if t.is_sparse or t.layout != torch.strided:
            raise TypeError(f"{name}: a dense tensor is needed, got layout {t.layout}; call .to_dense() first")
    tensors = as_tuple(theta)
    if not tensors:
        raise InvalidInputError("theta: an empty tuple holds no potentials")
    for what in ("device", "dtype"):
        values = [getattr(t, what) for t in tensors]
        if any(v != values[0] for v in values):
            raise InvalidInputError(f"theta: all tensors must have one {what}, got {' and '.join(map(str, values))}")
    return theta


def _batch_shape(tensors: tuple[Tensor, ...], ndims: tuple[int, ...], oracle: Oracle) -> torch.Size:
    shapes = []
    for i, (t, n) in enumerate(zip(tensors, ndims, strict=True)):
        if t.ndim < n:
            name = f"theta[{i}]" if len(tensors) > 1 else "theta"
            raise InvalidInputError(
                f"{name}: {oracle.label()} needs at least {n} dimensions (batch dimensions first, then the "
                f"structure's {n}), got shape {_shape(t.shape)}"
            )
        shapes.append(t.shape[: t.ndim - n])
    if len(shapes) == 1:
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        came = " and ".join(_shape(t.shape) for t in tensors)
        raise InvalidInputError(f"theta: the batch dimensions of shapes {came} do not agree") from None


def _flatten(t: Tensor, ndim: int, batch_shape: torch.Size) -> Tensor:
    """(B, *event), or (1, *event) for a tensor that all instances share, kept so."""
    event = t.shape[t.ndim - ndim :]
    own = t.shape[: t.ndim - ndim]
    if math.prod(own) == 1 and math.prod(batch_shape) != 1:
        return t.reshape(1, *event)
    return t.expand(batch_shape + event).reshape(math.prod(batch_shape), *event)


def _check_structure(name: str, value: Any, oracle: Oracle, batch_shape: torch.Size, device: torch.device) -> Tensor:
    """Instance data as a flat (B, *own dims) tensor on θ's device; integers become int64."""
    if name not in oracle.structure_ndim:
        oracle.bind(**{name: value})  # raises the TypeError that lists the known names
    n = oracle.structure_ndim[name]
    try:
        t = torch.as_tensor(value).to(device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name}: a tensor or a list of numbers is needed, got {value!r}") from error
    integral = not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)
    if name == "lengths" and not integral:
        if t.numel():  # an empty list has no dtype of its own
            raise InvalidInputError(f"lengths: integers are needed, got {t.dtype}")
        integral = True
    if integral:
        t = t.to(torch.int64)
    own = t.shape[: t.ndim - n]
    if t.ndim < n or not _broadcasts(own, batch_shape):
        wanted = _shape(batch_shape) + (f" followed by {n} dimensions" if n else "")
        raise InvalidInputError(f"{name}: the batch of theta has shape {wanted}, got {name} of shape {_shape(t.shape)}")
    event = t.shape[t.ndim - n :]
    return t.expand(batch_shape + event).reshape(math.prod(batch_shape), *event)


def _rows_like(mask: Tensor, t: Tensor) -> Tensor:
    """``mask`` for a tensor that all instances share: what is inside any instance's length is inside."""
    return mask.any(0, keepdim=True) if t.shape[0] == 1 != mask.shape[0] else mask


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def _check_finite(t: Tensor, name: str, batch_shape: torch.Size) -> None:
    """NaN and +inf are errors; one pass in the usual case, since the maximum is neither only if no entry is."""
    if t.numel() == 0 or t.detach().amax() < math.inf:  # False for NaN
        return
    wrong = torch.isnan(t.detach()) | torch.isposinf(t.detach())
    where = wrong.nonzero()[0].tolist()
    value = t.detach()[tuple(where)].item()
    shared = t.shape[0] == 1 and math.prod(batch_shape) != 1
    place = (
        f"part {tuple(where[1:])}, shared by the batch"
        if shared
        else f"batch index {where[0]}, part {tuple(where[1:])}"
    )
    raise InvalidInputError(
        f"{name} holds {'NaN' if math.isnan(value) else '+inf'} at {place}; "
        "potentials must be finite, or −inf to forbid a part"
    )


def _describe(y: Any) -> str:
    if isinstance(y, tuple):
        return f"a tuple of {len(y)}"
    return f"a tensor of shape {_shape(y.shape)} and {y.dtype}" if isinstance(y, Tensor) else type(y).__name__


def _shape(shape: Any) -> str:
    return str(tuple(shape))
