"""A MkDocs hook that writes the tables of docs/reference/options.md; mkdocs.yml lists the hook.

Each build makes the tables from the signatures and the docstrings of all built-in oracles, relaxations and
estimators.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import griffe

from structinf.calls.resolution import ORACLES, RELAXATIONS
from structinf.estimators.base import ESTIMATORS
from structinf.registry import Registry

PAGE = "reference/options.md"
MARK = re.compile(r"^<!-- options of (oracles|relaxations|estimators) -->$", re.MULTILINE)
REGISTRIES: dict[str, Registry[Any]] = {"oracles": ORACLES, "relaxations": RELAXATIONS, "estimators": ESTIMATORS}
ROLE = re.compile(r":\w+:`~?([^`<]+?)(?:\s*<[^`>]+>)?`")
OPTIONS_OF = re.compile(r"Options of :class:`([\w.]+)`")
SENTENCE = re.compile(r".+?\.(?=\s|$)|.+$", re.DOTALL)


class Option(NamedTuple):
    """A row of a table: the name, the type, the default and the description of an option."""

    name: str
    type: str
    default: str
    description: str


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Return the page with its tables."""
    if page.file.src_uri != PAGE:
        return markdown
    return MARK.sub(lambda mark: "\n\n".join(sections(REGISTRIES[mark[1]])), markdown)


def sections(registry: Registry[Any]) -> Iterator[str]:
    """Yield a heading, a link and a table for each built-in object of a registry."""
    without: list[str] = []
    for name in built_in_names(registry):
        factory = registry.factory(name)
        rows = list(options(factory))
        if not rows:
            without.append(f"`{name}`")
            continue
        first = f"`{name}` is made by [`{factory.__name__}`][{factory.__module__}.{factory.__qualname__}]."
        if not inspect.isclass(factory):
            first = f"`{name}` is made by the function `{factory.__name__}`."
        lines = [f"| `{option.name}` | {option.type} | {option.default} | {option.description} |" for option in rows]
        yield "\n".join(
            [f"### {name}", "", first, "", "| option | type | default | description |", "|---|---|---|---|", *lines]
        )
    if without:
        yield f"### Without options\n\n{', '.join(without)}."


def built_in_names(registry: Registry[Any]) -> list[str]:
    """Return the names declared by structinf itself."""
    points = entry_points(group=registry.entry_point_group)
    return sorted({point.name for point in points if point.dist is not None and point.dist.name == "structinf"})


def options(factory: Callable[..., Any]) -> Iterator[Option]:
    """Yield the options of ``factory``, described by its docstring or by the docstring of a base class."""
    described: dict[str, griffe.DocstringParameter] = {}
    for parameter in (p for c in reversed(lineage(factory)) for p in documented_parameters(c)):
        if parameter.name not in described or not parameter.description.startswith("As "):
            described[str(parameter.name)] = parameter
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        found = described.get(parameter.name)
        default = "required" if parameter.default is parameter.empty else f"`{shown(parameter.default)}`"
        annotation = re.sub(r'(?<="), (?=")', " or ", str(found.annotation or "")) if found else ""
        yield Option(
            parameter.name, plain(annotation), default, plain(first_sentence(found.description if found else ""))
        )


def lineage(factory: Callable[..., Any]) -> list[Any]:
    """Return a class, its bases and the classes whose options it takes, or a function alone."""
    if not inspect.isclass(factory):
        return [factory]
    others = [pkgutil.resolve_name(name) for name in OPTIONS_OF.findall(factory.__doc__ or "")]
    return [c for taken in (factory, *others) for c in taken.__mro__ if c is not object]


def documented_parameters(item: Any) -> Iterator[griffe.DocstringParameter]:
    """Yield the parameters in the docstring of ``item``, one for each name of a group."""
    text = inspect.cleandoc(vars(item).get("__doc__") or "" if inspect.isclass(item) else item.__doc__ or "")
    for section in griffe.parse_numpy(griffe.Docstring(text), warnings=False):
        if section.kind is griffe.DocstringSectionKind.parameters:
            yield from section.value


def shown(value: Any) -> str:
    """Format a default as in source code."""
    return getattr(value, "__name__", repr(value)) if callable(value) and not isinstance(value, type) else repr(value)


def first_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    found = SENTENCE.match(text.strip().split("\n\n")[0])
    return found[0] if found else ""


def plain(text: str) -> str:
    """Convert docstring text for a table cell."""
    text = ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", text).replace("``", "`")
    return " ".join(text.split()).replace("|", r"\|")
