"""Factor graphs: structures that share binary variables, each constrained by an oracle."""

from __future__ import annotations

from .graph import FactorGraph

__all__ = ["FactorGraph"]
