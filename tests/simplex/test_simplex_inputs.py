"""What the maps to the simplex take: shapes, precisions, special values, options; and their modules."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from simplex_map_reference import DOUBLE, INF, MAPS, every_dtype, every_map
from structinf.errors import InvalidInputError
from structinf.simplex import (
    Budget,
    Entmax,
    Entmax15,
    Normmax,
    Softmax,
    Sparsemax,
    TopkSparsemax,
    budget,
    entmax,
    entmax15,
    normmax,
    softmax,
    sparsemax,
    topk_sparsemax,
)

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


# ---------------------------------------------------------------------------------------------- shapes


@every_map
def test_any_dim_of_any_rank(name):
    x = torch.randn(2, 3, 4, 1, dtype=DOUBLE)
    for dim in range(-4, 4):
        found = MAPS[name](x, dim)
        assert found.shape == x.shape
        assert found.is_contiguous()
        expected = MAPS[name](x.movedim(dim, -1).contiguous()).movedim(-1, dim)
        assert torch.equal(found, expected)
        assert torch.equal(found, MAPS[name](x, dim % 4))


def test_topk_along_a_negative_dim():
    x = torch.randn(2, 3, 4)
    assert torch.equal(topk_sparsemax(x, 2, -2), topk_sparsemax(x, 2, 1))


@every_map
@pytest.mark.parametrize(("shape", "dim"), [((0,), 0), ((0, 3), -1), ((3, 0), -1), ((3, 0), 0), ((2, 0, 4), 2)])
def test_nothing(name, shape, dim):
    x = torch.zeros(shape, requires_grad=True)
    found = MAPS[name](x, dim)
    assert found.shape == shape
    found.sum().backward()
    assert x.grad.shape == shape


@every_map
def test_one_number(name):
    x = torch.tensor(3.0, requires_grad=True)
    for dim in (0, -1):
        found = MAPS[name](x, dim)
        assert found.shape == ()
        assert found.item() == 1
        assert torch.autograd.grad(found, x)[0] == 0
    assert torch.equal(MAPS[name](torch.randn(5, 1)), torch.ones(5, 1))


@every_map
def test_views_and_expanded_tensors(name):
    base = torch.randn(6, 8, dtype=DOUBLE)
    for view in (base[::2, ::2], base.T, base[:, 3].expand(2, 6), base.flip(0)):
        assert torch.equal(MAPS[name](view), MAPS[name](view.contiguous()))
    x = base.clone().requires_grad_()
    g = torch.autograd.grad(MAPS[name](x[:, ::2]).square().sum(), x)[0]
    assert g[:, 1::2].eq(0).all()
    wide = torch.autograd.grad(MAPS[name](x).sum(), x)[0]  # an expanded cotangent
    torch.testing.assert_close(wide, torch.zeros_like(wide), rtol=0, atol=1e-9)


@every_map
def test_the_input_stays_as_it_is(name):
    x = torch.randn(3, 5)
    before = x.clone()
    found = MAPS[name](x)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert not found.requires_grad
    y = x.requires_grad_()
    MAPS[name](y).square().sum().backward()
    assert torch.equal(y.detach(), before)
    with torch.inference_mode():
        assert torch.equal(MAPS[name](before), found)


@every_map
@every_dtype
def test_rows_do_not_depend_on_their_batch_nor_on_threads(name, dtype):
    x = torch.randn(700, 600, dtype=dtype)
    whole = MAPS[name](x)
    rtol = 1e-14 if name.startswith("normmax") else 0  # torch's powers are not the same everywhere
    torch.set_num_threads(3)
    torch.testing.assert_close(MAPS[name](x), whole, rtol=rtol, atol=0)
    torch.testing.assert_close(MAPS[name](x[5:6]), whole[5:6], rtol=rtol, atol=0)


# ---------------------------------------------------------------------------------------------- precisions


@every_map
@HALVES
def test_half_precision_is_that_of_float32(name, dtype):
    x = torch.randn(4, 50).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    found, expected = MAPS[name](x), MAPS[name](wide)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=0)
    w = torch.randn(4, 50).to(dtype)
    (g,) = torch.autograd.grad(found, x, w)
    assert g.dtype == dtype
    torch.testing.assert_close(g, torch.autograd.grad(expected, wide, w.float())[0].to(dtype), rtol=0, atol=0)


def test_bfloat16_sums_to_1():
    x = torch.randn(8, 4096).bfloat16()
    for function in (entmax15, sparsemax):
        assert ((function(x).float().sum(-1) - 1).abs() <= 1e-2).all()


@every_map
def test_large_scores_and_small_differences(name):
    x = torch.tensor([1000.0, 1000.001, 999.999, -1000.0], dtype=DOUBLE)
    torch.testing.assert_close(MAPS[name](x), MAPS[name](x - 1000), rtol=0, atol=1e-9)
    apart = torch.tensor([1e30, 0.0, -1e30, 3.0])
    best = MAPS[name](apart)
    assert best[0] == 1
    assert best.isfinite().all()


@every_dtype
def test_many_scores_sum_to_1(dtype):
    for function in (softmax, sparsemax, entmax15, lambda x: entmax(x, 1.1), lambda x: normmax(x, 2)):
        flat = function(torch.zeros(2, 100_001, dtype=dtype) + 1e-7 * torch.randn(100_001, dtype=dtype))
        assert ((flat.double().sum(-1) - 1).abs() <= (1e-5 if dtype == torch.float32 else 1e-11)).all()


# ---------------------------------------------------------------------------------------------- special values


@every_map
@pytest.mark.parametrize("wrong", [torch.nan, INF])
@pytest.mark.parametrize(("n", "place"), [(4, 2), (100, 3), (100, 99)])
def test_nan_and_infinity_make_their_row_nan(name, wrong, n, place):
    x = torch.randn(3, n, dtype=DOUBLE)
    right = MAPS[name](x)
    x[1, place] = wrong
    x.requires_grad_()
    found = MAPS[name](x)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], right[[0, 2]])
    g = torch.autograd.grad(found, x, torch.ones_like(x))[0]
    assert g[1].isnan().any()
    assert g[[0, 2]].isfinite().all()


@every_map
def test_a_row_of_masked_scores_is_0(name):
    x = torch.full((2, 70), -INF)
    x[0, 4] = 1
    found = MAPS[name](x.requires_grad_())
    assert found[1].eq(0).all()
    assert found[0, 4] == 1
    assert torch.autograd.grad(found, x, torch.randn(2, 70))[0].eq(0).all()


# ---------------------------------------------------------------------------------------------- refusals


@every_map
def test_what_is_no_tensor_in_floating_point(name):
    with pytest.raises(TypeError, match=r"in floating point, got a tensor of torch\.int64"):
        MAPS[name](torch.arange(3))
    with pytest.raises(TypeError, match="got list"):
        MAPS[name]([1.0, 2.0])


@pytest.mark.parametrize("dim", [2, -3, 0.5, True, None])
def test_an_unknown_dim(dim):
    for function in (softmax, sparsemax, entmax15, entmax):
        with pytest.raises(InvalidInputError, match=r"dim must be a dimension of x, which has shape \(2, 3\)"):
            function(torch.zeros(2, 3), dim=dim)


@pytest.mark.parametrize("alpha", [0.99, 0, -1.0, INF, torch.nan, True, "1.5", torch.tensor([[1.5], [0.5]])])
def test_alpha_below_1(alpha):
    with pytest.raises(InvalidInputError, match="alpha must be a finite number of at least 1"):
        entmax(torch.zeros(2, 3), alpha)
    assert issubclass(InvalidInputError, ValueError)


@pytest.mark.parametrize("alpha", [1, 1.0, 0.5, INF, torch.tensor([[1.5], [1.0]])])
def test_normmax_needs_alpha_above_1(alpha):
    with pytest.raises(InvalidInputError, match="alpha must be a finite number above 1"):
        normmax(torch.zeros(2, 3), alpha)


def test_shapes_of_alpha():
    with pytest.raises(InvalidInputError, match=r"broadcasts to shape \(2, 1\).*got shape \(3,\)"):
        entmax(torch.zeros(2, 3), torch.full((3,), 1.5))
    with pytest.raises(InvalidInputError, match=r"broadcasts to shape \(1, 3\).*got shape \(2, 1\)"):
        entmax(torch.zeros(2, 3), torch.full((2, 1), 1.5), 0)
    with pytest.raises(TypeError, match=r"alpha must be .* got a tensor of torch\.int64"):
        entmax(torch.zeros(2, 3), torch.tensor(2))


@pytest.mark.parametrize("k", [4, 3.01, torch.tensor([[1.0], [4.0]])])
def test_a_budget_of_more_than_there_is(k):
    with pytest.raises(InvalidInputError, match=r"k must be at most 3, the size of x along dim -1, got [34]"):
        budget(torch.zeros(2, 3), k)


@pytest.mark.parametrize("k", [-1, torch.nan, INF, None])
def test_other_budgets(k):
    with pytest.raises(InvalidInputError, match="k must be a finite number of at least 0"):
        budget(torch.zeros(2, 3), k)


@pytest.mark.parametrize("k", [0, 1.5, None])
def test_topk_needs_a_whole_number(k):
    with pytest.raises(InvalidInputError, match="k must be"):
        topk_sparsemax(torch.zeros(2, 3), k)


# ---------------------------------------------------------------------------------------------- devices


@pytest.mark.cuda
@every_map
def test_cuda(name):
    x = 2 * torch.randn(5, 40, dtype=DOUBLE)
    x[1] = -INF
    x[2, ::2] = -INF
    there = x.cuda().requires_grad_()
    x.requires_grad_()
    here, found = MAPS[name](x), MAPS[name](there)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), here, rtol=0, atol=1e-12)
    g = torch.randn(5, 40, dtype=DOUBLE)
    (expected,) = torch.autograd.grad(here, x, g)
    (gradient,) = torch.autograd.grad(found, there, g.cuda())
    torch.testing.assert_close(gradient.cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.cuda
@pytest.mark.parametrize("function", [entmax, lambda x, alpha: normmax(x, alpha + 0.1), lambda x, k: budget(x, 3 * k)])
def test_cuda_with_a_parameter_for_each_row(function):
    x, parameter = torch.randn(4, 40, dtype=DOUBLE), torch.tensor([[1.0], [1.3], [2.0], [3.5]], dtype=DOUBLE)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, parameter)]
        found = function(*leaves)
        gradients = torch.autograd.grad((found * torch.arange(40.0, device=device)).sum(), leaves)
        results.append([t.detach().cpu() for t in (found, *gradients)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------- modules

MODULES = [
    (Softmax(1), lambda x: softmax(x, 1), "Softmax(dim=1)"),
    (Sparsemax(dim=-2), lambda x: sparsemax(x, -2), "Sparsemax(dim=-2)"),
    (Entmax15(), entmax15, "Entmax15(dim=-1)"),
    (Entmax(1.3, 0), lambda x: entmax(x, 1.3, 0), "Entmax(alpha=1.3, dim=0, learnable=False)"),
    (Normmax(3.0), lambda x: normmax(x, 3.0), "Normmax(alpha=3.0, dim=-1)"),
    (TopkSparsemax(2, 1), lambda x: topk_sparsemax(x, 2, 1), "TopkSparsemax(k=2, dim=1)"),
    (Budget(1.5), lambda x: budget(x, 1.5), "Budget(k=1.5, dim=-1)"),
]


@pytest.mark.parametrize(("module", "function", "shown"), MODULES, ids=[shown for *_, shown in MODULES])
def test_modules(module, function, shown):
    x = torch.randn(4, 3)
    assert torch.equal(module(x), function(x))
    assert repr(module) == shown
    assert not list(module.parameters())
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))


def test_entmax_with_an_alpha_for_each_head():
    start = torch.tensor([1.25, 1.5, 3.0]).view(3, 1, 1)
    x = torch.randn(2, 3, 4, 5)
    fixed, learnable = Entmax(start), Entmax(start, learnable=True)
    torch.testing.assert_close(learnable(x), fixed(x))
    assert torch.equal(fixed(x), entmax(x, start))
    assert repr(learnable) == "Entmax(alpha=of shape (3, 1, 1), dim=-1, learnable=True)"
    assert list(fixed.state_dict()) == ["fixed"]
    assert list(learnable.state_dict()) == ["beta"]
    other = Entmax(torch.full((3, 1, 1), 2.0), learnable=True)
    other.load_state_dict(learnable.state_dict())
    assert torch.equal(other(x), learnable(x))
    assert learnable.double().alpha.dtype == DOUBLE
    learnable(x.double()).square().sum().backward()
    assert learnable.beta.grad.shape == (3, 1, 1)


def test_what_entmax_cannot_learn():
    with pytest.raises(InvalidInputError, match="alpha must be above 1 if it is learnable"):
        Entmax(1.0, learnable=True)
    for wrong in (Entmax, lambda alpha: Entmax(alpha, learnable=True)):
        with pytest.raises(InvalidInputError, match="alpha must be a finite number of at least 1"):
            wrong(0.5)
    with pytest.raises(InvalidInputError):
        Normmax(1.0)
    with pytest.raises(InvalidInputError):
        Budget(-1)
    with pytest.raises(InvalidInputError):
        TopkSparsemax(0)
