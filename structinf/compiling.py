"""How the public calls behave inside torch.compile: as one node of the graph, or as one step that is not traced.

Tracing would go through solvers down to numba's own source. What returns tensors alone is one operator instead (see
:mod:`structinf.steps`): so the graph is whole, and values and gradients are those that there are without torch.compile.
The operator takes tensors alone; for all else (names, options, oracles) its key stands.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .steps import key_of, step

__all__ = ["one_step", "untraced"]

P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, left as it is by torch.compile, which breaks its graph there.

    Outside a compiled program this costs one flag. ``torch.compiler.disable`` would import the
    whole compiler here; this private twin of it waits until something is compiled.
    """
    hidden = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return hidden(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

    return call


def one_step(
    like: Callable[..., Any] | None = None, is_fixed: Callable[..., bool] = lambda *_, **__: True
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """What makes a function one node of torch.compile's graphs; outside of them it costs one flag.

    The function returns a tensor, or a tuple of them if its first argument is one. Its arguments are tensors, lists or
    tuples of them, and objects that do not change; gradients are those in its arguments. A call with an object that may
    hold other tensors to differentiate in (parameters, functions of the user's) is :func:`untraced`.

    Parameters
    ----------
    like : callable, optional
        From the same arguments, tensors of the result's shapes and dtypes, of which nothing else counts. By default the
        first argument.
    is_fixed : callable
        From the same arguments, with None for tensors, whether the result depends on them alone, so that it may be
        computed again for its gradient. A call for which it does not is :func:`untraced`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = f"{function.__module__}.{function.__qualname__}"
        _FUNCTIONS[name] = _Function(function, like or _first_of(function), is_fixed)
        hidden = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                return function(*args, **kwargs)
            tensors, places, constants = [], [], []
            for place, value in (*enumerate(args), *kwargs.items()):
                if isinstance(value, Tensor):
                    places.append((place, None))
                    tensors.append(value)
                elif isinstance(value, tuple | list) and value and all(isinstance(v, Tensor) for v in value):
                    places.append((place, len(value)))
                    tensors.extend(value)
                else:
                    places.append((place, -1))
                    constants.append(value)
            key, is_tuple = _enrolled(name, tuple(places), *constants)
            if key is None:
                return hidden(*args, **kwargs)
            found = step(key, tensors)
            return tuple(found) if is_tuple else found[0]

        return call

    return decorate


def _first_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What gives the first of the arguments that are ``function``'s."""

    def first(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args else kwargs[next(iter(inspect.signature(function).parameters))]

    return first


# ----------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Function:
    call: Callable[..., Any]
    like: Callable[..., Any]
    is_fixed: Callable[..., bool]


_FUNCTIONS: dict[str, _Function] = {}


@dataclass(frozen=True)
class _Call:
    """A call of one of the functions, but for its tensors.

    Places are positions and keywords, each with how many tensors there are: None for one by itself, −1 for a constant.
    """

    function: _Function
    places: tuple[tuple[int | str, int | None], ...]
    constants: tuple[Any, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _as_tuple(self._with(self.function.call, tensors))

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _as_tuple(self._with(self.function.like, tensors))

    @property
    def is_fixed(self) -> bool:
        return self._with(self.function.is_fixed, None)

    @property
    def is_tuple(self) -> bool:
        """Whether the first argument is a tuple of tensors, and so the result."""
        first = next(iter(inspect.signature(self.function.call).parameters))
        return any(place in (0, first) and count is not None and count >= 0 for place, count in self.places)

    def _with(self, function: Callable[..., Any], tensors: Sequence[Tensor] | None) -> Any:
        given, constants = None if tensors is None else iter(tensors), iter(self.constants)
        args, kwargs = [], {}
        for place, count in self.places:
            value = next(constants) if count == -1 else None if given is None else _taken(given, count)
            if isinstance(place, int):
                args.append(value)
            else:
                kwargs[place] = value
        return function(*args, **kwargs)


def _taken(given: Iterator[Tensor], count: int | None) -> Any:
    return next(given) if count is None else tuple(next(given) for _ in range(count))


def _as_tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


# ----------------------------------------------------------------------------- keys


def _enrolled(name: str, places: tuple[Any, ...], *constants: Any) -> tuple[str | None, bool]:
    """The key of such a call, None if it is no step; and whether its result is a tuple.

    The compiler calls it and takes the result for a constant as long as the arguments are the same.
    """
    made = _Call(_FUNCTIONS[name], places, constants)
    transformed = torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        is_step = not transformed and _holds_no_parameters(constants, set()) and made.is_fixed
    except Exception:
        is_step = False  # the call itself says best what is wrong with its arguments
    if not is_step:
        return None, False
    label = f"{name}({', '.join(f'{place}={count}' for place, count in places)}; {', '.join(map(repr, constants))})"
    return key_of(label, made, lambda other: all(map(_is_same, constants, other.constants))), made.is_tuple


# As torch.compiler.assume_constant_result, which imports the whole compiler.
_enrolled._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def _holds_no_parameters(value: Any, seen: set[int]) -> bool:
    """Whether no tensor in ``value``, at any depth, requires grad; of functions, which hide theirs, that is unknown."""
    if id(value) in seen or isinstance(value, type):
        return True
    if isinstance(value, Tensor):
        return not value.requires_grad
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return False
    seen.add(id(value))
    if isinstance(value, tuple | list | set | frozenset):
        parts = list(value)
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]  # and not what it remembers of earlier calls
    else:
        parts = list((value if isinstance(value, Mapping) else getattr(value, "__dict__", {})).values())
    return all(_holds_no_parameters(part, seen) for part in parts)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two constants stand for the same: objects by identity, and what is made of text and numbers by value."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    return isinstance(a, str | int | float) and repr(a) == repr(b)
