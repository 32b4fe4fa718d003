"""Base class of losses of predicted scores, given the true scores of the parts."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import get_oracle
from ..calls.true_scores import predicted_and_true
from ..compile.public_call import public_call
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from ..shapes import Float
from .reduction import Reduction, attach_gradient, check_reduction, describe_rules, restore_losses

__all__ = ["DecisionLoss"]


class DecisionLoss(nn.Module, abc.ABC):
    """A loss of predicted scores θ for each instance, given the true scores t. Subclasses implement ``_losses``.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures.
    options : mapping
        Options of an oracle given by name.
    reduction : "mean", "sum" or "none"
        The reduction over the batch.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score.
    """

    def __init__(
        self, oracle: str | Oracle, options: Mapping[str, Any], reduction: Reduction, on_infeasible: OnInfeasible
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        self.on_infeasible: OnInfeasible = on_infeasible
        self.oracle = get_oracle(oracle, **options)
        self.reduction: Reduction = check_reduction(reduction)

    def _refuse_nonpositive(self, combination: str) -> None:
        """Raise UnsupportedError if the oracle takes only scores of at most 0, and a ``combination`` can be above."""
        if self.oracle.requires_nonpositive_theta:
            raise UnsupportedError(
                f"{self.oracle!r} takes scores of at most 0, but {combination}, which can "
                "be positive; train with FenchelYoungLoss or through a Layer of blackbox"
            )

    @public_call(functorch=True)
    def forward(self, theta: Parts, true_theta: Parts, **instance_data: Any) -> Float[Tensor, "*batch"]:
        """Return the loss of predicted scores ``theta`` (..., *event), given the true scores.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The predicted scores. A part of score −inf is forbidden in both arguments.
        true_theta : (..., *event) Tensor, or tuple of Tensors
            The true scores, of the shapes of ``theta``. They must be finite at the parts allowed by ``theta``.
        **instance_data
            Instance data of the oracle, for example ``lengths``.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score, with ``on_infeasible="raise"``.
        InvalidInputError
            If the shapes differ, or ``true_theta`` is −inf at a part allowed by ``theta``. Also for the invalid
            inputs of :func:`structinf.relax`.
        """
        problem = Problem.build(theta, self.oracle, instance_data, self.on_infeasible)
        return problem.solve_feasible(functools.partial(self._reduced, theta, true_theta))

    def _reduced(self, theta: Parts, true_theta: Parts, problem: Problem) -> Tensor:
        predicted, true = predicted_and_true(problem, theta, true_theta)
        with problem.plain_modes():
            losses = self._losses(problem, predicted, true)
        return restore_losses(losses, problem, self.reduction)

    @abc.abstractmethod
    def _losses(self, problem: Problem, predicted: Parts, true: Parts) -> Tensor:
        """Return the losses, (B,), or the result of :func:`attach_gradient`.

        The scores (B | 1, *event) are in float64, with the same parts of −inf.
        """

    def _linear(
        self, values: Tensor, problem: Problem, gradient: Parts, true: Parts, of_true: Callable[[], Parts]
    ) -> Tensor:
        """Return :func:`attach_gradient` of ``values`` (B,) with gradients that are constant nearby.

        Parameters
        ----------
        values : (B,) Tensor
            The losses.
        problem : Problem
            The problem of the predicted scores.
        gradient : (B, *event) Parts
            The gradient by ``theta``.
        true : (B | 1, *event) Parts
            The true scores.
        of_true : callable
            Returns the gradient by ``true``.
        """
        theta = problem.theta
        if any(t.requires_grad for t in as_tuple(true)):
            theta, gradient = as_tuple(theta) + as_tuple(true), as_tuple(gradient) + as_tuple(of_true())
        return attach_gradient(values, problem, self.reduction, theta, gradient)

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, {describe_rules(self)}"
