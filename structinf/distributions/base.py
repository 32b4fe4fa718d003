"""Base class of distributions over structures, with events of one tensor or a tuple of tensors."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from ..errors import InvalidInputError
from ..parts import Parts, as_tuple, broadcast_shapes, map_parts
from ..validation import check_size
from ..validation.tensors import check_dense

__all__ = [
    "Size",
    "StructureConstraint",
    "StructureDistribution",
    "broadcast_batch_shapes",
    "expanded_batch_shape",
    "is_labels",
    "unflatten_samples",
]

Size = Sequence[int]


class StructureConstraint(Constraint):
    """A set of structures, given by a function from values (..., *event) to a membership mask, (...) bool."""

    is_discrete = True

    def __init__(self, what: str, event_dim: int, contains: Callable[[Any], Tensor]) -> None:
        self.what = what
        self.event_dim = event_dim
        self.contains = contains
        super().__init__()

    def check(self, value: Any) -> Tensor:
        return self.contains(value)

    def __repr__(self) -> str:
        return f"Members({self.what})"


class StructureDistribution(Distribution, abc.ABC):
    """A distribution over structures.

    If a structure is a tuple of tensors, so are samples, the mean, the variance and ``event_shape``.
    """

    @property
    def event_shape(self) -> Any:
        """The shape of one structure: a torch.Size, or a tuple with the size of each tensor."""
        return self._event_shape

    @property
    def event_shapes(self) -> tuple[torch.Size, ...]:
        """A tuple with the event shape of each tensor, also for structures of a single tensor."""
        return (self._event_shape,) if isinstance(self._event_shape, torch.Size) else self._event_shape

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """The variance of each part, (*batch, *event)."""

    @property
    def stddev(self) -> Any:
        """The standard deviation of each part, (*batch, *event)."""
        # The inner `where` keeps 0 from the root, whose infinite slope at 0 would make the gradient NaN.
        return map_parts(lambda v: torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0), self.variance)

    def _extended_shape(self, sample_shape: Size = ()) -> Any:
        lead = check_size("sample_shape", sample_shape) + self.batch_shape
        shapes = tuple(lead + event for event in self.event_shapes)
        return shapes[0] if isinstance(self._event_shape, torch.Size) else shapes

    def _leading_shapes(self, value: Any) -> torch.Size | None:
        """Return the dimensions of ``value`` before the event dimensions, or None if the event shape does not fit."""
        tensors, is_one = as_tuple(value), isinstance(self._event_shape, torch.Size)
        if isinstance(value, tuple) == is_one or len(tensors) != len(self.event_shapes):
            return None
        for t in tensors:
            if isinstance(t, Tensor):
                check_dense("value", t)
        fronts = []
        for t, event in zip(tensors, self.event_shapes, strict=True):
            if not isinstance(t, Tensor) or t.shape[t.ndim - len(event) :] != event:
                return None
            fronts.append(t.shape[: t.ndim - len(event)])
        return broadcast_batch_shapes(*fronts, what="value")

    def _shape_of(self, value: Any) -> torch.Size:
        """Return the batch shape, broadcast with the leading dimensions of ``value`` if its event shape fits."""
        return broadcast_batch_shapes(self._leading_shapes(value) or (), self.batch_shape, what="value")


def unflatten_samples(drawn: Parts, sample_shape: torch.Size) -> Parts:
    """Reshape samples (n, ...) to (*sample, ...)."""
    return map_parts(lambda t: t.reshape(sample_shape + t.shape[1:]), drawn)


def is_labels(value: Any) -> bool:
    """Return whether ``value`` is an integer tensor: the library reads integers as labels, never as structures."""
    is_tensor = isinstance(value, Tensor)
    return is_tensor and not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


def expanded_batch_shape(own: torch.Size, batch_shape: Size) -> torch.Size:
    """Return ``batch_shape``; raise InvalidInputError if the batch shape ``own`` cannot be expanded to it."""
    shape = check_size("batch_shape", batch_shape)
    if broadcast_batch_shapes(own, shape, what="batch_shape") != shape:
        raise InvalidInputError(f"batch_shape: {tuple(own)} cannot be expanded to {tuple(shape)}")
    return shape


def broadcast_batch_shapes(*shapes: Size, what: str) -> torch.Size:
    """Return the broadcast shape; raise InvalidInputError, with ``what`` in front, if the shapes do not broadcast."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        received = " and ".join(str(tuple(shape)) for shape in shapes)
        raise InvalidInputError(f"{what}: the batch dimensions must broadcast, got {received}") from None
