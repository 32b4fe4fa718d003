"""Infeasible instances with ``on_infeasible="zero"``: each other instance has the result that it has alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import oracle_examples
import structinf as si
from oracle_examples import Example
from structinf.parts import Parts, as_tuple, map_parts

INFEASIBLE = 1
"""The batch index of the infeasible instance."""


def draw(example: Example, dtype: torch.dtype = torch.float64) -> Parts:
    """Random scores of three instances, −inf for all parts of the infeasible instance."""
    return map_parts(lambda t: t.index_fill(0, torch.tensor([INFEASIBLE]), -torch.inf), example.draw(3, dtype))


def alone(theta: Parts, b: int) -> Parts:
    return map_parts(lambda t: t[b : b + 1], theta)


def leaves(theta: Parts) -> Parts:
    return map_parts(lambda t: t.detach().clone().requires_grad_(), theta)


def can_be_infeasible(example: Example) -> bool:
    try:
        si.relax(alone(draw(example), INFEASIBLE), example.oracle(), "map")
    except si.InfeasibleError:
        return True
    return False


EXAMPLES = [e for e in oracle_examples.one_for_each(lambda oracle: type(oracle)) if can_be_infeasible(e)]


def pairs(wanted: Callable[[si.Relaxation], bool]) -> pytest.MarkDecorator:
    found = [
        pytest.param(example, relaxation, id=f"{example}-{relaxation.name}")
        for relaxation in map(si.get_relaxation, si.list_relaxations())
        if wanted(relaxation)
        for example in EXAMPLES
        if relaxation.unsupported_reason(example.oracle()) is None
    ]
    return pytest.mark.parametrize(("example", "relaxation"), found)


def assert_equal(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.matrix
@pairs(lambda relaxation: not relaxation.is_stochastic)
def test_each_instance_has_its_own_solution(example: Example, relaxation: si.Relaxation) -> None:
    dtype = (torch.float32, torch.float64)[len(f"{example}-{relaxation.name}") % 2]
    theta = leaves(draw(example, dtype))
    with pytest.raises(si.InfeasibleError):
        si.infer(theta, example.oracle(), relaxation)
    found = si.infer(theta, example.oracle(), relaxation, on_infeasible="zero")
    assert found.infeasible is not None
    assert found.infeasible.tolist() == [False, True, False]
    assert found.value[INFEASIBLE] == -math.inf
    assert not any(m[INFEASIBLE].any() for m in as_tuple(found.mean))
    torch.stack([m.square().sum() for m in as_tuple(found.mean)]).sum().backward()
    for b in (0, 2):
        own = leaves(alone(theta, b))
        expected = si.infer(own, example.oracle(), relaxation)
        torch.stack([m.square().sum() for m in as_tuple(expected.mean)]).sum().backward()
        assert_equal(found.value[b], expected.value[0])
        for m, e, t, o in zip(*map(as_tuple, (found.mean, expected.mean, theta, own)), strict=True):
            assert_equal(m[b], e[0])
            if t.grad is not None and o.grad is not None:
                assert_equal(t.grad[b], o.grad[0])
                assert not t.grad[INFEASIBLE].any()


def test_the_option_is_named_only_where_it_exists():
    theta = torch.full((1, 3), -torch.inf)
    for call in (
        lambda: si.relax(theta, "categorical", "map"),
        lambda: si.expect(lambda y: y.sum(1), theta, "categorical", "exact"),
    ):
        with pytest.raises(si.InfeasibleError, match=r'; on_infeasible="zero" leaves out such instances$'):
            call()
    with pytest.raises(si.InfeasibleError) as error:
        si.get_oracle("categorical").argmax(theta)
    assert "on_infeasible" not in str(error.value)


@pytest.mark.matrix
@pairs(lambda relaxation: relaxation.is_stochastic)
def test_noise_is_the_noise_of_the_feasible_instances(example: Example, relaxation: si.Relaxation) -> None:
    theta, generator = draw(example), torch.Generator()
    found = si.relax(theta, example.oracle(), relaxation, on_infeasible="zero", generator=generator.manual_seed(0))
    rest = map_parts(lambda t: t[[0, 2]], theta)
    expected = si.relax(rest, example.oracle(), relaxation, generator=generator.manual_seed(0))
    for m, e in zip(as_tuple(found), as_tuple(expected), strict=True):
        batch = m.ndim - e[0].ndim if m.shape[0] == 3 else 1
        rows = m.movedim(batch if m.shape[0] != 3 else 0, 0)
        assert_equal(rows[[0, 2]], e.movedim(batch if m.shape[0] != 3 else 0, 0))
        assert not rows[INFEASIBLE].any()


@pytest.mark.matrix
@pytest.mark.parametrize("cost", [None, "hamming"])
@pairs(lambda relaxation: isinstance(relaxation, si.RegularizedRelaxation) and not relaxation.is_stochastic)
def test_losses_of_infeasible_instances_are_0(example: Example, relaxation: si.Relaxation, cost: Any) -> None:
    theta, oracle = leaves(draw(example, torch.float32)), example.oracle()
    if oracle.requires_nonpositive_theta:
        cost = None  # a cost would make scores positive
    gold = si.relax(map_parts(lambda t: t.detach().masked_fill(t.isneginf(), 0), theta), oracle, "map")
    losses = si.FenchelYoungLoss(oracle, relaxation, cost=cost, reduction="none", on_infeasible="zero")(theta, gold)
    assert losses[INFEASIBLE] == 0
    losses.sum().backward()
    for b in (0, 2):
        own = leaves(alone(theta, b))
        expected = si.FenchelYoungLoss(oracle, relaxation, cost=cost)(own, alone(gold, b))
        expected.backward()
        assert_equal(losses[b], expected)
        for t, o in zip(as_tuple(theta), as_tuple(own), strict=True):
            assert t.grad is not None
            assert o.grad is not None
            assert_equal(t.grad[b], o.grad[0])
            assert not t.grad[INFEASIBLE].any()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_queries_and_gibbs(example: Example) -> None:
    theta, oracle = draw(example), example.oracle()
    rest = map_parts(lambda t: t[[0, 2]], theta)
    zero: dict[str, Any] = {"on_infeasible": "zero"}
    if isinstance(oracle, si.KBest):
        found, expected = si.topk(theta, oracle, 2, **zero), si.topk(rest, oracle, 2)
        assert found.valid[:, INFEASIBLE].tolist() == [False, False]
        assert found.scores[:, INFEASIBLE].tolist() == [-math.inf, -math.inf]
        assert_equal(found.scores[:, [0, 2]], expected.scores)
    if not isinstance(oracle, si.GibbsOracle):
        return
    gibbs, of_rest = si.Gibbs(theta, oracle, on_infeasible="zero"), si.Gibbs(rest, oracle)
    y = si.relax(map_parts(lambda t: t.masked_fill(t.isneginf(), 0), theta), oracle, "map")
    some_y = map_parts(lambda t: t[[0, 2]], y)
    for one, other, infeasible in (
        (si.log_partition(theta, oracle, **zero), si.log_partition(rest, oracle), -math.inf),
        (si.log_prob(theta, y, oracle, **zero), si.log_prob(rest, some_y, oracle), -math.inf),
        (si.entropy(theta, oracle, **zero), si.entropy(rest, oracle), 0),
        (gibbs.log_partition, of_rest.log_partition, -math.inf),
        (gibbs.log_prob(y), of_rest.log_prob(some_y), -math.inf),
        (gibbs.entropy(), of_rest.entropy(), 0),
        (torch.distributions.kl_divergence(gibbs, gibbs), torch.distributions.kl_divergence(of_rest, of_rest), 0),
    ):
        assert one[INFEASIBLE] == infeasible
        assert_equal(one[[0, 2]], other)
    for one, other in ((gibbs.mean, of_rest.mean), (gibbs.variance, of_rest.variance), (gibbs.mode, of_rest.mode)):
        for m, e in zip(as_tuple(one), as_tuple(other), strict=True):
            assert_equal(m[[0, 2]], e)
            assert not m[INFEASIBLE].any()
    if isinstance(oracle, si.Samplable):
        draws = si.sample(theta, oracle, 3, generator=torch.Generator().manual_seed(0), **zero)
        of_feasible = si.sample(rest, oracle, 3, generator=torch.Generator().manual_seed(0))
        for m, e in zip(as_tuple(draws), as_tuple(of_feasible), strict=True):
            assert_equal(m[:, [0, 2]], e)
            assert not m[:, INFEASIBLE].any()
        log_p = gibbs.log_prob(draws)
        assert log_p[:, INFEASIBLE].isneginf().all()
        assert_equal(log_p[:, [0, 2]], of_rest.log_prob(of_feasible))
        torch.testing.assert_close(si.log_prob(theta, draws, oracle, **zero), log_p)


# ----------------------------------------------------------------------------- details, for chains


def chains(batch: int, *infeasible: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    unary, transition = (torch.randn(s, generator=generator).double() for s in ((batch, 3, 2), (2, 2)))
    unary[list(infeasible), 1] = -torch.inf
    return unary, transition


def test_all_instances_may_be_infeasible():
    theta = leaves(chains(2, 0, 1))
    found = si.infer(theta, "chain", "sparsemap", on_infeasible="zero")
    assert found.infeasible is not None
    assert found.infeasible.all()
    assert found.value.isneginf().all()
    loss = si.FenchelYoungLoss("chain", "marginals", on_infeasible="zero")(theta, torch.zeros(2, 3).long())
    loss.backward()
    assert loss == 0
    assert not any(t.grad is None or t.grad.any() for t in theta)
    alone = si.infer((theta[0][0], theta[1]), "chain", "marginals", on_infeasible="zero")
    assert alone.value == -math.inf
    assert alone.infeasible is not None
    assert alone.infeasible.shape == ()


def test_a_solution_without_infeasible_instances_marks_none():
    theta = chains(2)
    found = si.infer(theta, "chain", on_infeasible="zero")
    assert found.infeasible is not None
    assert found.infeasible.tolist() == [False, False]
    assert si.infer(theta, "chain").infeasible is None


def test_the_gradient_of_a_shared_tensor_comes_from_feasible_instances():
    def losses(unary, transition):
        loss = si.FenchelYoungLoss("chain", "sparsemap", reduction="sum", cost="hamming", on_infeasible="zero")
        hole = torch.tensor([False, True, False]).view(3, 1, 1)
        return loss((unary.masked_fill(hole, -torch.inf), transition), torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 0]]))

    assert gradcheck(losses, leaves(chains(3)))


def test_a_mean_counts_infeasible_instances():
    theta, y = chains(4, 2), torch.zeros(4, 3).long()
    each = si.FenchelYoungLoss("chain", "marginals", reduction="none", on_infeasible="zero")(theta, y)
    mean = si.FenchelYoungLoss("chain", "marginals", on_infeasible="zero")(theta, y)
    torch.testing.assert_close(mean, each.sum() / 4)


def test_the_gold_structure_of_an_infeasible_instance_has_no_effect():
    theta, y = chains(2, 1), torch.tensor([[0, 1, 1], [9, 9, 9]])
    for loss in (
        si.FenchelYoungLoss("chain", "marginals", on_infeasible="zero", reduction="none"),
        si.RelaxedLoss("chain", "marginals", on_infeasible="zero", reduction="none"),
    ):
        losses = loss(theta, y)
        assert losses[0] > 0
        assert losses[1] == 0
        with pytest.raises(si.InvalidInputError, match="batch index 0"):
            loss(theta, torch.tensor([[0, 9, 1], [0, 0, 0]]))
        with pytest.raises(si.InvalidInputError, match="batch index 1"):
            loss(chains(2, 0), torch.tensor([[0, 0, 0], [0, 9, 1]]))


def test_spo_plus_and_regret():
    theta = torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]])
    true = torch.tensor([[2.0, 1.0], [0.0, 0.0]])
    loss = si.SPOPlusLoss("categorical", reduction="none", on_infeasible="zero")
    assert loss(theta, true).tolist() == [3.0, 0.0]
    assert si.regret(theta, true, "categorical", on_infeasible="zero").tolist() == [1.0, 0.0]


def test_losses_show_the_option_and_name_it_in_their_error():
    for loss in (
        si.FenchelYoungLoss("chain", on_infeasible="zero"),
        si.RelaxedLoss("chain", "marginals", on_infeasible="zero"),
        si.SPOPlusLoss("chain", on_infeasible="zero"),
    ):
        assert "on_infeasible='zero'" in repr(loss)
    assert "on_infeasible" not in repr(si.FenchelYoungLoss("chain"))
    with pytest.raises(si.InvalidInputError, match="on_infeasible"):
        si.FenchelYoungLoss("chain", "marginals")(chains(2, 1), torch.zeros(2, 3).long())


def test_layers():
    theta = chains(2, 0)
    layer = si.Layer("chain", "marginals", on_infeasible="zero")
    assert "on_infeasible='zero'" in repr(layer)
    assert not layer(theta)[0][0].any()
    assert layer.infer(theta).value[0] == -math.inf
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert_equal(compiled(theta)[0], layer(theta)[0])
    with pytest.raises(si.InfeasibleError, match="batch index 0"):
        si.Layer("chain", "marginals")(theta)


def test_cross_entropy_to_an_infeasible_distribution_is_infinite():
    p, q = (si.Gibbs(chains(2, b), "chain", on_infeasible="zero") for b in (0, 1))
    assert p.cross_entropy(q).tolist() == [0, math.inf]


@pytest.mark.parametrize("value", ["skip", None, 0])
def test_other_values_of_the_option_are_refused(value):
    theta = chains(2)
    calls: list[Callable[[], Any]] = [
        lambda: si.relax(theta, "chain", on_infeasible=value),
        lambda: si.infer(theta, "chain", on_infeasible=value),
        lambda: si.Layer("chain", on_infeasible=value),
        lambda: si.FenchelYoungLoss("chain", on_infeasible=value),
        lambda: si.RelaxedLoss("chain", on_infeasible=value),
        lambda: si.SPOPlusLoss("chain", on_infeasible=value),
        lambda: si.log_partition(theta, "chain", on_infeasible=value),
        lambda: si.Gibbs(theta, "chain", on_infeasible=value),
    ]
    for call in calls:
        with pytest.raises(si.InvalidInputError, match=r'on_infeasible must be "raise" or "zero"'):
            call()


def test_errors_name_instances_of_the_whole_batch():
    class Failing(si.Oracle):
        """An oracle that has no structure for scores below 0, and fails for scores above 5."""

        event_ndim = 1

        def argmax(self, theta):
            si.validation.check_feasible(theta.amax(1) >= 0, "structure")
            if bool((theta > 5).any()):
                index = int((theta > 5).any(1).nonzero()[0, 0])
                raise si.SolverLimitError("the solver stopped", index)
            return torch.ones_like(theta)

    theta = torch.tensor([[-1.0], [0.0], [-2.0], [6.0]])
    with pytest.raises(si.SolverLimitError, match="batch index 3") as caught:
        si.relax(theta, Failing(), "map", on_infeasible="zero")
    assert caught.value.batch_index == 3
    assert si.relax(theta[:3], Failing(), "map", on_infeasible="zero").tolist() == [[0.0], [1.0], [0.0]]
    with pytest.raises(si.SolverLimitError, match=r"its index is \(1, 1\)"):
        si.relax(theta.view(2, 2, 1), Failing(), "map", on_infeasible="zero")


@pytest.mark.parametrize("estimator", ["exact", "score_function", "sparsemax", "sparsemap", "perturbed", "muprop"])
def test_expectations_of_infeasible_instances_are_0(estimator: str) -> None:
    theta = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta[INFEASIBLE] = -torch.inf
    theta.requires_grad_()
    cost = torch.tensor([3.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    inputs, seen = torch.arange(3.0), []

    def f(y: Tensor, row: Tensor) -> Tensor:
        seen.append(row.tolist())
        return y @ cost

    def estimate(scores: Tensor, rows: Tensor, **options: Any) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return si.expect(f, scores, "categorical", estimator, inputs=rows, generator=generator, **options)

    found = estimate(theta, inputs, on_infeasible="zero")
    assert found[INFEASIBLE] == 0
    assert all(INFEASIBLE not in rows for rows in seen)
    (gradient,) = torch.autograd.grad(found.sum(), theta)
    assert not gradient[INFEASIBLE].any()
    rest = [b for b in range(3) if b != INFEASIBLE]
    own = theta.detach()[rest].requires_grad_()
    expected = estimate(own, inputs[rest])
    torch.testing.assert_close(found[rest], expected)
    torch.testing.assert_close(gradient[rest], torch.autograd.grad(expected.sum(), own)[0])
    with pytest.raises(si.InfeasibleError, match='on_infeasible="zero"') as error:
        estimate(theta, inputs)
    assert error.value.batch_index == INFEASIBLE


def test_expectations_of_empty_and_infeasible_instances() -> None:
    unary = torch.zeros(3, 2, 2)
    unary[1] = -torch.inf
    found = si.expect(
        lambda y: 1 + y[0].sum((1, 2)), (unary, torch.zeros(2, 2)), "chain", lengths=[2, 2, 0], on_infeasible="zero"
    )
    assert found.tolist() == [3, 0, 1]
    nothing = si.expect(lambda y: y.sum(1), torch.full((2, 3), -torch.inf), "categorical", on_infeasible="zero")
    assert nothing.tolist() == [0, 0]
    with pytest.raises(si.UnsupportedError, match="does not work for transition systems"):
        si.expect(lambda y: y, torch.zeros(1, 3), si.transitions.BitsInOrder(), on_infeasible="zero")
    with pytest.raises(si.InvalidInputError, match="on_infeasible"):
        si.expect(lambda y: y.sum(1), torch.zeros(2, 3), "categorical", on_infeasible="skip")  # type: ignore[arg-type]
