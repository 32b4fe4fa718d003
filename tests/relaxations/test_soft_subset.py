"""Relaxed subsets by softmaxes in a row, against the recursion of the papers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.relaxations.soft_subset import SoftSubset


def recursion(theta: Tensor, k: int, temperature: float) -> Tensor:
    total, scores = torch.zeros_like(theta), theta
    for _ in range(k):
        p = (scores / temperature).softmax(-1)
        total, scores = total + p, scores + (1 - p).log()
    return total


def relaxed(theta: Tensor, k: int, temperature: float = 1.0, **data: object) -> Tensor:
    found = si.relax(theta, "subset", SoftSubset(temperature=temperature), k=k, **data)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize(("k", "temperature"), [(1, 1.0), (2, 1.0), (3, 0.5), (6, 2.0)])
def test_it_is_the_recursion(k, temperature):
    theta = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found, expected = relaxed(theta, k, temperature), recursion(theta, k, temperature)
    torch.testing.assert_close(found, expected)
    weight = torch.linspace(-1, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad((m @ weight).sum(), theta)[0] for m in (found, expected)))
    torch.testing.assert_close(found.sum(1), torch.full((4,), float(k), dtype=torch.float64))


def test_derivatives():
    theta = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: relaxed(t, 2, 0.5), theta)
    assert torch.autograd.gradgradcheck(lambda t: relaxed(t, 2, 0.5), theta)


def test_low_temperatures_and_large_scores():
    theta = 1000 * torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    theta.requires_grad_()
    found = relaxed(theta, 3, 0.1)
    torch.testing.assert_close(found, si.relax(theta, "subset", "map", k=3), rtol=0, atol=1e-4)
    for temperature in (1.0, 0.1, 1e-3):
        found = relaxed(theta, 3, temperature)
        torch.testing.assert_close(found.sum(1), torch.full((8,), 3.0))
        assert torch.autograd.grad(found[:, 0].sum(), theta)[0].isfinite().all()


def test_forbidden_elements_and_lengths():
    theta = torch.tensor([[0.5, -torch.inf, 1.0, 0.0], [0.5, 1.0, 3.0, 3.0]], requires_grad=True)
    found = relaxed(theta, 2, lengths=[4, 2])
    torch.testing.assert_close(found[0, [0, 2, 3]], recursion(theta[0, [0, 2, 3]], 2, 1.0))
    torch.testing.assert_close(found[1, :2], recursion(theta[1, :2], 2, 1.0))
    found[:, 0].sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    assert theta.grad[0, 1] == 0
    assert not theta.grad[1, 2:].any()
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        relaxed(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]), 2)


def test_noise_makes_relaxed_samples_without_replacement():
    """The best two of θ + G are two draws without replacement from softmax(θ)."""
    draws, theta = 20_000, torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    sampled = si.get_relaxation("stochastic", base_relaxation=SoftSubset(temperature=0.01))
    found = si.relax(theta.expand(draws, 4), "subset", sampled, k=2, generator=torch.Generator().manual_seed(0))
    assert isinstance(found, Tensor)
    rate = (found > 0.5).double().mean(0)
    p = torch.tensor([0.828837, 0.668731, 0.372180, 0.130252], dtype=torch.float64)
    assert ((rate - p).abs() <= 6 * (p * (1 - p) / draws).sqrt() + 1e-3).all()


def test_other_oracles():
    with pytest.raises(si.UnsupportedError, match="subsets of exactly k elements"):
        si.Layer("bits", SoftSubset())
    with pytest.raises(si.UnsupportedError, match="without at_most"):
        si.Layer("subset", SoftSubset(), k=2, at_most=True)
