"""Gibbs: the distribution over the structures of an oracle proportional to exp⟨θ, y⟩."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.distributions import register_kl
from torch.distributions.constraints import Constraint
from typing_extensions import Self

from .. import autograd
from ..api import same_instances
from ..calls.arguments import OnInfeasible
from ..calls.gold import encode_labels, flatten_parts
from ..calls.problem import Problem
from ..calls.resolution import check_supported, prepare_oracle
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Enumerable, GibbsOracle, Oracle, Samplable
from ..parts import Parts, as_tuple, divide_by_temperature, inner_product, list_to_tuple, map_parts, pack_like
from ..queries.samples import distinct_samples
from ..queries.sums import gibbs_entropy
from ..regularizers import Negentropy, check_temperature
from ..relaxation import Relaxation, missing_ability_reason, resolve_relaxation
from ..relaxations.marginals import Marginals
from ..relaxations.stochastic import Stochastic
from ..smoothing import differentiable_log_partition, log_partition_function
from ..solution import LOG_VALUE, RANKED_STRUCTURES, RANKED_VALUES, WEIGHTS
from ..solvers.argmax import best_structure
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
from .membership import are_members, check_members
from .variance import variances

__all__ = ["DistinctSamples", "Gibbs"]

T = TypeVar("T")


class DistinctSamples(NamedTuple):
    """Structures drawn without replacement, in the order of the draws.

    Attributes
    ----------
    structures : (n, ..., *event) Tensor, or tuple of them
        The structures; 0 for draws that are not valid.
    log_probs : (n, ...) Tensor
        log p(y) of each structure, without a gradient; −inf for draws that are not valid.
    valid : (n, ...) bool Tensor
        False for draws beyond the number of structures of positive probability.
    """

    structures: Parts
    log_probs: Tensor
    valid: Tensor


class Gibbs(StructureDistribution):
    """p(y) ∝ exp(⟨θ, y⟩ / temperature) over the structures y of an oracle, as a torch.distributions.Distribution.

    All quantities are exact. ``log_prob``, ``entropy``, ``cross_entropy``, ``kl_divergence``, ``log_partition``,
    ``mean`` and ``variance`` are differentiable in θ; ``sample`` and ``mode`` are not. If θ is a tuple of tensors, each
    structure is a tuple of tensors too, and ``event_shape`` is a tuple of sizes.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of Tensors
        Scores of the parts, as for :func:`structinf.relax`; ``...`` is the batch shape.
    oracle : str or Oracle
        An oracle with a log-partition function (:class:`structinf.GibbsOracle`), or its name. ``sample`` also needs
        :class:`structinf.Samplable`, and ``enumerate_support`` needs :class:`structinf.Enumerable`.
    temperature : float
        Above 0, default 1. Lower temperatures concentrate the distribution on the mode.
    relaxation : str or Relaxation, optional
        Relaxation for ``rsample``, applied to θ / temperature plus Gumbel noise; ``stochastic`` draws its own noise
        instead. Relaxed samples are differentiable in θ but are not samples of p. By default, ``rsample`` is an error.
    validate_args : bool, optional
        Whether ``log_prob`` checks that values are structures. The default is torch's, normally True.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance log Z
        and log-probabilities of −inf, and samples, mean, variance and entropy of 0, without a gradient.
    **options
        Instance data of the oracle (``lengths=...``), and options of an oracle given by name.

    Raises
    ------
    UnsupportedError
        If the oracle has no log-partition function, or does not support the relaxation.

    References
    ----------
    Wainwright & Jordan 2008, Graphical Models, Exponential Families, and Variational Inference, §3.

    Examples
    --------
    >>> trees = Gibbs(torch.zeros(2, 4, 4), "arborescence")
    >>> trees.entropy()  # log 16
    tensor([2.7726, 2.7726])
    >>> trees.log_prob(torch.tensor([0, 1, 1])).exp()  # labels: heads
    tensor([0.0625, 0.0625])
    >>> trees.sample((5,)).shape
    torch.Size([5, 2, 4, 4])
    """

    # Torch's constraints would also check the padding, which may hold any values, so `Problem` checks θ instead.
    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    @public_call
    def __init__(
        self,
        theta: Parts,
        oracle: str | Oracle,
        *,
        temperature: float = 1.0,
        relaxation: str | Relaxation | None = None,
        validate_args: bool | None = None,
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        problem = prepare_oracle(theta, oracle, options, on_infeasible)
        problem.finish_checks()
        if reason := missing_ability_reason(problem.oracle, GibbsOracle):
            raise UnsupportedError(
                f"Gibbs cannot be computed: {reason}. For any oracle, use SparseDistribution.of(theta, oracle), or the "
                "relaxation perturbed for random structures"
            )
        check_temperature(temperature)
        Marginals(temperature=temperature).check_scale(as_tuple(problem.theta)[0].dtype)
        stochastic = None if relaxation is None else _stochastic_relaxation(relaxation, problem.oracle)
        self._set_attributes(list_to_tuple(theta), problem.whole_oracle, temperature, stochastic, on_infeasible)
        shapes = problem.event_shapes
        event: Any = shapes if isinstance(problem.theta, tuple) else shapes[0]
        check_flag("validate_args", validate_args, allow_none=True)
        super().__init__(problem.batch_shape, event, validate_args=validate_args)

    def _set_attributes(
        self,
        theta: Parts,
        oracle: Any,
        temperature: float,
        relaxation: Stochastic | None,
        on_infeasible: OnInfeasible,
    ) -> None:
        self.theta, self.oracle = theta, oracle
        self.on_infeasible: OnInfeasible = on_infeasible
        self.temperature, self.relaxation = temperature, relaxation
        self.has_rsample = relaxation is not None
        self.has_enumerate_support = isinstance(oracle, Enumerable)

    def expand(self, batch_shape: Size, _instance: Any = None) -> Self:
        new: Any = self._get_checked_instance(Gibbs, _instance)
        shape = expanded_batch_shape(self.batch_shape, batch_shape)
        new._set_attributes(*self._expanded(shape), self.temperature, self.relaxation, self.on_infeasible)
        StructureDistribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        shapes = [str(tuple(t.shape)) for t in as_tuple(self.theta)]
        theta = f"({', '.join(shapes)})" if isinstance(self.theta, tuple) else shapes[0]
        relaxation = "" if self.relaxation is None else f", relaxation={self.relaxation!r}"
        return f"Gibbs(theta: {theta}, oracle={self.oracle!r}, temperature={self.temperature}{relaxation})"

    # -- probabilities ------------------------------------------------------------------------

    @property
    @public_call
    def log_partition(self) -> Tensor:
        """log Σ exp(⟨θ, y⟩ / temperature), (*batch)."""
        return self._solve(lambda problem: problem.restore(self._log_partition(problem), fill=LOG_VALUE))

    @public_call
    def log_prob(self, value: Any) -> Tensor:
        """Return log p(y), (*sample, *batch), at most 0; −inf for a structure with a part of score −inf.

        Parameters
        ----------
        value : (*sample, *batch, *event) Tensor, or tuple of Tensors; or (*sample, *batch, *labels) integer Tensor
            Structures or labels; their batch dimensions broadcast to the batch shape.

        Raises
        ------
        InvalidInputError
            If an entry of ``value`` is no structure (unchecked with ``validate_args=False``).
        """
        problem, shape = self._problem(), self._shape_of(value)
        copies = problem if shape == self.batch_shape else self._problem(shape)

        def score_of(rest: Problem) -> Tensor:
            with rest.plain_modes():
                y = self._structures(value, rest)
                return rest.scatter(inner_product(self._scaled_float64(rest), map_parts(torch.Tensor.double, y)))

        score = copies.solve_feasible(score_of, reads_gold=True).view(shape)
        log_z = self._log_partitions(problem)
        is_infeasible = log_z.isneginf()
        # Rounding could make log p(y) positive for a structure of probability near 1.
        found = (score - log_z.masked_fill(is_infeasible, 0)).clamp(max=0)
        return found.masked_fill(is_infeasible, -math.inf).to(problem.dtype)

    @public_call
    def entropy(self) -> Tensor:
        """Return −Σ p(y) log p(y) in nats, (*batch)."""
        return self._solve(
            lambda problem: problem.restore(gibbs_entropy(_require_gibbs(problem), self._scaled_float64(problem)))
        )

    @public_call
    def cross_entropy(self, other: Gibbs) -> Tensor:
        """Return −Σ p(y) log q(y) for q = ``other``, (*batch), or inf if q(y) = 0 for a structure with p(y) > 0.

        Both distributions need the same oracle, sizes and instance data. The two batch shapes are broadcast.

        Parameters
        ----------
        other : Gibbs
            The distribution q.
        """
        return self._cross_entropy(other, relative=False)

    def _cross_entropy(self, other: Gibbs, *, relative: bool) -> Tensor:
        """Return the cross-entropy, or the Kullback-Leibler divergence if ``relative``."""
        shape = broadcast_batch_shapes(self.batch_shape, other.batch_shape, what="the two distributions")
        p, q = self._problem(shape), other._problem(shape)
        if self.event_shape != other.event_shape or not same_instances(p.oracle, q.oracle):
            raise UnsupportedError(
                "two Gibbs distributions can be compared only if they are over the same structures (oracle, sizes and "
                f"instance data), got {self!r} and {other!r}"
            )
        log_q = other._log_partitions(q).flatten()

        def change(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(new.isneginf() | old.isneginf(), 0.0, new - old if relative else new)

        def compute(p: Problem) -> Tensor:
            own, others = self._scaled_float64(p), other._scaled_float64(q, p.same_rows(q))
            value, mean = autograd.value_and_gradient(log_partition_function(_require_gibbs(p)), own)
            log_z = p.select(log_q)
            # Find instances with an infinite result before any multiplication, so that their gradient is 0, not NaN.
            forbidden = map_parts(lambda t: t.isneginf().to(t), others)
            infinite = (inner_product(forbidden, map_parts(torch.Tensor.detach, mean)) > 0) | log_z.isneginf()
            found = log_z - inner_product(map_parts(change, others, own), mean)
            found = found - value if relative else found
            return p.restore(torch.where(infinite, math.inf, found.clamp(min=0)))

        return self._solve(compute, p)

    # -- structures ---------------------------------------------------------------------------

    @public_call
    @torch.no_grad()
    def sample(self, sample_shape: Size = (), generator: torch.Generator | None = None) -> Any:
        """Draw independent exact samples, (*sample, *batch, *event), from ``generator`` or else torch's generator."""
        if reason := missing_ability_reason(self.oracle, Samplable):
            raise UnsupportedError(f"sample: {reason}")
        check_generator(generator)
        shape = check_size("sample_shape", sample_shape)

        def compute(problem: Problem) -> Parts:
            found: Any = problem.oracle
            drawn = found.sample(divide_by_temperature(problem.theta, self.temperature), shape.numel(), generator)
            return problem.restore_parts(drawn, 1)

        return unflatten_samples(self._solve(compute, generator=generator, draws=True), shape)

    @public_call
    @torch.no_grad()
    def sample_unordered(self, n: int, generator: torch.Generator | None = None) -> DistinctSamples:
        """Draw n different structures, each from the structures that are left after the earlier draws.

        Parameters
        ----------
        n : int
            The number of draws.
        generator : torch.Generator, optional
            The only source of randomness. If None, samples come from torch's default generator.

        Returns
        -------
        DistinctSamples
            The named tuple (structures, log_probs, valid). The first dimension is the order of the draws.

        Examples
        --------
        >>> bits = Gibbs(torch.tensor([2.0, 0.0]), "bits")
        >>> drawn = bits.sample_unordered(5)
        >>> drawn.valid.tolist(), round(drawn.log_probs.exp().sum().item(), 4)
        ([True, True, True, True, False], 1.0)
        """
        if reason := missing_ability_reason(self.oracle, Samplable):
            raise UnsupportedError(f"sample_unordered: {reason}")
        check_generator(generator)
        omega = Negentropy(temperature=self.temperature)

        def compute(problem: Problem) -> DistinctSamples:
            structures, valid = distinct_samples(problem.oracle, problem.theta, n, omega, generator)
            # Each tensor of θ, also a tensor shared by the batch, is scored with all draws.
            scores = [
                inner_product(self._scaled_float64(problem), map_parts(lambda y, i=i: y[i].double(), structures))
                for i in range(n)
            ]
            log_z = self._log_partition(problem)
            log_p = torch.stack([s - log_z for s in scores]) if scores else log_z.new_zeros(0, len(log_z))
            log_p = log_p.clamp(max=0).masked_fill(~valid, -math.inf).to(problem.dtype)
            return DistinctSamples(
                problem.restore_parts(structures, 1, RANKED_STRUCTURES),
                problem.restore(log_p, 1, RANKED_VALUES),
                problem.restore(valid, 1, WEIGHTS),
            )

        return self._solve(compute, generator=generator, draws=True)

    @public_call
    def rsample(self, sample_shape: Size = (), generator: torch.Generator | None = None) -> Any:
        """Draw relaxed structures at noisy scores, (*sample, *batch, *event), differentiable in θ."""
        if self.relaxation is None:
            raise UnsupportedError(
                "rsample: structures are discrete, and this Gibbs has no relaxation. Use Gibbs(..., relaxation=...) "
                "for relaxed samples, or sample() for exact samples"
            )
        shape = check_size("sample_shape", sample_shape)
        n = shape.numel()
        noisy = dataclasses.replace(self.relaxation, samples=max(n, 1), reduction="none").with_generator(generator)

        def compute(problem: Problem) -> Parts:
            drawn = noisy.mean(problem.oracle, divide_by_temperature(problem.theta, self.temperature))
            return problem.restore_parts(map_parts(lambda t: t[:n], drawn), 1)

        return unflatten_samples(self._solve(compute, generator=generator, draws=True), shape)

    @property
    @public_call
    @torch.no_grad()
    def mode(self) -> Any:
        """A most probable structure, (*batch, *event)."""
        return self._solve(lambda problem: problem.restore_parts(best_structure(problem.oracle, problem.theta)))

    @property
    @public_call
    def mean(self) -> Any:
        """E[Y], the marginals of the parts, (*batch, *event)."""
        marginals = Marginals(temperature=self.temperature)
        return self._solve(lambda problem: problem.restore_parts(marginals.mean(problem.oracle, problem.theta)))

    @property
    @public_call
    def variance(self) -> Any:
        """The variance of each part, (*batch, *event).

        If all parts are 0 or 1, the variance is mean · (1 − mean). Otherwise, for example with transition counts, each
        part takes one Hessian-vector product of log Z.
        """

        def compute(problem: Problem) -> Parts:
            if problem.oracle.has_binary_parts(problem.theta):
                mean = autograd.gradient(log_partition_function(_require_gibbs(problem)), self._scaled_float64(problem))
                return problem.restore_parts(map_parts(lambda m: (m * (1 - m)).clamp(min=0), mean))
            return problem.restore_parts(variances(_require_gibbs(problem), self._scaled_float64(problem)))

        return self._solve(compute)

    @property
    def support(self) -> StructureConstraint:
        """All structures of the oracle, including structures forbidden by θ.

        The constraint decodes a value to labels and encodes the labels again. Without labels, ``Oracle.contains`` or
        the bounds of parts decide, and a value of zeros and ones must be the argmax for the scores 2y − 1.
        """
        return StructureConstraint(self.oracle.label(), len(self.event_shapes[0]), self._contains)

    def _contains(self, value: Any) -> Tensor:
        problem = self._problem(self._shape_of(value))
        if self._leading_shapes(value) is None:
            return torch.zeros(problem.batch_shape, dtype=torch.bool, device=as_tuple(problem.theta)[0].device)
        with problem.plain_modes():
            return are_members(problem, self._expand_batch(value, problem.batch_shape))

    @public_call
    def enumerate_support(self, expand: bool = True) -> Any:
        """Return all n structures, (n, *batch, *event), with batch dimensions of 1 if ``expand`` is False.

        Parameters
        ----------
        expand : bool
            Whether to repeat the structures for each instance of the batch.
        """
        if reason := missing_ability_reason(self.oracle, Enumerable):
            raise UnsupportedError(f"enumerate_support: {reason}")
        for name, data in self.oracle.bound.items():
            if bool((data != data[:1]).any()):
                raise InvalidInputError(
                    f"enumerate_support: instances of different {name} have different structures. List the structures "
                    "of one instance at a time"
                )
        if self._problem().solved is not None:  # all instances are empty: each has the structure without parts
            listed = pack_like([torch.zeros(1, *event, device="cpu") for event in self.event_shapes], self.theta)
        else:
            listed = self.oracle[:1].enumerate(self.event_shape)
        batch = self.batch_shape if expand else torch.Size([1] * len(self.batch_shape))
        return map_parts(
            lambda y, t: y.to(t).view(len(y), *[1] * len(batch), *y.shape[1:]).expand(-1, *batch, *y.shape[1:]),
            listed,
            self.theta,
        )

    # -- steps --------------------------------------------------------------------------------

    def _problem(self, shape: torch.Size | None = None) -> Problem:
        """Build the problem for the batch expanded to ``shape``. Each call builds its own autograd graph."""
        theta, oracle = (self.theta, self.oracle) if shape in (None, self.batch_shape) else self._expanded(shape)
        return Problem.build(theta, oracle, {}, self.on_infeasible)

    def _solve(
        self,
        compute: Callable[[Problem], T],
        problem: Problem | None = None,
        *,
        generator: torch.Generator | None = None,
        draws: bool = False,
    ) -> T:
        """Return ``compute(problem)`` as :meth:`Problem.solve_feasible`, in the context of :meth:`Problem.plain_modes`.

        The default problem is the problem of this distribution.
        """

        def in_plain_modes(problem: Problem) -> T:
            with problem.plain_modes():
                return compute(problem)

        problem = self._problem() if problem is None else problem
        return problem.solve_feasible(in_plain_modes, generator=generator, draws=draws)

    def _expanded(self, shape: torch.Size) -> tuple[Parts, Oracle]:
        def wide(t: Tensor, event: torch.Size) -> Tensor:
            own = t.shape[: t.ndim - len(event)]
            is_shared = own.numel() == 1 != self.batch_shape.numel()
            return t.reshape(*[1] * len(shape), *event) if is_shared else t.expand(shape + event)

        theta = [wide(t, event) for t, event in zip(as_tuple(self.theta), self.event_shapes, strict=True)]
        bound = {
            name: v.view(self.batch_shape + v.shape[1:])
            .expand(shape + v.shape[1:])
            .reshape(shape.numel(), *v.shape[1:])
            for name, v in self.oracle.bound.items()
        }
        return pack_like(theta, self.theta), self.oracle.bind(**bound)

    def _scaled_float64(self, problem: Problem, theta: Parts | None = None) -> Parts:
        """Return θ / temperature in float64, since the results are differences of large numbers.

        The default θ are the scores of the problem.
        """
        theta = problem.theta if theta is None else theta
        return divide_by_temperature(map_parts(torch.Tensor.double, theta), self.temperature)

    def _log_partitions(self, problem: Problem) -> Tensor:
        """Return log Z of all instances of the problem, (*batch) in float64; −inf for infeasible instances."""
        log_z = self._solve(lambda rest: rest.scatter(self._log_partition(rest), fill=LOG_VALUE), problem)
        return log_z.view(problem.batch_shape)

    def _log_partition(self, problem: Problem) -> Tensor:
        return differentiable_log_partition(_require_gibbs(problem), self._scaled_float64(problem))

    def _leading_shapes(self, value: Any) -> torch.Size | None:
        return (
            value.shape[: value.ndim - self.oracle.label_ndim] if is_labels(value) else super()._leading_shapes(value)
        )

    def _expand_batch(self, value: Any, batch_shape: torch.Size) -> Any:
        """Expand ``value``, whose event shape is valid, to ``batch_shape``."""
        events = [value.shape[value.ndim - self.oracle.label_ndim :]] if is_labels(value) else self.event_shapes
        tensors = zip(as_tuple(value), events, strict=True)
        return pack_like([t.expand(batch_shape + event) for t, event in tensors], value)

    def _structures(self, value: Any, problem: Problem) -> Parts:
        """Return ``value`` as structures (B, *event) of the problem."""
        if self._leading_shapes(value) is not None:
            value = self._expand_batch(value, problem.batch_shape)
        if self._validate_args:
            return check_members(problem, value)
        return encode_labels(problem, value, "value") if is_labels(value) else flatten_parts(problem, value, "value")


def _require_gibbs(problem: Problem) -> GibbsOracle:
    return cast(GibbsOracle, problem.oracle)


def _stochastic_relaxation(relaxation: str | Relaxation, oracle: Oracle) -> Stochastic:
    """Return the relaxation that draws relaxed samples; raise UnsupportedError if the oracle does not support it."""
    found = resolve_relaxation(relaxation)
    check_supported(oracle, found)
    noisy = found if isinstance(found, Stochastic) else Stochastic(base_relaxation=found)
    check_supported(oracle, cast(Relaxation, noisy))
    return noisy


@register_kl(Gibbs, Gibbs)
def _kl_of_two(p: Gibbs, q: Gibbs) -> Tensor:
    """Return Σ p(y) log (p(y) / q(y)), or inf if q(y) = 0 for a structure with p(y) > 0."""
    return p._cross_entropy(q, relative=True)
