"""The interface of the active-set method to its implementations in compiled loops or torch operations."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from torch import Tensor

from ..errors import renumber_instances
from ..oracle import Oracle
from ..parts import Parts
from .argmax import checked_argmax
from .mean_problem import MeanProblem

__all__ = ["ActiveSetBackend", "BackendResult"]


@dataclass
class BackendResult:
    """The solutions of a batch in float64: the mean (B, coordinates), weights (B, slots), and the others (B,)."""

    mean: Tensor
    value: Tensor
    weights: Tensor
    gap: Tensor
    converged: Tensor
    iterations: Tensor


class ActiveSetBackend(abc.ABC):
    """The quadratic programs of a batch, each over the structures added to its instance so far.

    Each call adds one structure to all n ``unfinished`` instances, in the order of ``unfinished``. The structures
    come as a list of (n, width) float64 tensors, one for each tensor of coordinates. A backend keeps the structures
    of an instance in numbered slots.

    Attributes
    ----------
    problem : MeanProblem
        The oracle with the scores.
    unfinished : (n,) int64 Tensor
        The unfinished instances. Their order may change when their number changes.
    """

    problem: MeanProblem
    unfinished: Tensor

    @abc.abstractmethod
    def objective_gradient(self, oracle: Oracle) -> Parts:
        """Return the gradient of the objective at μ, (n, *event), for the unfinished instances.

        Before the first structure, the gradient is θ. Tensors of θ shared by the batch stay shared if the penalty
        does not change them.
        """

    def best_structures(self, oracle: Oracle) -> Parts:
        """Return a structure of each unfinished instance that maximises the gradient, from the ``oracle`` of these."""
        with renumber_instances(self.unfinished):
            return checked_argmax(oracle, self.objective_gradient(oracle))

    @abc.abstractmethod
    def add_starting_structure(self, structure: list[Tensor]) -> None:
        """Add starting structures.

        Zero structures, affinely dependent structures and structures of score −inf are ignored.
        """

    @abc.abstractmethod
    def solve_starting_structures(self) -> None:
        """Solve the programs over the starting structures."""

    @abc.abstractmethod
    def add_and_solve(self, structure: list[Tensor], tolerance: float, accuracy: float, last: bool) -> None:
        """Add to each program a structure that maximises the objective's gradient and solve, or finish the instance.

        An instance finishes with its previous solution if the structure shows a gap within ``tolerance`` or
        ``accuracy``, defined in :func:`.active_set.active_set`, or if this is the ``last`` round.
        """

    @abc.abstractmethod
    def result(self) -> BackendResult:
        """Return the solutions of finished instances.

        All data not needed by :meth:`structures` and :meth:`vjp` is freed.
        """

    @abc.abstractmethod
    def structures(self, slots: Tensor) -> Tensor:
        """Return the structures in ``slots`` (K, B) as (K, B, coordinates), with 0 for slots of weight 0.

        The slots of an instance are in descending order of weight.
        """

    @abc.abstractmethod
    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        """Return the product (B, coordinates) of the cotangents (B, coordinates) and (B, slots) with the Jacobian."""
