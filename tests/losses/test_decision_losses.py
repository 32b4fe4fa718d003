"""Losses of decisions against their definitions over all structures: perturbation gradient, ranking, contrastive, cone,
imitation.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch.autograd import gradcheck, gradgradcheck

import enumerators
import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import as_tuple, map_parts
from surrogate_reference import add, draw, flat, identity, instance, listed, scaled
from toy_oracles import Walk

INF = torch.inf
THETA = torch.tensor([[1.0, 2.0, 0.0]])
TRUE = torch.tensor([[2.0, 0.5, 1.0]])


def gradients(loss, theta, *args):
    """The losses of instances, and their gradients."""
    leaves = map_parts(lambda t: t.clone().requires_grad_(), theta)
    losses = loss(leaves, *args)
    losses.sum().backward()
    return losses.detach(), [t.grad for t in as_tuple(leaves)]


def assert_rows(found, b, wanted):
    for g, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(g[b], torch.as_tensor(w), atol=1e-9, rtol=0)


SOME = [
    e
    for e in oracle_examples.one_for_each(lambda o: type(o), lambda e: e.relaxed and e.listing is not None)
    if not e.oracle().requires_nonpositive_theta
]
several = pytest.mark.parametrize("example", SOME, ids=str)


# ----------------------------------------------------------------------------- perturbation gradients


def test_perturbation_gradient_by_hand():
    """V(θ + t) = 3 at part 0 and V(θ − t) = 1.5 at part 1: the decisions have an estimated value of 0.75."""
    loss, (gradient,) = gradients(si.PerturbationGradientLoss("categorical", h=1.0), THETA, TRUE)
    assert -loss.item() == 0.75
    assert (-gradient).tolist() == [[0.5, -0.5, 0.0]]
    assert si.regret(THETA, TRUE, "categorical").tolist() == [1.5]
    loss, (gradient,) = gradients(si.PerturbationGradientLoss("categorical", h=1.0, difference="backward"), THETA, TRUE)
    assert loss.item() == 1.5 - 2
    assert not gradient.any()


@several
def test_perturbation_gradient_is_its_definition(example: Example):
    oracle, every = example.oracle(), listed(example)
    theta, true = draw(example, 3, 1)[0], draw(example, 3, 2)[0]
    h = 0.7
    losses, found = gradients(si.PerturbationGradientLoss(oracle, h=h, reduction="none"), theta, true)
    for b in range(3):
        p, t = instance(theta, b), instance(true, b)
        high, low = add(p, t, h), add(p, t, -h)
        above, below = every.best(high), every.best(low)
        value = (enumerators.score(high, above) - enumerators.score(low, below)) / (2 * h)
        assert losses[b].item() == pytest.approx(-value, abs=1e-10)
        assert enumerators.score(t, below) - 1e-10 <= value <= enumerators.score(t, above) + 1e-10
        assert_rows(found, b, scaled(add(below, above, -1), 1 / (2 * h)))


def test_small_steps_give_minus_the_value_of_the_decision():
    theta, true = torch.randn(2, 20, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = si.PerturbationGradientLoss("assignment", h=1e-6, reduction="none")
    value = (true * si.relax(theta, "assignment", "map")).sum((1, 2))
    torch.testing.assert_close(loss(theta, true), -value)


# ----------------------------------------------------------------------------- ranking


def test_ranking_by_hand():
    pool = torch.eye(3)
    expected = {
        "pointwise": ((1 + 1.5**2 + 1) / 3, [-2 / 3, 1.0, -2 / 3]),
        "pairwise": (0.5, [-0.5, 0.5, 0.0]),
    }
    shares, q = torch.softmax(THETA[0], 0), torch.softmax(TRUE[0], 0)
    expected["listwise"] = (-(q * shares.log()).sum().item(), (shares - q).tolist())
    for kind, (value, slope) in expected.items():
        loss, (gradient,) = gradients(si.RankingLoss("categorical", kind, pool=pool), THETA, TRUE)
        assert loss.item() == pytest.approx(value)
        assert gradient[0].tolist() == pytest.approx(slope)
    loss = si.RankingLoss("categorical", "pairwise", pool=pool, margin=2.0)
    assert loss(THETA, TRUE).item() == pytest.approx((3 + 1) / 2)


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
@pytest.mark.parametrize("example", SOME[:6], ids=str)
def test_ranking_is_its_definition(example: Example, kind: str):
    oracle, every = example.oracle(), listed(example)
    tensors = tuple(torch.as_tensor(np.stack(column)) for column in zip(*every.structures, strict=True))
    pool = tensors if example.is_tuple else tensors[0]
    theta, true = draw(example, 2, 1)[0], draw(example, 2, 2)[0]
    loss = si.RankingLoss(oracle, kind, pool=pool, margin=0.3, temperature=2.0, reduction="none").eval()
    losses = loss(theta, true)
    for b in range(2):
        p, q = (np.array([enumerators.score(instance(s, b), y) for y in every.structures]) for s in (theta, true))
        if kind == "pointwise":
            value = ((p - q) ** 2).mean()
        elif kind == "pairwise":
            best = q.argmax()
            value = np.maximum(0, 0.3 + p - p[best])[q < q[best]].mean() if (q < q[best]).any() else 0.0
        else:
            shares = np.exp(q / 2 - q.max() / 2)
            value = -(shares / shares.sum() * (p / 2 - np.logaddexp.reduce(p / 2))).sum()
        assert losses[b].item() == pytest.approx(value, abs=1e-8)


# ----------------------------------------------------------------------------- contrastive


def test_contrastive_by_hand():
    pool, gold = torch.eye(3)[1:], torch.tensor([0])
    loss, (gradient,) = gradients(si.ContrastiveLoss("categorical", "nce", pool=pool), THETA, gold)
    # the gold structure has joined the pool
    assert loss.item() == pytest.approx((0 + 1 - 1) / 3, abs=1e-7)
    assert gradient[0].tolist() == pytest.approx([1 / 3 - 1, 1 / 3, 1 / 3])
    loss, (gradient,) = gradients(si.ContrastiveLoss("categorical", "map", pool=pool), THETA, gold)
    assert loss.item() == 1
    assert gradient.tolist() == [[-1.0, 1.0, 0.0]]
    without_gold = si.ContrastiveLoss("categorical", "nce", pool=pool).eval()
    assert without_gold(THETA, gold).item() == 0.0


def test_contrastive_map_over_all_structures_is_the_perceptron():
    oracle = si.get_oracle("assignment")
    theta = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gold = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]])
    pool = oracle.enumerate((3, 3))
    ours = gradients(si.ContrastiveLoss(oracle, "map", pool=pool), theta, gold)
    perceptron = gradients(si.FenchelYoungLoss(oracle, "map"), theta, gold)
    torch.testing.assert_close(ours, perceptron)


def test_pools_grow_by_schedule_and_keep_their_state():
    g = torch.Generator().manual_seed(0)
    gold = torch.tensor([0, 1])

    def scores():
        return torch.randn(2, 8, generator=g)

    loss = si.ContrastiveLoss("subset", k=2, solve_ratio=0.5, capacity=20)
    structures = si.relax(scores(), "subset", "map", k=2)
    sizes = []
    for _ in range(4):
        theta = torch.rand(2, 8, generator=g)
        loss(theta, structures)
        sizes.append(len(loss.pool))
    assert sizes[0] > 2  # 2 gold structures, and the best structures of the first call
    assert sizes[1] == sizes[0]
    assert sizes[2] > sizes[1]
    assert sizes[3] == sizes[2]
    other = si.ContrastiveLoss("subset", k=2, solve_ratio=0.5, capacity=20)
    other.load_state_dict(loss.state_dict())
    theta = scores()
    assert torch.equal(other.eval()(theta, structures), loss.eval()(theta, structures))
    assert len(loss.pool) == sizes[3]
    small = si.ContrastiveLoss("categorical", capacity=2, solve_ratio=0.0)
    small(torch.zeros(2, 4), gold)
    small(torch.zeros(2, 4), gold + 2)
    assert small.pool.memory.structures.tolist() == torch.eye(4)[2:].tolist()


@pytest.mark.parametrize(
    "loss",
    [
        si.ContrastiveLoss("chain", pool=None),
        si.RankingLoss("chain", "listwise"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_pools_of_several_tensors_and_one_set_of_structures(loss):
    unary, transition = torch.randn(3, 4, 2), torch.randn(2, 2)
    target = torch.zeros(3, 4, dtype=torch.long) if isinstance(loss, si.ContrastiveLoss) else (-unary, -transition)
    leaf = transition.clone().requires_grad_()
    loss((unary, leaf), target).backward()
    assert leaf.grad.shape == (2, 2)
    with pytest.raises(UnsupportedError, match=r"a pool of structures needs one set Y .* instance data lengths"):
        loss((unary, transition), target, lengths=[4, 2, 3])


def test_pools_leave_out_forbidden_structures():
    theta = torch.tensor([[1.0, -INF, 0.0], [1.0, 3.0, 0.0]])
    true = torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 1.0]])
    for kind in ("pointwise", "pairwise", "listwise"):
        loss = si.RankingLoss("categorical", kind, pool=torch.eye(3), reduction="none")
        small = si.RankingLoss("categorical", kind, pool=torch.eye(2), reduction="none")
        losses, (gradient,) = gradients(loss, theta, true)
        assert losses[0].item() == pytest.approx(small(theta[:1, ::2], true[:1, ::2]).item())
        assert gradient[0, 1] == 0
        assert bool(gradient.isfinite().all())
        only = si.RankingLoss("categorical", kind, pool=torch.eye(3)[1:2]).eval()
        losses, (gradient,) = gradients(only, theta[:1], true[:1])
        assert losses.item() == 0
        assert not gradient.any()
    for kind in ("nce", "map"):
        losses, (gradient,) = gradients(
            si.ContrastiveLoss("categorical", kind, pool=torch.eye(3), reduction="none"), theta, torch.tensor([2, 2])
        )
        assert losses.tolist() == pytest.approx([0.5, 4 / 3] if kind == "nce" else [1.0, 3.0])
        assert bool(gradient.isfinite().all())
        with pytest.raises(
            InvalidInputError, match=r"y: the gold structure at batch index 0 uses a part of score −inf"
        ):
            si.ContrastiveLoss("categorical", kind)(theta, torch.tensor([1, 2]))


# ----------------------------------------------------------------------------- cones


EXACT = {"margin": 0.0, "max_iter": None}


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


# ----------------------------------------------------------------------------- imitation


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


# ----------------------------------------------------------------------------- all losses

TARGET = torch.tensor([[2.0, 0.5, 1.0], [-1.0, 0.3, 1.1]], dtype=torch.float64)
GOLD = torch.tensor([0, 2])
LOSSES = {
    "perturbation gradient": (lambda **o: si.PerturbationGradientLoss("categorical", h=1.3, **o), TARGET),
    **{
        kind: (lambda kind=kind, **o: si.RankingLoss("categorical", kind, pool=torch.eye(3), **o), TARGET)
        for kind in ("pointwise", "pairwise", "listwise")
    },
    **{
        kind: (lambda kind=kind, **o: si.ContrastiveLoss("categorical", kind, pool=torch.eye(3), **o), GOLD)
        for kind in ("nce", "map")
    },
    "cone": (lambda **o: si.ConeLoss("categorical", **EXACT, **o), GOLD),
    "cone with a margin": (lambda **o: si.ConeLoss("categorical", **o), GOLD),
}
each = pytest.mark.parametrize("name", LOSSES)


@each
def test_derivatives(name):
    make, target = LOSSES[name]
    theta = torch.tensor([[1.0, 2.0, 0.3], [0.4, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    loss = make()
    assert gradcheck(lambda t: loss(t, target), theta)
    assert gradgradcheck(lambda t: loss(t, target), theta)


@each
def test_reductions_dtypes_and_batches(name):
    make, target = LOSSES[name]
    theta = torch.tensor([[1.0, 2.0, 0.3], [0.4, -0.2, 0.1]])
    some = make(reduction="none")(theta, target)
    assert some.shape == (2,)
    torch.testing.assert_close(make()(theta, target), some.mean())
    torch.testing.assert_close(make(reduction="sum")(theta, target), some.sum())
    (each,) = gradients(make(reduction="none"), theta, target)[1]
    for reduction, count in (("mean", 2), ("sum", 1)):
        (gradient,) = gradients(make(reduction=reduction), theta, target)[1]
        torch.testing.assert_close(gradient, each / count)
    batches = make(reduction="none")(theta[:, None], target[:, None])
    torch.testing.assert_close(batches, some[:, None])
    columns = torch.stack([theta, theta], -1)[..., 0]
    torch.testing.assert_close(make(reduction="none")(columns, target), some)
    low = make()(theta.half(), target)
    assert low.dtype == torch.float16
    torch.testing.assert_close(low.float(), some.mean(), atol=1e-2, rtol=1e-2)
    large = make(reduction="none")(1000 * theta, target)
    assert bool(large.isfinite().all())
    assert make()(theta[:0], target[:0]).item() == 0


@each
def test_infeasible_instances_and_wrong_input(name):
    make, target = LOSSES[name]
    theta = torch.tensor([[1.0, 2.0, 0.3], [-INF, -INF, -INF]])
    with pytest.raises((InfeasibleError, InvalidInputError), match="batch index 1"):
        make()(theta, target)
    losses, (gradient,) = gradients(make(reduction="none", on_infeasible="zero"), theta, target)
    torch.testing.assert_close(losses[0], make()(theta[:1], target[:1]))
    assert losses[1] == 0
    assert not gradient[1].any()
    with pytest.raises(InvalidInputError, match=r"theta holds NaN at batch index 0"):
        make()(theta * torch.nan, target)
    with pytest.raises((InvalidInputError, UnsupportedError)):
        make()(theta[:1], target)
    with pytest.raises(InvalidInputError, match="reduction must be"):
        make(reduction="max")
    with pytest.raises(InvalidInputError, match="on_infeasible must be"):
        make(on_infeasible="skip")
    with pytest.raises(TypeError, match="has no option 'k'"):
        make(k=3)
    assert type(make()).__name__ in repr(make())


def test_wrong_options():
    for make, message in (
        (lambda: si.PerturbationGradientLoss("categorical", h=0.0), "h must be a finite number above 0"),
        (lambda: si.PerturbationGradientLoss("categorical", difference="forward"), "difference must be"),  # type: ignore[arg-type]
        (lambda: si.RankingLoss("categorical", "nce"), 'kind must be "pointwise"'),  # type: ignore[arg-type]
        (lambda: si.RankingLoss("categorical", margin=-1.0), "margin must be"),
        (lambda: si.RankingLoss("categorical", temperature=0.0), "temperature must be"),
        (lambda: si.RankingLoss("categorical", solve_ratio=1.5), "solve_ratio must be a number between 0 and 1"),
        (lambda: si.ContrastiveLoss("categorical", "pairwise"), 'kind must be "nce" or "map"'),  # type: ignore[arg-type]
        (lambda: si.ContrastiveLoss("categorical", capacity=0), "capacity must be an integer of at least 1"),
        (lambda: si.ContrastiveLoss("categorical", pool=torch.eye(3).long()), "pool must hold structures"),
        (lambda: si.ContrastiveLoss("categorical", pool=torch.full((1, 3), INF)), "pool must hold structures"),
        (lambda: si.ConeLoss("categorical", margin=-1.0), "margin must be a number of at least 0"),
        (lambda: si.ConeLoss("categorical", max_iter=0), "max_iter must be an integer of at least 1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            make()
    with pytest.raises(InvalidInputError, match=r"the structures of a pool have one shape, here \[\(4,\)\]"):
        si.ContrastiveLoss("categorical", pool=torch.eye(4))(THETA, torch.tensor([0]))
    with pytest.raises(InvalidInputError, match="the pool has no structures"):
        si.RankingLoss("categorical", solve_ratio=0.0)(THETA, TRUE)
    grid = {"graph": [(0, 1), (1, 2)], "source": 0, "target": 2}
    for make in (si.PerturbationGradientLoss, si.ConeLoss):
        with pytest.raises(UnsupportedError, match="takes scores of at most 0"):
            make("path", **grid)


@pytest.mark.parametrize("name", ["ranking", "contrastive"])
def test_schedule_of_a_pool_counts_a_call_once_beside_infeasible_instances(name):
    loss = si.RankingLoss if name == "ranking" else si.ContrastiveLoss
    loss = loss("categorical", solve_ratio=0.5, reduction="none", on_infeasible="zero")
    theta = torch.tensor([[1.0, 2.0, 0.0], [-torch.inf] * 3])
    target = torch.tensor([[1.0, 0.0, 3.0], [-torch.inf] * 3]) if name == "ranking" else torch.tensor([2, 0])
    assert loss(theta, target)[1] == 0
    assert loss.pool.memory.structures.argmax(1).sort().values.tolist() == [1, 2]
    assert loss.pool.calls == 1


@pytest.mark.parametrize("name", ["ranking", "contrastive"])
def test_empty_batch_needs_no_pool_and_takes_no_turn_of_the_schedule(name):
    loss = si.RankingLoss("categorical") if name == "ranking" else si.ContrastiveLoss("categorical", "map")
    targets = [torch.zeros(n, 3) if name == "ranking" else torch.zeros(n, dtype=torch.int64) for n in (0, 1)]
    assert loss(torch.zeros(0, 3, requires_grad=True), targets[0]) == 0
    assert loss(torch.zeros(1, 3), targets[1]).isfinite()
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"pool.other\""):
        loss.load_state_dict(loss.state_dict() | {"pool.other": torch.zeros(1)})


def test_functions_of_the_imitation_loss_get_no_empty_batch():
    def never(*_):
        raise AssertionError

    loss = si.ImitationLoss("categorical", never, never)
    assert loss(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    assert si.ConeLoss("categorical", **EXACT)(torch.zeros(3), torch.tensor(0)) == 1


def test_pool_remembers_the_best_structures_of_true_scores():
    class Counting(Walk):
        sizes: ClassVar[list[int]] = []

        def argmax(self, theta):
            self.sizes.append(len(theta[0]))
            return super().argmax(theta)

    g = torch.Generator().manual_seed(0)
    theta, true = ((torch.randn(3, 3, 2, generator=g), torch.randn(3, 2, 2, generator=g)) for _ in range(2))
    oracle = Counting()
    loss = si.RankingLoss(oracle, solve_ratio=1.0)
    values = [loss(theta, true).item() for _ in range(2)]
    assert values[0] == values[1]
    assert oracle.sizes == [6, 3]
    other = map_parts(lambda t: torch.cat([t[:1], -t[1:]]), true)
    loss(theta, other)
    assert oracle.sizes[2:] == [3, 2]
    loss.oracle = Counting()
    loss(theta, true)
    assert oracle.sizes[4:] == [6]
    # A structure that the pool has replaced is found again.
    oracle, loss = Counting(), si.RankingLoss(Counting(), solve_ratio=1.0, capacity=2)
    loss.oracle = oracle
    one = map_parts(lambda t: t[:1], theta), map_parts(lambda t: t[:1], true)
    loss(*one)
    for other in (map_parts(lambda t: -t[:1], true), one[0]):
        loss.pool.memory.add(Walk().argmax(other))
    loss(*one)
    assert oracle.sizes[5:] == [2, 2]


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_small_pools_keep_the_best_structures_of_true_scores(capacity):
    size = min(capacity, 2)
    loss = si.RankingLoss("subset", k=2, capacity=capacity, solve_ratio=1.0)
    true = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))
    best = si.relax(true, "subset", "map", k=2)
    for seed in range(4):
        loss(torch.randn(size, 6, generator=torch.Generator().manual_seed(seed)), true)
        assert (best[:, None] == loss.pool.memory.structures).all(2).any(1).all()


def test_memory_of_remembered_true_scores_does_not_grow_with_their_structures():
    loss = si.RankingLoss("bits", capacity=16, solve_ratio=1.0)
    for seed in range(20):
        scores = torch.randn(2, 8, 4000, generator=torch.Generator().manual_seed(seed))
        loss(*scores)
    keys = [key for pair in loss.pool._solved[1].items() for key in pair]
    assert len(keys) == 320
    assert sum(map(len, keys)) <= 16 * 320


def test_second_derivatives_are_those_of_the_pool_of_the_forward_pass():
    theta = THETA.double().requires_grad_()
    loss = si.RankingLoss("categorical", "pointwise", pool=torch.eye(3)[:2], capacity=2, solve_ratio=1.0)
    (gradient,) = torch.autograd.grad(loss.eval()(theta, TRUE.double()), theta, create_graph=True)
    loss.train()(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[0.0, 0.0, 9.0]]))
    assert loss.pool.memory.structures[:, 2].any()  # the pool has replaced a structure
    # The mean of (p - q)² over two structures of one part has the Hessian 1 at both parts.
    (product,) = torch.autograd.grad(gradient, theta, torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64))
    assert product.tolist() == [[2.0, 3.0, 0.0]]


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
def test_ranking_has_gradients_for_the_true_scores(kind):
    loss = si.RankingLoss("subset", kind, k=2, pool=torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]))
    theta, true = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    loss.eval()
    assert gradcheck(loss, (theta.requires_grad_(), true.requires_grad_()))
    with torch.no_grad():
        alone = loss(theta, true)
    torch.testing.assert_close(loss(theta, true), alone, rtol=1e-14, atol=0)
