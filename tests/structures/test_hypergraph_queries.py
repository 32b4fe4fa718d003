"""Smoothed values, means and Hessian products of hypergraph programs against lists of derivations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from hypergraph_examples import LISTS, Batch, Listed, alphas, batch, close, graphs, rows
from hypergraph_reference import INF, Hyperedges, smoothed
from regularizers_by_alpha import REGULARIZERS, InTorch
from structinf.errors import InfeasibleError
from structinf.regularizers import Negentropy, SquaredL2, Unregularized

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- smoothing


@graphs
@alphas
def test_value_mean_and_hessian_product(lists: Hyperedges, alpha: float) -> None:
    given, omega = batch(lists), REGULARIZERS[alpha]
    each = given.each(alpha)
    close(given.oracle.smoothed_value(given.theta, omega), [at.v[goal] for at, goal in each])
    means = [at.mean(goal) for at, goal in each]
    close(given.oracle.smoothed_mean(given.theta, omega), means)
    weight = torch.randn(len(each), dtype=torch.float64)
    close(given.oracle.smoothed_vjp(given.theta, weight, omega), (rows(means) * weight[:, None]).tolist())
    v = torch.randn_like(given.theta)
    products = [at.hessian_product(goal, z) for (at, goal), z in zip(each, v.tolist(), strict=True)]
    close(given.oracle.smoothed_hessian_product(given.theta, v, omega), products, atol=1e-8)


@graphs
@pytest.mark.parametrize("scale", [1e-3, 1e3])
@alphas
def test_scales(lists: Hyperedges, alpha: float, scale: float) -> None:
    given, omega = batch(lists, scale=scale), REGULARIZERS[alpha]
    each = given.each(alpha)
    close(given.oracle.smoothed_value(given.theta, omega), [at.v[goal] for at, goal in each])
    # Of sums of thousands the last bits are lost, and probabilities are functions of differences.
    close(
        given.oracle.smoothed_mean(given.theta, omega), [at.mean(goal) for at, goal in each], atol=1e-9 * max(scale, 1)
    )


@graphs
@alphas
def test_ties_go_to_what_was_added_first(lists: Hyperedges, alpha: float) -> None:
    given, omega = batch(lists, kind="ties"), REGULARIZERS[alpha]
    each = given.each(alpha)
    close(given.oracle.smoothed_mean(given.theta, omega), [at.mean(goal) for at, goal in each])
    best = [at.mean(goal) for at, goal in given.each(INF)]
    assert torch.equal(given.oracle.argmax(given.theta), rows(best))


@graphs
@pytest.mark.parametrize("alpha", [1, 1.25, 1.5, 2, INF])
def test_compiled_loops_equal_torch(lists: Hyperedges, alpha: float) -> None:
    given, compiled = batch(lists), REGULARIZERS[alpha]
    torched, v = InTorch(inner=compiled), torch.randn_like(given.theta)
    tight = {"rtol": 1e-12, "atol": 1e-12}
    for query, *more in (("smoothed_value",), ("smoothed_mean",), ("smoothed_hessian_product", v)):
        found, expected = (getattr(given.oracle, query)(given.theta, *more, omega) for omega in (compiled, torched))
        torch.testing.assert_close(
            found, expected, **(tight if query != "smoothed_hessian_product" else {"rtol": 1e-9, "atol": 1e-9})
        )


@alphas
def test_float32_is_as_exact_as_it_can_be(alpha: float) -> None:
    for lists in LISTS:
        given, omega = batch(lists), REGULARIZERS[alpha]
        single, double = given.theta.float(), given.theta.float().double()
        v = torch.randn_like(single)
        for query, *more in (("smoothed_value",), ("smoothed_mean",), ("smoothed_hessian_product", v)):
            found = getattr(given.oracle, query)(single, *more, omega)
            expected = getattr(given.oracle, query)(double, *[m.double() for m in more], omega)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 33])
@alphas
def test_an_instance_does_not_depend_on_its_batch(alpha: float, size: int) -> None:
    for lists in LISTS[2:4]:
        given, omega = batch(lists, size), REGULARIZERS[alpha]
        v, kept = torch.randn_like(given.theta), given.theta.clone()
        for query, *more in (("smoothed_value",), ("smoothed_mean",), ("smoothed_hessian_product", v), ("entropy",)):
            found = getattr(given.oracle, query)(given.theta, *more, omega)
            assert found.shape == (given.theta.shape if found.ndim == 2 else (size,))
            # torch's own operations may round by the batch.
            exact = omega.alpha is not None and query != "entropy"
            for b in {0, size - 1, size // 2} if size else ():
                rows = slice(b, b + 1)
                alone = getattr(given.oracle[rows], query)(given.theta[rows], *[m[rows] for m in more], omega)
                torch.testing.assert_close(found[rows], alone, **({"rtol": 0, "atol": 0} if exact else {}))
        assert torch.equal(given.theta, kept)


def test_strided_and_shared_potentials() -> None:
    given = batch(LISTS[0])
    wide = torch.stack([given.theta, torch.full_like(given.theta, math.nan)], 2)[:, :, 0]
    assert not wide.is_contiguous()
    assert torch.equal(given.oracle.marginals(wide), given.oracle.marginals(given.theta))
    v = torch.randn(1, given.lists.parts, dtype=torch.float64)
    spread = v.expand_as(given.theta)
    assert torch.equal(given.oracle.covariance_product(wide, v), given.oracle.covariance_product(given.theta, spread))


def test_many_instances_in_several_threads() -> None:
    steps, states = 12, 20
    edges = [(j, (), None) for j in range(states)]
    numbers = iter(range(steps * states**2))
    for t in range(steps):
        below, here = t * states, (t + 1) * states
        edges += [(here + j, (below + i,), next(numbers)) for j in range(states) for i in range(states)]
    goal = (steps + 1) * states
    edges += [(goal, (goal - 1 - j,), None) for j in range(states)]
    oracle = Listed(Hyperedges(tuple(edges), steps * states**2, (goal,)))
    theta, v = torch.randn(2, 40, steps * states**2)
    for omega in (Negentropy(), SquaredL2(), Unregularized()):
        for query, *more in (("smoothed_value",), ("smoothed_mean",), ("smoothed_hessian_product", v)):
            found = getattr(oracle, query)(theta, *more, omega)
            expected = getattr(oracle, query)(theta, *more, InTorch(inner=omega))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("alpha", [alpha for alpha in REGULARIZERS if alpha != INF])
def test_autograd_follows_to_any_order(alpha: float) -> None:
    for lists in LISTS[1:3]:
        given, omega = batch(lists, 4), REGULARIZERS[alpha]
        finite = torch.where(given.theta.isneginf(), 0.3, given.theta).requires_grad_()

        def value(theta: Tensor, given: Batch = given) -> Tensor:
            return given.oracle.smoothed_value(theta, REGULARIZERS[alpha])

        assert gradcheck(value, finite, fast_mode=True)
        assert gradgradcheck(value, finite, fast_mode=True)
        # Third derivatives, against differences of the compiled second ones.
        v, w = torch.randn(2, *finite.shape, dtype=torch.float64)
        (first,) = torch.autograd.grad(value(finite).sum(), finite, create_graph=True)
        (second,) = torch.autograd.grad((first * v).sum(), finite, create_graph=True)
        (third,) = torch.autograd.grad((second * v).sum(), finite, allow_unused=True, materialize_grads=True)
        step = 1e-5
        ahead, behind = (
            given.oracle.smoothed_hessian_product(finite.detach() + s * w, v, omega) for s in (step, -step)
        )
        along = ((ahead - behind) / (2 * step) * v).sum(1)
        torch.testing.assert_close((third * w).sum(1), along, rtol=1e-4, atol=1e-5)


@alphas
def test_gradients_of_forbidden_parts_are_zero(alpha: float) -> None:
    given, omega = batch(LISTS[0]), REGULARIZERS[alpha]
    theta = given.theta.requires_grad_()
    (first,) = torch.autograd.grad(given.oracle.smoothed_value(theta, omega).sum(), theta, create_graph=True)
    torch.testing.assert_close(first, given.oracle.smoothed_mean(theta.detach(), omega))
    v = torch.randn_like(theta)
    (second,) = torch.autograd.grad((first * v).sum(), theta)
    torch.testing.assert_close(second, given.oracle.smoothed_hessian_product(theta.detach(), v, omega))
    assert (first[theta.isneginf()] == 0).all()
    assert (second[theta.isneginf()] == 0).all()


# ----------------------------------------------------------------------------- propositions


@alphas
def test_bounds_and_limits(alpha: float) -> None:
    """Mensch & Blondel 2018, propositions 2 and 3 (with Ω ≤ 0 here), and DP_γΩ → max."""
    for lists in LISTS:
        given, omega = batch(lists), REGULARIZERS[alpha]
        hard = given.oracle.smoothed_value(given.theta, Unregularized())
        value = given.oracle.smoothed_value(given.theta, omega)
        choices = max(len(d.edges) for goal in lists.goals for d in lists.derivations(goal))
        most = smoothed([0.0] * 3, alpha)[0]  # −Ω of the uniform distribution over as many as there are to choose from
        assert (value >= hard - 1e-12).all()
        assert (value <= hard + choices * most + 1e-12).all()
        cold = 1e-4
        close(cold * given.oracle.smoothed_value(given.theta / cold, omega), hard.tolist(), atol=cold * choices * 3)
        torch.testing.assert_close(
            given.oracle.smoothed_mean(given.theta / cold, omega), given.oracle.argmax(given.theta)
        )


@alphas
def test_convex(alpha: float) -> None:
    for lists in LISTS:
        given, omega = batch(lists), REGULARIZERS[alpha]
        one, other = (
            torch.where(given.theta.isneginf(), t, t + torch.randn_like(t)) for t in (given.theta, given.theta)
        )
        values = [given.oracle.smoothed_value(t, omega) for t in (one, other, 0.3 * one + 0.7 * other)]
        assert (values[2] <= 0.3 * values[0] + 0.7 * values[1] + 1e-12).all()


def test_log_partition_is_that_of_the_list() -> None:
    for lists in LISTS:
        given = batch(lists)
        expected = [
            math.log(math.fsum(math.exp(lists.score(d, at.theta)) for d in lists.derivations(goal)))
            for at, goal in given.each(1)
        ]
        close(given.oracle.log_partition(given.theta), expected)


# ----------------------------------------------------------------------------- infeasible instances


@alphas
def test_infeasible_instances_are_named(alpha: float) -> None:
    lists = Hyperedges(((0, (), 0), (1, (0,), 1), (1, (0,), 2)), 3, (1,))
    oracle, omega = Listed(lists), REGULARIZERS[alpha]
    theta = torch.zeros(20, 3, dtype=torch.float64)
    theta[17, 1:] = -INF
    theta[18, 0] = -INF
    queries = (
        lambda: oracle.smoothed_value(theta, omega),
        lambda: oracle.smoothed_mean(theta, omega),
        lambda: oracle.smoothed_hessian_product(theta, theta.abs(), omega),
        lambda: oracle.smoothed_sample(theta, 2, omega),
        lambda: oracle.entropy(theta, omega),
        lambda: oracle.log_prob(theta, torch.ones_like(theta), omega),
        lambda: oracle.enumerate_support(theta, omega),
        lambda: oracle.topk(theta, 2),
        lambda: oracle.argmax(theta),
    )
    for query in queries:
        with pytest.raises(InfeasibleError, match="no structure of Listed of finite score exists for batch index 17"):
            query()
    assert oracle.count(theta)[16:] == [2, 0, 0, 2]
