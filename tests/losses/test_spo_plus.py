"""SPO+ and regret against their definitions over all structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import enumerators
import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import as_tuple, map_parts
from surrogate_reference import add, draw, instance, listed, scaled
from toy_oracles import Walk

INF = torch.inf


@oracle_examples.parametrize(lambda example: example.relaxed and example.listing is not None)
def test_loss_gradient_and_regret_are_the_definitions(example: Example) -> None:
    oracle, every = example.oracle(), listed(example)
    theta, true = draw(example, 4, 1)[0], draw(example, 4, 2)[0]
    regrets = si.regret(theta, true, oracle)
    for b in range(4):
        p, t = instance(theta, b), instance(true, b)
        lost = enumerators.score(t, every.best(t)) - enumerators.score(t, every.best(p))
        assert regrets[b].item() == pytest.approx(lost, abs=1e-12)
    leaves = [x.clone().requires_grad_() for x in as_tuple(theta)]
    losses = si.SPOPlusLoss(oracle, reduction="none")(tuple(leaves) if example.is_tuple else leaves[0], true)
    losses.sum().backward()
    for b in range(4):
        p, t = instance(theta, b), instance(true, b)
        tilted = add(scaled(p, 2), t, -1)
        best, y = every.best(t), every.best(tilted)
        if oracle.requires_nonpositive_theta:  # the best structure with additional parts
            y = tuple(np.where(s > 0, 1.0, part) for s, part in zip(tilted, y, strict=True))
        value = enumerators.score(tilted, y) - 2 * enumerators.score(p, best) + enumerators.score(t, best)
        assert losses[b].item() == pytest.approx(value, abs=1e-10)
        assert losses[b].item() >= regrets[b].item() - 1e-10
        for leaf, wanted in zip(leaves, scaled(add(y, best, -1), 2), strict=True):
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad[b], torch.as_tensor(wanted), atol=1e-12, rtol=0)


def test_costs_only() -> None:
    oracle = si.get_oracle("path", graph=[("a", "b"), ("b", "c"), ("a", "c")], source="a", target="c")
    theta, true = -torch.rand(2, 200, 3, dtype=torch.float64)
    loss = si.SPOPlusLoss(oracle, reduction="none")
    leaf = theta.clone().requires_grad_()
    losses = loss(leaf, true)
    # By definition, over the paths and all larger sets of edges.
    every = torch.tensor([[1.0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.float64)
    best = si.relax(true, oracle, "map")
    tilted = 2 * theta - true
    value, y = (tilted @ every.T).max(1)
    torch.testing.assert_close(losses, value - (tilted * best).sum(1))
    losses.sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * (every[y] - best))
    assert bool((losses >= si.regret(theta, true, oracle) - 1e-12).all())
    assert bool((tilted > 0).any())
    assert not loss(true, true).any()
    assert torch.autograd.gradcheck(lambda t: loss(t, true[:3]), theta[:3].clone().requires_grad_())
    middle, ends = loss((theta[:100] + theta[100:]) / 2, true[:100]), loss(theta, true[:100].repeat(2, 1))
    assert bool((middle <= (ends[:100] + ends[100:]) / 2 + 1e-12).all())
    shared = loss(theta[:1].expand(3, 3), true[:3])
    torch.testing.assert_close(shared, torch.cat([loss(theta[:1], t[None]) for t in true[:3]]))


def test_costs_of_parts_that_are_not_binary_are_refused() -> None:
    @dataclass(frozen=True)
    class Costs(si.Oracle):
        event_ndim: ClassVar[int] = 1
        requires_nonpositive_theta: ClassVar[bool] = True  # type: ignore[assignment]

        def argmax(self, theta: Tensor) -> Tensor:
            return 2 * torch.ones_like(theta)

    with pytest.raises(UnsupportedError, match="takes scores of at most 0, but SPO"):
        si.SPOPlusLoss(Costs())(-torch.ones(2, 3), -torch.ones(2, 3))


def test_right_predictions_cost_nothing() -> None:
    true = torch.randn(5, 4, 4, dtype=torch.float64)
    assert si.SPOPlusLoss("assignment")(true, true).item() == 0
    assert not si.regret(3 * true, true, "assignment").any()


def test_convex_in_the_predictions() -> None:
    loss = si.SPOPlusLoss("subset", reduction="none", k=2)
    a, b, true = torch.randn(3, 50, 5, dtype=torch.float64)
    middle, ends = loss((a + b) / 2, true), (loss(a, true) + loss(b, true)) / 2
    assert bool((middle <= ends + 1e-12).all())


def test_reductions_dtypes_and_batches() -> None:
    theta, true = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 3, 5)
    each = si.SPOPlusLoss("categorical", reduction="none")(theta, true)
    assert each.shape == (2, 3)
    torch.testing.assert_close(si.SPOPlusLoss("categorical")(theta, true), each.mean())
    torch.testing.assert_close(si.SPOPlusLoss("categorical", reduction="sum")(theta, true), each.sum())
    half = si.SPOPlusLoss("categorical")(theta.half(), true.double())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), each.mean(), atol=1e-2, rtol=1e-2)
    assert si.SPOPlusLoss("categorical")(torch.zeros(0, 5), torch.zeros(0, 5)).item() == 0
    assert si.regret(torch.zeros(0, 5), torch.zeros(0, 5), "categorical").shape == (0,)
    integers = torch.randint(5, (2, 3, 5))
    assert not si.regret(integers.float(), integers, "categorical").any()


def test_lengths_and_shared_tensors() -> None:
    unary, true = torch.randn(2, 3, 4, 2, dtype=torch.float64)
    transition, other = torch.randn(2, 2, 2, dtype=torch.float64)
    lengths = [4, 2, 1]
    leaf = transition.clone().requires_grad_()
    loss = si.SPOPlusLoss("chain", reduction="none")
    both = loss((unary, leaf), (true, other), lengths=lengths)
    both.sum().backward()
    lost = si.regret((unary, transition), (true, other), "chain", lengths=lengths)
    for b, length in enumerate(lengths):
        alone = (unary[b, :length], transition), (true[b, :length], other)
        torch.testing.assert_close(both[b], loss(*alone))
        torch.testing.assert_close(lost[b], si.regret(*alone, "chain"))
    assert leaf.grad is not None
    assert leaf.grad.shape == (2, 2)
    padded = [t.clone() for t in (unary, true)]
    for t in padded:
        t[1, 2:] = torch.nan
    torch.testing.assert_close(loss((padded[0], leaf), (padded[1], other), lengths=lengths), both)


def test_forbidden_parts() -> None:
    theta = torch.tensor([[1.0, -INF, 0.0]], requires_grad=True)
    true = torch.tensor([[0.0, 9.0, 2.0]])
    loss = si.SPOPlusLoss("categorical")
    for t in (true, torch.tensor([[0.0, -INF, 2.0]])):
        value = loss(theta, t)
        assert value.item() == 4  # 2θ − t = (2, −∞, −2), and the best for t is the last
        (gradient,) = torch.autograd.grad(value, theta)
        assert gradient.tolist() == [[2.0, 0.0, -2.0]]
    with pytest.raises(InvalidInputError, match="true_theta is −inf at a part that theta allows"):
        loss(theta, torch.tensor([[-INF, 0.0, 0.0]]))
    assert si.regret(theta.detach(), torch.tensor([[-INF, 0.0, 0.0]]), "categorical").item() == INF


def test_wrong_input() -> None:
    theta, true = torch.zeros(2, 3), torch.zeros(2, 3)
    loss = si.SPOPlusLoss("categorical")
    with pytest.raises(InvalidInputError, match=r"true_theta must have the form of theta, .*\(2, 3\).*got .*\(3, 3\)"):
        loss(theta, torch.zeros(3, 3))
    with pytest.raises(InvalidInputError, match="true_theta must have the form of theta"):
        loss(theta, (true,))
    with pytest.raises(InvalidInputError, match=r"true_theta must have the form of theta, .* got .*'int'"):
        si.regret(theta, 3, "categorical")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"^true_theta holds NaN at batch index 1"):
        loss(theta, torch.tensor([[0.0, 0, 0], [0, torch.nan, 0]]))
    with pytest.raises(InfeasibleError) as error:
        loss(torch.tensor([[0.0, 0.0, 0.0], [-INF, -INF, -INF]]), true)
    assert error.value.batch_index == 1
    with pytest.raises(InfeasibleError):
        si.regret(theta, torch.full((2, 3), -INF), "categorical")
    with pytest.raises(InvalidInputError, match='reduction must be "mean", "sum" or "none"'):
        si.SPOPlusLoss("categorical", reduction="max")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no option 'k'"):
        si.SPOPlusLoss("categorical", k=2)


def test_inputs_are_left_alone_and_own_oracles_do() -> None:
    theta = (torch.randn(3, 3, 2), torch.randn(3, 2, 2))
    true = map_parts(torch.randn_like, theta)
    before = [t.clone() for t in (*theta, *as_tuple(true))]
    si.SPOPlusLoss(Walk())(theta, true, lengths=[3, 1, 2])
    si.regret(theta, true, Walk(), lengths=[3, 1, 2])
    assert all(torch.equal(a, b) for a, b in zip(before, (*theta, *as_tuple(true)), strict=True))
    assert repr(si.SPOPlusLoss(Walk())) == "SPOPlusLoss(oracle=Walk(), reduction='mean')"
