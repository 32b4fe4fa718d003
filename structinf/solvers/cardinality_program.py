"""The quadratic program over the local polytope of a graph whose factors only bound sums of variables.

The structures of such a factor are the 0/1 vectors y with low ≤ Σ y ≤ high, and their convex hull is given by the same
bounds for 0 ≤ y ≤ 1. The local polytope is therefore the set of all 0 ≤ μ ≤ 1 with E μ = h or E μ ≤ h, with a row for
each bound. The program

    max ⟨θ, μ⟩ − ½ curvature ‖μ‖²  over these μ

has the dual  max_ν Σ_i min_{0 ≤ μ_i ≤ 1} (½ curvature μ_i² − (θ − Eᵀ ν)_i μ_i) − ⟨ν, h⟩  with ν ≥ 0 for inequalities.
Its solution gives μ = clip((θ − Eᵀ ν) / curvature, 0, 1). A projected Newton method with a line search solves the dual:
its Hessian is E S Eᵀ / curvature, where S selects the coordinates between 0 and 1.

References
----------
D. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM Journal on Control and
Optimization 20, 1982. D. Li, M. Fukushima, L. Qi & N. Yamashita, Regularized Newton methods for convex minimization
problems with singular solutions, Computational Optimization and Applications 28, 2004.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .direct_mean import describes_argmax
from .local_polytope_scores import LocalPolytope

__all__ = ["CardinalitySolution", "SumBounded", "solve_cardinalities"]

_MOST_ROWS = 400
"""A Newton step solves a system of this size for each instance."""

_MOST_ENTRIES = 2**25
"""The largest number of entries of the copies of E for all instances."""

_MOST_STEPS = 60
_MOST_HALVINGS = 30

_PRECISION = 1e-13
"""The violation of a bound at which an instance is finished, relative to the scores or 1."""

_LEAST_SHIFT = 1e-11
"""Cholesky factors of singular matrices need a shift above rounding errors."""

_REGULARIZATION = 1e-9
"""The number on the diagonal of the systems of the backward pass; two corrections remove its effect."""


@runtime_checkable
class SumBounded(Protocol):
    """An oracle whose structures are all 0/1 vectors with a sum within bounds."""

    def sum_bounds(self) -> tuple[float, float] | None:
        """Return the least and the largest sum, at least 0; None if the oracle's structures are restricted further.

        Law: for scores (B, d), Y is the set of all y in {0, 1}^d with low ≤ Σ y ≤ high.
        """
        ...


@dataclass
class CardinalitySolution:
    """The solutions of R instances.

    Attributes
    ----------
    mean : (R, n) Tensor
        μ.
    value, gap : (R,) Tensor
        The objective, and a bound of its distance to the maximum.
    residual : (R,) Tensor
        The largest violation of a bound.
    steps : (R,) int64 Tensor
        The number of Newton steps.
    solved : (R,) bool Tensor
        Whether the solution is exact up to rounding.
    """

    mean: Tensor
    value: Tensor
    gap: Tensor
    residual: Tensor
    steps: Tensor
    solved: Tensor
    _matrix: Tensor
    _active: Tensor
    _inside: Tensor
    _curvature: float

    def vjp(self, rows: Tensor, cotangent: Tensor) -> Tensor:
        """Return the products of cotangents (R', n) with the Jacobian of the mean of the instances ``rows`` (R',)."""
        inside, active = self._inside[rows].to(cotangent), self._active[rows].to(cotangent)
        hessian = _hessian(self._matrix, self._inside[rows], active)
        factor = _cholesky(hessian, cotangent.new_full((len(rows),), _REGULARIZATION))
        side = active * ((inside * cotangent) @ self._matrix.mT)
        y = torch.zeros_like(side)
        for _ in range(3):
            y = y + torch.cholesky_solve((side - (hessian @ y[..., None])[..., 0])[..., None], factor)[..., 0]
        return inside * (cotangent - y @ self._matrix) / self._curvature


def solve_cardinalities(problem: LocalPolytope, curvature: float) -> CardinalitySolution | None:
    """Return the solutions of all instances; None if a factor is no bound of a sum, or if the program is large.

    Parameters
    ----------
    problem : LocalPolytope
        The graph with the scores.
    curvature : float
        The curvature, above 0.
    """
    size, count = problem.theta.shape
    entries: list[tuple[Tensor, Tensor, Tensor, bool]] = []  # the coordinates and signs of rows, h, and whether E μ = h
    for group in problem.groups:
        oracle = group.oracle
        if not isinstance(oracle, SumBounded) or not describes_argmax(type(oracle), "sum_bounds"):
            return None
        bounds = None if group.additional.shape[2] else oracle.sum_bounds()
        if bounds is None or group.index.shape != group.group.variables.shape:
            return None
        (low, high), shift = bounds, group.offset.sum(1)
        if low == high:
            entries.append((group.index, group.sign, high - shift, True))
            continue
        if high < group.index.shape[1]:
            entries.append((group.index, group.sign, high - shift, False))
        if low > 0:
            entries.append((group.index, -group.sign, shift - low, False))
    rows = sum(len(index) for index, *_ in entries)
    if rows > _MOST_ROWS or size * max(rows, 1) * count > _MOST_ENTRIES:
        return None
    matrix, first = problem.theta.new_zeros(rows, count), 0
    for index, sign, *_ in entries:
        matrix[first : first + len(index)].scatter_add_(1, index, sign.expand(index.shape))
        first += len(index)
    limits = torch.cat([h.expand(len(index)) for index, _, h, _ in entries] or [matrix[:, 0]])
    equal = [torch.full((len(index),), is_equal, device=matrix.device) for index, *_, is_equal in entries]
    return _Newton(problem, curvature, matrix, limits, torch.cat(equal or [matrix[:, 0] > 0])).run()


class _Newton:
    """The projected Newton method for ν (R, M)."""

    def __init__(self, problem: LocalPolytope, curvature: float, matrix: Tensor, limits: Tensor, equal: Tensor) -> None:
        self.theta, self.forbidden, self.curvature = problem.theta, problem.forbidden, curvature
        self.matrix, self.limits, self.equal = matrix, limits, equal
        self.scale = self.theta.abs().amax(1).clamp(min=1) if self.theta.shape[1] else self.theta.sum(1) + 1

    def run(self) -> CardinalitySolution:
        size = len(self.theta)
        nu = self.theta.new_zeros(size, len(self.limits))
        steps = torch.zeros(size, dtype=torch.int64, device=nu.device)
        live = torch.arange(size, device=nu.device)
        for _ in range(_MOST_STEPS):
            mean, slope, dual = self._at(nu[live], live)
            error = self._error(nu[live], slope)
            goes_on = error > _PRECISION * self.scale[live]
            if not bool(goes_on.any()):
                break
            live, mean, slope, dual, error = (t[goes_on] for t in (live, mean, slope, dual, error))
            nu[live] = self._step(nu[live], live, mean, slope, dual, error)
            steps[live] += 1
        every = torch.arange(size, device=nu.device)
        mean, slope, _ = self._at(nu, every)
        value = (self.theta * mean - 0.5 * self.curvature * mean.square()).sum(1)
        error = self._error(nu, slope)
        apart = torch.where(self.equal, slope.abs(), slope.clamp(min=0))
        return CardinalitySolution(
            mean=mean,
            value=value,
            gap=(-(nu * slope).sum(1)).clamp(min=0),
            residual=apart.amax(1) if apart.shape[1] else torch.zeros_like(value),
            steps=steps,
            solved=error <= torch.minimum(10 * _PRECISION * self.scale, torch.full_like(error, 1e-9)),
            _matrix=self.matrix,
            _active=self.equal | (nu > 0),
            _inside=(mean > 0) & (mean < 1),
            _curvature=self.curvature,
        )

    def _at(self, nu: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return μ (R, n), the slope E μ − h of the dual objective (R, M), and the dual objective (R,)."""
        reduced = self.theta[rows] - nu @ self.matrix
        mean = (reduced / self.curvature).clamp(0, 1).masked_fill(self.forbidden[rows], 0)
        dual = (0.5 * self.curvature * mean.square() - reduced * mean).sum(1) - nu @ self.limits
        return mean, mean @ self.matrix.mT - self.limits, dual

    def _error(self, nu: Tensor, slope: Tensor) -> Tensor:
        """Return the largest violation of the optimality conditions, (R,)."""
        error = torch.where(self.equal | (nu > 0), slope.abs(), slope.clamp(min=0))
        return error.amax(1) if error.shape[1] else error.sum(1)

    def _step(self, nu: Tensor, rows: Tensor, mean: Tensor, slope: Tensor, dual: Tensor, error: Tensor) -> Tensor:
        """Return ν after a Newton step, cut to ν ≥ 0 for inequalities, and halved until the dual improves."""
        moves = (self.equal | (nu > 0) | (slope > 0)).to(nu)
        hessian = _hessian(self.matrix, (mean > 0) & (mean < 1), moves) / self.curvature
        # The Hessian may be singular. A step along its null space then has the size of the scores.
        factor = _cholesky(hessian, error / self.scale[rows])
        direction = torch.cholesky_solve((moves * slope)[..., None], factor)[..., 0]
        result, waits = nu.clone(), torch.arange(len(nu), device=nu.device)
        length = 1.0
        for _ in range(_MOST_HALVINGS):
            new = nu[waits] + length * direction[waits]
            new = torch.where(self.equal, new, new.clamp(min=0))
            _, new_slope, new_dual = self._at(new, rows[waits])
            gain = 1e-4 * (slope[waits] * (new - nu[waits])).sum(1)
            # Near the solution, gains are below the rounding errors of the dual.
            improves = (new_dual >= dual[waits] + gain) | (self._error(new, new_slope) <= 0.5 * error[waits])
            result[waits[improves]] = new[improves]
            waits = waits[~improves]
            if not len(waits):
                break
            length /= 2
        return result


def _hessian(matrix: Tensor, inside: Tensor, active: Tensor) -> Tensor:
    """Return E S Eᵀ, (R, M, M), for the matrix E (M, n), and S = diag(``inside``) (R, n); 0 for rows not ``active``."""
    weighted = matrix * inside[:, None].to(matrix)
    products = (weighted.flatten(0, 1) @ matrix.mT).view(len(inside), len(matrix), len(matrix))
    return products * active[:, None] * active[..., None]


def _cholesky(matrix: Tensor, shift: Tensor) -> Tensor:
    """Return the Cholesky factors of positive semidefinite matrices (R, M, M) with ``shift`` (R,) on the diagonal."""
    shifted = matrix.clone()
    shifted.diagonal(dim1=1, dim2=2).add_(shift[:, None].clamp(min=_LEAST_SHIFT))
    return torch.linalg.cholesky_ex(shifted)[0]
