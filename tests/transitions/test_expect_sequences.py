"""Expectations over the sequences of transition systems, and their gradients."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from structinf.transitions import BitsInOrder, PlackettLuce, ShiftReduce

THETA = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COST = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def squared(y):
    return (y * COST).sum((1, 2)).square()


def test_exact_expectations():
    """Independent bits have the Gibbs distribution of the oracle."""
    theta = THETA[:, 0].clone().requires_grad_()
    values = [si.expect(lambda y: (y @ COST[0]).square(), theta, one) for one in (BitsInOrder(), "bits")]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), theta)[0] for v in values))


def test_p_of_four():
    theta = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    f = torch.tensor([1.0, 2.0, 0.0, 4.0])
    value = si.expect(lambda y: (y == 4).to(f) @ f, theta, PlackettLuce(k=1))
    assert value.item() == pytest.approx(1.3)


def test_samples_are_unbiased():
    theta = THETA.clone().requires_grad_()
    exact = si.expect(squared, theta, ShiftReduce())
    (expected,) = torch.autograd.grad(exact.sum(), theta)
    many = 4000
    repeated = THETA.repeat(many, 1, 1).requires_grad_()
    for baseline in ("leave_one_out", "self_critic", "none"):
        estimator = si.get_estimator("score_function", samples=4, baseline=baseline)
        generator = torch.Generator().manual_seed(0)
        value = si.expect(squared, repeated, ShiftReduce(), estimator, generator=generator)
        (gradient,) = torch.autograd.grad(value.sum(), repeated)
        for found, mean in ((value, exact), (gradient, expected)):
            each = found.detach().view(many, 2, *mean.shape[1:])
            error = (each.mean(0) - mean).abs()
            assert (error <= 6 * each.std(0) / many**0.5 + 1e-12).all()


def test_inputs_and_learned_baselines():
    price = torch.rand(2, 4, dtype=torch.float64)
    critic = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(-2)).double()
    estimator = si.get_estimator("score_function", samples=3, baseline=critic)
    theta = THETA[:, 0].clone().requires_grad_()
    value = si.expect(lambda y, p: (y * p).sum(1), theta, BitsInOrder(), estimator, inputs=price)
    value.sum().backward()
    assert value.shape == (2,)
    assert theta.grad is not None
    assert critic[0].weight.grad is not None
    with pytest.raises(si.InvalidInputError, match="needs the argument inputs"):
        si.expect(lambda y: y.sum(1), theta, BitsInOrder(), estimator)


def test_errors():
    with pytest.raises(si.UnsupportedError, match=r"sparsemap does not work for .* exact, score_function"):
        si.expect(squared, THETA, ShiftReduce(), "sparsemap")
    with pytest.raises(si.InvalidInputError, match="keeps a state"):
        si.expect(squared, THETA, ShiftReduce(), "score_function", baseline="moving_average")
    dead = torch.full((2, 3), -torch.inf)
    for estimator in ("score_function", "exact", "unordered_set"):
        with pytest.raises(si.InfeasibleError, match="dead end"):
            si.expect(lambda y: y.sum(1), dead, PlackettLuce(), estimator)
    assert si.expect(squared, THETA[:0], ShiftReduce()).shape == (0,)
