"""The perturbed mean under factors in place of summands: its derivatives and its loss."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

import structinf as si
from structinf.noise import Normal
from structinf.solvers.perturbation import multiplicative_factors


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def standard_error(x: Tensor) -> Tensor:
    return x.std(0) / len(x) ** 0.5


def test_factors_have_mean_1() -> None:
    u = Normal().sample((100_000,), dtype=torch.float64, device=torch.device("cpu"), generator=generator())
    factors = multiplicative_factors(u, 0.8)
    assert abs(factors.mean().item() - 1) < 3 * standard_error(factors).item()


def test_multiplicative_choice_between_two() -> None:
    """θ₀W₀ beats θ₁W₁ with probability Φ(log(θ₀/θ₁) / σ√2)."""
    sigma, repeats = 0.6, 20_000
    theta = torch.tensor([1.2, 0.9], dtype=torch.float64).expand(repeats, 2).clone().requires_grad_()
    options = {"sigma": sigma, "perturbation": "multiplicative"}
    mean = si.relax(theta, "categorical", "perturbed", generator=generator(), **options)
    z = torch.tensor(1.2 / 0.9).log() / (sigma * 2**0.5)
    normal = torch.distributions.Normal(0.0, 1.0)
    first = mean[:, 0].detach()
    assert abs(first.mean().item() - normal.cdf(z).item()) < 4 * standard_error(first).item()
    mean[:, 0].sum().backward()
    slope = normal.log_prob(z).exp() / (sigma * 2**0.5)
    expected = torch.stack([slope / 1.2, -slope / 0.9]).double()
    assert ((theta.grad.mean(0) - expected).abs() < 4 * standard_error(theta.grad)).all()


def test_multiplicative_noise_keeps_costs_costs() -> None:
    edges = (("a", "b"), ("b", "c"), ("a", "c"))
    path = si.get_oracle("path", graph=edges, source="a", target="c")
    with pytest.raises(si.UnsupportedError, match="multiplicative"):
        si.Layer(path, "perturbed")
    theta = torch.tensor([[-1.0, -1.0, -2.0]] * 3, requires_grad=True)
    mean = si.relax(theta, path, "perturbed", perturbation="multiplicative", samples=400, generator=generator())
    assert ((mean[:, 2] > 0.3) & (mean[:, 2] < 0.7)).all()
    mean[:, 2].sum().backward()
    assert (theta.grad[:, 2] > 0).all()
    assert (theta.grad[:, :2] < 0).all()


def test_multiplicative_loss_has_the_gradient_of_its_value() -> None:
    theta = torch.tensor([[1.0, -0.5, 2.0], [0.7, 0.1, -1.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1, 0])
    loss = si.FenchelYoungLoss("categorical", "perturbed", perturbation="multiplicative", samples=50)
    assert loss(theta, y, generator=generator()).item() >= 0
    assert torch.autograd.gradcheck(lambda t: loss(t, y, generator=generator()), theta)


def test_potentials_of_0_are_not_multiplied() -> None:
    theta = torch.tensor([0.0, 1.0, -torch.inf], requires_grad=True)
    mean = si.relax(theta, "categorical", "perturbed", perturbation="multiplicative")
    mean[1].backward()
    assert theta.grad.isfinite().all()
    assert theta.grad[0] == theta.grad[2] == 0


def test_loss_has_an_unbiased_gradient_and_hessian() -> None:
    """E[max(θ₀W₀, θ₁W₁)] = θ₀ Φ(a) + θ₁ Φ(b), with a, b = ±log(θ₀/θ₁) / s + s/2 and s = σ√2 (Margrabe 1978)."""
    sigma, repeats = 0.6, 20_000
    first, second, s = 1.2, 0.9, sigma * 2**0.5
    a, b = (sign * math.log(first / second) / s + s / 2 for sign in (1, -1))
    gradient = torch.tensor([norm.cdf(a) - 1, norm.cdf(b)], dtype=torch.float64)
    mixed = -norm.pdf(a) / (second * s)
    hessian = torch.tensor([[norm.pdf(a) / (first * s), mixed], [mixed, norm.pdf(b) / (second * s)]])
    theta = torch.tensor([first, second], dtype=torch.float64).expand(repeats, 2).clone().requires_grad_()
    y = torch.zeros(repeats, dtype=torch.int64)
    loss = si.FenchelYoungLoss("categorical", "perturbed", perturbation="multiplicative", sigma=sigma, reduction="sum")
    (found,) = torch.autograd.grad(loss(theta, y, generator=generator()), theta, create_graph=True)
    assert ((found.mean(0) - gradient).abs() < 4 * standard_error(found.detach())).all()
    for row, expected in enumerate(hessian.double()):
        (product,) = torch.autograd.grad(found[:, row].sum(), theta, retain_graph=True)
        assert ((product.mean(0) - expected).abs() < 4 * standard_error(product)).all()


def test_forbidden_parts_stay_forbidden_where_factors_underflow() -> None:
    theta = torch.tensor([-1.0, -torch.inf, -2.0]).expand(100, 3)
    mean = si.relax(theta, "categorical", "perturbed", perturbation="multiplicative", sigma=15.0, samples=20)
    assert (mean[:, 1] == 0).all()
    assert torch.equal(mean.sum(1), torch.ones(100))
