"""Assignments, against enumeration by itertools and against scipy."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from structinf.errors import InfeasibleError, InvalidInputError
from structinf.oracle import GibbsOracle
from structinf_oracles.assignment import Assignment

ORACLE = Assignment()
PARTIAL = Assignment(allow_unmatched=True)
DTYPES = [torch.float32, torch.float64]
INF = math.inf
SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 4), (4, 2), (3, 5), (5, 3), (4, 4)]
GOLDEN = [[1, 0.5, 0], [0.2, 0, 0.4], [0, 0.1, 0.3]]


def scores(batch, n, m, dtype=torch.float64, scale=1.0, kind="normal"):
    """Scores without ties, with many, or with a third of the parts forbidden as well."""
    theta = torch.randn(batch, n, m, dtype=dtype) if kind == "normal" else torch.randint(-2, 3, (batch, n, m)).to(dtype)
    if kind == "forbidden":
        theta[torch.rand(batch, n, m) < 1 / 3] = -INF
    return theta * scale


def matchings(n, m):
    """The column of each row, −1 for none, in every matching: whole, partial or empty."""
    for columns in itertools.product(range(-1, m), repeat=n):
        used = [c for c in columns if c >= 0]
        if len(set(used)) == len(used):
            yield columns


def whole(n, m):
    """Those with a partner for all of the smaller side."""
    return [c for c in matchings(n, m) if n - c.count(-1) == min(n, m)]


def score(theta, columns):
    """The sum of the pairs' scores, in Python floats."""
    return math.fsum(float(theta[i, c]) for i, c in enumerate(columns) if c >= 0)


def is_allowed(theta, columns):
    return all(theta[i, c] > -INF for i, c in enumerate(columns) if c >= 0)


def ranking(theta, structures):
    """Finite scores of the structures, best first."""
    return sorted((score(theta, c) for c in structures if is_allowed(theta, c)), reverse=True)


def most_pairs(theta):
    """The matchings of allowed pairs with the most of them."""
    allowed = [c for c in matchings(*theta.shape) if is_allowed(theta, c)]
    fewest_without = min(c.count(-1) for c in allowed)
    return [c for c in allowed if c.count(-1) == fewest_without]


def is_matching(y):
    return bool(((y == 0) | (y == 1)).all() and (y.sum(1) <= 1).all() and (y.sum(2) <= 1).all())


# ----------------------------------------------------------------------------- the best


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("kind", ["normal", "ties", "forbidden"])
def test_argmax_is_the_best_of_all(n, m, dtype, kind):
    theta = scores(20, n, m, dtype, kind=kind)
    structures = whole(n, m)
    best = [ranking(t.numpy(), structures)[:1] for t in theta]
    feasible = torch.tensor([bool(b) for b in best])
    if not feasible.all():
        with pytest.raises(InfeasibleError) as error:
            ORACLE.argmax(theta)
        assert error.value.batch_index == int((~feasible).nonzero()[0])
    y = ORACLE.argmax(theta[feasible])
    assert y.dtype == dtype
    assert is_matching(y)
    assert (y.sum((1, 2)) == min(n, m)).all()
    found = ORACLE.score(theta[feasible].double(), y.double())
    torch.testing.assert_close(found, torch.tensor([b[0] for b in best if b], dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("n", "m"), [(30, 30), (17, 60), (60, 17), (100, 100)])
@pytest.mark.parametrize("kind", ["normal", "ties", "forbidden"])
def test_argmax_is_as_good_as_that_of_scipy(n, m, dtype, scale, kind):
    theta = scores(6, n, m, dtype, scale, kind)
    y = ORACLE.argmax(theta)
    assert is_matching(y)
    assert (y.sum((1, 2)) == min(n, m)).all()
    for t, z in zip(theta.double().numpy(), y.numpy(), strict=True):
        rows, columns = linear_sum_assignment(t, maximize=True)
        if kind == "normal":
            assert z[rows, columns].sum() == min(n, m)
        assert t[z == 1].sum() == pytest.approx(t[rows, columns].sum(), rel=1e-13)


def test_slowly_moving_scores_with_many_best_structures():
    """What a projection asks for: near its end, all structures of its support have one score."""
    theta, mean = torch.randn(4, 12, 12, dtype=torch.float64), torch.zeros(4, 12, 12, dtype=torch.float64)
    for _ in range(60):
        y = ORACLE.argmax(theta - mean)
        for t, z in zip((theta - mean).numpy(), y.numpy(), strict=True):
            assert t[z == 1].sum() == pytest.approx(t[linear_sum_assignment(t, maximize=True)].sum(), abs=1e-12)
        direction = y - mean
        step = (((theta - mean) * direction).sum((1, 2)) / direction.square().sum((1, 2))).clamp(0, 1)
        mean = mean + step[:, None, None] * direction


def test_golden_value():
    theta = torch.tensor([GOLDEN])
    y = ORACLE.argmax(theta)
    assert ORACLE.decode(y).tolist() == [[0, 2, 1]]
    assert ORACLE.score(theta, y).item() == 1.5
    structures, value, valid = ORACLE.topk(theta, 7)
    torch.testing.assert_close(value[:3, 0], torch.tensor([1.5, 1.3, 1.0]))
    assert valid[:, 0].tolist() == [True] * 6 + [False]
    assert ORACLE.decode(structures[:3, 0]).tolist() == [[0, 2, 1], [0, 1, 2], [1, 0, 2]]


def test_two_by_two():
    theta = torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])
    assert ORACLE.argmax(theta).tolist() == [[[1, 0], [0, 1]]]
    projection = torch.tensor([[[0.875, 0.125], [0.125, 0.875]]])
    vertices, value, _ = ORACLE.topk(theta - projection, 3)
    assert vertices[:2, 0].sum(0).tolist() == [[1, 1], [1, 1]]
    assert value[:, 0].tolist() == [-0.25, -0.25, -INF]


@pytest.mark.parametrize("n", [3, 8])
def test_any_sign_and_invariance_under_shifts(n):
    theta = scores(10, n, n)
    y = ORACLE.argmax(theta)
    assert torch.equal(ORACLE.argmax(theta - 100), y)
    assert torch.equal(ORACLE.argmax(theta + 100), y)
    assert torch.equal(ORACLE.argmax(theta + 7 * torch.randn(10, n, 1, dtype=torch.float64)), y)


@pytest.mark.parametrize(("n", "m"), [(3, 2), (2, 3), (3, 3)])
def test_negated_costs_are_minimised(n, m):
    cost = scores(10, n, m)
    y = ORACLE.argmax(-cost)
    structures = whole(n, m)
    least = [min(score(c, z) for z in structures) for c in cost]
    torch.testing.assert_close((cost * y).sum((1, 2)), torch.tensor(least, dtype=torch.float64))
    assert torch.equal(ORACLE.argmax((-cost).mT), y.mT)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 3), (2, 5), (5, 2), (40, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_give_one_vertex_always(n, m, dtype):
    theta = torch.zeros(3, n, m, dtype=dtype)
    y = ORACLE.argmax(theta)
    assert is_matching(y)
    assert (y.sum((1, 2)) == min(n, m)).all()
    assert torch.equal(y, y[:1].expand_as(y))
    assert torch.equal(y, ORACLE.argmax(theta))


def test_far_ends_of_the_floats():
    big = torch.finfo(torch.float64).max
    theta = torch.tensor([[[big, -big], [big, 0.0]], [[1e-290, 0.0], [0.0, -1e-289]]], dtype=torch.float64)
    assert ORACLE.decode(ORACLE.argmax(theta)).tolist() == [[0, 1], [1, 0]]
    theta = torch.tensor([[[3e38, -3e38, 1.0], [3e38, 3e38, 3e38], [-3e38, -3e38, -3e38]]])
    assert ORACLE.decode(ORACLE.argmax(theta)).tolist() == [[0, 1, 2]]


def test_float32_is_solved_exactly():
    """Differences that sums in float32 would lose."""
    theta = 2**22 + torch.randint(0, 64, (8, 16, 16)) / 2
    y = ORACLE.argmax(theta)
    for t, z in zip(theta.double().numpy(), y.numpy(), strict=True):
        assert t[z == 1].sum() == t[linear_sum_assignment(t, maximize=True)].sum()


# ----------------------------------------------------------------------------- infeasible instances


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "cost",
    [
        [[1, INF], [2, INF]],
        [[INF, INF], [INF, INF]],
        [[INF]],
        [[INF, INF, INF], [0, 1, 2]],
        [[0, 1, INF], [5, 0, INF], [2, 2, INF]],
        [[0, INF], [INF, INF], [3, INF]],
    ],
)
def test_infeasible_instances_are_named(cost, dtype):
    bad = -torch.tensor([cost], dtype=dtype)
    theta = torch.cat([torch.zeros(2, *bad.shape[1:], dtype=dtype), bad, bad])
    for call in (ORACLE.argmax, lambda t: ORACLE.topk(t, 2)):
        with pytest.raises(InfeasibleError, match="no assignment of finite score exists for batch index 2") as error:
            call(theta)
        assert error.value.batch_index == 2


def test_crowds_of_rows_for_few_columns_end_quickly():
    """Rows that outbid each other for ever."""
    theta = torch.full((1, 120, 120), -INF, dtype=torch.float64)
    theta[0, :, :100] = torch.randn(120, 100, dtype=torch.float64)
    ORACLE.argmax(torch.zeros(1, 2, 2, dtype=torch.float64))  # compiles
    start = time.perf_counter()
    with pytest.raises(InfeasibleError):
        ORACLE.argmax(theta)
    assert PARTIAL.argmax(theta).sum() == 100
    assert time.perf_counter() - start < 10


def test_unmatched_rows_and_columns():
    cost = torch.tensor([[[1.0, INF], [2.0, INF]]])
    assert PARTIAL.argmax(-cost).tolist() == [[[1, 0], [0, 0]]]
    assert PARTIAL.argmax(torch.full((1, 2, 3), -INF)).tolist() == [[[0, 0, 0], [0, 0, 0]]]
    chained = torch.tensor([[[-9.0, -INF, -INF], [5.0, -1.0, -INF], [-INF, 7.0, -INF]]])
    assert PARTIAL.always_feasible
    assert not ORACLE.always_feasible
    assert PARTIAL.argmax(chained).tolist() == [[[0, 0, 0], [1, 0, 0], [0, 1, 0]]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("forbidden", [0.0, 0.3, 0.6, 0.85])
def test_the_most_pairs_and_then_the_best(n, m, dtype, forbidden):
    theta = scores(20, n, m, dtype)
    theta[torch.rand(20, n, m) < forbidden] = -INF
    k = 12
    y = PARTIAL.argmax(theta)
    structures, value, valid = PARTIAL.topk(theta, k)
    assert is_matching(y)
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), most_pairs(t.numpy()))
        assert PARTIAL.score(t[None].double(), y[b, None].double()).item() == pytest.approx(best[0], abs=1e-9)
        assert int(valid[:, b].sum()) == min(k, len(best))
        assert value[valid[:, b], b].tolist() == pytest.approx(best[:k], abs=1e-5)
    assert is_matching(structures.flatten(0, 1))


def test_the_option_changes_nothing_where_all_can_be_matched():
    for n, m in [(6, 6), (4, 7), (7, 4)]:
        theta = scores(20, n, m)
        theta[torch.rand(20, n, m) < 0.15] = -INF
        kept = [b for b, t in enumerate(theta) if _feasible(t)]
        y = PARTIAL.argmax(theta)
        assert len(kept) > 5
        assert torch.equal(ORACLE.argmax(theta[kept]), y[kept])


def test_without_forbidden_parts_the_layout_does_not_depend_on_the_batch():
    theta = scores(3, 5, 3, kind="ties")
    alone = PARTIAL.argmax(theta)
    theta = torch.cat([theta, torch.full((1, 5, 3), -INF, dtype=torch.float64)])
    assert torch.equal(PARTIAL.argmax(theta)[:3], alone)
    assert torch.equal(ORACLE.argmax(theta[:3]), alone)


def _feasible(theta):
    try:
        ORACLE.argmax(theta[None])
    except InfeasibleError:
        return False
    return True


# ----------------------------------------------------------------------------- the k best


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [*SHAPES, (2, 7), (7, 2), (5, 5), (4, 6)])
@pytest.mark.parametrize("kind", ["normal", "ties", "forbidden"])
@pytest.mark.parametrize("k", [1, 2, 9, 400])
def test_topk_is_the_head_of_the_full_ranking(n, m, dtype, kind, k):
    theta = scores(4, n, m, dtype, kind=kind)
    theta = theta[[b for b, t in enumerate(theta) if _feasible(t)]]
    structures, value, valid = ORACLE.topk(theta, k)
    assert structures.dtype == value.dtype == dtype
    assert structures.shape == (k, *theta.shape)
    every = whole(n, m)
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), every)[:k]
        count = len(best)
        assert valid[:, b].tolist() == [True] * count + [False] * (k - count)
        assert value[:count, b].tolist() == pytest.approx(best, rel=1e-6 if dtype == torch.float32 else 1e-12, abs=1e-6)
        assert (value[: count - 1, b] >= value[1:count, b]).all()
        assert (value[count:, b] == -INF).all()
        found = structures[:count, b]
        assert is_matching(found)
        assert (found.sum((1, 2)) == min(n, m)).all()
        assert len(found.flatten(1).unique(dim=0)) == count
        assert (structures[count:, b] == 0).all()
        torch.testing.assert_close(
            ORACLE.score(t[None].expand_as(found), found), value[:count, b], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_topk_of_seven_by_seven(scale):
    theta = scores(2, 7, 7, scale=scale)
    value = ORACLE.topk(theta, 300)[1]
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), list(itertools.permutations(range(7))))[:300]
        np.testing.assert_allclose(value[:, b].numpy(), best, rtol=1e-12, atol=1e-12 * scale)


def test_topk_of_larger_instances_begins_with_the_best():
    theta = scores(3, 30, 40)
    structures, value, _ = ORACLE.topk(theta, 50)
    assert torch.equal(structures[0], ORACLE.argmax(theta))
    torch.testing.assert_close(value[:8], ORACLE.topk(theta, 8)[1])
    # Every exchange of two rows' columns, and every move to a free column, is in the list or not better than its last.
    for b in range(3):
        listed = {tuple(c) for c in ORACLE.decode(structures[:, b]).tolist()}
        columns = ORACLE.decode(structures[:1, b])[0].tolist()
        for i in range(30):
            free = [c for c in range(40) if c not in columns]
            neighbours = [[*columns[:i], c, *columns[i + 1 :]] for c in free]
            for j in range(i):
                swapped = list(columns)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                neighbours.append(swapped)
            for labels in neighbours:
                total = float(theta[b, torch.arange(30), torch.tensor(labels)].sum())
                assert tuple(labels) in listed or total <= value[-1, b] + 1e-12


def test_topk_needs_a_positive_k():
    with pytest.raises(InvalidInputError, match="k must be at least 1, got 0"):
        ORACLE.topk(torch.zeros(1, 2, 2), 0)
    with pytest.raises(InvalidInputError, match=r"k must be an integer of at least 1, got 2\.0"):
        ORACLE.topk(torch.zeros(1, 2, 2), 2.0)


# ----------------------------------------------------------------------------- tensors and batches


@pytest.mark.parametrize("shape", [(0, 3, 3), (0, 2, 4), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_empty_batches_and_sides(shape):
    theta = torch.zeros(shape)
    for oracle in (ORACLE, PARTIAL):
        y = oracle.argmax(theta)
        assert y.shape == shape
        assert not y.any()
        structures, value, valid = oracle.topk(theta, 2)
        assert structures.shape == (2, *shape)
        assert value.shape == valid.shape == (2, shape[0])
        assert valid[0].all()
        assert not valid[1].any()
        assert torch.equal(oracle.encode(oracle.decode(y), theta), y)


def test_non_contiguous_scores_that_need_a_gradient_are_left_alone():
    base = torch.randn(6, 9, 4)
    theta = base.permute(2, 1, 0)[:, ::2].requires_grad_()
    before = theta.detach().clone()
    y = ORACLE.argmax(theta)
    assert torch.equal(y, ORACLE.argmax(before))
    assert torch.equal(ORACLE.topk(theta, 3)[0], ORACLE.topk(before, 3)[0])
    assert torch.equal(theta.detach(), before)
    assert not y.requires_grad
    assert theta.requires_grad


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_instances_and_threads_do_not_matter(kind):
    theta = scores(40, 40, 40, torch.float32, kind=kind)
    y = ORACLE.argmax(theta)
    alone = torch.cat([ORACLE.argmax(t[None]) for t in theta])
    assert torch.equal(y, alone)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(ORACLE.argmax(theta), y)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("oracle", [ORACLE, PARTIAL])
def test_lengths_are_a_smaller_problem(oracle):
    sizes = [(3, 4), (4, 4), (4, 2), (1, 1), (0, 3), (2, 0), (2, 3)]
    theta = scores(len(sizes), 4, 5)
    theta[6, 0, 0] = -INF
    bound = oracle.bind(lengths=torch.tensor(sizes))
    mask = bound.valid_parts(theta)
    theta = torch.where(mask, theta, 0.0)
    y = bound.argmax(theta)
    structures, value, valid = bound.topk(theta, 5)
    assert not y[~mask].any()
    assert not structures[:, ~mask].any()
    for b, (n, m) in enumerate(sizes):
        assert mask[b].sum() == n * m
        assert mask[b, :n, :m].all()
        small = theta[b : b + 1, :n, :m]
        assert torch.equal(y[b, :n, :m], oracle.argmax(small)[0])
        alone = oracle.topk(small, 5)
        assert torch.equal(structures[:, b, :n, :m], alone[0][:, 0])
        assert torch.equal(value[:, b], alone[1][:, 0])
        assert torch.equal(valid[:, b], alone[2][:, 0])
    labels = bound.decode(y)
    assert torch.equal(bound.encode(labels, theta), y)
    assert torch.equal(
        bound.encode(labels.where(labels >= 0, 99).where(mask.any(2), 99).where(labels >= 0, -1), theta), y
    )
    assert torch.equal(bound[[1, 3]].argmax(theta[[1, 3]]), y[[1, 3]])
    assert torch.equal(bound.repeat(2).argmax(theta.repeat(2, 1, 1)), y.repeat(2, 1, 1))


def test_full_lengths_mask_nothing():
    theta = torch.zeros(2, 3, 4)
    assert ORACLE.valid_parts(theta) is None
    assert ORACLE.bind(lengths=torch.tensor([[3, 4], [3, 4]])).valid_parts(theta) is None


def test_wrong_lengths_are_named():
    theta = torch.zeros(2, 3, 4)
    with pytest.raises(InvalidInputError, match=r"between 0 and 3 \(n = 3 rows\), got 4 at batch index 1"):
        ORACLE.bind(lengths=torch.tensor([[3, 4], [4, 4]])).validate(theta)
    with pytest.raises(InvalidInputError, match=r"between 0 and 4 \(m = 4 columns\), got -1 at batch index 0"):
        ORACLE.bind(lengths=torch.tensor([[3, -1], [3, 4]])).validate(theta)
    with pytest.raises(InvalidInputError, match="the rows and the columns in use"):
        ORACLE.bind(lengths=torch.tensor([[3, 3, 3], [3, 3, 3]])).validate(theta)


@pytest.mark.cuda
def test_cuda_scores_are_answered_on_the_device():
    theta = torch.randn(5, 6, 4)
    y = ORACLE.argmax(theta.cuda())
    assert y.is_cuda
    assert torch.equal(y.cpu(), ORACLE.argmax(theta))
    bound = ORACLE.bind(lengths=torch.tensor([[3, 4]] * 5))
    on_device = ORACLE.bind(lengths=torch.tensor([[3, 4]] * 5).cuda()).topk(theta.cuda(), 3)
    for ours, theirs in zip(bound.topk(theta, 3), on_device, strict=True):
        assert theirs.is_cuda
        assert torch.equal(theirs.cpu(), ours)


# ----------------------------------------------------------------------------- enumeration and labels


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_enumeration(n, m):
    y = ORACLE.enumerate((n, m))
    assert y.dtype == torch.float64
    assert torch.equal(y, PARTIAL.enumerate((n, m)))
    assert len(y) == math.perm(max(n, m), min(n, m))
    assert is_matching(y)
    labels = ORACLE.decode(y)
    assert sorted(map(tuple, labels.tolist())) == sorted(whole(n, m))
    assert torch.equal(ORACLE.encode(labels, y), y)


def test_enumeration_of_a_length():
    y = ORACLE.bind(lengths=torch.tensor([[3, 2]])).enumerate((4, 4))
    assert len(y) == 6
    assert torch.equal(y[:, :3, :2], ORACLE.enumerate((3, 2)))
    assert y.sum() == 12
    with pytest.raises(InvalidInputError, match="there are 2432902008176640000 assignments of 20 rows and 20 columns"):
        ORACLE.enumerate((20, 20))


def test_labels():
    like = torch.zeros(2, 3, 4, dtype=torch.float32)
    y = ORACLE.encode(torch.tensor([[1, 0, 3], [2, 3, 0]], dtype=torch.int32), like)
    assert y.dtype == like.dtype
    assert y.argmax(2).tolist() == [[1, 0, 3], [2, 3, 0]]
    partial = torch.tensor([[-1, 0, 3], [-1, -1, -1]])
    assert torch.equal(PARTIAL.decode(PARTIAL.encode(partial, like)), partial)
    tall = torch.tensor([[1, -1, 0]])
    assert torch.equal(ORACLE.decode(ORACLE.encode(tall, torch.zeros(1, 3, 2))), tall)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 1, 2], [0, 4, 1]], "between 0 and 3, or are −1 for none, got 4 for row 1 at batch index 1"),
        ([[0, -2, 2], [0, 1, 2]], "got -2 for row 1 at batch index 0"),
        ([[0, 1, 2], [3, 1, 3]], r"rows \[0, 2\] share column 3 at batch index 1"),
        ([[0, 1, 2], [3, 1, -1]], "matched wholly, in 3 pairs, got 2 at batch index 1"),
        ([[0, 1], [3, 1]], r"a column, or −1, for each of them, \(..., 3\); got \(2, 2\)"),
    ],
)
def test_wrong_labels_are_named(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        ORACLE.encode(torch.tensor(labels), torch.zeros(2, 3, 4))


def test_hamming_cost_counts_wrong_rows():
    every = ORACLE.enumerate((3, 4))
    gold = every[5:6].expand_as(every)
    cost = ORACLE.hamming_cost(gold)
    wrong = (ORACLE.decode(every) != ORACLE.decode(gold)).sum(1)
    torch.testing.assert_close((cost * (every - gold)).sum((1, 2)), wrong.double())


def test_sums_are_refused_with_a_reason():
    assert not issubclass(Assignment, GibbsOracle)
    assert "#P-complete" in Assignment.unsupported[GibbsOracle.__name__]
    assert Assignment() == Assignment(allow_unmatched=False)
    with pytest.raises(TypeError):
        Assignment(True)
