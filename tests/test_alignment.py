"""Soft-DTW as its users know it: published values, enumeration of all alignments, gradients, memory, bad input."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys

import pytest
import torch

from structinf.alignment import alignment_matrix, alignment_path, soft_dtw
from structinf.errors import InfeasibleError, InvalidInputError, UnknownNameError
from structinf.pairwise import pairwise_cost
from structinf.regularizers import Tsallis
from structinf.series import SoftDTWLoss, soft_dtw_between, soft_dtw_divergence

DOUBLE = torch.float64
METRICS = ["squared_euclidean", "euclidean", "l1", "cosine"]
REGULARIZERS = ["negentropy", "squared_l2", "tsallis"]
THREE = torch.tensor([[0, 1, 4], [1, 0, 1], [4, 1, 0]], dtype=DOUBLE)


def numbers(*values):
    return torch.tensor(values, dtype=DOUBLE)


# ----------------------------------------------------------------------------- plain Python


@functools.cache
def paths(n, m):
    """All alignments, as lists of cells."""
    if n == 1 and m == 1:
        return [[(0, 0)]]
    before = [(n - 1, m - 1), (n - 1, m), (n, m - 1)]
    return [[*path, (n - 1, m - 1)] for a, b in before if a and b for path in paths(a, b)]


def enumerated(cost, temperature):
    """The smoothed cost and the expected alignment, of the negative entropy, and the cost of the best path."""
    n, m = cost.shape
    costs = [sum(cost[i, j].item() for i, j in path) for path in paths(n, m)]
    least = min(costs)
    weights = [math.exp((least - c) / temperature) for c in costs]
    mean = torch.zeros(n, m, dtype=DOUBLE)
    for path, weight in zip(paths(n, m), weights, strict=True):
        for cell in path:
            mean[cell] += weight / sum(weights)
    return least - temperature * math.log(sum(weights)), mean, least


def recursion(cost, smooth_min):
    """The value of the recursion over cells."""
    n, m = cost.shape
    v = {(0, 0): cost[0, 0].item()}
    for i, j in itertools.product(range(n), range(m)):
        if i or j:
            before = [v[p] for p in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if p in v]
            v[i, j] = cost[i, j].item() + smooth_min(before)
    return v[n - 1, m - 1]


def sparse_min(x):
    """min ⟨x, q⟩ + (‖q‖² − 1) / 2 over probabilities q, over every support that q can have."""
    best = math.inf
    for count in range(1, len(x) + 1):
        for support in itertools.combinations(x, count):
            shift = (1 - sum(-c for c in support)) / count
            q = [shift - c for c in support]
            if min(q) >= 0:
                best = min(best, sum(a * b for a, b in zip(support, q, strict=True)) + (sum(a * a for a in q) - 1) / 2)
    return best


# ----------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("x", "y", "temperature", "expected"),
    [
        ([1.0], [3.0], 1, 4.0),
        ([1.0], [1.0, 2.0, 3.0], 1, 5.0),
        ([1.0, 2.0], [3.0, 2.0], 0, 4.0),
        ([1.0, 2.0], [3.0, 2.0], 0.01, 4.0),
        ([1.0, 2.0, 3.0], [1.0, 3.0], 1, 0.122654),
        ([1.0, 2.0, 3.0], [1.0, 3.0], 0.1, 0.930683),
        ([1.0, 2.0, 3.0], [1.0, 3.0], 0, 1.0),
    ],
)
def test_short_series(x, y, temperature, expected):
    assert soft_dtw_between(numbers(*x), numbers(*y), temperature).item() == pytest.approx(expected, abs=1e-6)


def test_three_by_three():
    torch.testing.assert_close(soft_dtw(THREE), numbers(-1.190428)[0], atol=1e-6, rtol=0)
    expected = numbers(1, 0.236085, 0.000754, 0.236085, 0.916184, 0.236085, 0.000754, 0.236085, 1).view(3, 3)
    torch.testing.assert_close(alignment_matrix(THREE), expected, atol=1e-6, rtol=0)
    zeros = torch.zeros(3, 3, dtype=DOUBLE)
    assert soft_dtw(zeros).item() == pytest.approx(-math.log(13))
    counts = numbers(13, 5, 1, 5, 9, 5, 1, 5, 13).view(3, 3)
    torch.testing.assert_close(13 * alignment_matrix(zeros), counts)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_series_with_itself(dtype):
    x = torch.arange(100, dtype=dtype).cos()
    assert soft_dtw_between(x, x).item() == pytest.approx(-104.370943, rel=1e-6)
    assert soft_dtw_divergence(x, x).item() == 0
    assert soft_dtw_divergence(x, x[:93]).item() > 0


@pytest.mark.parametrize("temperature", [0.1, 1, 10])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (3, 3), (5, 3)])
def test_enumeration(n, m, temperature):
    cost = torch.randn(2, n, m, dtype=DOUBLE)
    value, mean = soft_dtw(cost, temperature), alignment_matrix(cost, temperature)
    hard, path = soft_dtw(cost, 0), alignment_matrix(cost, 0)
    for b in range(2):
        expected = enumerated(cost[b], temperature)
        assert value[b].item() == pytest.approx(expected[0], abs=1e-10)
        torch.testing.assert_close(mean[b], expected[1], atol=1e-10, rtol=0)
        assert hard[b].item() == pytest.approx(expected[2], abs=1e-10)
        assert (path[b] * cost[b]).sum().item() == pytest.approx(expected[2], abs=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 1, 10])
def test_squared_norm(temperature):
    cost = torch.randn(4, 5, 6, dtype=DOUBLE)
    value = soft_dtw(cost, temperature, regularizer="squared_l2")
    for c, v in zip(cost, value, strict=True):
        assert v.item() == pytest.approx(temperature * recursion(c / temperature, sparse_min), abs=1e-10)


def test_hard_dtw_is_the_plain_recursion():
    cost = torch.rand(3, 20, 31, dtype=DOUBLE).requires_grad_()
    value = soft_dtw(cost, temperature=0)
    assert value.tolist() == pytest.approx([recursion(c, min) for c in cost.detach()])
    (gradient,) = torch.autograd.grad(value.sum(), cost)
    assert torch.equal(gradient, alignment_matrix(cost, 0))
    for cells, matrix in zip(alignment_path(cost), gradient, strict=True):
        used = cells[cells[:, 0] >= 0]
        assert sorted(used.tolist()) == matrix.nonzero().tolist()
        assert ((used[1:] - used[:-1]).amax(1) == 1).all()
        assert ((used[1:] - used[:-1]).amin(1) >= 0).all()


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_between_the_hard_cost_and_a_bound(regularizer):
    cost = torch.rand(8, 12, 9, dtype=DOUBLE)
    hard, values = soft_dtw(cost, 0), [soft_dtw(cost, t, regularizer=regularizer) for t in (1e-3, 0.1, 1)]
    assert all((a >= b - 1e-12).all() for a, b in itertools.pairwise([hard, *values]))
    # No choice of three has more than log 3.
    assert ((hard - values[0]) <= 1e-3 * 21 * math.log(3)).all()


def test_the_regularizers_own_temperature_is_the_default():
    cost = torch.rand(5, 6, dtype=DOUBLE)
    own = Tsallis(alpha=1.25, temperature=0.3)
    assert soft_dtw(cost, regularizer=own) == soft_dtw(cost, 0.3, regularizer=Tsallis(alpha=1.25))
    assert soft_dtw(cost, 2, regularizer=own) == soft_dtw(cost, 2, regularizer=Tsallis(alpha=1.25))


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_cost_and_temperature_scale_together(scale):
    cost = torch.randn(3, 8, 7, dtype=DOUBLE)
    torch.testing.assert_close(soft_dtw(scale * cost, scale), scale * soft_dtw(cost))


def test_half_precision_and_inference_mode():
    x = torch.randn(2, 30, 1)
    expected = soft_dtw_between(x, 2 * x)
    with torch.inference_mode():
        torch.testing.assert_close(soft_dtw_between(x, 2 * x), expected)
    half = soft_dtw_between(x.bfloat16(), 2 * x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.02, atol=0)
    # Their squares overflow in float16, the alignment's do not.
    assert soft_dtw_between(1000 * x[0].half(), 1000 * x[0].half(), 1).isfinite()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(soft_dtw_between(x, 2 * x), expected)


# ----------------------------------------------------------------------------- bands, lengths, batches


def test_bands():
    cost = torch.rand(3, 7, 9, dtype=DOUBLE)
    assert torch.equal(soft_dtw(cost, band=9), soft_dtw(cost))
    outside = (torch.arange(7)[:, None] - torch.arange(9)).abs()
    for band in (2, 4):
        forbidden = cost.masked_fill(outside > band, math.inf)
        assert torch.equal(soft_dtw(cost, band=band), soft_dtw(forbidden))
        assert (alignment_matrix(cost, band=band)[:, outside > band] == 0).all()
    each = soft_dtw(cost, band=torch.tensor([2, 4, 9]))
    assert torch.equal(each, torch.stack([soft_dtw(c, band=b) for c, b in zip(cost, (2, 4, 9), strict=True)]))
    x, y = torch.randn(7, dtype=DOUBLE), torch.randn(3, 9, 1, dtype=DOUBLE)
    bands = torch.tensor([2, 4, 9])
    apart = [soft_dtw_divergence(x[:, None], t, band=int(b)) for t, b in zip(y, bands, strict=True)]
    torch.testing.assert_close(soft_dtw_divergence(x, y, band=bands), torch.stack(apart))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("function", [soft_dtw_between, soft_dtw_divergence])
def test_a_padded_batch_is_what_its_pairs_are(function, metric):
    lengths = [[6, 8], [1, 5], [4, 1]]
    x, y = torch.randn(3, 6, 2, dtype=DOUBLE), torch.randn(3, 8, 2, dtype=DOUBLE)
    alone = [function(a[:n], b[:m], metric=metric) for a, b, (n, m) in zip(x, y, lengths, strict=True)]
    for i, (n, m) in enumerate(lengths):
        x[i, n:], y[i, m:] = math.nan, math.inf
    x.requires_grad_()
    y.requires_grad_()
    values = function(x, y, metric=metric, lengths=lengths)
    torch.testing.assert_close(values, torch.stack(alone))
    for series, side in ((x, 0), (y, 1)):
        (gradient,) = torch.autograd.grad(values.sum(), series, retain_graph=True)
        assert gradient.isfinite().all()
        assert all((g[pair[side] :] == 0).all() for g, pair in zip(gradient, lengths, strict=True))
    # One series for all.
    one = function(x[0], y, metric=metric, lengths=[[6, 8], [6, 5], [6, 1]])
    torch.testing.assert_close(one[2], function(x[0], y[2, :1], metric=metric))


def test_costs_with_lengths():
    cost = torch.randn(3, 5, 7, dtype=DOUBLE)
    lengths = torch.tensor([[5, 7], [2, 3], [1, 1]])
    alone = [soft_dtw(c[:n, :m]) for c, (n, m) in zip(cost, lengths.tolist(), strict=True)]
    cost[1, 2:], cost[2, :, 1:] = math.nan, math.nan
    torch.testing.assert_close(soft_dtw(cost, lengths=lengths), torch.stack(alone))
    assert (alignment_matrix(cost, lengths=lengths)[1, 2:] == 0).all()
    assert (alignment_path(cost, lengths=lengths)[2, 1:] == -1).all()


def test_batch_dimensions_broadcast():
    x, y = torch.randn(4, 6, 2), torch.randn(3, 5, 2)
    table = soft_dtw_divergence(x[:, None], y)
    assert table.shape == (4, 3)
    torch.testing.assert_close(table[2, 1], soft_dtw_divergence(x[2], y[1]), atol=1e-5, rtol=0)
    assert soft_dtw(torch.randn(0, 5, 4)).shape == (0,)
    assert soft_dtw_between(torch.randn(0, 5, 2), torch.randn(4, 2)).shape == (0,)
    assert alignment_path(torch.randn(2, 0, 5, 4)).shape == (2, 0, 8, 2)


# ----------------------------------------------------------------------------- the divergence


@pytest.mark.parametrize("temperature", [0.01, 1, 100])
def test_the_divergence_is_not_negative(temperature):
    for n, m in itertools.product((1, 2, 6), repeat=2):
        x, y = torch.randn(50, n, 2, dtype=DOUBLE), torch.randn(50, m, 2, dtype=DOUBLE)
        assert soft_dtw_divergence(x, y, temperature).min() > -1e-9
    x = torch.randn(50, 6, 2, dtype=DOUBLE)
    assert soft_dtw_divergence(x, x + 0.1 * torch.randn_like(x), temperature).min() > 0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_the_divergence_of_equal_series_is_zero_and_flat(metric, regularizer):
    x = torch.randn(3, 6, 2, dtype=DOUBLE)
    z = x.clone().requires_grad_()
    value = soft_dtw_divergence(z, x, metric=metric, regularizer=regularizer)
    assert (value == 0).all()
    (gradient,) = torch.autograd.grad(value.sum(), z)
    torch.testing.assert_close(gradient, torch.zeros_like(x), atol=1e-7, rtol=0)


def test_loss_module():
    x, y = torch.randn(4, 5, 1), torch.randn(4, 7, 1)
    lengths = [[5, 7], [3, 7], [5, 2], [1, 1]]
    each = soft_dtw_divergence(x, y, 0.1, metric="l1", lengths=lengths)
    options = {"metric": "l1", "divergence": True}
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.mean())):
        loss = SoftDTWLoss(0.1, reduction=reduction, **options)
        torch.testing.assert_close(loss(x, y, lengths), expected)
    assert SoftDTWLoss()(x[:0], y[:0]) == 0
    torch.testing.assert_close(SoftDTWLoss(0)(x, y), soft_dtw_between(x, y, 0).mean())
    assert "metric='l1', regularizer=Negentropy(temperature=0.1)" in repr(SoftDTWLoss(0.1, **options))
    with pytest.raises(InvalidInputError, match="reduction"):
        SoftDTWLoss(reduction="average")
    with pytest.raises(InvalidInputError, match="metric must be"):
        SoftDTWLoss(metric="manhattan")
    with pytest.raises(InvalidInputError, match="temperature must be"):
        SoftDTWLoss(-1)


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.3}, {"band": 2}, {"lengths": [[4, 3], [3, 1]]}])
def test_derivatives_in_the_cost(regularizer, options):
    # Away from the kinks of the sparse ones' second derivatives, as random costs are.
    cost = torch.rand(2, 4, 3, dtype=DOUBLE, requires_grad=True)
    for function in (soft_dtw, alignment_matrix):
        call = functools.partial(function, regularizer=regularizer, **options)
        assert torch.autograd.gradcheck(call, cost)
        assert torch.autograd.gradgradcheck(call, cost)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("function", [soft_dtw_between, soft_dtw_divergence])
def test_derivatives_in_the_series(function, metric):
    x = torch.randn(2, 4, 2, dtype=DOUBLE, requires_grad=True)
    y = torch.randn(2, 3, 2, dtype=DOUBLE, requires_grad=True)
    call = functools.partial(function, metric=metric, temperature=0.7)
    assert torch.autograd.gradcheck(call, (x, y))
    assert torch.autograd.gradgradcheck(call, (x, y))


def test_forbidden_cells_have_no_gradient():
    cost = torch.rand(4, 4, dtype=DOUBLE)
    cost[1, 1] = cost[0, 2] = math.inf
    cost.requires_grad_()
    (gradient,) = torch.autograd.grad(soft_dtw(cost), cost)
    assert gradient[1, 1] == gradient[0, 2] == 0
    assert gradient[0, 0] == gradient[3, 3] == 1


# ----------------------------------------------------------------------------- pairwise costs


def plain_cost(a, b, metric):
    """The cost of matching two items."""
    if metric == "cosine":
        norms = math.dist(a, [0] * len(a)) * math.dist(b, [0] * len(b))
        return 1 - sum(p * q for p, q in zip(a, b, strict=True)) / norms if norms else 1.0
    gaps = [abs(p - q) for p, q in zip(a, b, strict=True)]
    squared = sum(gap * gap for gap in gaps)
    return {"squared_euclidean": squared, "euclidean": math.sqrt(squared)}.get(metric, sum(gaps))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("metric", [*METRICS, "absolute"])
def test_metrics(metric, scale, dtype):
    x, y = scale * torch.randn(5, 3, dtype=dtype), scale * torch.randn(4, 3, dtype=dtype)
    x[1] = y[2] = 0
    expected = [[plain_cost(a, b, metric) for b in y.tolist()] for a in x.tolist()]
    found = pairwise_cost(x, y, metric)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype))
    assert torch.equal(pairwise_cost(x, y, lambda a, b: pairwise_cost(a, b, metric)), found)


def test_a_cost_of_ones_own_is_as_good_as_a_built_in_one():
    x, y = torch.randn(7), torch.randn(9)
    own = (x[:, None] - y).abs()
    assert torch.equal(pairwise_cost(x, y, "l1"), own)
    assert torch.equal(soft_dtw(own), soft_dtw_between(x, y, metric="absolute"))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_costs_are_not_negative_and_zero_between_equal_items(metric, dtype):
    x = 1e4 + torch.randn(50, 3, dtype=dtype)
    cost = pairwise_cost(x, x.clone(), metric)
    assert cost.min() >= 0
    torch.testing.assert_close(cost.diagonal(), torch.zeros(50, dtype=dtype), atol=1e-6, rtol=0)


def test_squared_distances_far_from_zero_are_right_in_float32():
    x, y = 1e4 + torch.rand(50, 3), 1e4 + torch.rand(40, 3)
    expected = (x.double()[:, None] - y.double()).square().sum(-1)
    torch.testing.assert_close(pairwise_cost(x, y).double(), expected, rtol=1e-5, atol=1e-9)
    close = torch.linspace(-1e3, 1e3, 9).unsqueeze(1)
    found = pairwise_cost(close, close + 1e-3).diagonal()
    torch.testing.assert_close(found.double(), (close.double() - (close + 1e-3).double()).square().view(-1))


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_at_distance_zero(metric):
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1e-20, 3.0]], dtype=DOUBLE)
    z, y = x.clone().requires_grad_(), x.clone().requires_grad_()
    cost = pairwise_cost(z, y, metric).diagonal().sum()
    gradients = torch.autograd.grad(cost, (z, y), create_graph=True)
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.zeros_like(x), atol=1e-9, rtol=0)
    again = torch.autograd.grad(sum(g.square().sum() for g in gradients), (z, y))
    assert all(g.isfinite().all() for g in again)


def test_second_derivatives_of_squares_at_distance_zero():
    x = torch.randn(4, 2, dtype=DOUBLE)
    hessian = torch.autograd.functional.hessian(lambda z: pairwise_cost(z, x).diagonal().sum(), x.clone())
    torch.testing.assert_close(hessian.reshape(8, 8), 2 * torch.eye(8, dtype=DOUBLE))


# ----------------------------------------------------------------------------- memory


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux alone")
@pytest.mark.parametrize(
    ("call", "most"),
    [
        # In units of (B, n, m) in float32: 32 MiB. Where the cost is given it is one of them.
        ("soft_dtw(cost, 0.5)", 5),
        ("soft_dtw_between(x, y)", 5),
        ("soft_dtw_between(x, y, metric='l1')", 5),
        ("soft_dtw_between(x, y, metric='euclidean')", 6),
    ],
)
def test_memory(call, most):
    """Value and gradient; x and y have 20 features, so that a (B, n, m, d) array would be 20 units."""
    script = f"""
import resource, torch
from structinf.alignment import soft_dtw
from structinf.series import soft_dtw_between
def run(n):
    x, y = (torch.randn(8, n, 20, requires_grad=True) for _ in range(2))
    if {"cost" in call}:
        cost = torch.rand(8, n, n, requires_grad=True)
    {call}.sum().backward()
torch.set_num_threads(2)
run(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(1024)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 / 32)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most


# ----------------------------------------------------------------------------- bad input


def test_series_that_do_not_fit():
    x, y = torch.randn(5, 2), torch.randn(4, 2)
    with pytest.raises(InvalidInputError, match=r"same dtype, got torch.float32 and torch.float64"):
        soft_dtw_between(x, y.double())
    with pytest.raises(InvalidInputError, match=r"same device, got cpu and meta"):
        pairwise_cost(x, y.to("meta"))
    with pytest.raises(InvalidInputError, match=r"number of features.*\(5, 2\) and \(4, 3\).*unsqueeze"):
        soft_dtw_divergence(x, torch.randn(4, 3))
    with pytest.raises(InvalidInputError, match="no features"):
        pairwise_cost(x[:, :0], y[:, :0])
    with pytest.raises(InvalidInputError, match=r"batch dimensions of x and y, of shapes \(3, 5, 2\) and \(2, 4, 2\)"):
        pairwise_cost(x.expand(3, 5, 2), y.expand(2, 4, 2))
    with pytest.raises(TypeError, match=r"y: a series.*torch.int64"):
        pairwise_cost(x, torch.ones(4, 2, dtype=torch.int64))
    with pytest.raises(InvalidInputError, match="single number"):
        pairwise_cost(x, torch.tensor(1.0))
    with pytest.raises(InvalidInputError, match=r"one of squared_euclidean, .*, got 'manhattan'"):
        pairwise_cost(x, y, "manhattan")
    with pytest.raises(InvalidInputError, match=r"must return a tensor \(..., 5, 4\), got \(4, 5\)"):
        pairwise_cost(x, y, lambda a, b: b @ a.mT)
    with pytest.raises(InvalidInputError, match=r"lengths must have shape \(3, 2\).*got \(3,\)"):
        soft_dtw_between(x.expand(3, 5, 2), y, lengths=[5, 5, 4])


def test_costs_that_cannot_be():
    with pytest.raises(TypeError, match=r"cost: a tensor in floating point.*torch.int64"):
        soft_dtw(torch.ones(3, 3, dtype=torch.int64))
    cost = torch.zeros(2, 3, 3)
    cost[1, 0, 2] = math.nan
    with pytest.raises(InvalidInputError, match=r"NaN at batch index 1, part \(0, 2\).*minus the cost"):
        soft_dtw(cost)
    cost[1, 0, 2] = -math.inf
    with pytest.raises(InvalidInputError, match=r"\+inf at batch index 1.*minus the cost"):
        alignment_path(cost)
    with pytest.raises(InfeasibleError, match="batch index 1"):
        soft_dtw(torch.stack([torch.zeros(2, 2), torch.tensor([[1, math.inf], [2, math.inf]])]))
    with pytest.raises(InvalidInputError, match="at least 2"):
        soft_dtw(torch.zeros(5, 3), band=1)
    with pytest.raises(InvalidInputError, match="lengths"):
        soft_dtw(torch.zeros(2, 5, 3), lengths=[[5, 3], [6, 3]])


@pytest.mark.parametrize("temperature", [-1, math.inf, math.nan, "1"])
def test_temperatures_that_cannot_be(temperature):
    with pytest.raises(InvalidInputError, match="temperature must be a finite number of at least 0"):
        soft_dtw(THREE, temperature)


def test_unknown_regularizer():
    with pytest.raises(UnknownNameError, match="squared_l2"):
        soft_dtw(THREE, regularizer="squared_l1")


@pytest.mark.cuda
def test_cuda():
    x, y = torch.randn(2, 6, 3), torch.randn(2, 5, 3)
    for metric in METRICS:
        value = soft_dtw_divergence(x.cuda(), y.cuda(), metric=metric, lengths=[[6, 5], [2, 3]])
        assert value.is_cuda
        torch.testing.assert_close(value.cpu(), soft_dtw_divergence(x, y, metric=metric, lengths=[[6, 5], [2, 3]]))
    with pytest.raises(InvalidInputError, match="same device, got cpu and cuda:0"):
        soft_dtw_between(x, y.cuda())
