"""Gradients of the solutions of the active set solver, against differences."""

from __future__ import annotations

import pytest
import torch

from active_set_problems import BOTH, TIGHT, Listed, assignments, chains, draw
from structinf.parts import as_tuple, map_parts
from structinf.solvers.active_set import active_set


def differences(solve, theta, v, u, step=1e-6):
    """⟨v, ∂μ⟩ + ⟨u, ∂p⟩ by central differences, in each coordinate of each tensor of θ."""
    tensors = as_tuple(theta)
    gradient = [torch.zeros_like(t) for t in tensors]
    for g, t in zip(gradient, tensors, strict=True):
        for i in range(t[0].numel()):
            values = []
            for sign in (step, -step):
                moved = [x.clone() for x in tensors]
                next(m for m, x in zip(moved, tensors, strict=True) if x is t).flatten(1)[:, i] += sign
                s = solve(tuple(moved) if isinstance(theta, tuple) else moved[0])
                inner = sum((a * b).flatten(1).sum(1) for a, b in zip(as_tuple(v), as_tuple(s.mean), strict=True))
                values.append(inner + (u * s.weights).sum(0))
            g.flatten(1)[:, i] = (values[0] - values[1]) / (2 * step)
    return gradient


@BOTH
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_vjp_against_differences(solver, scale):
    structures, theta = assignments(3), scale * draw(21, 4, 3, 3)
    solution = solver(Listed(structures), theta, **TIGHT)
    v, u = draw(22, 4, 3, 3), draw(23, *solution.weights.shape)
    (expected,) = differences(lambda t: solver(Listed(structures), t, **TIGHT), theta, v, u)
    torch.testing.assert_close(solution.vjp(v, u), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(solution.vjp(v, None) + solution.vjp(None, u), expected, atol=1e-8, rtol=0)


@BOTH
def test_vjp_with_a_readout(solver):
    tags, moves = chains(3, 2)
    theta = draw(24, 3, 3, 2), draw(25, 3, 2, 2)

    def solve(t):
        return solver(Listed(tags, moves, kept=0), t, readout=True, **TIGHT)

    solution = solve(theta)
    v, u = (draw(26, 3, 3, 2), draw(27, 3, 2, 2)), draw(28, *solution.weights.shape)
    for found, expected in zip(solution.vjp(v, u), differences(solve, theta, v, u), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)

    structures, mix, theta = assignments(3), draw(29, 9, 4), draw(30, 4, 3, 3)
    solution = solver(Listed(structures, mixed=mix), theta, readout=True, **TIGHT)
    v, u = draw(31, 4, 3, 3), draw(32, *solution.weights.shape)
    (expected,) = differences(lambda t: solver(Listed(structures, mixed=mix), t, readout=True, **TIGHT), theta, v, u)
    torch.testing.assert_close(solution.vjp(v, u), expected, atol=1e-7, rtol=0)


@BOTH
def test_vjp_depends_on_the_support_alone(solver):
    structures, theta, v = assignments(4), draw(33, 8, 4, 4), draw(34, 8, 4, 4)
    gradients = [solver(Listed(structures), theta, tolerance=t, max_iter=1000).vjp(v, None) for t in (1e-6, 1e-10, 0.0)]
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], atol=1e-12, rtol=0)


def test_vjp_is_symmetric_and_of_theta_dtype():
    theta, v, w = draw(35, 3, 4, 4).float(), draw(36, 3, 4, 4).float(), draw(37, 3, 4, 4).float()
    solution = active_set(Listed(assignments(4)), theta, **TIGHT)
    gradient = solution.vjp(v, None)
    assert gradient.dtype == torch.float32
    assert gradient.shape == theta.shape
    torch.testing.assert_close((gradient * w).sum(), (solution.vjp(w, None) * v).sum(), atol=1e-5, rtol=1e-5)
    assert not solution.vjp(None, None).any()


def test_inner_forms_of_cotangents():
    tags, moves = chains(3, 2)
    theta = draw(46, 2, 3, 2), draw(47, 1, 2, 2)
    solution = active_set(Listed(tags, moves, kept=0), theta, readout=True, **TIGHT)
    gradient = solution.vjp(map_parts(torch.ones_like, solution.mean), None)
    assert [g.shape for g in gradient] == [(2, 3, 2), (2, 2, 2)]
