"""Decorators of public calls: how each call behaves inside torch.compile.

Tracing would go through solvers down to numba's source. A call that returns only tensors becomes one custom operator
(:mod:`.custom_op`), so that the graph has no break, and values and gradients are the same as without torch.compile.
The operator takes tensors; a key stands for all other arguments (names, options, oracles).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .call_arguments import flatten, holds_no_parameters, identity, is_same, rebuilt
from .custom_op import key_of, number_step, step

__all__ = ["SOME_TENSOR", "as_custom_op", "disable_compile"]

P = ParamSpec("P")
T = TypeVar("T")


class _SomeTensor:
    """In place of a tensor, of which nothing is known."""

    def __repr__(self) -> str:
        return "a tensor"


SOME_TENSOR = _SomeTensor()


def disable_compile(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, left as it is by torch.compile, which breaks its graph there.

    Outside a compiled program this costs one flag. ``torch.compiler.disable`` would import the
    whole compiler here; this private twin of it waits until something is compiled.
    """
    hidden = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return (hidden if torch.compiler.is_compiling() or _is_watched() else function)(*args, **kwargs)

    return call


def _is_watched() -> bool:
    """Whether the compiler may trace what is called here, although it does not trace the call itself.

    Within the transforms of torch.func it leaves a function whose graph breaks, and tries those that this one calls.
    """
    return torch._C._are_functorch_transforms_active() and "torch._dynamo" in sys.modules


def as_custom_op(
    like: Callable[..., Any] | None = None,
    is_fixed: Callable[..., bool] = lambda *_, **__: True,
    is_number: Callable[..., bool] = lambda *_, **__: False,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """What makes a function one node of torch.compile's graphs; outside of them it costs one flag.

    The function returns a tensor, or a tuple of them if its first argument is one. Its arguments are tensors, lists,
    tuples and dicts, and objects that do not change but in the attributes that their class names as ``settable``.
    Gradients are those in its arguments and these attributes. A call with an object that may hold other tensors to
    differentiate in (parameters, functions of the user's) is :func:`disable_compile`.

    Parameters
    ----------
    like : callable, optional
        From the same arguments, tensors of the result's shapes and dtypes, of which nothing else counts. By default the
        first argument.
    is_fixed : callable
        From the same arguments, with SOME_TENSOR for tensors, whether the result depends on them alone, so that it may
        be computed again for its gradient. If it returns False, the call breaks the graph, as under
        :func:`disable_compile`. It raises the errors of invalid arguments.
    is_number : callable
        From the same arguments, whether the result is one number, which then comes with its gradient.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = f"{function.__module__}.{function.__qualname__}"
        _FUNCTIONS[name] = _Function(function, like or _first_of(function), is_fixed, is_number)
        hidden = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                return (hidden if _is_watched() else function)(*args, **kwargs)
            tensors, constants = [], []
            form = flatten((args, kwargs), tensors, constants)
            key, kind, error = _enrolled(name, form, tuple([identity(each) for each in constants]), *constants)
            if error:
                raise RuntimeError(error)
            if key is None:
                return hidden(*args, **kwargs)
            if kind == "number":
                return number_step(key, tensors)
            found = step(key, tensors)
            return tuple(found) if kind == "tuple" else found[0]

        return call

    return decorate


def _first_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What gives the first of the arguments that are ``function``'s."""
    name = next(iter(inspect.signature(function).parameters))
    return lambda *args, **kwargs: args[0] if args else kwargs[name]


# ----------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Function:
    call: Callable[..., Any]
    like: Callable[..., Any]
    is_fixed: Callable[..., bool]
    is_number: Callable[..., bool]


_FUNCTIONS: dict[str, _Function] = {}


@dataclass(frozen=True)
class _Call:
    """A call of one of the functions, but for its tensors."""

    function: _Function
    form: Any
    constants: tuple[Any, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _as_tuple(self._of(self.function.call, tensors))

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            return _as_tuple(self._of(self.function.like, tensors))
        except Exception as error:
            if type(error).__module__.startswith("torch"):
                raise  # from one part of the compiler to another
            # The call itself says best what is wrong with its tensors, once it runs.
            return tuple(self._first(tensors) if self.kind() == "tuple" else tensors[:1])

    def is_fixed(self) -> bool:
        unknown = itertools.repeat(SOME_TENSOR)
        return self._of(self.function.is_fixed, unknown) and holds_no_parameters(self._arguments(unknown), set())

    def kind(self) -> str:
        """Of the result: a tuple, as the first argument then is, a number, or a tensor."""
        unknown = itertools.repeat(SOME_TENSOR)
        if isinstance(self._first(unknown), tuple | list):
            return "tuple"
        return "number" if self._of(self.function.is_number, unknown) else "tensor"

    def _first(self, tensors: Iterable[Any]) -> Any:
        return self._of(_first_of(self.function.call), tensors)

    def _of(self, function: Callable[..., Any], tensors: Iterable[Any]) -> Any:
        args, kwargs = self._arguments(tensors)
        return function(*args, **kwargs)

    def _arguments(self, tensors: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return rebuilt(self.form, iter(tensors), iter(self.constants))


def _as_tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


# ----------------------------------------------------------------------------- keys


def _enrolled(name: str, form: Any, identities: tuple[int, ...], *constants: Any) -> tuple[str | None, str, str]:
    """The key of such a call, None if it is no step; what kind its result is of; what is wrong with it, if anything.

    The compiler calls it and takes the result for a constant as long as the arguments are the same.
    """
    # Of an object that the compiled program itself makes, the compiler has but the shell, of another identity.
    is_whole = identities == tuple(map(identity, constants))
    if not is_whole or torch._C._are_functorch_transforms_active():
        return None, "", ""
    made = _Call(_FUNCTIONS[name], form, constants)
    try:
        if not made.is_fixed():
            return None, "", ""
    except Exception as error:
        return None, "", f"{type(error).__name__}: {error}"
    label = f"{name}{form}({', '.join(map(repr, constants))})"
    key = key_of(label, made, lambda other: all(map(is_same, constants, other.constants)))
    return key, made.kind(), ""


# As torch.compiler.assume_constant_result, which imports the whole compiler.
_enrolled._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
