"""The estimator of sets drawn without replacement: exact means over all sets, and frequencies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.estimators import UnorderedSet
from structinf.estimators.unordered_set import _set_weights, first_draws_log_prob
from structinf.transitions import BitsInOrder, ShiftReduce

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
F = torch.tensor([1.0, 2.0, 0.0, 4.0], dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)


def in_order(p: Tensor, order: Any) -> Tensor:
    """Return the probability of draws without replacement in this order."""
    found, left = ONE, ONE
    for i in order:
        found, left = found * p[i] / left, left - p[i]
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_mean_over_all_sets_is_exact(k):
    """Of the value, and of the gradient with and without the baseline: Σ_S p(S) Σ_y R (f(y) − b) ∇p(y)."""
    total, value, slopes = 0.0, 0.0, [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    jacobian = torch.diag(P) - P[:, None] * P
    for subset in itertools.combinations(range(4), k):
        chosen = list(subset)
        probability = first_draws_log_prob(P[chosen].log(), ONE).exp()
        expected = torch.stack([in_order(P, order) for order in itertools.permutations(chosen)]).sum()
        torch.testing.assert_close(probability, expected)
        ratios, baselines = (t[0] for t in _set_weights(P[chosen].log()[None]))
        f = F[chosen]
        total, value = total + probability, value + probability * (P[chosen] * ratios * f).sum()
        for slope, b in zip(slopes, (torch.zeros(k, dtype=torch.float64), baselines @ f), strict=True):
            slope += probability * (ratios * (f - b)) @ jacobian[chosen]
        torch.testing.assert_close(baselines.sum(1), torch.ones(k, dtype=torch.float64) if k > 1 else P[chosen])
    assert float(total) == pytest.approx(1.0)
    assert float(value) == pytest.approx(1.3, abs=1e-12)
    exact = jacobian @ F
    for slope in slopes[: 2 if k > 1 else 1]:
        torch.testing.assert_close(slope, exact)


def draws_of(estimator: Any, system: Any, theta: Tensor, f: Any, draws: int) -> tuple[Tensor, Tensor]:
    theta = theta.expand(draws, *theta.shape).clone().requires_grad_()
    value = si.expect(f, theta, system, estimator, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return value.detach(), gradient


@pytest.mark.parametrize("name", ["categorical", "bits", "subset", "arborescence", "shift_reduce"])
@pytest.mark.parametrize("options", [{"k": 3}, {"k": 2, "baseline": "none"}])
def test_it_is_unbiased(name, options):
    oracle, event = {
        "categorical": (si.get_oracle("categorical"), (4,)),
        "bits": (si.get_oracle("bits"), (3,)),
        "subset": (si.get_oracle("subset", k=2), (4,)),
        "arborescence": (si.get_oracle("arborescence"), (3, 3)),
        "shift_reduce": (ShiftReduce(), (4, 4)),
    }[name]
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(event, dtype=torch.float64, generator=generator)
    weight = torch.randn(theta.numel(), dtype=torch.float64, generator=generator)

    def f(y: Tensor) -> Tensor:
        return (y.flatten(1) @ weight).exp()

    leaf, draws = theta.clone().requires_grad_(), 4000
    exact = si.expect(f, leaf[None], oracle)
    (slope,) = torch.autograd.grad(exact.sum(), leaf)
    estimator = UnorderedSet(**options)
    for found, expected in zip(draws_of(estimator, oracle, theta, f, draws), (exact.detach()[0], slope), strict=True):
        error = (found.mean(0) - expected).abs()
        assert (error <= 6 * found.std(0) / draws**0.5 + 1e-12).all()


@pytest.mark.parametrize("system", ["bits", BitsInOrder()])
def test_all_structures_are_summed_exactly(system):
    theta = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    cost = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    found, exact = (si.expect(lambda y: (y @ cost).square(), theta, system, e) for e in (UnorderedSet(k=9), "exact"))
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), theta)[0] for v in (found, exact)))


def test_instances_with_fewer_structures_and_extreme_scores():
    theta = torch.tensor([[1000.0, 999.0, -1000.0], [0.0, -torch.inf, -torch.inf], [0.0, -30.0, -60.0]])
    theta.requires_grad_()
    f = torch.tensor([1.0, 2.0, 3.0])
    value = si.expect(lambda y: y @ f, theta, "categorical", UnorderedSet(k=2))
    value.sum().backward()
    torch.testing.assert_close(value.detach(), torch.tensor([1.268941, 1.0, 1.0]), rtol=1e-5, atol=0)
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


def test_options():
    with pytest.raises(si.InvalidInputError, match="k must be at most 12, got 13"):
        UnorderedSet(k=13)
    with pytest.raises(si.InvalidInputError, match='baseline="set" needs k of at least 2'):
        UnorderedSet(k=1)
    assert si.expect(lambda y: y.sum(1), torch.zeros(0, 3), "bits", "unordered_set").shape == (0,)
    assert si.expect(lambda y: y.sum(1), torch.zeros(0, 3), BitsInOrder(), "unordered_set").shape == (0,)


class DrawnChain(si.dp.HypergraphProgram):
    """Binary strings without two ones in a row, which can be listed, but claim to be too many."""

    event_ndim = 1

    def build(self, event_shape):
        graph = si.dp.HypergraphBuilder(event_shape)
        zero, one = graph.nodes(2, event_shape[0] + 1)
        graph.add(zero[0])
        graph.add(zero[1:], zero[:-1])
        graph.add(zero[1:], one[:-1])
        graph.add(one[1:], zero[:-1], part=graph.parts)
        goal = graph.node()
        graph.add(goal, [zero[-1], one[-1]])
        return graph.build(goal, prune=True)

    def enumerate(self, event_shape):
        raise si.InvalidInputError("too many to list")


def test_structures_that_are_drawn_instead_of_listed():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, dtype=torch.float64, generator=generator)
    structures = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=torch.float64)

    def f(y):
        return (y @ torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64)).exp()

    leaf = theta.clone().requires_grad_()
    exact = ((structures @ leaf).softmax(0) * f(structures)).sum()
    (slope,) = torch.autograd.grad(exact, leaf)
    # All structures: exact. Two of them: unbiased.
    everything = si.expect(f, leaf, DrawnChain(), si.get_estimator("unordered_set", k=6), generator=generator)
    torch.testing.assert_close(everything, exact.detach())
    torch.testing.assert_close(torch.autograd.grad(everything, leaf)[0], slope)
    many = theta.expand(4000, 3).clone().requires_grad_()
    found = si.expect(f, many, DrawnChain(), si.get_estimator("unordered_set", k=2), generator=generator)
    assert abs(found.mean() - exact) < 6 * found.std() / 4000**0.5
    (gradient,) = torch.autograd.grad(found.sum(), many)
    assert ((gradient.mean(0) - slope).abs() < 6 * gradient.std(0) / 4000**0.5).all()
    large = torch.zeros(2, 40, 40, dtype=torch.float64, requires_grad=True)
    value = si.expect(lambda y: y[:, 0].sum(1), large, "arborescence", "unordered_set", generator=generator)
    value.sum().backward()
    assert value.isfinite().all()


def test_large_batches_are_weighed_in_portions_and_drawn(monkeypatch):
    log_p = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(1)[:, :4]
    whole = _set_weights(log_p)
    monkeypatch.setattr("structinf.estimators.unordered_set._MOST_ENTRIES", 100)
    for one, other in zip(whole, _set_weights(log_p), strict=True):
        assert torch.equal(one, other)
    assert [t.shape for t in _set_weights(log_p[:0])] == [(0, 4), (0, 4, 4)]
    # 2^24 structures in sum: listed, they would take a minute.
    theta = torch.zeros(32, 19, requires_grad=True)
    value = si.expect(lambda y: y.sum(1), theta, "bits", "unordered_set", generator=torch.Generator().manual_seed(0))
    value.sum().backward()
    assert abs(value.mean() - 9.5) < 1


def test_it_is_unbiased_on_chains():
    """With a tuple of scores, and sets drawn by removing mass."""
    generator, draws = torch.Generator().manual_seed(0), 3000
    theta = [torch.randn(1, *shape, dtype=torch.float64, generator=generator) for shape in ((3, 2), (2, 2))]
    weights = torch.randn(3, 2, dtype=torch.float64, generator=generator)

    def f(y):
        return (y[0] * weights).sum((1, 2)).cos() + y[1][:, 0, 1]

    leaves = [t.clone().requires_grad_() for t in theta]
    exact = si.expect(f, tuple(leaves), "chain")
    slopes = torch.autograd.grad(exact.sum(), leaves)
    copies = [t.expand(draws, -1, -1).clone().requires_grad_() for t in theta]
    found = si.expect(f, tuple(copies), "chain", "unordered_set", k=3, generator=generator)
    assert abs(found.mean() - exact) < 6 * found.std() / draws**0.5
    for each, slope in zip(torch.autograd.grad(found.sum(), copies), slopes, strict=True):
        assert ((each.mean(0) - slope[0]).abs() < 6 * each.std(0) / draws**0.5 + 1e-9).all()
