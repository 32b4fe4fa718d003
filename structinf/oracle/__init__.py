"""Base classes of oracles: :class:`Oracle`, and one subclass for each optional ability."""

from .abilities import (
    EntropyProjectable,
    Enumerable,
    Factorized,
    GibbsOracle,
    KBest,
    Projectable,
    Samplable,
    TransportPolytope,
)
from .base import Oracle
from .cpu_methods import computed_on_cpu

__all__ = [
    "EntropyProjectable",
    "Enumerable",
    "Factorized",
    "GibbsOracle",
    "KBest",
    "Oracle",
    "Projectable",
    "Samplable",
    "TransportPolytope",
    "computed_on_cpu",
]
