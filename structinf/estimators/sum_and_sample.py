"""sum_and_sample: an exact sum over the k best structures, and samples of the other structures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import GibbsOracle, KBest, Samplable
from ..parts import Parts, as_tuple, map_parts
from ..smoothing import differentiable_log_partition
from ..validation import check_choice, check_k, check_natural
from .base import Estimator
from .weighted_structures import (
    FunctionValues,
    WeightedStructures,
    needs_gradient,
    one_with_log_gradient,
    scores,
    select_instances,
)

__all__ = ["SumAndSample"]


class SumAndSample(Estimator):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, from the k best structures S and samples of the other structures:

        Σ_{y ∈ S} p(y) f(y) + P(Y ∉ S) · mean of f over samples of p(· | Y ∉ S),

    with the gradient Σ_S (f(y) − b) ∇p(y) + P(Y ∉ S) · mean of (f(y) − b) ∇log p(y). Value and gradient are
    unbiased.

    Each instance draws samples of p until ``samples`` of them lie outside S, with at most ``draws`` draws. With
    probability P(Y ∈ S)^draws, no sample lies outside S, and the other structures count as 0. Otherwise, they count
    1 / (1 − P(Y ∈ S)^draws) times as much. Instances without structures outside S draw no samples.

    The cost of an instance is at most k + samples evaluations of f, one k-best call, one log-partition function,
    and samples / P(Y ∉ S) draws in expectation.

    Parameters
    ----------
    k : int
        The number of structures in the exact sum, at least 1.
    samples : int
        The number of samples outside S, at least 1.
    draws : int
        Maximal number of draws of an instance, at least ``samples``.
    baseline : "listed" or "none"
        The baseline b. "listed" is the mean of f over S, weighted by probability. "none" is 0.

    References
    ----------
    Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, Rao-Blackwellized Stochastic Gradients for Discrete
    Distributions.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> rng = torch.Generator().manual_seed(0)
    >>> estimator = SumAndSample(k=2)
    >>> f = lambda y: y @ cost
    >>> si.expect(f, theta, "subset", estimator, k=2, generator=rng)
    tensor([3.7905])
    """

    requires = (GibbsOracle, KBest, Samplable)

    def __init__(self, *, k: int = 10, samples: int = 1, draws: int = 100, baseline: str = "listed") -> None:
        super().__init__()
        check_k(k)
        check_natural("samples", samples)
        check_natural("draws", draws)
        check_choice("baseline", baseline, ("listed", "none"))
        if draws < samples:
            raise InvalidInputError(f"draws must be at least samples ({samples}), got {draws}")
        self.k, self.samples, self.draws, self.baseline = k, samples, draws, baseline

    def weighted_structures(
        self, oracle: Any, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        exact, fixed = map_parts(Tensor.double, theta), map_parts(Tensor.detach, theta)
        with torch.no_grad():
            # One structure more than k shows whether structures outside S exist.
            structures, _, valid = oracle.topk(fixed, self.k + 1)
        best = map_parts(lambda t: t[: self.k], structures)
        log_z = differentiable_log_partition(oracle, exact)
        listed = WeightedStructures.of(best, valid[: self.k].to(log_z.dtype)).drop_zero_weights()
        known = scores(oracle, exact, listed)
        log_z = log_z + _correction_of_large(log_z.detach(), known.detach(), listed.instance)
        # Rounding errors must not give a probability above 1.
        listed = replace(listed, weights=(known - log_z[listed.instance]).clamp(max=0.0).exp())
        with torch.no_grad():
            mass = listed.sum(listed.weights)
            listed = replace(listed, control=listed.weights / mass[listed.instance])
            remaining_mass = (1 - mass).clamp(min=0.0)
            others = self._sample_others(oracle, fixed, best, valid[self.k] & (remaining_mass > 0), generator)
            mass_factor = (
                remaining_mass / -torch.expm1(self.draws * torch.log1p(-remaining_mass)) / others.sum(others.weights)
            )
            others = replace(others, weights=mass_factor[others.instance] * others.weights)
        if needs_gradient(theta):
            known = scores(oracle, exact, others) - log_z[others.instance]
            others = replace(others, weights=others.weights * one_with_log_gradient(known))
        terms = WeightedStructures.concatenate([listed, others])
        return replace(terms, weights=terms.weights.to(as_tuple(theta)[0].dtype)).drop_zero_weights()

    def control_variate(self, found: FunctionValues) -> Tensor | None:
        return found.controls() if self.baseline == "listed" else None

    def _sample_others(
        self, oracle: Any, theta: Parts, best: Parts, any_left: Tensor, generator: torch.Generator | None
    ) -> WeightedStructures:
        """Return samples outside ``best`` (k, B, *event); the weight of a distinct sample is its number of draws."""
        size, taken = any_left.numel(), torch.zeros_like(any_left, dtype=torch.int64)
        rows, num_drawn, count = any_left.nonzero()[:, 0], 0, self.samples
        several = [
            WeightedStructures.of(map_parts(lambda t: t[:0], best), taken.new_zeros(0, size, dtype=torch.float64))
        ]
        while len(rows) and num_drawn < self.draws:
            count = min(count, self.draws - num_drawn)
            y = oracle[rows].sample(select_instances(theta, rows), count, generator)
            new = ~_is_listed(y, map_parts(lambda t, rows=rows: t[:, rows], best))
            new &= new.cumsum(0) <= self.samples - taken[rows]
            taken[rows] += new.sum(0)
            new_samples = WeightedStructures.of(y, new.double())
            several.append(replace(new_samples, instance=rows[new_samples.instance], batch=size).drop_zero_weights())
            num_drawn, count = num_drawn + count, 2 * count
            rows = rows[taken[rows] < self.samples]
        return WeightedStructures.concatenate(several).merge_equal()

    def extra_repr(self) -> str:
        return f"k={self.k}, samples={self.samples}, draws={self.draws}, baseline={self.baseline!r}"


def _correction_of_large(log_z: Tensor, known: Tensor, instance: Tensor) -> Tensor:
    """Return the change (B,) of ``log_z`` to the logarithm of the sum over the listed structures, if it is very large.

    The rounding error of scores above 1e15 exceeds 1, and the difference of a score and ``log_z`` has no digits left.
    Other structures then have no weight, except for structures of equal score.
    """
    best = torch.full_like(log_z, -torch.inf).scatter_reduce(0, instance, known, "amax")
    total = torch.zeros_like(log_z).index_add(0, instance, (known - best[instance]).exp())
    is_large = log_z.abs() * torch.finfo(log_z.dtype).eps > 1
    return torch.where(is_large, best + total.log() - log_z, 0.0)


def _is_listed(y: Parts, best: Parts) -> Tensor:
    """Return whether each structure ``y`` (n, B, *event) is in its instance's ``best`` (k, B, *event), (n, B) bool."""
    columns = list(zip(as_tuple(y), as_tuple(best), strict=True))
    found = torch.zeros(columns[0][0].shape[:2], dtype=torch.bool, device=columns[0][0].device)
    for i in range(len(columns[0][1])):
        found |= torch.stack([(a == b[i]).flatten(2).all(2) for a, b in columns]).all(0)
    return found
