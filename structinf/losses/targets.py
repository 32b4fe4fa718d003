"""Fenchel-Young losses for targets other than a gold structure: allowed parts, and the mean of a teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..calls.allowed_parts import restrict_flat
from ..calls.problem import Problem
from ..deferred_checks import finish_checks
from ..errors import InfeasibleError, InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import GradientRelaxation, RegularizedRelaxation
from ..shapes import Float
from .reduction import without_negative_rounding

__all__ = ["divergences", "partial_losses"]


def partial_losses(
    problem: Problem, relaxation: RegularizedRelaxation, masks: Sequence[Tensor | None]
) -> Float[Tensor, " batch"]:
    """Return Ω*(θ) − Ω*(θ'), (B,) in float64, for θ' = θ with −inf for parts that are not allowed.

    A latent-variable loss (the difference of two log-partition functions for ``marginals``, the latent structured
    perceptron for ``map``), at least 0 since θ' ≤ θ. Its gradient is μ(θ) − μ(θ').

    Parameters
    ----------
    problem : Problem
        The batch.
    relaxation : RegularizedRelaxation
        The relaxation with its regularizer Ω.
    masks : sequence of (B | 1, *event) bool Tensor or None
        Which parts of each tensor of θ are allowed.
    """
    oracle, theta = problem.oracle, problem.theta
    dtype = as_tuple(theta)[0].dtype
    relaxation.check_scale(dtype)
    state = _NoiseState(relaxation)
    value = _value(relaxation, oracle, theta, dtype)
    state.restore()  # with the same noise, the difference of two estimates is at least 0 too
    finish_checks()  # an infeasible instance without the restriction raises the usual error
    with _naming_target("allowed", "these are the scores restricted to the allowed parts"):
        allowed = _value(relaxation, oracle, restrict_flat(problem, theta, list(masks)), dtype)
        finish_checks()
    return _losses(relaxation, value - allowed)


def divergences(problem: Problem, relaxation: RegularizedRelaxation, teacher: Parts) -> Float[Tensor, " batch"]:
    """Return Ω*(θ) − Ω*(η) − ⟨θ − η, μ(η)⟩, (B,) in float64, for the scores η of a ``teacher``.

    By Fenchel-Young duality Ω(μ(η)) = ⟨η, μ(η)⟩ − Ω*(η), so the value is the Fenchel-Young loss L(θ, μ(η)) (Blondel,
    Martins & Niculae 2020, Definition 2), with gradient μ(θ) − μ(η).

    Parameters
    ----------
    problem : Problem
        The batch.
    relaxation : RegularizedRelaxation
        The relaxation with its regularizer Ω.
    teacher : (B | 1, *event) Parts
        η.
    """
    oracle, theta = problem.oracle, problem.theta
    dtype = as_tuple(theta)[0].dtype
    relaxation.check_scale(dtype)
    temperature = getattr(relaxation, "temperature", None)
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        raise InvalidInputError(
            "target_potentials: the target depends on the temperature, which requires a gradient; pass the temperature "
            "as a number, or without requires_grad"
        )
    state = _NoiseState(relaxation)
    finish_checks()
    with torch.no_grad(), _naming_target("target_potentials", "these are the scores of the teacher"):
        target = relaxation.solve(oracle, map_parts(Tensor.double, teacher))
        finish_checks()
    state.restore()
    value = _value(relaxation, oracle, theta, dtype)
    mean = map_parts(Tensor.detach, target.mean)
    # −inf − (−inf) is NaN, but the mean of a part that the teacher forbids is 0.
    change = map_parts(lambda t, s: torch.where(s.isneginf(), 0.0, t - s), map_parts(Tensor.double, theta), teacher)
    score = oracle.score(change, mean)
    if bool(score.isneginf().any()):
        raise InvalidInputError(
            f"target_potentials: the mean at batch index {int(score.isneginf().nonzero()[0, 0])} uses a part of score "
            "−inf in theta, so its loss is infinite; forbid the part in target_potentials too"
        )
    return _losses(relaxation, value - target.value - score)


def _losses(relaxation: RegularizedRelaxation, losses: Tensor) -> Tensor:
    """Return ``losses`` without negative rounding errors. An approximate Ω*(θ) may give losses below 0."""
    return losses if relaxation.value_may_miss_maximum else without_negative_rounding(losses)


def _value(relaxation: RegularizedRelaxation, oracle: Oracle, theta: Parts, dtype: torch.dtype) -> Tensor:
    """Return Ω*(θ), (B,) in float64."""
    if isinstance(relaxation, GradientRelaxation):
        return relaxation.float64_conjugate_and_omega(oracle, theta, map_parts(torch.zeros_like, theta), dtype)[0]
    return relaxation.conjugate(oracle, map_parts(Tensor.double, theta))


@contextlib.contextmanager
def _naming_target(argument: str, what: str) -> Iterator[None]:
    """Add the ``argument`` of the target, and ``what`` the scores are, to InfeasibleErrors of the context."""
    try:
        yield
    except InfeasibleError as error:
        message = f"{argument}: {error.args[0]} ({what})"
        raise InfeasibleError(message, error.batch_index, error.batch_indices) from None


class _NoiseState:
    """The state of the random generator of a relaxation, for a second call with the same noise."""

    def __init__(self, relaxation: RegularizedRelaxation) -> None:
        self.generator = None
        if relaxation.is_stochastic:
            self.generator = relaxation.generator or torch.default_generator
            self.state = self.generator.get_state()

    def restore(self) -> None:
        """Reset the generator."""
        if self.generator is not None:
            self.generator.set_state(self.state)
