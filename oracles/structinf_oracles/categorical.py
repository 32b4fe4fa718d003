"""One of K classes: the probability simplex, where every relaxation has a closed form."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.kernels.logsumexp import logsumexp
from structinf.oracle import EntropyProjectable, Enumerable, GibbsOracle, KBest, Projectable, Samplable
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, smooth_max_value
from structinf.shapes import Float
from structinf.smoothing import Smoothable, smooth_argmax, smooth_max
from structinf.validation import check_count, check_feasible, check_k, check_number, skips_checks

from .common import capped_simplex
from .common.labels import agreeing_choices

__all__ = ["Categorical"]

_NEGENTROPY = Negentropy()


@dataclass(frozen=True)
class Categorical(GibbsOracle, Samplable, KBest, Smoothable, Projectable, EntropyProjectable, Enumerable):
    """Exactly one of K parts.

    - Scores θ, shape (..., K): the score of each part. −inf forbids a part.
    - Structure y, shape (..., K): a one-hot vector.
    - Labels, shape (...): the index of the part, an integer in [0, K).

    The marginals are the softmax of θ, and the projection onto the convex hull is the sparsemax of θ. Ties go to the
    lowest index.

    References
    ----------
    A. F. T. Martins & R. F. Astudillo, From softmax to sparsemax (ICML 2016), Algorithm 1 and Equation 9.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 1.5, 0.0]])
    >>> Categorical().argmax(theta)
    tensor([[0., 1., 0.]])
    >>> Categorical().project(theta)
    tensor([[0.2500, 0.7500, 0.0000]])
    """

    name: ClassVar[str] = "categorical"
    search_terms: ClassVar[tuple[str, ...]] = ("softmax", "one_hot", "multinomial", "unstructured")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 0

    @property
    def known_set(self) -> Literal["one_of_n"]:
        return "one_of_n"

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1] == 0:
            raise InvalidInputError("theta: categorical needs at least one class to choose from, got K = 0")

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        size = like.shape[1]
        if labels.ndim != 1:
            raise InvalidInputError(f"labels must be one number for each instance, got shape {tuple(labels.shape)}")
        if not skips_checks(labels):
            wrong = (labels < 0) | (labels >= size)
            check_number(wrong.any(), operator.not_, partial(_reject_label, labels, wrong, size))
        # On a GPU, the check may come later.
        return _one_hot(labels.long().clamp(0, size - 1), like)

    def decode(self, y: Tensor) -> Tensor:
        return y.argmax(-1)

    def allowed_parts(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.ndim != 1:
            raise InvalidInputError(f"labels must be one number for each instance, got shape {tuple(labels.shape)}")
        return agreeing_choices(labels, torch.ones_like(labels, dtype=torch.bool), like.shape[1], like.shape[1])

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch k"]:
        value, index = theta.max(1)
        _check_feasible(value)
        return _one_hot(index, theta)

    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        check_k(k)
        batch, size = theta.shape
        scores, order = theta.sort(dim=1, descending=True, stable=True)
        _check_feasible(scores[:, 0])
        missing = max(k - size, 0)
        scores = torch.cat([scores[:, :k], scores.new_full((batch, missing), -torch.inf)], 1).T
        order = torch.cat([order[:, :k], order.new_zeros(batch, missing)], 1).T
        valid = ~torch.isneginf(scores)
        return _one_hot(order, theta) * valid.unsqueeze(2), scores, valid

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        value = smooth_max_value(_NEGENTROPY, theta) if uses_triton(theta) else logsumexp(theta, 1)
        _check_feasible(value.detach())
        return value

    def marginals(self, theta: Tensor) -> Float[Tensor, "batch k"]:
        _check_feasible(theta.amax(1))
        return theta.softmax(1)

    def covariance_product(self, theta: Tensor, v: Tensor) -> Tensor:
        p = self.marginals(theta)
        return p * (v - (p * v).sum(1, keepdim=True))

    def smoothed_value(self, theta: Tensor, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        value = smooth_max(regularizer, theta)
        _check_feasible(value.detach())
        return value

    def smoothed_mean(self, theta: Tensor, regularizer: Regularizer) -> Float[Tensor, "batch k"]:
        _check_feasible(theta.amax(1))
        return regularizer.gradient(theta)

    def smoothed_hessian_product(self, theta: Tensor, v: Tensor, regularizer: Regularizer) -> Tensor:
        return regularizer.hessian_product(self.smoothed_mean(theta, regularizer), v.expand(theta.shape))

    def sample(self, theta: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        check_count(n)
        cumulative = self.marginals(theta.double()).cumsum(1)
        device = theta.device if generator is None else generator.device
        uniform = torch.rand(len(theta), n, dtype=torch.float64, generator=generator, device=device).to(theta.device)
        # The level stays strictly below the total, so that no part of probability 0 at the end is drawn.
        level = uniform * (cumulative[:, -1:] * (1 - 2.0**-52))
        return _one_hot(torch.searchsorted(cumulative, level, right=True).T, theta)

    def sample_without_replacement(
        self, theta: Tensor, n: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw n different choices, (n, B, K), the n best for scores with Gumbel noise; and which exist, (n, B)."""
        check_count(n)
        device = theta.device if generator is None else generator.device
        exponential = torch.empty(theta.shape, dtype=torch.float64, device=device).exponential_(generator=generator)
        noise = -exponential.to(theta.device).clamp(min=torch.finfo(torch.float64).tiny).log()
        y, _, valid = self.topk(theta.double() + noise, max(n, 1))
        return y[:n].to(theta.dtype), valid[:n]

    def project(self, theta: Tensor) -> Float[Tensor, "batch k"]:
        _check_feasible(theta.detach().amax(1))
        return smooth_argmax(SquaredL2(), theta)

    def project_entropy(self, theta: Tensor, *, binary: bool) -> Float[Tensor, "batch k"]:
        """Return the softmax of θ or, if ``binary``, the sigmoid of θ − τ, where τ makes the sum 1."""
        if not binary:
            return self.marginals(theta)
        _check_feasible(theta.detach().amax(1))
        return capped_simplex.entropic(theta, 1, binary=True)

    def enumerate(self, event_shape: Any) -> Tensor:
        return torch.eye(event_shape[0], dtype=torch.float64, device="cpu")


def _reject_label(labels: Tensor, wrong: Tensor, size: int) -> None:
    """Raise InvalidInputError for the first label that is ``wrong``."""
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"labels must lie between 0 and {size - 1}, got {int(labels[index])} at batch index {index}"
        )


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    """Return one-hot vectors (..., K) of ``index`` (...), in the dtype of ``like`` (B, K)."""
    zeros = torch.zeros(*index.shape, like.shape[1], dtype=like.dtype, device=like.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1.0)


def _check_feasible(value: Tensor) -> None:
    check_feasible(value, "choice")
