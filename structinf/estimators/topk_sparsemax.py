"""Sums over the k best structures, by the sparsemax of their scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.resolution import check_supported, prepare_oracle
from ..oracle import KBest, Oracle
from ..parts import Parts
from ..queries import sparsemax_over_topk
from ..regularizers import check_temperature
from ..solution import CONVERGED
from ..validation import check_k
from .base import ESTIMATORS, Estimator
from .weighted_structures import WeightedStructures

__all__ = ["TopKSparsemax"]


class TopKSparsemax(Estimator):
    """E[f(Y)] under the sparsemax of the k highest scores ⟨θ, y⟩ / temperature; other structures have weight 0.

    If fewer than k structures have a positive weight, the distribution is the sparsemax over all structures.
    :meth:`certified` returns the instances with this property.

    Parameters
    ----------
    k : int
        Maximal number of evaluated structures of an instance, at least 1.
    temperature : float
        The divisor of the scores, above 0.

    References
    ----------
    Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity.
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, Equation 5.15.
    Kyrillidis, Becker, Cevher & Koch 2013, Sparse Projections onto the Simplex.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> si.expect(lambda y: y @ cost, theta, "subset", TopKSparsemax(k=2), k=2)
    tensor([3.7500])
    """

    requires = (KBest,)

    def __init__(self, *, k: int = 10, temperature: float = 1.0) -> None:
        super().__init__()
        check_k(k)
        check_temperature(temperature)
        self.k, self.temperature = k, temperature

    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        structures, weights = sparsemax_over_topk(oracle, theta, self.k, self.temperature)
        return WeightedStructures.of(structures, weights).drop_zero_weights()

    @torch.no_grad()
    def certified(self, theta: Parts, oracle: str | Oracle, **options: Any) -> Tensor:
        """Return whether the distribution is the sparsemax over all structures, (*batch) bool.

        An instance is certified if fewer than k structures have a positive weight.

        Parameters
        ----------
        theta : (*batch, *event) Tensor, or tuple of Tensors
            The scores.
        oracle : str or Oracle
            The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
        **options
            Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.
        """
        problem = prepare_oracle(theta, oracle, options)
        check_supported(problem.oracle, self, ESTIMATORS)
        with problem.plain_modes():
            weights = sparsemax_over_topk(problem.oracle, problem.theta, self.k, self.temperature)[1]
        return problem.restore((weights != 0).sum(0) < self.k, fill=CONVERGED)

    def extra_repr(self) -> str:
        return f"k={self.k}, temperature={self.temperature}"
