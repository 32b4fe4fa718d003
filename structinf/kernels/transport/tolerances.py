"""What solvers of entropic transport take for rounding and how far they go, in compiled loops and in torch."""

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
"""Tolerances up to this are met to rounding, so that it does not matter where exactly an iteration ended."""

ROUNDING = 2e-15
"""The error that scores and potentials leave in a plan, relative to their size over the temperature."""

NEGLIGIBLE = 1e-16
"""What is shipped below this, relative to the largest margin, has no say in that."""

SMALLEST = 2.3e-308
"""Smaller numbers, whose inverses may overflow, count as 0."""

CANCELLATION = 1e-15
"""The difference of sums of terms of size 1 is 0 if it is below this."""

TEMPERATURE_RATIO = 4.0
"""The ratio of two temperatures in a row on the way down."""

COARSE_TOLERANCE = 1e-10
"""The error, relative to the largest margin, that higher temperatures are left with."""

MAX_COARSE_STEPS = 40
"""The most Newton steps that a higher temperature is worth."""

MAX_STEP = 30.0
"""The most that a step may move one column's potential from those around it, in units of the temperature."""
