"""The vectorisable exp and log of the kernels, against long double."""

from __future__ import annotations

import math
import re

import numba
import numpy as np
import pytest

from structinf.kernels.jit import jit
from structinf.kernels.scalar import exp_log
from structinf.kernels.scalar.exp_log import exp, log

DTYPES = [np.float32, np.float64]


@jit(called_from_python=True)
def exp_all(x, y):
    for i in range(len(x)):
        y[i] = exp(x[i])


@jit(called_from_python=True)
def log_all(x, y):
    for i in range(len(x)):
        y[i] = log(x[i])


def apply(kernel, x):
    y = np.empty_like(x)
    kernel(x, y)
    return y


def relative_error(y, exact):
    return float(np.max(np.abs((y - exact) / exact)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1e-6, 1.0, 80.0, 700.0])
def test_exp(dtype, width):
    if width > np.log(np.finfo(dtype).max):
        pytest.skip("out of range")
    x = np.random.default_rng(0).uniform(-width, width, 200_000).astype(dtype)
    assert relative_error(apply(exp_all, x), np.exp(x.astype(np.longdouble))) < 1.05 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_special_values(dtype):
    top = np.log(np.finfo(dtype).max)
    x = np.array([-np.inf, 0.0, -0.0, np.inf, 2 * top, -2 * top, -1e30, 1e30], dtype)
    assert apply(exp_all, x).tolist() == [0, 1, 1, math.inf, math.inf, 0, 0, math.inf]
    assert np.isnan(apply(exp_all, np.array([np.nan], dtype)))[0]
    near = np.array([top - 1e-3, np.log(2 * np.finfo(dtype).tiny) + 1e-3], dtype)
    assert relative_error(apply(exp_all, near), np.exp(near.astype(np.longdouble))) < 1.05 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1e-3, 0.5, 80.0, 700.0])
def test_log(dtype, width):
    if width > np.log(np.finfo(dtype).max):
        pytest.skip("out of range")
    x = np.exp(np.random.default_rng(0).uniform(-width, width, 200_000)).astype(dtype)
    x = x[x != 1]
    assert relative_error(apply(log_all, x), np.log(x.astype(np.longdouble))) < 1.05 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_special_values(dtype):
    x = np.array([0.0, 1.0, np.inf, np.finfo(dtype).smallest_subnormal], dtype)
    assert apply(log_all, x).tolist() == [-math.inf, 0, math.inf, -math.inf]


@pytest.mark.parametrize("kernel", [exp_all, log_all])
def test_loops_become_vector_code(kernel):
    uncached = numba.njit(fastmath={"reassoc"})(kernel.py_func)
    uncached.compile("(float32[::1], float32[::1])")
    (code,) = uncached.inspect_llvm().values()
    assert re.search(r"fmul.*<\d+ x float>", code)
    assert not re.search(r"call.*@(expf?|logf?|llvm\.(exp|log))\b", code)


def test_outside_kernels():
    assert exp_log.exp(-math.inf) == 0
    assert exp_log.log(0.0) == -math.inf
    assert exp_log.log(exp_log.exp(1.5)) == pytest.approx(1.5)
