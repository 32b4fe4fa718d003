"""The type checker that jaxtyping calls: it looks at shapes only, and leaves other types to pyright.

General run-time checkers trip over typing.Self, protocols and string annotations, which say
nothing about shapes.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from jaxtyping import AbstractArray
from typeguard import check_type

__all__ = ["annotated_modules", "checked"]


def annotated_modules() -> Iterator[str]:
    """Modules of the library with shapes in their annotations; imports none of them."""
    for package in ("structinf", "structinf_oracles"):
        yield from _annotated(package, importlib.util.find_spec(package).submodule_search_locations)


def _annotated(package: str, folders: list[str]) -> Iterator[str]:
    for folder in folders:
        for module in pkgutil.iter_modules([folder]):
            name, path = f"{package}.{module.name}", Path(folder, module.name)
            if module.ispkg:
                yield from _annotated(name, [str(path)])
            elif "jaxtyping." in path.with_suffix(".py").read_text("utf-8"):
                yield name


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with a TypeError where an argument or result is not of its annotated shape."""
    signature = inspect.signature(function)
    hints = {p.name: p.annotation for p in signature.parameters.values() if _has_shape(p.annotation)}
    result_hint = signature.return_annotation if _has_shape(signature.return_annotation) else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints:
                check_type(value, hints[name])
        result = function(*args, **kwargs)
        return result if result_hint is None else check_type(result, result_hint)

    return call


def _has_shape(hint: Any) -> bool:
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or any(map(_has_shape, get_args(hint)))
