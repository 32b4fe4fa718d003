"""elbo: the evidence lower bound of a model with a discrete latent structure, for any method of :func:`latent`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from .calls.arguments import blame_argument
from .calls.problem import Problem
from .calls.resolution import prepare
from .compile.public_call import public_call
from .distributions import Gibbs
from .errors import InvalidInputError, UnsupportedError
from .estimators.base import Estimator, evaluate, flat_rows
from .estimators.enumeration import Exact, SparsemaxEstimator
from .estimators.latent import Method, evaluate_relaxed, find_method, latent, value_at
from .estimators.muprop import MuProp
from .estimators.relaxation_estimators import PerturbedEstimator, SparseMAPEstimator
from .estimators.relaxed_control_variates import Rebar, Relax
from .estimators.score_function import ScoreFunction
from .estimators.sum_and_sample import SumAndSample
from .estimators.topk_sparsemax import TopKSparsemax
from .estimators.unordered_set import UnorderedSet
from .estimators.weighted_structures import FunctionValues, WeightedStructures, scores
from .noise import Noise, get_noise
from .oracle import GibbsOracle, Oracle
from .parts import Parts, as_tuple, list_to_tuple, map_parts
from .relaxation import RELAXATIONS, Relaxation, missing_ability_reason
from .relaxations.gibbs_sample import GibbsSample
from .relaxations.gumbel_crf import GumbelCRF
from .relaxations.marginals import Marginals
from .relaxations.perturbed import Perturbed
from .relaxations.sparsemap import SparseMAP
from .relaxations.stochastic import Stochastic
from .relaxations.surrogate import NoisySurrogate
from .shapes import Float
from .smoothing import differentiable_log_partition
from .validation import check_choice, check_generator

__all__ = ["divergences", "elbo"]

KLTerm = Literal["auto", "exact", "sample", "bound"]

_GIBBS = (Exact, ScoreFunction, SumAndSample, UnorderedSet, MuProp, Rebar, Relax, Marginals, GibbsSample, GumbelCRF)
"""Methods with the distribution q(y) ∝ exp(⟨θ, y⟩ / temperature)."""

_WEIGHTS = (SparsemaxEstimator, TopKSparsemax, SparseMAPEstimator, SparseMAP)
"""Methods whose distribution is the weights of few structures."""

_NOISE = (PerturbedEstimator, Perturbed, Stochastic, NoisySurrogate)
"""Methods whose structure is a function of θ + σU, for noise U."""


@public_call
def elbo(
    g: Callable[..., Tensor],
    theta: Any,
    oracle: str | Oracle,
    method: Method = "exact",
    *,
    prior: Any = None,
    kl: KLTerm = "auto",
    inputs: Tensor | Sequence[Tensor] = (),
    generator: torch.Generator | None = None,
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return the evidence lower bound E_q[g(Y)] − KL(q ‖ p), for log-likelihoods g and a prior p over structures.

    The method determines the distribution q, and the estimate of E_q[g(Y)] by :func:`latent`:

    =====================  =================================================  ==================================
    distribution q         methods                                            divergence
    =====================  =================================================  ==================================
    exp⟨θ, y⟩ / Z          exact, score_function, sum_and_sample,             "exact"; "sample" for estimators
                           unordered_set, muprop, rebar, relax, marginals,    that evaluate g at structures only
                           reinmax, gumbel_rao, gapped_straight_through,
                           gumbel_crf
    sparse weights         relax:sparsemap, expect:sparsemap, sparsemax,      "exact"
                           topk_sparsemax
    function of θ + σU     relax:perturbed, expect:perturbed, stochastic;     "bound"
                           imle and adaptive_imle with noise="gumbel"
    =====================  =================================================  ==================================

    Parameters
    ----------
    g : callable
        The log-likelihood of the data given a structure, as for :func:`latent`: g(z, *rows) returns (N,).
    theta : (*batch, *event) Tensor, or tuple of Tensors
        The scores of the distribution q.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    method : str, Relaxation or Estimator
        A name of :func:`list_methods`, or an object.
    prior : (*batch, *event) Tensor, or tuple of Tensors, optional
        Scores of the prior p(y) ∝ exp⟨prior, y⟩, whose batch dimensions broadcast to those of θ. They may require a
        gradient. None is a prior of scores 0, which is uniform over all structures. For the divergence "bound", the
        prior is the method's structure at the scores ``prior``.
    kl : "auto", "exact", "sample" or "bound"
        "exact" is the divergence in closed form, or over the support of sparse weights. "sample" estimates it from
        the structures at which g is evaluated, without bias; the sampled log-probabilities are part of g then, and
        share its control variate. "bound" is the divergence of the noise at θ from the noise at ``prior``, which is at
        least the divergence of the structures. "auto" is the first choice of the table.
    inputs : (*batch, ...) Tensor, or several
        Tensors used by g besides the structure, as for :func:`latent`.
    generator : torch.Generator, optional
        The only source of randomness, on θ's device. By default torch's global generator.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle or a method given by name.

    Returns
    -------
    (*batch) Tensor
        The bounds, in nats, differentiable in θ, in the prior and in the parameters of g. If g is evaluated at a mean
        of structures (``marginals``, ``relax:sparsemap``), the result is a lower bound only for concave g. With relaxed
        samples (``gumbel_crf`` without ``straight_through``), it approximates the bound.

    Raises
    ------
    UnsupportedError
        If the method has no distribution, or not the divergence that ``kl`` asks for. Also if the divergence needs a
        log-partition function, which the oracle lacks.
    InvalidInputError, UnknownNameError
        In the cases of :func:`latent`.

    References
    ----------
    Kingma & Welling 2014, Auto-Encoding Variational Bayes, Equation 3. Correia, Niculae, Aziz & Martins 2020, Efficient
    Marginalization of Discrete and Structured Latent Variables via Sparsity, §4 (sparse weights). Paulus, Choi, Tarlow,
    Krause & Maddison 2020, Gradient Estimation with Stochastic Softmax Tricks, §4 (the divergence of the noise).

    Examples
    --------
    With log-likelihoods of 0, the bound is minus the divergence from the uniform prior:

    >>> theta = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> zero = lambda z: z.new_zeros(len(z))
    >>> elbo(zero, theta, "categorical")
    tensor([-0.0690])
    >>> elbo(zero, theta, "categorical", prior=theta, method="marginals")
    tensor([0.])
    """
    check_choice("kl", kl, ("auto", "exact", "sample", "bound"))
    check_generator(generator)
    registry, item = find_method(method)
    found, problem = prepare(registry, theta, oracle, item, dict(options))
    shape = problem.batch_shape
    scores_of_prior = _prior_scores(theta, prior, problem)
    known = problem.whole_oracle
    _check_kl(found, kl)
    if divergences(found) == ("bound",):
        value = latent(g, theta, known, found, inputs=inputs, generator=generator)
        bound = _noise_divergence(found, problem, _flat_prior(scores_of_prior, known))
        return value - problem.restore(bound).to(value.dtype)
    if kl == "sample" or isinstance(found, _WEIGHTS):
        return _of_structures(found, g, problem, scores_of_prior, inputs, generator).view(shape)
    temperature: Any = found.temperature if isinstance(found, Marginals | GibbsSample | GumbelCRF) else 1.0
    if isinstance(temperature, Tensor):
        # Gibbs takes a number.
        scaled = map_parts(lambda t: t / temperature, list_to_tuple(theta))
        q = Gibbs(scaled, known, validate_args=False)
    else:
        q = Gibbs(theta, known, temperature=temperature, validate_args=False)
    with blame_argument("prior"):
        p = Gibbs(scores_of_prior, known, validate_args=False)
        divergence = kl_divergence(q, p)
    value = (
        evaluate_relaxed(g, theta, found, problem, inputs, generator)
        if isinstance(found, Relaxation)
        else latent(g, theta, known, found, inputs=inputs, generator=generator)
    )
    return value - divergence


def divergences(method: Relaxation | Estimator) -> tuple[str, ...]:
    """Return the values of ``kl`` that :func:`elbo` takes for the method, the default first."""
    if isinstance(method, _GIBBS):
        can_sample = isinstance(method, Estimator) and type(method).forward is Estimator.forward
        return ("exact", "sample") if can_sample else ("exact",)
    return ("exact",) if isinstance(method, _WEIGHTS) else ("bound",) if isinstance(method, _NOISE) else ()


def _check_kl(found: Relaxation | Estimator, kl: str) -> None:
    offered = divergences(found)
    if not offered:
        raise UnsupportedError(
            f"elbo: {found.label()} defines no distribution with a divergence; see the table of methods of elbo"
        )
    if kl not in ("auto", *offered):
        raise UnsupportedError(
            f"elbo: {found.label()} offers the divergence {' or '.join(map(repr, offered))}, got kl={kl!r}"
        )


# ----------------------------------------------------------------------------- the prior


def _prior_scores(theta: Any, prior: Any, problem: Problem) -> Any:
    """Return the scores of the prior with the batch shape of the problem."""
    like = as_tuple(list_to_tuple(theta))
    if prior is None:
        zeros = [t.new_zeros(problem.batch_shape + event) for t, event in zip(like, problem.event_shapes, strict=True)]
        return tuple(zeros) if isinstance(problem.theta, tuple) else zeros[0]
    given = list_to_tuple(prior)
    tensors = as_tuple(given)
    if isinstance(given, tuple) != isinstance(problem.theta, tuple) or len(tensors) != len(like):
        raise InvalidInputError(
            f"prior must have the form of theta, {len(like)} tensor{'s' * (len(like) > 1)}, got {len(tensors)}"
        )
    expanded = []
    for i, (t, event) in enumerate(zip(tensors, problem.event_shapes, strict=True)):
        name = f"prior[{i}]" if isinstance(given, tuple) else "prior"
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
        try:
            expanded.append(t.expand(problem.batch_shape + event))
        except RuntimeError:
            raise InvalidInputError(
                f"{name} must have a shape that broadcasts to {tuple(problem.batch_shape + event)}, got "
                f"{tuple(t.shape)}"
            ) from None
    return tuple(expanded) if isinstance(given, tuple) else expanded[0]


def _flat_prior(prior: Any, oracle: Oracle) -> Problem:
    with blame_argument("prior"):
        _, problem = prepare(RELAXATIONS, prior, oracle, "map", {})
    return problem


# ----------------------------------------------------------------------------- divergences


def _of_structures(
    found: Relaxation | Estimator,
    g: Callable[..., Tensor],
    problem: Problem,
    prior: Any,
    inputs: Tensor | Sequence[Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """Return the estimate of E_q[g(Y) − log q(Y) + log p(Y)], (B,), from weighted structures.

    The gradient of E_q[−log q(Y)] is that of the weights alone: the other term is −E_q[∇ log q(Y)] = 0.
    """
    if problem.solved is not None:
        raise InvalidInputError("elbo: instances of length 0 have no structures to weigh; drop these instances")
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    of_prior = _flat_prior(prior, problem.whole_oracle)
    if reason := missing_ability_reason(problem.oracle, GibbsOracle):
        raise UnsupportedError(f"elbo: the prior needs a log-partition function; {reason}")
    solution: Any = None
    with problem.plain_modes():
        if isinstance(found, Relaxation):
            solution = found.with_generator(generator).solve(problem.oracle, problem.theta)
            terms = WeightedStructures.of(solution.support, solution.weights).drop_zero_weights()
        else:
            terms = found.weighted_structures(problem.oracle, problem.theta, generator)
        log_ratio = _log_probs(problem.oracle, of_prior.theta, terms)
        own = _log_probs(problem.oracle, problem.theta, terms) if isinstance(found, _GIBBS) else terms.weights.log()
        log_ratio = log_ratio - own.detach()
    if isinstance(found, Relaxation):
        value = value_at(g, problem.restore_parts(solution.mean), problem, inputs)
        return value.flatten() + terms.sum(terms.weights * log_ratio).to(value.dtype)
    rows = [flat_rows(x, f"inputs[{i}]", problem.batch_shape) for i, x in enumerate(given)]
    structures = map_parts(lambda y, t: y.to(t.dtype), terms.structures, problem.theta)
    values = evaluate(g, terms, structures, rows)
    # A prior that forbids a structure makes the bound −inf; baselines would subtract −inf from −inf.
    forbidden = log_ratio.isneginf()
    values = values + torch.where(forbidden, 0.0, log_ratio).to(values.dtype)
    estimate = found._weighted_sum(FunctionValues(terms, values.detach(), problem, given), values)
    return estimate.masked_fill(terms.sum(forbidden.to(terms.weights)) > 0, -torch.inf).to(problem.dtype)


def _log_probs(oracle: Oracle, theta: Parts, terms: WeightedStructures) -> Tensor:
    """Return ⟨θ, y⟩ − log Z of each structure, (N,), differentiable in θ."""
    log_z = differentiable_log_partition(cast(GibbsOracle, oracle), theta)
    return scores(oracle, theta, terms) - log_z.expand(terms.batch)[terms.instance]


def _noise_divergence(found: Any, problem: Problem, prior: Problem) -> Tensor:
    """Return the divergence of the noise with location θ from the noise with the location of the prior, (B,).

    A function of the noisy scores, such as the best structure, can only lower the divergence.
    """
    options: Any = found.relaxation if isinstance(found, PerturbedEstimator) else found
    if getattr(options, "perturbation", "additive") != "additive":
        raise UnsupportedError("elbo: noise that multiplies scores has no bound; use perturbation='additive'")
    noise, sigma = get_noise(options.noise), options.sigma
    total: Any = 0.0
    for t, p in zip(as_tuple(problem.theta), as_tuple(prior.theta), strict=True):
        # A part that only one side forbids has an infinite divergence, and a part forbidden by both has none.
        closed = t.isneginf() | p.isneginf()
        d = (torch.where(closed, 0.0, t) - torch.where(closed, 0.0, p)) / sigma
        divergence = torch.where(t.isneginf() != p.isneginf(), torch.inf, _divergence_of_shift(noise, d))
        total = total + divergence.flatten(1).sum(1)
    return total


def _divergence_of_shift(noise: Noise, d: Tensor) -> Tensor:
    """Return KL(p(u − d) ‖ p(u)) for the density p of the noise."""
    if noise.name == "gumbel":
        return d + torch.expm1(-d)
    if noise.name == "normal":
        return d.square() / 2
    if noise.name == "logistic":
        small = d.abs() < 1e-2
        away = torch.where(small, 1.0, d)
        return torch.where(small, d.square() / 6, away / torch.tanh(away / 2) - 2)
    if noise.name == "signed_exponential":
        return d.abs() + torch.expm1(-d.abs())
    raise UnsupportedError(
        f"elbo: the divergence of shifted noise {noise!r} has no closed form; use gumbel, normal, logistic or "
        "signed_exponential noise"
    )
