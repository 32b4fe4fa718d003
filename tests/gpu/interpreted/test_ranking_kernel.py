"""Ranks by the Triton kernel, with the ties of the compiled loops."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.kernels.permutahedron import projection, triton_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 150, pytest.param(9, marks=pytest.mark.full)])
def test_ranks(n: int, dtype: torch.dtype) -> None:
    """Rows of usual scores, ties, zeros of both signs, and scores up to ±1000."""
    x = torch.randn(4, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    x[1] = x[1].round()
    x[2] = torch.where(x[2] > 0, 0.0, -0.0)
    x[3] = (500 * x[3]).clamp(-1000, 1000)
    for lengths in (None, torch.tensor([n, n // 2, 0, n])):
        y, allowed = triton_ranks.ranks(x, lengths)
        assert torch.equal(y, projection.project(x, 0.0, lengths)[0])
        assert allowed.all()


def test_scores_that_are_not_finite() -> None:
    x = torch.tensor([[math.nan, 1.0, 2.0], [-math.inf, 1.0, 0.0]])
    y, allowed = triton_ranks.ranks(x)
    assert y[1].tolist() == [1, 3, 2]
    assert allowed.all(1).tolist() == [False, False]
    assert triton_ranks.ranks(x[:, :0])[0].shape == (2, 0)
    assert triton_ranks.ranks(x[:0])[0].shape == (0, 3)
    with pytest.raises(si.InfeasibleError, match="no ranking of finite score exists for batch index 1"):
        si.relax(torch.stack([x[1] * 0 + 1, x[1]]).nan_to_num(nan=1.0, neginf=-math.inf), "ranking", "map")


def test_calls_stay_on_the_device() -> None:
    theta, lengths = torch.tensor([[0.5, -1.0, 2.0, 0.5], [1.0, 0.0, 3.0, 9.0]]), torch.tensor([4, 3])
    expected = [[2.0, 1.0, 4.0, 3.0], [2.0, 1.0, 3.0, 0.0]]
    scores, data = on_device(theta), on_device(lengths)
    with LaunchCounter() as count:
        y = si.relax(scores, "ranking", "map", lengths=data)
    assert y.tolist() == expected
    assert (count.synchronisations, count.copies) == (1, 0), count.report()
    assert count.launches <= 8, count.report()
