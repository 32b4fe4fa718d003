"""Benchmark cases: one piece of work, the contenders that do the work, and the target ratio."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.timing import alternate, quartiles, ratio

from . import peers

__all__ = ["Case", "Contender", "EstimatedPeer", "Limit", "Target"]

STRUCTINF = "structinf"
SECONDS = 6.0  # limit for all samples of one contender


@dataclass(frozen=True)
class Contender:
    """A way to do the work of a case.

    Attributes
    ----------
    run : callable
        Does the work once; this call is timed.
    read : callable, optional
        Converts the result of ``run`` to tensors (B, ...), equal for all contenders; not timed. None for a
        yardstick that does other work.
    facts : callable, optional
        Extracts facts for the report from the result of ``run``.
    exact : bool
        False for a peer known to leave some instances unsolved. The peer is timed anyway, and the report counts these
        instances.
    """

    name: str
    run: Callable[[], Any]
    read: Callable[[Any], Tensor | tuple[Tensor, ...]] | None = lambda result: result
    facts: Callable[[Any], Mapping[str, Any]] | None = None
    exact: bool = True


@dataclass(frozen=True)
class Target:
    """A required speed: ``ratio`` times as fast as the fastest contender in ``against`` (of all, if empty)."""

    ratio: float
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class EstimatedPeer:
    """An estimate for a missing ``peer``: ``factor`` times the time of the contender ``yardstick``."""

    peer: str
    yardstick: str
    factor: float


@dataclass(frozen=True)
class Case:
    """A comparison.

    Attributes
    ----------
    what : str
        Description, formatted with the size.
    contenders : callable
        Takes the modules of the installed peers by name, and the size as keywords; returns ours first.
    size, quick : mapping
        Keywords of ``contenders``: for a measurement, and for a test run.
    peers : tuple of str
        Names of :data:`benchmarks.speed.peers.PEERS`.
    tolerance : float
        Allowed difference of results, times 1 + the largest of ours.
    """

    name: str
    what: str
    contenders: Callable[..., Iterable[Contender]]
    size: Mapping[str, Any]
    quick: Mapping[str, Any]
    peers: tuple[str, ...] = ()
    target: Target | None = None
    stand_in: EstimatedPeer | None = None
    tolerance: float = 1e-4

    def describe(self, quick: bool = False) -> str:
        """Return the description of the work, with the size."""
        return self.what.format(**(self.quick if quick else self.size))

    def measure(self, repeats: int, quick: bool = False) -> dict[str, Any]:
        """Check that all results are equal, time the contenders in turn, and return the record."""
        modules = {name: module for name in self.peers if (module := peers.load(name)) is not None}
        contenders = list(self.contenders(modules, **(self.quick if quick else self.size)))
        rows = {c.name: row for c, row in zip(contenders, self._check(contenders), strict=True)}
        fit = {c.name: c.run for c in contenders if not rows[c.name].get("wrong")}
        samples = alternate(fit, repeats, SECONDS)
        for name, seconds in samples.items():
            low, middle, high = (1e3 * s for s in quartiles(seconds))
            rows[name] |= {"ms": middle, "low": low, "high": high, "ratio": ratio(seconds, samples[STRUCTINF])}
        compared = {c.name: rows[c.name].get("ratio") for c in contenders[1:] if c.read is not None}
        missing = [name for name in self.peers if name not in modules]
        if self.stand_in and self.stand_in.peer in missing:
            estimate = f"{self.stand_in.peer}, estimated"
            compared[self.stand_in.peer] = self.stand_in.factor * rows[self.stand_in.yardstick]["ratio"]
            rows[estimate] = {"ratio": compared[self.stand_in.peer]}
        return {
            "case": self.name,
            "what": self.describe(quick),
            "rows": rows,
            "missing": missing,
            "target": self._verdict({name: value for name, value in compared.items() if value is not None}),
        }

    def _check(self, contenders: list[Contender]) -> list[dict[str, Any]]:
        rows, expected = [], None
        for contender in contenders:
            result = contender.run()
            row: dict[str, Any] = {"differs": "", "facts": dict(contender.facts(result)) if contender.facts else {}}
            if contender.read is not None:
                values = contender.read(result)
                values = values if isinstance(values, tuple) else (values,)
                expected = values if expected is None else expected
                row["differs"] = _difference(values, expected, self.tolerance)
                row["wrong"] = bool(row["differs"]) and contender.exact
            rows.append(row)
        return rows

    def _verdict(self, ratios: Mapping[str, float]) -> dict[str, Any] | None:
        if self.target is None:
            return None
        against = {name: r for name, r in ratios.items() if not self.target.against or name in self.target.against}
        if not against:
            return {"wanted": self.target.ratio, "reached": None, "over": "none installed", "met": None}
        fastest = min(against, key=against.__getitem__)
        reached = against[fastest]
        return {"wanted": self.target.ratio, "reached": reached, "over": fastest, "met": reached >= self.target.ratio}


def _difference(values: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> str:
    """Return an empty string if the tensors (B, ...) are equal, else the number of different instances."""
    if len(values) != len(expected):
        return f"{len(values)} results instead of {len(expected)}"
    wrong, worst = 0, 0.0
    for value, ours in zip(values, expected, strict=True):
        if value.shape != ours.shape:
            return f"shape {tuple(value.shape)} instead of {tuple(ours.shape)}"
        allowed = tolerance * (1 + ours.abs().max().item())
        gaps = (value.double() - ours.double()).abs().nan_to_num(nan=math.inf).reshape(len(ours), -1).amax(1)
        wrong = max(wrong, int((gaps > allowed).sum()))
        worst = max(worst, gaps.max().item())
    return f"{wrong} of {len(expected[0])} rows, by up to {worst:.1g}" if wrong else ""


@dataclass(frozen=True)
class Limit:
    """A cost with an upper bound, such as the time of an import.

    Attributes
    ----------
    samples : callable
        Takes ``repeats`` and ``quick``, and returns one cost for each measurement.
    unit : str
        Unit of the cost.
    at_most : float
        Upper bound in this unit.
    """

    name: str
    what: str
    samples: Callable[[int, bool], list[float]]
    unit: str
    at_most: float

    def describe(self, quick: bool = False) -> str:
        """Return the description of the bounded cost."""
        return self.what

    def measure(self, repeats: int, quick: bool = False) -> dict[str, Any]:
        """Return the record of this limit, in the form of a case's record."""
        cost = statistics.median(self.samples(repeats, quick))
        verdict = {"at_most": self.at_most, "reached": cost, "unit": self.unit, "met": cost <= self.at_most}
        return {"case": self.name, "what": self.what, "rows": {}, "missing": [], "target": verdict}
