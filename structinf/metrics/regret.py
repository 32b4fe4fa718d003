"""Values that decisions lose against the best decisions: regret, unambiguous and relative regret, optimality gap."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible, blame_argument
from ..calls.gold import gold_structures
from ..calls.problem import Problem
from ..calls.resolution import prepare_oracle
from ..calls.true_scores import predicted_and_true
from ..compile.public_call import public_call
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..shapes import Float
from ..solvers.argmax import best_score, best_structure

__all__ = ["optimality_gap", "regret", "relative_regret", "unambiguous_regret"]

_STEPS = tuple(2.0**-k for k in range(12, 45, 4))
"""Weights of the true scores that break ties, relative to the sizes of both scores, in the order of the trials."""


@public_call
@torch.no_grad()
def regret(
    theta: Parts,
    true_theta: Parts,
    oracle: str | Oracle,
    *,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return ⟨t, y*(t)⟩ − ⟨t, y*(θ)⟩, the loss in score of the best structures for θ when the true scores are t.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of Tensors
        The predicted scores θ.
    true_theta : (..., *event) Tensor, or tuple of Tensors
        The true scores t, of the shapes of ``theta``.
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for it.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The regret, at least 0, without a gradient. It is infinite if y*(θ) uses a part of true score −inf.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]])
    >>> true_theta = torch.tensor([[3.0, 1.0, 0.0]])
    >>> regret(theta, true_theta, "categorical")
    tensor([2.])
    """
    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    return problem.solve_feasible(lambda p: p.restore(_lost_and_best(theta, true_theta, p)[0]))


@public_call
@torch.no_grad()
def relative_regret(
    theta: Parts,
    true_theta: Parts,
    oracle: str | Oracle,
    *,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return the :func:`regret` of each instance, divided by the absolute value |⟨t, y*(t)⟩| of the best decision.

    The normalized regret of a data set, as other libraries report it, is another number: the sum of the regrets divided
    by the sum of the values.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of Tensors
        The predicted scores θ.
    true_theta : (..., *event) Tensor, or tuple of Tensors
        The true scores t, of the shapes of ``theta``.
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for it.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The relative regret, at least 0, without a gradient. If the value of the best decision is 0, it is 0 without
        regret and infinite with regret.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]])
    >>> true_theta = torch.tensor([[2.0, 0.5, 1.0]])
    >>> relative_regret(theta, true_theta, "categorical")
    tensor([0.7500])
    """
    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    return problem.solve_feasible(lambda p: p.restore(_ratio(*_lost_and_best(theta, true_theta, p))))


@public_call
@torch.no_grad()
def unambiguous_regret(
    theta: Parts,
    true_theta: Parts,
    oracle: str | Oracle,
    *,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return the largest :func:`regret` among all structures that are best for θ.

    If several structures have the same predicted score, the regret depends on the structure that the oracle returns. A
    model that predicts equal scores for all parts can then have a regret of 0. The unambiguous regret counts the worst
    of the tied structures.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of Tensors
        The predicted scores θ.
    true_theta : (..., *event) Tensor, or tuple of Tensors
        The true scores t, of the shapes of ``theta``. They must be finite at the parts allowed by ``theta``.
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for it.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The regret, at least 0, without a gradient. The worst of the tied structures is best for θ − εt. The function
        takes the largest ε from 2⁻¹² to 2⁻⁴⁴, relative to the sizes of θ and t, at which the best structure still has
        the score max ⟨θ, y⟩ up to rounding, 1e-12 times the sum of the sizes of its terms.

    Raises
    ------
    UnsupportedError
        If the oracle accepts only scores of at most 0, because θ − εt can be positive.

    References
    ----------
    Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", Definition 2.

    Examples
    --------
    >>> equal = torch.zeros(1, 3)
    >>> true_theta = torch.tensor([[2.0, 0.5, 1.0]])
    >>> regret(equal, true_theta, "categorical")
    tensor([0.])
    >>> unambiguous_regret(equal, true_theta, "categorical")
    tensor([1.5000])
    """
    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    if problem.oracle.requires_nonpositive_theta:
        raise UnsupportedError(
            f"{problem.oracle!r} takes scores of at most 0, but the search for the worst tied structure needs the best "
            "structure for θ − εt, which can be positive; use regret"
        )
    return problem.solve_feasible(functools.partial(_unambiguous_regret, theta, true_theta))


@public_call
@torch.no_grad()
def optimality_gap(
    y: Any,
    true_theta: Parts,
    oracle: str | Oracle,
    *,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return (max ⟨t, y'⟩ − ⟨t, y⟩) / |max ⟨t, y'⟩|: the share of the best value that a decision y loses.

    The decision may come from anywhere, for example from a heuristic, a pool or a rounded mean.

    Parameters
    ----------
    y : the form of ``true_theta`` with the full batch shape, or an integer Tensor of labels
        The decisions, elements of Y.
    true_theta : (..., *event) Tensor, or tuple of Tensors
        The true scores t.
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for it.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The gap, without a gradient: 0 for a best decision, and below 0 only for y outside of Y. If the best value is 0,
        the gap is 0 or infinite. It is infinite if y uses a part of true score −inf.

    Examples
    --------
    >>> true_theta = torch.tensor([[2.0, 0.5, 1.0]])
    >>> optimality_gap(torch.tensor([2]), true_theta, "categorical")
    tensor([0.5000])
    """
    with blame_argument("true_theta"):
        problem = prepare_oracle(true_theta, oracle, options, on_infeasible)

    def gaps(problem: Problem) -> Tensor:
        true = map_parts(Tensor.double, problem.theta)
        with problem.plain_modes():
            decision = map_parts(Tensor.double, gold_structures(problem, y, "y"))
            best = best_structure(problem.oracle, true)
            lost = problem.oracle.score(true, map_parts(torch.sub, best, decision))
            return problem.restore(_ratio(lost, best_score(problem.oracle, true, best)))

    return problem.solve_feasible(gaps, reads_gold=True)


# ----------------------------------------------------------------------------- steps


def _lost_and_best(theta: Parts, true_theta: Parts, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the regret of the best structures for θ, and the best value, (B,) each."""
    true = map_parts(Tensor.double, problem.scores_like(theta, true_theta, "true_theta")[0])
    predicted = map_parts(Tensor.double, problem.theta)
    with problem.plain_modes():
        chosen = best_structure(problem.oracle, predicted)
        best = best_structure(problem.oracle, true)
        lost = problem.oracle.score(true, map_parts(torch.sub, best, chosen)).clamp(min=0)
        return lost, best_score(problem.oracle, true, best)


def _ratio(lost: Tensor, best: Tensor) -> Tensor:
    return torch.where(lost == 0, 0.0, lost / best.abs())


def _unambiguous_regret(theta: Parts, true_theta: Parts, problem: Problem) -> Tensor:
    predicted, true = predicted_and_true(problem, theta, true_theta)
    oracle = problem.oracle
    with problem.plain_modes():
        best, worst = best_structure(oracle, true), best_structure(oracle, predicted)
        most = oracle.score(predicted, worst)
        size = oracle.score(map_parts(_size, predicted), map_parts(Tensor.abs, worst))
        pending = torch.ones_like(most, dtype=torch.bool)
        ratio = _largest(predicted) / torch.where(_largest(true) > 0, _largest(true), 1.0)
        # All predicted scores may be 0.
        ratio = torch.where(ratio > 0, ratio, 1.0)
        for step in _STEPS:
            weights = step * ratio
            tilted = map_parts(
                lambda p, t, w=weights: torch.where(
                    p.isneginf(), -torch.inf, p - w.view(-1, *[1] * (p.ndim - 1)) * torch.where(p.isneginf(), 0.0, t)
                ),
                predicted,
                true,
            )
            y = best_structure(oracle, tilted)
            tied = pending & (oracle.score(predicted, y) >= most - 1e-12 * size)
            worst = map_parts(lambda w, z, tied=tied: torch.where(tied.view(-1, *[1] * (z.ndim - 1)), z, w), worst, y)
            pending = pending & ~tied
            if not bool(pending.any()):
                break
        return problem.restore(oracle.score(true, map_parts(torch.sub, best, worst)).clamp(min=0))


def _size(t: Tensor) -> Tensor:
    return torch.where(t.isinf(), 0.0, t.abs())


def _largest(theta: Parts) -> Tensor:
    """Return the largest size of a finite score of each instance, (B,) or (1,)."""
    sizes = [_size(t).flatten(1) for t in as_tuple(theta)]
    return torch.stack([s.amax(1) if s.shape[1] else s.sum(1) for s in _same_batch(sizes)]).amax(0)


def _same_batch(tensors: list[Tensor]) -> list[Tensor]:
    size = max((len(t) for t in tensors if len(t) != 1), default=len(tensors[0]))
    return [t.expand(size, *t.shape[1:]) for t in tensors]
