"""Kernels that overwrite padding and check arguments, compared with torch operations."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.autograd.padding import keep_valid
from structinf.kernels.padding import triton_masks, triton_padding
from structinf.parts import as_tuple


def test_copies_and_checks() -> None:
    """Five tensors and masks of all layouts: whole, shared, of rows, of columns, and of four separate dimensions."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3), (2, 5000), (2, 4, 3), (1, 2, 2), (2, 3, 2, 2, 2)]
    tensors = tuple(torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes)
    separate = torch.rand(2, 3, 4, 2, 4, generator=generator)[:, :, ::2, :, ::2] < 0.5
    masks = (
        torch.rand(2, 3, generator=generator) < 0.5,
        (torch.arange(5000) < torch.tensor([[4999], [0]])),
        (torch.arange(4) < torch.tensor([[2], [3]])).unsqueeze(2),
        torch.ones((), dtype=torch.bool),
        separate,
    )
    expected = [torch.where(mask, t, 0.0) for t, mask in zip(tensors, masks, strict=True)]
    kept, wrong = keep_valid(tensors, masks)
    assert wrong.sum() == 0
    assert all(map(torch.equal, kept, expected))
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).requires_grad_() for t in tensors]
    gradients = torch.autograd.grad(kept, tensors, weights, create_graph=True)
    assert all(map(torch.equal, gradients, torch.autograd.grad(expected, tensors, weights)))
    again = torch.autograd.grad(gradients, weights, [torch.ones_like(t) for t in tensors])
    assert all(torch.equal(a, mask.expand(t.shape).double()) for a, mask, t in zip(again, masks, tensors, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_wrong_scores(value: float) -> None:
    tensors, mask = [torch.zeros(2, 3), torch.zeros(2, 5000, dtype=torch.float64)], torch.ones(2, 5000).bool()
    tensors[1][1, 4998] = value
    assert bool(triton_padding.keep_valid(tensors, None)[1].any()) == (value != -math.inf)
    mask[1, 4998] = False
    kept, wrong = triton_padding.keep_valid(tensors, [torch.ones(2, 3).bool(), mask])
    assert not wrong.any()
    assert not kept[1].any()


def test_gradient_of_one_tensor() -> None:
    a, b, mask = torch.ones(2, requires_grad=True), torch.ones(2), torch.tensor([True, False])
    (kept, other), _ = keep_valid((a, b), (mask, mask))
    assert kept.requires_grad
    assert not other.requires_grad
    assert torch.autograd.grad(kept.sum(), a)[0].tolist() == [1.0, 0.0]
    assert keep_valid((a[:0],), (mask[:0],))[1].numel() == 0


GRID = torch.tensor([[2, 3], [1, 4], [3, 1]])
LENGTHS = torch.tensor([3, 1, 2])
ORACLES = {
    "chain": (((3, 2), (2, 2)), LENGTHS, {}, "chain"),
    "semi_markov": (((3, 2, 2), (2, 2)), LENGTHS, {}, "semi_markov"),
    "pairwise": (((3, 2, 2, 2),), LENGTHS, {"pairwise": True}, "semi_markov"),
    "boundaries": (((3, 2), (3, 2, 2), (2, 2)), LENGTHS, {}, "semi_markov"),
    "needleman_wunsch": (((3, 4), (2,)), GRID, {}, "common.grids"),
    "binary_tree": (((3, 3),), LENGTHS, {}, "binary_tree"),
    "arborescence": (((4, 4),), LENGTHS, {}, "common.dependency_arcs"),
    "spanning_tree": (((4, 4),), LENGTHS, {}, "common.scored_edges"),
}


@pytest.mark.parametrize("case", ORACLES)
def test_masks(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of the kernels are those of the torch operations, with and without lengths."""
    shapes, lengths, options, module = ORACLES[case]
    name = {"pairwise": "semi_markov", "boundaries": "semi_markov"}.get(case, case)
    for batch, data in ((3, {"lengths": lengths}), (3, {}), (1, {"lengths": lengths[1:2]})):
        oracle = si.get_oracle(name, **options).bind(**data)
        tensors = [torch.zeros(batch, *shape) for shape in shapes]
        theta = tuple(tensors) if len(tensors) > 1 else tensors[0]
        got = oracle.valid_parts(theta)
        with monkeypatch.context() as patched:
            patched.setattr(f"structinf_oracles.{module}.uses_triton", lambda _: False)
            expected = oracle.valid_parts(theta)
        assert (got is None) == (expected is None)
        if got is None or expected is None:
            continue
        for mask, other, t in zip(as_tuple(got), as_tuple(expected), tensors, strict=True):
            assert torch.equal(mask.expand(t.shape), other.expand(t.shape))


def test_goals() -> None:
    for shape in ((4,), (3, 5)):
        table = torch.full(shape, -1)
        inner = table[tuple(slice(-1) for _ in shape)]
        inner.copy_(torch.arange(inner.numel()).view(inner.shape))
        lengths = torch.tensor([[-7, -1], [0, 0], [1, 2], [2, 4], [3, 1], [9, 9]])[:, : len(shape)]
        index = [column.clamp(-1, size - 1) for column, size in zip(lengths.unbind(1), shape, strict=True)]
        assert torch.equal(triton_masks.goals(table, lengths), table[tuple(index)])


def test_lengths() -> None:
    lengths = torch.tensor([[1, 5], [0, 2], [3, 9]])
    assert triton_padding.clamp_lengths(lengths, 1, (2, 5)).tolist() == [1.0]
    assert lengths.tolist() == [[1, 5], [1, 2], [2, 5]]
    assert triton_padding.clamp_lengths(lengths, 1, (2, 5)).tolist() == [0.0]
    column = torch.tensor([[4, 0], [-3, 0]])[:, 0]
    assert triton_padding.clamp_lengths(column, 0, (3,)).tolist() == [1.0]
    assert column.tolist() == [3, 0]


@pytest.mark.parametrize(("name", "least"), [("chain", 0), ("needleman_wunsch", 1)])
def test_lengths_of_a_call(name: str, least: int) -> None:
    """A call on a device moves wrong lengths into their range, and raises the error of the CPU at its end."""
    shapes = [(2, 3, 2), (1, 2, 2)] if name == "chain" else [(2, 2, 3), (1, 2)]
    theta = tuple(torch.zeros(shape) for shape in shapes)
    lengths = torch.tensor([3, 4]) if name == "chain" else torch.tensor([[2, 3], [2, 4]])
    with pytest.raises(si.InvalidInputError) as expected:
        si.relax(theta, name, "map", lengths=lengths)
    with LaunchCounter(), pytest.raises(si.InvalidInputError) as found:
        si.relax(on_device(theta), name, "map", lengths=on_device(lengths))
    assert str(found.value) == str(expected.value)


def test_scores_of_a_call() -> None:
    theta = torch.zeros(2, 3, 2), torch.zeros(1, 2, 2)
    theta[0][1, 2] = math.nan
    lengths = torch.tensor([3, 2])
    with LaunchCounter():
        y = si.relax(on_device(theta), "chain", "map", lengths=on_device(lengths))
        assert y[0].sum((1, 2)).tolist() == [3.0, 2.0]
        with pytest.raises(si.InvalidInputError, match=r"theta.0. holds NaN at batch index 1, part .2, 0."):
            si.relax(on_device(theta), "chain", "map")
