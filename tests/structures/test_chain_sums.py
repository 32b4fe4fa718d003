"""Sums over tag sequences, against all of them listed in plain Python."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import structinf
from chain_enumeration import (
    CHAIN,
    DTYPES,
    FORMS,
    LENGTHS,
    NEG,
    SCALES,
    B,
    Exact,
    T,
    assert_parts_close,
    bound,
    copies,
    forbid,
    potentials,
    tolerance,
)
from structinf.parts import as_tuple, inner_product, map_parts
from structinf_oracles.common.chain_potentials import original_form
from structinf_oracles.kernels.chain import torch_backend

pytestmark = pytest.mark.slow


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [False, True])
def test_sums_equal_enumeration(form, scale, dtype, cut):
    theta = potentials(form, dtype, scale)
    theta = forbid(theta) if cut else theta
    chain, exact, close = bound(), Exact(theta, LENGTHS), tolerance(theta)
    weight = torch.randn(B, dtype=dtype)
    v = map_parts(torch.randn_like, theta)

    for value in (chain.log_partition(theta), chain.log_partition(copies(theta)).detach()):
        assert value.dtype == dtype
        torch.testing.assert_close(value.double(), exact.log_z, atol=close, rtol=10 * torch.finfo(dtype).eps)
    mean = exact.mean()
    found = chain.marginals(theta)
    assert all(m.dtype == dtype for m in as_tuple(found))
    assert_parts_close(found, mean, close)

    weighted = map_parts(lambda m: m * weight.double().view(B, *[1] * (m.ndim - 1)), mean)
    summed = map_parts(lambda m, t: m.sum(0, keepdim=True) if len(t) == 1 else m, weighted, theta)
    assert_parts_close(chain.log_partition_vjp(theta, weight), summed, 10 * close)
    leaves = copies(theta)
    gradients = torch.autograd.grad(chain.log_partition(leaves) @ weight, as_tuple(leaves))
    assert_parts_close(gradients if isinstance(theta, tuple) else gradients[0], summed, 10 * close)

    assert_parts_close(chain.covariance_product(theta, v), exact.covariance_product(v), 20 * close)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("cut", [False, True])
def test_torch_recursions_equal_the_kernels(form, scale, cut):
    theta = potentials(form, scale=scale)
    theta = forbid(theta) if cut else theta
    lengths = torch.tensor(LENGTHS)
    inputs = bound()._inputs(theta)
    value, nodes, edges = torch_backend.value_and_mean(*inputs)
    torch.testing.assert_close(value, bound().log_partition(theta))
    assert_parts_close(original_form(nodes, edges, theta), bound().marginals(theta), 1e-12)
    tags, feasible = torch_backend.best_tags(*inputs)
    assert bool(feasible.all())
    inside = torch.arange(T) < lengths[:, None]
    assert torch.equal(tags.where(inside, -1), bound().decode(bound().argmax(theta)))


@pytest.mark.parametrize("form", FORMS)
def test_every_derivative_of_the_log_partition(form):
    theta = forbid(potentials(form, shape=(2, 3, 2)))
    chain = bound([3, 2])

    def call(*tensors):
        return chain.log_partition(tensors if isinstance(theta, tuple) else tensors[0])

    # Derivatives by differences would cross the border of the −inf entries.
    finite = as_tuple(map_parts(lambda t: t.where(t > NEG, -3.0).requires_grad_(), theta))
    assert torch.autograd.gradcheck(call, finite, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, finite, fast_mode=True)

    leaves = as_tuple(copies(theta))
    first = torch.autograd.grad(call(*leaves).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves, create_graph=True)
    third = torch.autograd.grad(sum((g**2).sum() for g in second), leaves)
    for derivatives in (first, second, third):
        for g, t in zip(derivatives, leaves, strict=True):
            assert bool(g.isfinite().all())
            assert bool((g[t == NEG] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_products_equal_the_log_domain(dtype):
    """Whatever the scores' range, one of the two is right and knows it; float64 in the log domain is the judge."""
    from structinf_oracles.kernels.chain import dispatch, log_domain, scaled, scaled_hessian

    random, used = np.random.default_rng(0), 0
    b, t, s = 8, 25, 6
    for trial in range(200):
        unary = torch.randn(b, t, s, dtype=dtype) * 10 ** random.uniform(-1, 3)
        transition = torch.randn(1, s, s, dtype=dtype) * 10 ** random.uniform(-1, 2)
        transition[torch.rand(1, s, s) < random.choice([0, 0.1, 0.3])] = NEG
        if trial % 4 == 0:  # states can only be left upwards, so that low ones die out
            transition = transition.where(torch.ones(s, s).triu().bool(), NEG)
        if trial % 4 == 1:  # all that counts ends in the last state
            unary[:, -1, :-1] = NEG
        unary[torch.rand(b, t, s) < random.choice([0, 0.1])] = NEG
        u, a = unary.double().numpy(), transition[:, None].double().numpy()
        n, exact, found = np.full(b, t), np.empty(b), np.empty(b)
        log_domain.value(0, b, np.arange(b), u, a, n, math.inf, exact)
        factors = dispatch._scaling_factors(transition.numpy())
        scaled.log_partition(0, b, unary.numpy(), *factors, n, found)
        size = t * max(float(x.where(x > NEG, 0).abs().max()) for x in (unary, transition))
        mine = ~np.isnan(found)
        used += mine.sum()
        assert np.array_equal(np.isneginf(found[mine]), np.isneginf(exact[mine]))
        finite = mine & np.isfinite(exact)
        assert np.all(np.abs(found[finite] - exact[finite]) <= 10 * torch.finfo(dtype).eps * size)
        allowed = np.flatnonzero(np.isfinite(exact))
        k = len(allowed)
        if k == 0:
            continue
        wanted = np.zeros((k, t, s)), np.zeros((k, 1, s, s))
        rows, lengths, ones = np.arange(k), np.full(k, t), np.ones(k)
        log_domain.mean(0, k, k, rows, u[allowed], a, lengths, math.inf, ones, np.empty(k), *wanted)
        nodes, edges = CHAIN.marginals((unary[torch.from_numpy(allowed)], transition))
        close = 20 * torch.finfo(dtype).eps * (1 + size)
        torch.testing.assert_close(nodes.double(), torch.from_numpy(wanted[0]), atol=close, rtol=0)
        torch.testing.assert_close(edges.double(), torch.from_numpy(wanted[1][:, 0]), atol=t * close, rtol=0)

        v, v_edges = torch.randn(b, t, s, dtype=dtype), torch.randn(1, s, s, dtype=dtype)
        value, nodes, edges = np.empty(b), np.zeros_like(v.numpy()), np.zeros((b, s, s), v.numpy().dtype)
        scaled_hessian.covariance_product(
            0, b, unary.numpy(), *factors, n, v.numpy(), v_edges.numpy(), value, nodes, edges
        )
        rows = np.flatnonzero(np.isfinite(value))
        assert np.array_equal(rows, np.flatnonzero(np.isfinite(found)))
        wanted = np.zeros((b, t, s)), np.zeros((b, 1, s, s))
        v, v_edges = v.double().numpy(), v_edges[:, None].double().numpy()
        log_domain.hessian_product(0, len(rows), rows, u, a, n, math.inf, v, v_edges, np.empty(b), *wanted)
        np.testing.assert_allclose(nodes, wanted[0], atol=t * close, rtol=0)
        np.testing.assert_allclose(edges, wanted[1][:, 0], atol=t * t * close, rtol=0)
    assert 400 < used < 1400  # both domains have been at work


def test_reported_example():
    unary = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]], dtype=torch.float64)
    theta = unary, torch.tensor([[[0.0, 1.0], [-1.0, 0.5]]], dtype=torch.float64)
    best = CHAIN.argmax(theta)
    assert CHAIN.decode(best).tolist() == [[0, 1, 1]]
    assert CHAIN.score(theta, best).item() == 4.5
    value = CHAIN.log_partition(theta)
    assert value.item() == pytest.approx(5.100381, abs=1e-6)
    assert math.exp(4.5 - value.item()) == pytest.approx(0.548603, abs=1e-6)
    wanted = [[0.822767, 0.177233], [0.082136, 0.917864], [0.277861, 0.722139]]
    torch.testing.assert_close(CHAIN.marginals(theta)[0][0], torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def test_start_and_end_scores_are_unary_scores():
    unary, transition = potentials("shared", shape=(1, 3, 3))
    start, end = torch.randn(3).double(), torch.randn(3).double()
    scores = [
        start[i] + unary[0, 0, i] + transition[0, i, j] + unary[0, 1, j] + transition[0, j, k] + unary[0, 2, k] + end[k]
        for i, j, k in itertools.product(range(3), repeat=3)
    ]
    unary[:, 0] += start
    unary[:, -1] += end
    torch.testing.assert_close(CHAIN.log_partition((unary, transition))[0], torch.stack(scores).logsumexp(0))


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts(form, dtype):
    theta = map_parts(torch.zeros_like, potentials(form, dtype, shape=(2, 5, 2)))
    expected = torch.tensor([3 * math.log(2), 2 * math.log(2)], dtype=dtype)
    torch.testing.assert_close(bound([3, 2]).log_partition(theta), expected)
    ends_early = bound([3, 2]).marginals(theta)
    assert bool((as_tuple(ends_early)[-1][1].sum() - 1).abs() < 1e-6)


def entropy(chain, theta):
    mean = chain.marginals(theta)
    return chain.log_partition(theta) - inner_product(theta, mean)


@pytest.mark.parametrize("dtype", DTYPES)
def test_forbidden_parts_leave_everything_finite(dtype):
    edges = torch.zeros(1, 2, 3, 3, dtype=dtype)
    edges[:, :, 0, 1] = NEG
    middle = torch.zeros(1, 2, 3, 3, dtype=dtype)
    middle[:, 0, :, 2] = NEG
    column = torch.zeros(1, 3, 3, dtype=dtype)
    column[:, :, 1] = NEG
    unary = torch.zeros(1, 3, 3, dtype=dtype)
    for theta, count in (
        (edges, 21),
        ((unary, edges[:, 0]), 21),
        (middle, 18),
        ((unary, middle), 18),
        ((unary, column), 12),
    ):
        value = torch.tensor([math.log(count)], dtype=dtype)
        torch.testing.assert_close(CHAIN.log_partition(theta), value)
        torch.testing.assert_close(entropy(CHAIN, theta), value)
        leaves = copies(theta)
        gradients = torch.autograd.grad(CHAIN.log_partition(leaves).sum(), as_tuple(leaves))
        assert_parts_close(gradients, as_tuple(CHAIN.marginals(theta)), 1e-6)
        v = map_parts(torch.ones_like, theta)  # every sequence has as many parts
        assert_parts_close(
            CHAIN.covariance_product(theta, v), map_parts(torch.zeros_like, CHAIN.marginals(theta)), 1e-5
        )


def test_long_sequence_read_from_either_end():
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        unary, transition = potentials("shared", dtype, shape=(1, 5000, 3))
        backwards = unary.flip(1), transition.mT
        forwards = CHAIN.log_partition((unary, transition))
        torch.testing.assert_close(forwards, CHAIN.log_partition(backwards), rtol=close, atol=0)
        wide = 1e3 * transition  # too wide for scaled products
        torch.testing.assert_close(
            CHAIN.log_partition((unary, wide)), CHAIN.log_partition((unary.flip(1), wide.mT)), rtol=close, atol=0
        )
        mean = CHAIN.marginals((unary, transition))
        torch.testing.assert_close(mean[0].sum(2), torch.ones(1, 5000, dtype=dtype), rtol=0, atol=1e-4)
        torch.testing.assert_close(mean[1].sum(), torch.tensor(4999.0, dtype=dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_through_the_public_functions(dtype):
    theta = torch.zeros(1, 64, 16, dtype=dtype), torch.zeros(16, 16, dtype=dtype)
    loss = structinf.FenchelYoungLoss(CHAIN, "marginals")(theta, torch.zeros(1, 64, dtype=torch.int64))
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(64 * math.log(16), abs=0.25 if dtype == torch.float16 else 0.5)
    nodes, edges = structinf.relax(theta, CHAIN, "marginals")
    assert nodes.dtype == edges.dtype == dtype
    assert torch.equal(nodes, torch.full_like(nodes, 1 / 16))
