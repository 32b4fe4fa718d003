"""Convert docstrings to Markdown for the reference: Sphinx roles, reStructuredText tables and groups of parameters.

A griffe extension, listed in mkdocs.yml. ``help`` shows the docstrings unchanged.
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
    """Rewrites the docstrings of all loaded objects."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, obj)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Remove the defaults of ``*args`` and ``**options``, which the page would show, and shorten jaxtyping
        annotations.
        """
        if str(func.returns).startswith("jaxtyping."):
            func.returns = "Tensor"
        for parameter in func.parameters:
            if parameter.kind in STARRED:
                parameter.default = None


def to_markdown(text: str, scope: griffe.Object) -> str:
    """Convert the docstring ``text`` of ``scope`` to Markdown."""
    text = PARAMETERS.sub(lambda section: GROUP.sub(split_group, section[0]), text)
    text = TABLE.sub(table, text)
    return ROLE.sub(lambda role: link(role[1], role[2] or role[1], scope), text)


# ------------------------------------------------------------------------------------------ roles


def link(title: str, target: str, scope: griffe.Object) -> str:
    """Return a link to ``target``, resolved in ``scope``, if the reference has an entry; else ``title`` as code."""
    shown = title.rpartition(".")[2] if title.startswith("~") else title.lstrip(".")
    path = resolve_name(target.lstrip("~"), scope)
    code = f"<code>{shown}</code>"
    return f'<autoref identifier="{path}" optional>{code}</autoref>' if path else code


def resolve_name(name: str, scope: griffe.Object) -> str | None:
    """Return the full path of ``name``. A name with a leading dot belongs to the package of ``scope``."""
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
    """Return an entry for each name of a ``group``, so that the signature shows a type and a default for each name."""
    return "\n".join(name + group["rest"] for name in group["names"].split(", "))


def table(found: re.Match[str]) -> str:
    """Convert a simple reStructuredText table; a line with an empty first column continues the row above."""
    starts = [len(found["indent"]) + column.start() for column in re.finditer("=+", found["rule"])]
    head = table_rows(found["head"] or "", starts) or [[""] * len(starts)]
    rows = [*head, ["---"] * len(starts), *table_rows(found["body"], starts)]
    return "\n".join(f"{found['indent']}| {' | '.join(row)} |" for row in rows)


def table_rows(lines: str, starts: list[int]) -> list[list[str]]:
    """Return the cells of each row."""
    rows: list[list[str]] = []
    for line in lines.splitlines():
        cells = [line[start:end].strip().replace("|", r"\|") for start, end in pairwise([*starts, None])]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    return rows
