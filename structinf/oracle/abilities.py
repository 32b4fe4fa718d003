"""One subclass of Oracle for each optional ability: sums, samples, lists and projections."""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..deferred_checks import check_number, skips_checks
from ..errors import InvalidInputError, PluginError
from ..parts import (
    AnyParts,
    Parts,
    as_tuple,
    hessian_product_by_autograd,
    map_parts,
    pack_like,
    scale_per_instance,
    sum_to_batch_of,
    value_and_gradient_by_autograd,
)
from .base import Oracle

__all__ = [
    "EntropyProjectable",
    "Enumerable",
    "Factorized",
    "GibbsOracle",
    "KBest",
    "Projectable",
    "Samplable",
    "TransportPolytope",
]


class GibbsOracle(Oracle):
    """An oracle with the log-partition function log Z(θ) = log Σ_y exp⟨θ, y⟩.

    A subclass must define only :meth:`log_partition`. Oracles with kernels for derivatives override the other methods.
    """

    @abc.abstractmethod
    def log_partition(self, theta: AnyParts) -> Tensor:
        """Return log Σ_y exp⟨θ, y⟩, (B,).

        Laws:

        - If a tensor of θ requires grad, autograd can differentiate the result to any order. Otherwise a kernel may
          compute the result.
        - −inf parts have gradient 0.
        - InfeasibleError is raised if an instance has no structure of finite score.
        """

    def marginals(self, theta: AnyParts) -> Parts:
        """Return the expectation E[Y] under p(y) ∝ exp⟨θ, y⟩, (B, *event): the gradient of log Z."""
        return self.log_partition_and_marginals(theta)[1]

    def log_partition_and_marginals(self, theta: AnyParts) -> tuple[Tensor, Parts]:
        """Return log Z, (B,), and the marginals, (B, *event).

        The default differentiates :meth:`log_partition`, or calls :meth:`marginals` if a subclass overrides
        :meth:`marginals`. Override this method if one pass of an algorithm computes both results.
        """
        if type(self).marginals is GibbsOracle.marginals:
            return value_and_gradient_by_autograd(self.log_partition, theta)
        return self.log_partition(theta), self.marginals(theta)

    def log_partition_vjp(self, theta: AnyParts, weight: Tensor) -> Parts:
        """Return weight_b ∇ log Z_b in the form of θ, summed over the batch for tensors shared by the batch.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        weight : (B,) Tensor
            The factor of each instance.
        """
        return sum_to_batch_of(scale_per_instance(self.marginals(theta), weight), theta)

    def covariance_product(self, theta: AnyParts, v: AnyParts) -> Parts:
        """Return Cov[Y] v, (B, *event): the product of the Hessian of log Z with ``v``.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        v : (B | 1, *event) Tensor, or tuple of them
            The vector to multiply, in the form of θ.
        """
        product = hessian_product_by_autograd(self.log_partition, theta, v)
        if not skips_checks(as_tuple(product)[0]) and any(bool(t.isnan().any()) for t in as_tuple(product)):
            # A vector that is not finite has products of NaN; log_partition is to blame if the vector 0 has them too.
            product_of_zero = hessian_product_by_autograd(self.log_partition, theta, map_parts(torch.zeros_like, v))
            to_blame = torch.stack([t.flatten(1).isnan().any(1) for t in as_tuple(product_of_zero)]).any(0)
            if bool(to_blame.any()):
                index = int(to_blame.nonzero()[0, 0])
                raise PluginError(
                    f"log_partition of {self.label()} has a second derivative of NaN at batch index {index}: "
                    "torch.logaddexp and torch.logsumexp give NaN beside −inf; use logaddexp and logsumexp of "
                    "structinf.kernels.logsumexp, or override covariance_product"
                )
        return product


class Samplable(Oracle):
    """An oracle with exact samples of p(y) ∝ exp⟨θ, y⟩."""

    @abc.abstractmethod
    def sample(self, theta: AnyParts, n: int, generator: torch.Generator | None = None) -> Parts:
        """Return ``n`` independent exact samples for each instance, (n, B, *event).

        If a random generator is given, it is the only source of randomness.
        """


class KBest(Oracle):
    """An oracle that lists the k best structures."""

    @abc.abstractmethod
    def topk(self, theta: AnyParts, k: int) -> tuple[Parts, Tensor, Tensor]:
        """Return the ``k`` structures of highest score, best first.

        Returns
        -------
        structures : (k, B, *event) Tensor, or tuple of them
            The structures; 0 for ranks that are not valid.
        scores : (k, B) Tensor
            The scores ⟨θ, y⟩; −inf for ranks that are not valid.
        valid : (k, B) bool Tensor
            False for ranks beyond the number of structures of finite score.
        """


class Projectable(Oracle):
    """An oracle with a closed-form projection onto conv(Y)."""

    @abc.abstractmethod
    def project(self, theta: AnyParts) -> Parts:
        """Return argmin ‖θ − μ‖² over μ ∈ conv(Y), (B, *event), differentiable by autograd."""


class EntropyProjectable(Oracle):
    """An oracle with a closed form for the entropy-regularized mean over conv(Y)."""

    @abc.abstractmethod
    def project_entropy(self, theta: AnyParts, *, binary: bool) -> Parts:
        """Return argmax ⟨θ, μ⟩ − Σ μ log μ over μ ∈ conv(Y), (B, *event), differentiable by autograd.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        binary : bool
            Whether to subtract Σ (1 − μ) log (1 − μ) too.
        """


class TransportPolytope(Oracle):
    """An oracle whose conv(Y) is a transport polytope: matrices μ ≥ 0 with given row sums r and column sums c.

    If Σ r and Σ c differ, the sums of the side with the larger total are upper bounds:

        μ 1 = r,  μᵀ 1 = c  if Σ r = Σ c
        μ 1 = r,  μᵀ 1 ≤ c  if Σ r < Σ c
        μ 1 ≤ r,  μᵀ 1 = c  if Σ r > Σ c
    """

    @abc.abstractmethod
    def margins(self, theta: AnyParts) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the row sums r and column sums c for θ (B, n, m), and the total Σ μ.

        Returns
        -------
        rows : (B | 1, n) Tensor
            r, at least 0, in the dtype of θ, or in float64 if the dtype of θ would round the sums.
        columns : (B | 1, m) Tensor
            c, at least 0, in the dtype of ``rows``.
        total : (B,) Tensor or None
            Σ μ; None for min(Σ r, Σ c). If Σ μ is smaller than both totals, all sums are upper bounds.
        """


class Enumerable(Oracle):
    """An oracle with a list of all its structures. Built-in oracles list at most 1,000,000 structures."""

    @abc.abstractmethod
    def enumerate(self, event_shape: Any) -> Parts:
        """Return all structures for scores of ``event_shape``, (|Y|, *event), in float64.

        ``event_shape`` is a shape, or a tuple of shapes if θ is a tuple. Bound lengths must have shape (1,) or
        (1, ...). The structures then have this length and are padded with 0.
        """


class Factorized(Oracle):
    """An oracle whose structures are assignments of values to discrete variables, scored by tables over variables.

    θ is a tuple with a table for each factor, (B | 1, c1, c2, ...), with the cardinalities of the factor's variables.
    A structure has 1 at the entry of each table that belongs to the values of its variables, and 0 elsewhere. Message
    passing needs nothing else of an oracle.
    """

    @abc.abstractmethod
    def factorization(self) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        """Return the cardinalities of the variables, and the variables of each factor, numbered from 0.

        Laws:

        - Factor k has at least one variable, no variable twice, and the table θ[k], whose axes are its variables.
        - Each variable belongs to at least one factor.
        - Y has a structure for each assignment of values to the variables.
        """

    def allowed_parts(self, labels: Tensor, like: AnyParts) -> Parts:
        """Return which entries of the tables agree with the values ``labels`` (B, n), of which −1 is unknown."""
        cardinalities, factors = self.factorization()
        count = len(cardinalities)
        if labels.ndim != 2 or labels.shape[1] != count:
            raise InvalidInputError(
                f"labels must be the value of each of {count} variables, (B, {count}), got shape {tuple(labels.shape)}"
            )
        sizes = torch.tensor(cardinalities, device="cpu").to(labels.device)
        check_number(
            ((labels < -1) | (labels >= sizes)).any(), operator.not_, functools.partial(_reject_values, labels, sizes)
        )
        masks = []
        for factor in factors:
            mask = torch.ones(len(labels), *[1] * len(factor), dtype=torch.bool, device=labels.device)
            for axis, v in enumerate(factor):
                value = labels[:, v : v + 1]
                agrees = (value == -1) | (value == torch.arange(cardinalities[v], device=labels.device))
                shape = [1] * len(factor)
                shape[axis] = cardinalities[v]
                mask = mask & agrees.view(len(labels), *shape)
            masks.append(mask)
        return pack_like(masks, like)


def _reject_values(labels: Tensor, sizes: Tensor) -> None:
    index, v = ((labels < -1) | (labels >= sizes)).nonzero()[0].tolist()
    raise InvalidInputError(
        f"labels must be values between 0 and {int(sizes[v]) - 1}, or −1 (unknown), got {int(labels[index, v])} for "
        f"variable {v} at batch index {index}"
    )
