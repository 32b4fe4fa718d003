"""Base class of surrogate gradients for samples of one choice among n, by a softmax of other scores."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from torch import Tensor

from ..errors import PluginError
from ..oracle import Oracle
from ..parts import Parts
from ..validation import check_in_range, check_positive
from .gibbs_sample import GibbsSample
from .surrogate import ArgmaxResult

__all__ = ["CategoricalSample"]


@dataclass(frozen=True, kw_only=True)
class CategoricalSample(GibbsSample):
    """A sample y of softmax(θ / temperature), with the Jacobians of a softmax at other scores, averaged."""

    backward_temperature: float = 1.0

    def __post_init__(self) -> None:
        self._check_sampling()
        check_positive("backward_temperature", self.backward_temperature)

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
        check_in_range("backward_temperature", self.backward_temperature, theta.dtype)
        soft = (self.surrogate_scores(theta.expand_as(y), y) / self.backward_temperature).softmax(2)
        product = soft * (v - (soft * v).sum(2, keepdim=True))
        return product.mean(0) / self.backward_temperature
