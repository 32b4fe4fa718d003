"""Dynamic programs as oracles, from a hypergraph or from a recursion in torch, smoothed by any regularizer."""

from .builder import HypergraphBuilder
from .hypergraph import Hypergraph
from .paths import DAG, path_graph
from .program import HypergraphProgram
from .recursion import DynamicProgram, SmoothMax

__all__ = ["DAG", "DynamicProgram", "Hypergraph", "HypergraphBuilder", "HypergraphProgram", "SmoothMax", "path_graph"]
