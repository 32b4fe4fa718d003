"""Soft-DTW between series, as its users know it: published values, padding, divergence, gradients, memory."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys

import pytest
import torch

from soft_dtw_inputs import DOUBLE, METRICS, REGULARIZERS, numbers
from structinf.alignments import (
    SoftDTWLoss,
    alignment_matrix,
    alignment_path,
    pairwise_cost,
    soft_dtw,
    soft_dtw_between,
    soft_dtw_divergence,
)
from structinf.errors import InvalidInputError, UnsupportedError

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_series_with_itself(dtype):
    x = torch.arange(100, dtype=dtype).cos()
    assert soft_dtw_between(x, x).item() == pytest.approx(-104.370943, rel=1e-6)
    assert soft_dtw_divergence(x, x).item() == 0
    assert soft_dtw_divergence(x, x[:93]).item() > 0


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


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("function", [soft_dtw_between, soft_dtw_divergence])
def test_derivatives_in_the_series(function, metric):
    x = torch.randn(2, 4, 2, dtype=DOUBLE, requires_grad=True)
    y = torch.randn(2, 3, 2, dtype=DOUBLE, requires_grad=True)
    call = functools.partial(function, metric=metric, temperature=0.7)
    assert torch.autograd.gradcheck(call, (x, y), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (x, y), fast_mode=True)


# ----------------------------------------------------------------------------- memory


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux alone")
def test_memory():
    """Value and gradient; x and y have 20 features, so that a (B, n, m, d) array would be 20 units."""
    # The most in units of (B, n, m) in float32: 32 MiB. Where the cost is given it is one of them.
    calls = {
        "soft_dtw(cost, 0.5)": 5,
        "soft_dtw_between(x, y)": 5,
        "soft_dtw_between(x, y, metric='l1')": 5,
        "soft_dtw_between(x, y, metric='euclidean')": 6,
    }
    script = f"""
import resource, torch
from structinf.alignments import soft_dtw, soft_dtw_between
def run(call, n):
    x, y = (torch.randn(8, n, 20, requires_grad=True) for _ in range(2))
    cost = torch.rand(8, n, n, requires_grad=True) if "cost" in call else None
    eval(call).sum().backward()
torch.set_num_threads(2)
for call in {list(calls)}:
    run(call, 8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for call in {list(calls)}:
    run(call, 1024)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 / 32)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for (call, most), used in zip(calls.items(), done.stdout.split(), strict=True):
        assert float(used) < most, call


# ----------------------------------------------------------------------------- bad input, devices


def test_series_that_do_not_fit():
    x, y = torch.randn(5, 2), torch.randn(4, 2)
    with pytest.raises(InvalidInputError, match=r"same dtype, got torch.float32 and torch.float64"):
        soft_dtw_between(x, y.double())
    with pytest.raises(UnsupportedError, match=r"y is a meta tensor of shape \(4, 2\)"):
        pairwise_cost(x, y.to("meta"))
    with pytest.raises(InvalidInputError, match=r"number of features.*\(5, 2\) and \(4, 3\).*unsqueeze"):
        soft_dtw_divergence(x, torch.randn(4, 3))
    with pytest.raises(InvalidInputError, match="at least one feature"):
        pairwise_cost(x[:, :0], y[:, :0])
    with pytest.raises(InvalidInputError, match=r"batch dimensions of x and y must broadcast, got shapes \(3, 5, 2\)"):
        pairwise_cost(x.expand(3, 5, 2), y.expand(2, 4, 2))
    with pytest.raises(TypeError, match=r"y must be a tensor \(a series\).*torch.int64"):
        pairwise_cost(x, torch.ones(4, 2, dtype=torch.int64))
    with pytest.raises(InvalidInputError, match="single number"):
        pairwise_cost(x, torch.tensor(1.0))
    with pytest.raises(InvalidInputError, match=r"one of squared_euclidean, .*, got 'manhattan'"):
        pairwise_cost(x, y, "manhattan")
    with pytest.raises(InvalidInputError, match=r"must return a tensor \(..., 5, 4\), got \(4, 5\)"):
        pairwise_cost(x, y, lambda a, b: b @ a.mT)
    with pytest.raises(InvalidInputError, match=r"lengths must have shape \(3, 2\).*got \(3,\)"):
        soft_dtw_between(x.expand(3, 5, 2), y, lengths=[5, 5, 4])


@pytest.mark.cuda
def test_cuda():
    x, y = torch.randn(2, 6, 3), torch.randn(2, 5, 3)
    for metric in METRICS:
        value = soft_dtw_divergence(x.cuda(), y.cuda(), metric=metric, lengths=[[6, 5], [2, 3]])
        assert value.is_cuda
        torch.testing.assert_close(value.cpu(), soft_dtw_divergence(x, y, metric=metric, lengths=[[6, 5], [2, 3]]))
    with pytest.raises(InvalidInputError, match="same device, got cpu and cuda:0"):
        soft_dtw_between(x, y.cuda())
