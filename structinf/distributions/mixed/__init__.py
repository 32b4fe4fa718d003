"""Mixed random variables: continuous variables with positive probability on vertices, edges and other faces."""

from .hard_concrete import HardConcrete
from .sparsemax import GaussianSparsemax, GumbelSparsemax

__all__ = ["GaussianSparsemax", "GumbelSparsemax", "HardConcrete"]
