"""Entropic optimal transport whose row and column sums may differ from the margins, at a price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..kernels.logsumexp import logsumexp
from ..shapes import Float

__all__ = ["MarginPenalty", "UnbalancedPlans", "solve_unbalanced"]

ROUNDING = 4e-15
"""The error of a sum, relative to the largest margin, for each unit of max |θ| / temperature."""

MAX_RESIDUAL = 1e-4
"""The largest residual accepted as rounding."""

NEARLY_SINGULAR = 1e-9
"""What is added to the unit diagonal of a Hessian that is singular up to rounding."""

FIRST_RANGE = 20.0
"""The range of the scores over the first temperature. Newton's method converges from 0 at such temperatures."""

COARSE_STEPS = 20
"""The most steps at each temperature before the last."""

COARSE_TOLERANCE = 1e-3
"""The largest residual at each temperature before the last."""

MAX_HALVINGS = 20
"""The most divisions of a step by 4, the last of which gives 0."""

EXPANSION_STEPS = 2
"""Newton steps recorded by autograd: k steps with a constant Hessian make k derivatives of the plan right."""


@dataclass(frozen=True)
class MarginPenalty:
    """The price F(a) of sums a for the margin r, the derivative of its conjugate, and the best prices for given sums.

        "kl"          F(a) = λ Σ a log(a / r) − a + r
        "squared_l2"  F(a) = λ/2 Σ (a − r)²

    With λ = ∞ the sums are the margins.

    Parameters
    ----------
    kind : "kl" or "squared_l2"
        The formula.
    strength : float or Tensor
        λ, above 0, one number.
    """

    kind: Literal["kl", "squared_l2"]
    strength: float | Tensor

    @property
    def is_hard(self) -> bool:
        return math.isinf(_number(self.strength))

    def forbids(self, margins: Tensor) -> Tensor:
        """Whether the sums of these margins are 0."""
        return margins == 0 if self.is_hard or self.kind == "kl" else torch.zeros_like(margins, dtype=torch.bool)

    def detached(self) -> MarginPenalty:
        return MarginPenalty(self.kind, _number(self.strength))

    def sums(self, prices: Tensor, margins: Tensor) -> Tensor:
        """The sums a with −F'(a) = ``prices``."""
        if self.is_hard:
            return margins
        if self.kind == "kl":
            return margins * (-prices / self.strength).exp()
        return margins - prices / self.strength

    def slope(self, prices: Tensor, margins: Tensor) -> Tensor:
        """Minus the derivative of :meth:`sums` in the prices."""
        if self.is_hard:
            return torch.zeros_like(margins.expand_as(prices))
        if self.kind == "kl":
            return self.sums(prices, margins) / self.strength
        return torch.full_like(prices, 1.0) / self.strength

    def conjugate(self, prices: Tensor, margins: Tensor) -> Tensor:
        """F*(−prices) = max over a of −⟨prices, a⟩ − F(a), for each margin."""
        if self.is_hard:
            return -prices * margins
        if self.kind == "kl":
            return self.strength * margins * (-prices / self.strength).expm1()
        return prices * prices / (2 * self.strength) - prices * margins

    def best_prices(self, log_sums: Tensor, margins: Tensor, temperature: float | Tensor) -> Tensor:
        """The prices f with exp(f / temperature + log_sums) = sums(f); 0 where log_sums is −inf."""
        empty = log_sums.isneginf()
        log_sums = torch.where(empty, 0.0, log_sums)
        if self.kind == "kl" or self.is_hard:
            positive = margins > 0
            log_margins = torch.where(positive, torch.where(positive, margins, 1.0).log(), 0.0)
            share = 1.0 if self.is_hard else self.strength / (self.strength + temperature)
            found = temperature * share * (log_margins - log_sums)
        else:
            ratio = torch.as_tensor(self.strength / temperature, dtype=log_sums.dtype, device=log_sums.device)
            log_w = _log_wright_omega(ratio.log() + log_sums + ratio * margins)
            found = temperature * (log_w - ratio.log() - log_sums)
        return torch.where(empty, self._price_of_nothing(margins.expand_as(found)), found)

    def _price_of_nothing(self, margins: Tensor) -> Tensor:
        """The price at which the sum is 0, where that is finite, else 0."""
        return margins * self.strength if self.kind == "squared_l2" and not self.is_hard else torch.zeros_like(margins)

    def cost_of_nothing(self, margins: Tensor) -> Tensor:
        """F(0) for each margin; 0 where the sums are fixed."""
        if self.is_hard:
            return torch.zeros_like(margins)
        return self.strength * (margins if self.kind == "kl" else margins * margins / 2)


def _log_wright_omega(x: Tensor) -> Tensor:
    """Return the l with l + exp l = x, differentiable to the third order."""
    with torch.no_grad():
        # Below 1, l is close to x; above, to log(x − log x). Newton's method needs few steps from there.
        above = x.clamp(min=1.0)
        log_w = torch.where(x < 1, x.clamp(max=1.0), (above - above.log()).log())
        for _ in range(6):
            log_w = _newton_step(log_w, x)
    # Each of these steps doubles the number of right derivatives.
    return _newton_step(_newton_step(log_w, x), x)


def _newton_step(log_w: Tensor, x: Tensor) -> Tensor:
    w = log_w.exp()
    return log_w - (log_w + w - x) / (1 + w)


def _number(value: float | Tensor) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else value


class UnbalancedPlans(NamedTuple):
    """Plans, differentiable twice.

    Attributes
    ----------
    plan : (B, n, m) Tensor
        P.
    value : (B,) Tensor
        ⟨θ, P⟩ − temperature Σ P log P − F(P 1) − G(Pᵀ 1).
    residual : (B,) Tensor
        The largest difference between a sum and the sum that its price demands, relative to the largest of the sums
        and margins.
    converged : (B,) bool Tensor
        Whether the residual is within the tolerance, or within the rounding error up to 1e-4.
    iterations : int
        The number of Newton steps.
    """

    plan: Tensor
    value: Tensor
    residual: Tensor
    converged: Tensor
    iterations: int


class _State(NamedTuple):
    """What follows from the column prices g. The row prices f are the best for g."""

    f: Tensor
    plan: Tensor
    dual: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class _Dual:
    """φ(g) = min over f of  T Σ exp((θ + f + g) / T − 1) + F*(−f) + G*(−g), whose minimum is the value."""

    scores: Tensor
    rows: Tensor
    columns: Tensor
    row_penalty: MarginPenalty
    column_penalty: MarginPenalty
    temperature: float | Tensor

    def at(self, g: Tensor) -> _State:
        T = self.temperature
        forbidden = self.scores.isneginf()
        if isinstance(T, Tensor):  # a quotient of −inf has the derivative NaN in the temperature
            shifted = torch.where(forbidden, -math.inf, (self.scores.masked_fill(forbidden, 0.0) + g[:, None]) / T - 1)
        else:
            shifted = (self.scores + g[:, None]) / T - 1
        log_sums = logsumexp(shifted, 2)
        f = self.row_penalty.best_prices(log_sums, self.rows, T)
        plan = (shifted + (f / T)[:, :, None]).exp()
        empty_rows, empty_columns = forbidden.all(2), forbidden.all(1)
        row_terms = torch.where(
            empty_rows, -self.row_penalty.cost_of_nothing(self.rows), self.row_penalty.conjugate(f, self.rows)
        )
        column_terms = torch.where(
            empty_columns,
            -self.column_penalty.cost_of_nothing(self.columns),
            self.column_penalty.conjugate(g, self.columns),
        )
        dual = T * plan.flatten(1).sum(1) + row_terms.sum(1) + column_terms.sum(1)
        gradient = plan.sum(1) - self.column_penalty.sums(g, self.columns)
        return _State(f, plan, dual, torch.where(empty_columns, 0.0, gradient))

    def sweep(self, f: Tensor) -> Tensor:
        """Return the best g for f."""
        log_sums = logsumexp((self.scores + f[:, :, None]) / self.temperature - 1, 1)
        return self.column_penalty.best_prices(log_sums, self.columns, self.temperature)

    def hessian_factor(self, g: Tensor, state: _State) -> Tensor:
        """Return the Cholesky factor of the Hessian of φ at g."""
        T, plan = self.temperature, state.plan
        row_slope = plan.sum(2) / T + self.row_penalty.slope(state.f, self.rows)
        diagonal = plan.sum(1) / T + self.column_penalty.slope(g, self.columns)
        row_slope, diagonal = (torch.where(t > 0, t, 1.0) for t in (row_slope, diagonal))
        root = diagonal.sqrt()
        # The Hessian is diag(root) (I − UᵀU) diag(root).
        u = plan * (1 / (T * row_slope.sqrt()))[:, :, None] / root[:, None]
        unit = torch.eye(u.shape[2], dtype=u.dtype, device=u.device) - u.mT @ u
        factor, failed = torch.linalg.cholesky_ex(unit)
        if bool(failed.any()):  # rows and columns nearly decouple
            unit.diagonal(dim1=1, dim2=2).add_(NEARLY_SINGULAR)
            shifted, _ = torch.linalg.cholesky_ex(unit)
            factor = torch.where((failed != 0)[:, None, None], shifted, factor)
        return root[:, :, None] * factor


def solve_unbalanced(
    scores: Float[Tensor, "batch n m"],
    rows: Tensor,
    columns: Tensor,
    row_penalty: MarginPenalty,
    column_penalty: MarginPenalty,
    temperature: float | Tensor,
    tolerance: float,
    max_iter: int,
) -> UnbalancedPlans:
    """Maximize ⟨θ, P⟩ − temperature Σ P log P − F(P 1) − G(Pᵀ 1) over P ≥ 0, in float64.

    Newton's method on the dual function of the column prices, where the row prices are eliminated. A sweep over both
    sides comes before each step. The temperature is lowered step by step.

    Parameters
    ----------
    scores : (B, n, m) Tensor
        θ; −inf forbids a cell.
    rows : (B, n) Tensor
        The margins of the rows.
    columns : (B, m) Tensor
        The margins of the columns.
    row_penalty : MarginPenalty
        F.
    column_penalty : MarginPenalty
        G, not hard together with F.
    temperature : float or Tensor
        Above 0.
    tolerance : float
        The largest residual.
    max_iter : int
        The largest number of Newton steps.
    """
    if rows.shape[1] < columns.shape[1]:
        found = solve_unbalanced(
            scores.mT, columns, rows, column_penalty, row_penalty, temperature, tolerance, max_iter
        )
        return found._replace(plan=found.plan.mT)
    unusable = row_penalty.forbids(rows)[:, :, None] | column_penalty.forbids(columns)[:, None]
    scores = torch.where(unusable, -math.inf, scores)
    with torch.no_grad():
        fixed = _Dual(
            scores.detach(),
            rows.detach(),
            columns.detach(),
            row_penalty.detached(),
            column_penalty.detached(),
            _number(temperature),
        )
        g, residual, target, iterations = _minimize(fixed, tolerance, max_iter)
        factor = fixed.hessian_factor(g, fixed.at(g))
    dual = _Dual(scores, rows, columns, row_penalty, column_penalty, temperature)
    if torch.is_grad_enabled():
        for _ in range(EXPANSION_STEPS):
            # The step itself is within the tolerance; only its derivatives matter.
            gradient = dual.at(g).gradient
            g = g - torch.cholesky_solve((gradient - gradient.detach())[:, :, None], factor)[:, :, 0]
    state = dual.at(g)
    return UnbalancedPlans(state.plan, state.dual, residual, residual <= target, iterations)


def _minimize(dual: _Dual, tolerance: float, max_iter: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the column prices, their residual, the residual to expect, and the number of steps."""
    finite = torch.where(dual.scores.isneginf(), 0.0, dual.scores)
    size = finite.abs().flatten(1).amax(1) if finite.shape[1] * finite.shape[2] else finite.new_zeros(len(finite))
    last = _number(dual.temperature)
    temperature = max(last, float(size.max()) / FIRST_RANGE) if len(size) else last
    g, taken = torch.zeros_like(dual.columns.expand(len(finite), -1)), 0
    while True:
        is_last = temperature <= last
        current = _Dual(
            dual.scores, dual.rows, dual.columns, dual.row_penalty, dual.column_penalty, max(temperature, last)
        )
        steps = max_iter - taken if is_last else min(COARSE_STEPS, max_iter - taken)
        g, used = _newton(current, g, tolerance if is_last else max(tolerance, COARSE_TOLERANCE), steps)
        taken += used
        if is_last or taken >= max_iter:
            state = dual.at(g)
            return g, _residual(dual, g, state), _target(dual, g, state, tolerance), taken
        temperature /= 8


def _newton(dual: _Dual, g: Tensor, tolerance: float, steps: int) -> tuple[Tensor, int]:
    """Return the column prices after at most ``steps`` steps, and the number of steps."""
    state = dual.at(g)
    best = torch.full_like(state.dual, math.inf)
    for used in range(steps):
        residual, target = _residual(dual, g, state), _target(dual, g, state, tolerance)
        # Within the rounding error, the residual no longer decreases.
        active = (residual > tolerance) & ((residual > target) | (residual < best / 2))
        best = torch.minimum(best, residual)
        if not bool(active.any()):
            return g, used
        swept = torch.where(active[:, None], dual.sweep(state.f), g)
        state = dual.at(swept)
        step = -torch.cholesky_solve(state.gradient[:, :, None], dual.hessian_factor(swept, state))[:, :, 0]
        step = torch.where(active[:, None] & step.isfinite().all(1, keepdim=True), step, 0.0)
        slope, noise = (step * state.gradient).sum(1), 1e-14 * state.dual.abs()
        length, next_state = torch.ones_like(residual), state
        for halving in range(MAX_HALVINGS + 1):
            next_state = dual.at(swept + length[:, None] * step)
            too_long = ~(next_state.dual <= state.dual + 1e-4 * length * slope + noise)
            if not bool(too_long.any()):
                break
            length = torch.where(too_long, length / 4 if halving < MAX_HALVINGS - 1 else 0.0, length)
        g, state = swept + length[:, None] * step, next_state
    return g, steps


def _target(dual: _Dual, g: Tensor, state: _State, tolerance: float) -> Tensor:
    """Return the tolerance, or the residual to expect from rounding if it is larger, up to MAX_RESIDUAL."""
    if not g.shape[1]:
        return torch.full_like(state.dual, tolerance)
    used = state.plan > 1e-6 * state.plan.amax((1, 2), keepdim=True)
    size = dual.scores.abs() + state.f.abs()[:, :, None] + g.abs()[:, None]
    largest = torch.where(used, size, 0.0).amax((1, 2))
    return (ROUNDING * (1 + largest / dual.temperature)).clamp(min=tolerance, max=max(tolerance, MAX_RESIDUAL))


def _residual(dual: _Dual, g: Tensor, state: _State) -> Tensor:
    if not dual.columns.shape[1]:
        return state.dual.new_zeros(len(state.dual))
    sums = torch.cat([state.plan.sum(1), state.plan.sum(2), dual.rows.expand(len(g), -1), dual.columns.expand_as(g)], 1)
    largest = sums.amax(1)
    return state.gradient.abs().amax(1) / torch.where(largest > 0, largest, 1.0)
