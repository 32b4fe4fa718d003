"""Kernels that overwrite padding and check arguments, compared with torch operations."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import forward_ad

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.autograd.padding import keep_valid
from structinf.kernels.padding import triton_masks, triton_padding, triton_products
from structinf.parts import as_tuple, inner_product


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
    assert triton_padding.clamp_lengths(lengths.unbind(1), 1, (2, 5)).tolist() == [1.0]
    assert lengths.tolist() == [[1, 5], [1, 2], [2, 5]]
    assert triton_padding.clamp_lengths(lengths.unbind(1), 1, (2, 5)).tolist() == [0.0]
    column = torch.tensor([[4, 0], [-3, 0]])[:, 0]
    assert triton_padding.clamp_lengths([column], 0, (3,)).tolist() == [1.0]
    assert column.tolist() == [3, 0]
    sizes = torch.tensor([[9, 3, 2], [5, 4, 1]])
    assert triton_padding.clamp_lengths(tuple(sizes), 0, (4, 4), nested=True).tolist() == [1.0]
    assert sizes.tolist() == [[4, 3, 2], [4, 3, 1]]
    assert triton_padding.clamp_lengths(tuple(sizes), 0, (4, 4), nested=True).tolist() == [0.0]


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


def test_inner_products() -> None:
    """Four pairs of tensors: of many tiles, shared, of one number and of float32, with ±1000 and −inf where y is 0."""
    generator = torch.Generator().manual_seed(0)
    shapes = [((3, 2, 700), (3, 2, 700)), ((1, 4), (3, 4)), ((3,), (3,)), ((3, 5), (1, 5))]
    theta = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape, _ in shapes]
    y = [torch.rand(shape, generator=generator, dtype=torch.float64).round(decimals=1) for _, shape in shapes]
    theta[1] *= 1000
    theta[3], y[3][0, 2] = theta[3].float(), 0
    theta[3][:, 2] = -math.inf
    expected = sum((t.double().nan_to_num(neginf=0) * z).reshape(3, -1).sum(1) for t, z in zip(theta, y, strict=True))
    found = inner_product(tuple(theta), tuple(y))
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-12)
    assert torch.equal(triton_products.inner_products(theta[:1], y[:1])[2:], inner_product(theta[0][2:], y[0][2:]))
    theta[3][0, 3], y[3][0, 3] = -math.inf, 0.5
    assert inner_product(tuple(theta), tuple(y)).isneginf().tolist() == [True, False, False]
    floats = theta[0].float(), y[0].float()
    assert inner_product(*floats).dtype == torch.float32
    torch.testing.assert_close(inner_product(*floats).double(), inner_product(theta[0], y[0]), rtol=1e-5, atol=1e-4)
    assert inner_product(theta[0][:0], y[0][:0]).shape == (0,)
    assert inner_product(torch.zeros(2, 0), torch.zeros(2, 0)).tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_inner_products_with_derivatives_take_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_products, "inner_products", None)
    theta, y = torch.tensor([[1.0, -math.inf]], requires_grad=True), torch.tensor([[2.0, 0.0]])
    assert torch.autograd.grad(inner_product(theta, y).sum(), theta)[0].tolist() == [[2, 0]]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.ones(1, 2))
        product = inner_product(torch.ones(1, 2), dual)
        assert forward_ad.unpack_dual(product).tangent.tolist() == [2]
    assert torch.func.grad(lambda t: inner_product(t, y).sum())(torch.ones(1, 2)).tolist() == [[2, 0]]


@pytest.mark.parametrize("name", ["dtw", "subset"])
def test_entropies(name: str) -> None:
    theta = torch.randn(2, *((3, 3) if name == "dtw" else (5,)), generator=torch.Generator().manual_seed(1)).double()
    theta[0, 0] *= 100
    oracle = si.get_oracle(name, **({"k": 2} if name == "subset" else {}))
    y = oracle.enumerate(tuple(theta.shape[1:])).flatten(1)
    log_p = (theta.flatten(1) @ y.T.double()).log_softmax(1)
    torch.testing.assert_close(si.entropy(theta, oracle), -(log_p.exp() * log_p).sum(1), rtol=0, atol=1e-12)
