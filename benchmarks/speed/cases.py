"""The table of all cases."""

from __future__ import annotations

from . import (
    arborescence,
    assignment,
    attention,
    chain,
    factor_graphs,
    flow,
    graphical_models,
    matching,
    overhead,
    paths,
    perturbed,
    ranking,
    simplex,
    smoothing,
    soft_dtw,
    spanning_tree,
    sparsemap,
    transitions,
    transport,
    trees,
)
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
        *ranking.CASES,
        *simplex.CASES,
        *attention.CASES,
        *paths.CASES,
        *flow.CASES,
        *spanning_tree.CASES,
        *matching.CASES,
        *graphical_models.CASES,
        *factor_graphs.CASES,
        *transport.CASES,
        *sparsemap.CASES,
        *perturbed.CASES,
        *transitions.LIMITS,
        *attention.LIMITS,
        *overhead.LIMITS,
    )
}
