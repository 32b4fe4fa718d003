"""Base class of losses of scores, given the gold structures."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..calls.arguments import OnInfeasible, argument_shapes
from ..calls.gold import gold_structures
from ..calls.problem import Problem
from ..calls.resolution import refuse_name
from ..compile.functorch import refuse_function
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, list_to_tuple
from ..relaxation import Relaxation, with_parameters_of
from ..shapes import Float
from .reduction import Reduction, restore_losses

__all__ = ["StructuredLoss"]


# ----------------------------------------------------------------------------- for torch.compile and torch.func


def _losses_like(loss: StructuredLoss, theta: Parts, *_: Any, **__: Any) -> Tensor:
    theta = list_to_tuple(theta)
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in as_tuple(theta)])
    batch = argument_shapes(theta, loss.oracle)[0] if loss.reduction == "none" else []
    return as_tuple(theta)[0].new_empty(batch, dtype=dtype)


def _is_deterministic(
    loss: StructuredLoss, theta: Parts, y: Any = None, generator: torch.Generator | None = None, **_: Any
) -> bool:
    if generator is not None or loss.keeps_state:
        return False
    return not loss.relaxation.is_stochastic and not callable(loss._callable_option()[1])


def _is_scalar(loss: StructuredLoss, *_: Any, **__: Any) -> bool:
    return loss.reduction != "none"


def _check_captured(loss: StructuredLoss, *_: Any, **__: Any) -> None:
    refuse_function(*loss._callable_option())


LOSS_CALL: dict[str, Any] = {
    "operator": OperatorSpec(_losses_like, _is_deterministic, _is_scalar),
    "functorch": True,
    "check_captured": _check_captured,
}
"""The options of :func:`public_call` for the method ``forward`` of losses."""


# ----------------------------------------------------------------------------- the loss


class StructuredLoss(nn.Module, abc.ABC):
    """A loss of each instance, reduced over the batch. Subclasses implement ``_losses``.

    Attributes
    ----------
    oracle : Oracle
        The set Y of structures.
    relaxation : Relaxation
        The relaxation used by the loss.
    reduction : "mean", "sum" or "none"
        The reduction over the batch.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score.
    settable : tuple of str
        Names of the attributes that may change after construction.
    keeps_state : bool
        Whether a call changes the loss, so that the next call with equal arguments may return another value.
    """

    keeps_state: ClassVar[bool] = False

    settable: ClassVar[tuple[str, ...]] = ("oracle", "relaxation", "reduction", "on_infeasible")
    oracle: Oracle
    relaxation: Relaxation
    reduction: Reduction
    on_infeasible: OnInfeasible

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_name(name, value)
        super().__setattr__(name, value)

    @public_call(**LOSS_CALL)
    def forward(
        self, theta: Parts, y: Parts, *, generator: torch.Generator | None = None, **instance_data: Any
    ) -> Float[Tensor, "*batch"]:
        """Return the loss of scores ``theta`` (..., *event) for gold structures ``y``.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The scores.
        y : the form of θ with the full batch shape, or an integer Tensor of labels
            The gold structures, elements of Y.
        generator : torch.Generator, optional
            The only random generator of relaxations that draw noise.
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
            If a gold structure is not in Y (checked for oracles with labels), or uses a part of score −inf, so that
            its loss is infinite. Also for the invalid inputs of :func:`structinf.relax`.
        """

        def losses(problem: Problem, relaxation: Relaxation) -> Tensor:
            return self._losses(problem, self._gold(problem, y), relaxation)

        return self._reduced(losses, theta, instance_data, generator)

    def _gold(self, problem: Problem, y: Any) -> Parts:
        """Return the gold structures (B, *event), given as structures or as labels, after their checks."""
        return gold_structures(problem, y, "y")

    def _reduced(
        self,
        losses: Callable[[Problem, Any], Tensor],
        theta: Parts,
        instance_data: Mapping[str, Any],
        generator: torch.Generator | None,
        otherwise: Callable[[Problem, Any, InvalidInputError], Tensor | None] = lambda *_: None,
    ) -> Tensor:
        """Return the reduced losses of a call.

        Parameters
        ----------
        losses : callable
            Maps a problem and a relaxation to the loss of each instance, (B,).
        theta : Parts
            The user's scores.
        instance_data : mapping
            The user's instance data.
        generator : torch.Generator, optional
            The source of noise.
        otherwise : callable
            Called after an InvalidInputError of ``losses``, with the error too. Returns the losses, or None to raise
            the error.
        """
        relaxation = with_parameters_of(self, self.relaxation).with_generator(generator)

        def compute(problem: Problem) -> Tensor:
            try:
                with problem.plain_modes(defers_checks=relaxation.defers_checks(self.oracle)):
                    values = losses(problem, relaxation)
            except InvalidInputError as error:
                other = otherwise(problem, relaxation, error)
                if other is None:
                    raise
                values = other
            return restore_losses(values, problem, self.reduction)

        problem = Problem.build(theta, self.oracle, instance_data, self.on_infeasible)
        return problem.solve_feasible(compute, reads_gold=True, generator=generator, draws=relaxation.is_stochastic)

    def _callable_option(self) -> tuple[str, Any]:
        """Return the name and the value of the option that may be a function; by default no option.

        A function may read any tensor, so neither torch.compile nor torch.func can trace it.
        """
        return "", None

    @abc.abstractmethod
    def _losses(self, problem: Problem, gold: Parts, relaxation: Any) -> Tensor:
        """Return the losses, (B,), or the result of :func:`structinf.losses.reduction.attach_gradient`.

        The ``relaxation`` draws from the random generator of the call.
        """
