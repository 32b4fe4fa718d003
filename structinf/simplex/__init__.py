"""Maps from scores to the simplex, along any dimension, and the losses that they and their entropies generate.

Functions, and modules in the place of torch.nn.Softmax and torch.nn.CrossEntropyLoss.
"""

from .capped import Budget, budget
from .entropies import Entropy, NormEntropy, RenyiEntropy, ShannonEntropy, SquaredNormEntropy, TsallisEntropy
from .fenchel_young import simplex_loss
from .groups import Fusedmax, Oscarmax, fusedmax, oscarmax
from .losses import (
    Entmax15Loss,
    EntmaxLoss,
    NormmaxLoss,
    RenyiLoss,
    SimplexLoss,
    SoftmaxLoss,
    SparsemaxLoss,
    SquaredNormLoss,
    entmax15_loss,
    entmax_loss,
    normmax_loss,
    sparsemax_loss,
)
from .norm import Normmax, normmax
from .top import TopkSparsemax, topk_sparsemax
from .tsallis import Entmax, Entmax15, Softmax, Sparsemax, entmax, entmax15, softmax, sparsemax

__all__ = [
    "Budget",
    "Entmax",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxLoss",
    "Entropy",
    "Fusedmax",
    "NormEntropy",
    "Normmax",
    "NormmaxLoss",
    "Oscarmax",
    "RenyiEntropy",
    "RenyiLoss",
    "ShannonEntropy",
    "SimplexLoss",
    "Softmax",
    "SoftmaxLoss",
    "Sparsemax",
    "SparsemaxLoss",
    "SquaredNormEntropy",
    "SquaredNormLoss",
    "TopkSparsemax",
    "TsallisEntropy",
    "budget",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_loss",
    "fusedmax",
    "normmax",
    "normmax_loss",
    "oscarmax",
    "simplex_loss",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "topk_sparsemax",
]
