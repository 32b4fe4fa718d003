"""Kernels of segmentations scored by steps, boundaries and durations, compared with the CPU loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf_oracles.common.segment_boundaries import structures, without_masks
from structinf_oracles.kernels.semi_markov import dispatch, triton_dispatch

Scores = tuple[Tensor, ...]


def inputs(
    steps: int = 5,
    durations: int = 3,
    labels: int = 2,
    *,
    transition: bool = True,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
    lengths: Sequence[int] = (5, 3),
    forbids: bool = False,
    seed: int = 0,
) -> tuple[Scores, Tensor]:
    """Return random scores, of which durations and transitions are shared by the batch, and lengths."""
    generator, batch = torch.Generator().manual_seed(seed), len(lengths)
    shapes = [(batch, steps, labels), (batch, steps, 2, labels), (1, durations, labels), (1, labels, labels)]
    theta = tuple(
        torch.randn(shape, generator=generator, dtype=dtype) * scale for shape in shapes[: 4 if transition else 3]
    )
    if forbids:
        for t in theta:
            t[torch.rand(t.shape, generator=generator) < 0.1] = -math.inf
    return theta, torch.tensor(lengths)


def assert_same(got: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, scale: float = 1) -> None:
    room = 1e-12 * scale if dtype == torch.float64 else 1e-5
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, atol=room, rtol=room)


CASES = {
    "transition": {"steps": 4, "lengths": (4, 2)},
    "no transition": {"transition": False, "steps": 3, "durations": 2, "lengths": (3, 2)},
    "forbidden": {"steps": 4, "durations": 5, "labels": 3, "lengths": (4, 3), "forbids": True, "seed": 5},
    "float32": {"steps": 2, "durations": 2, "dtype": torch.float32, "lengths": (2, 1)},
    "large scores": {"steps": 4, "scale": 1000.0, "lengths": (4,)},
    "one step": {"steps": 1, "durations": 2, "lengths": (1,), "transition": False},
}


SAMPLE = "forbidden", "float32", "one step"


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in SAMPLE else pytest.mark.full) for c in CASES])
def test_sums_and_walks(case: str) -> None:
    theta, lengths = inputs(**CASES[case])
    dtype, scale = theta[0].dtype, CASES[case].get("scale", 1)
    value, mean = dispatch.value_and_mean(theta, lengths)
    assert bool(value.isfinite().all())
    assert_same([triton_dispatch.value(theta, lengths)], [value], dtype, scale)
    got, parts = triton_dispatch.value_and_mean(theta, lengths)
    assert_same([got, *parts], [value, *mean], dtype, scale)
    assert all(t.dtype == dtype for t in parts)
    v = tuple(t.nan_to_num(neginf=0.5) for t in inputs(**{**CASES[case], "seed": 1, "scale": 1.0})[0])
    if case != "large scores":
        _, products = triton_dispatch.hessian_product(theta, lengths, v)
        assert_same(products, dispatch.hessian_product(theta, lengths, v)[1], dtype)
    uniforms = torch.rand(3, len(lengths), 2 * theta[0].shape[1], dtype=torch.float64)
    for drawn in (None, uniforms):
        best, y = triton_dispatch.walk(theta, lengths, drawn)
        expected, tags, starts = dispatch.walk(theta, lengths, drawn)
        assert_same([best], [expected], dtype, scale)
        assert all(map(torch.equal, y, structures(tags, starts, theta)))


@pytest.mark.parametrize("transition", [False, True])
def test_ties(transition: bool) -> None:
    theta, lengths = inputs(4, 3, 3, transition=transition, lengths=(4, 3))
    for scores in (tuple(torch.zeros_like(t) for t in theta), tuple(t.round() for t in theta)):
        _, tags, starts = dispatch.walk(scores, lengths)
        assert all(map(torch.equal, triton_dispatch.walk(scores, lengths)[1], structures(tags, starts, scores)))


def test_masks() -> None:
    """The kernels leave out the scores of steps that `without_masks` sets to −inf for the CPU loops."""
    theta, lengths = inputs(4, 2, 3, lengths=(4, 3), dtype=torch.float32)
    least = torch.finfo(torch.float32).min
    theta[0][0, 1, 2] = theta[0][1, :2, 0] = theta[1][:, 2, 0, 1] = theta[3][0, 1] = least
    theta[0][:, 2, 1] = -1e9
    theta[1][0, 3, 1] = 30.0  # so that −1e9 is a mask in the second instance only
    assert (without_masks(theta)[0] == -math.inf).sum((1, 2)).tolist() == [1, 3]
    value, mean = dispatch.value_and_mean(without_masks(theta), lengths)
    got, parts = triton_dispatch.value_and_mean(theta, lengths)
    assert_same([got, *parts], [value, *mean], torch.float32)
    _, tags, starts = dispatch.walk(without_masks(theta), lengths)
    assert all(map(torch.equal, triton_dispatch.walk(theta, lengths)[1], structures(tags, starts, theta)))


@pytest.mark.full
def test_tiles() -> None:
    """More durations and labels than a tile holds."""
    theta, lengths = inputs(3, 40, 40, lengths=(3,))
    assert_same(
        triton_dispatch.value_and_mean(theta, lengths)[1], dispatch.value_and_mean(theta, lengths)[1], theta[0].dtype
    )
    theta, lengths = inputs(300, 260, 4, transition=False, lengths=(300,))
    assert_same([triton_dispatch.value(theta, lengths)], [dispatch.value(theta, lengths)], theta[0].dtype, 100)


@pytest.mark.full
def test_public_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, lengths = inputs(lengths=(5, 3))
    leaves = tuple(t.requires_grad_() for t in theta)
    y = si.relax(leaves, "semi_markov", "map", lengths=lengths)
    assert torch.equal(y[0].sum((1, 2)).long(), lengths)
    mean = si.relax(leaves, "semi_markov", "marginals", lengths=lengths)
    gradient = torch.autograd.grad(mean[0][..., 0].sum(), leaves)
    with monkeypatch.context() as patched:
        patched.setattr("structinf_oracles.common.segmentation_sums.uses_triton", lambda _: False)
        expected = si.relax(leaves, "semi_markov", "marginals", lengths=lengths)
        expected_gradient = torch.autograd.grad(expected[0][..., 0].sum(), leaves)
    assert_same([*mean, *gradient], [*expected, *expected_gradient], torch.float64)
    empty = tuple(t[:0] for t in theta)
    assert si.relax(empty, "semi_markov", "marginals")[0].shape == (0, 5, 2)
    labels = torch.randn(1, 2, 300)
    assert si.log_partition((labels, torch.zeros(1, 2, 2, 300), torch.zeros(1, 2, 300)), "semi_markov").isfinite()
