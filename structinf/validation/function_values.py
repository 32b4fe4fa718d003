"""Checks of values that a plugin's function of θ returns, such as ``log_partition``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..compile.torch_private import functorch_is_active, is_fake_tensor, is_functorch_wrapped_tensor, is_jit_tracing
from ..deferred_checks import check_number, skips_checks
from ..errors import PluginError

__all__ = ["check_function_values", "protocol_error", "versions_of"]

_WRITES = "it changed theta in place; write into a copy, theta.clone()"


def versions_of(theta: Sequence[Tensor]) -> list[int] | None:
    """Return the version counters of θ, which each write changes; None if a tensor has no counter.

    Parameters
    ----------
    theta : sequence of Tensor
        The tensors of θ.
    """
    if torch.compiler.is_compiling() or any(t.is_inference() for t in theta):
        return None
    return [t._version for t in theta]


def check_function_values(
    function: Any,
    value: Any,
    batch: int,
    theta: Sequence[Tensor],
    versions: list[int] | None,
    *,
    differentiable: bool = False,
) -> None:
    """Raise PluginError unless the ``value`` of ``function`` is a floating-point tensor of shape (batch,).

    The function must not write into θ. The value must not be NaN or +inf for finite scores and scores of −inf. The
    check of the numbers skips the built-in oracles, since it takes 5 µs on a CPU. On a GPU, the check of the numbers
    waits for the end of the public call.

    Parameters
    ----------
    function : callable
        The function, usually a method of an oracle, for the message.
    value : object
        The result of the function.
    batch : int
        The number of instances.
    theta : sequence of Tensor
        The tensors of θ, after the call.
    versions : list of int or None
        The version counters of θ before the call, from :func:`versions_of`.
    differentiable : bool
        Whether the result must have a gradient, because a tensor of θ requires one.
    """
    if not isinstance(value, Tensor):
        wrong = f"it returned a {type(value).__name__}, but must return a tensor of shape ({batch},)"
    elif value.shape != (batch,):
        wrong = f"it returned shape {tuple(value.shape)}, but must return shape ({batch},), a number for each instance"
    elif not value.is_floating_point():
        wrong = f"it returned {value.dtype}, but must return the dtype of theta"
    elif differentiable and not value.requires_grad:
        wrong = (
            "its result has no gradient, although theta requires one; compute the result by differentiable operations, "
            "without detach(), numpy() or no_grad()"
        )
    elif versions is not None and versions != versions_of(theta):
        wrong = _WRITES
    else:
        wrong = None
    if wrong is not None:
        raise protocol_error(function, wrong)
    if _has_unknown_numbers(function, value):
        value = value.detach()
        check_number(value.sum(), math.isfinite, functools.partial(_check_numbers, function, value, theta))


def protocol_error(function: Any, wrong: str = _WRITES) -> PluginError:
    """Return the error about ``function``. By default, the function changed θ in place.

    Parameters
    ----------
    function : callable
        The function, usually a method of an oracle.
    wrong : str
        What the function did, as a clause.
    """
    return PluginError(
        f"{_describe(function)} violates its protocol: {wrong}; run structinf.testing.check_oracle to test the oracle"
    )


def _has_unknown_numbers(function: Any, value: Tensor) -> bool:
    """Return whether the numbers of ``value`` are to be checked, and can be read."""
    owner = getattr(_unwrap(function), "__self__", None)
    if type(owner).__module__.startswith("structinf_oracles."):
        return False
    if torch.compiler.is_compiling() or functorch_is_active() or is_jit_tracing():
        return False
    return not (is_fake_tensor(value) or is_functorch_wrapped_tensor(value) or value.is_meta or skips_checks(value))


def _check_numbers(function: Any, value: Tensor, theta: Sequence[Tensor]) -> None:
    """Raise PluginError if an instance of valid scores has the value NaN or +inf."""
    wrong = value.isnan() | value.isposinf()
    for t in theta:  # no method is to blame for scores of NaN or +inf, or for scores with a sum that overflows
        t = t.detach()
        wrong = wrong & t.masked_fill(t.isneginf(), 0).abs().unsqueeze(-1).flatten(1).sum(1).isfinite()
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        number = "NaN" if bool(value[index].isnan()) else "+inf"
        raise protocol_error(function, f"it returned {number} for batch index {index}, whose scores are valid")


def _unwrap(function: Any) -> Any:
    """Return the function, usually a method, inside functools.partial and functools.wraps."""
    while not hasattr(function, "__self__") and (hasattr(function, "func") or hasattr(function, "__wrapped__")):
        function = function.func if hasattr(function, "func") else function.__wrapped__
    return function


def _describe(function: Any) -> str:
    """Return the name of the function with the name of its oracle."""
    function = _unwrap(function)
    owner: Any = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "the function")
    return f"{name} of {owner.label()}" if hasattr(owner, "label") else name
