"""What maps to the simplex and their losses keep for their backward passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from entropy_formulas import every_entropy
from simplex_map_reference import MAPS, every_map
from structinf.simplex import ShannonEntropy, TsallisEntropy, entmax15, simplex_loss
from structinf.simplex.entmax_family import EntmaxMap

ROWS, CLASSES = 16, 500


def kept(function: Callable[[], Tensor]) -> int:
    """Bytes of all tensors of as many numbers as the scores."""
    found: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.numel() >= ROWS * CLASSES:
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = function()
    assert result.requires_grad
    return sum(found.values())


@every_map
def test_a_map_keeps_its_point_alone(name):
    x = torch.randn(ROWS, CLASSES, requires_grad=True)
    width = 0 if name == "topk" else 8 if name.startswith("normmax") else 4
    assert kept(lambda: MAPS[name](2 * x)) == width * x.numel()


@pytest.mark.parametrize("ignored", [False, True])
@every_entropy
def test_a_loss_keeps_the_point_and_not_the_scores(entropy, ignored):
    x, y = torch.randn(ROWS, CLASSES, requires_grad=True), torch.arange(ROWS)
    table = torch.rand(CLASSES, CLASSES)
    if ignored:
        y[3] = -100
    width = 4 if isinstance(entropy, ShannonEntropy | TsallisEntropy) else 8
    for loss in (
        lambda: simplex_loss(x, y, entropy),
        lambda: simplex_loss(x, y, entropy, cost=table),
        lambda: simplex_loss(x, y, entropy, weight=table[0]),
    ):
        assert kept(loss) == width * x.numel()


def test_the_gradient_of_a_loss_takes_no_derivative_of_the_map(monkeypatch):
    def never(*_):
        raise AssertionError

    x = torch.randn(ROWS, CLASSES, requires_grad=True)
    loss = simplex_loss(x, torch.arange(ROWS), TsallisEntropy(1.5), reduction="sum")
    monkeypatch.setattr(EntmaxMap, "vjp", never)
    monkeypatch.setattr(EntmaxMap, "compiled_vjp", never)
    loss.backward()
    torch.testing.assert_close(x.grad, entmax15(x.detach()) - torch.eye(CLASSES)[:ROWS])
