"""Regret, unambiguous regret, relative regret and optimality gap against their definitions over all structures."""

from __future__ import annotations

import math

import pytest
import torch

import enumerators
import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import map_parts
from surrogate_reference import draw, instance, listed

INF = torch.inf


@oracle_examples.parametrize(lambda example: example.relaxed and example.listing is not None)
def test_definitions(example: Example):
    oracle, every = example.oracle(), listed(example)
    theta, true = draw(example, 3, 1)[0], draw(example, 3, 2)[0]
    # few different scores, so that many structures are tied
    tied = map_parts(torch.round, theta)
    lost = si.regret(tied, true, oracle)
    relative = si.relative_regret(tied, true, oracle)
    gap = si.optimality_gap(si.relax(tied, oracle, "map"), true, oracle)
    if oracle.requires_nonpositive_theta:
        with pytest.raises(UnsupportedError, match="takes scores of at most 0"):
            si.unambiguous_regret(tied, true, oracle)
        worst = lost
    else:
        worst = si.unambiguous_regret(tied, true, oracle)
    for b in range(3):
        p, t = instance(tied, b), instance(true, b)
        values = [(enumerators.score(p, y), enumerators.score(t, y)) for y in every.structures]
        most, best = max(v[0] for v in values), max(v[1] for v in values)
        if not oracle.requires_nonpositive_theta:
            expected = best - min(v[1] for v in values if v[0] >= most - 1e-9)
            assert worst[b].item() == pytest.approx(expected, abs=1e-9)
        assert relative[b].item() == pytest.approx(lost[b].item() / abs(best), abs=1e-9)
    torch.testing.assert_close(gap, relative)


def test_unambiguous_regret_of_scores_without_ties_is_the_regret():
    theta, true = torch.randn(2, 20, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        si.unambiguous_regret(theta, true, "assignment"), si.regret(theta, true, "assignment"), atol=1e-5, rtol=0
    )
    for scale in (1e-30, 1e-3, 1e3, 1e30):
        equal = torch.full((1, 5), scale)
        value = si.unambiguous_regret(equal, torch.tensor([[3.0, 1, 4, 1, 5]]), "subset", k=2)
        assert value.item() == 7


def test_extreme_values():
    theta = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert si.relative_regret(theta, torch.tensor([[0.0, -1.0], [0.0, -1.0]]), "categorical").tolist() == [0.0, INF]
    assert si.optimality_gap(torch.tensor([0, 1]), -theta, "categorical").tolist() == [INF, INF]
    true = torch.tensor([[2.0, -INF], [2.0, -INF]])
    assert si.optimality_gap(torch.tensor([0, 1]), true, "categorical").tolist() == [0.0, INF]
    assert si.relative_regret(theta, true, "categorical").tolist() == [0.0, INF]
    closed = torch.tensor([[1.0, -INF, 1.0]])
    assert si.unambiguous_regret(closed, torch.tensor([[3.0, 9.0, 1.0]]), "categorical").item() == 2
    with pytest.raises(InvalidInputError, match="true_theta is −inf at a part that theta allows"):
        si.unambiguous_regret(closed, torch.tensor([[3.0, 9.0, -INF]]), "categorical")


@pytest.mark.parametrize("metric", [si.regret, si.relative_regret, si.unambiguous_regret])
def test_batches_and_wrong_input(metric):
    theta, true = torch.randn(2, 3, 1, 4, generator=torch.Generator().manual_seed(1))
    assert metric(theta, true, "categorical").shape == (3, 1)
    assert metric(theta[0, 0], true[0, 0], "categorical").shape == ()
    assert metric(theta[:0], true[:0], "categorical").shape == (0, 1)
    assert metric(theta.half(), true.half(), "categorical").dtype == torch.float16
    unary, transition = torch.randn(3, 4, 2), torch.randn(2, 2)
    both = metric((unary, transition), (-unary, -transition), "chain", lengths=[4, 1, 2])
    alone = metric((unary[1, :1], transition), (-unary[1, :1], -transition), "chain")
    torch.testing.assert_close(both[1], alone)
    infeasible = torch.tensor([[1.0, 0.0], [-INF, -INF]])
    with pytest.raises(InfeasibleError):
        metric(infeasible, infeasible, "categorical")
    assert metric(infeasible, infeasible, "categorical", on_infeasible="zero").tolist() == [0, 0]
    with pytest.raises(InvalidInputError, match="true_theta must have the form of theta"):
        metric(theta, true[:1], "categorical")
    with pytest.raises(InvalidInputError, match="theta holds NaN"):
        metric(theta * math.nan, true, "categorical")


def test_wrong_decisions():
    true = torch.tensor([[2.0, 0.5, 1.0]])
    with pytest.raises(InvalidInputError, match="y is not a structure of categorical"):
        si.optimality_gap(torch.tensor([[1.0, 1.0, 0.0]]), true, "categorical")
    with pytest.raises(InvalidInputError, match=r"y must have shape \(1, 3\)"):
        si.optimality_gap(torch.zeros(1, 2), true, "categorical")
    with pytest.raises(InvalidInputError, match=r"^true_theta holds NaN"):
        si.optimality_gap(torch.tensor([0]), true * math.nan, "categorical")
    assert si.optimality_gap(torch.tensor([1]), true - INF, "categorical", on_infeasible="zero").item() == 0
