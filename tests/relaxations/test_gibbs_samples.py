"""Surrogate gradients of samples of the Gibbs distribution: their expectations over all structures, and their noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.relaxations.gapped_straight_through import GappedStraightThrough
from structinf.relaxations.gumbel_rao import GumbelRao
from structinf.relaxations.reinmax import ReinMax
from structinf.relaxations.surrogate import ArgmaxResult

THETA = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
A = torch.tensor([[1, 0.5, -0.3], [0.5, -0.4, 0.2], [-0.3, 0.2, 0.8]], dtype=torch.float64)
B = torch.tensor([0.2, -1.0, 0.4], dtype=torch.float64)


def quadratic(z: Tensor) -> Tensor:
    return ((z @ A) * z).sum(-1) / 2 + z @ B


def each_gradient(relaxation: Any, oracle: Any, theta: Tensor, f: Any) -> tuple[Tensor, Tensor]:
    """Return the surrogate gradient at each structure, (Y, *event), and the probabilities of the structures."""
    every = si.get_oracle(oracle).enumerate(tuple(theta.shape)).to(theta)  # type: ignore[attr-defined]
    scaled = theta.expand(len(every), *theta.shape) / relaxation.temperature
    p = si.log_prob(scaled, every, oracle).exp()
    y = every.clone().requires_grad_()
    (v,) = torch.autograd.grad(f(y).sum(), y)
    found = relaxation.surrogate_gradient(ArgmaxResult(relaxation, oracle, scaled, scaled, every), v)
    return found / relaxation.temperature, p


def mean_gradient(relaxation: Any, oracle: Any, theta: Tensor, f: Any) -> Tensor:
    found, p = each_gradient(relaxation, si.get_oracle(oracle), theta, f)
    return (found.flatten(1) * p[:, None]).sum(0).view(theta.shape)


def exact_gradient(oracle: Any, theta: Tensor, f: Any) -> Tensor:
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(si.expect(f, theta[None], oracle).sum(), theta)[0]


def test_known_values():
    exact = torch.tensor([0.182005, -0.364777, 0.182772], dtype=torch.float64)
    first = torch.tensor([0.156333, -0.270922, 0.114589], dtype=torch.float64)
    torch.testing.assert_close(exact_gradient("categorical", THETA, quadratic), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(mean_gradient(ReinMax(), "categorical", THETA, quadratic), exact, rtol=0, atol=1e-6)
    found = mean_gradient(ReinMax(order=1), "categorical", THETA, quadratic)
    torch.testing.assert_close(found, first, rtol=0, atol=1e-6)


STRUCTURES = {
    "categorical": (si.get_oracle("categorical"), (4,)),
    "bits": (si.get_oracle("bits"), (3,)),
    "subset": (si.get_oracle("subset", k=2), (4,)),
    "arborescence": (si.get_oracle("arborescence"), (3, 3)),
    "binary_tree": (si.get_oracle("binary_tree"), (4, 4)),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_mean_is_exact_for_linear_and_quadratic_functions(name, temperature):
    oracle, event = STRUCTURES[name]
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(event, dtype=torch.float64, generator=generator)
    size = theta.numel()
    matrix, vector = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((size, size), (size,)))

    def linear(y: Tensor) -> Tensor:
        return y.flatten(1) @ vector

    def square(y: Tensor) -> Tensor:
        return ((y.flatten(1) @ matrix) * y.flatten(1)).sum(1) + linear(y)

    for order, f in ((1, linear), (2, linear), (2, square)):
        found = mean_gradient(ReinMax(order=order, temperature=temperature), oracle, theta, f)  # type: ignore[arg-type]
        expected = exact_gradient(oracle, theta / temperature, f) / temperature
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"gap": 0.3, "backward_temperature": 0.5, "temperature": 2.0}])
def test_gapped_straight_through_is_its_formula(options):
    """The sample is raised to the maximum, and others are lowered to the gap below it (Fan et al. 2022)."""
    relaxation = GappedStraightThrough(**options)
    found, _ = each_gradient(relaxation, si.get_oracle("categorical"), THETA, quadratic)
    for i, g in enumerate(found):
        y = torch.eye(3, dtype=torch.float64)[i]
        logits = (THETA / relaxation.temperature).requires_grad_()
        up = (logits.max() - logits) * y
        down = -(logits + relaxation.gap - logits.max()).clamp(min=0) * (1 - y)
        shifted = logits + (up + down).detach()
        soft = (shifted / relaxation.backward_temperature).softmax(0)
        v = A @ y + B
        (expected,) = torch.autograd.grad(soft @ v, logits)
        torch.testing.assert_close(g, expected / relaxation.temperature)


def gradients_of_draws(relaxation: Any, draws: int) -> tuple[Tensor, Tensor]:
    theta = THETA.expand(draws, 3).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    y = si.relax(theta, "categorical", relaxation, generator=generator)
    assert isinstance(y, Tensor)
    (found,) = torch.autograd.grad(quadratic(y).sum(), theta)
    return y.detach(), found


def test_gumbel_rao_has_the_mean_of_straight_through_gumbel_and_less_variance():
    draws = 20_000
    plain = si.get_relaxation(
        "stochastic", base_relaxation=si.get_relaxation("straight_through", backward="marginals", temperature=0.5)
    )
    _, expected = gradients_of_draws(plain, draws)
    spreads = []
    for resamples in (1, 4, 50):
        y, found = gradients_of_draws(GumbelRao(resamples=resamples, backward_temperature=0.5), draws)
        error = (found.var(0) + expected.var(0)).sqrt() / draws**0.5
        assert ((found.mean(0) - expected.mean(0)).abs() <= 6 * error).all()
        p = THETA.softmax(0)
        assert ((y.mean(0) - p).abs() <= 6 * (p * (1 - p) / draws).sqrt()).all()
        spreads.append(found.var(0).sum())
    assert spreads[0] > spreads[1] > spreads[2]
    torch.testing.assert_close(spreads[0], expected.var(0).sum(), rtol=0.05, atol=0)


EVERY = {
    "reinmax": ReinMax(),
    "gapped_straight_through": GappedStraightThrough(),
    "gumbel_rao": GumbelRao(resamples=3),
}


@pytest.mark.parametrize("name", EVERY)
def test_forbidden_choices(name):
    theta = torch.tensor([[0.5, -torch.inf, 1.0, 0.0], [0.1, -torch.inf, -torch.inf, -torch.inf]], requires_grad=True)
    y = si.relax(theta, "categorical", EVERY[name], generator=torch.Generator().manual_seed(0))
    assert isinstance(y, Tensor)
    assert y.sum(1).tolist() == [1, 1]
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    assert theta.grad[0, 1] == 0
    assert not theta.grad[1].any()
    torch.testing.assert_close(theta.grad.sum(1), torch.zeros(2), rtol=0, atol=1e-6)


def test_padding():
    theta = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = si.relax(theta, "arborescence", ReinMax(), lengths=[4, 1, 2], generator=torch.Generator().manual_seed(0))
    assert isinstance(y, Tensor)
    (y * torch.arange(5.0)).sum().backward()
    assert theta.grad is not None
    assert not theta.grad[1, 2:].any()
    assert not theta.grad[1, :, 2:].any()
    assert theta.grad[0].any()


@pytest.mark.parametrize("name", EVERY)
def test_samples_and_large_scores(name):
    options = {"samples": 5, "reduction": "none"} | ({"resamples": 3} if name == "gumbel_rao" else {})
    relaxation = type(EVERY[name])(**options)
    theta = torch.tensor([[1000.0, -1000.0, 999.0]], requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    y = si.relax(theta, "categorical", relaxation, generator=generator)
    assert isinstance(y, Tensor)
    assert y.shape == (5, 1, 3)
    y[..., 0].sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    again = si.relax(theta, "categorical", relaxation, generator=generator.manual_seed(0))
    assert torch.equal(y, again)  # type: ignore[arg-type]
    assert si.relax(theta[:0], "categorical", relaxation).shape == (5, 0, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("relaxation", [GumbelRao(), GappedStraightThrough()])
def test_the_set_of_structures_decides_and_not_the_name(relaxation):
    categorical = type(si.get_oracle("categorical"))

    class Choice(categorical):
        name = "toy_choice"

    class Unknown(categorical):
        known_set = None

    theta = torch.tensor([[0.3, -0.2, 0.1]])
    found = si.relax(theta, Choice(), relaxation, generator=torch.Generator().manual_seed(0))
    expected = si.relax(theta, "categorical", relaxation, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, expected)
    with pytest.raises(si.UnsupportedError, match="one choice among n"):
        si.relax(theta, Unknown(), relaxation)


def test_unsupported_oracles_and_options():
    with pytest.raises(si.UnsupportedError, match="one choice among n, such as the oracle categorical"):
        si.Layer("bits", GumbelRao())
    with pytest.raises(si.UnsupportedError, match="GibbsOracle"):
        si.Layer("assignment", ReinMax())
    with pytest.raises(si.InvalidInputError, match="order must be 1 or 2"):
        ReinMax(order=3)  # type: ignore[arg-type]
    with pytest.raises(si.InvalidInputError, match="gap must be a number of at least 0"):
        GappedStraightThrough(gap=-1.0)
    with pytest.raises(si.InvalidInputError, match="backward_temperature"):
        GumbelRao(backward_temperature=0.0)
