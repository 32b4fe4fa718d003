"""The public functions: expect, and the registry of estimators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import prepare
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import pack_like
from ..shapes import Float
from ..transitions import TransitionSystem
from ..validation import check_generator
from .base import ESTIMATORS, Estimator, evaluate, flat_rows
from .weighted_structures import WeightedStructures

__all__ = ["expect", "get_estimator", "list_estimators", "register_estimator"]


def register_estimator(name: str, factory: Callable[..., Estimator] | None = None) -> Any:
    """Register an estimator class under ``name``, as a decorator or as a call with the class.

    Parameters
    ----------
    name : str
        The name of the estimator.
    factory : type or callable, optional
        The estimator class, or a function that makes an estimator from its options. Not given for a decorator.
    """
    return ESTIMATORS.register(name, factory)  # type: ignore[arg-type]


def list_estimators() -> list[str]:
    """Return the names of all estimators.

    Examples
    --------
    >>> "score_function" in list_estimators()
    True
    """
    return ESTIMATORS.names()


def get_estimator(estimator: str | Estimator, **options: Any) -> Estimator:
    """Return the estimator called ``estimator`` with these ``options``; an object is returned unchanged.

    The errors are listed at :func:`structinf.get_oracle`.

    Parameters
    ----------
    estimator : str or Estimator
        A name of :func:`list_estimators`, or an object.
    **options
        Options of an estimator given by name.

    Examples
    --------
    >>> get_estimator("topk_sparsemax", k=5)
    TopKSparsemax(k=5, temperature=1.0)
    """
    return ESTIMATORS.get(estimator, **options)


@public_call
def expect(
    f: Callable[..., Tensor],
    theta: Any,
    oracle: str | Oracle | TransitionSystem,
    estimator: str | Estimator = "exact",
    *,
    inputs: Tensor | Sequence[Tensor] = (),
    generator: torch.Generator | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Estimate E[f(Y)] over random structures Y, differentiably in θ and in the parameters of f.

    ================  ================================================  ==================================
    estimator         distribution of Y                                 value and gradient
    ================  ================================================  ==================================
    exact             p(y) ∝ exp⟨θ, y⟩                                  exact
    score_function    p(y) ∝ exp⟨θ, y⟩                                  unbiased
    sum_and_sample    p(y) ∝ exp⟨θ, y⟩                                  unbiased, with a lower variance
    unordered_set     p(y) ∝ exp⟨θ, y⟩                                  unbiased, k different structures
    muprop            p(y) ∝ exp⟨θ, y⟩                                  unbiased, for differentiable f
    rebar             p(y) ∝ exp⟨θ, y⟩                                  unbiased, for differentiable f
    relax             p(y) ∝ exp⟨θ, y⟩                                  unbiased, with a trained module
    sparsemax         sparsemax of all scores ⟨θ, y⟩                    exact
    topk_sparsemax    sparsemax of the k highest scores                 exact
    sparsemap         weights of the SparseMAP solution                 exact
    perturbed         argmax ⟨θ + σU, y⟩ for noise U                    unbiased
    ================  ================================================  ==================================

    Parameters
    ----------
    f : callable
        The function, called once as ``f(y, *rows)`` with all weighted structures of all instances, stacked: y is
        (N, *event) in θ's form and dtype. N varies between calls. f returns a real number for each structure, (N,).
        A gradient of f is used if available, but f may be a black box. f is not called without structures, as for
        an empty batch. Pass tensors with a row for each instance as ``inputs``: f must not combine y with the rows
        of a tensor from elsewhere. If f reads a tensor of N rows, a second call with two or three structures detects
        such a function.
    theta : (*batch, *event) Tensor, or tuple of Tensors
        The scores, as for :func:`structinf.relax`. No structure uses a part of score −inf, whose gradient is 0.
        For a transition system, the inputs of its ``start``.
    oracle : str, Oracle or TransitionSystem
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options. Or a
        transition system, whose sequences have the distribution of :class:`structinf.TransitionSystem`; the
        estimators ``exact``, ``score_function`` and ``unordered_set`` work for it.
    estimator : str or Estimator
        A name of :func:`list_estimators`, or an object. Only an object keeps state and parameters between calls.
    inputs : (*batch, ...) Tensor, or several
        Tensors used by f besides the structure. In the call of f, ``rows`` are (N, ...) tensors with the input of
        each structure's instance.
    generator : torch.Generator, optional
        The only random generator of estimators that sample, on θ's device. By default torch's global generator.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for the instance,
        with gradient 0. f then gets no structure of the instance. Transition systems accept "raise" only.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle or an estimator given by
        name.

    Returns
    -------
    (*batch) Tensor
        The estimates, in θ's dtype.

    Raises
    ------
    InfeasibleError
        If an instance has no structure of finite score, with ``on_infeasible="raise"``.
    UnsupportedError
        If the oracle lacks an ability required by the estimator. This TypeError lists the supported estimators.
    InvalidInputError
        If f does not return one number for each structure, if f works for one number of structures only, if an input
        has another batch shape than θ, or if an estimator given by name would lose its state. Also for the invalid
        inputs of :func:`structinf.relax`.

    References
    ----------
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, chapter 5.

    Examples
    --------
    The expected cost of a random pair of three elements, exactly (three evaluations of f) and under the sparsemax (two
    evaluations):

    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> expect(lambda y: y @ cost, theta, "subset", k=2)
    tensor([3.7905])
    >>> expect(lambda y: y @ cost, theta, "subset", "sparsemax", k=2)
    tensor([3.7500])
    """
    if not callable(f):
        raise TypeError(f"f must be a function of structures, got {type(f).__name__}; pass f first, then theta")
    if not isinstance(inputs, Tensor | list | tuple):
        raise TypeError(f"inputs must be a tensor, or a list or tuple of tensors, got {type(inputs).__name__}")
    check_generator(generator)
    check_on_infeasible(on_infeasible)
    if isinstance(oracle, TransitionSystem):
        if on_infeasible != "raise":
            raise UnsupportedError(
                'on_infeasible="zero" does not work for transition systems: a state without an allowed action is an '
                "error of the system; leave out the option"
            )
        rows = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        chosen = get_estimator(estimator, **options)
        _check_state(chosen, estimator)
        return chosen.expect_sequences(f, oracle, theta, rows, generator)
    found, problem = prepare(ESTIMATORS, theta, oracle, estimator, options, on_infeasible)
    _check_state(found, estimator)
    rows = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)

    def estimate(problem: Problem) -> Tensor:
        if problem.solved is None:
            return problem.restore(found(f, problem, rows, generator))
        return _with_left_out_instances(found, f, problem, rows, generator)

    return problem.solve_feasible(estimate, generator=generator, draws=True)


def _with_left_out_instances(
    found: Estimator,
    f: Callable[..., Tensor],
    problem: Problem,
    inputs: Sequence[Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """Return the estimates of a problem with empty instances, where f is f at no parts, and infeasible ones, with 0."""
    assert problem.solved is not None
    rows = [flat_rows(x, f"inputs[{i}]", problem.batch_shape) for i, x in enumerate(inputs)]
    solved, empty = problem.solved.index, problem.solved.empty
    rest = dataclasses.replace(problem, batch_shape=solved.shape, solved=None)
    estimates = found(f, rest, tuple(problem.select(x) for x in rows), generator)
    zeros = [
        torch.zeros(1, len(empty), *event, dtype=dtype, device=empty.device)
        for event, dtype in zip(problem.event_shapes, problem.dtypes, strict=True)
    ]
    terms = WeightedStructures.of(pack_like(zeros, problem.theta), estimates.new_ones(1, len(empty)))
    of_empty = evaluate(f, terms, terms.structures, [x.index_select(0, empty.to(x.device)) for x in rows])
    whole = problem.scatter(estimates).index_copy(0, empty, of_empty.to(estimates.dtype))
    return whole.view(problem.batch_shape).to(problem.dtype)


def _check_state(found: Estimator, estimator: str | Estimator) -> None:
    if isinstance(estimator, str) and found.has_state:
        raise InvalidInputError(
            f"estimator: {found.label()} with these options keeps a state, but an estimator given by name loses its "
            "state after each call; create it once with get_estimator(...) and pass the object"
        )
