"""gumbel_crf: exact samples, their relaxation, and derivatives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple, map_parts
from structinf.relaxations.gumbel_crf import GumbelCRF


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(sum(shape)), dtype=torch.float64)


CASES: dict[str, tuple[Any, Any]] = {
    "chain": (si.get_oracle("chain"), (normal(2, 3, 2), normal(2, 2))),
    "projective_tree": (si.get_oracle("projective_tree"), normal(2, 4, 4)),
    "subset": (si.get_oracle("subset", k=2), normal(2, 4)),
    "dtw": (si.get_oracle("dtw"), normal(2, 3, 3)),
}
cases = pytest.mark.parametrize("name", CASES)


@cases
def test_samples_are_exact(name):
    oracle, theta = CASES[name]
    n = 4000
    y = si.relax(theta, oracle, GumbelCRF(straight_through=True, samples=n, reduction="none"), generator=seeded())
    mean = si.relax(theta, oracle, "marginals")
    for sample, expected in zip(as_tuple(y), as_tuple(mean), strict=True):
        error = sample.std(0) / n**0.5
        assert ((sample.mean(0) - expected).abs() <= 6 * error + 1e-9).all()
        assert (sample == sample.round()).all()


@cases
def test_relaxed_samples_approach_exact_samples(name):
    oracle, theta = CASES[name]
    exact = si.relax(theta, oracle, GumbelCRF(straight_through=True, samples=3), generator=seeded(1))
    cold = si.relax(theta, oracle, GumbelCRF(relaxation_temperature=1e-5, samples=3), generator=seeded(1))
    torch.testing.assert_close(cold, exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "name", ["chain", "subset", *(pytest.param(name, marks=pytest.mark.full) for name in ("projective_tree", "dtw"))]
)
def test_derivatives(name):
    oracle, theta = CASES[name]
    theta = map_parts(lambda t: t[:1] if t.ndim == as_tuple(theta)[0].ndim else t, theta)
    leaves = tuple(t.clone().requires_grad_() for t in as_tuple(theta))

    def value(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors if isinstance(theta, tuple) else tensors[0]
        return as_tuple(si.relax(given, oracle, GumbelCRF(relaxation_temperature=0.7), generator=seeded(2)))

    assert torch.autograd.gradcheck(value, leaves)
    assert torch.autograd.gradgradcheck(value, leaves)
    straight = si.relax(
        map_parts(lambda t: t.clone().requires_grad_(), theta),
        oracle,
        GumbelCRF(relaxation_temperature=0.7, straight_through=True),
        generator=seeded(2),
    )
    first = as_tuple(theta)[0].clone().requires_grad_()
    own = (first, *as_tuple(theta)[1:]) if isinstance(theta, tuple) else first
    for relaxation in (GumbelCRF(), GumbelCRF(straight_through=True)):
        as_tuple(si.relax(own, oracle, relaxation, generator=seeded(2)))[0].square().sum().backward()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert as_tuple(straight)[0].requires_grad


def test_one_bit_is_a_relaxed_bernoulli_variable():
    """With one choice of two, the relaxed sample is σ((θ + L) / τ) for logistic noise L."""
    theta, tau = 0.4, 0.6
    samples = si.relax(
        torch.full((20_000, 1), theta, dtype=torch.float64),
        "bits",
        GumbelCRF(relaxation_temperature=tau),
        generator=seeded(3),
    )
    assert isinstance(samples, Tensor)
    noise = torch.linspace(-40, 40, 200_001, dtype=torch.float64)
    density = (-noise - 2 * torch.nn.functional.softplus(-noise)).exp()
    for power in (1, 2):
        expected = torch.trapezoid(((theta + noise) / tau).sigmoid() ** power * density, noise)
        drawn = samples**power
        assert abs(drawn.mean() - expected) < 6 * drawn.std() / 20_000**0.5


def test_forms_lengths_and_forbidden_parts():
    unary, pair = normal(2, 3, 2), normal(2, 2)
    unary[0, 1, 0] = -torch.inf
    theta = (unary.clone().requires_grad_(), pair.clone().requires_grad_())
    tags, counts = si.relax(theta, "chain", "gumbel_crf", lengths=[3, 1], generator=seeded())
    torch.testing.assert_close(tags.sum(2), torch.tensor([[1.0, 1, 1], [1, 0, 0]], dtype=torch.float64))
    assert tags[0, 1, 0] == 0
    torch.testing.assert_close(counts.sum((1, 2)), torch.tensor([2.0, 0], dtype=torch.float64))
    tags.square().sum().backward()
    for leaf in theta:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    samples = si.relax(theta, "chain", "gumbel_crf", samples=4, reduction="none", lengths=[3, 1])
    assert samples[0].shape == (4, 2, 3, 2)
    half: Any = si.relax(normal(3, 4).half(), "subset", "gumbel_crf", k=2)
    assert half.dtype == torch.float16
    large: Any = si.relax(1000 * normal(3, 4).float(), "subset", "gumbel_crf", k=2)
    torch.testing.assert_close(large.sum(1), torch.full((3,), 2.0))
    assert si.relax(normal(0, 4), "subset", "gumbel_crf", k=2).shape == (0, 4)
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(torch.tensor([[0.0, 0.0], [0.0, -math.inf]]), "subset", "gumbel_crf", k=2)


def test_seeds_and_temperature():
    theta = normal(2, 4)
    draws = [si.relax(theta, "subset", "gumbel_crf", k=2, generator=seeded(5)) for _ in range(2)]
    torch.testing.assert_close(*draws)
    one = si.relax(theta, "subset", "gumbel_crf", k=2, temperature=0.5, generator=seeded(5))
    torch.testing.assert_close(one, si.relax(2 * theta, "subset", "gumbel_crf", k=2, generator=seeded(5)))


@pytest.mark.parametrize(
    ("oracle", "options", "error", "words"),
    [
        ("categorical", {}, si.UnsupportedError, "Gumbel-softmax"),
        ("assignment", {}, si.UnsupportedError, "no hypergraph"),
        ("bits", {"relaxation_temperature": 0.0}, si.InvalidInputError, "relaxation_temperature"),
        ("bits", {"temperature": -1.0}, si.InvalidInputError, "temperature"),
        ("bits", {"straight_through": 1}, si.InvalidInputError, "straight_through"),
        ("bits", {"samples": 0}, si.InvalidInputError, "samples"),
        ("bits", {"reduction": "sum"}, si.InvalidInputError, "reduction"),
    ],
)
def test_wrong_calls(oracle, options, error, words):
    with pytest.raises(error, match=words):
        si.relax(torch.zeros(2, 2) if oracle != "assignment" else torch.zeros(2, 2, 2), oracle, "gumbel_crf", **options)
