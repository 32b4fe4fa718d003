"""Scales of noise and steps of surrogates as tensors: values, gradients, modules and schedules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import structinf as si
from structinf.errors import InvalidInputError
from structinf.noise import get_noise


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def number(value: float, *, grad: bool = True) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=grad)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# ----------------------------------------------------------------------------- the scale of noise


@pytest.mark.parametrize(
    ("relaxation", "options"),
    [
        ("perturbed", {"samples": 20}),
        ("perturbed", {"samples": 20, "antithetic": True, "control_variate": "none"}),
        ("stochastic", {"base_relaxation": "marginals", "samples": 3}),
        ("stochastic", {"base_relaxation": "map", "reduction": "none", "samples": 2}),
        ("imle", {"samples": 5, "symmetric": True}),
        ("imle", {"samples": 2, "reduction": "none"}),
        ("adaptive_imle", {"samples": 3}),
    ],
)
@pytest.mark.parametrize(("oracle", "shape"), [("categorical", (3, 4)), ("arborescence", (2, 3, 3))])
def test_values_and_gradients_for_the_scores(
    relaxation: str, options: Any, oracle: str, shape: tuple[int, ...]
) -> None:
    theta = scores(*shape).requires_grad_()

    def infer(sigma: Any) -> Any:
        return si.infer(theta, oracle, relaxation, sigma=sigma, generator=rng(), **options)

    found, expected = infer(number(0.7)), infer(0.7)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.value, expected.value)
    mean = si.relax(theta, oracle, relaxation, sigma=number(0.7), generator=rng(), **options)
    torch.testing.assert_close(mean, expected.mean)
    v = scores(*mean.shape)
    if expected.mean.requires_grad:
        (slope,) = torch.autograd.grad((mean * v).sum(), theta)
        torch.testing.assert_close(slope, torch.autograd.grad((expected.mean * v).sum(), theta)[0])


def test_the_gradient_of_perturbed_values() -> None:
    theta, oracle = scores(3, 4), "categorical"

    def value(sigma: Tensor) -> Tensor:
        return si.infer(theta, oracle, "perturbed", sigma=sigma, samples=20, generator=rng()).value

    def loss(sigma: Tensor) -> Tensor:
        function = si.FenchelYoungLoss(oracle, "perturbed", sigma=sigma, samples=20, reduction="none")
        return function(theta, torch.tensor([0, 1, 2]), generator=rng())

    # The structures of the samples are constant near σ, so that differences are exact.
    assert gradcheck(value, number(0.7))
    assert gradcheck(loss, number(0.7))
    torch.testing.assert_close(
        loss(number(0.7)),
        si.FenchelYoungLoss(oracle, "perturbed", sigma=0.7, samples=20, reduction="none")(
            theta, torch.tensor([0, 1, 2]), generator=rng()
        ),
    )


def test_the_gradient_of_perturbed_means_converges() -> None:
    """With Gumbel noise, the mean of ``categorical`` is the softmax of θ / σ."""
    theta, v = scores(4), scores(4)
    sigma, exact = number(0.8), number(0.8)
    options: dict[str, Any] = {"noise": "gumbel", "samples": 200_000}
    mean = si.relax(theta, "categorical", "perturbed", sigma=sigma, generator=rng(), **options)
    (found,) = torch.autograd.grad((mean * v).sum(), sigma)
    (expected,) = torch.autograd.grad(((theta / exact).softmax(0) * v).sum(), exact)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_the_gradient_of_stochastic_means() -> None:
    theta = scores(2, 4)

    def mean(sigma: Tensor) -> Any:
        return si.relax(theta, "categorical", "stochastic", base_relaxation="marginals", sigma=sigma, generator=rng())

    assert gradcheck(mean, number(0.7))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("forbidden", [False, True])
def test_the_gradient_of_imle_is_that_of_the_noisy_scores(reduction: Any, forbidden: bool) -> None:
    theta, sigma = scores(2, 4), number(0.7)
    if forbidden:
        theta[1, 2] = -math.inf
    theta.requires_grad_()
    options: dict[str, Any] = {"noise": "gumbel", "samples": 3, "reduction": reduction, "lambda_": 2.0}
    y = si.relax(theta, "categorical", "imle", sigma=sigma, generator=rng(), **options)
    v = scores(*y.shape)
    in_theta, in_sigma = torch.autograd.grad((y * v).sum(), (theta, sigma))
    noise = get_noise("gumbel").sample((3, 2, 4), dtype=torch.float64, device=torch.device("cpu"), generator=rng())
    expected, slopes = 0.0, torch.zeros(2, 4, dtype=torch.float64)
    for s in range(3):
        noisy = (theta + 0.7 * noise[s]).detach().requires_grad_()
        own = si.relax(noisy, "categorical", "imle", noise="none", lambda_=2.0)
        (g,) = torch.autograd.grad((own * (v[s] if reduction == "none" else v)).sum(), noisy)
        g = g if reduction == "none" else g / 3
        expected, slopes = expected + (g * noise[s]).sum(), slopes + g
    torch.testing.assert_close(in_sigma, expected)
    torch.testing.assert_close(in_theta, slopes)


# ----------------------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("relaxation", "option", "options"),
    [
        ("blackbox", "lambda_", {}),
        ("spigot", "step_size", {}),
        ("spigot", "step_size", {"variant": "exponentiated_gradient"}),
        ("imle", "lambda_", {"noise": "none"}),
        ("imle", "lambda_", {"noise": "none", "symmetric": True}),
    ],
)
def test_steps(relaxation: str, option: str, options: Any) -> None:
    theta, v = scores(3, 4).requires_grad_(), scores(3, 4)

    def gradient(step: Any) -> Tensor:
        y = si.relax(theta, "categorical", relaxation, **{option: step}, **options)
        return torch.autograd.grad((y * v).sum(), theta)[0]

    assert torch.equal(gradient(number(0.7, grad=False)), gradient(0.7))
    with pytest.raises(InvalidInputError, match=f"{option}: {relaxation} has no gradient in the step"):
        gradient(number(0.7))
    step = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    layer: Any = si.Layer("categorical", relaxation, **{option: step}, **options)
    assert [name for name, _ in layer.named_parameters()] == [option]
    schedule = si.TemperatureSchedule(step, 0.5, 1)
    schedule.step()
    torch.testing.assert_close(torch.autograd.grad((layer(theta) * v).sum(), theta)[0], gradient(0.5))
    y = layer(theta)
    step.fill_(2.0)  # the backward pass uses the step of the forward pass
    torch.testing.assert_close(torch.autograd.grad((y * v).sum(), theta)[0], gradient(0.5))
    step.fill_(-1.0)
    with pytest.raises(InvalidInputError, match=f"{option} must be a finite number above 0, got -1"):
        layer(theta)


# ----------------------------------------------------------------------------- modules and errors


def test_parameters_of_modules() -> None:
    theta, gold = scores(3, 4), torch.tensor([0, 1, 2])
    for make in (si.Layer, si.FenchelYoungLoss, si.RelaxedLoss):
        module: Any = make("categorical", "perturbed", sigma=nn.Parameter(torch.tensor(1.0)), samples=50)
        assert [name for name, _ in module.named_parameters()] == ["sigma"]
        result = module(theta) if make is si.Layer else module(theta, gold)
        result.square().sum().backward()
        assert module.sigma.grad.isfinite()
        assert module.sigma.grad != 0
    inner = si.Layer("categorical", "stochastic", base_relaxation="marginals", sigma=module.sigma,
                     temperature=nn.Parameter(torch.tensor(1.0)))  # fmt: skip
    assert sorted(name for name, _ in inner.named_parameters()) == ["sigma", "temperature"]
    adaptive = si.Layer("categorical", "adaptive_imle", sigma=nn.Parameter(torch.tensor(1.0)))
    adaptive(theta.requires_grad_()).square().sum().backward()
    assert [p.grad is not None for p in adaptive.parameters()] == [True]


def test_transforms_and_compile() -> None:
    theta = scores(4)

    def first(sigma: Tensor) -> Tensor:
        return si.infer(theta, "categorical", "perturbed", sigma=sigma, samples=5, generator=rng()).value

    sigma = number(0.7)
    (expected,) = torch.autograd.grad(first(sigma), sigma)
    torch.testing.assert_close(torch.func.grad(first)(sigma.detach()), expected)


@pytest.mark.parametrize("relaxation", ["perturbed", "stochastic", "imle", "adaptive_imle"])
def test_wrong_scales(relaxation: str) -> None:
    for sigma, message in (
        (torch.ones(2), "sigma must be one number, got a tensor of shape"),
        (torch.tensor(0.0), "sigma must be a finite number above 0, got 0"),
        (torch.tensor(math.nan), "sigma must be a finite number above 0, got nan"),
        ("1", "sigma must be a finite number above 0, got '1'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.get_relaxation(relaxation, sigma=sigma)
    with pytest.raises(TypeError, match="floating point"):
        si.get_relaxation(relaxation, sigma=torch.tensor(1))
    sigma = torch.tensor(1.0)
    layer = si.Layer("categorical", relaxation, sigma=sigma)
    sigma.fill_(-1.0)
    with pytest.raises(InvalidInputError, match="sigma must be a finite number above 0, but the tensor now holds -1"):
        layer(torch.zeros(3))


@pytest.mark.parametrize("options", [{"samples": 20}, {"samples": 20, "antithetic": True}, {"samples": 1}])
@pytest.mark.parametrize(("oracle", "shape"), [("categorical", (3, 4)), ("chain", (2, 3, 2))])
def test_multiplicative_noise_of_a_tensor(oracle: str, shape: tuple[int, ...], options: Any) -> None:
    first = scores(*shape).requires_grad_()
    theta = (first, scores(2, 2)) if oracle == "chain" else first

    def infer(sigma: Any) -> Any:
        return si.infer(theta, oracle, "perturbed", sigma=sigma, generator=rng(), **multiplicative)

    multiplicative = {"perturbation": "multiplicative", **options}
    found, expected, plain = infer(number(0.7)), infer(0.7), infer(number(0.7, grad=False))
    for one in (found, plain):
        mean, known = (solution.mean[0] if oracle == "chain" else solution.mean for solution in (one, expected))
        assert torch.equal(mean, known)
        assert torch.equal(one.value, expected.value)
        v = scores(*shape)
        slopes = [torch.autograd.grad((t * v).sum(), first, retain_graph=True)[0] for t in (mean, known)]
        assert torch.equal(*slopes)
        slopes = [torch.autograd.grad(t.value.sum(), first, retain_graph=True)[0] for t in (one, expected)]
        torch.testing.assert_close(*slopes)
    assert gradcheck(lambda sigma: infer(sigma).value, number(0.7))


def test_multiplicative_losses_and_second_derivatives() -> None:
    theta, sigma, y = scores(2, 3).requires_grad_(), number(0.6), torch.tensor([1, 0])
    options: dict[str, Any] = {"perturbation": "multiplicative", "samples": 30, "sigma": sigma}
    loss = si.FenchelYoungLoss("categorical", "perturbed", reduction="none", **options)
    assert (loss(theta, y, generator=rng()) >= 0).all()
    assert gradcheck(lambda t, _: loss(t, y, generator=rng()), (theta, sigma))
    value = si.infer(theta, "categorical", "perturbed", generator=rng(), **options).value.sum()
    for wanted in (theta, sigma):
        (slope,) = torch.autograd.grad(value, wanted, create_graph=True)
        with pytest.raises(si.UnsupportedError, match="pass sigma as a number"):
            slope.sum().backward()
    layer = si.Layer("categorical", "perturbed", **{**options, "sigma": nn.Parameter(torch.tensor(0.5))})
    forbidden = torch.tensor([[1.0, 2.0, 0.0, -math.inf]], requires_grad=True)
    layer(forbidden)[0, 0].backward()
    assert layer.sigma.grad is not None
    assert layer.sigma.grad.isfinite()
    assert forbidden.grad is not None
    assert forbidden.grad[0, 2:].tolist() == [0, 0]


def test_the_gradient_of_multiplicative_means_is_unbiased() -> None:
    # θ₀W₀ beats θ₁W₁ with probability Φ(z) for z = log(θ₀/θ₁) / (σ√2).
    repeats, sigma = 20_000, number(0.6)
    theta = torch.tensor([1.2, 0.9], dtype=torch.float64).expand(repeats, 2)
    options = {"perturbation": "multiplicative", "sigma": sigma, "generator": rng()}
    solution = si.infer(theta, "categorical", "perturbed", **options)
    z = math.log(1.2 / 0.9) / (0.6 * math.sqrt(2))
    (slope,) = torch.autograd.grad(solution.mean[:, 0].mean(), sigma, retain_graph=True)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    assert slope.item() == pytest.approx(-density * z / 0.6, abs=0.03)
    # E max(θ₀W₀, θ₁W₁) has the derivative √2 θ₀ φ(a) for a = z + σ/√2.
    (slope,) = torch.autograd.grad(solution.value.mean(), sigma)
    a = z + 0.6 / math.sqrt(2)
    assert slope.item() == pytest.approx(math.sqrt(2) * 1.2 * math.exp(-a * a / 2) / math.sqrt(2 * math.pi), abs=0.02)
