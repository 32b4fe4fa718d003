"""The table of all cases."""

from __future__ import annotations

from . import arborescence, assignment, chain, overhead, smoothing, soft_dtw, sparsemap, trees
from .case import Case, Limit

__all__ = ["CASES"]

CASES: dict[str, Case | Limit] = {
    case.name: case
    for case in (
        *chain.CASES,
        *smoothing.CASES,
        *soft_dtw.CASES,
        *trees.CASES,
        *arborescence.CASES,
        *assignment.CASES,
        *sparsemap.CASES,
        *overhead.LIMITS,
    )
}
