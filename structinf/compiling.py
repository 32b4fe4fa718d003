"""How the public calls behave inside torch.compile: as one step that is not traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["untraced"]

P = ParamSpec("P")
T = TypeVar("T")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, left as it is by torch.compile, which would otherwise trace solvers down to numba's own source.

    Outside a compiled program this costs one flag. ``torch.compiler.disable`` would import the
    whole compiler here; this private twin of it waits until something is compiled.
    """
    hidden = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return hidden(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

    return call
