"""Paired timings: the compared functions take turns, so that a slow moment of the machine affects all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["alternate", "quartiles", "ratio"]

SAMPLE = 2e-3  # seconds of a sample, long enough to hide the cost of the clock


def alternate(functions: Mapping[str, Callable[[], Any]], repeats: int, budget: float) -> dict[str, list[float]]:
    """Return the seconds a call of each function, one sample a round. The order changes from round to round.

    A function skips the last rounds if all rounds would take more than ``budget`` seconds. A function that needs more
    than ``budget`` for one call is called only once. Call the functions once before, so that compilation is finished.
    """
    calls, rounds = {}, {}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for name, function in functions.items():
        seconds = _time(function, 1)
        calls[name] = max(1, math.ceil(SAMPLE / seconds))
        rounds[name] = min(repeats, int(budget / (seconds * calls[name])))
        if rounds[name] == 0:
            samples[name].append(seconds)
    names = list(functions)
    for i in range(repeats):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            if i < rounds[name]:
                samples[name].append(_time(functions[name], calls[name]))
    return samples


def ratio(samples: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median over the rounds of a time divided by our time in the same round."""
    return statistics.median(a / b for a, b in zip(samples, ours, strict=False))


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def _time(function: Callable[[], Any], calls: int) -> float:
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls
    finally:
        if enabled:
            gc.enable()
