"""Sums over all structures: counts, log-partition functions, entropies and log-probabilities."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor

from .. import autograd
from ..calls.arguments import OnInfeasible
from ..calls.gold import checks_every_structure, gold_structures
from ..calls.problem import Problem
from ..calls.resolution import prepare_oracle
from ..compile.public_call import public_call
from ..dp import HypergraphProgram
from ..errors import InfeasibleError, UnsupportedError
from ..oracle import GibbsOracle, Oracle
from ..parts import Parts, as_tuple, batch_size, divide_by_temperature, inner_product, map_parts, select_rows
from ..regularizers import Regularizer, check_temperature, get_regularizer
from ..relaxation import missing_ability_reason
from ..shapes import Float
from ..smoothing import differentiable_log_partition, log_partition_function, triton_alpha
from ..solution import LOG_VALUE
from ..solvers.perturbation import repeat_instances
from ..validation import check_in_range
from .abilities import require_ability, require_gibbs, unsupported

__all__ = ["count", "entropy", "gibbs_entropy", "log_partition", "log_prob"]


_MOST_COUNTED = 1e9
"""The largest number of structures counted by a log-partition function in float64."""


@public_call
@torch.no_grad()
def count(theta: Parts, oracle: str | Oracle, **options: Any) -> list[int]:
    """Return the exact number of structures of finite score, for each instance of the flattened batch.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part, and other values do not matter.
    oracle : str or Oracle
        A dynamic program (:class:`structinf.dp.HypergraphProgram`) or another oracle with a log-partition function
        (:class:`structinf.GibbsOracle`): an object, or a name of :func:`structinf.list_oracles`, with its options.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    list of int
        The numbers of structures. A dynamic program counts in integers of any size. For other oracles, the count is
        exp log Z of zeros, and at most 10^9.

    Raises
    ------
    UnsupportedError
        If the oracle is no dynamic program and has no log-partition function, or if it is no dynamic program and has
        more than 10^9 structures.

    Examples
    --------
    >>> (
    ...     count(torch.zeros(4, 4), "dtw"),
    ...     count(torch.zeros(100, 100), "dtw")[0] > 10**70,
    ... )
    ([63], True)
    """

    def compute(problem: Problem) -> list[int]:
        with problem.plain_modes():
            if isinstance(problem.oracle, HypergraphProgram):
                counts = problem.oracle.count(problem.theta)
            else:
                counts = _count_by_log_partition(problem.oracle, problem.theta)
        if problem.solved is None:
            return counts
        known = dict(zip(problem.solved.index.tolist(), counts, strict=True))
        return [known.get(i, 1) for i in range(problem.batch_shape.numel())]  # an empty instance has one structure

    return prepare_oracle(theta, oracle, options).solve_feasible(compute)


def _log_counts(oracle: GibbsOracle, zeros: Parts) -> list[float]:
    """Return log Z of each instance, −inf for an instance without a structure."""
    try:
        return oracle.log_partition(zeros).tolist()
    except InfeasibleError:
        size = batch_size(zeros)
        if size == 1:
            return [-math.inf]
        rows = [torch.tensor([i], device=as_tuple(zeros)[0].device) for i in range(size)]
        return [_log_counts(oracle[row], select_rows(zeros, row))[0] for row in rows]


def _count_by_log_partition(oracle: Oracle, theta: Parts) -> list[int]:
    """Return exp log Z of zeros, rounded, for each instance."""
    if missing := missing_ability_reason(oracle, GibbsOracle):
        raise unsupported(oracle, f"no graph of its structures to count, and {missing}")
    zeros = map_parts(lambda t: torch.where(t.isneginf(), t, 0.0).double(), theta)
    counts = []
    for i, log_count in enumerate(_log_counts(cast(GibbsOracle, oracle), zeros)):
        number = math.exp(min(log_count, 99.0))
        # Rounding errors of log Z, about 1e-13, stay far below half a structure.
        if number > _MOST_COUNTED or abs(number - round(number)) > 0.01:
            raise UnsupportedError(
                f"{oracle.label()} counts at most {_MOST_COUNTED:.0e} structures exactly, and batch index {i} has "
                f"about exp({log_count:.6g}); call log_partition with zeros for the logarithm of the number"
            )
        counts.append(round(number))
    return counts


@public_call(functorch=True)
def entropy(
    theta: Parts,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return the Shannon entropy, in nats, of the distribution over structures.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    regularizer : str or Regularizer
        The distribution: Gibbs for ``"negentropy"``, else the random walk of :func:`sample`. The random walk requires
        a :class:`structinf.dp.HypergraphProgram`.
    temperature : float, optional
        The factor of Ω, above 0. If None, the temperature of the regularizer object, or 1 for a name.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return the entropy 0 of
        the instance, with gradient 0.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The entropies. They are differentiable in θ to any order for ``"negentropy"``. For other regularizers the
        backward pass raises UnsupportedError.

    Raises
    ------
    UnsupportedError
        If the oracle cannot sum over its structures, or has no random walk for the regularizer.

    Examples
    --------
    >>> # the logarithms of 13 and 16
    >>> (
    ...     entropy(torch.zeros(3, 3), "dtw"),
    ...     entropy(torch.zeros(4, 4), "arborescence"),
    ... )
    (tensor(2.5649), tensor(2.7726))
    """
    omega = get_regularizer(regularizer, temperature)

    def compute(problem: Problem) -> Tensor:
        bound_oracle = problem.oracle
        with problem.plain_modes(defers_checks=True):
            if isinstance(bound_oracle, HypergraphProgram) and not _takes_gibbs_formula(problem.theta, omega):
                with torch.no_grad():
                    entropies = bound_oracle.entropy(problem.theta, omega)
                return problem.restore(autograd.raise_on_backward(entropies, problem.theta, _walk_message("entropy")))
            theta64 = _divide_in_float64(problem.theta, omega.temperature)
            return problem.restore(gibbs_entropy(require_gibbs(bound_oracle, omega), theta64))

    return prepare_oracle(theta, oracle, options, on_infeasible).solve_feasible(compute)


def gibbs_entropy(oracle: GibbsOracle, theta: Parts) -> Float[Tensor, " batch"]:
    """Return the entropy log Z − ⟨θ, μ⟩, (B,), differentiable in θ (B | 1, *event), in float64."""
    value, mean = autograd.value_and_gradient(log_partition_function(oracle), theta)
    return (value - inner_product(theta, mean)).clamp(min=0)


@public_call(functorch=True)
def log_prob(
    theta: Parts,
    y: Parts | Tensor,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return the log-probability of structures ``y`` under the distribution over structures.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    y : (*samples, ..., *event) Tensor, or tuple of them, or integer labels (*samples, ..., *labels)
        Structures of each instance, with any number of sample dimensions in front of the batch.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    regularizer : str or Regularizer
        The distribution: Gibbs for ``"negentropy"``, else the random walk of :func:`sample`. The random walk requires
        a :class:`structinf.dp.HypergraphProgram`.
    temperature : float, optional
        The factor of Ω, above 0. If None, the temperature of the regularizer object, or 1 for a name.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return −inf for the
        instance, with gradient 0.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (*samples, ...) Tensor
        The log-probabilities; −inf for structures of probability 0. They are differentiable in θ to any order for
        ``"negentropy"``. For other regularizers the backward pass raises UnsupportedError.

    Raises
    ------
    UnsupportedError
        If the oracle cannot sum over its structures, or has no random walk for the regularizer.

    Examples
    --------
    >>> log_prob(torch.zeros(3, 3), torch.tensor([0, 1]), "arborescence").exp()
    tensor(0.3333)
    """
    omega = get_regularizer(regularizer, temperature)
    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    return problem.solve_feasible(functools.partial(_log_prob, y, omega), reads_gold=True)


def _log_prob(y: Parts | Tensor, omega: Regularizer, problem: Problem) -> Tensor:
    samples = _sample_shape(y, problem)
    copies = problem.repeat(samples) if samples else problem
    target = gold_structures(copies, y, "y")
    walks = isinstance(copies.oracle, HypergraphProgram)
    if _takes_gibbs_kernels(problem.theta, omega) and checks_every_structure(copies.oracle):
        walks = False
    with problem.plain_modes(defers_checks=not walks):
        if walks:
            with torch.no_grad():  # also checks that y is a structure
                log_probs = cast(HypergraphProgram, copies.oracle).log_prob(copies.theta, target, omega)
            # The probabilities of a walk underflow at improbable structures; the Gibbs formula below does not.
            if not _is_differentiable(copies.theta, omega) and not (
                omega.alpha == 1 and bool(log_probs.isneginf().any())
            ):
                log_probs = autograd.raise_on_backward(log_probs, copies.theta, _walk_message("log_prob"))
                return copies.restore(log_probs, fill=LOG_VALUE)
        gibbs = require_gibbs(problem.oracle, omega)
        theta64 = _divide_in_float64(problem.theta, omega.temperature)
        score = inner_product(repeat_instances(theta64, samples.numel()), map_parts(Tensor.double, target))
        log_z = differentiable_log_partition(gibbs, theta64)
        # Rounding can make the log-probability of a structure of probability near 1 positive.
        log_probs = score.view(samples.numel(), len(log_z)) - log_z
        return copies.restore(log_probs.clamp(max=0).flatten(), fill=LOG_VALUE)


def _divide_in_float64(theta: Parts, temperature: float) -> Parts:
    """Return θ / temperature in float64; raise InvalidInputError if results would overflow in the dtype of θ."""
    check_in_range("temperature", temperature, as_tuple(theta)[0].dtype)
    return divide_by_temperature(map_parts(Tensor.double, theta), temperature)


def _is_differentiable(theta: Parts, omega: Regularizer) -> bool:
    """Whether autograd records θ and the distribution is the Gibbs distribution."""
    return omega.alpha == 1 and torch.is_grad_enabled() and any(t.requires_grad for t in as_tuple(theta))


def _takes_gibbs_formula(theta: Parts, omega: Regularizer) -> bool:
    """Whether the entropy is log Z − ⟨θ, μ⟩: where it is differentiable, and on a GPU, where kernels compute it."""
    return _is_differentiable(theta, omega) or _takes_gibbs_kernels(theta, omega)


def _takes_gibbs_kernels(theta: Parts, omega: Regularizer) -> bool:
    """Whether kernels compute log Z of the distribution on a GPU."""
    return omega.alpha == 1 and triton_alpha(theta, omega) is not None


def _walk_message(query: str) -> str:
    return (
        f"{query} has no gradient for regularizers other than the negative entropy; use regularizer='negentropy', or "
        "the value and mean of the relaxation 'smoothed', which are differentiable"
    )


def _sample_shape(y: Any, problem: Problem) -> torch.Size:
    """Return the sample dimensions of ``y``, structures or labels, in front of the batch."""
    first = y[0] if isinstance(y, tuple | list) and len(y) else y
    if not isinstance(first, Tensor):
        return torch.Size()  # gold_structures raises the error
    is_structure = first.is_floating_point() or first.dtype is torch.bool or first is not y
    target = as_tuple(problem.theta)[0].ndim - 1 if is_structure else problem.oracle.label_ndim
    return first.shape[: max(first.ndim - target - len(problem.batch_shape), 0)]


@public_call(functorch=True)
def log_partition(
    theta: Parts,
    oracle: str | Oracle,
    *,
    temperature: float = 1.0,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return log Σ exp(⟨θ, y⟩ / temperature) over all structures y, differentiable to any order.

    The gradient is the mean of the Gibbs distribution, divided by the temperature. :class:`structinf.Gibbs` has the
    same value as an attribute.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    temperature : float
        The divisor of the scores, above 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return −inf for the
        instance, with gradient 0.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The log-partition function, in the dtype of θ, computed in float64.

    Raises
    ------
    UnsupportedError
        If the oracle cannot sum over its structures (:class:`structinf.GibbsOracle`).

    Examples
    --------
    >>> # log 16: there are (n + 1)^(n − 1) trees of n = 3 words
    >>> log_partition(torch.zeros(4, 4), "arborescence")
    tensor(2.7726)
    """
    check_temperature(temperature)

    def compute(problem: Problem) -> Tensor:
        gibbs = require_ability(problem.oracle, GibbsOracle)
        with problem.plain_modes(defers_checks=True):
            theta64 = _divide_in_float64(problem.theta, temperature)
            return problem.restore(differentiable_log_partition(gibbs, theta64), fill=LOG_VALUE)

    return prepare_oracle(theta, oracle, options, on_infeasible).solve_feasible(compute)
