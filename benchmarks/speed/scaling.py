"""Measure how time and memory grow with the size of a problem. ``scaling_cases`` has the table of calls."""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .worker import cores

__all__ = ["Scaling", "exponent"]

SECONDS = 20.0  # sizes after one that takes longer are left out
SLACK = 0.25
"""Allowed difference of a measured exponent from the exponent of the algorithm."""


@dataclass(frozen=True)
class Scaling:
    """The growth of one call with one size.

    Attributes
    ----------
    axis : str
        The symbol of the size that grows.
    sizes : sequence of int
        Increasing sizes. The exponents are fitted to the upper half.
    prepare : callable
        Takes a size and returns the call to measure.
    time_exponent, memory_exponent : float or None
        Exponents in the algorithm's bound of the time, and of the memory beyond the input; None if no polynomial bound
        is known.
    """

    name: str
    what: str
    axis: str
    sizes: Sequence[int]
    prepare: Callable[[int], Callable[[], Any]]
    time_exponent: float | None
    memory_exponent: float | None
    quick: Sequence[int] = field(default=(4, 8))

    def describe(self, quick: bool = False) -> str:
        """Return the description of the call, with the sizes."""
        sizes = self.quick if quick else self.sizes
        return f"{self.what}, {self.axis} from {sizes[0]:,} to {sizes[-1]:,}"

    def measure(self, repeats: int, quick: bool = False) -> dict[str, Any]:
        """Return the record: seconds with one thread and with all, and MiB, for each size; and the exponents."""
        points: list[dict[str, float]] = []
        before = _peak_mib()
        for size in self.quick if quick else self.sizes:
            call = self.prepare(size)
            torch.set_num_threads(1)
            facts = call()  # compiles kernels at the first size
            points.append({"size": size, "MiB": _peak_mib() - before, **(facts if isinstance(facts, Mapping) else {})})
            points[-1]["s, 1 thread"] = _median_seconds(call, repeats)
            torch.set_num_threads(cores())
            points[-1][f"s, {cores()} threads"] = _median_seconds(call, repeats)
            if points[-1]["s, 1 thread"] > SECONDS:
                break
        times = [(point["size"], point["s, 1 thread"]) for point in points]
        memory = [(point["size"], point["MiB"]) for point in points if point["MiB"] > 8]
        exponents = {"time": exponent(times), "time_expected": self.time_exponent}
        if memory[2:]:
            exponents |= {"memory": exponent(memory), "memory_expected": self.memory_exponent}
        last = points[-1]
        facts = {key: "none" if value is None else f"{value:.2f}" for key, value in exponents.items()}
        facts["MiB"] = f"{last['MiB']:,.0f}"
        facts[f"times as fast with {cores()} threads"] = f"{times[-1][1] / last[f's, {cores()} threads']:.2f}"
        return {
            "case": self.name,
            "what": self.describe(quick),
            "call": self.what,
            "axis": self.axis,
            "points": points,
            "exponents": exponents,
            "rows": {f"{self.axis} = {last['size']:,}": {"s": times[-1][1], "facts": facts}},
            "missing": [],
            "target": self._verdict(exponents["time"]),
        }

    def _verdict(self, found: float) -> dict[str, Any] | None:
        if self.time_exponent is None:
            return None
        most = self.time_exponent + SLACK
        return {"at_most": most, "reached": found, "unit": f"(exponent of {self.axis})", "met": found <= most}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a line through the logarithms of the points in the upper half, by least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in points][len(points) // 2 - (len(points) < 4) :]
    if len(logs) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def _median_seconds(call: Callable[[], Any], repeats: int) -> float:
    samples: list[float] = []
    while len(samples) < min(repeats, 5) and sum(samples) < 2:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _peak_mib() -> float:
    """Return the largest memory that this process has used. It never falls, so each size must need more."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
