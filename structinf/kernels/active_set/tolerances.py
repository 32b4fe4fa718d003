"""What the active set method takes for rounding, in compiled loops and elsewhere."""

__all__ = ["DEPENDENT", "ROUNDING", "VANISHING"]

DEPENDENT = 1e-13
"""A vertex whose squared distance to the others' affine hull is below this, relative to its own square, lies in it."""

ROUNDING = 1e-13
"""A gap below this, relative to the numbers whose difference it is, is none."""

VANISHING = 1e-14
"""A weight that has fallen below this is zero. Those of entering vertices are at least ROUNDING / 2."""
