"""Losses of scores over classes, against their definition and torch's cross-entropy."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy

import structinf as si
from entropy_formulas import every_entropy
from simplex_map_reference import DOUBLE, INF, double
from structinf.errors import InvalidInputError, UnknownNameError
from structinf.simplex import (
    Entropy,
    NormEntropy,
    RenyiEntropy,
    ShannonEntropy,
    SimplexLoss,
    SquaredNormEntropy,
    TsallisEntropy,
    entmax_loss,
    simplex_loss,
    sparsemax,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("alpha", "value", "gradient"),
    [
        (1, 1.407606, [-0.755272, 0.665241, 0.090031]),
        (1.5, 1.061656, [-0.830719, 0.830719, 0]),
        (2, 1.0, [-1, 1, 0]),
    ],
)
def test_listed_values(alpha, value, gradient):
    x = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    loss = entmax_loss(x, torch.tensor([0]), alpha)
    assert isinstance(loss, torch.Tensor)
    assert loss.item() == pytest.approx(value, abs=1e-6)
    (g,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(g, torch.tensor([gradient], dtype=torch.float32), rtol=0, atol=1e-6)


@every_entropy
def test_values_and_gradients(entropy):
    x = torch.randn(6, 5, dtype=DOUBLE, requires_grad=True)
    y = torch.randint(5, (6,))
    p = entropy.probabilities(x).detach()
    conjugate = (p * x).sum(1) + entropy(p)
    losses = simplex_loss(x, y, entropy, reduction="none")
    torch.testing.assert_close(losses, conjugate - x[torch.arange(6), y])
    (g,) = torch.autograd.grad(losses.sum(), x)
    torch.testing.assert_close(g, p - torch.eye(5)[y])
    soft = torch.distributions.Dirichlet(torch.full((5,), 0.5, dtype=DOUBLE)).sample((6,))
    losses = simplex_loss(x, soft, entropy, reduction="none")
    torch.testing.assert_close(losses, conjugate - entropy(soft) - (soft * x).sum(1))
    assert (losses > 0).all()
    (g,) = torch.autograd.grad(losses.sum(), x)
    torch.testing.assert_close(g, p - soft)
    assert simplex_loss(x, p, entropy, reduction="none").abs().max() < 1e-14  # 0 for what is predicted
    hot = torch.eye(5, dtype=DOUBLE)[y]
    torch.testing.assert_close(simplex_loss(x, hot, entropy), simplex_loss(x, y, entropy))


@every_entropy
def test_derivatives_of_both_orders(entropy):
    x = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
    y, cost = torch.tensor([1, -100, 3]), torch.rand(4, 4, dtype=DOUBLE).fill_diagonal_(0)
    soft = torch.softmax(torch.randn(3, 4, dtype=DOUBLE), 1)
    for loss in (
        lambda t: simplex_loss(t, y, entropy, cost=cost),
        lambda t: simplex_loss(t, soft, entropy, reduction="none"),
    ):
        assert gradcheck(loss, x)
        assert gradgradcheck(loss, x)


def test_the_hessian_is_the_jacobian_of_the_map():
    x = torch.randn(5, dtype=DOUBLE)
    hessian = torch.autograd.functional.hessian(lambda t: simplex_loss(t, torch.tensor(2), "sparsemax"), x)
    jacobian = torch.autograd.functional.jacobian(sparsemax, x)
    torch.testing.assert_close(hessian, jacobian)


@every_entropy
def test_functional_transforms(entropy):
    x, y = torch.randn(3, 4, 5, dtype=DOUBLE), torch.tensor([[0, 1, -100, 4]] * 3)
    soft = torch.softmax(torch.randn(3, 4, 5, dtype=DOUBLE), -1)

    def loss(x, y):
        return simplex_loss(x, y, entropy)

    for target in (y, soft):
        rows = x.clone().requires_grad_()
        losses = torch.stack([loss(*row) for row in zip(rows, target, strict=True)])
        (g,) = torch.autograd.grad(losses.sum(), rows)
        torch.testing.assert_close(torch.func.vmap(loss)(x, target), losses)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x, target), g)
        torch.testing.assert_close(torch.func.vmap(loss, in_dims=(0, None))(x, target[0])[0], losses[0])
    hessian = torch.autograd.functional.hessian(lambda t: loss(t, y[0]), x[0])
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(x[0], y[0]), hessian)
    with pytest.raises(InvalidInputError, match=r"got 5 at \(1, 2\)"):
        torch.func.vmap(loss)(x, y.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(5)))


def test_gradients_in_soft_targets_and_costs():
    x = torch.randn(2, 3, dtype=DOUBLE)
    z = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    cost = torch.rand(3, 3, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda z, cost: simplex_loss(x, torch.softmax(z, 1), "entmax15", cost=cost), (z, cost))


# ---------------------------------------------------------------------------------------------- α of each row


def test_alpha_of_each_row_is_the_loss_with_this_number():
    x = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.4, 0.3]])
    y, alpha = torch.tensor([0, 1]), torch.tensor([[1.2], [2.0]])
    losses = entmax_loss(x, y, alpha, reduction="none")
    torch.testing.assert_close(losses, torch.tensor([1.199058, 0.343333]), rtol=0, atol=1e-6)
    image, labels = torch.randn(4, 3, 5, dtype=DOUBLE), torch.randint(3, (4, 5))
    labels[0, 0] = -100
    alpha = 1 + 2 * torch.rand(4, 1, 5, dtype=DOUBLE)
    alpha[1] = 1.0
    losses = entmax_loss(image, labels, alpha, dim=1, reduction="none")
    for i, j in [(0, 0), (0, 1), (1, 2), (3, 4)]:
        alone = entmax_loss(image[i, :, j], labels[i, j], alpha[i, 0, j].item())
        torch.testing.assert_close(losses[i, j], alone, rtol=1e-12, atol=1e-14)
    entropy, p = TsallisEntropy(alpha[0]), torch.softmax(image[0], 0)
    by_number = [TsallisEntropy(a.item())(p[:, j]) for j, a in enumerate(alpha[0, 0])]
    torch.testing.assert_close(entropy(p, 0), torch.stack(by_number))
    torch.testing.assert_close(entropy.margin, 1 / (alpha[0] - 1))


@pytest.mark.parametrize("alphas", [[[1.0], [1.3]], [[1.7], [3.0]], [[1.4]]])
def test_the_gradient_in_alpha(alphas):
    x = torch.tensor([[1.0, 1.8, 0.1], [0.5, 0.4, -INF]], dtype=DOUBLE, requires_grad=True)
    alpha = torch.tensor(alphas, dtype=DOUBLE, requires_grad=True)
    soft, hard = torch.tensor([[0.5, 0.2, 0.3], [0.9, 0.1, 0]], dtype=DOUBLE), torch.tensor([2, 0])
    for y in (hard, soft):

        def loss(a, y=y):
            return entmax_loss(x, y, 1 + a, reduction="none")

        if alphas[0][0] > 1:  # below 1 there is no loss
            assert gradcheck(loss, (alpha - 1).detach().requires_grad_())
            assert gradgradcheck(lambda a, y=y: entmax_loss(x.detach(), y, a), alpha)
        (g,) = torch.autograd.grad(entmax_loss(x, y, alpha, reduction="sum"), alpha)
        step = 1e-6
        rise = entmax_loss(x, y, alpha + step, reduction="none") - entmax_loss(x, y, alpha, reduction="none")
        torch.testing.assert_close(g.sum(), rise.detach().sum() / step, rtol=1e-4, atol=1e-5)


def test_both_derivatives_with_alpha_of_each_row():
    x = torch.tensor([[1.0, 1.8, 0.1], [0.5, 0.4, 0.3]], dtype=DOUBLE, requires_grad=True)
    alpha = torch.tensor([[1.3], [1.8]], dtype=DOUBLE, requires_grad=True)
    y = torch.tensor([2, 0])
    assert gradcheck(lambda x, a: entmax_loss(x, y, a), (x, alpha))
    assert gradgradcheck(lambda x, a: entmax_loss(x, y, a), (x, alpha))
    both = torch.func.vmap(torch.func.grad(entmax_loss, argnums=(0, 2)))(x, y, alpha)
    expected = torch.autograd.grad(entmax_loss(x, y, alpha, reduction="sum"), (x, alpha))
    torch.testing.assert_close(both, expected)


def test_alpha_as_a_parameter_of_the_loss_module():
    loss = SimplexLoss(TsallisEntropy(torch.nn.Parameter(torch.tensor(1.3))))
    other = copy.deepcopy(loss).double()
    assert [name for name, _ in other.named_parameters()] == ["alpha"]
    other(torch.randn(3, 4, dtype=DOUBLE), torch.tensor([0, 1, 2])).backward()
    assert other.alpha.grad.abs() > 0
    assert other.entropy.alpha is other.alpha


@pytest.mark.parametrize("read", [list, tuple, np.array])
def test_parameters_of_rows_as_nested_lists(read):
    x = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.4, 0.3]], dtype=DOUBLE)
    nested, tensor = read([read([1.2]), read([2.0])]), torch.tensor([[1.2], [2.0]], dtype=DOUBLE)
    for function in (si.simplex.entmax, si.simplex.normmax, si.simplex.budget):
        assert torch.equal(function(x, nested), function(x, tensor))
    assert torch.equal(si.simplex.Entmax(nested).double()(x), si.simplex.entmax(x, tensor.float().double()))
    target = torch.tensor([0, 1])
    losses = entmax_loss(x.float(), target, nested, reduction="none")
    assert losses.dtype is torch.float32
    torch.testing.assert_close(losses, torch.tensor([1.199058, 0.343333]), rtol=0, atol=1e-6)
    assert torch.equal(SimplexLoss(TsallisEntropy(nested))(x, target), entmax_loss(x, target, tensor))


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        (torch.tensor([1.5, 2.0]), r"broadcasts to shape \(2, 1\)"),
        (torch.tensor([[1.5], [0.5]]), "at least 1"),
        (torch.tensor([[1.5], [math.nan]]), "at least 1"),
        ([1.5, 2.0], r"broadcasts to shape \(2, 1\)"),
        ([[1.5], [0.5]], "at least 1"),
        ([[1.5], [2.0, 3.0]], "nested lists of equal lengths"),
        ([[True], [True]], "nested lists of equal lengths"),
        ([[1.5], ["2"]], "nested lists of equal lengths"),
        ([torch.tensor(1.5), torch.tensor(2.0)], "pass one tensor"),
        ("15", "at least 1"),
    ],
)
def test_wrong_alphas(alpha, message):
    with pytest.raises(InvalidInputError, match=message):
        entmax_loss(torch.zeros(2, 3), torch.tensor([0, 1]), alpha)
    with pytest.raises(TypeError, match=r"torch\.int64"):
        entmax_loss(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor(2))
    with pytest.raises(InvalidInputError, match="only TsallisEntropy takes a tensor"):
        NormEntropy(torch.tensor(2.0))


# ---------------------------------------------------------------------------------------------- margins


@every_entropy
def test_the_loss_is_0_from_the_margin_on_and_only_there(entropy):
    x = -torch.rand(20, 5, dtype=DOUBLE)
    y = torch.randint(5, (20,))
    best = x.scatter(1, y.unsqueeze(1), -INF).amax(1)
    at_margin = x.scatter(1, y.unsqueeze(1), (best + min(entropy.margin, 20)).unsqueeze(1))
    losses = simplex_loss(at_margin.requires_grad_(), y, entropy, reduction="none")
    (g,) = torch.autograd.grad(losses.sum(), at_margin)
    if entropy.margin == INF:
        assert (losses > 0).all()
        return
    assert (losses <= 1e-15).all()  # the sum above has rounded
    far = at_margin.detach() + torch.eye(5)[y] * torch.rand(20, 1)
    assert simplex_loss(far, y, entropy, reduction="none").eq(0).all()
    assert g.abs().max() < 1e-6
    for short in (1e-2, 0.1, 0.3):  # nearer to it the loss is less than rounding
        within = at_margin.detach() - short * entropy.margin * torch.eye(5)[y]
        assert (simplex_loss(within, y, entropy, reduction="none") > 0).all()


@pytest.mark.parametrize("entropy", [TsallisEntropy(1.25), TsallisEntropy(1.5), TsallisEntropy(2), TsallisEntropy(4)])
def test_exactly_at_the_margin(entropy):
    for dtype in (torch.float32, DOUBLE):
        x = torch.tensor([[entropy.margin, 0, -1, -INF]], dtype=dtype, requires_grad=True)
        loss = simplex_loss(x, torch.tensor([0]), entropy)
        assert loss.item() == 0
        (g,) = torch.autograd.grad(loss, x)
        assert g.tolist() == [[0, 0, 0, 0]]


def test_a_cost_moves_the_margin():
    cost = torch.tensor([[0.0, 2.0, 0.5], [1.0, 0.0, 0.0], [3.0, 3.0, 0.0]])
    x = torch.tensor([[3.0, 0.0, 1.5], [2.9, 0.0, 1.5], [3.0, 0.0, 1.75], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
    y = torch.tensor([0, 0, 0, 1, 2])
    losses = simplex_loss(x, y, "sparsemax", cost=cost, reduction="none")
    assert (losses == 0).tolist() == [True, False, False, True, True]
    torch.testing.assert_close(losses, simplex_loss(x + cost[y], y, "sparsemax", reduction="none"))
    soft = torch.tensor([[0.5, 0.5, 0.0]])
    expected = simplex_loss(x[:1] + cost[:2].mean(0), soft, "sparsemax")
    torch.testing.assert_close(simplex_loss(x[:1], soft, "sparsemax", cost=cost), expected)


# ---------------------------------------------------------------------------------------------- as the cross-entropy


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_weight", [False, True])
def test_cross_entropy(with_weight, reduction):
    x = torch.randn(3, 5, 2, 4)
    y = torch.randint(5, (3, 2, 4))
    weight = torch.tensor([0.5, 1, 2, 0, 3]) if with_weight else None
    y[0, 0] = -1
    for ignored in (-100, 7):
        target = y.masked_fill(y == -1, ignored)
        here, there = x.clone().requires_grad_(), x.clone().requires_grad_()
        loss = SimplexLoss("softmax", dim=1, weight=weight, ignore_index=ignored, reduction=reduction)(here, target)
        expected = cross_entropy(there, target, weight, ignore_index=ignored, reduction=reduction)
        torch.testing.assert_close(loss, expected)
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(here.grad, there.grad)


@every_entropy
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_soft_targets_that_sum_to_1_only_nearly(entropy, dtype):
    y = torch.full((1, 7), 1 / 7).to(dtype)
    x = torch.randn(1, 7, dtype=DOUBLE)
    for shift in (0.0, 1000.0):
        expected = simplex_loss(x, torch.full((1, 7), 1 / 7, dtype=DOUBLE), entropy)
        torch.testing.assert_close(simplex_loss(x + shift, y, entropy), expected, rtol=1e-9, atol=1e-9)


def test_cross_entropy_with_probabilities():
    x, y = torch.randn(3, 5, 4), torch.softmax(torch.randn(3, 5, 4), 1)
    entropy = ShannonEntropy()(y, 1)
    loss = SimplexLoss("softmax", dim=1, reduction="none")(x, y)
    torch.testing.assert_close(loss, cross_entropy(x, y, reduction="none") - entropy)


@every_entropy
def test_ignored_instances(entropy):
    x = torch.tensor([[-2.0, 0.0, 0.5], [torch.nan, INF, -INF]], requires_grad=True)
    alone = simplex_loss(x[:1], torch.tensor([0]), entropy)
    loss = simplex_loss(x, torch.tensor([0, -1]), entropy, ignore_index=-1)
    assert torch.equal(loss, alone)
    (g,) = torch.autograd.grad(loss, x)
    assert g[1].tolist() == [0, 0, 0]
    assert g[0].abs().sum() > 0
    for reduction in ("mean", "sum", "none"):
        nothing = simplex_loss(x, torch.tensor([-1, -1]), entropy, ignore_index=-1, reduction=reduction).sum()
        (g,) = torch.autograd.grad(nothing, x)
        assert nothing == 0
        assert g.eq(0).all()


@every_entropy
def test_forms_of_input(entropy):
    x, y = torch.randn(2, 3, 4), torch.randint(4, (2, 3))
    losses = simplex_loss(x, y, entropy, reduction="none")
    assert losses.shape == (2, 3)
    moved = simplex_loss(x.movedim(-1, 0), y, entropy, dim=0, reduction="none")
    torch.testing.assert_close(moved, losses)
    for dtype in (torch.uint8, torch.int32):
        torch.testing.assert_close(simplex_loss(x, y.to(dtype), entropy), losses.mean())
    torch.testing.assert_close(simplex_loss(x[0, 0], y[0, 0], entropy), losses[0, 0])
    assert simplex_loss(x[0, 0], y[0, 0], entropy, reduction="none").shape == ()
    for reduction, shape in (("mean", ()), ("sum", ()), ("none", (0, 3))):
        nothing = simplex_loss(x[:0], y[:0], entropy, reduction=reduction)
        assert nothing.shape == shape
        assert nothing.sum() == 0
    for dtype in (torch.float16, torch.bfloat16):
        low = x.to(dtype).requires_grad_()
        loss = simplex_loss(low, y, entropy)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss, simplex_loss(low.double(), y, entropy).to(dtype))
        assert torch.autograd.grad(loss, low)[0].dtype == dtype


@every_entropy
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scales(entropy, scale):
    x, y = scale * torch.randn(10, 6), torch.randint(6, (10,))
    low, high = x.clone().requires_grad_(), x.double().requires_grad_()
    found, exact = (simplex_loss(t, y, entropy, reduction="none") for t in (low, high))
    torch.testing.assert_close(found, exact.float())
    assert (exact >= 0).all()
    for loss in (found, exact):
        loss.sum().backward()
    torch.testing.assert_close(low.grad, high.grad.float())


@every_entropy
@pytest.mark.parametrize("gap", [0.3, 1e-2, 1e-3])
def test_small_losses_keep_their_digits_in_float32(entropy, gap):
    level = (1 - gap) * entropy.margin if entropy.margin < INF else 6 - 2 * math.log10(gap)
    x = torch.tensor([[0.0, level, -0.5, -3.0]])
    x = (x + 0.25 * torch.arange(5).unsqueeze(1)).requires_grad_()
    found, exact = (simplex_loss(t, torch.ones(5).long(), entropy, reduction="none") for t in (x, x.double()))
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-12)
    assert (exact > 0).all() or gap < 1e-2


@every_entropy
def test_classes_that_are_not_to_be_had(entropy):
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    wide = torch.cat([x, torch.full((3, 1), -INF)], 1).requires_grad_()
    loss = simplex_loss(wide, y, entropy)
    torch.testing.assert_close(loss, simplex_loss(x, y, entropy))
    assert torch.autograd.grad(loss, wide)[0][:, 4].tolist() == [0, 0, 0]
    soft = torch.tensor([[0.5, 0.5, 0, 0, 0]] * 3)
    assert simplex_loss(wide, soft, entropy).isfinite()
    for target in (torch.tensor([0, 4, 2]), soft.roll(1, 1).index_copy(0, torch.tensor([1]), soft[:1].roll(-1, 1))):
        losses = simplex_loss(wide, target, entropy, reduction="none")
        (g,) = torch.autograd.grad(losses.sum(), wide)
        assert losses.isinf().tolist() == [False, True, False]
        assert g.isfinite().all()
        assert g[1].eq(0).all()


def test_the_input_stays_as_it_is():
    x, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, -100, 2])
    before = x.detach().clone()
    simplex_loss(x, y, "sparsemax").backward()
    assert torch.equal(x, before)
    assert y.tolist() == [0, -100, 2]


# ---------------------------------------------------------------------------------------------- errors, modules


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (torch.tensor([0, 4]), {}, r"classes must lie between 0 and 3.*got 4 at \(1,\)"),
        (torch.tensor([-1, 0]), {}, r"got -1 at \(0,\)"),
        (torch.tensor([0]), {}, r"must have shape \(2,\) for classes"),
        (torch.ones(2, 3), {}, r"probabilities must have the shape \(2, 4\)"),
        (torch.ones(2, 4), {}, r"with sum 1 along dim -1.*at \(0,\)"),
        (torch.tensor([[0.5, 0.5, 0, 0], [-0.5, 1.5, 0, 0]]), {}, r"at least 0.*at \(1,\)"),
        (torch.full((2, 4), torch.nan), {}, "probabilities must be at least 0"),
        (torch.full((2, 4), 0.25), {"weight": torch.ones(4)}, "got target probabilities"),
        (torch.tensor([0, 1]), {"weight": torch.ones(3)}, r"weight must be a tensor of shape \(4,\)"),
        (torch.tensor([0, 1]), {"cost": torch.ones(4)}, r"cost must be a tensor of shape \(4, 4\)"),
        (torch.tensor([0, 1]), {"dim": 2}, "dim must be a dimension"),
        (torch.tensor([0, 1]), {"reduction": "batchmean"}, "reduction"),
    ],
)
def test_refusals(target, options, message):
    with pytest.raises(InvalidInputError, match=message):
        simplex_loss(torch.zeros(2, 4), target, "sparsemax", **options)


def test_other_types():
    x = torch.zeros(2, 4)
    for target in (torch.tensor([True, False]), [0, 1]):
        with pytest.raises(TypeError, match="target"):
            simplex_loss(x, target, "sparsemax")
    with pytest.raises(TypeError, match="scores"):
        simplex_loss(x.long(), torch.tensor([0, 1]), "sparsemax")
    for entropy in (2.0, None, ShannonEntropy, sparsemax):
        with pytest.raises(TypeError, match=r"entropy must be a name or an Entropy such as TsallisEntropy\(1\.5\)"):
            simplex_loss(x, torch.tensor([0, 1]), entropy)
        with pytest.raises(TypeError, match="entropy"):
            SimplexLoss(entropy)
    with pytest.raises(TypeError, match="smoothing"):
        simplex_loss(x, torch.tensor([0, 1]), "sparsemax", smoothing=0.1)
    with pytest.raises(TypeError, match="smoothing"):
        entmax_loss(x, torch.tensor([0, 1]), 2, smoothing=0.1)
    with pytest.raises(TypeError, match="label_smoothing"):
        SimplexLoss("sparsemax", label_smoothing=0.1)


@pytest.mark.parametrize("loss", [SimplexLoss, lambda name: simplex_loss(torch.zeros(2), torch.tensor(0), name)])
def test_unknown_entropies(loss):
    with pytest.raises(
        UnknownNameError, match=r"'sparse'; did you mean 'sparsemax'\? Known: softmax, sparsemax, entmax15"
    ):
        loss("sparse")
    with pytest.raises(
        UnknownNameError,
        match=r"'renyi'\. Known: .*; for another entropy, pass an object such as TsallisEntropy\(1\.25\)",
    ):
        loss("renyi")


@pytest.mark.parametrize(
    ("entropy", "function", "margin"),
    [
        ("softmax", lambda x, y: cross_entropy(x, y), INF),
        ("sparsemax", lambda x, y: simplex_loss(x, y, TsallisEntropy(2)), 1),
        ("entmax15", lambda x, y: simplex_loss(x, y, TsallisEntropy(1.5)), 2),
        (TsallisEntropy(1.25), lambda x, y: entmax_loss(x, y, 1.25), 4),
        (SquaredNormEntropy(2), lambda x, y: simplex_loss(x, y, "sparsemax"), 1),
        (NormEntropy(3), lambda x, y: simplex_loss(x, y, NormEntropy(3)), 1),
        (RenyiEntropy(1), lambda x, y: cross_entropy(x, y), INF),
    ],
    ids=lambda value: "" if callable(value) and not isinstance(value, Entropy) else str(value),
)
def test_modules(entropy, function, margin):
    module = SimplexLoss(entropy)
    x, y = torch.randn(6, 4), torch.randint(4, (6,))
    for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(each(x, y), function(x, y))
        assert each.margin == margin


def test_weights_and_costs_are_buffers():
    loss = SimplexLoss("sparsemax", weight=torch.ones(3), cost=torch.ones(3, 3) - torch.eye(3), reduction="sum")
    assert set(loss.state_dict()) == {"weight", "cost"}
    assert loss.double().cost.dtype == DOUBLE
    assert repr(loss) == (
        "SimplexLoss(TsallisEntropy(alpha=2.0), dim=-1, ignore_index=-100, reduction='sum', weight=..., cost=...)"
    )
    assert list(SimplexLoss("sparsemax").state_dict()) == []


def test_an_entropy_of_ones_own():
    class Cooler(Entropy):
        """Half of Gini's: probabilities of 2 x."""

        margin = 0.5

        def __call__(self, p, dim=-1):
            return 0.25 * (p * (1 - p)).sum(dim)

        def probabilities(self, x, dim=-1):
            return sparsemax(2 * x, dim)

    x, y = torch.randn(4, 3, dtype=DOUBLE, requires_grad=True), torch.tensor([0, 1, 2, 0])
    loss = SimplexLoss(Cooler())
    torch.testing.assert_close(loss(x, y), simplex_loss(2 * x, y, "sparsemax") / 2)
    assert gradgradcheck(loss, (x, y))
    assert loss(double(0.5, 0, 0), torch.tensor(0)) == 0


@pytest.mark.cuda
@every_entropy
def test_cuda(entropy):
    x, y = torch.randn(4, 5), torch.tensor([0, 1, -100, 3])
    cost = torch.rand(5, 5)
    found = simplex_loss(x.cuda(), y.cuda(), entropy, cost=cost.cuda())
    torch.testing.assert_close(found.cpu(), simplex_loss(x, y, entropy, cost=cost))
