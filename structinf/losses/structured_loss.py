"""The base class of losses of potentials, given the gold structures."""

from __future__ import annotations

import abc
import functools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..calls.problem import Problem, shapes
from ..calls.resolution import bind_problem
from ..compile.decorators import as_custom_op
from ..compile.functorch import functorch_compatible
from ..oracle import Oracle
from ..parts import Parts, as_tuple, tupled
from ..relaxation import Relaxation
from ..shapes import Float
from .reduction import Reduction, reduce_losses

__all__ = ["StructuredLoss"]


class StructuredLoss(nn.Module, abc.ABC):
    """A loss of each instance, reduced over the batch; subclasses give `_losses`."""

    settable: ClassVar[tuple[str, ...]] = ("oracle", "relaxation", "reduction")
    oracle: Oracle
    relaxation: Relaxation
    reduction: Reduction

    @as_custom_op(
        lambda self, theta, y, **_: self._like_losses(theta),
        lambda self, theta, y, generator=None, **_: (
            generator is None and not self.relaxation.draws and not self._calls_functions()
        ),
        lambda self, *_, **__: self.reduction != "none",
    )
    @functools.partial(functorch_compatible, check=lambda self, *_, **__: self._check_followed())
    def forward(
        self, theta: Parts, y: Parts, *, generator: torch.Generator | None = None, **instance_data: Any
    ) -> Float[Tensor, "*batch"]:
        """The loss of potentials ``theta`` (..., *event) for gold ``y``.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of them
        y : the form of θ with the full batch, or an integer Tensor of labels
            A structure of Y.
        generator : torch.Generator, optional
            The only source of randomness, for relaxations that draw noise.
        **instance_data
            Instance data such as lengths.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score.
        InvalidInputError
            If a gold structure is none of Y's (checked where the oracle has labels), or its loss is infinite because it
            uses a forbidden part; and as :func:`structinf.relax`.
        """
        problem = bind_problem(theta, self.oracle, instance_data)
        with problem.plain_modes():
            losses = self._losses(problem, problem.gold(y, "y"), self.relaxation.seeded(generator))
        total = reduce_losses(losses, self.reduction)
        return problem.restore(losses) if self.reduction == "none" else total.to(problem.dtype)

    def _like_losses(self, theta: Parts) -> Tensor:
        theta = tupled(theta)
        dtype = functools.reduce(torch.promote_types, [t.dtype for t in as_tuple(theta)])
        batch = shapes(theta, self.oracle)[0] if self.reduction == "none" else []
        return as_tuple(theta)[0].new_empty(batch, dtype=dtype)

    def _check_followed(self) -> None:
        """UnsupportedError if a transform of torch.func could not follow the loss."""

    def _calls_functions(self) -> bool:
        """Whether the loss depends on functions of the user's, which may read anything."""
        return False

    @abc.abstractmethod
    def _losses(self, problem: Problem, gold: Parts, relaxation: Any) -> Tensor:
        """The loss of each instance, (B,), by the loss's own relaxation, ready to draw."""
