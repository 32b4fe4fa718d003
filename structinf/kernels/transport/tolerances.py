"""Tolerances and limits of the solvers of entropic transport, for compiled loops and for torch code."""

__all__ = [
    "CANCELLATION",
    "COARSE_TOLERANCE",
    "EXACT",
    "MAX_COARSE_STEPS",
    "MAX_STEP",
    "NEGLIGIBLE",
    "ROUNDING",
    "SMALLEST",
    "TEMPERATURE_RATIO",
]

EXACT = 1e-10
"""For tolerances up to this value, solvers iterate to rounding accuracy, so results do not depend on the last step."""

ROUNDING = 2e-15
"""The rounding error of a plan, relative to the size of scores and potentials divided by the temperature."""

NEGLIGIBLE = 1e-16
"""Cells up to this multiple of the largest margin are ignored in the bound on rounding errors."""

SMALLEST = 2.3e-308
"""Numbers up to this value count as 0, since their inverses may overflow."""

CANCELLATION = 1e-15
"""A difference below this multiple of the sum of its absolute terms counts as 0."""

TEMPERATURE_RATIO = 4.0
"""The largest ratio of two successive temperatures."""

COARSE_TOLERANCE = 1e-10
"""The target error at higher temperatures, relative to the largest margin."""

MAX_COARSE_STEPS = 40
"""The largest number of Newton steps at each higher temperature."""

MAX_STEP = 30.0
"""The largest change of a column's potential relative to its neighbours in a step, in units of the temperature."""
