"""Soft-DTW of given costs: published values, enumeration of all alignments, gradients, bad input."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

from dtw_enumeration import paths
from soft_dtw_inputs import DOUBLE, REGULARIZERS, numbers
from structinf.alignments import alignment_matrix, alignment_path, soft_dtw
from structinf.errors import InfeasibleError, InvalidInputError, UnknownNameError
from structinf.regularizers import Tsallis

THREE = torch.tensor([[0, 1, 4], [1, 0, 1], [4, 1, 0]], dtype=DOUBLE)


# ----------------------------------------------------------------------------- plain Python


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


def test_three_by_three():
    torch.testing.assert_close(soft_dtw(THREE), numbers(-1.190428)[0], atol=1e-6, rtol=0)
    expected = numbers(1, 0.236085, 0.000754, 0.236085, 0.916184, 0.236085, 0.000754, 0.236085, 1).view(3, 3)
    torch.testing.assert_close(alignment_matrix(THREE), expected, atol=1e-6, rtol=0)
    zeros = torch.zeros(3, 3, dtype=DOUBLE)
    assert soft_dtw(zeros).item() == pytest.approx(-math.log(13))
    counts = numbers(13, 5, 1, 5, 9, 5, 1, 5, 13).view(3, 3)
    torch.testing.assert_close(13 * alignment_matrix(zeros), counts)


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


# ----------------------------------------------------------------------------- bands, lengths, batches


def test_costs_with_lengths():
    cost = torch.randn(3, 5, 7, dtype=DOUBLE)
    lengths = torch.tensor([[5, 7], [2, 3], [1, 1]])
    alone = [soft_dtw(c[:n, :m]) for c, (n, m) in zip(cost, lengths.tolist(), strict=True)]
    cost[1, 2:], cost[2, :, 1:] = math.nan, math.nan
    torch.testing.assert_close(soft_dtw(cost, lengths=lengths), torch.stack(alone))
    assert (alignment_matrix(cost, lengths=lengths)[1, 2:] == 0).all()
    assert (alignment_path(cost, lengths=lengths)[2, 1:] == -1).all()


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.3}, {"band": 2}, {"lengths": [[4, 3], [3, 1]]}])
def test_derivatives_in_the_cost(regularizer, options):
    # Away from the kinks of the sparse ones' second derivatives, as random costs are.
    cost = torch.rand(2, 4, 3, dtype=DOUBLE, requires_grad=True)
    for function in (soft_dtw, alignment_matrix):
        call = functools.partial(function, regularizer=regularizer, **options)
        assert torch.autograd.gradcheck(call, cost, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, cost, fast_mode=True)


def test_forbidden_cells_have_no_gradient():
    cost = torch.rand(4, 4, dtype=DOUBLE)
    cost[1, 1] = cost[0, 2] = math.inf
    cost.requires_grad_()
    (gradient,) = torch.autograd.grad(soft_dtw(cost), cost)
    assert gradient[1, 1] == gradient[0, 2] == 0
    assert gradient[0, 0] == gradient[3, 3] == 1


# ----------------------------------------------------------------------------- bad input


def test_costs_that_cannot_be():
    with pytest.raises(TypeError, match=r"cost must be a tensor in floating point.*torch.int64"):
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
