"""Vectors of 16 numbers inside kernels, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.vector import LANES, largest, load, maximum, minimum, reduce_sum, spread, store, where_less

DTYPES = [np.float32, np.float64]


@jit(called_from_python=True)
def apply(which, x, y, out):
    for at in range(0, len(x), LANES):
        a, b = load(x, at), load(y, at)
        if which == 0:
            c = a + b * 2 - a / b
        elif which == 1:
            c = maximum(a, b) - minimum(a, 0.5)
        elif which == 2:
            c = where_less(a, b, 1, a)
        elif which == 3:
            c = exp(a)
        else:
            c = log(a)
        store(out, at, c)


@jit(called_from_python=True)
def sums_of_columns(x, weight, out):
    rows, columns = x.shape
    for at in range(0, columns, LANES):
        total = 0.0
        for i in range(rows):
            total += load(x, i * columns + at) * weight[i]
        store(out, at, total)


@jit(called_from_python=True)
def reduce(x, out):
    lanes = load(x, 3)
    out[0], out[1] = reduce_sum(lanes), largest(lanes)
    store(out, 2, spread(x, 5))


def applied(which, x, y):
    out = np.empty_like(x)
    apply(which, x, y, out)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic(dtype):
    random = np.random.default_rng(0)
    x, y = (random.normal(size=4 * LANES).astype(dtype) for _ in range(2))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(applied(0, x, y), x + y * 2 - x / y, rtol=20 * eps, atol=20 * eps)
    np.testing.assert_array_equal(applied(1, x, y), np.maximum(x, y) - np.minimum(x, dtype(0.5)))
    np.testing.assert_array_equal(applied(2, x, y), np.where(x < y, 1, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype):
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(7, 3 * LANES)).astype(dtype), random.normal(size=7).astype(dtype)
    out = np.empty(3 * LANES, dtype)
    sums_of_columns(x, weight, out)
    np.testing.assert_allclose(out, weight @ x, atol=20 * np.finfo(dtype).eps)
    row, out = x[0].copy(), np.empty(2 + LANES, dtype)
    reduce(row, out)
    np.testing.assert_allclose(out[0], row[3 : 3 + LANES].sum(), atol=50 * np.finfo(dtype).eps)
    assert out[1] == row[3 : 3 + LANES].max()
    np.testing.assert_array_equal(out[2:], row[5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp(dtype):
    info = np.finfo(dtype)
    low, high = np.log(info.tiny), np.log(info.max)
    x = np.linspace(1.1 * low, 1.1 * high, 1000 * LANES).astype(dtype)
    x[:6] = [-np.inf, np.inf, 0, 1, low / 2, high / 2]
    found = applied(3, x, x)
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(np.longdouble))
    inside = (x > low + 1.5) & (x < high - 1e-3)
    assert np.max(np.abs(found[inside] / exact[inside] - 1)) < info.eps
    assert found[:3].tolist() == [0, np.inf, 1]
    assert np.all(found[x < low] == 0)
    assert np.all(np.isinf(found[x > high + 1e-3]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_log(dtype):
    info = np.finfo(dtype)
    exponents = np.linspace(np.log(info.tiny), np.log(info.max) * 0.999, 1000 * LANES)
    x = np.exp(exponents).astype(dtype)
    x[:5] = [0, np.inf, 1, info.tiny / 2, 1 + info.eps]
    found = applied(4, x, x)
    exact = np.log(x[4:].astype(np.longdouble))
    assert np.max(np.abs(found[4:] - exact) / np.abs(exact)) < info.eps
    assert found[:4].tolist() == [-np.inf, np.inf, 0, -np.inf]
