"""All private or unstable names of torch used by the library, checked with torch 2.13.0.

If torch moves a private name, only this module changes: no other module imports from ``torch._C``, ``torch._dynamo`` or
other private modules. A public name replaces an entry as soon as torch has a public name.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils import _pytree as pytree

__all__ = [
    "disable_dynamo",
    "functorch_is_active",
    "has_forward_derivative",
    "has_saved_tensor_hooks",
    "is_dynamo_imported",
    "is_fake_tensor",
    "is_functorch_wrapped_tensor",
    "is_jit_tracing",
    "mark_constant",
    "pytree",
    "requires_grad_in_transform",
    "set_grad_enabled",
    "standard_gamma",
    "value_of_scalar",
    "without_fake_tensors",
]

F = TypeVar("F", bound=Callable[..., Any])


def disable_dynamo(function: F) -> F:
    """Return ``function`` marked as a graph break for torch.compile.

    ``torch.compiler.disable`` imports the whole compiler. The private name postpones the import to the compilation.
    """
    return cast(F, torch._disable_dynamo(function))  # pyright: ignore[reportPrivateImportUsage]


def is_dynamo_imported() -> bool:
    """Return whether the compiler is imported, and therefore may be tracing."""
    return "torch._dynamo" in sys.modules


def is_fake_tensor(t: Tensor) -> bool:
    """Return whether ``t`` has a shape but no values, as inside a FakeTensorMode."""
    return type(t).__name__ == "FakeTensor"  # by name, because the import of the class is slow


def mark_constant(function: F) -> F:
    """Return ``function``, marked so that torch.compile keeps the result as a constant for equal arguments.

    The effect is the same as of ``torch.compiler.assume_constant_result``, without importing the whole compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def value_of_scalar(value: float) -> float:
    """Return a number, symbolic inside torch.compile, as a constant guarded by the compiled program."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # a slow import, only while compiling

    return guard_scalar(value)


def without_fake_tensors() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which new tensors have values, while torch.compile computes shapes."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily  # a slow import, only while compiling

    return unset_fake_temporarily()


def functorch_is_active() -> bool:
    """Return whether the call is inside a transform of torch.func (grad, vmap, vjp, jvp, ...)."""
    return torch._C._are_functorch_transforms_active()


def requires_grad_in_transform(t: Tensor) -> bool:
    """Return whether autograd or a transform of torch.func, at any level, differentiates with respect to ``t``."""
    while not t.requires_grad and is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t.requires_grad


def has_forward_derivative(t: Tensor) -> bool:
    """Return whether ``t`` is a dual tensor of torch.autograd.forward_ad, with a derivative in forward mode."""
    forward_ad = torch.autograd.forward_ad
    # Outside of a dual level, the check is one comparison.
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace is recording."""
    return torch._C._is_tracing()


def has_saved_tensor_hooks() -> bool:
    """Return whether hooks for saved tensors are set."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return autograd._top_saved_tensors_default_hooks(True) is not None


def set_grad_enabled(enabled: bool) -> None:
    """Let autograd record operations, or not. The contexts of torch take 2 µs longer."""
    torch._C._set_grad_enabled(enabled)


def standard_gamma(concentration: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw from Gamma(concentration, 1). Unlike torch.distributions.Gamma, the function takes a generator."""
    return torch._standard_gamma(concentration, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
