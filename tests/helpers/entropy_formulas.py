"""Entropies and what they are by their plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from structinf.simplex import NormEntropy, RenyiEntropy, ShannonEntropy, SquaredNormEntropy, TsallisEntropy

ENTROPIES = [
    ShannonEntropy(),
    TsallisEntropy(1),
    TsallisEntropy(1.25),
    TsallisEntropy(1.5),
    TsallisEntropy(2),
    TsallisEntropy(4),
    NormEntropy(1.5),
    NormEntropy(2),
    NormEntropy(5),
    SquaredNormEntropy(1.3),
    SquaredNormEntropy(2),
    SquaredNormEntropy(3),
    RenyiEntropy(0.1),
    RenyiEntropy(0.5),
    RenyiEntropy(0.9),
    RenyiEntropy(1),
]

every_entropy = pytest.mark.parametrize("entropy", ENTROPIES, ids=str)


def plain(entropy, p):
    """H of the probabilities in the last dimension."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shannon = -np.where(p > 0, p * np.log(p), 0).sum(-1)
    match entropy:
        case TsallisEntropy(alpha=alpha) if alpha != 1:
            return (1 - (p**alpha).sum(-1)) / (alpha * (alpha - 1))
        case NormEntropy(alpha=alpha):
            return 1 - (p**alpha).sum(-1) ** (1 / alpha)
        case SquaredNormEntropy(alpha=alpha):
            return (1 - (p**alpha).sum(-1) ** (2 / alpha)) / 2
        case RenyiEntropy(beta=beta) if beta != 1:
            return np.log((np.where(p > 0, p, 0) ** beta).sum(-1)) / (1 - beta)
        case _:
            return shannon
