"""Arguments of calls inside torch.compile, taken apart into tensors and constants, and made again from them."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter

__all__ = ["flatten", "holds_no_parameters", "identity", "is_same", "rebuilt"]


def flatten(value: Any, tensors: list[Tensor], constants: list[Any]) -> Any:
    """How ``value`` is made of tensors and constants, which are put into the lists.

    The compiler traces it, and so compiles anew when a constant is another one. It makes a symbol of a number that
    changes, unless that is asked for its value.
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
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # takes seconds, and is there by now

        constants.append(guard_scalar(value))
        return "constant"
    kind, names = "object", getattr(type(value), "settable", None)
    if hasattr(type(value), "__dataclass_fields__") and (made_of := _made_of(identity(value), value)) is not None:
        kind, names = "new", made_of
    constants.append(type(value) if kind == "new" else value)
    if names is None:
        return "constant"
    return kind, names, tuple([flatten(getattr(value, name), tensors, constants) for name in names])


def identity(constant: Any) -> int:
    """That of an object, 0 for what has no attributes.

    Of an object that the compiled program itself makes, the compiler has but an empty shell, of another identity than
    it says.
    """
    return 0 if constant is None or isinstance(constant, str | int | float | type) else id(constant)


def _made_of(said: int, value: Any) -> tuple[str, ...] | None:
    """The fields that say all of a dataclass's object that the compiled program makes; None of other objects."""
    if said == identity(value) or not value.__dataclass_params__.frozen:
        return None
    return tuple(field.name for field in fields(value) if field.init)


# As torch.compiler.assume_constant_result, which imports the whole compiler.
_made_of._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def rebuilt(form: Any, tensors: Iterator[Any], constants: Iterator[Any]) -> Any:
    """What :func:`flatten` took apart; of objects, copies with the attributes that they had then."""
    if form == "tensor":
        return next(tensors)
    if form == "constant":
        return next(constants)
    kind, names, parts = form
    base = next(constants) if kind in ("object", "new") else None
    values = [rebuilt(part, tensors, constants) for part in parts]
    if base is None:
        return dict(zip(names, values, strict=True)) if kind == "dict" else {"list": list, "tuple": tuple}[kind](values)
    named = dict(zip(names, values, strict=True))
    if kind == "new":
        return base(**named)
    held = copy.copy(base)
    vars(held).update(named)  # neither checked nor registered again
    return held


def holds_no_parameters(value: Any, seen: set[int]) -> bool:
    """Whether no tensor in ``value``, at any depth, is to be differentiated in; of functions, that is unknown.

    A frozen parameter may be unfrozen, of which the compiled program would hear nothing.
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
        # And not what it remembers of earlier calls.
        parts = [getattr(value, field.name, None) for field in fields(value)]
    else:
        parts = list((value if isinstance(value, Mapping) else getattr(value, "__dict__", {})).values())
    return all(holds_no_parameters(part, seen) for part in parts)


def is_same(a: Any, b: Any) -> bool:
    """Whether two constants stand for the same: objects by identity, text and numbers by value."""
    return a is b or (type(a) is type(b) and isinstance(a, str | int | float) and repr(a) == repr(b))
