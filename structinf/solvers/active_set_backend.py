"""What the active set method needs from its implementations, compiled loops or torch operations: one abstract class."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts
from .mean_problem import MeanProblem

__all__ = ["ActiveSetBackend", "BackendResult"]


@dataclass
class BackendResult:
    """The solutions of a batch in float64: the mean (B, coordinates), weights (B, slots), and all else (B,)."""

    mean: Tensor
    value: Tensor
    weights: Tensor
    gap: Tensor
    converged: Tensor
    iterations: Tensor


class ActiveSetBackend(abc.ABC):
    """The quadratic programs of a batch, each over the structures that have been added to its instance so far.

    Structures are added to all n ``unfinished`` instances at once, in the order of that list, as a list of (n, width)
    float64 tensors, one for each tensor of coordinates. A backend keeps an instance's structures in numbered slots.

    Attributes
    ----------
    problem : MeanProblem
    unfinished : (n,) int64 Tensor
        The unfinished instances. Their order may change when their number does.
    """

    problem: MeanProblem
    unfinished: Tensor

    @abc.abstractmethod
    def objective_gradient(self, oracle: Oracle) -> Parts:
        """The gradient of the objective at μ, (n, *event), for the unfinished instances; θ before the first structure.

        Tensors of θ that all instances share, and that the penalty does not change, stay shared.
        """

    @abc.abstractmethod
    def add_starting_structure(self, structure: list[Tensor]) -> None:
        """Add structures to start from; pass over zero ones, those of score −inf and affinely dependent ones."""

    @abc.abstractmethod
    def solve_starting_structures(self) -> None:
        """Solve the programs over the structures to start from."""

    @abc.abstractmethod
    def add_and_solve(self, structure: list[Tensor], tolerance: float, last: bool) -> None:
        """Add one structure to each program, which maximises the objective's gradient, and solve; or finish instances.

        An instance finishes, with its solution as it was before, if the structure shows that its gap is within the
        tolerance, or if this is the ``last`` round.
        """

    @abc.abstractmethod
    def result(self) -> BackendResult:
        """The solutions, once all instances are finished. Frees what :meth:`structures` and :meth:`vjp` do not need."""

    @abc.abstractmethod
    def structures(self, slots: Tensor) -> Tensor:
        """The structures in ``slots`` (K, B), heaviest first: (K, B, coordinates), zero where the weight is."""

    @abc.abstractmethod
    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        """Product with the transposed Jacobian, (B, coordinates), of (B, coordinates) and (B, slots)."""
