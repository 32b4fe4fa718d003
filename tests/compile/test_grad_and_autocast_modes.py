"""Answers do not depend on the mode that the caller is in: inference_mode, no_grad, autocast."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest
import torch

import structinf as si
from structinf.kernels.logsumexp import logsumexp
from structinf.parts import as_tuple
from toy_oracles import Explicit


class OnlySums(si.GibbsOracle):
    """A categorical oracle of which everything but log_partition is derived by autograd."""

    event_ndim = 1

    def argmax(self, theta):
        return torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)

    def log_partition(self, theta):
        return logsumexp(theta, -1)


class DoubleReadout(OnlySums):
    """Its readout's transpose is derived by autograd."""

    def readout(self, y):
        return 2 * y


def _problems():
    generator = torch.Generator().manual_seed(0)
    square, tags = torch.randn(2, 4, 4, generator=generator), torch.randn(2, 4, 3, generator=generator)
    return {
        "arborescence": (si.get_oracle("arborescence"), square, {"lengths": [3, 2]}),
        "assignment": (si.get_oracle("assignment"), square, {}),
        "chain": (si.get_oracle("chain"), (tags, torch.eye(3)), {"lengths": [4, 2]}),
        "edges": (si.get_oracle("chain"), torch.randn(2, 3, 3, 3, generator=generator), {"lengths": [1, 4]}),
        "categorical": (si.get_oracle("categorical"), tags[:, 0], {}),
        "only sums": (OnlySums(), tags[:, 0], {}),
        "double readout": (DoubleReadout(), tags[:, 0], {}),
    }


RELAXATIONS = {
    "map": si.get_relaxation("map"),
    "marginals": si.get_relaxation("marginals", temperature=0.7),
    "sparsemap": si.get_relaxation("sparsemap"),
    "readout": si.get_relaxation("sparsemap", penalty="readout"),
}


def _answers(problem, relaxation):
    oracle, theta, data = problem
    mean = si.relax(theta, oracle, relaxation, **data)
    solution = si.infer(theta, oracle, relaxation, **data)
    gold = si.relax(theta, oracle, "map", **data)
    losses = [si.FenchelYoungLoss(oracle, relaxation, cost=cost)(theta, gold, **data) for cost in (None, "hamming")]
    return [*as_tuple(mean), *as_tuple(solution.mean), solution.value, *losses]


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("name", _problems())
@pytest.mark.parametrize("inside", [False, True], ids=["made outside", "made inside"])
def test_inference_mode_changes_nothing(name, relaxation, inside):
    oracle = _problems()[name][0]
    if RELAXATIONS[relaxation].unsupported_reason(oracle) is not None:
        with pytest.raises(si.UnsupportedError):
            si.Layer(oracle, RELAXATIONS[relaxation])
        return
    expected = _answers(_problems()[name], RELAXATIONS[relaxation])
    problem = _problems()[name]
    with torch.inference_mode():
        actual = _answers(_problems()[name] if inside else problem, RELAXATIONS[relaxation])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
def test_autocast_mixes_half_precision_with_parameters(relaxation):
    linear, transition = torch.nn.Linear(5, 3), torch.nn.Parameter(torch.randn(3, 3))
    features = torch.randn(2, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        unary = linear(features)
        tags, counts = si.relax((unary, transition), "chain", relaxation)
    assert (unary.dtype, tags.dtype, counts.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    exact, _ = si.relax((unary.float(), transition), "chain", relaxation)
    torch.testing.assert_close(tags, exact.bfloat16())
    (tags.square().sum() + counts.square().sum()).backward()
    assert transition.grad.isfinite().all()
    assert linear.weight.grad.isfinite().all()


def test_solutions_survive_pickling():
    solution = si.infer(torch.randn(2, 3, 3), "assignment")
    again = pickle.loads(pickle.dumps(solution))
    assert torch.equal(again.support, solution.support)
    assert torch.equal(again.mean, solution.mean)


def test_the_gradient_of_map_is_zero_to_any_order():
    theta = torch.randn(3, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(si.relax(theta, "assignment", "map").sum(), theta, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), theta)
    assert not gradient.any()
    assert not second.any()


def test_the_gradient_in_the_gold_structure_ignores_other_instances():
    theta = torch.arange(9.0, dtype=torch.float64).view(3, 3).repeat(2, 1, 1)
    theta[0, 0, 1] = -torch.inf
    gold = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    si.FenchelYoungLoss("assignment", "map", reduction="sum")(theta, gold).backward()
    assert torch.equal(gold.grad, -theta.clamp(min=-100).where(theta > -torch.inf, 0.0))


@pytest.mark.parametrize(
    ("oracle", "gold"),
    [
        ("arborescence", torch.zeros(3, 3)),
        ("arborescence", torch.ones(3, 3)),
        ("assignment", torch.full((3, 3), 1 / 2)),
        ("categorical", torch.tensor([1.0, 1.0, 0.0])),
        ("chain", torch.ones(2, 3, 3)),
    ],
)
def test_gold_outside_the_structures_is_refused(oracle, gold):
    with pytest.raises(si.InvalidInputError, match=r"y is not a (structure|mean of structures) of"):
        si.FenchelYoungLoss(oracle, "map")(torch.randn(gold.shape), gold)


@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap"])
def test_a_temperature_too_small_for_the_scores_is_refused(relaxation):
    theta = 1e10 * torch.randn(2, 4)
    with pytest.raises(si.InvalidInputError, match="temperature 1e-30 is too small"):
        si.relax(theta, "categorical", relaxation, temperature=1e-30)
    forbidden = torch.tensor([[1.0, -torch.inf]])
    assert torch.equal(si.relax(forbidden, "categorical", relaxation, temperature=1e-30), torch.tensor([[1.0, 0.0]]))


def test_lengths_of_two_sides_need_the_batch_dimensions():
    theta = torch.ones(2, 3, 3)
    with pytest.raises(si.InvalidInputError, match=r"got shape \(2,\)"):
        si.relax(theta, "assignment", "map", lengths=[1, 2])
    assert si.relax(theta, "assignment", "map", lengths=[[1, 2]]).sum() == 2
    assert si.relax(theta[0], "assignment", "map", lengths=[1, 2]).sum() == 1


def test_a_broken_relaxation_does_not_hide_why_another_cannot_be(monkeypatch):
    from importlib.metadata import EntryPoint

    from structinf.calls import resolution

    declared = dict(resolution.RELAXATIONS._entry_points)
    declared["broken"] = [EntryPoint("broken", "no_such_module:Nothing", "structinf.relaxations")]
    monkeypatch.setattr(resolution.RELAXATIONS, "_entry_points", declared)
    with pytest.raises(si.UnsupportedError, match="#P-complete"):
        si.Layer("assignment", "marginals")


def test_the_padding_costs_nothing():
    class AnySubset(Explicit):
        instance_ndim: ClassVar = {"lengths": 0}

        def argmax(self, theta):
            return (theta > 0).to(theta)

        def valid_parts(self, theta):
            lengths = self.bound.get("lengths")
            return None if lengths is None else torch.arange(theta.shape[1]) < lengths[:, None]

    theta = torch.tensor([[0.5, -0.5, 9.0, 9.0]])
    loss = si.FenchelYoungLoss(AnySubset(), "map", cost="hamming")
    gold = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert loss(theta, gold, lengths=[2]) == loss(theta[:, :2], gold[:, :2])
