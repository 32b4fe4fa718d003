"""A check that a function of structures does not combine the structures with rows of a tensor from elsewhere."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError

__all__ = ["check_rows", "reads_rows"]

_DEPTH = 3  # of functions, modules and lists within each other

_MOST_REMEMBERED = 1000

_checked: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
"""For the code of functions, and other callables, that have passed the check: hashes of what they read elsewhere."""


def reads_rows(f: Callable[..., Any], count: int) -> bool:
    """Return whether f reads a tensor with a dimension of ``count``. A call of f may store its arguments as well."""
    return count > 1 and any(count in shape for shape in _shapes(f, _DEPTH))


def check_rows(f: Callable[..., Any], call: Callable[[list[int]], Any], count: int) -> None:
    """Raise InvalidInputError if f works only for ``count`` structures, the number of rows of a tensor that f reads.

    Such a function pairs structures with rows that may belong to other instances. For other numbers of structures the
    shapes differ, so that f fails. The check calls f with two or three structures, once for each function and each
    signature of the data that it reads: the shapes of tensors, and integers and strings. It is necessary only if
    :func:`reads_rows`.

    Parameters
    ----------
    f : callable
        The function of the user.
    call : callable
        Returns f at the structures with the given indices.
    count : int
        The number of structures for which f returned one number each.
    """
    if _is_checked(f):
        return
    index = [0, count - 1, *([0] if count == 2 else [])]
    try:
        with torch.no_grad(), torch.random.fork_rng(range(torch.cuda.device_count()) if _uses_cuda() else []):
            found = call(index)
        wrong = None if isinstance(found, Tensor) and found.shape == (len(index),) else "not one number for each"
    except Exception as error:
        wrong = f"an error: {error}"
    if wrong is not None:
        raise InvalidInputError(
            f"f works for exactly {count} structures, the number of rows of a tensor that f reads; for {len(index)} "
            f"structures it gave {wrong[:200]}. If the tensor has a row for each instance, pass it as inputs=, and f "
            "receives the row of each structure's instance as another argument"
        )
    _remember(f)


def _is_checked(f: Callable[..., Any]) -> bool:
    try:
        return hash(_signature(f, _DEPTH)) in _checked.get(_code_of(f), ())
    except TypeError:  # not hashable, or without weak references
        return False


def _remember(f: Callable[..., Any]) -> None:
    with contextlib.suppress(TypeError):
        signatures = _checked.setdefault(_code_of(f), set())
        if len(signatures) >= _MOST_REMEMBERED:  # of a function that reads a number of each step of training
            signatures.clear()
        signatures.add(hash(_signature(f, _DEPTH)))


def _uses_cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _code_of(f: Any) -> Any:
    """Return the code of the function f, which is the same in each step of training, or another callable itself."""
    while isinstance(f, functools.partial):
        f = f.func
    return getattr(getattr(f, "__func__", f), "__code__", f)


def _signature(value: Any, depth: int) -> Any:
    """Return what distinguishes functions of the same code: the shapes, integers, strings and code they read."""
    if isinstance(value, Tensor | np.ndarray):
        return tuple(value.shape)
    if value is None or isinstance(value, bool | int | str):
        return type(value), value
    own = getattr(value, "__code__", type(value))
    return (own, *(_signature(other, depth - 1) for other in _held(value))) if depth > 0 else own


def _shapes(value: Any, depth: int) -> Iterator[tuple[int, ...]]:
    """Return the shapes of the tensors and arrays that ``value`` holds, or reads if it is a function."""
    if isinstance(value, Tensor | np.ndarray):
        yield tuple(value.shape)
    elif depth > 0:
        for other in _held(value):
            yield from _shapes(other, depth - 1)


def _held(value: Any) -> Iterator[Any]:
    """Return the values that a function reads from elsewhere, or that a container or object holds."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, list | tuple):
        yield from value[:100]
    elif isinstance(value, dict):
        yield from list(value.values())[:100]
    elif isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers(), *vars(value).values())
    elif hasattr(value, "__func__"):  # a bound method
        yield from (value.__self__, value.__func__)
    elif hasattr(value, "__code__"):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # an empty cell
                continue
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        scope = value.__globals__
        yield from (scope[name] for name in value.__code__.co_names if name in scope and not _is_module(scope[name]))
    elif not isinstance(value, type) and not _is_module(value):
        yield from list(getattr(value, "__dict__", {}).values())[:100]


def _is_module(value: Any) -> bool:
    return isinstance(value, type(torch))
