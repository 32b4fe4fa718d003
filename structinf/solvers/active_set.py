"""SparseMAP's active-set method over any oracle.

All instances of a batch advance together. A round is one oracle call for all unfinished instances, then one
quadratic program over the found vertices for each instance. An :class:`ActiveSetBackend` solves the programs:
compiled loops on the CPU, Triton kernels on a GPU, batched linear algebra on other devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.gpu import uses_triton
from ..oracle import Oracle
from ..parts import Parts
from .active_set_backend import ActiveSetBackend
from .mean_problem import MeanProblem
from .weighted_mean import WeightedMeanResult

__all__ = [
    "ActiveSetResult",
    "active_set",
    "active_set_with_backend",
    "add_starting_structures",
    "make_backend",
    "run_rounds",
]


def active_set(
    oracle: Oracle,
    theta: Parts,
    *,
    readout: bool = False,
    tolerance: float = 0.0,
    accuracy: float = 0.0,
    max_iter: int,
    warm_start: Parts | None = None,
) -> ActiveSetResult:
    """Solve max ⟨θ, μ⟩ − ½ ‖μ‖² over μ = Σ_k p_k y_k in conv(Y) for each instance.

    Vertices enter one by one: each is the oracle's argmax for the gradient of the objective at μ. Between two
    entries, the program is solved exactly over the current vertices. The objective rises with every vertex, so no
    support occurs twice. After finitely many rounds the gap is down to rounding. All arithmetic is in float64,
    whatever θ's dtype.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    theta : (B | 1, *event) tensor, or a tuple of them
        The scores, finite or −inf.
    readout : bool
        Penalise ½ ‖oracle.readout(μ)‖² instead of all coordinates.
    tolerance : float
        An instance is finished once its gap max_y ⟨θ − ∇, y − μ⟩, where ∇ is the penalty's gradient at μ, is at
        most ``tolerance`` · scale. The scale measures the terms of the gap: it is the largest Σᵢ |θᵢ yᵢ| + ‖readout
        y‖² over the vertices found. Values below 1e-13, the rounding error, act as 1e-13.
    accuracy : float
        An instance is also finished once its gap is at most ``accuracy``² / 2 times the largest ‖readout y‖² over
        the vertices found. The gap bounds the error, ½ ‖readout(μ − μ*)‖² ≤ gap. ``accuracy`` is therefore a bound
        of ‖readout(μ − μ*)‖ relative to the largest ‖readout y‖.
    max_iter : int
        Maximal number of rounds after the first oracle call; at least 1.
    warm_start : (K, B, *event) tensor, or a tuple of them, optional
        Structures to start from, such as the support for a similar θ. The solver ignores zero structures, repeated
        structures and structures of score −inf.

    Raises
    ------
    InfeasibleError
        If the oracle finds no structure of finite score.
    PluginError
        If the oracle returns a wrong form, shape, dtype or device, or a structure of score −inf.

    References
    ----------
    V. Niculae, A. Martins, M. Blondel, C. Cardie (2018), SparseMAP: differentiable sparse structured
    inference, ICML, section 3.2.
    """
    with torch.no_grad():
        backend = make_backend(MeanProblem(oracle, theta, readout))
        return active_set_with_backend(
            backend, tolerance=tolerance, accuracy=accuracy, max_iter=max_iter, warm_start=warm_start
        )


def make_backend(problem: MeanProblem) -> ActiveSetBackend:
    """Return a backend for the device of the scores."""
    if problem.batch and uses_triton(problem.theta[0]):
        from .active_set_triton import TritonBackend

        return TritonBackend(problem)
    if problem.flattening.device.type == "cpu":
        from .active_set_compiled import CompiledBackend

        return CompiledBackend(problem)
    from .active_set_torch import TorchBackend

    return TorchBackend(problem)


def active_set_with_backend(
    backend: ActiveSetBackend,
    *,
    tolerance: float = 0.0,
    accuracy: float = 0.0,
    max_iter: int,
    warm_start: Parts | None = None,
) -> ActiveSetResult:
    """Run :func:`active_set`, with the same options, on a ``backend`` that holds no structures yet."""
    if warm_start is not None:
        add_starting_structures(backend, warm_start)
    return ActiveSetResult(backend, run_rounds(backend, max_iter + 1, tolerance, accuracy, last_finishes=True))


def add_starting_structures(backend: ActiveSetBackend, structures: Parts) -> None:
    """Start from ``structures`` (K, B, *event) instead of from none."""
    problem = backend.problem
    if problem.batch:
        for structure in problem.unstack_structures(structures):
            backend.add_starting_structure(problem.flatten_structures(structure, problem.oracle, problem.batch))
        backend.solve_starting_structures()


def run_rounds(
    backend: ActiveSetBackend,
    rounds: int,
    tolerance: float = 0.0,
    accuracy: float = 0.0,
    *,
    last_finishes: bool,
) -> int:
    """Run at most ``rounds`` rounds, and return their number.

    If ``last_finishes``, the last round adds no structure: it computes the gap of the unfinished instances.
    """
    problem = backend.problem
    oracle, size = problem.oracle, problem.batch
    calls = 0
    while len(backend.unfinished) and calls < rounds:
        if len(backend.unfinished) != size:
            size = len(backend.unfinished)
            oracle = problem.oracle[backend.unfinished]
        structure = problem.flatten_structures(backend.best_structures(oracle), oracle, size)
        calls += 1
        backend.add_and_solve(structure, tolerance, accuracy, last=last_finishes and calls == rounds)
    return calls


class ActiveSetResult(WeightedMeanResult):
    """The solutions of a batch with their supports.

    Let M have the support's structures as rows, let R have the penalised coordinates of M, and let s = Mθ and A = R
    Rᵀ + 1 1ᵀ. The weights p solve A p = s − λ 1 with 1ᵀp = 1. Hence

        dp = S M dθ,   dμ = Mᵀ dp,   S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1),

    as long as the support does not change. The product of cotangents v of μ and u of p with the Jacobian is
    therefore Mᵀ S (M v + u). Where the support is about to change, this product is an element of the generalised
    Jacobian (Niculae et al. 2018, section 3.3 and appendix B). The product depends only on the support, not on the
    precision of p.

    Parameters
    ----------
    backend : ActiveSetBackend
        A backend whose instances are all finished.
    oracle_calls : int
        The number of oracle calls.

    Attributes
    ----------
    iterations : (B,) int64 Tensor
        Number of quadratic programs solved for each instance.
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
        self.backend = backend

    def _structures(self, slots: Tensor) -> Tensor:
        return self.backend.structures(slots)

    def _vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        return self.backend.vjp(mean_cotangent, weights_cotangent)
