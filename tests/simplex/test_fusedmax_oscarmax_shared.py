"""What fusedmax and oscarmax have in common: derivatives, forms of input, modules."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from simplex_map_reference import DOUBLE, INF
from structinf.errors import InvalidInputError
from structinf.kernels.simplex import dispatch as compiled
from structinf.kernels.simplex import torch_backend
from structinf.simplex import Fusedmax, Oscarmax, fusedmax, oscarmax

both = pytest.mark.parametrize("function", [fusedmax, oscarmax])


@both
@pytest.mark.parametrize("weight", [0.02, 0.1, 1.0])
def test_derivatives_of_both_orders(function, weight):
    x = torch.randn(4, 7, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda t: function(t, weight), x)
    assert gradgradcheck(lambda t: function(t, weight), x)
    p = function(x, weight)
    (g,) = torch.autograd.grad(p.square().sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * torch.arange(7.0)).sum(), x)
    # g = 2 J p with a constant J, so that its derivative is 2 J v by J.
    (product,) = torch.autograd.grad(function(x, weight), x, torch.arange(7.0, dtype=DOUBLE).expand(4, 7))
    (expected,) = torch.autograd.grad(function(x, weight), x, 2 * product)
    torch.testing.assert_close(h, expected)


@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("n", [1, 5, 64, 200])
def test_compiled_products_are_those_of_torch(n, dtype, is_contiguous):
    x = torch.randn(6, n, dtype=dtype)
    x[1] = (2 * x[1]).round()
    x[2, ::3] = -INF
    x[3] = -INF
    x[4, -1] = torch.nan
    x[5] *= 0.01
    p = (compiled.fusedmax if is_contiguous else compiled.oscarmax)(x, 0.02)
    g = torch.randn(6, n, dtype=dtype)
    found = compiled.group_means(p, g, is_contiguous)
    expected = torch_backend.group_means(p, g, is_contiguous)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[3].eq(0).all()
    assert found[4].isnan().all()
    assert found[p == 0].eq(0).all()


@both
def test_every_dim_is_a_loop_over_rows(function):
    x = torch.randn(2, 3, 4, 5)
    for dim in range(-4, 4):
        found, moved = function(x, 0.1, dim), x.movedim(dim, -1)
        for index in itertools.product(*map(range, moved.shape[:-1])):
            assert torch.equal(found.movedim(dim, -1)[index], function(moved[index], 0.1))


@both
def test_rows_do_not_depend_on_their_batch_nor_on_threads(function):
    x = torch.randn(300, 400)
    torch.set_num_threads(3)  # the fixture takes it back
    found = function(x, 0.05)
    g = torch.autograd.functional.vjp(lambda t: function(t, 0.05), x, x)[1]
    torch.set_num_threads(1)
    assert torch.equal(found[7:9], function(x[7:9], 0.05))
    assert torch.equal(g[7:9], torch.autograd.functional.vjp(lambda t: function(t, 0.05), x[7:9], x[7:9])[1])


@both
def test_forms_of_input(function):
    x = torch.randn(4, 6)
    before = x.clone()
    for half in (torch.float16, torch.bfloat16):
        low = x.to(half).requires_grad_()
        found = function(low)
        assert found.dtype == half
        assert torch.equal(found, function(low.float()).to(half))
        found.square().sum().backward()
        assert low.grad.dtype == half
    assert torch.equal(function(x.t()[::2].t()), function(x[:, ::2].contiguous()))
    assert torch.equal(function(x[:1].expand(3, 6)), function(x[:1]).expand(3, 6))
    assert function(x[:0]).shape == (0, 6)
    assert function(x[:, :0]).shape == (4, 0)
    assert function(torch.tensor(3.0)) == 1
    assert torch.equal(torch.func.vmap(function)(x), function(x))
    torch.testing.assert_close(torch.func.grad(lambda t: function(t)[0])(x[0]).sum(), torch.tensor(0.0))
    assert torch.equal(x, before)


@both
def test_rows_that_have_no_probabilities(function):
    x = torch.tensor([[-INF, -INF, -INF], [torch.nan, 0, 1], [0, INF, 1], [1, 0, -INF]], requires_grad=True)
    p = function(x)
    assert p[0].tolist() == [0, 0, 0]
    assert p[1:3].isnan().all()
    (g,) = torch.autograd.grad(p[[0, 3]].square().sum(), x)
    assert g[0].tolist() == [0, 0, 0]
    assert g[3, 2] == 0
    assert g[3].isfinite().all()


@both
def test_scales(function):
    x = torch.randn(5, 30, dtype=DOUBLE)
    for scale in (1e-3, 1.0, 1e3):
        for dtype in (torch.float32, DOUBLE):
            low = (scale * x).to(dtype)
            found, exact = function(low, 0.1 * scale), function(low.double(), 0.1 * scale)
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-7)
            torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=dtype))


@both
@pytest.mark.parametrize("weight", [-0.1, INF, torch.nan, None, True, "0.1"])
def test_other_weights(function, weight):
    with pytest.raises(InvalidInputError, match="weight must be a finite number of at least 0"):
        function(torch.zeros(3), weight)


@both
@pytest.mark.parametrize(
    "weight", [torch.tensor([1.0, 2.0]), torch.ones(2, 1), torch.zeros(0), torch.tensor([[0.0, 1]])]
)
def test_a_weight_of_several_numbers(function, weight):
    with pytest.raises(
        InvalidInputError, match=r"^weight must be one number for all rows, .*, got a tensor of shape \("
    ):
        function(torch.zeros(2, 3), weight)


@both
def test_a_weight_is_not_learned(function):
    weight = torch.tensor(0.3)
    assert torch.equal(function(torch.zeros(2, 3), weight), function(torch.zeros(2, 3), 0.3))
    with pytest.raises(
        InvalidInputError, match=r"^weight must be .*, got a tensor that requires grad; .*float\(weight\)"
    ):
        function(torch.zeros(2, 3), weight.requires_grad_())


@pytest.mark.parametrize(("module", "function"), [(Fusedmax, fusedmax), (Oscarmax, oscarmax)])
def test_modules(module, function):
    layer = module(0.3, dim=1)
    assert repr(layer) == f"{module.__name__}(weight=0.3, dim=1)"
    x = torch.randn(2, 5, 3)
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(each(x), function(x, 0.3, 1))
    with pytest.raises(InvalidInputError, match="weight"):
        module(-1)


@pytest.mark.cuda
@both
def test_cuda(function):
    x = torch.randn(3, 4, 50)
    x[0, 0, 40:] = -INF
    here, there = x.clone().requires_grad_(), x.cuda().requires_grad_()
    g = torch.randn(3, 4, 50)
    p = function(there)
    torch.testing.assert_close(p.cpu(), function(here))
    p.backward(g.cuda())
    function(here).backward(g)
    torch.testing.assert_close(there.grad.cpu(), here.grad)
