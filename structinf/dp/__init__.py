from .builder import HypergraphBuilder
from .hypergraph import Hypergraph
from .program import HypergraphProgram

__all__ = ["Hypergraph", "HypergraphBuilder", "HypergraphProgram"]
