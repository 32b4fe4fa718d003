"""The cone loss against its definition over all structures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

import structinf as si
from decision_loss_examples import EXACT, INF, gradients, several
from oracle_example import Example
from structinf import UnsupportedError
from structinf.parts import map_parts
from surrogate_reference import add, draw, flat, identity, instance, listed
from toy_oracles import Walk


def reference_cone(target, y, structures):
    """P(target) by non-negative least squares over all directions."""
    directions = np.stack([flat(add(s, y, -1)) for s in structures], 1)
    return target - directions @ nnls(directions, target, maxiter=10_000)[0]


@several
def test_cone_loss_is_its_definition(example: Example):
    oracle, every = example.oracle(), listed(example)
    theta, scores = draw(example, 3, 3)[0], draw(example, 3, 4)[0]
    gold = si.relax(map_parts(torch.add, scores, theta), oracle, "map")
    losses, found = gradients(si.ConeLoss(oracle, reduction="none", **EXACT), theta, gold)
    for b in range(3):
        p, y = identity(every, (), instance(theta, b)), instance(gold, b)
        target = flat(p)
        projected = reference_cone(target, y, every.structures)
        size, norm = np.linalg.norm(projected), np.linalg.norm(target)
        assert losses[b].item() == pytest.approx(1 - size / norm, abs=1e-7)
        slope = size * target / norm**3 - (projected / (size * norm) if size > 1e-9 else 0)
        ours = np.concatenate([g[b].ravel().numpy() for g in found])
        if size > 1e-6:
            np.testing.assert_allclose(ours, slope, atol=1e-5)


def test_cone_loss_properties():
    theta = torch.randn(6, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    best = si.relax(theta, "assignment", "map")
    loss = si.ConeLoss("assignment", reduction="none", **EXACT)
    assert loss(theta, best).abs().max() < 1e-12
    other = loss(theta, best.flip(1))
    assert bool(((other > 0) & (other <= 1)).all())
    torch.testing.assert_close(loss(1e3 * theta, best.flip(1)), other)
    torch.testing.assert_close(loss(1e-200 * theta, best.flip(1)), other)
    assert loss(torch.zeros(1, 2, 2), torch.eye(2)[None]).tolist() == [1.0]
    half = si.ConeLoss("assignment", **EXACT)(theta.half(), best.flip(1))
    assert half.dtype == torch.float16
    assert half.item() == pytest.approx(other.mean().item(), abs=2e-3)


def unit(parts):
    return flat(parts) / np.linalg.norm(flat(parts))


@several
def test_cone_loss_with_a_margin_is_its_definition(example: Example):
    """½ ‖û − T‖² for the projection T onto ma + N(y), and its gradient by the chain rule."""
    oracle, every = example.oracle(), listed(example)
    theta, scores = draw(example, 3, 3)[0], draw(example, 3, 4)[0]
    gold = si.relax(map_parts(torch.add, scores, theta), oracle, "map")
    losses, found = gradients(si.ConeLoss(oracle, margin=0.4, max_iter=None, reduction="none"), theta, gold)
    few = si.ConeLoss(oracle, margin=0.4, max_iter=2, reduction="none")(theta, gold)
    assert bool((few <= losses + 1e-9).all())
    assert bool(((few > 0) == (losses > 0)).all())
    costs = map_parts(lambda c, y: c.expand_as(y), oracle.hamming_cost(gold), gold)
    for b in range(3):
        p, cost = (identity(every, (), instance(parts, b)) for parts in (theta, costs))
        v = unit(p) + 0.4 * unit(cost)
        rest = v - reference_cone(v, instance(gold, b), every.structures)
        assert losses[b].item() == pytest.approx(rest @ rest / 2, abs=1e-7)
        slope = (rest - (rest @ unit(p)) * unit(p)) / np.linalg.norm(flat(p))
        np.testing.assert_allclose(np.concatenate([g[b].ravel().numpy() for g in found]), slope, atol=1e-5)


def test_rounds_of_the_cone_loss():
    """Each round projects onto the scores for which y is best among the structures found so far."""
    oracle = si.get_oracle("assignment")
    theta = torch.randn(4, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gold = si.relax(-theta, oracle, "map")
    losses = [si.ConeLoss(oracle, max_iter=rounds, reduction="none")(theta, gold) for rounds in range(1, 5)]
    for b in range(4):
        y, seen = instance(gold, b), []
        rest = v = unit(instance(theta, b)) + 0.6 * unit(instance(oracle.hamming_cost(gold), b))
        for loss in losses:
            seen.append(instance(si.relax(torch.from_numpy(rest).view(1, 4, 4), oracle, "map"), 0))
            rest = reference_cone(v, y, seen)
            assert loss[b].item() == pytest.approx(((v - rest) ** 2).sum() / 2, abs=1e-9)
        step = flat(add(seen[0], y, -1))
        assert losses[0][b].item() == pytest.approx((v @ step) ** 2 / (step @ step) / 2, abs=1e-9)


def test_cone_loss_of_an_empty_gold_structure_and_without_a_hamming_cost():
    theta = torch.tensor([[1.0, -2.0]])
    # T is û with each score at most −m / √2.
    expected = 0.5 * (theta[0] / math.sqrt(5) + 0.6 / math.sqrt(2)).clamp(min=0).square().sum()
    torch.testing.assert_close(si.ConeLoss("bits")(theta, torch.zeros(1, 2)), expected)

    class NoCost(Walk):
        def hamming_cost(self, y):
            raise UnsupportedError("no cost")

    walk = torch.randn(2, 3, 2), torch.randn(2, 2, 2)
    gold = Walk().argmax(walk)
    assert si.ConeLoss(NoCost(), margin=0.0)(walk, gold) == pytest.approx(0, abs=1e-6)
    with pytest.raises(UnsupportedError, match=r"a margin above 0 needs a Hamming cost, but .* has none; set margin=0"):
        si.ConeLoss(NoCost())(walk, gold)


@pytest.mark.parametrize("options", [{}, EXACT], ids=["margin", "exact"])
def test_cone_loss_with_forbidden_parts_and_lengths(options):
    theta = torch.tensor([[1.0, -INF, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    without = torch.tensor([[1.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    loss = si.ConeLoss("categorical", **options)
    value, expected = loss(theta, torch.tensor([0])), loss(without, torch.tensor([0]))
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(theta.grad[:, [0, 2, 3]], without.grad)
    assert theta.grad[0, 1] == 0
    unary, transition = torch.randn(2, 4, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    labels = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]])
    each = si.ConeLoss("chain", reduction="none", **options)
    both = each((unary, transition), labels, lengths=[4, 2])
    torch.testing.assert_close(both[1], each((unary[1, :2], transition), labels[1, :2]))
