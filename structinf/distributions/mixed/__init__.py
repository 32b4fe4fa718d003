"""Mixed random variables: continuous ones that also put probability on vertices, edges and faces of their set."""

from .hard_concrete import HardConcrete
from .sparsemax import GaussianSparsemax, GumbelSparsemax

__all__ = ["GaussianSparsemax", "GumbelSparsemax", "HardConcrete"]
