"""Methods of oracles whose algorithms run on the CPU, for scores and instance data on every device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..deferred_checks import copies_on_cpu
from ..parts import Parts, as_tuple, pack_like
from .base import Oracle

__all__ = ["computed_on_cpu"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def computed_on_cpu(method: _Method) -> _Method:
    """Return ``method(self, theta, ...)``, whose oracle and scores are on the CPU, for scores on every device.

    One copy reads the scores, the bound data and the checks of the running call that wait. The method then runs, with
    its own checks, before its results are copied to the device of the scores. These copies do not wait for the device.
    """

    @functools.wraps(method)
    def compute(self: Oracle, theta: Parts, *args: Any, **kwargs: Any) -> Any:
        first = as_tuple(theta)[0]
        if first.is_cpu:
            return method(self, theta, *args, **kwargs)
        oracle, scores = _copied(self, theta)
        return _moved(method(oracle, scores, *args, **kwargs), first.device)

    return cast(_Method, compute)


def _copied(oracle: Oracle, theta: Parts) -> tuple[Oracle, Parts]:
    """Return copies of the oracle and of θ on the CPU."""
    tensors = as_tuple(theta)
    data = {} if oracle.knows_data_on_cpu else oracle.bound
    copies = copies_on_cpu(*tensors, *data.values())
    scores = pack_like(copies[: len(tensors)], theta)
    if data:
        # Views would keep the memory of the scores.
        own = zip(data, copies[len(tensors) :], strict=True)
        oracle.store_data_on_cpu({name: t.clone() for name, t in own})
    return oracle.on_cpu(), scores


def _moved(value: Any, device: torch.device) -> Any:
    """Return a tensor, or the tensors of a tuple, on ``device``, and other results as they are."""
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
