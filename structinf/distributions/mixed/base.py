"""Base class of mixed random variables."""

from __future__ import annotations

import abc
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint
from typing_extensions import Self

from ...kernels.arrays import upcast_half
from ...validation import check_floating
from ..base import expanded_batch_shape

__all__ = ["MixedDistribution", "to_float_parameter"]


class MixedDistribution(Distribution):
    """Base class with samples from a random generator, and with parameters of shape (*batch, *event)."""

    has_rsample = True

    @abc.abstractmethod
    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor: ...

    @torch.no_grad()
    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples, (*sample_shape, *batch_shape, *event_shape), without a gradient."""
        return self.rsample(sample_shape, generator=generator)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = cast(Self, self._get_checked_instance(type(self), _instance))
        new.__dict__.update(self.__dict__)
        new._batch_shape = expanded_batch_shape(self.batch_shape, batch_shape)
        for name, constraint in cast(dict[str, Constraint], self.arg_constraints).items():
            parameter = getattr(self, name)
            event = parameter.shape[parameter.ndim - constraint.event_dim :]
            setattr(new, name, parameter.expand(*new._batch_shape, *event))
        return new


def to_float_parameter(name: str, t: Tensor) -> Tensor:
    """Return ``t``, cast to float32 if it is float16 or bfloat16."""
    check_floating(name, t)
    return upcast_half(t)
