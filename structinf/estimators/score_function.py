"""score_function: samples, weighted by the gradients of their log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError
from ..oracle import GibbsOracle, Samplable
from ..parts import Parts, as_tuple, map_parts
from ..smoothing import differentiable_log_partition
from ..solvers.argmax import best_structure
from ..transitions import TransitionSystem, decode_greedy, sample_ancestral, sequence_log_prob
from ..transitions.search import dead_end_error
from ..validation import check_natural
from .base import Estimator
from .baselines import get_baseline
from .weighted_structures import (
    FunctionValues,
    WeightedStructures,
    needs_gradient,
    one_with_log_gradient,
    scores,
)

__all__ = ["ScoreFunction"]


class ScoreFunction(Estimator):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, as the mean of f over samples, with the gradient (f(y) − b) ∇log p(y) + ∇f(y).

    Value and gradient are unbiased for every f. The estimator is also known as REINFORCE. A structure drawn by
    several samples is evaluated once.

    Parameters
    ----------
    samples : int
        The number of samples of each instance, at least 1.
    baseline : "none", "moving_average", "leave_one_out", "self_critic", or an nn.Module
        The baseline b. "none" is 0. "moving_average" is the mean of f over earlier calls, kept in buffers and
        updated in training mode. "leave_one_out" is the mean of the instance's other samples, and needs at least 2
        samples. "self_critic" is f at the argmax (for a transition system at the greedy sequence), which takes one more
        evaluation. A module predicts b and is
        trained by its squared error (:class:`structinf.estimators.LearnedBaseline`).

    References
    ----------
    Williams 1992, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning.
    Foerster, Farquhar, Al-Shedivat, Rocktäschel, Xing & Whiteson 2018, DiCE: The Infinitely Differentiable Monte Carlo
    Estimator (the form of the weights).

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> rng = torch.Generator().manual_seed(0)
    >>> estimator = ScoreFunction(samples=100)
    >>> f = lambda y: y @ cost
    >>> si.expect(f, theta, "subset", estimator, k=2, generator=rng)
    tensor([3.8000])
    """

    requires = (GibbsOracle, Samplable)
    search_terms = ("reinforce", "policy_gradient", "likelihood_ratio")

    def __init__(self, *, samples: int = 10, baseline: str | nn.Module = "leave_one_out") -> None:
        super().__init__()
        check_natural("samples", samples)
        self.samples = samples
        self.baseline = get_baseline(baseline)
        self.has_state = isinstance(baseline, str) and self.baseline.has_state
        if samples < self.baseline.min_samples:
            raise InvalidInputError(
                f'baseline="{self.baseline.name}" needs samples of at least {self.baseline.min_samples}, got '
                f'{samples}; use more samples, or baseline="self_critic"'
            )

    def weighted_structures(
        self, oracle: Any, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        fixed = map_parts(Tensor.detach, theta)
        with torch.no_grad():
            drawn = oracle.sample(fixed, self.samples, generator)
            ones = as_tuple(theta)[0].new_ones(as_tuple(drawn)[0].shape[:2])
            terms = WeightedStructures.of(drawn, ones)
            if self.baseline.needs_argmax:
                best = map_parts(lambda t: t[None], best_structure(oracle, fixed))
                terms = WeightedStructures.concatenate(
                    [terms, WeightedStructures.of(best, torch.zeros_like(ones[:1]), ones[:1])]
                )
            terms = terms.merge_equal()
            terms = replace(terms, weights=terms.weights / self.samples)
        if not needs_gradient(theta):
            return terms
        known = scores(oracle, theta, terms) - differentiable_log_partition(oracle, theta)[terms.instance]
        return replace(terms, weights=terms.weights * one_with_log_gradient(known))

    def weighted_sequences(
        self, system: TransitionSystem, inputs: Any, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        found = sample_ancestral(system, inputs, self.samples, generator=generator)
        if not bool(found.valid.all()):
            raise dead_end_error(type(system).__name__, int((~found.valid).any(0).nonzero()[0]))
        log_p = sequence_log_prob(system, inputs, found.actions)
        weights = (one_with_log_gradient(log_p) if log_p.requires_grad else torch.ones_like(log_p)) / self.samples
        terms = WeightedStructures.of(found.structures, weights)
        if self.baseline.needs_argmax:
            best = decode_greedy(system, inputs)
            one = torch.ones_like(weights[:1]).detach()
            extra = WeightedStructures.of(map_parts(lambda t: t[None], best.structures), torch.zeros_like(one), one)
            terms = WeightedStructures.concatenate([terms, extra])
        return terms.merge_equal()

    def control_variate(self, found: FunctionValues) -> Tensor | None:
        return self.baseline(found, self.samples)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"
