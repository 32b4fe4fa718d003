"""SparseMAP's active set method over any oracle.

The batch moves in step: a round is one call of the oracle for all unfinished instances, then one
small quadratic program for each. Who solves the programs, compiled loops on the CPU or batched
linear algebra on other devices, is behind :class:`Programs`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, map_parts
from .coordinates import Objective

__all__ = ["ActiveSetSolution", "Outcome", "Programs", "active_set", "run"]


def active_set(
    oracle: Oracle,
    theta: Parts,
    *,
    readout: bool = False,
    tolerance: float,
    max_iter: int,
    warm_start: Parts | None = None,
) -> ActiveSetSolution:
    """max ⟨θ, μ⟩ − ½ ‖μ‖² over μ = Σ_k p_k y_k in conv(Y), for each instance.

    Vertices enter one by one, each the oracle's answer to the objective's gradient at μ; between
    two entries the program is solved exactly over the vertices at hand. The objective rises with every
    vertex, so no support comes twice, and after finitely many rounds the gap falls to
    rounding: a small tolerance costs few rounds more than a large one. All arithmetic is in
    float64, whatever θ's dtype.

    Parameters
    ----------
    theta : (B | 1, *event) tensor, or a tuple of them
        Finite or −inf.
    readout : bool
        Penalise ½ ‖oracle.readout(μ)‖² instead of all coordinates.
    tolerance : float
        An instance is finished once its gap max_y ⟨θ − ∇, y − μ⟩, where ∇ is the penalty's
        gradient at μ, is at most ``tolerance`` · scale. The scale is the size of the numbers whose difference
        the gap is: the largest Σᵢ |θᵢ yᵢ| + ‖readout y‖² among the vertices met. The gap bounds
        the error, ½ ‖readout(μ − μ*)‖² ≤ gap. Values below 1e-13 act as 1e-13, which is rounding.
    max_iter : int
        Most rounds after the first oracle call; at least 1.
    warm_start : (K, B, *event) tensor, or a tuple of them, optional
        Structures to start from, such as the support for a similar θ. Zero ones, repeated ones
        and those of score −inf are passed over.

    Raises
    ------
    InfeasibleError
        From the oracle.
    PluginError
        The oracle returned something of the wrong form, or a structure of score −inf.

    References
    ----------
    V. Niculae, A. Martins, M. Blondel, C. Cardie (2018), SparseMAP: differentiable sparse structured
    inference, ICML, section 3.2.
    """
    with torch.no_grad():
        objective = Objective(oracle, theta, readout)
        return run(_programs(objective), tolerance=tolerance, max_iter=max_iter, warm_start=warm_start)


def _programs(objective: Objective) -> Programs:
    if objective.coordinates.device.type == "cpu":
        from .active_set_compiled import CompiledPrograms

        return CompiledPrograms(objective)
    from .active_set_torch import TorchQuadraticPrograms

    return TorchQuadraticPrograms(objective)


def run(programs: Programs, *, tolerance: float, max_iter: int, warm_start: Parts | None = None) -> ActiveSetSolution:
    """:func:`active_set` on programs without vertices yet."""
    objective = programs.objective
    oracle, size = objective.oracle, objective.batch
    if warm_start is not None and size:
        for structure in objective.iterate_structures(warm_start):
            programs.collect(objective.vertices(structure, oracle, size))
        programs.settle()
    calls = 0
    while len(programs.rows):
        if len(programs.rows) != size:
            size = len(programs.rows)
            oracle = objective.oracle[programs.rows]
        y = oracle.argmax(programs.direction(oracle))
        programs.advance(objective.vertices(y, oracle, size), tolerance, last=calls == max_iter)
        calls += 1
    return ActiveSetSolution(programs, calls)


@dataclass
class Outcome:
    """What programs have come to, in float64: vectors (B, coordinates), weights (B, slots), and (B,) each."""

    mean: Tensor
    value: Tensor
    weights: Tensor
    gap: Tensor
    converged: Tensor
    iterations: Tensor


class Programs(abc.ABC):
    """The quadratic programs of a batch, each over the vertices of its instance that are at hand.

    Structures come as lists of (n, width) float64 tensors, one for each tensor of coordinates,
    for the instances ``rows`` in that order.

    Attributes
    ----------
    rows : (n,) int64 Tensor
        The unfinished instances. Their order may change when their number does.
    """

    objective: Objective
    rows: Tensor

    @abc.abstractmethod
    def direction(self, oracle: Oracle) -> Parts:
        """The gradient of the objective at μ, (n, *event), for the unfinished instances; θ before the first vertex.

        Tensors of θ that all instances share, and that the penalty does not see, stay shared.
        """

    @abc.abstractmethod
    def collect(self, structure: list[Tensor]) -> None:
        """Add vertices to start from; zero ones, those of score −inf and affinely dependent ones are passed over."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Solve over the collected vertices."""

    @abc.abstractmethod
    def advance(self, structure: list[Tensor], tolerance: float, last: bool) -> None:
        """Take in one vertex each, which maximises the direction, and solve; or finish instances.

        An instance finishes, with its solution as it was before, if the vertex shows that its gap is within the
        tolerance, or if this is the ``last`` round.
        """

    @abc.abstractmethod
    def outcome(self) -> Outcome:
        """The solutions, once all instances are finished. Frees what :meth:`structures` and :meth:`vjp` do not need."""

    @abc.abstractmethod
    def structures(self, rank: Tensor) -> Tensor:
        """The vertices in slots ``rank`` (K, B), heaviest first: (K, B, coordinates), zero where the weight is."""

    @abc.abstractmethod
    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        """Product with the transposed Jacobian, (B, coordinates), of (B, coordinates) and (B, slots)."""


class ActiveSetSolution:
    """Solutions of a batch with their supports.

    Attributes
    ----------
    mean : Potentials
        μ, (B, *event), of θ's dtype and device.
    value : (B,) Tensor
        The objective at μ.
    weights : (K, B) Tensor
        Largest first, positive and summing to 1; zero behind an instance's last vertex.
    gap : (B,) Tensor
        How far the value may be below the maximum.
    converged : (B,) bool Tensor
    oracle_calls : int
        Calls of the oracle, each for all instances unfinished then.
    iterations : (B,) int64 Tensor
        Quadratic programs that each instance took.
    """

    def __init__(self, programs: Programs, oracle_calls: int) -> None:
        objective, outcome = programs.objective, programs.outcome()
        coordinates = objective.coordinates
        weights, self._rank = outcome.weights.T.sort(dim=0, descending=True, stable=True)
        largest = int((weights > 0).sum(0).max()) if objective.batch else 0
        weights, self._rank = weights[:largest], self._rank[:largest]
        self._programs, self._coordinates, self._slots = programs, coordinates, outcome.weights.shape[1]
        self.mean = coordinates.split(outcome.mean)
        self.weights = weights.to(coordinates.dtype)
        self.value = outcome.value.to(coordinates.dtype)
        self.gap = outcome.gap.to(coordinates.dtype)
        self.converged = outcome.converged
        self.iterations = outcome.iterations
        self.oracle_calls = oracle_calls

    def support(self) -> Parts:
        """The structures that the weights belong to, (K, B, *event); zero where the weight is."""
        return self._coordinates.split(self._programs.structures(self._rank))

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Product of a cotangent with the Jacobian of mean and weights with respect to θ, (B, *event).

        With the support's structures as rows of M, their penalised coordinates as rows of R, s = Mθ, and
        A = R Rᵀ + 1 1ᵀ, the weights are the solution of A p = s − λ 1 with 1ᵀp = 1. Hence

            dp = S M dθ,   dμ = Mᵀ dp,   S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1),

        as long as the support does not change, so v on μ and u on p give Mᵀ S (M v + u). Where the
        support is about to change, this is an element of the generalised Jacobian (Niculae et al. 2018,
        section 3.3 and appendix B). It depends on the support alone, not on the precision of p.

        Parameters
        ----------
        mean_cotangent : (B, *event) tensor, or a tuple of them, or None for 0
        weights_cotangent : (K, B) Tensor, or None for 0
        """
        coordinates = self._coordinates
        weights = torch.zeros(self._rank.shape[1], self._slots, dtype=torch.float64, device=coordinates.device)
        if weights_cotangent is not None:
            weights.scatter_(1, self._rank.T, weights_cotangent.detach().T.to(torch.float64))
        if mean_cotangent is None:
            mean = weights.new_zeros(len(weights), len(coordinates))
        else:
            mean = coordinates.join(map_parts(Tensor.detach, mean_cotangent))
        return coordinates.split(self._programs.vjp(mean, weights))
