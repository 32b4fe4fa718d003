"""Checks of values that a plugin's function of θ returns, such as ``log_partition``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import PluginError

__all__ = ["check_function_values"]


def check_function_values(function: Any, value: Any, batch: int, *, differentiable: bool = False) -> None:
    """Raise PluginError unless the ``value`` of ``function`` is a floating-point tensor of shape (batch,).

    Parameters
    ----------
    function : callable
        The function, usually a method of an oracle, for the message.
    value : object
        The result of the function.
    batch : int
        The number of instances.
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
    else:
        return
    raise PluginError(
        f"{_describe(function)} violates its protocol: {wrong}; run structinf.testing.check_oracle to test the oracle"
    )


def _describe(function: Any) -> str:
    """Return the name of the function with the name of its oracle."""
    while not hasattr(function, "__self__") and (hasattr(function, "func") or hasattr(function, "__wrapped__")):
        function = function.func if hasattr(function, "func") else function.__wrapped__
    owner: Any = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "the function")
    return f"{name} of {owner.label()}" if hasattr(owner, "label") else name
