"""SparseDistribution: a distribution over a list of K structures with weights."""

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
from ..queries.k_best import sparsemax_over_topk
from ..relaxation import Relaxation
from ..solution import RANKED_STRUCTURES, WEIGHTS, Solution
from ..validation import check_flag, check_generator, check_size
from .base import (
    Size,
    StructureConstraint,
    StructureDistribution,
    broadcast_batch_shapes,
    expanded_batch_shape,
    is_labels,
    unflatten_samples,
)
from .gibbs import Gibbs

__all__ = ["SparseDistribution"]


class _Probabilities(constraints.Constraint):
    """Constraint: numbers of at least 0 with a sum of 1 along the first dimension."""

    def check(self, value: Tensor) -> Tensor:
        tolerance = max(1e-6, len(value) * torch.finfo(value.dtype).eps)
        total = value.sum(0, dtype=torch.promote_types(value.dtype, torch.float32))
        return (value >= 0).all(0) & ((total - 1).abs() <= tolerance)


class SparseDistribution(StructureDistribution):
    """p(y) = Σ_k weights[k] · [y = structures[k]], as a torch.distributions.Distribution.

    Three class methods construct the distribution. :meth:`of` takes scores and a relaxation, :meth:`topk` takes the
    k best structures, and :meth:`from_solution` takes the result of :func:`structinf.infer`.

    All quantities are exact. All except ``sample`` and ``mode`` are differentiable in the weights and, through the
    weights, in the scores.

    Several distributions can have the same mean. The distribution returned by ``of`` and ``from_solution``, with its
    entropy and probabilities, may then differ between machines; see :attr:`structinf.Solution.support`.

    Parameters
    ----------
    structures : (K, *batch, *event) Tensor, or tuple of Tensors
        The listed structures. Entries of weight 0 pad instances with fewer than K structures and may hold any values.
        A structure listed twice has the sum of both weights.
    weights : (K, *batch) Tensor
        Probabilities of the structures, at least 0, with a sum of 1 over K.
    validate_args : bool, optional
        Whether to check the weights. The default is torch's, normally True.

    References
    ----------
    Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, §3-4.

    Examples
    --------
    >>> p = SparseDistribution.of(
    ...     torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment"
    ... )
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
                raise TypeError(f"structures and weights must be floating-point tensors, got {received}")
        if weights.ndim == 0 or any(t.shape[: weights.ndim] != weights.shape for t in as_tuple(structures)):
            received = " and ".join(str(tuple(t.shape)) for t in as_tuple(structures))
            raise InvalidInputError(
                "structures (K, *batch, *event) and weights (K, *batch) must begin with the same dimensions, got "
                f"shapes {received} and {tuple(weights.shape)}"
            )
        if not len(weights):
            if weights.shape[1:].numel():
                raise InvalidInputError("weights: each instance needs at least one structure, got none")
            # Reductions over an empty dimension are errors, so K becomes 1 for an empty batch.
            structures, weights = map_parts(_first_row, structures), _first_row(weights)
        self.structures, self.weights = structures, weights
        shapes = tuple(t.shape[weights.ndim :] for t in as_tuple(structures))
        event: Any = shapes if isinstance(structures, tuple) else shapes[0]
        check_flag("validate_args", validate_args, allow_none=True)
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
        """Return the support and weights found by a relaxation.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            Scores of the parts, as for :func:`structinf.infer`.
        oracle : str or Oracle
            The structure: a name from :func:`structinf.list_oracles`, or an oracle.
        relaxation : str or Relaxation
            A relaxation with a support: a name from :func:`structinf.list_relaxations`, or an object.
        generator : torch.Generator, optional
            Random generator of stochastic relaxations. The default is torch's own.
        validate_args : bool, optional
            Whether to check the weights. The default is torch's, normally True.
        **options
            Instance data (``lengths=...``), and options of an oracle or relaxation given by name.

        Raises
        ------
        UnsupportedError
            If the relaxation returns no support.
        """
        solution = infer(theta, oracle, relaxation, generator=generator, **options)
        return cls.from_solution(solution, validate_args=validate_args)

    @classmethod
    def from_solution(cls, solution: Solution, *, validate_args: bool | None = None) -> Self:
        """Return the support and weights of a solution; its sample dimension, if present, joins the batch shape.

        Parameters
        ----------
        solution : Solution
            A result of :func:`structinf.infer` with support and weights.
        validate_args : bool, optional
            Whether to check the arguments, as for torch.distributions.Distribution.
        """
        support = solution.support
        if support is None or solution.weights is None:
            raise UnsupportedError(
                "this solution has a mean but no support. Use the relaxation sparsemap, frank_wolfe or perturbed, or "
                "SparseDistribution.topk, which needs no relaxation"
            )
        return cls(support, solution.weights, validate_args=validate_args)

    @classmethod
    @public_call
    def topk(
        cls, theta: Parts, oracle: str | Oracle, k: int, *, validate_args: bool | None = None, **options: Any
    ) -> Self:
        """Return the k best structures, weighted by the projection of their scores onto the simplex (top-k sparsemax).

        The result equals sparsemax over all structures for each instance with a weight of 0 among the k structures.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            Scores of the parts, as for :func:`structinf.infer`.
        oracle : str or Oracle
            An oracle with the ability :class:`structinf.KBest`, or its name.
        k : int
            The number of structures, at least 1.
        validate_args : bool, optional
            Whether to check the weights. The default is torch's, normally True.
        **options
            Instance data (``lengths=...``), and options of an oracle given by name.
        """
        problem = prepare_oracle(theta, oracle, options)
        with problem.plain_modes():
            structures, weights = sparsemax_over_topk(problem.oracle, problem.theta, k)
        structures = problem.restore_parts(structures, 1, RANKED_STRUCTURES)
        return cls(structures, problem.restore(weights, 1, WEIGHTS), validate_args=validate_args)

    def expand(self, batch_shape: Size, _instance: Any = None) -> Self:
        new: Any = self._get_checked_instance(SparseDistribution, _instance)
        shape = expanded_batch_shape(self.batch_shape, batch_shape)

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
        """Return log p(y), (*sample, *batch), for structures (*sample, *batch, *event); −inf outside the support.

        Parameters
        ----------
        value : (*sample, *batch, *event) Tensor, or tuple of them
            The structures y.
        """
        if not self._has_form(value):
            received = " and ".join(_describe(t) for t in as_tuple(value))
            raise InvalidInputError(
                "value must hold floating-point structures of shape (*sample, *batch, *event) with event shape "
                f"{self.event_shape}, got {received}. Convert labels with structinf.encode"
            )
        p = self._probability(value)
        # The inner `where` keeps 0 from the logarithm, whose infinite slope at 0 would make the gradient NaN.
        return torch.where(p > 0, torch.where(p > 0, p, 1.0).log(), -math.inf).to(self.weights.dtype)

    def entropy(self) -> Tensor:
        """Return −Σ p(y) log p(y) in nats, (*batch)."""
        return self.cross_entropy(self)

    def cross_entropy(self, other: SparseDistribution | Gibbs) -> Tensor:
        """Return −Σ p(y) log q(y) for q = ``other``, (*batch), or inf if q(y) = 0 for a structure with p(y) > 0.

        The two batch shapes are broadcast.

        Parameters
        ----------
        other : SparseDistribution or Gibbs
            The distribution q.
        """
        return self._expectation(other, lambda _, y: -other.log_prob(y))

    def _expectation(self, other: SparseDistribution | Gibbs, f: Callable[[SparseDistribution, Parts], Tensor]) -> Any:
        """Return Σ p(y) f(p, y), with p expanded to the broadcast batch shape; inf if f is infinite on the support."""
        p = self.expand(broadcast_batch_shapes(self.batch_shape, other.batch_shape, what="the two distributions"))
        used = p.weights > 0
        # Entries of weight 0 may be padding and no structure, so f gets the most probable structure instead.
        first = p._select_structures(p.weights.argmax(0)[None])
        values = f(p, map_parts(lambda t, one: torch.where(_weights_like(used, t), t, one), p.structures, first))
        infinite = used & values.isinf()
        total = (p._float32_weights * torch.where(used & ~infinite, values, 0.0)).sum(0)
        return torch.where(infinite.any(0), math.inf, total).to(self.weights.dtype)

    def _has_form(self, value: Any) -> bool:
        """Return whether ``value`` has the shape of structures and is not a tensor of labels."""
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
        """The weights in float32, or in float64 if they are float64, (K, *batch)."""
        return self.weights.to(torch.promote_types(self.weights.dtype, torch.float32))

    # -- structures ---------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, sample_shape: Size = (), generator: torch.Generator | None = None) -> Any:
        """Draw independent samples, (*sample, *batch, *event), from ``generator`` or else torch's random generator."""
        check_generator(generator)
        shape, cumulative = check_size("sample_shape", sample_shape), self.weights.double().cumsum(0)
        cumulative = (cumulative / cumulative[-1:]).movedim(0, -1).contiguous()
        device = self.weights.device if generator is None else generator.device
        uniforms = torch.rand(*self.batch_shape, shape.numel(), dtype=torch.float64, generator=generator, device=device)
        # Take the first index whose cumulative weight exceeds the uniform number. The last cumulative weight is 1. An
        # entry of weight 0 has the cumulative weight of the entry before it, and is never drawn.
        index = torch.searchsorted(cumulative, uniforms.to(cumulative.device), right=True)
        return unflatten_samples(self._select_structures(index.movedim(-1, 0)), shape)

    def rsample(self, sample_shape: Size = (), generator: torch.Generator | None = None) -> Any:
        """Raise UnsupportedError: samples of structures have no derivative."""
        raise UnsupportedError(
            "rsample: the samples of a SparseDistribution are structures, which have no derivative; use sample(), or "
            "Gibbs(..., relaxation=...) for relaxed samples"
        )

    def _select_structures(self, index: Tensor) -> Parts:
        """Return the structures (n, *batch, *event) at indices (n, *batch)."""

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
        """The variance of each part, (*batch, *event)."""
        return map_parts(lambda t, m: self._average((t - m).square()), self.structures, self.mean)

    def _average(self, t: Tensor) -> Tensor:
        return (_weights_like(self._float32_weights, t) * t).sum(0).to(t.dtype)

    @property
    def support(self) -> StructureConstraint:
        """The structures of positive weight."""
        return StructureConstraint("structures of positive weight", len(self.event_shapes[0]), self._contains)

    def _contains(self, value: Any) -> Tensor:
        if not self._has_form(value):
            return torch.zeros(self.batch_shape, dtype=torch.bool, device=self.weights.device)
        return self.log_prob(value) > -math.inf

    def enumerate_support(self, expand: bool = True) -> Any:
        """Return the listed structures, (K, *batch, *event), including the padding of smaller supports.

        Instances have different supports, so ``expand=False`` needs a batch with a single instance.

        Parameters
        ----------
        expand : bool
            Whether to keep the batch dimensions.
        """
        if not expand and self.batch_shape.numel() != 1:
            raise UnsupportedError(
                f"enumerate_support(expand=False): the {self.batch_shape.numel()} instances of the batch have "
                "different supports. Use expand=True"
            )
        return self.structures


def _first_row(t: Tensor) -> Tensor:
    return t.new_zeros(1, *t.shape[1:])


def _describe(t: Any) -> str:
    return f"{tuple(t.shape)} of {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}"


def _weights_like(weights: Tensor, t: Tensor) -> Tensor:
    """Return ``weights`` (K, *batch) with trailing dimensions of 1 that broadcast to ``t``, (K, *batch, *event)."""
    return weights.reshape(weights.shape + (1,) * (t.ndim - weights.ndim))


@register_kl(SparseDistribution, SparseDistribution)
@register_kl(SparseDistribution, Gibbs)
def _kl_of_sparse(p: SparseDistribution, q: SparseDistribution | Gibbs) -> Tensor:
    """Return Σ p(y) log (p(y) / q(y)), or inf if q(y) = 0 for a structure with p(y) > 0."""
    return p._expectation(q, lambda wide, y: wide.log_prob(y) - q.log_prob(y))
