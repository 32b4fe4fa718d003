"""Best subsets by the Triton kernel, with the ties of the compiled loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.kernels.simplex import triton_rows
from structinf_oracles.kernels.subset import triton_top_k
from structinf_oracles.subset import Subset

INF = math.inf


def draw(d: int, dtype: torch.dtype) -> Tensor:
    """Rows of usual scores, ties, zeros of both signs, scores up to ±1000 with −inf, −inf alone, and one score."""
    generator = torch.Generator().manual_seed(d)
    x = torch.randn(6, d, generator=generator).to(dtype)
    x[1] = x[1].round()
    x[2] = torch.where(x[2] > 0, 0.0, -0.0)
    x[3] = (500 * x[3]).clamp(-1000, 1000).masked_fill(torch.rand(d, generator=generator) < 0.3, -INF)
    x[4] = -INF
    x[5, 1:] = -INF
    return x


def check_with_loops(x: Tensor, k: int | Tensor, lengths: Tensor | None, at_most: bool) -> None:
    taken, usable = triton_top_k.highest(x, k, lengths, at_most=at_most)
    used = torch.arange(x.shape[1]) < (torch.full((len(x),), x.shape[1]) if lengths is None else lengths)[:, None]
    scores = torch.where(used, x, -INF)
    oracle = Subset(k, at_most=True) if isinstance(k, int) else Subset(at_most=True).bind(k=k[:, 0])
    # The loops take fewer than k elements only with ``at_most``, which needs scores above 0.
    positive = scores if at_most else torch.where(scores > -INF, ranks(scores), -INF)
    assert torch.equal(taken, oracle._highest(positive))
    assert usable.tolist() == (scores > (0 if at_most else -INF)).sum(1).tolist()


def ranks(x: Tensor) -> Tensor:
    """Return a number above 0 for each score, in the order of the scores, equal for equal scores."""
    return (x.unsqueeze(2) >= x.unsqueeze(1)).sum(2).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 9, pytest.param(2, marks=pytest.mark.full)])
def test_highest_scores(d: int, dtype: torch.dtype) -> None:
    x = draw(d, dtype)
    lengths, k = torch.tensor([d, d, d - 1, d, d, 0]), torch.tensor([[0], [1], [d], [d // 2], [1], [2]])
    for at_most in (False, True):
        check_with_loops(x, min(2, d), None, at_most)
        check_with_loops(x, 0, lengths, at_most)
        check_with_loops(x, k, lengths, at_most)
    scores, usable = triton_top_k.usable(x, lengths)
    assert torch.equal(scores, torch.where(torch.arange(d) < lengths[:, None], x, -INF))
    assert usable.tolist() == (scores > -INF).sum(1).tolist()


def test_strided_rows_and_empty_batches() -> None:
    x = draw(9, torch.float64)
    taken, _ = triton_top_k.highest(x.T.contiguous().T, 3)
    assert torch.equal(taken, triton_top_k.highest(x, 3)[0])
    for shape in [(0, 4), (3, 0)]:
        taken, usable = triton_top_k.highest(torch.zeros(shape), 0)
        assert (taken.shape, usable.tolist()) == (shape, [0] * shape[0])


def test_scores_that_are_not_finite_end() -> None:
    x = torch.tensor([[math.nan, 1.0, 2.0], [INF, INF, 0.0]])
    assert triton_top_k.highest(x, 1)[0].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_public_calls_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(9, torch.float64)[:4]
    data = {"lengths": torch.tensor([9, 7, 5, 9]), "k": torch.tensor([3, 2, 5, 1])}
    results = []
    for most in (8192, 4):  # longer rows take torch operations
        monkeypatch.setattr(triton_rows, "_MOST_NUMBERS", most)
        results.append([si.relax(x, "subset", "map", **options) for options in ({"k": 2}, data)])
        results[-1].append(si.relax(x, "subset", "sparsemap", **data))
        with pytest.raises(si.InfeasibleError, match="choice of 2 elements of finite score exists for batch index 1"):
            si.relax(torch.tensor([[1.0, 2.0, 0.0], [-INF, 1.0, 2.0]]), "subset", "map", k=2, lengths=[2, 2])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
