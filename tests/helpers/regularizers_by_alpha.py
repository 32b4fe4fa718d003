"""Regularizers by the α under which `hypergraph_reference` knows them, and some that no compiled loop knows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized

INF = math.inf


@dataclass(frozen=True, kw_only=True)
class TwiceNegentropy(Regularizer):
    """A user's own: 2 Σ q log q."""

    def value(self, x):
        return 2 * Negentropy().value(x / 2)

    def gradient(self, x):
        return Negentropy().gradient(x / 2)

    def hessian_product(self, q, z):
        return Negentropy().hessian_product(q, z) / 2


@dataclass(frozen=True, kw_only=True)
class InTorch(Regularizer):
    """One of the library's, which the compiled loops do not know."""

    inner: Regularizer

    def value(self, x):
        return self.inner.value(x)

    def gradient(self, x):
        return self.inner.gradient(x)

    def hessian_product(self, q, z):
        return self.inner.hessian_product(q, z)


# Tsallis' family, with its ends.
FAMILY: dict[float, Regularizer] = {
    1: Negentropy(),
    1.25: Tsallis(alpha=1.25),
    1.5: Tsallis(alpha=1.5),
    2: SquaredL2(),
    INF: Unregularized(),
}
REGULARIZERS: dict[float, Regularizer] = {**FAMILY, -2: TwiceNegentropy()}
