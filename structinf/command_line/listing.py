"""The tables of ``structinf list``: which relaxations and estimators support which oracles."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..calls import resolution
from ..errors import PluginError, StructinfError
from ..estimators.base import ESTIMATORS, Estimator
from ..oracle import Enumerable, GibbsOracle, KBest, Oracle, Projectable, Samplable, TransportPolytope
from ..registry import Registry
from ..relaxation import RELAXATIONS

__all__ = ["answers", "run"]

WIDTH = 80  # no line is longer

ABILITIES: dict[str, tuple[type[Oracle], str]] = {
    "G": (GibbsOracle, "log-partition and marginals"),
    "S": (Samplable, "exact samples"),
    "K": (KBest, "k best"),
    "T": (TransportPolytope, "transport polytope"),
    "P": (Projectable, "projection in closed form"),
    "E": (Enumerable, "enumeration"),
}


@dataclass(frozen=True)
class Entry:
    """A registered name with the object it makes or the error it raises, and the options it requires."""

    name: str
    made: Any = None
    error: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Method:
    """A relaxation or an estimator. ``missing`` has the reason why it does not support each oracle, or None."""

    name: str
    is_estimator: bool
    missing: tuple[str | None, ...]


def run(names: Sequence[str] = ()) -> int:
    """Print which relaxations and estimators support which oracles, and the reasons why the others do not.

    Parameters
    ----------
    names : sequence of str
        The oracles, or all if empty.
    """
    for name in names:
        resolution.ORACLES.factory(name)  # an unknown name raises an error with suggestions
    oracles, relaxations, estimators = (list(_entries(r)) for r in (resolution.ORACLES, RELAXATIONS, ESTIMATORS))
    oracles = [entry for entry in oracles if not names or entry.name in names]
    rows = [oracle for oracle in oracles if not oracle.error]
    relaxed, estimated = _methods(relaxations, rows), _methods(estimators, rows)

    print("Relaxations\n")
    has = [[c if isinstance(oracle.made, kind) else "." for c, (kind, _) in ABILITIES.items()] for oracle in rows]
    _print_answers(rows, relaxed, ["abilities", *map(" ".join, has)])
    _print_text("abilities beside argmax", "; ".join(f"{letter} {what}" for letter, (_, what) in ABILITIES.items()))
    print("\nEstimators of expect\n")
    _print_answers(rows, estimated)

    _print_section("Why not", list(_reasons(rows, [*relaxed, *estimated])))
    everything = [*oracles, *relaxations, *estimators]
    _print_section(
        "Judged by the class, because options without a default are missing",
        [(e.name, f"needs {', '.join(e.needs)}") for e in everything if e.needs],
    )
    _print_section("Plugins that cannot be loaded", [(e.name, e.error) for e in everything if e.error])
    return 0


def answers(oracles: Collection[str], relaxations: Collection[str]) -> dict[str, dict[str, bool]]:
    """For each of these oracles, whether each relaxation supports it. Names that fail to load are left out."""
    rows, tried = (
        [entry for entry in _entries(registry) if entry.name in names and not entry.error]
        for registry, names in ((resolution.ORACLES, oracles), (RELAXATIONS, relaxations))
    )
    methods = _methods(tried, rows)
    return {row.name: {method.name: method.missing[i] is None for method in methods} for i, row in enumerate(rows)}


# ----------------------------------------------------------------------------- what there is


def _entries(registry: Registry[Any]) -> Iterator[Entry]:
    for name in registry.names():
        try:
            factory = registry.factory(name)
            needs = tuple(registry.required(name))
            if not needs:
                yield Entry(name, registry.get(name))
            elif inspect.isclass(factory) and issubclass(factory, registry.base):
                # An instance without options: abilities, and the reasons for lacking them, belong to the class.
                yield Entry(name, object.__new__(factory), needs=needs)
            else:
                raise PluginError(
                    f"{registry.kind} {name!r} cannot be constructed without the options {', '.join(needs)}"
                )
        except StructinfError as error:
            yield Entry(name, error=str(error))
        except Exception as error:  # a broken plugin must not hide the others
            yield Entry(name, error=f"{registry.kind} {name!r} cannot be constructed: {error!r}")


def _methods(entries: Sequence[Entry], oracles: Sequence[Entry]) -> list[Method]:
    return [
        Method(entry.name, isinstance(entry.made, Estimator), tuple(_missing(entry, oracle) for oracle in oracles))
        for entry in entries
        if not entry.error
    ]


def _missing(entry: Entry, oracle: Entry) -> str | None:
    try:
        reason = entry.made.unsupported_reason(oracle.made)
    except Exception as error:
        return f"the check of the combination raised {error!r}"
    return reason and reason.removeprefix(f"{oracle.name} ")


def _reasons(oracles: Sequence[Entry], methods: Sequence[Method]) -> Iterator[tuple[str, str]]:
    """Unsupported combinations with their reason, each reason once: reasons of one oracle first, then of several."""
    of_one: dict[tuple[str, str], list[Method]] = {}
    for i, oracle in enumerate(oracles):
        for method in methods:
            if why := method.missing[i]:
                of_one.setdefault((oracle.name, why), []).append(method)
    alike: dict[tuple[str, str], list[str]] = {}
    for (oracle, why), which in of_one.items():
        alike.setdefault((_enumerated(which), why), []).append(oracle)
    for (which, why), names in sorted(alike.items(), key=lambda item: (len(item[1]) > 1, item[1], item[0])):
        yield f"{which} of {', '.join(names)}", f"each {why}" if len(names) > 1 else why


def _enumerated(methods: Sequence[Method]) -> str:
    """The names of the relaxations, then those of the estimators after the word "estimators"."""
    names, estimators = ([method.name for method in methods if method.is_estimator is which] for which in (False, True))
    if estimators:
        names.append(f"estimator{'s' * (len(estimators) > 1)} {', '.join(estimators)}")
    return ", ".join(names)


# ----------------------------------------------------------------------------- print


def _print_answers(oracles: Sequence[Entry], methods: Sequence[Method], *others: Sequence[str]) -> None:
    """A row for each oracle and a column for all methods with the same answers, whose names follow below the table."""
    alike: dict[tuple[bool, ...], list[str]] = {}
    for method in methods:
        alike.setdefault(tuple(why is None for why in method.missing), []).append(method.name)
    columns: list[Sequence[str]] = [["oracle", *(oracle.name for oracle in oracles)], *others]
    merged: list[tuple[str, str]] = []
    for answers, names in alike.items():
        title = min(names, key=len)
        if len(names) > 1:
            title += f" +{len(names) - 1}"
            merged.append((title, ", ".join(names)))
        columns.append([title, *("yes" if works else "no" for works in answers)])
    _print_columns(columns)
    print()
    for title, names in merged:
        _print_text(title, names)


def _print_columns(columns: Sequence[Sequence[str]]) -> None:
    """Columns with underlined titles. Columns that do not fit in WIDTH follow below, beside the first column again."""
    first, *others = map(_underline, columns)
    while others:
        block = [first, others.pop(0)]
        while others and sum(len(column[0]) + 2 for column in [*block, others[0]]) <= WIDTH + 2:
            block.append(others.pop(0))
        for cells in zip(*block, strict=True):
            print("  ".join(cells).rstrip())
        if others:
            print()


def _underline(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    title, *cells = (cell.ljust(width) for cell in column)
    return [title, "-" * width, *cells]


def _print_section(title: str, lines: Sequence[tuple[str, str]]) -> None:
    if lines:
        print(f"\n{title}")
    for subject, text in lines:
        _print_text(subject, text, "  ")


def _print_text(subject: str, text: str, indent: str = "") -> None:
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
    wrapper.break_on_hyphens = False  # options have hyphens
    print(wrapper.fill(f"{subject}: {text}"))
