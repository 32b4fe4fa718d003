"""Rounding tolerances of the active set method, for compiled loops and for torch code."""

__all__ = ["DEPENDENT", "ROUNDING", "VANISHING"]

DEPENDENT = 1e-13
"""A vertex depends affinely on others if its squared distance to their affine hull is below this times ‖r‖² + 1."""

ROUNDING = 1e-13
"""A gap below this multiple of the scale counts as 0. The scale is the size of the numbers that the gap subtracts."""

VANISHING = 1e-14
"""A weight that falls to this value counts as 0. The weight of an entering vertex is at least ROUNDING / 2."""
