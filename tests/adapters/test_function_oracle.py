"""Oracles from functions of one instance in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import structinf as si
from structinf import InfeasibleError, InvalidInputError, PluginError, SolverLimitError
from structinf.testing import check_oracle


def best(theta):
    assert theta.dtype == np.float64
    if np.isneginf(theta).all():
        return None
    y = np.zeros_like(theta)
    y[theta.argmax()] = 1
    return y


def at_most(theta, k):
    y = np.zeros(len(theta), dtype=bool)
    y[np.argsort(-theta, kind="stable")[: int(k)]] = True
    return y & (theta > 0)


def both(theta):
    a, b = theta
    return (a > 0) * 1.0, (b > 0) * 1.0


CATEGORICAL = si.oracle_from_function(best, event_ndim=1)


def test_it_is_the_oracle_of_the_function():
    theta = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(si.relax(theta, CATEGORICAL, "map"), si.relax(theta, "categorical", "map"))
    found = si.relax(theta, CATEGORICAL, "sparsemap", tolerance=0.0)
    torch.testing.assert_close(found, si.simplex.sparsemax(theta, 1))
    half = si.relax(theta.half().view(5, 1, 4), CATEGORICAL, "map")
    assert half.dtype == torch.float16
    assert half.shape == (5, 1, 4)
    assert si.relax(theta[:0], CATEGORICAL, "map").shape == (0, 4)
    assert repr(CATEGORICAL) == "oracle_from_function(best, event_ndim=1)"


def test_laws(conformance_dtypes):
    assert not check_oracle(CATEGORICAL, event_shape=(4,), dtypes=conformance_dtypes).failed
    # Pickle cannot import the function.
    positive = si.oracle_from_function(lambda x: (x > 0) * 1.0, event_ndim=1)
    assert "copies" in check_oracle(positive, event_shape=(3,), dtypes=conformance_dtypes).passed


def test_instance_data_and_tuples():
    oracle = si.oracle_from_function(at_most, 1, instance_ndim={"k": 0})
    theta = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, -1.0], [3.0, 2.0, 1.0]])
    y = si.relax(theta, oracle, "map", k=[1, 3, 0])
    assert y.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    with pytest.raises(InvalidInputError, match="k: the function needs this instance data"):
        si.relax(theta, oracle, "map")
    pair = si.oracle_from_function(both, (1, 2))
    a, b = si.relax((theta, torch.ones(2, 2)), pair, "map")
    assert torch.equal(a, (theta > 0).float())
    assert torch.equal(b, torch.ones(3, 2, 2))


def test_the_function_cannot_change_the_scores():
    def writes(theta):
        y = best(theta)
        theta[:] = 0
        return y

    theta = torch.randn(3, 4)
    before = theta.clone()
    si.relax(theta, si.oracle_from_function(writes, 1), "map")
    assert torch.equal(theta, before)


def test_errors_name_the_instance():
    theta = torch.tensor([[1.0, 0.0], [-torch.inf, -torch.inf], [0.0, 1.0]])
    with pytest.raises(InfeasibleError, match=r"best found no structure of finite score.*batch index 1"):
        si.relax(theta, CATEGORICAL, "map")
    assert si.relax(theta, CATEGORICAL, "map", on_infeasible="zero")[1].tolist() == [0, 0]
    theta = torch.tensor([[1.0, 0.0], [5.0, 0.0]])

    def wrong(result):
        return lambda t: best(t) if t[0] < 5 else result() if callable(result) else result

    def limit():
        raise SolverLimitError("stopped", 0)

    for result, error, message in (
        (lambda: 1 / 0, PluginError, "failed at batch index 1: ZeroDivisionError: division by zero"),
        (np.zeros(3), PluginError, r"must return finite numbers of shape \(2,\) at batch index 1, got shape \(3,\)"),
        (np.full(2, np.nan), PluginError, "at batch index 1, got NaN or infinity"),
        ("ab", PluginError, "must return an array of numbers at batch index 1"),
        (np.full(2, 1j), PluginError, "at batch index 1 .the numbers are complex"),
        ((np.zeros(2),), PluginError, "must return one array"),
        (limit, SolverLimitError, "batch index 1"),
    ):
        with pytest.raises(error, match=message):
            si.relax(theta, si.oracle_from_function(wrong(result), 1), "map")
    assert si.relax(theta, si.oracle_from_function(wrong(torch.tensor([1.0, 0.0])), 1), "map")[1].tolist() == [1, 0]


def test_wrong_options():
    for make, error, message in (
        (lambda: si.oracle_from_function(3, 1), TypeError, "f must be a function"),
        (lambda: si.oracle_from_function(best, 0), InvalidInputError, "event_ndim must be"),
        (lambda: si.oracle_from_function(best, (1, -1)), InvalidInputError, "event_ndim must be"),
        (lambda: si.oracle_from_function(best, 1, instance_ndim={"k": -1}), InvalidInputError, "instance_ndim of k"),
        (lambda: si.oracle_from_function(best, 1, instance_ndim=["k"]), TypeError, "instance_ndim must be a mapping"),
        (lambda: si.oracle_from_function(best, 1, requires_nonpositive_theta=2), InvalidInputError, "must be True"),
    ):
        with pytest.raises(error, match=message):
            make()
    costs = si.oracle_from_function(best, 1, requires_nonpositive_theta=True, name="cheapest")
    with pytest.raises(InvalidInputError, match="cheapest takes scores of at most 0"):
        si.relax(torch.ones(1, 2), costs, "map")
    assert si.relax(-torch.ones(1, 2), costs, "map").tolist() == [[1, 0]]
