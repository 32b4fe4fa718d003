"""Estimators that sum over the support of a relaxation's solution: SparseMAP and perturbed scores."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch

from ..oracle import Oracle
from ..parts import Parts
from ..relaxation import Relaxation
from ..relaxations.perturbed import Perturbed
from ..relaxations.sparsemap import SparseMAP
from .base import Estimator
from .weighted_structures import WeightedStructures

__all__ = ["PerturbedEstimator", "SparseMAPEstimator"]


class _RelaxationEstimator(Estimator):
    """The structures and weights of a relaxation's solution. The options are those of the relaxation."""

    _relaxation_class: ClassVar[type[Relaxation]]

    def __init_subclass__(cls) -> None:
        cls.__signature__ = inspect.signature(cls._relaxation_class)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.relaxation = self._relaxation_class(**options)

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        return self.relaxation.unsupported_reason(oracle)

    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        solution: Any = self.relaxation.with_generator(generator).solve(oracle, theta)
        terms = WeightedStructures.of(solution.support, solution.weights)
        # Samples may be equal, whereas the vertices of an active set are distinct.
        return terms.merge_equal() if self.relaxation.is_stochastic else terms.drop_zero_weights()

    def extra_repr(self) -> str:
        return f"{self.relaxation!r}"


class SparseMAPEstimator(_RelaxationEstimator):
    """E[f(Y)] under the weights p found by SparseMAP: Σ p_y y = argmax ⟨θ, μ⟩ − ½ temperature ‖μ‖².

    If several p solve this equation, the estimator uses the p of the active-set method, and its gradient.

    Parameters
    ----------
    **options
        Options of :class:`structinf.relaxations.sparsemap.SparseMAP`: temperature, penalty, tolerance, max_iter,
        on_failure.

    References
    ----------
    Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity.
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, Equation 5.16.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> estimator = SparseMAPEstimator()
    >>> si.expect(lambda y: y @ cost, theta, "subset", estimator, k=2)
    tensor([3.7500])
    """

    _relaxation_class = SparseMAP


class PerturbedEstimator(_RelaxationEstimator):
    """E[f(Y)] for Y = argmax ⟨θ + σU, y⟩, by Monte Carlo, with the gradient E[f(Y) ∇ν(U)] / σ.

    The noise has the density exp(−ν). Value and gradient are unbiased for this distribution of Y. For
    ``categorical`` with Gumbel noise and sigma 1, Y has the Gibbs distribution. A structure drawn by several
    samples is evaluated once.

    Parameters
    ----------
    **options
        Options of :class:`structinf.relaxations.perturbed.Perturbed`: noise, sigma, samples, control_variate,
        antithetic, perturbation.

    References
    ----------
    Berthet et al. 2020, Learning with Differentiable Perturbed Optimizers, Proposition 3.1.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> rng = torch.Generator().manual_seed(0)
    >>> estimator = PerturbedEstimator(samples=1000)
    >>> f = lambda y: y @ cost
    >>> si.expect(f, theta, "subset", estimator, k=2, generator=rng)
    tensor([3.7420])
    """

    _relaxation_class = Perturbed
