"""SparseMAP's active set method over any oracle.

The batch moves in step: a round is one call of the oracle for all unfinished instances, then one
small quadratic program for each. An :class:`ActiveSetBackend` solves the programs: compiled loops on
the CPU, batched linear algebra on other devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts
from .active_set_backend import ActiveSetBackend
from .mean_problem import MeanProblem
from .weighted_mean import WeightedMeanResult

__all__ = ["ActiveSetResult", "active_set", "active_set_with_backend"]


def active_set(
    oracle: Oracle,
    theta: Parts,
    *,
    readout: bool = False,
    tolerance: float,
    max_iter: int,
    warm_start: Parts | None = None,
) -> ActiveSetResult:
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
        backend = _make_backend(MeanProblem(oracle, theta, readout))
        return active_set_with_backend(backend, tolerance=tolerance, max_iter=max_iter, warm_start=warm_start)


def _make_backend(problem: MeanProblem) -> ActiveSetBackend:
    if problem.flattening.device.type == "cpu":
        from .active_set_compiled import CompiledBackend

        return CompiledBackend(problem)
    from .active_set_torch import TorchBackend

    return TorchBackend(problem)


def active_set_with_backend(
    backend: ActiveSetBackend, *, tolerance: float, max_iter: int, warm_start: Parts | None = None
) -> ActiveSetResult:
    """:func:`active_set` by a backend that has no structures yet."""
    problem = backend.problem
    oracle, size = problem.oracle, problem.batch
    if warm_start is not None and size:
        for structure in problem.unstack_structures(warm_start):
            backend.add_starting_structure(problem.flatten_structures(structure, oracle, size))
        backend.solve_starting_structures()
    calls = 0
    while len(backend.unfinished):
        if len(backend.unfinished) != size:
            size = len(backend.unfinished)
            oracle = problem.oracle[backend.unfinished]
        y = oracle.argmax(backend.objective_gradient(oracle))
        backend.add_and_solve(problem.flatten_structures(y, oracle, size), tolerance, last=calls == max_iter)
        calls += 1
    return ActiveSetResult(backend, calls)


class ActiveSetResult(WeightedMeanResult):
    """Solutions of a batch with their supports.

    With the support's structures as rows of M, their penalised coordinates as rows of R, s = Mθ, and
    A = R Rᵀ + 1 1ᵀ, the weights are the solution of A p = s − λ 1 with 1ᵀp = 1. Hence

        dp = S M dθ,   dμ = Mᵀ dp,   S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1),

    as long as the support does not change, so the product of v on μ and u on p with the Jacobian is Mᵀ S (M v + u).
    Where the support is about to change, this is an element of the generalised Jacobian (Niculae et al. 2018,
    section 3.3 and appendix B). It depends on the support alone, not on the precision of p.

    Attributes
    ----------
    iterations : (B,) int64 Tensor
        Quadratic programs that each instance took.
    """

    def __init__(self, backend: ActiveSetBackend, oracle_calls: int) -> None:
        flattening, result = backend.problem.flattening, backend.result()
        super().__init__(
            flattening,
            mean=result.mean,
            value=result.value,
            weights=result.weights,
            gap=result.gap,
            converged=result.converged,
            oracle_calls=oracle_calls,
        )
        self.iterations = result.iterations
        self._backend = backend

    def _structures(self, slots: Tensor) -> Tensor:
        return self._backend.structures(slots)

    def _vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        return self._backend.vjp(mean_cotangent, weights_cotangent)
