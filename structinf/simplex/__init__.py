"""Maps from scores to the simplex along any dimension, entropies, and Fenchel-Young losses.

The modules can replace torch.nn.Softmax and torch.nn.CrossEntropyLoss.
"""

from .capped_simplex import budget
from .entmax_family import entmax, entmax15, softmax, sparsemax, topk_sparsemax
from .entropies import Entropy, NormEntropy, RenyiEntropy, ShannonEntropy, SquaredNormEntropy, TsallisEntropy
from .grouping import fusedmax, oscarmax
from .losses import SimplexLoss, entmax_loss, simplex_loss
from .modules import Budget, Entmax, Entmax15, Fusedmax, Normmax, Oscarmax, Softmax, Sparsemax, TopkSparsemax
from .norm_maps import normmax

__all__ = [
    "Budget",
    "Entmax",
    "Entmax15",
    "Entropy",
    "Fusedmax",
    "NormEntropy",
    "Normmax",
    "Oscarmax",
    "RenyiEntropy",
    "ShannonEntropy",
    "SimplexLoss",
    "Softmax",
    "Sparsemax",
    "SquaredNormEntropy",
    "TopkSparsemax",
    "TsallisEntropy",
    "budget",
    "entmax",
    "entmax15",
    "entmax_loss",
    "fusedmax",
    "normmax",
    "oscarmax",
    "simplex_loss",
    "softmax",
    "sparsemax",
    "topk_sparsemax",
]
