"""What distributions over structures share: events of one tensor or several, and the shapes around them."""

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

__all__ = [
    "Size",
    "StructureConstraint",
    "StructureDistribution",
    "broadcast_batch_shapes",
    "is_labels",
    "unflatten_samples",
]

Size = Sequence[int]


class StructureConstraint(Constraint):
    """A set of structures, given by the function that says of values (..., *event) which are of it, (...) bool."""

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
    """A distribution whose events are structures; of those of several tensors, what has the form of one is a tuple."""

    @property
    def event_shape(self) -> Any:
        """Of one structure: a torch.Size, or the tuple of its tensors' sizes."""
        return self._event_shape

    @property
    def event_shapes(self) -> tuple[torch.Size, ...]:
        """That of each tensor, also if there is one alone."""
        return (self._event_shape,) if isinstance(self._event_shape, torch.Size) else self._event_shape

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """Of each part, (*batch, *event)."""

    @property
    def stddev(self) -> Any:
        """Of each part, (*batch, *event)."""
        # The root must not see 0, where its slope is infinite.
        return map_parts(lambda v: torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0), self.variance)

    def _extended_shape(self, sample_shape: Size = ()) -> Any:
        lead = torch.Size(sample_shape) + self.batch_shape
        shapes = tuple(lead + event for event in self.event_shapes)
        return shapes[0] if isinstance(self._event_shape, torch.Size) else shapes

    def _check_expand(self, batch_shape: Size) -> torch.Size:
        """``batch_shape``; InvalidInputError unless the distribution's own can be expanded to it."""
        shape = torch.Size(batch_shape)
        if broadcast_batch_shapes(self.batch_shape, shape, what="batch_shape") != shape:
            raise InvalidInputError(f"batch_shape: {tuple(self.batch_shape)} cannot be expanded to {tuple(shape)}")
        return shape

    def _leading_shapes(self, value: Any) -> torch.Size | None:
        """The dimensions in front of the event's in ``value``; None if it has not the form of an event."""
        tensors, is_one = as_tuple(value), isinstance(self._event_shape, torch.Size)
        if isinstance(value, tuple) == is_one or len(tensors) != len(self.event_shapes):
            return None
        fronts = []
        for t, event in zip(tensors, self.event_shapes, strict=True):
            if not isinstance(t, Tensor) or t.shape[t.ndim - len(event) :] != event:
                return None
            fronts.append(t.shape[: t.ndim - len(event)])
        return broadcast_batch_shapes(*fronts, what="value")

    def _shape_of(self, value: Any) -> torch.Size:
        """The dimensions in front of the event's in ``value``, broadcast with the batch; the batch's if it has none."""
        return broadcast_batch_shapes(self._leading_shapes(value) or (), self.batch_shape, what="value")


def unflatten_samples(drawn: Parts, sample_shape: torch.Size) -> Parts:
    """Samples (n, ...) as (*sample, ...)."""
    return map_parts(lambda t: t.reshape(sample_shape + t.shape[1:]), drawn)


def is_labels(value: Any) -> bool:
    """Whether ``value`` is a tensor of integers, which are labels throughout the library, and no structure."""
    is_tensor = isinstance(value, Tensor)
    return is_tensor and not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


def broadcast_batch_shapes(*shapes: Size, what: str) -> torch.Size:
    """The shape that these are broadcast to; InvalidInputError, of ``what``, if they cannot be."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        received = " and ".join(str(tuple(shape)) for shape in shapes)
        raise InvalidInputError(f"{what}: the batch dimensions {received} do not agree") from None
