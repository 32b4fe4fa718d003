"""Estimators with control variates: unbiased on choices, bits, subsets, chains and trees, and known variances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
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


class Flat(torch.nn.Module):
    """A network of the parts of all tensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = network(size)

    def forward(self, y: Any) -> Tensor:
        return self.layers(joint(y))


def network(size: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(size, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    return torch.nn.Sequential(*layers).double()


KINDS: dict[str, Callable[[int], Any]] = {
    "rebar": lambda d: Rebar(),
    "rebar_half": lambda d: Rebar(eta=0.5, temperature=1.0, samples=3),
    "relax": lambda d: Relax(control=Flat(d)),
    "relax_black_box": lambda d: Relax(control=Flat(d), eta=0.0, samples=2),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(("categorical", "bits"), KINDS),
        ("subset", "rebar"),
        ("dtw", "relax"),
        ("subset", "relax_black_box"),
    ],
)
def test_rebar_and_relax_are_unbiased(name, kind):
    oracle, event = STRUCTURES[name]
    check_unbiased(KINDS[kind](math.prod(event)), oracle, event)


def joint(y: Any) -> Tensor:
    return torch.cat([t.flatten(1) for t in (y if isinstance(y, tuple) else (y,))], 1)


CHAIN_AND_TREE: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "chain": (si.get_oracle("chain"), ((3, 2), (2, 2))),
    "projective_tree": (si.get_oracle("projective_tree"), ((4, 4),)),
}


@pytest.mark.parametrize(
    ("name", "kind"), [("chain", "rebar"), ("chain", "relax_black_box"), ("projective_tree", "relax")]
)
def test_rebar_and_relax_are_unbiased_on_chains_and_trees(name, kind):
    """The transitions are shared by the batch, so that the gradient is a sum over all draws; g is smooth."""
    oracle, events = CHAIN_AND_TREE[name]
    generator, draws, batches = torch.Generator().manual_seed(1), 200, 25
    theta = [torch.randn(event, dtype=torch.float64, generator=generator) for event in events]
    size = sum(t.numel() for t in theta)
    first = torch.randn(size, 6, dtype=torch.float64, generator=generator) / size**0.5

    def f(y: Any) -> Tensor:
        return (joint(y) @ first).tanh().sum(1) + (joint(y) @ first[:, 0]).square()

    def estimate(method: Any) -> Tensor:
        leaves = [t.clone().requires_grad_() for t in theta]
        form = (leaves[0].expand(draws, *events[0]), *leaves[1:])
        value = si.expect(f, form if len(form) > 1 else form[0], oracle, method, generator=generator)
        parts = torch.autograd.grad(value.sum(), leaves)
        return torch.cat([value.detach().sum()[None], *(g.flatten() for g in parts)]) / draws

    exact = estimate("exact")
    found = torch.stack([estimate(KINDS[kind](size)) for _ in range(batches)])
    plain = torch.stack(
        [estimate(si.get_estimator("score_function", samples=1, baseline="none")) for _ in range(batches)]
    )
    error = (found.mean(0) - exact).abs()
    assert (error <= 6 * found.std(0) / batches**0.5 + 1e-12).all()
    if kind == "rebar":
        assert found[:, 1:].var(0).sum() < plain[:, 1:].var(0).sum()


@pytest.mark.parametrize("name", ["subset", "projective_tree"])
def test_rebar_has_less_variance_than_the_score_function(name):
    oracle, event = {"subset": STRUCTURES["subset"], "projective_tree": (si.get_oracle("projective_tree"), (4, 4))}[
        name
    ]
    generator = torch.Generator().manual_seed(2)
    theta = torch.randn(event, dtype=torch.float64, generator=generator)
    weight = torch.randn(theta.numel(), dtype=torch.float64, generator=generator)

    def f(y: Tensor) -> Tensor:
        return (y.flatten(1) @ weight).tanh()

    plain = si.get_estimator("score_function", samples=1, baseline="none")
    variances = [draws_of(e, oracle, theta, f, 3000)[1].var(0).sum() for e in (Rebar(temperature=1.0), plain)]
    assert variances[0] < 0.8 * variances[1]


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


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_padding_and_forbidden_parts_of_a_chain(scale):
    theta = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)) * scale
    theta[1, 0, 1] = -torch.inf
    tags, transitions = theta.requires_grad_(), torch.randn(2, 2, requires_grad=True)
    seen = []

    class Control(torch.nn.Module):
        def forward(self, y: tuple[Tensor, Tensor], price: Tensor) -> Tensor:
            seen.append((y[0].detach(), y[1].shape))
            return (y[0] * price).sum((1, 2)) + y[1].square().sum((1, 2))

    def f(y: tuple[Tensor, Tensor], price: Tensor) -> Tensor:
        return (y[0] * price).sum((1, 2)).tanh() + y[1][:, 0, 0]

    estimator, prices = Relax(control=Control(), samples=2), torch.rand(3, 4, 2)
    value = si.expect(f, (tags, transitions), "chain", estimator, inputs=prices, lengths=[4, 2, 1])
    value.sum().backward()
    assert [shape for _, shape in seen] == [(6, 2, 2)] * 2
    for y, _ in seen:
        torch.testing.assert_close(y.sum((1, 2)), torch.tensor([4.0, 4, 2, 2, 1, 1]))
        assert not y[2:4, 0, 1].any()
    assert tags.grad is not None
    assert transitions.grad is not None
    assert tags.grad.isfinite().all()
    assert transitions.grad.isfinite().all()
    assert not tags.grad[1, 2:].any()
    assert tags.grad[1, 0, 1] == 0
    empty = si.expect(lambda y: y[0].sum((1, 2)), (tags[:0], transitions), "chain", "rebar")
    assert empty.shape == (0,)
    forbidden = theta.detach().clone()
    forbidden[1, 0] = -torch.inf
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.expect(lambda y: y[0].sum((1, 2)), (forbidden, transitions), "chain", Rebar(samples=3))


@pytest.mark.parametrize("name", ["rebar", "relax"])
@pytest.mark.parametrize("f", [lambda y: y.detach()[:, 0], lambda y: y.argmax(1).double()], ids=["detach", "argmax"])
def test_functions_without_a_gradient_are_refused(f, name):
    theta = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(si.InvalidInputError, match="eta above 0 needs an f whose value has a gradient"):
        si.expect(f, theta, "categorical", name, samples=20)
    assert si.expect(f, theta, "categorical", Relax(samples=20, eta=0.0)).requires_grad
    with torch.no_grad():
        assert si.expect(f, theta, "categorical", name).shape == (4,)


def test_padding_of_bits():
    theta = torch.randn(2, 3, requires_grad=True)
    value = si.expect(lambda y: y.sum(1), theta, "bits", Rebar(samples=20), lengths=[1, 3])
    value.sum().backward()
    assert theta.grad is not None
    assert not theta.grad[0, 1:].any()


def test_errors_of_relax():
    theta = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(si.UnsupportedError, match=r"closed form for one choice among n, .*; muprop has .*Supported"):
        si.expect(lambda y: y.sum((1, 2)), torch.zeros(2, 3, 3), "arborescence", "rebar")
    with pytest.raises(si.InvalidInputError, match=r"control must be a torch\.nn\.Module or None, got function"):
        Relax(control=lambda y: y)  # type: ignore[arg-type]
    for option in ({"eta": float("inf")}, {"temperature": 1e-300}):
        with pytest.raises(si.InvalidInputError, match=r"too (large|small) for computations in torch\.float32"):
            si.expect(lambda y: y.sum(1), theta, "bits", "rebar", **option)
    with pytest.raises(si.InvalidInputError, match=r"control must return a tensor of shape \(2,\), got shape \(2, 1\)"):
        si.expect(lambda y: y.sum(1), theta, "bits", Relax(control=torch.nn.Linear(3, 1)))
