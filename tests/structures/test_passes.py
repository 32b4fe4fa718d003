"""Value and marginals come out of one pass: a loss eliminates, or runs through a recursion, once."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys

import pytest
import torch

import structinf as si
import structinf.dp
import structinf_oracles
from gibbs_examples import draw, one_each
from structinf.kernels import parallel_rows
from structinf.parts import as_tuple, map_parts
from structinf.regularizers import SquaredL2
from structinf.smoothing import Smoothable


@pytest.fixture
def kernel_calls(monkeypatch):
    """The compiled kernels that were called, in order."""
    calls = []
    for package in (structinf.dp, structinf_oracles):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)

    def record(kernel, *args, **options):
        calls.append(kernel)
        return parallel_rows(kernel, *args, **options)

    for name, module in list(sys.modules.items()):
        if name.startswith("structinf") and getattr(module, "parallel_rows", None) is parallel_rows:
            monkeypatch.setattr(module, "parallel_rows", record)
    return calls


def count(calls, function):
    function()
    calls.clear()
    function()
    return len(calls)


@one_each
def test_value_and_marginals_take_the_kernel_calls_of_the_marginals(example, kernel_calls):
    oracle, theta = example.oracle(), draw(example)
    passes = count(kernel_calls, lambda: oracle.log_partition_and_marginals(theta))
    assert passes == count(kernel_calls, lambda: oracle.marginals(theta))


@pytest.mark.parametrize("name", ["arborescence", "spanning_tree", "chain", "dtw", "monotonic_alignment"])
def test_a_crf_loss_runs_the_kernels_of_the_marginals(name, kernel_calls):
    shapes = {"arborescence": [(4, 4)], "spanning_tree": [(4, 4)], "chain": [(5, 3), (4, 3, 3)]}.get(name, [(4, 4)])
    leaves = tuple(torch.randn(2, *shape, requires_grad=True) for shape in shapes)
    theta = leaves if len(leaves) > 1 else leaves[0]
    detached = map_parts(torch.Tensor.detach, theta)
    target, loss = si.relax(detached, name, "map"), si.FenchelYoungLoss(name, "marginals")

    def loss_and_gradient():
        return torch.autograd.grad(loss(theta, target), leaves)

    passes = count(kernel_calls, lambda: si.get_oracle(name).marginals(detached))
    assert passes >= 1
    assert count(kernel_calls, loss_and_gradient) == passes


class _Counted(si.GibbsOracle, Smoothable):
    """One of K parts, which counts evaluations of its value."""

    name = "counted"
    event_ndim = 1

    def __init__(self):
        self.values = itertools.count()

    def argmax(self, theta):
        return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta)

    def log_partition(self, theta):
        next(self.values)
        return theta.logsumexp(1)

    def smoothed_value(self, theta, regularizer):
        next(self.values)
        return theta.logsumexp(1)


class _WithMarginals(_Counted):
    def marginals(self, theta):
        return theta.softmax(1)

    def smoothed_mean(self, theta, regularizer):
        return theta.softmax(1)


@pytest.mark.parametrize("kind", [_Counted, _WithMarginals])
def test_defaults_evaluate_the_value_once(kind):
    oracle, theta = kind(), torch.randn(3, 4, dtype=torch.float64)
    expected = theta.logsumexp(1), theta.softmax(1)
    for evaluate in (
        lambda: oracle.log_partition_and_marginals(theta),
        lambda: oracle.smoothed_value_and_mean(theta, SquaredL2()),
    ):
        before = next(oracle.values)
        found = evaluate()
        assert next(oracle.values) == before + 2
        for ours, exact in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, exact)
            assert not ours.requires_grad
    for mean in (oracle.marginals(theta), oracle.smoothed_mean(theta, SquaredL2())):
        torch.testing.assert_close(*as_tuple((mean, expected[1])))
