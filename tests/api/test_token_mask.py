"""Masks with holes: each instance has the answer of its tokens in use."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

import structinf as si
from structinf.errors import InvalidInputError

MASK = torch.tensor([[True, False, True, True], [True, True, True, True], [False, False, False, True], [False] * 4])


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
def test_chains_with_holes_are_the_chains_of_their_tokens(relaxation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(4, 4, 3, dtype=torch.float64, generator=generator)
    transition = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    tokens = si.TokenMask(MASK)
    assert tokens.lengths.tolist() == [3, 4, 1, 0]
    mean = si.relax((tokens.pack(unary), transition), "chain", relaxation, lengths=tokens.lengths)
    found = tokens.unpack(mean[0])
    for b in range(3):
        alone = si.relax((unary[b, MASK[b]], transition), "chain", relaxation)
        torch.testing.assert_close(found[b, MASK[b]], alone[0], atol=1e-4 if relaxation == "sparsemap" else 0, rtol=0)
        assert not found[b, ~MASK[b]].any()
    assert not found[3].any()
    labels = si.decode(mean, "chain", lengths=tokens.lengths) if relaxation == "map" else None
    if labels is not None:
        tags = tokens.unpack(labels, fill=-1)
        assert tags.dtype == torch.int64
        assert torch.equal(tags < 0, ~MASK)
        assert torch.equal(tokens.pack(tags).masked_fill(labels < 0, -1), labels)


def test_gradients_dtypes_and_batches() -> None:
    tokens = si.TokenMask(MASK)
    unary = torch.randn(4, 4, 2, dtype=torch.float64).requires_grad_()

    def tags(x: torch.Tensor) -> torch.Tensor:
        theta = tokens.pack(x), torch.zeros(2, 2, dtype=x.dtype)
        return tokens.unpack(si.relax(theta, "chain", "marginals", lengths=tokens.lengths)[0])

    assert gradcheck(tags, unary)
    (gradient,) = torch.autograd.grad(tags(unary).square().sum(), unary)
    assert not gradient[~MASK].any()
    one = si.TokenMask(MASK[0])
    assert one.pack(torch.arange(4)).tolist() == [0, 2, 3, 1]
    assert one.unpack(torch.tensor([5, 6, 7, 0]), fill=-1).tolist() == [5, -1, 6, 7]
    grid = si.TokenMask(MASK.view(2, 2, 4))
    x = torch.randn(2, 2, 4, 3)
    assert torch.equal(grid.unpack(grid.pack(x)), torch.where(grid.mask.unsqueeze(-1), x, 0.0))
    assert si.TokenMask(MASK[:0]).pack(torch.zeros(0, 4, 2)).shape == (0, 4, 2)


def test_wrong_masks() -> None:
    with pytest.raises(InvalidInputError, match="mask must be a boolean tensor"):
        si.TokenMask(MASK.long())
    with pytest.raises(InvalidInputError, match="mask must be a boolean tensor"):
        si.TokenMask([[True]])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"tokens must have a shape that starts with the shape \(4, 4\)"):
        si.TokenMask(MASK).pack(torch.zeros(4, 3))
    with pytest.raises(TypeError, match=r"or, for masks with holes, structinf\.TokenMask"):
        si.relax((torch.zeros(4, 4, 2), torch.zeros(2, 2)), "chain", "map", mask=MASK)
