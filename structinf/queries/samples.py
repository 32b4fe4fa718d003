"""Samples of structures from the Gibbs distribution, with and without replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..calls.resolution import prepare_oracle
from ..compile.public_call import public_call
from ..dp import HypergraphProgram
from ..oracle import GibbsOracle, Oracle, Samplable
from ..parts import Parts, divide_by_temperature
from ..regularizers import Regularizer, get_regularizer
from ..solvers.distinct_samples import sample_without_replacement
from ..validation import check_count, check_flag, check_generator
from .abilities import require_ability, unsupported

__all__ = ["distinct_samples", "sample"]


@public_call
@torch.no_grad()
def sample(
    theta: Parts,
    oracle: str | Oracle,
    n: int = 1,
    *,
    replacement: bool = True,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    generator: torch.Generator | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Parts:
    """Return ``n`` exact samples of structures for each instance, with or without replacement.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    n : int
        The number of samples of each instance.
    replacement : bool
        Whether the samples are independent. If False, all samples of an instance are different, and each is drawn from
        the structures that are left. Samples beyond the number of structures are 0; the method
        :meth:`structinf.Gibbs.sample_unordered` also returns which samples exist.
    regularizer : str or Regularizer
        ``"negentropy"`` samples the Gibbs distribution p(y) ∝ exp(⟨θ, y⟩ / temperature). Another regularizer Ω samples
        the random walk through the oracle's recursion with step probabilities q = ∇max_Ω; the oracle must be a
        dynamic program. The expectation of a sample is the mean of the relaxation ``smoothed``.
        :func:`structinf.regularizers.get_regularizer` lists the names.
    temperature : float, optional
        The factor of Ω, above 0. If None, the temperature of the regularizer object, or 1 for a name.
    generator : torch.Generator, optional
        The only source of randomness. If None, samples come from torch's default generator.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return zeros for the
        instance.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (n, ..., *event) Tensor, or tuple of them
        The samples, without a gradient.

    Raises
    ------
    UnsupportedError
        If the oracle has no exact samples (:class:`structinf.Samplable`), or no random walk for the regularizer. With
        ``replacement=False``, also if the oracle has no log-partition function, or if it can neither restrict its
        structures nor find different structures in 16384 draws.

    References
    ----------
    Without replacement: W. Kool, H. van Hoof & M. Welling, Stochastic beams and where to find them, ICML 2019; C.
    Maddison, D. Tarlow & T. Minka, A* sampling, NeurIPS 2014.

    Examples
    --------
    >>> trees = sample(
    ...     torch.zeros(5, 5),
    ...     "arborescence",
    ...     3,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
    >>> trees.shape, trees.sum((1, 2))
    (torch.Size([3, 5, 5]), tensor([4., 4., 4.]))

    All three subsets of two of three elements, in random order:

    >>> generator = torch.Generator().manual_seed(0)
    >>> options = {"replacement": False, "generator": generator}
    >>> subsets = sample(torch.zeros(3), "subset", 3, k=2, **options)
    >>> subsets.sum(0)
    tensor([2., 2., 2.])
    """
    check_generator(generator)
    check_flag("replacement", replacement)
    omega = get_regularizer(regularizer, temperature)

    def compute(problem: Problem) -> Parts:
        bound_oracle: Any = problem.oracle
        # Draws without replacement end by values.
        with problem.plain_modes(defers_checks=replacement):
            if not replacement:
                samples, _ = distinct_samples(bound_oracle, problem.theta, n, omega, generator)
            elif omega.alpha == 1:
                samples = require_ability(bound_oracle, Samplable).sample(
                    divide_by_temperature(problem.theta, omega.temperature), n, generator
                )
            elif hasattr(bound_oracle, "smoothed_sample"):
                samples = bound_oracle.smoothed_sample(problem.theta, n, omega, generator)
            else:
                raise unsupported(bound_oracle, f'no random walk for {omega!r}; use regularizer="negentropy"')
        return problem.restore_parts(samples, 1)

    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    return problem.solve_feasible(compute, generator=generator, draws=True)


def distinct_samples(
    oracle: Oracle, theta: Parts, n: int, omega: Regularizer, generator: torch.Generator | None
) -> tuple[Parts, Tensor]:
    """Return n samples without replacement, (n, B, *event), and which of them exist, (n, B) bool."""
    check_count(n)
    if omega.alpha != 1:
        program: Any = require_ability(oracle, HypergraphProgram)
        return program.sample_without_replacement(theta, n, generator, omega)
    require_ability(oracle, Samplable)
    require_ability(oracle, GibbsOracle)
    return sample_without_replacement(oracle, divide_by_temperature(theta, omega.temperature), n, generator)
