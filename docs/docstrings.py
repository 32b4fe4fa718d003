"""Docstrings in Markdown, for the reference: Sphinx's roles, reStructuredText's tables and groups of parameters.

An extension of griffe, which mkdocs.yml names. The docstrings themselves stay as ``help`` shows them.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`([^`<]+?)(?:\s*<([^`>]+)>)?`")
TABLE = re.compile(
    r"^(?P<indent> *)(?P<rule>=+(?: +=+)+)\n"
    r"(?:(?P<head>(?:(?! *=+ ).+\n)+)(?P=indent)(?P=rule)\n)?"
    r"(?P<body>(?:(?! *=+ ).+\n)+)(?P=indent)(?P=rule)$",
    re.MULTILINE,
)
PARAMETERS = re.compile(r"(?<=^Parameters\n-{10}\n).*?(?=^\w[\w ]*\n---|\Z)", re.MULTILINE | re.DOTALL)
GROUP = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+)(?P<rest>(?: :.*)?(?:\n+ .*)*)", re.MULTILINE)
STARRED = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of all that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, obj)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """``*args`` and ``**options`` have no defaults, which would be shown; shapes stand in the text."""
        if str(func.returns).startswith("jaxtyping."):
            func.returns = "Tensor"
        for parameter in func.parameters:
            if parameter.kind in STARRED:
                parameter.default = None


def to_markdown(text: str, scope: griffe.Object) -> str:
    """The docstring ``text`` of ``scope``."""
    text = PARAMETERS.sub(lambda section: GROUP.sub(split_group, section[0]), text)
    text = TABLE.sub(table, text)
    return ROLE.sub(lambda role: link(role[1], role[2] or role[1], scope), text)


# ------------------------------------------------------------------------------------------ roles


def link(title: str, target: str, scope: griffe.Object) -> str:
    """A link to what ``target`` names in ``scope``, if the reference has it; else the ``title`` alone, as code."""
    shown = title.rpartition(".")[2] if title.startswith("~") else title.lstrip(".")
    path = resolve_name(target.lstrip("~"), scope)
    code = f"<code>{shown}</code>"
    return f'<autoref identifier="{path}" optional>{code}</autoref>' if path else code


def resolve_name(name: str, scope: griffe.Object) -> str | None:
    """The full path of ``name``, which may begin with a dot: in the same package."""
    if name.startswith("."):
        package = scope.module if scope.module.is_init_module else scope.module.parent
        return f"{package.path}{name}" if package else None
    first, dot, rest = name.partition(".")
    if first in scope.modules_collection:
        return name
    for place in (scope, scope.parent):
        if isinstance(place, griffe.Class) and first in place.inherited_members:
            return place.inherited_members[first].canonical_path + dot + rest
    try:
        return scope.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        return None


# ------------------------------------------------------------------------------ groups and tables


def split_group(group: re.Match[str]) -> str:
    """An entry for each name of a ``group``, so that each has the type and the default of its own in the signature."""
    return "\n".join(name + group["rest"] for name in group["names"].split(", "))


def table(found: re.Match[str]) -> str:
    """A simple table of reStructuredText, in which a line without a first column goes on with the row above."""
    starts = [len(found["indent"]) + column.start() for column in re.finditer("=+", found["rule"])]
    head = table_rows(found["head"] or "", starts) or [[""] * len(starts)]
    rows = [*head, ["---"] * len(starts), *table_rows(found["body"], starts)]
    return "\n".join(f"{found['indent']}| {' | '.join(row)} |" for row in rows)


def table_rows(lines: str, starts: list[int]) -> list[list[str]]:
    """The cells of each row."""
    rows: list[list[str]] = []
    for line in lines.splitlines():
        cells = [line[start:end].strip().replace("|", r"\|") for start, end in pairwise([*starts, None])]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    return rows
