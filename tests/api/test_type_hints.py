"""Annotations of public names are types at run time."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import structinf
from structinf import alignments, attention, distributions, dp, estimators, noise, plot, simplex, testing

MODULES = (structinf, alignments, attention, distributions, dp, estimators, noise, plot, simplex, testing)
PUBLIC = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}


def annotated(item: Any) -> Iterator[Any]:
    """A function, or a class with the functions and properties of its own."""
    if inspect.isclass(item):
        yield item
        for member in vars(item).values():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield function
    elif inspect.isfunction(item):
        yield item


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_type_hints_of_public_names_can_be_evaluated(name: str) -> None:
    for item in annotated(PUBLIC[name]):
        typing.get_type_hints(item, include_extras=True)
