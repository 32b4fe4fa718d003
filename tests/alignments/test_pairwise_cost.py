"""Costs of matching the items of two series, against plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from soft_dtw_inputs import DOUBLE, METRICS
from structinf.alignments import pairwise_cost, soft_dtw, soft_dtw_between


def plain_cost(a, b, metric):
    """The cost of matching two items."""
    if metric == "cosine":
        norms = math.dist(a, [0] * len(a)) * math.dist(b, [0] * len(b))
        return 1 - sum(p * q for p, q in zip(a, b, strict=True)) / norms if norms else 1.0
    gaps = [abs(p - q) for p, q in zip(a, b, strict=True)]
    squared = sum(gap * gap for gap in gaps)
    return {"squared_euclidean": squared, "euclidean": math.sqrt(squared)}.get(metric, sum(gaps))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("metric", [*METRICS, "absolute"])
def test_metrics(metric, scale, dtype):
    x, y = scale * torch.randn(5, 3, dtype=dtype), scale * torch.randn(4, 3, dtype=dtype)
    x[1] = y[2] = 0
    expected = [[plain_cost(a, b, metric) for b in y.tolist()] for a in x.tolist()]
    found = pairwise_cost(x, y, metric)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype))
    assert torch.equal(pairwise_cost(x, y, lambda a, b: pairwise_cost(a, b, metric)), found)


def test_a_cost_of_ones_own_is_as_good_as_a_built_in_one():
    x, y = torch.randn(7), torch.randn(9)
    own = (x[:, None] - y).abs()
    assert torch.equal(pairwise_cost(x, y, "l1"), own)
    assert torch.equal(soft_dtw(own), soft_dtw_between(x, y, metric="absolute"))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_costs_are_not_negative_and_zero_between_equal_items(metric, dtype):
    x = 1e4 + torch.randn(50, 3, dtype=dtype)
    cost = pairwise_cost(x, x.clone(), metric)
    assert cost.min() >= 0
    torch.testing.assert_close(cost.diagonal(), torch.zeros(50, dtype=dtype), atol=1e-6, rtol=0)


def test_squared_distances_far_from_zero_are_right_in_float32():
    x, y = 1e4 + torch.rand(50, 3), 1e4 + torch.rand(40, 3)
    expected = (x.double()[:, None] - y.double()).square().sum(-1)
    torch.testing.assert_close(pairwise_cost(x, y).double(), expected, rtol=1e-5, atol=1e-9)
    close = torch.linspace(-1e3, 1e3, 9).unsqueeze(1)
    found = pairwise_cost(close, close + 1e-3).diagonal()
    torch.testing.assert_close(found.double(), (close.double() - (close + 1e-3).double()).square().view(-1))


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_at_distance_zero(metric):
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1e-20, 3.0]], dtype=DOUBLE)
    z, y = x.clone().requires_grad_(), x.clone().requires_grad_()
    cost = pairwise_cost(z, y, metric).diagonal().sum()
    gradients = torch.autograd.grad(cost, (z, y), create_graph=True)
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.zeros_like(x), atol=1e-9, rtol=0)
    again = torch.autograd.grad(sum(g.square().sum() for g in gradients), (z, y))
    assert all(g.isfinite().all() for g in again)


def test_second_derivatives_of_squares_at_distance_zero():
    x = torch.randn(4, 2, dtype=DOUBLE)
    hessian = torch.autograd.functional.hessian(lambda z: pairwise_cost(z, x).diagonal().sum(), x.clone())
    torch.testing.assert_close(hessian.reshape(8, 8), 2 * torch.eye(8, dtype=DOUBLE))
