"""Keys of oracles: oracles with the same key have the same options."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import marshal
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .oracle import Oracle

__all__ = ["OptionKey", "option_key"]

_SCALARS = (type(None), bool, int, float, complex, str, bytes, Enum, np.generic, torch.dtype, torch.device)


class OptionKey(NamedTuple):
    """The key of an oracle's class and options.

    Attributes
    ----------
    digest : str
        A hash of the class and the options.
    objects : tuple
        The options that the hash knows by their identity, such as functions. The key keeps them alive, so that no other
        object takes the same identity. If there are none, other processes find the same hash.
    """

    digest: str
    objects: tuple[Any, ...]


def option_key(oracle: Oracle) -> OptionKey:
    """Return the key of the class and the options of ``oracle``, without its instance data."""
    objects: list[Any] = []
    digest = hashlib.blake2b(digest_size=16)
    for piece in itertools.chain(_content(type(oracle), objects), _content(_options(oracle), objects)):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return OptionKey(digest.hexdigest(), tuple(objects))


def _options(oracle: Oracle) -> dict[str, Any]:
    if dataclasses.is_dataclass(oracle):
        return _fields(oracle)
    kind = type(oracle)
    # A cached property follows from the other attributes.
    return {
        name: value
        for name, value in vars(oracle).items()
        if name != "bound" and not isinstance(getattr(kind, name, None), functools.cached_property)
    }


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}


def _content(value: Any, objects: list[Any]) -> Iterator[bytes]:
    """Yield bytes that determine ``value``, and append the objects whose identity is among these bytes."""
    if isinstance(value, type) and _is_importable(value):
        yield _name(value)
        return
    yield from _content(type(value), objects)
    if isinstance(value, _SCALARS):
        yield repr(value).encode()
    elif isinstance(value, Tensor) and value.layout is torch.strided:
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        yield from _content(list(itertools.chain(*value.items())), objects)
    elif isinstance(value, list | tuple):
        yield str(len(value)).encode()
        for item in value:
            yield from _content(item, objects)
    elif isinstance(value, Oracle):
        yield from _content(_options(value), objects)
        yield from _content(dict(value.bound), objects)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _content(_fields(value), objects)
    elif isinstance(value, FunctionType) and value.__closure__ is None and _is_importable(value):
        yield _name(value)
        # Format 2 has no references, which would depend on the history of the process.
        yield marshal.dumps(value.__code__, 2)
        yield from _content([value.__defaults__, value.__kwdefaults__], objects)
    elif isinstance(value, BuiltinFunctionType) and _is_importable(value):
        yield _name(value)
    else:
        objects.append(value)
        yield str(id(value)).encode()


def _name(value: Any) -> bytes:
    return f"{value.__module__}.{value.__qualname__}".encode()


def _is_importable(value: Any) -> bool:
    if isinstance(value, type) and value.__module__ == "builtins":
        return True
    return getattr(sys.modules.get(value.__module__ or ""), value.__qualname__, None) is value
