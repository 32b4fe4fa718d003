"""Base class of surrogate gradients for samples of one choice among n, by a softmax of other scores."""

from __future__ import annotations

import abc
import copy
from dataclasses import dataclass, replace

from torch import Tensor

from ..errors import InvalidInputError, PluginError
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from ..regularizers import check_temperature
from ..solvers.perturbation import NoisyCopies
from ..validation import check_in_range, check_positive
from .gibbs_sample import GibbsSample
from .surrogate import ArgmaxResult, SampledArgmax

__all__ = ["CategoricalSample"]


@dataclass(frozen=True, kw_only=True)
class CategoricalSample(GibbsSample):
    """A sample y of softmax(θ / temperature), with the Jacobians of a softmax at other scores, averaged."""

    backward_temperature: float | Tensor = 1.0

    def __post_init__(self) -> None:
        self._check_sampling()
        check_temperature(self.backward_temperature, allow_tensor=True, name="backward_temperature")
        if isinstance(self.backward_temperature, Tensor) and self.backward_temperature.requires_grad:
            raise InvalidInputError(
                f"backward_temperature: {self.label()} has no gradient in the temperature of its backward pass; pass a "
                "number, or a tensor without requires_grad"
            )

    def _draw(self, oracle: Oracle, theta: Parts, perturbed: NoisyCopies) -> SampledArgmax:
        drawn = super()._draw(oracle, theta, perturbed)
        # A tensor may change before the backward pass, as in a schedule.
        temperature = float(self.backward_temperature)
        check_positive("backward_temperature", temperature)
        check_in_range("backward_temperature", temperature, as_tuple(theta)[0].dtype)
        fixed = copy.copy(self)
        object.__setattr__(fixed, "backward_temperature", temperature)
        return replace(drawn, argmax_result=replace(drawn.argmax_result, surrogate=fixed))

    @abc.abstractmethod
    def surrogate_scores(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the scores (K, B, n) at which the softmax is differentiated, for ``scores`` (B, n) and samples y."""

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if oracle.known_set != "one_of_n":
            return f"{self.label()} is defined for one choice among n, such as the oracle categorical"
        return super().unsupported_reason(oracle)

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        theta, y = result.theta, result.y
        if not (isinstance(theta, Tensor) and isinstance(y, Tensor) and isinstance(v, Tensor)):
            raise PluginError(f"{result.oracle.label()} must have scores in one tensor, as known_set says")
        soft = (self.surrogate_scores(theta.expand_as(y), y) / self.backward_temperature).softmax(2)
        product = soft * (v - (soft * v).sum(2, keepdim=True))
        return product.mean(0) / self.backward_temperature
