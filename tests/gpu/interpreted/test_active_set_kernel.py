"""SparseMAP's quadratic programs in a Triton kernel, against the compiled loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import Parts, as_tuple
from structinf.solvers.active_set import ActiveSetResult, active_set_with_backend
from structinf.solvers.active_set_compiled import CompiledBackend
from structinf.solvers.active_set_triton import TritonBackend
from structinf.solvers.mean_problem import MeanProblem


def solve(backend: Any, name: str, theta: Parts, readout: bool = False, **options: Any) -> ActiveSetResult:
    lengths = options.pop("lengths", None)
    oracle = si.get_oracle(name)
    if lengths is not None:
        oracle = oracle.bind(lengths=lengths)
    with torch.no_grad():
        problem = MeanProblem(oracle, theta, readout)
        return active_set_with_backend(backend(problem), max_iter=options.pop("max_iter", 300), **options)


def draw(*shapes: tuple[int, ...], scale: float = 1.0) -> Parts:
    generator = torch.Generator().manual_seed(1)
    tensors = tuple(scale * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return tensors if len(tensors) > 1 else tensors[0]


def assert_equal_solutions(found: ActiveSetResult, expected: ActiveSetResult, atol: float = 1e-9) -> None:
    for a, b in zip(as_tuple(found.mean), as_tuple(expected.mean), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)
    torch.testing.assert_close(found.value, expected.value, rtol=1e-10, atol=1e-10)
    assert torch.equal(found.converged, expected.converged)


@pytest.mark.full
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 1000.0])
def test_assignments(scale: float) -> None:
    theta = draw((2, 3, 3), scale=scale)
    found, expected = (solve(backend, "assignment", theta) for backend in (TritonBackend, CompiledBackend))
    assert_equal_solutions(found, expected)
    assert (found.weights.sum(0) - 1).abs().max() < 1e-12


@pytest.mark.full
@pytest.mark.parametrize("readout", [False, True])
def test_chains_that_share_a_transition(readout: bool) -> None:
    theta = draw((2, 3, 2), (1, 2, 2), scale=0.5)
    lengths = torch.tensor([3, 2])
    found, expected = (
        solve(backend, "chain", theta, readout, lengths=lengths) for backend in (TritonBackend, CompiledBackend)
    )
    assert_equal_solutions(found, expected)


@pytest.mark.full
def test_more_vertices_than_slots() -> None:
    theta = draw((1, 24), scale=0.02)
    found, expected = (solve(backend, "categorical", theta) for backend in (TritonBackend, CompiledBackend))
    assert_equal_solutions(found, expected)
    assert (as_tuple(found.mean)[0] != 0).sum() > 16


@pytest.mark.full
def test_tolerances_and_the_last_round() -> None:
    theta = draw((2, 3, 3), scale=0.3)
    for options in ({"accuracy": 0.05}, {"tolerance": 1e-2}, {"max_iter": 2}):
        found, expected = (
            solve(backend, "assignment", theta, **options) for backend in (TritonBackend, CompiledBackend)
        )
        assert_equal_solutions(found, expected)
        torch.testing.assert_close(found.gap, expected.gap, rtol=1e-9, atol=1e-9)
        assert torch.equal(found.iterations, expected.iterations)


@pytest.mark.full
def test_a_warm_start() -> None:
    theta = draw((2, 3, 3), scale=0.3)
    oracle = si.get_oracle("assignment")
    start = oracle.enumerate((3, 3)).double()[:3, None].expand(3, 2, 3, 3)
    found, expected = (solve(b, "assignment", theta, warm_start=start) for b in (TritonBackend, CompiledBackend))
    assert_equal_solutions(found, expected)


def test_forbidden_parts() -> None:
    theta = draw((2, 3, 3))
    assert isinstance(theta, Tensor)
    theta[0, 0, 1] = theta[1, 2, 0] = -math.inf
    found, expected = (solve(backend, "assignment", theta) for backend in (TritonBackend, CompiledBackend))
    assert_equal_solutions(found, expected)


def test_public_calls_and_gradients() -> None:
    theta = draw((2, 2, 3))
    assert isinstance(theta, Tensor)
    relaxation = si.get_relaxation("sparsemap", tolerance=0.0)
    spot = si.infer(theta.requires_grad_(), "dtw", relaxation)
    mean = as_tuple(spot.mean)[0]
    (gradient,) = torch.autograd.grad((mean * draw((2, 2, 3)).flip(0)).sum(), theta)
    assert gradient.isfinite().all()


@pytest.mark.full
def test_gradients_are_derivatives() -> None:
    theta = draw((2, 2, 3))
    assert isinstance(theta, Tensor)
    relaxation = si.get_relaxation("sparsemap", tolerance=0.0)
    assert torch.autograd.gradcheck(lambda t: si.relax(t, "dtw", relaxation), (theta.requires_grad_(),), atol=1e-6)


def test_an_empty_batch() -> None:
    mean = si.relax(torch.zeros(0, 3, 3), "dtw", "sparsemap")
    assert as_tuple(mean)[0].shape == (0, 3, 3)
