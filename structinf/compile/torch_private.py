"""Every private or unstable name of torch that the library uses, checked with torch 2.13.0.

When torch moves one of these names, this module is the only one to change: nothing else imports from ``torch._C``,
``torch._dynamo`` or another private module. A public name replaces an entry as soon as torch has one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils import _pytree as pytree

__all__ = [
    "disable_dynamo",
    "functorch_is_active",
    "has_saved_tensor_hooks",
    "is_dynamo_imported",
    "is_functorch_wrapped_tensor",
    "is_jit_tracing",
    "mark_constant",
    "pytree",
    "standard_gamma",
    "value_of_scalar",
]

F = TypeVar("F", bound=Callable[..., Any])


def disable_dynamo(function: F) -> F:
    """``function``, at which torch.compile breaks its graph.

    ``torch.compiler.disable`` imports the whole compiler; this name waits until something is compiled.
    """
    return cast(F, torch._disable_dynamo(function))  # pyright: ignore[reportPrivateImportUsage]


def is_dynamo_imported() -> bool:
    """Whether the compiler has been imported, so that it may be tracing."""
    return "torch._dynamo" in sys.modules


def mark_constant(function: F) -> F:
    """``function``, whose result torch.compile keeps as a constant for equal arguments.

    It does what ``torch.compiler.assume_constant_result`` does, which imports the whole compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def value_of_scalar(value: float) -> float:
    """A number that torch.compile may have made symbolic, as a constant on which the compiled program depends."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # takes seconds to import, once, while compiling

    return guard_scalar(value)


def functorch_is_active() -> bool:
    """Whether the call is inside a transform of torch.func (grad, vmap, vjp, jvp, ...)."""
    return torch._C._are_functorch_transforms_active()


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace is recording."""
    return torch._C._is_tracing()


def has_saved_tensor_hooks() -> bool:
    """Whether autograd calls hooks for the tensors that it saves."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return autograd._top_saved_tensors_default_hooks(True) is not None


def standard_gamma(concentration: Tensor, generator: torch.Generator | None) -> Tensor:
    """Samples of Gamma(concentration, 1); unlike torch.distributions.Gamma, it takes a generator."""
    return torch._standard_gamma(concentration, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
