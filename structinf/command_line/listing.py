"""What works with what: the tables of ``structinf list``."""

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

WIDTH = 110  # no line is longer

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
    """A registered name: what it makes, or why that cannot be made; the options that it cannot be made without."""

    name: str
    made: Any = None
    error: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """A relaxation, or an estimator, and why it does not work for each oracle in turn."""

    name: str
    estimates: bool
    missing: tuple[str | None, ...]


def run() -> int:
    """Print which relaxations and estimators work for which oracles, and why the others do not."""
    oracles, relaxations, estimators = (list(_entries(r)) for r in (resolution.ORACLES, RELAXATIONS, ESTIMATORS))
    rows = [oracle for oracle in oracles if not oracle.error]
    relaxed, estimated = _ways(relaxations, rows), _ways(estimators, rows)

    print("Relaxations\n")
    has = [[c if isinstance(oracle.made, kind) else "." for c, (kind, _) in ABILITIES.items()] for oracle in rows]
    _print_answers(rows, relaxed, ["abilities", *map(" ".join, has)])
    _print_text("abilities beside argmax", "; ".join(f"{letter} {what}" for letter, (_, what) in ABILITIES.items()))
    print("\nEstimators of expect\n")
    _print_answers(rows, estimated)

    _print_section("Why not", list(_reasons(rows, [*relaxed, *estimated])))
    everything = [*oracles, *relaxations, *estimators]
    _print_section(
        "Judged by the class alone", [(e.name, f"needs {', '.join(e.needs)}") for e in everything if e.needs]
    )
    _print_section("What cannot be loaded", [(e.name, e.error) for e in everything if e.error])
    return 0


def answers(oracles: Collection[str], relaxations: Collection[str]) -> dict[str, dict[str, bool]]:
    """For each of these oracles, which of these relaxations work; without what cannot be made."""
    rows, tried = (
        [entry for entry in _entries(registry) if entry.name in names and not entry.error]
        for registry, names in ((resolution.ORACLES, oracles), (RELAXATIONS, relaxations))
    )
    ways = _ways(tried, rows)
    return {row.name: {way.name: way.missing[i] is None for way in ways} for i, row in enumerate(rows)}


# ----------------------------------------------------------------------------- what there is


def _entries(registry: Registry[Any]) -> Iterator[Entry]:
    for name in registry.names():
        try:
            factory = registry.factory(name)
            needs = tuple(registry.required(name))
            if not needs:
                yield Entry(name, registry.get(name))
            elif inspect.isclass(factory) and issubclass(factory, registry.base):
                # Unmade: abilities, and the reasons for lacking them, belong to the class.
                yield Entry(name, object.__new__(factory), needs=needs)
            else:
                raise PluginError(f"{registry.kind} {name!r} cannot be made without {', '.join(needs)}")
        except StructinfError as error:
            yield Entry(name, error=str(error))
        except Exception as error:  # a broken plugin must not hide the others
            yield Entry(name, error=f"{registry.kind} {name!r} cannot be made: {error!r}")


def _ways(entries: Sequence[Entry], oracles: Sequence[Entry]) -> list[Way]:
    return [
        Way(entry.name, isinstance(entry.made, Estimator), tuple(_missing(entry, oracle) for oracle in oracles))
        for entry in entries
        if not entry.error
    ]


def _missing(entry: Entry, oracle: Entry) -> str | None:
    try:
        reason = entry.made.unsupported_reason(oracle.made)
    except Exception as error:
        return f"it cannot be told: {error!r}"
    return reason and reason.removeprefix(f"{oracle.name} ")


def _reasons(oracles: Sequence[Entry], ways: Sequence[Way]) -> Iterator[tuple[str, str]]:
    """What does not work and why, each reason once for all that share it: of one oracle first, then of several."""
    of_one: dict[tuple[str, str], list[Way]] = {}
    for i, oracle in enumerate(oracles):
        for way in ways:
            if why := way.missing[i]:
                of_one.setdefault((oracle.name, why), []).append(way)
    alike: dict[tuple[str, str], list[str]] = {}
    for (oracle, why), which in of_one.items():
        alike.setdefault((_enumerated(which), why), []).append(oracle)
    for (which, why), names in sorted(alike.items(), key=lambda item: (len(item[1]) > 1, item[1], item[0])):
        yield f"{which} of {', '.join(names)}", f"each {why}" if len(names) > 1 else why


def _enumerated(ways: Sequence[Way]) -> str:
    """The relaxations' names, then the estimators', which can be the same, called so."""
    names, estimators = ([way.name for way in ways if way.estimates is which] for which in (False, True))
    if estimators:
        names.append(f"estimator{'s' * (len(estimators) > 1)} {', '.join(estimators)}")
    return ", ".join(names)


# ----------------------------------------------------------------------------- print


def _print_answers(oracles: Sequence[Entry], ways: Sequence[Way], *others: Sequence[str]) -> None:
    """A row for each oracle, a column for all ways of the same answers, and below what the columns stand for."""
    alike: dict[tuple[bool, ...], list[str]] = {}
    for way in ways:
        alike.setdefault(tuple(why is None for why in way.missing), []).append(way.name)
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
    """Columns under a line below their titles; those that no longer fit stand below, beside the first one again."""
    first, *others = (_ruled(column) for column in columns)
    block = [first]
    for column in [*others, None]:
        if column is None or sum(len(c[0]) + 2 for c in [*block, column]) > WIDTH + 2:
            for cells in zip(*block, strict=True):
                print("  ".join(cells).rstrip())
            if column is not None:
                print()
            block = [first]
        if column is not None:
            block.append(column)


def _ruled(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    title, *cells = (cell.ljust(width) for cell in column)
    return [title, "-" * width, *cells]


def _print_section(title: str, lines: Sequence[tuple[str, str]]) -> None:
    if lines:
        print(f"\n{title}")
    for subject, text in lines:
        _print_text(subject, text, "  ")


def _print_text(subject: str, text: str, indent: str = "") -> None:
    print(textwrap.fill(f"{subject}: {text}", WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  "))
