"""What maps to the simplex and their losses keep for their backward passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from entropy_cases import ENTROPIES
from simplex_cases import MAPS
from structinf.simplex import NormEntropy, ShannonEntropy, TsallisEntropy, simplex_loss

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


@pytest.mark.parametrize("name", [name for name in MAPS if not name.startswith("normmax")])
def test_a_map_keeps_its_point_alone(name):
    x = torch.randn(ROWS, CLASSES, requires_grad=True)
    assert kept(lambda: MAPS[name](2 * x)) == (0 if name == "topk" else x.nbytes)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("entropy", [each for each in ENTROPIES if not isinstance(each, NormEntropy)], ids=str)
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
