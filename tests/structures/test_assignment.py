"""The best assignments, against enumeration by itertools and against scipy."""

from __future__ import annotations

import time

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from assignment_enumeration import (
    BY_SCORE,
    DTYPES,
    INF,
    ORACLE,
    PARTIAL,
    SHAPES,
    is_feasible,
    is_matching,
    matchings,
    most_pairs,
    ranking,
    score,
    scores,
    whole,
)
from structinf import relax
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf_oracles.assignment import Assignment

GOLDEN = [[1, 0.5, 0], [0.2, 0, 0.4], [0, 0.1, 0.3]]


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_matchings_by_score_leave_out_pairs_that_do_not_pay(n, m, dtype):
    theta = scores(12, n, m, dtype)
    theta[torch.rand(12, n, m) < 0.2] = -INF
    k = 12
    y = BY_SCORE.argmax(theta)
    structures, value, valid = BY_SCORE.topk(theta, k)
    assert is_matching(y)
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), matchings(n, m))
        assert BY_SCORE.score(t[None].double(), y[b, None].double()).item() == pytest.approx(best[0], abs=1e-9)
        assert value[valid[:, b], b].tolist() == pytest.approx(best[:k], abs=1e-5)
    assert is_matching(structures.flatten(0, 1))


def test_matchings_by_score_may_be_empty():
    theta = torch.tensor([[[-1.0, -0.5], [-INF, -2.0]], [[1.0, -0.5], [2.0, -INF]]])
    assert BY_SCORE.argmax(theta).tolist() == [[[0, 0], [0, 0]], [[0, 0], [1, 0]]]
    assert BY_SCORE.always_feasible
    assert len(BY_SCORE.enumerate((3, 2))) == 13
    with pytest.raises(UnsupportedError, match="no fixed total"):
        relax(theta, BY_SCORE, "sinkhorn")
    with pytest.raises(UnsupportedError, match="no fixed total"):
        BY_SCORE.margins(theta)
    with pytest.raises(InvalidInputError, match='"by_score" or True or False'):
        Assignment(allow_unmatched="heaviest")


def test_the_option_changes_nothing_where_all_can_be_matched():
    for n, m in [(6, 6), (4, 7), (7, 4)]:
        theta = scores(20, n, m)
        theta[torch.rand(20, n, m) < 0.15] = -INF
        kept = [b for b, t in enumerate(theta) if is_feasible(t)]
        y = PARTIAL.argmax(theta)
        assert len(kept) > 5
        assert torch.equal(ORACLE.argmax(theta[kept]), y[kept])


def test_without_forbidden_parts_the_layout_does_not_depend_on_the_batch():
    theta = scores(3, 5, 3, kind="ties")
    alone = PARTIAL.argmax(theta)
    theta = torch.cat([theta, torch.full((1, 5, 3), -INF, dtype=torch.float64)])
    assert torch.equal(PARTIAL.argmax(theta)[:3], alone)
    assert torch.equal(ORACLE.argmax(theta[:3]), alone)
