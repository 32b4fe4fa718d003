"""Frank-Wolfe methods over any oracle, for smooth convex regularizers of the mean.

The batch moves in step: a round is one call of the oracle for all unfinished instances, whose answers enter their
instances' :class:`Corral`, and then a step of the weights there. All arithmetic is in float64, whatever θ's dtype.
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
from ..parts import Parts, map_parts
from .coordinates import Coordinates, Objective
from .corral import Corral
from .corrective import correct
from .covering import Answers, cover
from .face import make_independent, tangent_product, widen
from .frank_wolfe_steps import RULES
from .frank_wolfe_unrolled import Round, replayed_gradient
from .mean_regularizers import BinaryEntropy, CustomRegularizer, Entropy, MeanRegularizer, SquaredNorm

__all__ = ["FrankWolfe", "MeanRegularizerName", "Variant", "frank_wolfe", "get_mean_regularizer"]

Variant = Literal["fully_corrective", "pairwise", "away_step", "vanilla"]

MeanRegularizerName = Literal["squared_l2", "entropy", "binary_entropy"]

_NAMED: dict[str, Callable[[], MeanRegularizer]] = {
    "squared_l2": SquaredNorm,
    "entropy": Entropy,
    "binary_entropy": BinaryEntropy,
}

_EXACT = 1e-12  # the slope that a line search leaves, relative to the first

_UNDERFLOW = 1e-290  # a gap that numbers near the smallest ones leave, whatever the scale


def frank_wolfe(
    oracle: Oracle,
    theta: Parts,
    omega: MeanRegularizerName | Callable[[Parts], Tensor],
    *,
    variant: Variant = "fully_corrective",
    tolerance: float,
    max_iter: int,
    warm_start: Parts | None = None,
    unroll: bool = False,
) -> FrankWolfe:
    """max ⟨θ, μ⟩ − Ω(μ) over μ = Σ_k p_k y_k in conv(Y), for each instance.

    ==================  ==================================================================================
    variant             a round, after the oracle's answer y to the gradient at μ
    ==================  ==================================================================================
    "vanilla"           to the best point between μ and y
    "away_step"         the same, or away from the worst y_k, whichever rises faster
    "pairwise"          weight moves from the worst y_k to y
    "fully_corrective"  the weights of all y_k become the best ones, by Newton's method with an active set
    ==================  ==================================================================================

    Line searches are exact. The last variant takes the fewest rounds by far, and ends at rounding, not just within the
    tolerance.

    Parameters
    ----------
    theta : (B | 1, *event) tensor, or a tuple of them
        Finite or −inf.
    omega : "squared_l2", "entropy", "binary_entropy", or callable
        ½ ‖μ‖²; Σ μ log μ over all parts; that and Σ (1 − μ) log (1 − μ); or a function from means (B, *event), in
        float64, to (B,), each instance by itself, which torch can differentiate twice.
    tolerance : float
        An instance is finished once its gap max_y ⟨θ − ∇Ω(μ), y − μ⟩ is at most ``tolerance`` · scale. The scale is the
        size of the numbers whose difference the gap is: the largest Σᵢ (|θᵢ| + |∇Ωᵢ|) |yᵢ| met. By concavity, the gap
        bounds how far the value is below the maximum. Values below 1e-13 act as 1e-13, which is rounding.
    max_iter : int
        Most rounds, at least 1, not counted the structures to start from.
    warm_start : (K, B, *event) tensor, or a tuple of them, optional
        Structures to start from. Zero ones, repeated ones and those of score −inf are passed over.
    unroll : bool
        Keep what a derivative through the iterations needs.

    Raises
    ------
    InfeasibleError
        From the oracle.
    InvalidInputError
        If a structure has parts where Ω is not defined, or a function of the user's returns something else than (B,).
    PluginError
        The oracle returned something of the wrong form, or a structure of score −inf.

    References
    ----------
    M. Frank & P. Wolfe (1956), An algorithm for quadratic programming.
    S. Lacoste-Julien & M. Jaggi (2015), On the global linear convergence of Frank-Wolfe optimization variants, NIPS,
    Algorithms 1 to 3.
    """
    with torch.no_grad():
        objective = Objective(oracle, theta, readout=False)
        regularizer = get_mean_regularizer(omega, objective.coordinates)
        return _Run(objective, regularizer, variant, tolerance, max_iter, warm_start, unroll).result()


def get_mean_regularizer(
    omega: MeanRegularizerName | Callable[[Parts], Tensor], coordinates: Coordinates
) -> MeanRegularizer:
    """Ω by name or from a function, for vectors of these coordinates."""
    return CustomRegularizer(omega, coordinates) if callable(omega) else _NAMED[omega]()


@dataclass
class _Run:
    """The rounds of a batch."""

    objective: Objective
    omega: MeanRegularizer
    variant: Variant
    tolerance: float
    max_iter: int
    warm_start: Parts | None
    unroll: bool
    rounds: list[Round] = field(default_factory=list)

    def result(self) -> FrankWolfe:
        answers = Answers(self.objective, self.omega)
        steps = self.variant != "fully_corrective"
        self.unroll = self.unroll and steps
        corral = cover(answers, self.warm_start, keep=self.unroll)
        self._check_slopes(corral)
        start = corral.weight
        gap, scale, converged = self._iterate(corral, answers)
        if not steps:
            self._finish(corral, answers, scale)
        elif not self.unroll:
            widen(corral, answers)
        x = corral.point()
        solution = _Outcome(corral, start, self.rounds, gap, converged, answers.calls, x, corral.value(x))
        return FrankWolfe(self.objective, solution)

    def _check_slopes(self, corral: Corral) -> None:
        """Raise InvalidInputError unless Ω has a finite gradient at the start, in the relative interior."""
        wrong = ~corral.slopes(corral.point()).isfinite().all(1)
        if bool(wrong.any()):
            raise InvalidInputError(
                "omega must have a finite gradient inside conv(Y), got inf or nan at a mean of structures for batch "
                f"index {int(wrong.nonzero()[0, 0])}; in x log x, torch.special.xlogy leaves parts of 0 at 0"
            )

    def _iterate(self, corral: Corral, answers: Answers) -> tuple[Tensor, Tensor, Tensor]:
        """Rounds until all instances are finished; their gaps, scales, and whether they converged."""
        batch = len(corral)
        gap = corral.theta.new_full((batch,), torch.inf)
        scale = torch.zeros_like(gap)
        converged = torch.zeros(batch, dtype=torch.bool, device=gap.device)
        stalled = converged.clone()
        rows, part = answers.rows, corral
        for done in range(self.max_iter + 1):
            if not len(rows):
                break
            answers.restrict(rows)
            x = part.point()
            slopes = part.slopes(x)
            gradient = part.theta - slopes
            vertex = answers(self.omega.lower(gradient))
            found = (gradient * (vertex - x)).sum(1).clamp(min=0)
            scale[rows] = scale[rows].maximum(((part.theta.abs() + slopes.abs()) * vertex.abs()).sum(1))
            enough = self._enough(scale[rows])
            gap[rows] = found
            converged[rows] = found <= enough
            going = ~converged[rows] & ~stalled[rows] if done < self.max_iter else torch.zeros_like(stalled[rows])
            if not bool(going.all()):
                corral.put(rows, part)
                rows, part = rows[going], part.take(going)
                x, gradient, vertex, found = (t[going] for t in (x, gradient, vertex, found))
            if len(rows):
                before = part.weight
                self._step(part, rows, x, gradient, vertex, found, scale[rows])
                same = part.weight[:, : before.shape[1]] == before
                stalled[rows] = same.all(1) & ~(part.weight[:, before.shape[1] :] > 0).any(1)
        return gap, scale, converged

    def _enough(self, scale: Tensor) -> Tensor:
        """The gap of a finished instance."""
        return (max(self.tolerance, ROUNDING) * scale).clamp(min=_UNDERFLOW)

    def _step(
        self, part: Corral, rows: Tensor, x: Tensor, gradient: Tensor, vertex: Tensor, gap: Tensor, scale: Tensor
    ) -> None:
        """Take in the vertices and move the weights."""
        slot = part.enter(vertex, torch.ones_like(gap, dtype=torch.bool))
        enough = self._enough(scale)
        if self.variant == "fully_corrective":
            make_independent(part)
            # As exact as the next vertex can tell.
            correct(part, torch.maximum(0.1 * gap, 0.1 * enough), scale)
            part.drop(part.weight == 0)
            return
        rise = part.rise(gradient)
        # A vertex whose whole weight matters less than the tolerance is not worth a round.
        worth = part.used & (-rise * part.weight > enough[:, None] / (10 * rise.shape[1]))
        direction = RULES[self.variant](part.weight, rise, slot, torch.where(worth, -rise, -torch.inf))
        before = part.weight
        step = part.move(x, direction.change(before), torch.inf, _EXACT)
        if self.unroll:
            self.rounds.append(Round(rows, direction, step))
        part.drop(part.used & (part.weight == 0))

    def _finish(self, corral: Corral, answers: Answers, scale: Tensor) -> None:
        """From within the tolerance to rounding."""
        correct(corral, torch.full_like(scale, -1.0), scale, most=20)
        corral.drop(corral.weight == 0)
        widen(corral, answers)


class _Outcome(NamedTuple):
    corral: Corral
    start: Tensor
    rounds: list[Round]
    gap: Tensor
    converged: Tensor
    calls: int
    x: Tensor
    value: Tensor


class FrankWolfe:
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
        Those to start from included, each for all instances that needed it.
    """

    def __init__(self, objective: Objective, outcome: _Outcome) -> None:
        coordinates, corral = objective.coordinates, outcome.corral
        weights, rank = corral.weight.T.sort(dim=0, descending=True, stable=True)
        largest = int((weights > 0).sum(0).max()) if objective.batch else 0
        self._rank, self._coordinates, self._outcome = rank[:largest], coordinates, outcome
        self.mean = coordinates.split(outcome.x[:, : len(coordinates)])
        self.weights = weights[:largest].to(coordinates.dtype)
        self.value = outcome.value.to(coordinates.dtype)
        self.gap = outcome.gap.to(coordinates.dtype)
        self.converged = outcome.converged
        self.oracle_calls = outcome.calls

    def support(self) -> Parts:
        """The structures that the weights belong to, (K, B, *event); zero where the weight is."""
        corral = self._outcome.corral
        parts = torch.where(corral.weight[:, :, None] > 0, corral.vertex, 0.0)[:, :, : len(self._coordinates)]
        places = self._rank[:, :, None].expand(-1, -1, parts.shape[2])
        return self._coordinates.split(parts.transpose(0, 1).gather(0, places))

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Product of a cotangent with the Jacobian of mean and weights with respect to θ, (B, *event).

        Implicit, by :func:`tangent_product`; or, if the iterations are to be unrolled, by autograd through them, with
        the vertices as they were. The fully corrective variant ends with a step of Newton's from the solution to
        itself, whose derivative is the implicit one.

        Parameters
        ----------
        mean_cotangent : (B, *event) tensor, or a tuple of them, or None for 0
        weights_cotangent : (K, B) Tensor, or None for 0
        """
        corral, coordinates = self._outcome.corral, self._coordinates
        weights = torch.zeros_like(corral.weight)
        if weights_cotangent is not None:
            weights.scatter_(1, self._rank.T, weights_cotangent.detach().T.to(torch.float64))
        if mean_cotangent is not None:
            mean = coordinates.join(map_parts(Tensor.detach, mean_cotangent))
            weights = weights + (corral.vertex[:, :, : len(coordinates)] @ mean[:, :, None])[:, :, 0]
        if self._outcome.rounds:
            gradient = replayed_gradient(corral, self._outcome.start, self._outcome.rounds, weights)
        else:
            gradient = tangent_product(corral, self._outcome.x, weights)
        return coordinates.split(gradient[:, : len(coordinates)])
