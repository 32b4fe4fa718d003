"""Split the arguments of calls inside torch.compile into tensors and constants, and rebuild the arguments."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from .torch_private import mark_constant, value_of_scalar

__all__ = ["flatten", "has_no_parameters", "identity", "is_same_constant", "rebuild"]


def flatten(value: Any, tensors: list[Tensor], constants: list[Any]) -> Any:
    """Return the form of ``value`` for :func:`rebuild`; append its tensors and constants to the two lists.

    The compiler traces the function, and therefore compiles again when a constant changes.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return "tensor"
    if isinstance(value, tuple | list):
        kind = "list" if isinstance(value, list) else "tuple"
        return kind, (), tuple([flatten(each, tensors, constants) for each in value])
    if isinstance(value, dict):
        return "dict", tuple(value), tuple([flatten(each, tensors, constants) for each in value.values()])
    if isinstance(value, int | float):
        constants.append(value_of_scalar(value))
        return "constant"
    kind, names = "object", getattr(type(value), "settable", None)
    if hasattr(type(value), "__dataclass_fields__") and (own := _fields_of_new(identity(value), value)) is not None:
        kind, names = "new", own
    constants.append(type(value) if kind == "new" else value)
    if names is None:
        return "constant"
    return kind, names, tuple([flatten(getattr(value, name), tensors, constants) for name in names])


def identity(constant: Any) -> int:
    """Return the identity of an object, 0 for values without attributes.

    Objects created by the compiled program are placeholders with another identity.
    """
    return 0 if constant is None or isinstance(constant, str | int | float | type) else id(constant)


@mark_constant
def _fields_of_new(traced_identity: int, value: Any) -> tuple[str, ...] | None:
    """Return the fields of a frozen dataclass object created by the compiled program; None for other objects."""
    if traced_identity == identity(value) or not value.__dataclass_params__.frozen:
        return None
    return tuple(field.name for field in fields(value) if field.init)


def rebuild(form: Any, tensors: Iterator[Any], constants: Iterator[Any]) -> Any:
    """Return the value that :func:`flatten` split. Objects are copies with the attributes at the time of the split."""
    if form == "tensor":
        return next(tensors)
    if form == "constant":
        return next(constants)
    kind, names, parts = form
    base = next(constants) if kind in ("object", "new") else None
    values = [rebuild(part, tensors, constants) for part in parts]
    if base is None:
        return dict(zip(names, values, strict=True)) if kind == "dict" else {"list": list, "tuple": tuple}[kind](values)
    attributes = dict(zip(names, values, strict=True))
    if kind == "new":
        return base(**attributes)
    result = copy.copy(base)
    vars(result).update(attributes)  # neither checked nor registered again
    return result


def has_no_parameters(value: Any, seen: set[int]) -> bool:
    """Return whether ``value`` holds no differentiable tensor at any depth; False for functions, as these may hold
    tensors.

    A frozen parameter counts as differentiable: the compiled program would not notice a later ``requires_grad_()``.
    """
    if id(value) in seen or isinstance(value, type):
        return True
    if isinstance(value, Tensor):
        return not (value.requires_grad or isinstance(value, Parameter))
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return False
    seen.add(id(value))
    if isinstance(value, tuple | list | set | frozenset):
        parts = list(value)
    elif is_dataclass(value):
        # Fields only: other attributes are caches of earlier calls.
        parts = [getattr(value, field.name, None) for field in fields(value)]
    else:
        parts = list((value if isinstance(value, Mapping) else getattr(value, "__dict__", {})).values())
    return all(has_no_parameters(part, seen) for part in parts)


def is_same_constant(a: Any, b: Any) -> bool:
    """Return whether two constants are equal: objects by identity, text and numbers by value."""
    return a is b or (type(a) is type(b) and isinstance(a, str | int | float) and repr(a) == repr(b))
