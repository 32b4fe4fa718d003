"""Dynamic programs: one hypergraph recursion, or a recursion of the user's own, smoothed by any regularizer."""

from .builder import HypergraphBuilder
from .hypergraph import Hypergraph
from .paths import DAG, path_graph
from .program import HypergraphProgram
from .recursion import DynamicProgram, SmoothMax

__all__ = ["DAG", "DynamicProgram", "Hypergraph", "HypergraphBuilder", "HypergraphProgram", "SmoothMax", "path_graph"]
