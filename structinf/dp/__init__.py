"""Dynamic programs: one hypergraph recursion, or a recursion of the user's own, smoothed by any regularizer."""

from .builder import HypergraphBuilder
from .hypergraph import Hypergraph
from .paths import Dag, path_graph
from .program import HypergraphProgram
from .recursion import DynamicProgram, SMax

__all__ = ["Dag", "DynamicProgram", "Hypergraph", "HypergraphBuilder", "HypergraphProgram", "SMax", "path_graph"]
