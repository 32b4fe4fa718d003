"""What else can be asked about a structure: the best k, samples, numbers of structures, entropies, probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import autograd
from .calls.problem import Problem
from .calls.resolution import prepare_oracle
from .compile.public_call import public_call
from .dp import HypergraphProgram
from .errors import UnsupportedError
from .oracle import GibbsOracle, KBest, Oracle, Samplable
from .parts import Parts, as_tuple, divide_by_temperature, inner_product, map_parts
from .regularizers import Regularizer, SquaredL2, check_temperature, get_regularizer
from .relaxation import missing_ability_reason
from .shapes import Float
from .smoothing import Smoothable, differentiable_log_partition, log_partition_function
from .solvers.perturbation import merge_samples, repeat_instances
from .validation import check_generator

__all__ = [
    "Support",
    "TopK",
    "count",
    "entropy",
    "enumerate_support",
    "gibbs_entropy",
    "log_partition",
    "log_prob",
    "sample",
    "sparsemax_over_topk",
    "topk",
]


class TopK(NamedTuple):
    """The k best structures, best first.

    Attributes
    ----------
    structures : (k, ..., *event) Tensor, or tuple of them
    scores : (k, ...) Tensor
    valid : (k, ...) bool Tensor
        False where an instance has fewer than k structures of finite score; there the structure is 0, the score −inf.
    """

    structures: Parts
    scores: Tensor
    valid: Tensor


class Support(NamedTuple):
    """Structures with their probabilities, the most probable first.

    Attributes
    ----------
    structures : (K, ..., *event) Tensor, or tuple of them
        As many as the instance that has most; 0 beyond an instance's own.
    probabilities : (K, ...) Tensor
        0 beyond an instance's own.
    """

    structures: Parts
    probabilities: Tensor


@public_call
@torch.no_grad()
def topk(theta: Parts, oracle: str | Oracle, k: int, **options: Any) -> TopK:
    """The k structures of highest score of each instance.

    Parameters
    ----------
    theta, oracle
        As for :func:`structinf.relax`.
    k : int
        At least 1.
    **options
        Instance data of the oracle (``lengths=...``), and its options if it is given by name.

    Raises
    ------
    UnsupportedError
        If the oracle lists no k best.

    Examples
    --------
    >>> best = topk(torch.tensor([[1.0, 0.1], [0.1, 0.5]]), "assignment", 3)
    >>> best.scores, best.valid
    (tensor([1.5000, 0.2000,   -inf]), tensor([ True,  True, False]))
    """
    problem = prepare_oracle(theta, oracle, options)
    with problem.plain_modes():
        structures, scores, valid = _require_ability(problem.oracle, KBest).topk(problem.theta, k)
    return TopK(problem.restore_parts(structures, 1), problem.restore(scores, 1), problem.restore(valid, 1))


def sparsemax_over_topk(oracle: Oracle, theta: Parts, k: int, temperature: float = 1.0) -> tuple[Parts, Tensor]:
    """The k best structures, (k, B, *event), and the sparsemax of their scores / temperature, (k, B), differentiable.

    It is the sparsemax over all structures wherever one of the k has weight 0.
    """
    with torch.no_grad():
        structures, _, valid = _require_ability(oracle, KBest).topk(map_parts(Tensor.detach, theta), k)
    theta64 = divide_by_temperature(map_parts(Tensor.double, theta), temperature)
    scores = inner_product(
        repeat_instances(theta64, len(valid)), merge_samples(map_parts(Tensor.double, structures))
    ).view(valid.shape)
    weights = autograd.smooth_argmax(SquaredL2(), torch.where(valid, scores, -torch.inf), 0)
    return structures, weights.to(as_tuple(theta)[0].dtype)


@public_call
@torch.no_grad()
def sample(
    theta: Parts,
    oracle: str | Oracle,
    n: int = 1,
    *,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Parts:
    """``n`` independent exact samples for each instance.

    Parameters
    ----------
    theta, oracle, **options
        As for :func:`topk`.
    regularizer : str or Regularizer
        With "negentropy" samples are those of p(y) ∝ exp⟨θ, y⟩; with others of the random walk along q = ∇max_Ω, whose
        mean is that of the relaxation ``smoothed``, for structures that have a graph or a recursion.
    temperature : float, optional
        The regularizer's own (1) by default.
    generator : torch.Generator, optional
        The only source of randomness, if given.

    Returns
    -------
    (n, ..., *event) Tensor, or tuple of them

    Examples
    --------
    >>> trees = sample(torch.zeros(5, 5), "arborescence", 3, generator=torch.Generator().manual_seed(0))
    >>> trees.shape, trees.sum((1, 2))
    (torch.Size([3, 5, 5]), tensor([4., 4., 4.]))
    """
    check_generator(generator)
    omega = get_regularizer(regularizer, temperature)
    problem = prepare_oracle(theta, oracle, options)
    bound_oracle: Any = problem.oracle
    with problem.plain_modes():
        if omega.alpha == 1:
            samples = _require_ability(bound_oracle, Samplable).sample(
                divide_by_temperature(problem.theta, omega.temperature), n, generator
            )
        elif hasattr(bound_oracle, "smoothed_sample"):
            samples = bound_oracle.smoothed_sample(problem.theta, n, omega, generator)
        else:
            raise _unsupported(bound_oracle, "no random walk along other regularizers than the negative entropy")
    return problem.restore_parts(samples, 1)


@public_call
@torch.no_grad()
def count(theta: Parts, oracle: str | Oracle, **options: Any) -> list[int]:
    """The exact number of structures of finite score, for each instance of the flattened batch.

    Parameters
    ----------
    theta, oracle, **options
        As for :func:`topk`; parts of −inf are forbidden.

    Examples
    --------
    >>> count(torch.zeros(4, 4), "dtw"), count(torch.zeros(100, 100), "dtw")[0] > 10**70
    ([63], True)
    """
    problem = prepare_oracle(theta, oracle, options)
    with problem.plain_modes():
        return _require_hypergraph(problem.oracle).count(problem.theta)


@public_call
@torch.no_grad()
def entropy(
    theta: Parts,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Shannon entropy, in nats, of the Gibbs distribution p(y) ∝ exp⟨θ, y⟩, or of the walk of another regularizer.

    Parameters
    ----------
    theta, oracle, regularizer, temperature, **options
        As for :func:`sample`.

    Returns
    -------
    Tensor
        (...); without a gradient.

    Examples
    --------
    >>> entropy(torch.zeros(3, 3), "dtw"), entropy(torch.zeros(4, 4), "arborescence")  # the logarithms of 13 and 16
    (tensor(2.5649), tensor(2.7726))
    """
    omega = get_regularizer(regularizer, temperature)
    problem = prepare_oracle(theta, oracle, options)
    bound_oracle = problem.oracle
    with problem.plain_modes():
        if isinstance(bound_oracle, HypergraphProgram):
            return problem.restore(bound_oracle.entropy(problem.theta, omega))
        theta64 = map_parts(lambda t: t.double(), divide_by_temperature(problem.theta, omega.temperature))
        return problem.restore(gibbs_entropy(_require_gibbs(bound_oracle, omega), theta64))


def gibbs_entropy(oracle: GibbsOracle, theta: Parts) -> Float[Tensor, " batch"]:
    """log Z − ⟨θ, μ⟩, (B,), for θ (B | 1, *event) in float64; differentiable in it."""
    value, mean = autograd.value_and_gradient(log_partition_function(oracle), theta)
    return (value - inner_product(theta, mean)).clamp(min=0)


@public_call
@torch.no_grad()
def log_prob(
    theta: Parts,
    y: Parts | Tensor,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "negentropy",
    temperature: float | None = None,
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Log-probability of the structures ``y`` under p(y) ∝ exp⟨θ, y⟩, or under the walk of another regularizer.

    Parameters
    ----------
    theta, oracle, regularizer, temperature, **options
        As for :func:`sample`.
    y : (*samples, ..., *event) Tensor, or tuple of them, or integer labels (*samples, ..., *labels)
        Structures of each instance, with any number of sample dimensions in front of the batch.

    Returns
    -------
    Tensor
        (*samples, ...), −inf where ``y`` is impossible; without a gradient (a loss of the relaxation ``marginals`` has
        one).

    Examples
    --------
    >>> log_prob(torch.zeros(3, 3), torch.tensor([0, 1]), "arborescence").exp()
    tensor(0.3333)
    """
    omega = get_regularizer(regularizer, temperature)
    problem = prepare_oracle(theta, oracle, options)
    samples = _sample_shape(y, problem)
    copies = problem.repeat(samples) if samples else problem
    target = copies.gold(y, "y")
    with problem.plain_modes():
        if isinstance(copies.oracle, HypergraphProgram):
            return copies.restore(copies.oracle.log_prob(copies.theta, target, omega))
        gibbs = _require_gibbs(problem.oracle, omega)
        theta64 = map_parts(Tensor.double, divide_by_temperature(problem.theta, omega.temperature))
        score = inner_product(repeat_instances(theta64, samples.numel()), map_parts(Tensor.double, target))
        log_z = gibbs.log_partition(theta64)
        # A structure that has nearly all of the probability would, by rounding, have more than that.
        log_probs = score.view(samples.numel(), len(log_z)) - log_z
        return copies.restore(log_probs.clamp(max=0).flatten())


def _sample_shape(y: Any, problem: Problem) -> torch.Size:
    """The dimensions that ``y``, structures or labels, has in front of the batch."""
    first = y[0] if isinstance(y, tuple | list) and len(y) else y
    if not isinstance(first, Tensor):
        return torch.Size()  # an error, which Problem.gold raises
    is_structure = first.is_floating_point() or first.dtype is torch.bool or first is not y
    target = as_tuple(problem.theta)[0].ndim - 1 if is_structure else problem.oracle.label_ndim
    return first.shape[: max(first.ndim - target - len(problem.batch_shape), 0)]


@public_call(functorch=True)
def log_partition(
    theta: Parts, oracle: str | Oracle, *, temperature: float = 1.0, **options: Any
) -> Float[Tensor, "*batch"]:
    """log Σ exp(⟨θ, y⟩ / temperature) over all structures y, differentiable to any order.

    The gradient is the mean of the Gibbs distribution over the temperature. With :func:`structinf.Gibbs`, the same
    number comes as an attribute of a distribution.

    Parameters
    ----------
    theta, oracle, **options
        As for :func:`structinf.relax`.
    temperature : float
        Above 0.

    Returns
    -------
    Tensor
        (...), in the dtype of θ, computed in float64.

    Raises
    ------
    UnsupportedError
        If the oracle cannot sum over its structures.

    Examples
    --------
    >>> log_partition(torch.zeros(4, 4), "arborescence")  # log 16: there are (n + 1)^(n − 1) trees of n = 3 words
    tensor(2.7726)
    """
    check_temperature(temperature)
    problem = prepare_oracle(theta, oracle, options)
    gibbs = _require_ability(problem.oracle, GibbsOracle)
    with problem.plain_modes():
        theta64 = divide_by_temperature(map_parts(Tensor.double, problem.theta), temperature)
        return problem.restore(differentiable_log_partition(gibbs, theta64))


@public_call
@torch.no_grad()
def enumerate_support(
    theta: Parts,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "squared_l2",
    temperature: float | None = None,
    max_structures: int = 10_000,
    **options: Any,
) -> Support:
    """All structures that the random walk of a regularizer can make: with a sparse one a few, the paper's Figure 6.

    Parameters
    ----------
    theta, oracle, regularizer, temperature, **options
        As for :func:`sample`; with "negentropy" it lists all structures of finite score.
    max_structures : int
        InvalidInputError if an instance has more.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018.

    Examples
    --------
    >>> structures, probabilities = enumerate_support(torch.tensor([1.0, 0.8, 0.0, -3.0]), "subset", k=2)
    >>> structures, probabilities
    (tensor([[1., 1., 0., 0.],
            [1., 0., 1., 0.],
            [0., 1., 1., 0.]]), tensor([0.8200, 0.1080, 0.0720]))
    """
    omega = get_regularizer(regularizer, temperature)
    problem = prepare_oracle(theta, oracle, options)
    with problem.plain_modes():
        structures, probabilities = _require_hypergraph(problem.oracle).enumerate_support(
            problem.theta, omega, max_structures
        )
    return Support(problem.restore_parts(structures, 1), problem.restore(probabilities, 1))


# ----------------------------------------------------------------------------- who can


def _require_ability(oracle: Oracle, ability: type[Oracle]) -> Any:
    if missing := missing_ability_reason(oracle, ability):
        raise UnsupportedError(missing)
    return oracle


def _require_hypergraph(oracle: Oracle) -> HypergraphProgram:
    if not isinstance(oracle, HypergraphProgram):
        raise _unsupported(oracle, "no graph of its structures, as a HypergraphProgram has")
    return oracle


def _require_gibbs(oracle: Oracle, omega: Regularizer) -> GibbsOracle:
    if omega.alpha != 1:
        _require_ability(oracle, Smoothable)
        raise _unsupported(oracle, "no graph to walk along with other regularizers than the negative entropy")
    return _require_ability(oracle, GibbsOracle)


def _unsupported(oracle: Oracle, lack: str) -> UnsupportedError:
    return UnsupportedError(f"{oracle.label()} has {lack}")
