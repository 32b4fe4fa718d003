"""Supplies and demands of each instance: each instance has the plan that it gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError

SUPPLIES = torch.tensor([[1, 2], [3, 2], [1, 2], [0, 1]])
DEMANDS = torch.tensor([[1, 1, 1], [1, 2, 2], [2, 1, 1], [1, 0, 2]])
DATA: dict[str, Any] = {"supplies": SUPPLIES, "demands": DEMANDS}


def scores() -> Tensor:
    return torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("relaxation", ["map", "sinkhorn", "sparsemap", "frank_wolfe"])
def test_each_instance_has_the_plan_that_it_gets_alone(relaxation: str) -> None:
    theta = scores()
    mean = si.relax(theta, "transportation", relaxation, **DATA)
    for b in range(4):
        own: dict[str, Any] = {"supplies": SUPPLIES[b].tolist(), "demands": DEMANDS[b]}
        alone = si.relax(theta[b], "transportation", relaxation, **own)
        if relaxation == "frank_wolfe":
            torch.testing.assert_close(mean[b], alone, atol=1e-8, rtol=0)
        else:
            assert torch.equal(mean[b], alone)


@pytest.mark.parametrize("relaxation", ["sinkhorn", "sparsemap"])
def test_gradients_and_losses(relaxation: str) -> None:
    theta = scores().requires_grad_()
    assert gradcheck(lambda t: si.relax(t, "transportation", relaxation, **DATA), theta)
    y = si.relax(theta.detach(), "transportation", "map", **DATA)
    losses = si.FenchelYoungLoss("transportation", relaxation, reduction="none")(theta, y, **DATA)
    for b in range(4):
        own: dict[str, Any] = {"supplies": SUPPLIES[b].tolist(), "demands": DEMANDS[b].tolist()}
        alone = si.FenchelYoungLoss("transportation", relaxation, **own)(theta[b], y[b])
        torch.testing.assert_close(losses[b], alone, rtol=1e-12, atol=1e-12)


def test_labels_options_and_batches() -> None:
    theta = scores()
    y = si.relax(theta, "transportation", "map", **DATA)
    assert torch.equal(si.encode(y.long(), theta, "transportation", **DATA), y)
    wrong = y.long()
    wrong[2, 0, 0] += 1
    with pytest.raises(InvalidInputError, match="at batch index 2"):
        si.encode(wrong, theta, "transportation", **DATA)
    mixed = si.relax(theta, "transportation", "map", supplies=SUPPLIES, demands=[1, 1, 1])
    assert torch.equal(mixed.sum((1, 2)), torch.tensor([3.0, 3, 3, 1], dtype=torch.float64))
    layer = si.Layer("transportation", "map", demands=[1, 1, 1])
    assert torch.equal(layer(theta, supplies=SUPPLIES), mixed)
    empty = si.relax(theta[:0], "transportation", "map", supplies=SUPPLIES[:0], demands=DEMANDS[:0])
    assert empty.shape == (0, 2, 3)
    oracle = si.get_oracle("transportation").bind(**DATA)
    assert torch.equal(oracle[torch.tensor([2, 0])].argmax(theta[[2, 0]]), y[[2, 0]])
    assert torch.equal(oracle.hamming_cost(y)[1], si.get_oracle("transportation", supplies=[3, 2], demands=[1, 2, 2])
                       .hamming_cost(y[1:2])[0])  # fmt: skip


def test_infeasible_instances_are_named() -> None:
    theta = scores()
    theta[2] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, "transportation", "map", **DATA)
    assert error.value.batch_index == 2
    zero = si.relax(theta, "transportation", "map", **DATA, on_infeasible="zero")
    assert zero.sum((1, 2)).tolist() == [3, 5, 0, 1]


def test_the_best_plans_of_each_instance() -> None:
    theta = scores()
    best = si.topk(theta, "transportation", 4, **DATA)
    for b in range(4):
        own: dict[str, Any] = {"supplies": SUPPLIES[b].tolist(), "demands": DEMANDS[b].tolist()}
        for part, alone in zip(best, si.topk(theta[b], "transportation", 4, **own), strict=True):
            assert torch.equal(part[:, b], alone)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "needs supplies, as an option or with the scores"),
        ({"supplies": SUPPLIES}, "needs demands"),
        ({"supplies": SUPPLIES, "demands": DEMANDS.double()}, "demands must be integers"),
        ({"supplies": SUPPLIES, "demands": -DEMANDS}, "at least 0, .* at batch index 0"),
        ({"supplies": SUPPLIES[:2], "demands": DEMANDS}, "supplies must have the batch shape"),
        ({"supplies": SUPPLIES, "demands": DEMANDS[:, :2]}, "theta must have shape"),
    ],
)
def test_wrong_data(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(scores(), "transportation", "map", **data)
