"""Frank-Wolfe methods over any oracle, for smooth convex regularizers of the mean.

All instances of a batch advance together. A round is one oracle call for all unfinished instances. Each returned
structure becomes a vertex of its instance's :class:`ConvexCombinations`, and then the weights of the vertices
change. All arithmetic is in float64, whatever θ's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.active_set.tolerances import ROUNDING
from ..oracle import Oracle
from ..parts import Parts, differentiate, enable_autograd
from .convex_combinations import ConvexCombinations
from .mean_problem import MeanProblem
from .mean_regularizers import RegularizerName, make_regularizer
from .optimal_weights import optimize_weights, optimum_vjp, remove_dependent_vertices
from .vertex_search import VertexOracle, complete_face, initial_combinations
from .weighted_mean import WeightedMeanResult

__all__ = ["FrankWolfeResult", "Variant", "frank_wolfe"]

Variant = Literal["fully_corrective", "vanilla"]

_SLOPE_LEFT = 1e-12
"""The vanilla line search ends once the slope is below this fraction of the initial slope."""

_UNDERFLOW = 1e-290
"""A gap up to this absolute size counts as converged at any scale, since it stems from underflow."""


def frank_wolfe(
    oracle: Oracle,
    theta: Parts,
    omega: RegularizerName | Callable[[Parts], Tensor],
    *,
    variant: Variant = "fully_corrective",
    tolerance: float,
    max_iter: int,
    warm_start: Parts | None = None,
    unroll: bool = False,
) -> FrankWolfeResult:
    """Solve max ⟨θ, μ⟩ − Ω(μ) over μ = Σ_k p_k y_k in conv(Y) for each instance.

    Each round calls the oracle for the structure y of highest score under the gradient at μ. The variant determines
    how the weights p change:

    ==================  ==================================================================================
    variant             change of the weights
    ==================  ==================================================================================
    "vanilla"           μ moves to the best point between μ and y, by an exact line search
    "fully_corrective"  the weights of all y_k become optimal, by Newton's method with an active set
    ==================  ==================================================================================

    The fully corrective variant takes the fewest rounds. Its gap ends at rounding and not just within the
    tolerance.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    theta : (B | 1, *event) tensor, or a tuple of them
        The scores, finite or −inf.
    omega : "squared_l2", "entropy", "binary_entropy", or callable
        "squared_l2" is ½ ‖μ‖², "entropy" is Σ μ log μ over all parts, and "binary_entropy" adds Σ (1 − μ) log (1 −
        μ). A callable maps means (B, *event) in float64 to (B,), each instance independently. Autograd must be able
        to differentiate the callable twice.
    variant : "fully_corrective" or "vanilla"
        How the weights change, as in the table.
    tolerance : float
        An instance is finished once its gap max_y ⟨θ − ∇Ω(μ), y − μ⟩ is at most ``tolerance`` · scale. The scale
        measures the terms of the gap: it is the largest Σᵢ (|θᵢ| + |∇Ωᵢ|) |yᵢ| over the structures found. By
        concavity, the gap bounds the difference between the maximum and the value. Values below 1e-13, the rounding
        error, act as 1e-13.
    max_iter : int
        Maximal number of rounds, at least 1. Oracle calls for the starting structures do not count.
    warm_start : (K, B, *event) tensor, or a tuple of them, optional
        Structures to start from. The solver ignores zero structures, repeated structures and structures of score
        −inf.
    unroll : bool
        Whether to record the steps of the vanilla variant, so that :meth:`FrankWolfeResult.vjp` differentiates
        through the steps. The fully corrective variant records nothing: it ends with a Newton step from the
        solution to itself, and the derivative of this step is the implicit derivative.

    Raises
    ------
    InfeasibleError
        If the oracle finds no structure of finite score.
    InvalidInputError
        If a structure has parts outside the domain of Ω, or a callable ``omega`` returns another shape than (B,).
    PluginError
        If the oracle returns a wrong form, shape, dtype or device, or a structure of score −inf.

    References
    ----------
    M. Frank & P. Wolfe (1956), An algorithm for quadratic programming.
    S. Lacoste-Julien & M. Jaggi (2015), On the global linear convergence of Frank-Wolfe optimization variants, NIPS,
    Algorithm 3 (fully corrective).
    """
    with torch.no_grad():
        problem = MeanProblem(oracle, theta, readout=False)
        regularizer = make_regularizer(omega, problem.flattening)
        return _Rounds(VertexOracle(problem, regularizer), variant, tolerance, max_iter, unroll).run(warm_start)


class _Step(NamedTuple):
    """A step of the vanilla variant, p ← p + t (e_slot − p), for the instances ``rows``.

    ``length`` is t, and ``bounded`` says whether the step ends at the boundary.
    """

    rows: Tensor
    slot: Tensor
    vertex: Tensor
    length: Tensor
    bounded: Tensor


@dataclass
class _Rounds:
    """The rounds of a Frank-Wolfe method for a batch."""

    vertex_oracle: VertexOracle
    variant: Variant
    tolerance: float
    max_iter: int
    unroll: bool
    steps: list[_Step] = field(default_factory=list)

    def run(self, warm_start: Parts | None) -> FrankWolfeResult:
        vertex_oracle = self.vertex_oracle
        combinations = initial_combinations(vertex_oracle, warm_start)
        self._check_slopes(combinations)
        start = combinations.point(), combinations.weight
        gap, scale, converged = self._iterate(combinations)
        if self.variant == "fully_corrective":
            # Reduce the gap from the tolerance to rounding.
            optimize_weights(combinations, torch.full_like(scale, -1.0), scale, most=20)
            combinations.remove(combinations.weight == 0)
        if not self.steps:
            complete_face(combinations, vertex_oracle)
        unrolled = _UnrolledSteps(*start, self.steps) if self.steps else None
        return FrankWolfeResult(vertex_oracle, combinations, unrolled, gap, converged)

    def _check_slopes(self, combinations: ConvexCombinations) -> None:
        """Raise InvalidInputError unless Ω has a finite gradient at the starting point, a relative interior point."""
        wrong = ~combinations.omega_gradient(combinations.point()).isfinite().all(1)
        if bool(wrong.any()):
            raise InvalidInputError(
                "regularizer must have a finite gradient inside conv(Y), got inf or nan at a mean for batch "
                f"index {int(wrong.nonzero()[0, 0])}; write x log x as torch.special.xlogy(x, x), which is 0 at x = 0"
            )

    def _iterate(self, combinations: ConvexCombinations) -> tuple[Tensor, Tensor, Tensor]:
        """Run rounds until all instances are finished; return gaps, scales and convergence flags, (B,) each."""
        batch = len(combinations)
        gap = combinations.theta.new_full((batch,), torch.inf)
        scale = torch.zeros_like(gap)
        converged = torch.zeros(batch, dtype=torch.bool, device=gap.device)
        stalled = converged.clone()
        rows, part = self.vertex_oracle.rows, combinations
        for done in range(self.max_iter + 1):
            if not len(rows):
                break
            self.vertex_oracle.restrict(rows)
            x = part.point()
            slopes = part.omega_gradient(x)
            gradient = part.theta - slopes
            vertex = self.vertex_oracle(part.omega.lift_transpose(gradient))
            found = (gradient * (vertex - x)).sum(1).clamp(min=0)
            scale[rows] = scale[rows].maximum(((part.theta.abs() + slopes.abs()) * vertex.abs()).sum(1))
            gap[rows] = found
            converged[rows] = found <= self._allowed_gap(scale[rows])
            going = ~converged[rows] & ~stalled[rows] if done < self.max_iter else torch.zeros_like(stalled[rows])
            if not bool(going.all()):
                combinations.write_back(rows, part)
                rows, part = rows[going], part.select(going)
                x, vertex, found = (t[going] for t in (x, vertex, found))
            if len(rows):
                before = part.weight
                self._change_weights(part, rows, x, vertex, found, scale[rows])
                same = part.weight[:, : before.shape[1]] == before
                stalled[rows] = same.all(1) & ~(part.weight[:, before.shape[1] :] > 0).any(1)
        return gap, scale, converged

    def _allowed_gap(self, scale: Tensor) -> Tensor:
        """Return the gap (B,) at which an instance of this ``scale`` is finished."""
        return (max(self.tolerance, ROUNDING) * scale).clamp(min=_UNDERFLOW)

    def _change_weights(
        self, part: ConvexCombinations, rows: Tensor, x: Tensor, vertex: Tensor, gap: Tensor, scale: Tensor
    ) -> None:
        """Add the vertices to the supports and change the weights."""
        slot = part.add(vertex, torch.ones_like(gap, dtype=torch.bool))
        if self.variant == "fully_corrective":
            remove_dependent_vertices(part)
            # An accuracy relative to the current gap suffices until the next vertex enters.
            optimize_weights(part, torch.maximum(0.1 * gap, 0.1 * self._allowed_gap(scale)), scale)
        else:
            change = _toward(part.weight, slot)
            step = part.move(x, change, torch.inf, _SLOPE_LEFT)
            if self.unroll:
                self.steps.append(_Step(rows, slot, vertex, *step))
        part.remove(part.weight == 0)


def _toward(weight: Tensor, slot: Tensor) -> Tensor:
    """Return e_slot − p for weights p (n, K)."""
    return (-weight).scatter_add(1, slot[:, None], torch.ones_like(weight[:, :1]))


class FrankWolfeResult(WeightedMeanResult):
    """The solutions of a batch with their supports.

    Without recorded steps, :func:`optimum_vjp` differentiates the optimum. With recorded steps, the derivative is
    the derivative of the steps with constant vertices.

    Parameters
    ----------
    vertex_oracle : VertexOracle
        The oracle used by the solver.
    combinations : ConvexCombinations
        The final vertices and weights.
    unrolled : _UnrolledSteps or None
        The recorded steps of the vanilla variant.
    gap : (B,) Tensor
        The duality gap.
    converged : (B,) bool Tensor
        Whether the gap is within the tolerance.
    """

    def __init__(
        self,
        vertex_oracle: VertexOracle,
        combinations: ConvexCombinations,
        unrolled: _UnrolledSteps | None,
        gap: Tensor,
        converged: Tensor,
    ) -> None:
        flattening, x = vertex_oracle.problem.flattening, combinations.point()
        super().__init__(
            flattening,
            mean=x[:, : len(flattening)],
            value=combinations.value(x),
            weights=combinations.weight,
            gap=gap,
            converged=converged,
            oracle_calls=vertex_oracle.calls,
        )
        self._combinations, self._x, self._unrolled = combinations, x, unrolled
        self._vertices = combinations.vertex[:, :, : len(flattening)]

    def _structures(self, slots: Tensor) -> Tensor:
        used = torch.where(self._combinations.weight[:, :, None] > 0, self._vertices, 0.0)
        places = slots[:, :, None].expand(-1, -1, used.shape[2])
        return used.transpose(0, 1).gather(0, places)

    def _vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        weights = weights_cotangent + (self._vertices @ mean_cotangent[:, :, None])[:, :, 0]
        if self._unrolled is not None:
            gradient = self._unrolled.vjp(self._combinations, weights)
        else:
            gradient = optimum_vjp(self._combinations, self._x, weights)
        return gradient[:, : mean_cotangent.shape[1]]


class _UnrolledSteps(NamedTuple):
    """The steps of the vanilla variant, and the point x (B, D) and weights (B, K) before the first step."""

    point: Tensor
    weight: Tensor
    steps: list[_Step]

    def vjp(self, combinations: ConvexCombinations, cotangent: Tensor) -> Tensor:
        """Return the product of a cotangent (B, K) of the final weights with their Jacobian with respect to θ, (B, D).

        Autograd records the steps in a second run. The length t of a step along v = y − x is a zero of the slope ⟨θ
        − ∇Ω(x + t v), v⟩, and the implicit function theorem gives its derivative. A step that ends at the boundary
        has a constant length.
        """
        x, weight = self.point, torch.nn.functional.pad(self.weight, (0, cotangent.shape[1] - self.weight.shape[1]))
        with enable_autograd():
            theta = combinations.theta.clone().requires_grad_()
            for step in self.steps:
                rows, move, p = step.rows, step.vertex - x[step.rows], weight[step.rows]
                length = _differentiable_length(combinations.select(rows), theta[rows], x[rows], move, step)[:, None]
                x = x.index_copy(0, rows, x[rows] + length * move)
                weight = weight.index_copy(0, rows, p + length * _toward(p, step.slot))
            return differentiate((weight * cotangent).sum(), [theta])[0]


def _differentiable_length(
    combinations: ConvexCombinations, theta: Tensor, x: Tensor, move: Tensor, step: _Step
) -> Tensor:
    """Return the lengths t (n,) of a step along the ``move`` v as a differentiable function of θ, x and v.

    The derivative is dt = d⟨θ − ∇Ω(x + t v), v⟩ / ⟨v, ∇²Ω v⟩.
    """
    with torch.no_grad():
        z = x + step.length[:, None] * move
        gradient = theta - combinations.omega_gradient(z)
        bent = combinations.omega.hessian_products(z, move[:, None])[:, 0]
        curvature = (bent * move).sum(1)
        fixed = step.bounded | (step.length == 0) | ~(curvature > 0)
    slope = (
        (gradient * move).sum(1) + (theta * move.detach()).sum(1) - (bent * (x + step.length[:, None] * move)).sum(1)
    )
    return step.length + torch.where(fixed, 0.0, (slope - slope.detach()) / torch.where(fixed, 1.0, curvature))
