"""Base class of surrogate gradients for samples of the Gibbs distribution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..oracle import GibbsOracle, Oracle, Samplable
from ..parts import Parts, batch_size, divide_by_temperature, map_parts, multiply_by_temperature
from ..regularizers import check_temperature
from ..relaxation import missing_ability_reason
from ..solution import Solution
from ..solvers.perturbation import NoisyCopies
from ..solvers.sampled_structures import DenseStructures
from .surrogate import ArgmaxResult, NoisySurrogate, SampledArgmax

__all__ = ["GibbsSample"]


@dataclass(frozen=True, kw_only=True)
class GibbsSample(NoisySurrogate):
    """Samples of p(y) ∝ exp(⟨θ, y⟩ / temperature), with a surrogate gradient for each sample.

    :meth:`surrogate_gradient` gets the scores θ / temperature, and returns the gradient with respect to them. Autograd
    continues to θ and to the temperature.
    """

    temperature: float | Tensor = 1.0
    samples: int = 1
    reduction: Literal["mean", "none"] = "mean"

    requires = GibbsOracle
    noise: ClassVar[str] = "none"  # type: ignore[misc]
    sigma: ClassVar[float] = 1.0  # type: ignore[misc]

    def _check_sampling(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)
        super()._check_sampling()

    @property
    def is_stochastic(self) -> bool:
        return True

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        return missing_ability_reason(oracle, GibbsOracle) or missing_ability_reason(oracle, Samplable)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        found = super().solve(oracle, divide_by_temperature(theta, self.temperature), warm_start)
        return replace(found, value=multiply_by_temperature(found.value, self.temperature))

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        return super().mean(oracle, divide_by_temperature(theta, self.temperature))

    def _draw(self, oracle: Oracle, theta: Parts, perturbed: NoisyCopies) -> SampledArgmax:
        sampler: Any = oracle
        fixed = map_parts(Tensor.detach, theta)
        drawn = sampler.sample(fixed, self.samples, self.generator)
        structures = map_parts(lambda y, t: y.to(t.dtype), drawn, fixed)
        copies = map_parts(Tensor.detach, perturbed.theta)
        found = DenseStructures(structures, map_parts(lambda y: y.mean(0), structures))
        result = ArgmaxResult(self, perturbed.oracle, copies, fixed, found)
        return SampledArgmax(result, self.samples, batch_size(theta), self.reduction == "none", found)
