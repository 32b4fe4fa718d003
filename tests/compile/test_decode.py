"""structinf.decode inside torch.func.vmap and torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import oracle_examples
import structinf as si
from compile_assertions import marks, whole
from oracle_example import Example
from structinf import api

pytestmark = [*marks, pytest.mark.slow]

UNARY = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([4, 2, 3])


@pytest.mark.parametrize("example", oracle_examples.one_for_each(type, lambda _: True), ids=str)
def test_shapes_before_the_run(example: Example) -> None:
    oracle = example.oracle()
    y = si.relax(example.draw(3), oracle, "map")
    try:
        labels = si.decode(y, oracle)
    except si.UnsupportedError:
        return
    like = api._labels_like(y, oracle)
    assert (like.shape, like.dtype) == (labels.shape, labels.dtype)


def best_tags(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    y = si.relax((unary.sin(), transition), "chain", "map", lengths=lengths)
    return 2 * si.decode(y, "chain", lengths=lengths)


def test_compile() -> None:
    transition, expected = torch.eye(2), best_tags(UNARY, torch.eye(2), LENGTHS)
    compiled = whole(best_tags)
    assert torch.equal(compiled(UNARY, transition, LENGTHS), expected)
    assert torch.equal(compiled(UNARY[:2], transition, LENGTHS[:2]), expected[:2])
    heads = whole(lambda theta: si.decode(si.relax(theta, "arborescence", "map"), "arborescence") + 1, "aot_eager")
    theta = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.equal(heads(theta), si.decode(si.relax(theta, "arborescence", "map"), "arborescence") + 1)
    with pytest.raises(si.InvalidInputError, match=r"^y is not a structure of chain.* no means"):
        whole(lambda u, t: si.decode((u, t), "chain"))(torch.full((3, 2), 0.5), torch.zeros(2, 2))


def test_vmap() -> None:
    found = vmap(best_tags, (0, None, 0))(UNARY, torch.eye(2), LENGTHS)
    assert torch.equal(found, best_tags(UNARY, torch.eye(2), LENGTHS))
    gradient = torch.func.grad(lambda u: (best_tags(u, torch.eye(2), LENGTHS) * u.sum(2)).sum())(UNARY)
    assert torch.equal(gradient, found.unsqueeze(2).expand(UNARY.shape).to(UNARY))
