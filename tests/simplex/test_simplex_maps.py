"""Values of the maps to the simplex, against bisection, optimality conditions, enumeration and listed numbers."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simplex_map_reference import (
    DOUBLE,
    ENTMAX,
    INF,
    MAPS,
    STEEP,
    budget_row,
    double,
    entmax_row,
    every_dtype,
    every_map,
    normmax_row,
    rows,
    scores,
)
from structinf.kernels.simplex import dispatch as compiled
from structinf.kernels.simplex import torch_backend
from structinf.simplex import budget, entmax, entmax15, normmax, softmax, sparsemax, topk_sparsemax

pytestmark = pytest.mark.slow

SIZES = [1, 2, 7, 63, 64, 65, 400]
SCALES = pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])


def close(found, expected, dtype=DOUBLE, atol=2e-14):
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-7 if dtype == torch.float32 else atol)


# ---------------------------------------------------------------------------------------------- listed values


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (lambda x: entmax(x, 1.25), [1, 2, 0], [0.214850, 0.750700, 0.034450]),
        (entmax15, [1, 2, 0], [0.169281, 0.830719, 0]),
        (sparsemax, [1, 2, 0], [0, 1, 0]),
        (entmax15, [1, 2, -INF, 0], [0.169281, 0.830719, 0, 0]),
        (sparsemax, [-2, 0, 0.5], [0, 0.25, 0.75]),
        (entmax15, [-2, 0, 0.5], [0, 0.326007, 0.673993]),
        (lambda x: entmax(x, 1), [1, 2], [0.268941, 0.731059]),
        (lambda x: budget(x, 2), [0, 0.25, 0.5, 0.75, 1], [0, 0.125, 0.375, 0.625, 0.875]),
        (lambda x: budget(x, 3), [0, 0.5, 1, 1.5, 2], [0, 0.25, 0.75, 1, 1]),
        (lambda x: budget(x, 2), [2, 0, 0], [1, 0.5, 0.5]),
        (lambda x: budget(x, 2), [1, 2, -INF, 0], [1, 1, 0, 0]),
        (lambda x: budget(x, 1), [-1, -1], [0.5, 0.5]),
        (lambda x: topk_sparsemax(x, 2), [0.1, 0.2, 0.3], [0, 0.45, 0.55]),
        (lambda x: normmax(x, 2), [0, 0], [0.5, 0.5]),
    ],
)
def test_listed_values(function, x, expected):
    x = double(*x)
    torch.testing.assert_close(function(x), double(*expected), rtol=0, atol=5e-7)
    torch.testing.assert_close(function(x.float()).double(), double(*expected), rtol=0, atol=5e-7)


# ---------------------------------------------------------------------------------------------- bisection


@pytest.mark.matrix
@SCALES
@every_dtype
@pytest.mark.parametrize("name", ENTMAX)
def test_entmax(name, dtype, scale):
    function, alpha = ENTMAX[name]
    for n in SIZES:
        x = scores(n, scale, dtype)
        found = function(x)
        close(found, rows(x, lambda row: entmax_row(row, alpha)), dtype)
        assert found.dtype == dtype


@SCALES
@pytest.mark.parametrize("name", STEEP)
def test_entmax_beyond_2_meets_the_conditions_of_optimality(name, scale):
    """x − p^a / a is the same number wherever p > 0, and no x exceeds it elsewhere."""
    function, alpha = STEEP[name]
    for n in SIZES:
        x = scores(n, scale)
        a, p = alpha - 1, function(x)
        close(p.sum(-1), torch.ones(4, dtype=DOUBLE))
        d = x - x.amax(-1, keepdim=True)
        level = d - p**a / a
        t = torch.where(p > 0, level, -INF).amax(-1, keepdim=True)
        assert ((level - t).abs()[p > 0] <= 2e-15).all()
        assert (d <= t + 2e-15)[p == 0].all()


def test_entmax_beyond_2_keeps_the_digits_that_steep_powers_need():
    # With p = (w, 1 − w), x₁ − x₀ = ((1 − w)^a − w^a) / a.
    for alpha, w in itertools.product((2.5, 4.0, 9.0), (0.4, 0.1)):
        a = alpha - 1
        gap = ((1 - w) ** a - w**a) / a
        assert entmax(double(0, gap), alpha)[0].item() == pytest.approx(w, rel=4e-16 * (1 / w) ** a, abs=0)
    # Three equal scores of n, and one so much lower that its p is w.
    x = double(1, 1, 1, 1 - ((0.3) ** 3 - 0.1**3) / 3)
    close(entmax(x, 4), double(0.3, 0.3, 0.3, 0.1))


@SCALES
@every_dtype
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0, 10.0])
def test_normmax(alpha, dtype, scale):
    for n in SIZES:
        x = scores(n, scale, dtype)
        close(normmax(x, alpha), rows(x, lambda row: normmax_row(row, alpha)), dtype, atol=1e-9 if alpha > 2 else 1e-12)


def test_normmax_at_its_ends():
    x = double(1, 1.9, 2)
    torch.testing.assert_close(normmax(x, 1e9), double(0, 0.5, 0.5), rtol=0, atol=1e-6)
    torch.testing.assert_close(normmax(x, 1.0001), double(0, 0, 1), rtol=0, atol=1e-9)


@SCALES
@every_dtype
@pytest.mark.parametrize("share", [0, 0.07, 0.3, 0.5, 1])
def test_budget(share, dtype, scale):
    for n in SIZES:
        x = scores(n, scale, dtype)
        allowed = (x > -INF).sum(-1, keepdim=True)
        for k in (share * n, float(round(share * n))):
            found = budget(x, k)
            expected = rows(x, functools.partial(budget_row, k=k))
            close(found, torch.where(allowed <= k, (x > -INF).double(), expected), dtype, atol=1e-12)
            total = torch.where(allowed <= k, allowed, k).double()
            torch.testing.assert_close(found.double().sum(-1, keepdim=True), total, rtol=1e-6, atol=1e-6)


def test_budget_of_scores_at_the_far_end_of_their_type():
    most = torch.finfo(DOUBLE).max
    assert budget(double(most, 5, 4.5, 0), 2).tolist() == [1, 0.75, 0.25, 0]
    assert budget(double(most / 2, 5, 4.5, -most / 2), 3).tolist() == [1, 1, 1, 0]
    assert budget(double(most, most, -most), 1.5).tolist() == [0.75, 0.75, 0]


@pytest.mark.parametrize("scale", [1e15, 1e16, 1e20, float(torch.finfo(torch.float32).max) / 2])
@every_dtype
def test_budget_of_equal_scores_where_floats_are_far_apart(dtype, scale):
    x = scale * torch.tensor([0.0, -2, 1, -2, -2, 1, -2], dtype=dtype)
    for k in (0.5, 1.5, 2.25, 3.5, 5.0, 6.25):
        found, expected = budget(x, k), torch.zeros(7, dtype=DOUBLE)
        rest = k
        for level, count in ((1, 2), (0, 1), (-2, 4)):
            expected[x == scale * level] = min(1.0, rest / count)
            rest = max(rest - count, 0.0)
        close(found, expected, dtype)
        close(torch_backend.capped_simplex(x, k), expected, dtype)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_topk_sparsemax_is_the_best_over_all_supports(k):
    for x in torch.randn(20, 5, dtype=DOUBLE):
        candidates = []
        for support in itertools.combinations(range(5), min(k, 5)):
            p = torch.zeros(5, dtype=DOUBLE)
            p[list(support)] = torch.from_numpy(entmax_row(x[list(support)].numpy(), 2.0))
            candidates.append(p)
        best = min(candidates, key=lambda p: (p - x).square().sum().item())
        close(topk_sparsemax(x, k), best)


# ---------------------------------------------------------------------------------------------- several α and budgets


def test_an_alpha_for_each_row():
    x = torch.randn(2, 3, 8, dtype=DOUBLE)
    alpha = double(1, 1.2, 1.5, 2, 2.5, 4).view(2, 3, 1)
    found = entmax(x, alpha)
    for i, j in itertools.product(range(2), range(3)):
        torch.testing.assert_close(found[i, j], entmax(x[i, j], alpha[i, j].item()), rtol=0, atol=1e-15)
    heads = double(1.25, 2, 3).view(3, 1)
    for j in range(3):
        assert torch.equal(entmax(x, heads)[:, j], entmax(x[:, j], heads[j].item()))
        assert torch.equal(normmax(x, heads)[:, j], normmax(x[:, j], heads[j].item()))
    assert torch.equal(entmax(x, torch.tensor(1.5)), entmax15(x))
    across = double(1.25, 2).view(2, 1, 1)
    torch.testing.assert_close(entmax(x, across, 1)[0], entmax(x[0].T, 1.25).T, rtol=0, atol=1e-15)


def test_a_budget_for_each_row():
    x = torch.randn(3, 5, dtype=DOUBLE)
    k = double(0.5, 2, 5).unsqueeze(1)
    for row, found, each in zip(x, budget(x, k), k, strict=True):
        assert torch.equal(found, budget(row, each.item()))


@pytest.mark.parametrize("scale", [1e-2, 1, 100])
def test_alpha_near_1_tends_to_softmax(scale):
    x = scale * torch.randn(3, 500, dtype=DOUBLE)
    for excess in (1e-15, 1e-12, 1e-9):
        close(entmax(x, 1 + excess), softmax(x), atol=1e-13 + 2e5 * excess)
    close(entmax(x, 1.0), softmax(x))


@pytest.mark.parametrize("alpha", [1, 1.01, 1.5, 1.9, 2, 2.5, 4.0, 30.0])
def test_torch_and_compiled_loops_agree(alpha):
    for n, scale in itertools.product((1, 2, 16, 17, 300), (1e-3, 1, 1e3)):
        x = scores(n, scale)
        close(torch_backend.entmax(x, alpha), compiled.entmax(x, alpha), atol=1e-13)
    x[0], x[1, 3], x[2, 5] = -INF, torch.nan, INF
    found = torch_backend.entmax(x, alpha)
    assert found[0].tolist() == compiled.entmax(x, alpha)[0].tolist() == [0.0] * 300
    assert found[1:3].isnan().all()
    assert compiled.entmax(x, alpha)[1:3].isnan().all()


def test_torch_and_compiled_loops_agree_row_by_row():
    for n, scale in itertools.product((1, 2, 17, 200), (1e-3, 1, 1e3)):
        x = scores(n, scale)
        alpha, k = double(1, 1.3, 2, 5).unsqueeze(1), n * double(0, 0.3, 0.77, 1).unsqueeze(1)
        close(torch_backend.entmax(x, alpha), compiled.entmax(x, alpha), atol=1e-13)
        close(torch_backend.capped_simplex(x, k), compiled.capped_simplex(x, k), atol=1e-12)
        close(torch_backend.capped_simplex(x, 1), compiled.capped_simplex(x, 1), atol=1e-12)


# ---------------------------------------------------------------------------------------------- properties


numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0, -INF, 0.25]), st.floats(-20, 20, width=32))


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    values = draw(st.lists(numbers, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return torch.tensor(values, dtype=DOUBLE).view(shape), draw(st.integers(-len(shape), len(shape) - 1))


@every_map
@given(tensors())
def test_laws(name, case):
    x, dim = case
    p = MAPS[name](x, dim)
    assert p.shape == x.shape
    assert (p >= 0).all()
    assert (p <= 1 + 1e-12).all()
    assert (p[x == -INF] == 0).all()
    allowed = (x > -INF).sum(dim)
    target = torch.full(allowed.shape, min(1.5, x.shape[dim]) if name == "budget" else 1.0, dtype=DOUBLE)
    torch.testing.assert_close(p.sum(dim), target.minimum(allowed.double()), rtol=0, atol=1e-12)
    # Higher scores have no less; any dim is as the last, and a constant changes nothing.
    last, q = x.movedim(dim, -1), p.movedim(dim, -1)
    assert torch.equal(MAPS[name](last), q)
    if name != "fusedmax":  # where neighbours count too
        higher = last.unsqueeze(-1) > last.unsqueeze(-2)
        assert ((q.unsqueeze(-1) >= q.unsqueeze(-2) - 1e-12) | ~higher).all()
    if name != "topk":  # which breaks ties
        # Near the edge of the support, roots of rounding: cube roots for entmax-4, square roots for normmax-3.
        near = {"entmax-4": 1e-4, "normmax-3": 1e-6}.get(name, 1e-9)
        torch.testing.assert_close(MAPS[name](x + 4, dim), p, rtol=0, atol=near)


# ---------------------------------------------------------------------------------------------- the entmax package


@pytest.mark.parametrize("n", [3, 1000])
def test_the_entmax_package_agrees(n):
    package = pytest.importorskip("entmax", reason="the entmax package (extra: peers) is not installed")
    x = torch.randn(8, n)
    for ours, theirs in (
        (sparsemax(x), package.sparsemax(x)),
        (entmax15(x), package.entmax15(x)),
        (entmax(x, 1.25), package.entmax_bisect(x, 1.25)),
        (entmax(x, 3.0), package.entmax_bisect(x.double(), 3.0).float()),
        (normmax(x, 2.0), package.normmax_bisect(x, 2.0)),
        (budget(x, 2), package.budget_bisect(x, 2)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
