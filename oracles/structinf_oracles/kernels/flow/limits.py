"""The capacity of edges without a limit, apart from the compiled loops, whose import takes longer."""

from __future__ import annotations

__all__ = ["UNLIMITED"]

UNLIMITED = 2**62
