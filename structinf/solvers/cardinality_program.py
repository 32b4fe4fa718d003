"""The quadratic program over the local polytope of a graph whose factors bound sums of variables, except for one.

The structures of such a factor are the 0/1 vectors y with low ≤ Σ y ≤ high, and their convex hull is given by the same
bounds for 0 ≤ y ≤ 1. The local polytope is therefore the set of all 0 ≤ μ ≤ 1 with E μ = h or E μ ≤ h, with a row for
each bound. The program

    max ⟨θ, μ⟩ − ½ curvature ‖μ‖²  over these μ

has the dual  max_ν Σ_i min_{0 ≤ μ_i ≤ 1} (½ curvature μ_i² − (θ − Eᵀ ν)_i μ_i) − ⟨ν, h⟩  with ν ≥ 0 for inequalities.
Its solution gives μ = clip((θ − Eᵀ ν) / curvature, 0, 1). A projected Newton method with a line search solves the dual:
its Hessian is E J Eᵀ, where J is the Jacobian of μ: it selects the coordinates between 0 and 1.

One other factor, such as a tree, replaces the interval [0, 1] of its coordinates by the hull of its structures. Their μ
is then the projection of (θ − Eᵀ ν) / curvature onto the hull, and J projects onto the affine hull of its support. Both
come from the oracle's own solver if it has one, and otherwise from the active-set method.

References
----------
D. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM Journal on Control and
Optimization 20, 1982. D. Li, M. Fukushima, L. Qi & N. Yamashita, Regularized Newton methods for convex minimization
problems with singular solutions, Computational Optimization and Applications 28, 2004.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .cardinality_inner import Box, BoxFace, make_hull
from .direct_mean import describes_argmax
from .factor_projections import GroupScores
from .local_polytope_scores import LocalPolytope

__all__ = ["CardinalitySolution", "SumBounded", "solve_cardinalities"]

_MOST_ROWS = 400
"""A Newton step solves a system of this size for each instance."""

_MOST_ENTRIES = 2**25
"""The largest number of entries of the copies of E for all instances."""

_MOST_STEPS = 60
_MOST_HALVINGS = 30

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
    """The solutions of a batch.

    Attributes
    ----------
    mean : (B, n) Tensor
        μ.
    value, gap : (B,) Tensor
        The objective, and a bound of its distance to the maximum.
    residual : (B,) Tensor
        The largest violation of a bound.
    steps : (B,) int64 Tensor
        The number of Newton steps.
    solved : (B,) bool Tensor
        Whether the solution is exact up to rounding.
    oracle_calls : int
        The number of batched calls of the oracle.
    additional : list of (B, F, 0) Tensor
        The additional parts of each group, which has none.
    """

    mean: Tensor
    value: Tensor
    gap: Tensor
    residual: Tensor
    steps: Tensor
    solved: Tensor
    oracle_calls: int
    additional: list[Tensor]
    _matrix: Tensor
    _active: Tensor
    _faces: list[tuple[Tensor, BoxFace]]

    def vjp(self, cotangent: Tensor, additional: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the products of cotangents (B, n) with the Jacobian of the mean, and the empty ``additional``."""
        product = torch.zeros_like(cotangent)
        for rows, face in self._faces:
            active = self._active[rows].to(cotangent)
            hessian = face.hessian(self._matrix) * active[:, None] * active[..., None]
            factor = _cholesky(hessian, cotangent.new_full((len(rows),), _REGULARIZATION))
            side = active * (face.apply(cotangent[rows]) @ self._matrix.mT)
            y = torch.zeros_like(side)
            for _ in range(3):
                y = y + torch.cholesky_solve((side - (hessian @ y[..., None])[..., 0])[..., None], factor)[..., 0]
            product[rows] = face.apply(cotangent[rows] - y @ self._matrix)
        return product, additional


def solve_cardinalities(problem: LocalPolytope, curvature: float) -> CardinalitySolution | None:
    """Return the solutions of all instances, or None if the method does not apply.

    It applies if all factors are bounds of sums, except for at most one other factor, and if the program is not large.

    Parameters
    ----------
    problem : LocalPolytope
        The graph with the scores.
    curvature : float
        The curvature, above 0.
    """
    size, count = problem.theta.shape
    entries: list[tuple[Tensor, Tensor, Tensor, bool]] = []  # the coordinates and signs of rows, h, and whether E μ = h
    others = []
    for group in problem.groups:
        bounds = _bounds(group)
        if bounds is None:
            others.append(group)
            continue
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
    if others and not (rows and len(others) == 1 and _is_simple(others[0])):
        return None
    matrix, first = problem.theta.new_zeros(rows, count), 0
    for index, sign, *_ in entries:
        matrix[first : first + len(index)].scatter_add_(1, index, sign.expand(index.shape))
        first += len(index)
    limits = torch.cat([h.expand(len(index)) for index, _, h, _ in entries] or [matrix[:, 0]])
    equal = [torch.full((len(index),), is_equal, device=matrix.device) for index, *_, is_equal in entries]
    inner = make_hull(problem, curvature, others[0]) if others else Box(problem, curvature)
    return _Newton(problem, curvature, inner, matrix, limits, torch.cat(equal or [matrix[:, 0] > 0])).run()


def _bounds(group: GroupScores) -> tuple[float, float] | None:
    """Return the bounds of the sums of a group of factors; None for other factors."""
    oracle = group.oracle
    if not isinstance(oracle, SumBounded) or not describes_argmax(type(oracle), "sum_bounds"):
        return None
    is_plain = group.additional.shape[2] == 0 and group.index.shape == group.group.variables.shape
    return oracle.sum_bounds() if is_plain else None


def _is_simple(group: GroupScores) -> bool:
    """Return whether a group is one factor of different coordinates, without additional parts."""
    index = group.index
    return len(group) == 1 and group.additional.shape[2] == 0 and len(index.unique()) == index.numel()


# ----------------------------------------------------------------------------- Newton's method


class _State(NamedTuple):
    """ν (R, M) with its solution μ (R, n), the slope E μ − h of the dual objective (R, M), and this objective (R,)."""

    nu: Tensor
    mean: Tensor
    slope: Tensor
    dual: Tensor

    def select(self, keep: Tensor) -> _State:
        return _State(*(t[keep] for t in self))


class _Newton:
    """The projected Newton method for ν."""

    def __init__(
        self, problem: LocalPolytope, curvature: float, inner: Box, matrix: Tensor, limits: Tensor, equal: Tensor
    ) -> None:
        self.theta, self.curvature, self.inner = problem.theta, curvature, inner
        self.matrix, self.limits, self.equal = matrix, limits, equal
        self.additional = [g.additional for g in problem.groups]
        self.scale = self.theta.abs().amax(1).clamp(min=1) if self.theta.shape[1] else self.theta.sum(1) + 1

    def run(self) -> CardinalitySolution:
        size, theta = len(self.theta), self.theta
        steps = torch.zeros(size, dtype=torch.int64, device=theta.device)
        rows = torch.arange(size, device=theta.device)
        state = self._at(theta.new_zeros(size, len(self.limits)), rows)
        ends: list[tuple[Tensor, _State]] = []
        faces: list[tuple[Tensor, BoxFace]] = []
        for step in range(_MOST_STEPS + 1):
            error = self._error(state)
            ends_now = (error <= self.inner.precision * self.scale[rows]) | (step == _MOST_STEPS)
            if bool(ends_now.any()):
                done, left = (mask.nonzero()[:, 0] for mask in (ends_now, ~ends_now))
                ends.append((rows[done], state.select(done)))
                faces.append((rows[done], self.inner.face(done)))
                self.inner.select(left)
                state, rows, error = state.select(left), rows[left], error[left]
            if not len(rows):
                break
            state = self._step(state, rows, error)
            steps[rows] += 1
        order = torch.cat([rows for rows, _ in ends]).argsort()
        nu, mean, slope, _ = (torch.cat(pieces)[order] for pieces in zip(*(state for _, state in ends), strict=True))
        error = self._error(_State(nu, mean, slope, slope))
        accuracy = (10 * self.inner.precision * self.scale).clamp(max=1e-9)
        # Bounds of sums may have their solution at a corner of the box, which the method meets up to rounding only.
        mean = mean.masked_fill(mean <= accuracy[:, None], 0).masked_fill(mean >= 1 - accuracy[:, None], 1)
        apart = torch.where(self.equal, slope.abs(), slope.clamp(min=0))
        return CardinalitySolution(
            mean=mean,
            value=(theta * mean - 0.5 * self.curvature * mean.square()).sum(1),
            gap=(nu * slope).sum(1).clamp(max=0).abs(),
            residual=apart.amax(1) if apart.shape[1] else theta.new_zeros(size),
            steps=steps,
            solved=(error <= accuracy) & self.inner.is_solvable,
            oracle_calls=self.inner.oracle_calls,
            additional=self.additional,
            _matrix=self.matrix,
            _active=self.equal | (nu > 0),
            _faces=faces,
        )

    def _at(self, nu: Tensor, rows: Tensor) -> _State:
        reduced = self.theta[rows] - nu @ self.matrix
        mean = self.inner.solve(reduced)
        dual = (0.5 * self.curvature * mean.square() - reduced * mean).sum(1) - nu @ self.limits
        return _State(nu, mean, mean @ self.matrix.mT - self.limits, dual)

    def _error(self, state: _State) -> Tensor:
        """Return the largest violation of the optimality conditions, (R,)."""
        error = torch.where(self.equal | (state.nu > 0), state.slope.abs(), state.slope.clamp(min=0))
        return error.amax(1) if error.shape[1] else error.sum(1)

    def _step(self, state: _State, rows: Tensor, error: Tensor) -> _State:
        """Return ν after a Newton step, cut to ν ≥ 0 for inequalities, and halved until the dual improves."""
        nu, slope = state.nu, state.slope
        moves = (self.equal | (nu > 0) | (slope > 0)).to(nu)
        face = self.inner.face(torch.arange(len(rows), device=rows.device))
        hessian = face.hessian(self.matrix) * moves[:, None] * moves[..., None]
        # The Hessian may be singular. A step along its null space then has the size of the scores.
        factor = _cholesky(hessian, error / self.scale[rows])
        direction = torch.cholesky_solve((moves * slope)[..., None], factor)[..., 0]
        length, accepted, found = torch.ones_like(error), torch.zeros_like(error, dtype=torch.bool), state
        for _ in range(_MOST_HALVINGS):
            new = nu + length[:, None] * direction
            new = torch.where(self.equal, new, new.clamp(min=0))
            found = self._at(new, rows)
            gain = 1e-4 * (slope * (new - nu)).sum(1)
            # Near the solution, gains are below the rounding errors of the dual.
            improves = (found.dual >= state.dual + gain) | (self._error(found) <= 0.5 * error)
            accepted = accepted | improves
            if bool(accepted.all()):
                break
            length = torch.where(accepted, length, 0.5 * length)
        return found


def _cholesky(matrix: Tensor, shift: Tensor) -> Tensor:
    """Return the Cholesky factors of positive semidefinite matrices (R, M, M) with ``shift`` (R,) on the diagonal."""
    shifted = matrix.clone()
    shifted.diagonal(dim1=1, dim2=2).add_(shift[:, None].clamp(min=_LEAST_SHIFT))
    return torch.linalg.cholesky_ex(shifted)[0]
