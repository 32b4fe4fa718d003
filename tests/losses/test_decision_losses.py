"""The perturbation gradient against its definition, and derivatives and errors of all losses of decisions."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import enumerators
import structinf as si
from decision_loss_examples import EXACT, INF, THETA, TRUE, assert_rows, gradients, several
from oracle_example import Example
from structinf import InfeasibleError, InvalidInputError, UnsupportedError
from surrogate_reference import add, draw, instance, listed, scaled

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
