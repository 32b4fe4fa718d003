"""Estimators with control variates: unbiased on choices, bits, subsets, chains and trees, and known variances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.estimators import MuProp, Rebar, Relax

THETA = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
A = torch.tensor([[1, 0.5, -0.3], [0.5, -0.4, 0.2], [-0.3, 0.2, 0.8]], dtype=torch.float64)
B = torch.tensor([0.2, -1.0, 0.4], dtype=torch.float64)
EXACT = torch.tensor([0.182005, -0.364777, 0.182772], dtype=torch.float64)

STRUCTURES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "categorical": (si.get_oracle("categorical"), (4,)),
    "bits": (si.get_oracle("bits"), (3,)),
    "subset": (si.get_oracle("subset", k=2), (4,)),
    "dtw": (si.get_oracle("dtw"), (3, 3)),
    "arborescence": (si.get_oracle("arborescence"), (3, 3)),
}


def quadratic(z: Tensor) -> Tensor:
    return ((z @ A) * z).sum(-1) / 2 + z @ B


def draws_of(estimator: Any, oracle: Any, theta: Tensor, f: Any, draws: int) -> tuple[Tensor, Tensor]:
    """Return independent values and gradients, (draws,) and (draws, *event)."""
    theta = theta.expand(draws, *theta.shape).clone().requires_grad_()
    value = si.expect(f, theta, oracle, estimator, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return value.detach(), gradient


def check_unbiased(estimator: Any, oracle: Any, event: tuple[int, ...], draws: int = 4000) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(event, dtype=torch.float64, generator=generator)
    size = theta.numel()
    matrix = torch.randn(size, size, dtype=torch.float64, generator=generator) / size

    def f(y: Tensor) -> Tensor:
        return ((y.flatten(1) @ matrix) * y.flatten(1)).sum(1).exp()

    leaf = theta.clone().requires_grad_()
    exact = si.expect(f, leaf[None], oracle)
    (slope,) = torch.autograd.grad(exact.sum(), leaf)
    for found, expected in zip(draws_of(estimator, oracle, theta, f, draws), (exact.detach()[0], slope), strict=True):
        error = (found.mean(0) - expected).abs()
        assert (error <= 6 * found.std(0) / draws**0.5 + 1e-12).all()


def test_known_variances():
    draws = 20_000
    plain = si.get_estimator("score_function", samples=1, baseline="none")
    for estimator, variance in ((plain, 0.355685), (MuProp(samples=1), 0.033848)):
        _, found = draws_of(estimator, "categorical", THETA, quadratic, draws)
        assert ((found.mean(0) - EXACT).abs() <= 6 * found.std(0) / draws**0.5).all()
        assert found.var(0).sum().item() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("name", STRUCTURES)
def test_muprop_is_unbiased(name):
    check_unbiased(MuProp(samples=2), *STRUCTURES[name])


def test_muprop_of_a_linear_function_has_no_variance():
    theta = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    cost = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    found, exact = (
        torch.autograd.grad(si.expect(lambda y: y @ cost, theta, "subset", e, k=2).sum(), theta)[0]
        for e in (MuProp(samples=1), "exact")
    )
    torch.testing.assert_close(found, exact)


def test_muprop_trains_f_and_takes_inputs():
    theta = torch.randn(3, 4, requires_grad=True)
    weight = torch.ones(4, requires_grad=True)
    prices = torch.rand(3, 4)
    calls = []

    def f(y: Tensor, price: Tensor) -> Tensor:
        calls.append(len(y))
        return (y * price * weight).sum(1).square()

    value = si.expect(f, theta, "subset", MuProp(samples=5), k=2, inputs=prices)
    value.sum().backward()
    assert len(calls) == 1
    assert theta.grad is not None
    assert weight.grad is not None
    with torch.no_grad():
        assert si.expect(f, theta, "subset", MuProp(samples=5), k=2, inputs=prices).shape == (3,)


def test_muprop_of_a_function_without_a_derivative():
    """Without a derivative, f(μ) is the only control variate."""
    theta = torch.randn(2, 3, requires_grad=True)
    value = si.expect(lambda y: (y[:, 0].detach() > 0.5).float(), theta, "bits", MuProp(samples=5))
    value.sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


# ----------------------------------------------------------------------------- rebar and relax


def network(size: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(size, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    return torch.nn.Sequential(*layers).double()


@pytest.mark.parametrize("name", ["categorical", "bits"])
@pytest.mark.parametrize("kind", ["rebar", "rebar_half", "relax", "relax_black_box"])
def test_rebar_and_relax_are_unbiased(name, kind):
    oracle, event = STRUCTURES[name]
    estimator = {
        "rebar": lambda: Rebar(),
        "rebar_half": lambda: Rebar(eta=0.5, temperature=1.0, samples=3),
        "relax": lambda: Relax(control=network(*event)),
        "relax_black_box": lambda: Relax(control=network(*event), eta=0.0, samples=2),
    }[kind]()
    check_unbiased(estimator, oracle, event)


def test_rebar_is_relax_without_a_module():
    theta = THETA.expand(5, 3).clone().requires_grad_()
    found = []
    for estimator in (Rebar(samples=2), Relax(samples=2)):
        value = si.expect(quadratic, theta, "bits", estimator, generator=torch.Generator().manual_seed(0))
        found.append((value.detach(), torch.autograd.grad(value.sum(), theta)[0]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_trained_control_variate_lowers_the_variance():
    def target(y: Tensor) -> Tensor:
        return (y[:, 0] - 0.45).square().detach()

    control = network(1)
    estimator = Relax(control=control, eta=0.0)
    optimizer = torch.optim.Adam(control.parameters(), lr=0.02)
    zero = torch.zeros(1, dtype=torch.float64)
    _, before = draws_of(estimator, "bits", zero, target, 5000)
    for step in range(100):
        theta = zero.expand(64, 1).clone().requires_grad_()
        # The sign of the loss does not matter for the control variate.
        value = si.expect(target, theta, "bits", estimator) * (1 if step % 2 else -1)
        optimizer.zero_grad()
        value.sum().backward()
        optimizer.step()
    _, after = draws_of(estimator, "bits", zero, target, 5000)
    assert after.var() < 0.3 * before.var()
    # The exact gradient is (0.55² − 0.45²) / 4.
    assert abs(after.mean() - 0.025) < 6 * after.std() / 5000**0.5


def test_a_black_box_and_inputs():
    seen = []

    class Control(torch.nn.Module):
        def forward(self, y: Tensor, price: Tensor) -> Tensor:
            seen.append((y.shape, price.shape))
            return (y * price).sum(1)

    theta, prices = torch.randn(4, 3, requires_grad=True), torch.rand(4, 3)
    estimator = Relax(control=Control(), samples=5, eta=0.0)
    value = si.expect(
        lambda y, p: torch.from_numpy((y.numpy() * p.numpy()).sum(1)), theta, "bits", estimator, inputs=prices
    )
    value.sum().backward()
    assert seen == [((20, 3), (20, 3))] * 2
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


@pytest.mark.parametrize("oracle", ["categorical", "bits"])
def test_extreme_and_forbidden_scores(oracle):
    theta = torch.tensor([[1000.0, -1000.0, 999.0, -torch.inf], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    theta.requires_grad_()
    value = si.expect(lambda y: y @ torch.tensor([1.0, 2.0, 3.0, 4.0]), theta, oracle, Rebar(samples=20))
    value.sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    assert not theta.grad.detach().masked_select(theta.isneginf()).any()
    assert si.expect(lambda y: y.sum(1), theta[:0], oracle, "rebar").shape == (0,)


def test_padding_of_bits():
    theta = torch.randn(2, 3, requires_grad=True)
    value = si.expect(lambda y: y.sum(1), theta, "bits", Rebar(samples=20), lengths=[1, 3])
    value.sum().backward()
    assert theta.grad is not None
    assert not theta.grad[0, 1:].any()


def test_errors_of_relax():
    theta = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(si.UnsupportedError, match="closed form for one choice among n and for free bits only"):
        si.expect(lambda y: y.sum(1), theta, "subset", "rebar", k=2)
    with pytest.raises(si.InvalidInputError, match=r"control must be a torch\.nn\.Module or None, got function"):
        Relax(control=lambda y: y)  # type: ignore[arg-type]
    for option in ({"eta": float("inf")}, {"temperature": 1e-300}):
        with pytest.raises(si.InvalidInputError, match=r"too (large|small) for computations in torch\.float32"):
            si.expect(lambda y: y.sum(1), theta, "bits", "rebar", **option)
    with pytest.raises(si.InvalidInputError, match=r"control must return a tensor of shape \(2,\), got shape \(2, 1\)"):
        si.expect(lambda y: y.sum(1), theta, "bits", Relax(control=torch.nn.Linear(3, 1)))
