"""Arguments of calls inside torch.compile, taken apart into tensors and constants, and rebuilt from them."""

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
    """The form of ``value``, for :func:`rebuild`; its tensors and constants are appended to the two lists.

    The compiler traces this function, so that it compiles again when a constant changes.
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
    """The identity of an object, 0 for values without attributes.

    For an object that the compiled program creates, the compiler has a placeholder of another identity.
    """
    return 0 if constant is None or isinstance(constant, str | int | float | type) else id(constant)


@mark_constant
def _fields_of_new(traced_identity: int, value: Any) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass object that the compiled program creates; None for all other objects."""
    if traced_identity == identity(value) or not value.__dataclass_params__.frozen:
        return None
    return tuple(field.name for field in fields(value) if field.init)


def rebuild(form: Any, tensors: Iterator[Any], constants: Iterator[Any]) -> Any:
    """The value that :func:`flatten` took apart; objects are copies with the attributes of that time."""
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
    """Whether ``value`` holds, at any depth, no tensor to differentiate in; False for functions, which may.

    A frozen parameter counts, since the compiled program would not notice when it is unfrozen.
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
    """Whether two constants are equal: objects by identity, text and numbers by value."""
    return a is b or (type(a) is type(b) and isinstance(a, str | int | float) and repr(a) == repr(b))
