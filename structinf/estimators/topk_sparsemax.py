"""Sums over the k best structures, by the sparsemax of their scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..calls.resolution import check_supported, prepare_oracle
from ..errors import ConvergenceError, InvalidInputError
from ..oracle import KBest, Oracle
from ..parts import Parts
from ..queries.k_best import sparsemax_over_topk
from ..regularizers import check_temperature
from ..solution import CONVERGED
from ..validation import check_flag, check_k, check_natural, list_instances
from .base import ESTIMATORS, Estimator
from .weighted_structures import WeightedStructures, select_instances

__all__ = ["TopKSparsemax"]


class TopKSparsemax(Estimator):
    """E[f(Y)] under the sparsemax of the k highest scores ⟨θ, y⟩ / temperature; other structures have weight 0.

    If fewer than k structures have a positive weight, the distribution is the sparsemax over all structures.
    :meth:`certified` returns the instances with this property. With ``exact=True``, k grows until all instances have
    it: the estimator is then ``sparsemax``, also for more structures than can be listed.

    Parameters
    ----------
    k : int
        Maximal number of evaluated structures of an instance, at least 1. With ``exact``, the first number.
    temperature : float
        The divisor of the scores, above 0.
    exact : bool
        Whether to double k, for the instances that need it, until fewer than k structures have a positive weight.
    max_k : int
        With ``exact``, the largest number of structures of an instance.

    Raises
    ------
    ConvergenceError
        With ``exact``, if ``max_k`` structures of an instance have a positive weight.

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

    def __init__(self, *, k: int = 10, temperature: float = 1.0, exact: bool = False, max_k: int = 10_000) -> None:
        super().__init__()
        check_k(k)
        check_temperature(temperature)
        check_flag("exact", exact)
        check_natural("max_k", max_k)
        if exact and max_k < k:
            raise InvalidInputError(f"max_k must be at least k = {k}, got {max_k}")
        self.k, self.temperature, self.exact, self.max_k = k, temperature, exact, max_k

    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        structures, weights = sparsemax_over_topk(oracle, theta, self.k, self.temperature)
        terms = WeightedStructures.of(structures, weights)
        if not self.exact:
            return terms.drop_zero_weights()
        rows, k = torch.arange(terms.batch, device=weights.device), self.k
        several = [terms]
        while len(rows := rows[(weights.detach() != 0).sum(0) == k]):
            if k == self.max_k:
                raise ConvergenceError(
                    f"topk_sparsemax: all of the {k} best structures have a positive weight for "
                    f"{list_instances(rows.tolist())}; raise max_k, or lower the temperature"
                )
            k = min(2 * k, self.max_k)
            structures, weights = sparsemax_over_topk(oracle[rows], select_instances(theta, rows), k, self.temperature)
            several = [_without_instances(terms, rows) for terms in several]
            more = WeightedStructures.of(structures, weights)
            several.append(replace(more, instance=rows[more.instance], batch=terms.batch))
        return WeightedStructures.concatenate(several).drop_zero_weights()

    @torch.no_grad()
    def certified(self, theta: Parts, oracle: str | Oracle, **options: Any) -> Tensor:
        """Return whether the distribution is the sparsemax over all structures, (*batch) bool.

        An instance is certified if fewer than k structures have a positive weight, for the k of the constructor.

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
        growth = f", exact=True, max_k={self.max_k}" if self.exact else ""
        return f"k={self.k}, temperature={self.temperature}{growth}"


def _without_instances(terms: WeightedStructures, rows: Tensor) -> WeightedStructures:
    """Return ``terms`` with weights of 0 for the instances ``rows``."""
    return replace(terms, weights=terms.weights.masked_fill(torch.isin(terms.instance, rows), 0.0))
