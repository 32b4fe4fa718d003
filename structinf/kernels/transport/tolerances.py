"""Tolerances and limits of the solvers of regularized transport, for compiled loops and for torch code."""

__all__ = [
    "BAND",
    "CANCELLATION",
    "COARSE_TOLERANCE",
    "EXACT",
    "EXACT_PATTERN",
    "FARTHEST",
    "INCREMENTAL",
    "INFINITE_WEIGHT",
    "MAX_COARSE_STEPS",
    "MAX_FIXED",
    "MAX_RESIDUAL",
    "MAX_STEP",
    "NEGLIGIBLE",
    "NEGLIGIBLE_CELL",
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

# ----------------------------------------------------------------------------- Euclidean projections

BAND = 0.01
"""The ratio of the number b in the weights of empty cells to the error. With 1, there are up to twice as many steps."""

EXACT_PATTERN = 1e-10
"""The error, relative to the largest margin, below which empty cells have weight 0."""

INCREMENTAL = 1e-3
"""The error, relative to the largest margin, below which a step updates the reduced scores instead of the potentials.

The rounding errors of the potentials then no longer limit the accuracy of the sums.
"""

FARTHEST = 1e150
"""A distance between potentials that only problems without a plan reach."""

INFINITE_WEIGHT = 1e30
"""The weight of an edge between potentials that move together."""

MAX_FIXED = 4
"""The largest number of solutions of the Newton system with columns fixed to their bounds."""

MAX_RESIDUAL = 1e-13
"""The largest error of the sums that counts as rounding, relative to the largest margin."""

NEGLIGIBLE_CELL = 2e-14
"""Cells up to this multiple of both margins are rounding errors in place of 0."""
