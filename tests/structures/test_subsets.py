"""Subsets, correlated subsets and knapsacks, against enumeration and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp

import enumerators
import enumerators_subsets as plain
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.correlated_subset import CorrelatedSubset
from structinf_oracles.knapsack import Knapsack
from structinf_oracles.subset import Subset

pytestmark = pytest.mark.slow

INF = math.inf


def subset(size, k, at_most=False):
    return Program(
        Subset(k, at_most=at_most),
        (size,),
        lambda length: list(plain.subset(size, k, at_most, length)),
        lambda length: plain.subset_grammar(size, k, at_most, length),
        lengths=list(range(0 if at_most else k, size + 1)),
    )


def correlated_subset(size, k):
    return Program(
        CorrelatedSubset(k),
        ((size,), (size - 1,)),
        lambda length: list(plain.correlated_subset(size, k, length)),
        lambda length: plain.correlated_subset_grammar(size, k, length),
        lengths=list(range(k, size + 1)),
    )


def knapsack(weights, capacity):
    return Program(
        Knapsack(weights, capacity),
        (len(weights),),
        lambda _: list(plain.knapsack(weights, capacity)),
        lambda _: plain.knapsack_grammar(weights, capacity),
    )


PROGRAMS = [
    subset(5, 2),
    subset(4, 3),
    subset(3, 0),
    subset(2, 2),
    subset(5, 2, at_most=True),
    subset(3, 5, at_most=True),
    correlated_subset(5, 2),
    correlated_subset(4, 3),
    correlated_subset(1, 1),
    correlated_subset(3, 0),
    knapsack([3, 4, 5, 2, 0], 8),
    knapsack([2, 2, 2], 3),
    knapsack([5, 6], 4),
    knapsack([1, 2, 3], 100),
]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


# ----------------------------------------------------------------------------- known values


def test_sums_over_pairs_of_four():
    theta = torch.tensor([[0, 0.25, 0.5, 0.75]], dtype=torch.float64)
    pair = Subset(2)
    assert pair.log_partition(theta).item() == pytest.approx(2.593415, abs=1e-6)
    assert pair.marginals(theta)[0].tolist() == pytest.approx([0.377541, 0.457506, 0.542494, 0.622459], abs=1e-6)
    theta = torch.tensor([[2.0, 0, 0]], dtype=torch.float64)
    assert pair.marginals(theta)[0].tolist() == pytest.approx([0.936621, 0.531690, 0.531690], abs=1e-6)


@pytest.mark.parametrize("size", range(8))
def test_counts_are_binomial_coefficients(size):
    theta = torch.zeros(1, size)
    for k in range(size + 1):
        assert Subset(k).count(theta) == [math.comb(size, k)]
        assert Subset(k, at_most=True).count(theta) == [sum(math.comb(size, j) for j in range(k + 1))]
        if size:
            assert CorrelatedSubset(k).count((theta, theta[:, 1:])) == [math.comb(size, k)]
        assert Knapsack([1] * size, k).count(theta) == [sum(math.comb(size, j) for j in range(k + 1))]


def test_counts_beyond_floats():
    assert Subset(600).count(torch.zeros(1, 1200)) == [math.comb(1200, 600)]


def test_pairs_of_neighbours_make_a_chain():
    """With a weight of exp(pair) for each pair of neighbours, k of d elements fall into runs: a sum of binomials."""
    d, k, pair = 9, 4, 0.7
    theta = torch.zeros(1, d, dtype=torch.float64), torch.full((1, d - 1), pair, dtype=torch.float64)
    runs = [math.comb(k - 1, r - 1) * math.comb(d - k + 1, r) * math.exp(pair * (k - r)) for r in range(1, k + 1)]
    assert CorrelatedSubset(k).log_partition(theta).item() == pytest.approx(math.log(sum(runs)))


# ----------------------------------------------------------------------------- the best


def test_ties_go_to_the_lowest_indices():
    theta = torch.tensor([[1.0, 2, 1, 1, 0], [0, 0, 0, 0, 0], [-1, -INF, -1, -1, -1]])
    chosen = [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0]]
    assert Subset(3).argmax(theta).tolist() == chosen
    y, _, _ = Subset(3).topk(theta, 1)
    assert y[0].tolist() == chosen


def test_at_most_takes_nothing_for_nothing():
    theta = torch.tensor([[-1.0, -1.0], [0.0, -0.0], [-INF, -INF], [2.0, 1.0]])
    assert Subset(1).argmax(theta[:1]).sum() == 1
    assert Subset(1, at_most=True).argmax(theta).tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]
    assert Subset(9, at_most=True).argmax(theta).tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]]


def test_selection_is_the_recursion():
    theta = torch.randn(20, 300).round(decimals=1)
    theta[torch.rand(theta.shape) < 0.3] = -INF
    lengths = torch.randint(150, 301, (20,))
    for oracle in (Subset(40), Subset(40, at_most=True)):
        oracle = oracle.bind(lengths=lengths)
        y = oracle.argmax(theta)
        torch.testing.assert_close(oracle.score(theta, y), oracle.topk(theta, 1)[1][0])
        assert not y[torch.arange(300) >= lengths[:, None]].any()


def test_too_few_elements_that_are_allowed():
    theta = torch.tensor([[1.0, 1, 1], [-INF, 2, -INF]])
    for ask in (Subset(2).argmax, Subset(2).project, Subset(2).log_partition):
        with pytest.raises(InfeasibleError, match="batch index 1"):
            ask(theta)


def test_knapsacks_are_those_of_integer_programming():
    generator = np.random.default_rng(0)
    for d in (12, 40):
        weights, values = generator.integers(0, 50, d), generator.normal(size=d)
        capacity = int(weights.sum() // 3)
        found = Knapsack(weights, capacity)
        theta = torch.from_numpy(values)[None]
        best = milp(
            -values,
            constraints=LinearConstraint(weights[None], ub=capacity),
            bounds=Bounds(0, 1),
            integrality=np.ones(d),
        )
        assert found.score(theta, found.argmax(theta)).item() == pytest.approx(-best.fun)


def test_large_weights_cost_nothing_by_themselves():
    weights = [10**9 + i for i in range(12)]
    knapsack = Knapsack(torch.tensor(weights), 4 * 10**9 + 3)
    assert knapsack.build((12,)).nodes < 300
    assert knapsack.count(torch.zeros(1, 12)) == [len(list(plain.knapsack(weights, 4 * 10**9 + 3)))]


# ----------------------------------------------------------------------------- projections


@pytest.mark.parametrize(
    ("theta", "k", "mu"),
    [
        ([0, 0.25, 0.5, 0.75], 2, [0.125, 0.375, 0.625, 0.875]),
        ([0, 0.25, 0.5, 0.75, 1], 2, [0, 0.125, 0.375, 0.625, 0.875]),
        ([0, 0.5, 1, 1.5, 2], 3, [0, 0.25, 0.75, 1, 1]),
        ([2, 0, 0], 2, [1, 0.5, 0.5]),
        ([1, 2, -INF, 0], 2, [1, 1, 0, 0]),
        ([3, -1, 2], 3, [1, 1, 1]),
        ([3, -1, 2], 0, [0, 0, 0]),
        ([5, 3.5, 3.5, 0], 2, [1, 0.5, 0.5, 0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projections(theta, k, mu, dtype):
    found = Subset(k).project(torch.tensor([theta], dtype=dtype))
    assert found.dtype == dtype
    assert found[0].tolist() == pytest.approx(mu, abs=1e-12)


@pytest.mark.parametrize(
    ("theta", "k", "mu"),
    [
        ([-1, -1], 1, [0, 0]),
        ([0.2, 0.3, -5], 1, [0.2, 0.3, 0]),
        ([0.8, 0.6, -5], 1, [0.6, 0.4, 0]),
        ([7, 0.5, -INF], 2, [1, 0.5, 0]),
        ([7, 6, 0.5], 2, [1, 1, 0]),
        ([7, 6, 0.5], 5, [1, 1, 0.5]),
    ],
)
def test_projections_of_at_most(theta, k, mu):
    assert Subset(k, at_most=True).project(torch.tensor([theta], dtype=torch.float32))[0].tolist() == pytest.approx(
        mu, abs=1e-7
    )


@pytest.mark.parametrize("at_most", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 1e3])
def test_projections_are_nearest_points(at_most, scale):
    generator = np.random.default_rng(1)
    structures = list(plain.subset(6, 3, at_most))
    for _ in range(10):
        theta = generator.normal(size=6) * scale
        found = Subset(3, at_most=at_most).project(torch.from_numpy(theta)[None])[0].numpy()
        near = np.clip(theta, -20, 20) if scale < 100 else theta
        (expected,) = enumerators.projection((near,), structures)
        if scale < 100:
            np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found.min() >= 0
        assert found.max() <= 1
        assert found.sum() <= 3 + 1e-9
        # Nearest: no structure lies further along what is left.
        rest = theta - found
        assert max(rest @ y for (y,) in structures) <= rest @ found + 1e-9 * max(scale, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projections_of_large_potentials_keep_small_differences(dtype):
    theta = torch.tensor([[1000, 1000.25, 1000.5, 1000.75, -1000, 3000]], dtype=dtype)
    assert Subset(3).project(theta)[0].tolist() == [0.125, 0.375, 0.625, 0.875, 0, 1]
    many = torch.randn(3, 100_000, dtype=dtype)
    mu = Subset(5000).project(many).double()
    torch.testing.assert_close(mu.sum(1), torch.full((3,), 5000.0, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("at_most", [False, True])
def test_no_instances_and_no_elements(shape, at_most):
    theta, oracle = torch.zeros(shape), Subset(0, at_most=at_most)
    for ask in (oracle.argmax, oracle.project, oracle.marginals):
        assert ask(theta).shape == shape
    assert oracle.log_partition(theta).tolist() == [0.0] * shape[0]


@pytest.mark.parametrize("at_most", [False, True])
def test_projections_have_the_right_derivatives(at_most):
    theta = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 6, 5, 4, 3, 3])
    oracle = Subset(3, at_most=at_most).bind(lengths=lengths)
    mu = oracle.project(theta)
    assert not mu[torch.arange(7) >= lengths[:, None]].any()
    assert torch.autograd.gradcheck(oracle.project, theta)
    # A vertex stays where it is, also where the elements that would go first are tied.
    vertex = torch.tensor([[5.0, 5, 5, 1, 1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Subset(3, at_most=at_most).project, vertex)
    forbidden = torch.tensor([[0.5, -INF, 0.25, 0.9]], requires_grad=True)
    (gradient,) = torch.autograd.grad((Subset(2).project(forbidden) * torch.tensor([1.0, 2, 3, 4])).sum(), forbidden)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0


# ----------------------------------------------------------------------------- labels and costs


def test_labels_are_memberships():
    y = torch.tensor([[1.0, 0, 1, 1, 0]])
    assert Subset(3).decode(y).tolist() == [[1, 0, 1, 1, 0]]
    unary, pair = CorrelatedSubset(3).encode(torch.tensor([[1, 0, 1, 1, 0]]), (y, y[:, 1:]))
    assert torch.equal(unary, y)
    assert pair.tolist() == [[0, 0, 1, 0]]
    padded = Subset(1).bind(lengths=torch.tensor([2])).encode(torch.tensor([[0, 1, 7, 7, 7]]), y)
    assert padded.tolist() == [[0, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("oracle", "labels", "message"),
    [
        (Subset(2), [[1, 0, 0]], "fewer than 2 elements .*index 0"),
        (Subset(2), [[1, 1, 1]], "more than 2 elements .*index 0"),
        (Subset(2, at_most=True), [[1, 1, 1]], "more than 2 elements .*index 0"),
        (Subset(2), [[1, 2, 0]], "neither 0 nor 1"),
        (Subset(2), [[1, 1]], r"; got \(1, 2\)"),
        (Knapsack([2, 2, 2], 5), [[0, 0, 0], [1, 1, 1]], "capacity of 5 at batch index 1"),
    ],
)
def test_labels_that_name_no_structure(oracle, labels, message):
    with pytest.raises(InvalidInputError, match=message):
        oracle.encode(torch.tensor(labels), torch.zeros(len(labels), 3))


def test_labels_that_name_no_correlated_subset():
    with pytest.raises(InvalidInputError, match="exactly 2 elements"):
        CorrelatedSubset(2).encode(torch.tensor([[1, 0, 0]]), (torch.zeros(1, 3), torch.zeros(1, 2)))


def test_hamming_distances_count_elements():
    gold, other = torch.tensor([[1.0, 1, 0, 0]]), torch.tensor([[1.0, 0, 0, 1]])
    for oracle in (Subset(2), Subset(2, at_most=True), Knapsack([1] * 4, 2)):
        cost = oracle.hamming_cost(gold)
        assert (cost * (other - gold)).sum() == 2
    unary, pair = CorrelatedSubset(2).hamming_cost((gold, gold[:, 1:]))
    assert torch.equal(unary, cost)
    assert not pair.any()


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("k", [-1, 1.0, True, "2"])
def test_k_must_be_a_number(k):
    for oracle in (Subset, CorrelatedSubset):
        with pytest.raises(InvalidInputError, match="k must be an integer of at least 0, got"):
            oracle(k)


@pytest.mark.parametrize(
    ("weights", "capacity", "message"),
    [
        ([1, -2], 3, "weights must be integers of at least 0, got -2 for item 1"),
        ([1.5], 3, "got 1.5 for item 0; scale and round"),
        (torch.tensor([1.0]), 3, "got 1.0 for item 0"),
        (torch.tensor([[1]]), 3, "capacity must hold a number for each of 1 rows of weights, got 3"),
        (3, 3, "one integer for each item, got 3"),
        ("12", 3, "one integer for each item"),
        ([1], -1, "capacity must be an integer of at least 0, got -1"),
        ([1], 2.5, "capacity must be"),
    ],
)
def test_weights_and_capacity_must_be_numbers(weights, capacity, message):
    with pytest.raises(InvalidInputError, match=message):
        Knapsack(weights, capacity)


def test_weights_of_any_kind_are_the_same_oracle():
    wanted = Knapsack((1, 2, 3), 4)
    for weights in ([1, 2, 3], np.array([1, 2, 3]), torch.tensor([1, 2, 3], dtype=torch.int32)):
        assert Knapsack(weights, 4) == wanted
        assert hash(Knapsack(weights, 4)) == hash(wanted)


def test_shapes_that_do_not_fit():
    with pytest.raises(InvalidInputError, match="takes 4 of d elements, got d = 3; score more"):
        Subset(4).validate(torch.zeros(1, 3))
    Subset(4, at_most=True).validate(torch.zeros(1, 3))
    with pytest.raises(InvalidInputError, match=r"lengths must lie between 2 and 3 .*index 1"):
        Subset(2).bind(lengths=torch.tensor([2, 1])).validate(torch.zeros(2, 3))
    with pytest.raises(InvalidInputError, match=r"unary \(d,\) and pair \(d - 1,\).*got \(3,\) and \(3,\)"):
        CorrelatedSubset(2).validate((torch.zeros(1, 3), torch.zeros(1, 3)))
    with pytest.raises(InvalidInputError, match="takes 3 of d elements, got d = 2"):
        CorrelatedSubset(3).validate((torch.zeros(1, 2), torch.zeros(1, 1)))
    with pytest.raises(InvalidInputError, match=r"a value for each of the 2 weights, shape \(2,\), got \(3,\)"):
        Knapsack([1, 2], 3).validate(torch.zeros(1, 3))
    with pytest.raises(InvalidInputError, match="at_most must be True or False, got 1"):
        Subset(1, at_most=1)
