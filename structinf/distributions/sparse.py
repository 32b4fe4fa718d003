"""SparseDistribution: a few structures with their probabilities."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl
from typing_extensions import Self

from ..api import infer
from ..calls.resolution import prepare_oracle
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, list_to_tuple, map_parts
from ..queries import sparsemax_over_topk
from ..relaxation import Relaxation
from ..solution import Solution
from ..validation import check_generator
from .base import Size, StructureConstraint, StructureDistribution, broadcast_batch_shapes, is_labels, unflatten_samples
from .gibbs import Gibbs

__all__ = ["SparseDistribution"]


class _Probabilities(constraints.Constraint):
    """Numbers of at least 0 that sum to 1 along the first dimension."""

    def check(self, value: Tensor) -> Tensor:
        tolerance = max(1e-6, len(value) * torch.finfo(value.dtype).eps)
        total = value.sum(0, dtype=torch.promote_types(value.dtype, torch.float32))
        return (value >= 0).all(0) & ((total - 1).abs() <= tolerance)


class SparseDistribution(StructureDistribution):
    """p(y) = Σ_k weights[k] · [y = structures[k]], as a torch.distributions.Distribution.

    ``of`` makes it of potentials and a relaxation, ``topk`` of the best structures, ``from_solution`` of what
    :func:`structinf.infer` found. All is exact, and all but ``sample`` and ``mode`` is differentiable in the weights
    and, through them, in potentials.

    Several distributions can have the mean of a relaxation. Which of them ``of`` and ``from_solution`` return may then
    differ between machines, and the entropy and probabilities with it; see :attr:`structinf.Solution.support`.

    Parameters
    ----------
    structures : (K, *batch, *event) Tensor, or tuple of them
        Beyond an instance's own, anything of weight 0. One that is listed twice has the sum of both weights.
    weights : (K, *batch) Tensor
        At least 0, with a sum of 1 over K.
    validate_args : bool, optional
        Whether the weights are checked. Torch's default, True, if left out.

    References
    ----------
    Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, §3-4.

    Examples
    --------
    >>> p = SparseDistribution.of(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment")
    >>> p.weights, p.entropy()
    (tensor([0.8750, 0.1250]), tensor(0.3768))
    >>> p.log_prob(torch.eye(2)), p.log_prob(torch.ones(2, 2))
    (tensor(-0.1335), tensor(-inf))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"weights": _Probabilities()}
    has_enumerate_support = True

    def __init__(self, structures: Parts, weights: Tensor, *, validate_args: bool | None = None) -> None:
        structures = list_to_tuple(structures)
        for t in (*as_tuple(structures), weights):
            if not isinstance(t, Tensor) or not t.is_floating_point():
                received = t.dtype if isinstance(t, Tensor) else type(t).__name__
                raise TypeError(f"structures and weights: floating-point tensors are needed, got {received}")
        if weights.ndim == 0 or any(t.shape[: weights.ndim] != weights.shape for t in as_tuple(structures)):
            received = " and ".join(str(tuple(t.shape)) for t in as_tuple(structures))
            raise InvalidInputError(
                "structures (K, *batch, *event) and weights (K, *batch) must begin with the same dimensions, got "
                f"shapes {received} and {tuple(weights.shape)}"
            )
        if not len(weights):
            if weights.shape[1:].numel():
                raise InvalidInputError("weights: each instance needs at least one structure, got none")
            # A row of no numbers, since reductions over none are errors.
            structures, weights = map_parts(_first_row, structures), _first_row(weights)
        self.structures, self.weights = structures, weights
        shapes = tuple(t.shape[weights.ndim :] for t in as_tuple(structures))
        event: Any = shapes if isinstance(structures, tuple) else shapes[0]
        super().__init__(weights.shape[1:], event, validate_args=validate_args)

    @classmethod
    @public_call
    def of(
        cls,
        theta: Parts,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "sparsemap",
        *,
        generator: torch.Generator | None = None,
        validate_args: bool | None = None,
        **options: Any,
    ) -> Self:
        """The support of a relaxation with its weights; the arguments are those of :func:`structinf.infer`.

        UnsupportedError if the relaxation keeps no support.
        """
        solution = infer(theta, oracle, relaxation, generator=generator, **options)
        return cls.from_solution(solution, validate_args=validate_args)

    @classmethod
    def from_solution(cls, solution: Solution, *, validate_args: bool | None = None) -> Self:
        """The support of a solution with its weights; samples that it keeps apart are part of the batch."""
        support = solution.support
        if support is None or solution.weights is None:
            raise UnsupportedError(
                "this solution has no support, only a mean; those of sparsemap, frank_wolfe and perturbed have one, "
                "and SparseDistribution.topk needs no relaxation"
            )
        return cls(support, solution.weights, validate_args=validate_args)

    @classmethod
    @public_call
    def topk(
        cls, theta: Parts, oracle: str | Oracle, k: int, *, validate_args: bool | None = None, **options: Any
    ) -> Self:
        """The k best structures, weighed by the projection of their scores onto the simplex (top-k sparsemax).

        That is sparsemax over all structures wherever one of the k has weight 0.
        """
        problem = prepare_oracle(theta, oracle, options)
        with problem.plain_modes():
            structures, weights = sparsemax_over_topk(problem.oracle, problem.theta, k)
        return cls(problem.restore_parts(structures, 1), problem.restore(weights, 1), validate_args=validate_args)

    def expand(self, batch_shape: Size, _instance: Any = None) -> Self:
        new: Any = self._get_checked_instance(SparseDistribution, _instance)
        shape = self._check_expand(batch_shape)

        def wide(t: Tensor) -> Tensor:
            event = t.shape[self.weights.ndim :]
            ones = [1] * (len(shape) - len(self.batch_shape))
            return t.reshape(len(t), *ones, *t.shape[1:]).expand(-1, *shape, *event)

        new.structures, new.weights = map_parts(wide, self.structures), wide(self.weights)
        StructureDistribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        shapes = [str(tuple(t.shape)) for t in as_tuple(self.structures)]
        structures = f"({', '.join(shapes)})" if isinstance(self.structures, tuple) else shapes[0]
        return f"SparseDistribution(structures: {structures}, weights: {tuple(self.weights.shape)})"

    # -- probabilities ------------------------------------------------------------------------

    def log_prob(self, value: Parts) -> Tensor:
        """log p(y), (*sample, *batch), for structures (*sample, *batch, *event), −inf for those without a weight."""
        if not self._has_form(value):
            received = " and ".join(_describe(t) for t in as_tuple(value))
            raise InvalidInputError(
                "value: structures of shape (*sample, *batch, *event) in floating point are needed, with event "
                f"{self.event_shape}, got {received}; structinf.encode makes them of labels"
            )
        p = self._probability(value)
        # The logarithm must not see 0, where its slope is infinite.
        return torch.where(p > 0, torch.where(p > 0, p, 1.0).log(), -math.inf).to(self.weights.dtype)

    def entropy(self) -> Tensor:
        """−Σ p(y) log p(y) in nats, (*batch)."""
        return self.cross_entropy(self)

    def cross_entropy(self, other: SparseDistribution | Gibbs) -> Tensor:
        """−Σ p(y) log q(y) for q = ``other``; inf where q lacks a structure that p has.

        The batches are broadcast.
        """
        return self._expectation(other, lambda _, y: -other.log_prob(y))

    def _expectation(self, other: SparseDistribution | Gibbs, f: Callable[[SparseDistribution, Parts], Tensor]) -> Any:
        """Σ p(y) f(p, y), for p expanded to the batch that it has with another distribution; inf if an f is."""
        p = self.expand(broadcast_batch_shapes(self.batch_shape, other.batch_shape, what="the two distributions"))
        used = p.weights > 0
        # What fills the supports up need not be a structure, so that the first one stands in.
        first = p._select_structures(p.weights.argmax(0)[None])
        values = f(p, map_parts(lambda t, one: torch.where(_weights_like(used, t), t, one), p.structures, first))
        infinite = used & values.isinf()
        total = (p._float32_weights * torch.where(used & ~infinite, values, 0.0)).sum(0)
        return torch.where(infinite.any(0), math.inf, total).to(self.weights.dtype)

    def _has_form(self, value: Any) -> bool:
        """Whether structures may have the form of ``value``."""
        return self._leading_shapes(value) is not None and not is_labels(as_tuple(value)[0])

    def _probability(self, value: Parts) -> Tensor:
        total = self._float32_weights.new_zeros(self._shape_of(value))
        for k, weight in enumerate(self._float32_weights):
            same = [
                (t == y[k]).unsqueeze(-1).flatten(-1 - len(event)).all(-1)
                for t, y, event in zip(as_tuple(value), as_tuple(self.structures), self.event_shapes, strict=True)
            ]
            total = total + torch.where(functools.reduce(torch.logical_and, same), weight, 0.0)
        return total

    @property
    def _float32_weights(self) -> Tensor:
        """The weights in single precision at least."""
        return self.weights.to(torch.promote_types(self.weights.dtype, torch.float32))

    # -- structures ---------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, sample_shape: Size = (), generator: torch.Generator | None = None) -> Any:
        """Independent samples, (*sample, *batch, *event), drawn from ``generator`` alone if one is given."""
        check_generator(generator)
        shape, cumulative = torch.Size(sample_shape), self.weights.double().cumsum(0)
        cumulative = (cumulative / cumulative[-1:]).movedim(0, -1).contiguous()
        device = self.weights.device if generator is None else generator.device
        uniforms = torch.rand(*self.batch_shape, shape.numel(), dtype=torch.float64, generator=generator, device=device)
        # The first sum above the number: one of weight 0 adds nothing to the sum before it, and the last sum is 1.
        index = torch.searchsorted(cumulative, uniforms.to(cumulative.device), right=True)
        return unflatten_samples(self._select_structures(index.movedim(-1, 0)), shape)

    def _select_structures(self, index: Tensor) -> Parts:
        """Structures (n, *batch, *event) for indices (n, *batch)."""

        def pick(t: Tensor) -> Tensor:
            return t.gather(0, _weights_like(index, t).expand(*index.shape, *t.shape[index.ndim :]))

        return map_parts(pick, self.structures)

    @property
    @torch.no_grad()
    def mode(self) -> Any:
        """The most probable structure, (*batch, *event)."""
        return map_parts(lambda t: t[0], self._select_structures(self._probability(self.structures).argmax(0)[None]))

    @property
    def mean(self) -> Any:
        """E[Y] = Σ_k weights[k] · structures[k], (*batch, *event)."""
        return map_parts(self._average, self.structures)

    @property
    def variance(self) -> Any:
        """Of each part, (*batch, *event)."""
        return map_parts(lambda t, m: self._average((t - m).square()), self.structures, self.mean)

    def _average(self, t: Tensor) -> Tensor:
        return (_weights_like(self._float32_weights, t) * t).sum(0).to(t.dtype)

    @property
    def support(self) -> StructureConstraint:
        """The structures that have a weight."""
        return StructureConstraint("structures of positive weight", len(self.event_shapes[0]), self._contains)

    def _contains(self, value: Any) -> Tensor:
        if not self._has_form(value):
            return torch.zeros(self.batch_shape, dtype=torch.bool, device=self.weights.device)
        return self.log_prob(value) > -math.inf

    def enumerate_support(self, expand: bool = True) -> Any:
        """The structures as they are listed, (K, *batch, *event), with those that fill up the smaller supports.

        Each instance has its own, so that ``expand=False`` is for a batch of one alone.
        """
        if not expand and self.batch_shape.numel() != 1:
            raise UnsupportedError(
                f"enumerate_support: the {self.batch_shape.numel()} instances of the batch have supports of their own; "
                "there is none without batch dimensions (expand=False)"
            )
        return self.structures


def _first_row(t: Tensor) -> Tensor:
    return t.new_zeros(1, *t.shape[1:])


def _describe(t: Any) -> str:
    return f"{tuple(t.shape)} of {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}"


def _weights_like(weights: Tensor, t: Tensor) -> Tensor:
    """``weights`` (K, *batch) with the dimensions of ``t``, (K, *batch, *event)."""
    return weights.reshape(weights.shape + (1,) * (t.ndim - weights.ndim))


@register_kl(SparseDistribution, SparseDistribution)
@register_kl(SparseDistribution, Gibbs)
def _kl_of_sparse(p: SparseDistribution, q: SparseDistribution | Gibbs) -> Tensor:
    """Σ p(y) log (p(y) / q(y)), infinite where q lacks a structure that p has."""
    return p._expectation(q, lambda wide, y: wide.log_prob(y) - q.log_prob(y))
