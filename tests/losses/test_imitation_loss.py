"""The imitation loss with linear and other costs, and wrong functions."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

import structinf as si
from decision_loss_examples import EXACT, gradients
from structinf import InvalidInputError


def test_imitation_with_a_linear_cost_is_the_margin_loss():
    oracle = si.get_oracle("assignment")
    every = oracle.enumerate((3, 3))
    theta = torch.randn(5, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gold = si.relax(-theta, oracle, "map")

    def delta(chosen, y):
        return 3 - (chosen * y).sum((-1, -2))

    def maximiser(bound, scores, y):
        assert bound is oracle
        value = delta(every, y[:, None]) + (scores[:, None] * every).sum((-1, -2))
        return every[value.argmax(1)]

    for alpha in (1.0, 0.5):
        ours = gradients(si.ImitationLoss(oracle, delta, maximiser, alpha=alpha, reduction="none"), theta, gold)
        hinge = si.FenchelYoungLoss(oracle, "map", cost=lambda y: -y, reduction="none")
        value, (slope,) = gradients(hinge, alpha * theta, gold)
        torch.testing.assert_close(ours[0], value)
        torch.testing.assert_close(ours[1][0], alpha * slope)


def test_imitation_with_a_cost_that_is_not_linear():
    every = si.get_oracle("bits").enumerate((4,))
    theta = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gold = (torch.randn(6, 4, generator=torch.Generator().manual_seed(4)) > 0).double()

    def delta(chosen, y):
        return (chosen.sum(-1) - y.sum(-1)).square()

    def value(scores, y):
        return delta(every, y[:, None]) + scores @ every.T

    loss = si.ImitationLoss("bits", delta, lambda _, s, y: every[value(s, y).argmax(1)], reduction="none")
    expected = value(theta, gold).amax(1) - (theta * gold).sum(1)
    torch.testing.assert_close(loss(theta, gold), expected)
    assert gradcheck(loss, (theta.requires_grad_(), gold))
    assert "delta=..." in repr(loss)


def test_imitation_refuses_wrong_functions():
    def delta(chosen, y):
        return (chosen - y).abs().sum(-1)

    theta, gold = torch.tensor([[1.0, 2.0], [-3.0, 1.0]]), torch.ones(2, 2)
    for maximiser, message in (
        (lambda o, t, y: y[:, :1], r"maximiser must return structures of shapes \[\(2, 2\)\], got \[\(2, 1\)\]"),
        (lambda o, t, y: None, "maximiser must return structures of shapes .*NoneType"),
        (lambda o, t, y: 0 * y, "maximiser: at batch index 0 its structure has a lower value"),
        (lambda o, t, y: torch.nan * y, "maximiser: at batch index 0 its structure has a lower value"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.ImitationLoss("bits", delta, maximiser)(theta, gold)
    for wrong in (lambda a, b: 3.0, lambda a, b: torch.zeros(3)):
        with pytest.raises(InvalidInputError, match=r"delta\(y', y\) must return a tensor of shape \(2,\)"):
            si.ImitationLoss("bits", wrong, lambda o, t, y: y)(theta, gold)
    with pytest.raises(TypeError, match="delta must be a function"):
        si.ImitationLoss("bits", "hamming", lambda o, t, y: y)  # type: ignore[arg-type]


def test_functions_of_the_imitation_loss_get_no_empty_batch():
    def never(*_):
        raise AssertionError

    loss = si.ImitationLoss("categorical", never, never)
    assert loss(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    assert si.ConeLoss("categorical", **EXACT)(torch.zeros(3), torch.tensor(0)) == 1
