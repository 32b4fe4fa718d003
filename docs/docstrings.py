"""Convert docstrings to Markdown for the reference, and complete the parameters of methods.

A griffe extension, listed in mkdocs.yml. ``help`` shows the docstrings unchanged.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
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
SECTION = re.compile(r"^\w[\w ]*\n-{3,}$", re.MULTILINE)
# Arguments with one meaning in all methods. A method whose docstring is a single sentence need not describe them.
CONVENTIONS = {
    "binary": "Whether to add the entropy Σ −(1 − μ) log (1 − μ) of inactive parts.",
    "event_shape": "The event dimensions of θ; a tuple of them if θ is a tuple.",
    "generator": "The only source of randomness, if given.",
    "n": "The number of copies or samples.",
    "k": "The number of structures.",
    "labels": "Integer labels, (B, ...).",
    "like": "Scores whose form and dtype the result takes.",
    "oracle": "The set Y of structures, with its instance data.",
    "r": "A tensor or tuple in the form of the readout.",
    "regularizer": "Ω of the choices in the recursion.",
    "sample_shape": "The leading dimensions of the result, one sample each.",
    "theta": "Scores θ of the parts: a tensor, or a tuple of tensors.",
    "warm_start": "An earlier solution of a problem of the same shape.",
    "y": "Structures or means in the form of θ.",
}
STARRED = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of all loaded objects."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, obj)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Describe the parameters of methods and constructors whose docstring has no description of them."""
        # griffe runs its own extension last, but constructors of dataclasses are needed here.
        griffe.DataclassesExtension().on_package(pkg=pkg)
        for owner, item in classes_and_methods(pkg):
            missing = missing_parameters(owner, item)
            if missing and item.docstring:
                item.docstring.value = with_parameters(item.docstring.value, missing)

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


# ------------------------------------------------------------------------ missing parameters


def classes_and_methods(module: griffe.Module) -> Iterator[tuple[griffe.Class, griffe.Class | griffe.Function]]:
    """Yield each class below ``module``, base classes first, with itself and with each of its public methods."""
    for found in sorted(classes_of(module), key=lambda found: len(found.mro())):
        yield found, found
        for name, member in found.members.items():
            if isinstance(member, griffe.Function) and not name.startswith("_"):
                yield found, member


def classes_of(module: griffe.Module) -> Iterator[griffe.Class]:
    """Yield the classes defined in ``module`` and its submodules."""
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes_of(member)


def missing_parameters(owner: griffe.Class, item: griffe.Class | griffe.Function) -> dict[str, str]:
    """Return a description of each parameter that the docstring of ``item`` does not describe, as far as known.

    The description of a constructor's parameter comes from a base class of ``owner``. The description of a method's
    parameter comes from the method that ``item`` overrides, or from CONVENTIONS.
    """
    known = {} if item is owner else dict(CONVENTIONS)
    for base in reversed(owner.mro()):
        overridden = base if item is owner else base.members.get(item.name)
        if isinstance(overridden, griffe.Class | griffe.Function):
            known |= described_parameters(overridden)
    own = described_parameters(item)
    names = [parameter.name for parameter in item.parameters if parameter.name not in ("self", "cls")]
    return {name: known[name] for name in names if name not in own and name in known}


def described_parameters(item: griffe.Class | griffe.Function) -> dict[str, str]:
    """Return the description of each parameter or attribute that the docstring of ``item`` describes."""
    return {
        str(parameter.name).lstrip("*"): parameter.description
        for section in (item.docstring.parse("numpy", warnings=False) if item.docstring else [])
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
        for parameter in section.value
        if parameter.description
    }


def with_parameters(text: str, descriptions: dict[str, str]) -> str:
    """Add ``descriptions`` to the section "Parameters" of the docstring ``text``."""
    entries = "".join(f"{name}\n{textwrap.indent(description, '    ')}\n" for name, description in descriptions.items())
    if found := PARAMETERS.search(text):
        return f"{text[: found.start()]}{entries}{text[found.start() :]}"
    following = SECTION.search(text)
    at = following.start() if following else len(text)
    return f"{text[:at].rstrip()}\n\nParameters\n----------\n{entries}\n{text[at:]}".rstrip()
