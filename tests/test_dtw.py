"""Alignments, against enumeration and a recursion in plain Python, analytic counts and published values."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from structinf.errors import InfeasibleError, InvalidInputError
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
from structinf_oracles.dtw import Dtw

ORACLE = Dtw()
INF = math.inf
DTYPES = [torch.float32, torch.float64]
SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (5, 3)]
ALPHAS = [1, 1.25, 1.5, 2, INF]
STEPS = ((1, 1), (1, 0), (0, 1))


class Unknown(Regularizer):
    """One that no compiled loop knows: the negative entropy by another name."""

    def value(self, x):
        return Negentropy().value(x)

    def gradient(self, x):
        return Negentropy().gradient(x)

    def hessian_product(self, q, z):
        return Negentropy().hessian_product(q, z)


def regularizer(alpha):
    """Of Tsallis' family, by its α."""
    return {1: Negentropy(), 2: SquaredL2(), INF: Unregularized()}.get(alpha) or Tsallis(alpha=alpha)


def scores(batch, n, m, dtype=torch.float64, scale=1.0, kind="normal"):
    """Scores without ties, with many, or with a third of the cells forbidden as well but for those of one path."""
    theta = torch.randn(batch, n, m, dtype=dtype) if kind == "normal" else torch.randint(-2, 3, (batch, n, m)).to(dtype)
    if kind == "forbidden":
        forbidden = torch.rand(batch, n, m) < 1 / 3
        forbidden[:, :, 0] = forbidden[:, -1] = False
        theta[forbidden] = -INF
    return theta * scale


def squared(x, y):
    """Squared differences of two series, (1, n, m) in float64."""
    x, y = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
    return (x.unsqueeze(1) - y).square().unsqueeze(0)


# ----------------------------------------------------------------------------- plain Python


def paths(n, m, band=INF):
    """All paths, as tuples of cells."""
    found = []
    stack = [((0, 0),)]
    while stack:
        path = stack.pop()
        if path[-1] == (n - 1, m - 1):
            found.append(path)
            continue
        for di, dj in STEPS:
            i, j = path[-1][0] + di, path[-1][1] + dj
            if i < n and j < m and abs(i - j) <= band:
                stack.append((*path, (i, j)))
    return found


def score(theta, path):
    return math.fsum(float(theta[cell]) for cell in path)


def smooth_max(x, alpha):
    """max_Ω of a list of floats by bisection, and its gradient."""
    top = max(x)
    if top == -INF:
        return -INF, [0.0] * len(x)
    if alpha == INF:
        first = x.index(top)
        return top, [float(k == first) for k in range(len(x))]
    if alpha == 1:
        total = math.fsum(math.exp(s - top) for s in x)
        return top + math.log(total), [math.exp(s - top) / total for s in x]
    a = alpha - 1
    low, high = top - 1 / a, top
    for _ in range(64):
        tau = (low + high) / 2
        q = [max(a * (s - tau), 0.0) ** (1 / a) for s in x]
        low, high = (tau, high) if sum(q) > 1 else (low, tau)
    q = [p / sum(q) for p in q]
    gain = math.fsum(p * (s - top) for p, s in zip(q, x, strict=True) if p > 0)
    return top + gain - (math.fsum(p**alpha for p in q) - 1) / (alpha * a), q


def recursion(theta, n, m, band, alpha):
    """Value and mean of one smoothed grid, cell by cell."""
    v, q = {}, {}
    for i, j in itertools.product(range(n), range(m)):
        if abs(i - j) > band:
            continue
        before = [(i - di, j - dj) for di, dj in STEPS]
        value, q[i, j] = smooth_max([v.get(cell, -INF) for cell in before], alpha)
        v[i, j] = float(theta[i, j]) + (value if i + j else 0.0)
    mean = torch.zeros(theta.shape, dtype=torch.float64)
    mean[n - 1, m - 1] = 1
    for i, j in itertools.product(reversed(range(n)), reversed(range(m))):
        if (i, j) in v and i + j:
            for (di, dj), p in zip(STEPS, q[i, j], strict=True):
                if p > 0:
                    mean[i - di, j - dj] += p * mean[i, j]
    return v[n - 1, m - 1], mean


def gibbs(theta, n, m, band=INF):
    """log Z, mean and covariance (cells flattened) by enumeration."""
    all_paths = [p for p in paths(n, m, band) if score(theta, p) > -INF]
    weights = torch.tensor([score(theta, p) for p in all_paths], dtype=torch.float64)
    y = torch.zeros(len(all_paths), *theta.shape, dtype=torch.float64)
    for row, p in zip(y, all_paths, strict=True):
        for cell in p:
            row[cell] = 1
    y, p = y.flatten(1), weights.softmax(0)
    mean = p @ y
    return weights.logsumexp(0), mean.view(theta.shape), (y.T * p) @ y - mean.outer(mean)


CASES = ["normal", "ties", "forbidden", "lengths", "band"]


def instances(case, n, m, dtype=torch.float64):
    """An oracle with its data bound, six instances, and rows, columns and band of each."""
    oracle, extents = ORACLE, [(n, m, INF)] * 6
    if case == "lengths":
        extents = [(1 + b % n, 1 + b // 2 % m, INF) for b in range(6)]
        oracle = ORACLE.bind(lengths=torch.tensor([extent[:2] for extent in extents]))
    elif case == "band":
        extents = [(n, m, abs(n - m) + b % 3) for b in range(6)]
        oracle = ORACLE.bind(band=torch.tensor([extent[2] for extent in extents]))
    theta = scores(6, n, m, dtype, kind=case if case in CASES[:3] else "normal")
    mask = oracle.valid_parts(theta)
    return oracle, theta if mask is None else torch.where(mask, theta, 0.0), extents


# ----------------------------------------------------------------------------- values of the literature


def test_soft_alignment_of_three_by_three():
    cost = torch.tensor([[[0.0, 1, 4], [1, 0, 1], [4, 1, 0]]], dtype=torch.float64)
    assert -ORACLE.log_partition(-cost).item() == pytest.approx(-1.190428, abs=1e-6)
    expected = [[1, 0.236085, 0.000754], [0.236085, 0.916184, 0.236085], [0.000754, 0.236085, 1]]
    torch.testing.assert_close(ORACLE.marginals(-cost)[0], torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_uniform_alignment_of_three_by_three():
    theta = torch.zeros(1, 3, 3)
    assert ORACLE.log_partition(theta).item() == pytest.approx(math.log(13))
    expected = torch.tensor([[[13.0, 5, 1], [5, 9, 5], [1, 5, 13]]]) / 13
    torch.testing.assert_close(ORACLE.marginals(theta), expected)


def test_soft_dtw_of_a_series_with_itself():
    x = torch.arange(100).double().cos()
    assert -ORACLE.log_partition(-squared(x, x)).item() == pytest.approx(-104.370943, abs=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "temperature", "expected"),
    [
        ([1], [3], 1.0, 4.0),
        ([1], [1, 2, 3], 1.0, 5.0),
        ([1, 2, 3], [1, 3], 1.0, 0.122654),
        ([1, 2, 3], [1, 3], 0.1, 0.930683),
        ([1, 2], [3, 2], 0.01, 4.0),
    ],
)
def test_soft_dtw_of_short_series(x, y, temperature, expected):
    theta = -squared(x, y) / temperature
    assert -temperature * ORACLE.log_partition(theta).item() == pytest.approx(expected, abs=1e-6)


def test_hard_dtw_of_short_series():
    for x, y, expected in (([1, 2, 3], [1, 3], 1.0), ([1, 2], [3, 2], 4.0), ([1], [1, 2, 3], 5.0)):
        theta = -squared(x, y)
        assert -ORACLE.smoothed_value(theta, Unregularized()).item() == expected
        assert -ORACLE.score(theta, ORACLE.argmax(theta)).item() == expected


@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 3), (3, 13), (4, 63), (5, 321)])
def test_delannoy_numbers(n, count):
    theta = torch.zeros(1, n, n, dtype=torch.float64)
    assert len(ORACLE.enumerate((n, n))) == len(paths(n, n)) == count
    assert ORACLE.log_partition(theta).exp().item() == pytest.approx(count)
    assert ORACLE.topk(theta, count + 1)[2].sum() == count


def test_long_series_in_float32():
    theta = torch.randn(2, 400, 300)
    for alpha in ALPHAS:
        omega = regularizer(alpha)
        torch.testing.assert_close(
            ORACLE.smoothed_value(theta, omega), ORACLE.smoothed_value(theta.double(), omega).float()
        )
        mean = ORACLE.smoothed_mean(theta, omega)
        torch.testing.assert_close(mean, ORACLE.smoothed_mean(theta.double(), omega).float(), atol=1e-6, rtol=1e-5)
        assert mean[:, 0, 0].tolist() == pytest.approx([1, 1], abs=1e-6)


# ----------------------------------------------------------------------------- smoothed values and derivatives


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_mean_are_those_of_the_recursion(alpha, n, m, case, dtype):
    oracle, theta, extents, omega = *instances(case, n, m, dtype), regularizer(alpha)
    expected = [recursion(t, *extent, alpha) for t, extent in zip(theta, extents, strict=True)]
    value, mean = oracle.smoothed_value(theta, omega), oracle.smoothed_mean(theta, omega)
    assert value.dtype == mean.dtype == dtype
    for both, alone in zip(oracle.smoothed_value_and_mean(theta, omega), (value, mean), strict=True):
        assert torch.equal(both, alone)
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if dtype is torch.float32 else {"atol": 1e-9, "rtol": 1e-9}
    torch.testing.assert_close(value.double(), torch.tensor([e[0] for e in expected], dtype=torch.float64), **tolerance)
    torch.testing.assert_close(mean.double(), torch.stack([e[1] for e in expected]), **tolerance)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", ["normal", "forbidden"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_scale(alpha, scale, case, dtype):
    oracle, theta, extents, omega = *instances(case, 5, 6, dtype), regularizer(alpha)
    theta = scale * theta
    expected = [recursion(t, *extent, alpha) for t, extent in zip(theta, extents, strict=True)]
    value, rtol = torch.tensor([e[0] for e in expected], dtype=torch.float64), 1e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(oracle.smoothed_value(theta, omega).double(), value, rtol=rtol, atol=rtol * scale)
    mean = torch.stack([e[1] for e in expected])
    torch.testing.assert_close(oracle.smoothed_mean(theta, omega).double(), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_gibbs_distribution_is_that_of_enumeration(n, m, case):
    oracle, theta, extents = instances(case, n, m)
    v, weight = torch.randn_like(theta), torch.randn(len(theta)).double()
    found = [gibbs(t, *extent) for t, extent in zip(theta, extents, strict=True)]
    torch.testing.assert_close(oracle.log_partition(theta), torch.stack([f[0] for f in found]))
    mean = torch.stack([f[1] for f in found])
    torch.testing.assert_close(oracle.marginals(theta), mean)
    torch.testing.assert_close(oracle.log_partition_vjp(theta, weight), weight.view(-1, 1, 1) * mean)
    product = torch.stack([(f[2] @ z.flatten()).view(n, m) for f, z in zip(found, v, strict=True)])
    torch.testing.assert_close(oracle.covariance_product(theta, v), product, atol=1e-10, rtol=1e-8)
    single = oracle.covariance_product(theta.float(), v.float())
    torch.testing.assert_close(single.double(), product, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", CASES)
def test_hessian_product_is_the_derivative_of_the_mean(alpha, case):
    oracle, theta, _ = instances(case, 5, 4)
    theta = theta + torch.randn_like(theta) / 8  # off the kinks
    v, omega, h = torch.randn_like(theta), regularizer(alpha), 1e-6
    product = oracle.smoothed_hessian_product(theta, v, omega)
    ahead, behind = (oracle.smoothed_mean(theta + step * v, omega) for step in (h, -h))
    torch.testing.assert_close(product, (ahead - behind) / (2 * h), atol=1e-7, rtol=1e-6)
    shared = oracle.smoothed_hessian_product(theta, v[:1], omega)
    torch.testing.assert_close(shared[:1], product[:1])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_compiled_loops_are_equal_to_torch(alpha, case, n, m):
    oracle, theta, _ = instances(case, n, m)
    omega, v, leaf = regularizer(alpha), torch.randn_like(theta), theta.clone().requires_grad_()
    value = oracle.smoothed_value(leaf, omega)
    torch.testing.assert_close(oracle.smoothed_value(theta, omega), value.detach())
    (mean,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    torch.testing.assert_close(oracle.smoothed_mean(theta, omega), mean.detach())
    product = torch.zeros_like(theta)
    if mean.requires_grad:  # a single path's is constant
        (product,) = torch.autograd.grad((mean * v).sum(), leaf, materialize_grads=True)
    torch.testing.assert_close(oracle.smoothed_hessian_product(theta, v, omega), product, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_regularizers_that_no_compiled_loop_knows(case, dtype):
    oracle, theta, _ = instances(case, 4, 5, dtype)
    v, weight = torch.randn_like(theta), torch.randn(len(theta), dtype=dtype)
    ours, known = Unknown(), Negentropy()
    for method, args in (
        ("smoothed_value", ()),
        ("smoothed_mean", ()),
        ("smoothed_vjp", (weight,)),
        ("smoothed_hessian_product", (v,)),
    ):
        found, expected = (getattr(oracle, method)(theta, *args, omega) for omega in (ours, known))
        torch.testing.assert_close(found, expected, msg=method)


@pytest.mark.parametrize("alpha", ALPHAS[:-1])
@pytest.mark.parametrize("case", ["normal", "lengths", "band"])
def test_derivatives_to_second_order(alpha, case):
    oracle, theta, _ = instances(case, 3, 4)
    theta = (3 * torch.randn_like(theta))[:3].requires_grad_()
    oracle, omega = oracle[torch.arange(3)], regularizer(alpha)
    assert torch.autograd.gradcheck(lambda t: oracle.smoothed_value(t, omega), theta)
    assert torch.autograd.gradgradcheck(lambda t: oracle.smoothed_value(t, omega), theta)


def test_third_derivatives_of_the_log_partition():
    theta = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def slope(t):
        return torch.autograd.grad(ORACLE.log_partition(t).sum(), t, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(slope, theta)


def test_derivatives_beside_forbidden_cells():
    theta = torch.tensor([[[0.0, -INF, 1], [-INF, 2, -INF], [0, -INF, 0.5]]], dtype=torch.float64, requires_grad=True)
    for alpha in ALPHAS:
        (mean,) = torch.autograd.grad(ORACLE.smoothed_value(theta, regularizer(alpha)).sum(), theta, create_graph=True)
        assert mean.tolist() == [torch.eye(3).tolist()]


def test_close_to_the_negative_entropy():
    theta = scores(3, 6, 5)
    omega = Tsallis(alpha=1 + 1e-6)
    torch.testing.assert_close(ORACLE.smoothed_value(theta, omega), ORACLE.log_partition(theta), atol=1e-4, rtol=0)
    torch.testing.assert_close(ORACLE.smoothed_mean(theta, omega), ORACLE.marginals(theta), atol=1e-4, rtol=0)


def test_zero_score_differences_at_the_kinks_of_the_squared_norm():
    """Where a third score is about to have a probability, two formulas for the threshold agree."""
    for x in ([0.0, 0, -0.5], [0.0, -1, -1], [0.0, -1, -3], [0.0, 0, 0]):
        theta = torch.tensor([[[0.0, x[1]], [x[2], 0.0]]], dtype=torch.float64)
        for alpha in (1.5, 2):
            value, mean = recursion(theta[0], 2, 2, INF, alpha)
            assert ORACLE.smoothed_value(theta, regularizer(alpha)).item() == pytest.approx(value, abs=1e-12)
            torch.testing.assert_close(ORACLE.smoothed_mean(theta, regularizer(alpha))[0], mean)


# ----------------------------------------------------------------------------- single paths


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_paths_are_those_of_enumeration(n, m, case, dtype):
    oracle, theta, extents = instances(case, n, m, dtype)
    structures, found, valid = oracle.topk(theta, 12)
    best = oracle.argmax(theta)
    assert torch.equal(structures[0], best)
    for b, (t, extent) in enumerate(zip(theta, extents, strict=True)):
        expected = sorted((s for p in paths(*extent) if (s := score(t, p)) > -INF), reverse=True)[:12]
        assert valid[:, b].tolist() == [True] * len(expected) + [False] * (12 - len(expected))
        assert found[: len(expected), b].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        listed = [frozenset(map(tuple, y.nonzero().tolist())) for y in structures[: len(expected), b]]
        assert len(set(listed)) == len(expected)
        assert set(listed) <= {frozenset(p) for p in paths(*extent)}
        again = oracle[[b]].score(t[None].double(), structures[: len(expected), b].double())
        assert again.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert not structures[len(expected) :, b].any()


def test_ties_go_to_the_diagonal():
    assert torch.equal(ORACLE.argmax(torch.zeros(2, 4, 4)), torch.eye(4).expand(2, 4, 4))
    theta = torch.zeros(1, 3, 3)
    theta[0, 1, 1] = -INF
    assert ORACLE.argmax(theta).tolist() == [[[1, 1, 0], [0, 0, 1], [0, 0, 1]]]  # down before right, from the end
    assert torch.equal(ORACLE.smoothed_mean(theta, Unregularized()), ORACLE.argmax(theta))


@pytest.mark.parametrize("case", CASES)
def test_sample_frequencies(case):
    oracle, theta, extents = instances(case, 3, 3)
    samples = oracle.sample(theta, 4000, torch.Generator().manual_seed(1))
    assert samples.shape == (4000, *theta.shape)
    for b, (t, extent) in enumerate(zip(theta, extents, strict=True)):
        counts = Counter(frozenset(map(tuple, y.nonzero().tolist())) for y in samples[:, b])
        weights = {frozenset(p): math.exp(score(t, p)) for p in paths(*extent)}
        total = sum(weights.values())
        assert set(counts) <= {p for p, w in weights.items() if w > 0}
        for p, w in weights.items():
            assert counts[p] / 4000 == pytest.approx(w / total, abs=0.035)


def test_samples_depend_on_the_generator_alone():
    theta = scores(2, 4, 3)
    first, second = (ORACLE.sample(theta, 9, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(5)
    assert not torch.equal(first, ORACLE.sample(theta, 9))


# ----------------------------------------------------------------------------- bands, lengths, labels


def test_a_wide_band_is_no_restriction():
    theta = scores(3, 4, 6)
    for oracle in (Dtw(band=6), ORACLE.bind(band=torch.tensor([5, 6, 100]))):
        assert oracle.valid_parts(theta) is None
        assert torch.equal(oracle.log_partition(theta), ORACLE.log_partition(theta))
        assert torch.equal(oracle.marginals(theta), ORACLE.marginals(theta))


def test_a_band_of_the_instance_takes_the_place_of_the_option():
    theta = scores(2, 4, 4)
    oracle = Dtw(band=0).bind(band=torch.tensor([3, 1]))
    assert torch.equal(oracle.marginals(theta)[1], Dtw(band=1).marginals(theta)[1])
    assert torch.equal(oracle.marginals(theta)[0], ORACLE.marginals(theta)[0])
    assert Dtw(band=0).marginals(theta)[0].tolist() == torch.eye(4).tolist()
    row, column = torch.arange(4).unsqueeze(1), torch.arange(4)
    assert torch.equal(oracle.valid_parts(theta)[1], (row - column).abs() <= 1)


def test_a_band_that_cannot_reach_the_corner():
    theta = torch.zeros(2, 3, 6)
    with pytest.raises(InvalidInputError, match=r"3 rows and 6 columns.*2 cells.*batch index 0.*at least 3"):
        Dtw(band=2).validate(theta)
    with pytest.raises(InvalidInputError, match="batch index 1; pass a band of at least 3"):
        ORACLE.bind(band=torch.tensor([3, 0])).validate(theta)
    Dtw(band=2).bind(lengths=torch.tensor([[3, 5], [1, 1]])).validate(theta)
    with pytest.raises(InvalidInputError, match="at least 3"):
        Dtw(band=2).enumerate((3, 6))


@pytest.mark.parametrize("band", [-1, 1.5, True, "2"])
def test_bands_that_are_no_number_of_cells(band):
    with pytest.raises(InvalidInputError, match="band"):
        Dtw(band=band)


def test_bound_data_that_does_not_fit():
    theta = torch.zeros(2, 3, 4)
    for lengths, message in (([[0, 1], [1, 1]], "between 1 and 3"), ([[1, 1], [3, 5]], "between 1 and 4")):
        with pytest.raises(InvalidInputError, match=message):
            ORACLE.bind(lengths=torch.tensor(lengths)).validate(theta)
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 2\)"):
        ORACLE.bind(lengths=torch.tensor([[1], [2]])).validate(theta)
    with pytest.raises(InvalidInputError, match="integers"):
        ORACLE.bind(band=torch.tensor([1.0, 2.0])).validate(theta)
    with pytest.raises(InvalidInputError, match="at least one row"):
        ORACLE.validate(torch.zeros(2, 0, 4))


@pytest.mark.parametrize("case", CASES)
def test_padding_is_not_read(case):
    oracle, theta, _ = instances(case, 4, 5)
    mask = oracle.valid_parts(theta)
    if mask is None:
        return
    noisy = torch.where(mask, theta, 100 * torch.randn_like(theta))
    for omega in (Negentropy(), SquaredL2(), Unknown()):
        assert torch.equal(oracle.smoothed_value(theta, omega), oracle.smoothed_value(noisy, omega))
        mean = oracle.smoothed_mean(noisy, omega)
        assert torch.equal(mean, oracle.smoothed_mean(theta, omega))
        assert not mean[~mask].any()
    assert torch.equal(oracle.topk(theta, 3)[0], oracle.topk(noisy, 3)[0])


def test_labels_of_all_paths():
    oracle = Dtw(band=2).bind(lengths=torch.tensor([[3, 4]]))
    y = oracle.enumerate((4, 5)).float()
    assert {frozenset(map(tuple, t.nonzero().tolist())) for t in y} == {frozenset(p) for p in paths(3, 4, 2)}
    labels = oracle.decode(y)
    assert labels.shape == (len(y), 8, 2)
    assert {tuple(map(tuple, t[t[:, 0] >= 0].tolist())) for t in labels} == set(paths(3, 4, 2))
    again = Dtw(band=2).bind(lengths=torch.tensor([[3, 4]]).expand(len(y), 2)).encode(labels, y)
    assert torch.equal(again, y)


def test_labels_that_are_no_path():
    like, cells = torch.zeros(1, 2, 3), [[0, 0], [0, 1], [1, 2]]
    for wrong, message in (
        ([[0, 1], [0, 2], [1, 2]], "starts at cell"),
        ([[0, 0], [1, 2]], "goes on by one"),
        ([[0, 0], [0, 1], [0, 1], [1, 2]], "goes on by one"),
        ([[0, 0], [0, 1]], "ends in the last cell"),
        ([[0, 0], [-1, -1], [0, 1], [1, 2]], "goes on by one"),
    ):
        labels = torch.tensor([wrong + [[-1, -1]] * (4 - len(wrong))])
        with pytest.raises(InvalidInputError, match=f"{message}.*batch index 0"):
            ORACLE.encode(labels, like)
    labels = torch.tensor([[*cells, [-1, -1]]])
    assert ORACLE.encode(labels, like).tolist() == [[[1, 1, 0], [0, 0, 1]]]
    with pytest.raises(InvalidInputError, match="inside the band"):
        Dtw(band=1).encode(torch.tensor([[[0, 0], [0, 1], [0, 2], [1, 2]]]), like)
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 4, 2\)"):
        ORACLE.encode(torch.tensor([cells]), like)
    with pytest.raises(InvalidInputError, match="at most"):
        ORACLE.decode(torch.ones(1, 3, 3))


# ----------------------------------------------------------------------------- the protocol


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_batch_independence(alpha, dtype):
    """To the last bit, whatever lies beside an instance in its vectors."""
    theta, v, omega = scores(40, 13, 9, dtype), torch.randn(40, 13, 9, dtype=dtype), regularizer(alpha)
    lengths = torch.stack([torch.arange(40) % 13 + 1, torch.arange(40) % 9 + 1], 1)
    oracle = ORACLE.bind(lengths=lengths)
    value, mean = oracle.smoothed_value(theta, omega), oracle.smoothed_mean(theta, omega)
    product = oracle.smoothed_hessian_product(theta, v, omega)
    for b in range(0, 40, 7):
        alone = oracle[[b]]
        assert torch.equal(alone.smoothed_value(theta[[b]], omega), value[[b]])
        assert torch.equal(alone.smoothed_mean(theta[[b]], omega), mean[[b]])
        assert torch.equal(alone.smoothed_hessian_product(theta[[b]], v[[b]], omega), product[[b]])


def test_input_may_be_any_view_and_is_left_alone():
    theta = scores(3, 5, 4).transpose(1, 2)
    copy = theta.clone()
    for method in ("argmax", "log_partition", "marginals"):
        found = getattr(ORACLE, method)(theta)
        assert torch.equal(found, getattr(ORACLE, method)(copy.contiguous()))
    assert torch.equal(theta, copy)
    assert torch.equal(ORACLE.smoothed_mean(theta, Unknown()), ORACLE.smoothed_mean(copy.contiguous(), Unknown()))


def test_empty_batch():
    theta = torch.zeros(0, 3, 4)
    assert ORACLE.argmax(theta).shape == ORACLE.marginals(theta).shape == (0, 3, 4)
    assert ORACLE.sample(theta, 2).shape == (2, 0, 3, 4)
    assert ORACLE.topk(theta, 2)[1].shape == (2, 0)
    for omega in (Negentropy(), Unknown()):
        assert ORACLE.smoothed_value(theta, omega).shape == (0,)
        assert ORACLE.smoothed_mean(theta, omega).shape == (0, 3, 4)
        assert ORACLE.smoothed_hessian_product(theta, theta, omega).shape == (0, 3, 4)
    leaf = theta.clone().requires_grad_()
    assert ORACLE.log_partition(leaf).requires_grad


def test_infeasible():
    theta = torch.zeros(3, 3, 3)
    theta[1, :, 1] = theta[1, 1, :] = -INF
    calls = [lambda: ORACLE.argmax(theta), lambda: ORACLE.topk(theta, 2), lambda: ORACLE.sample(theta, 2)]
    for omega in (Negentropy(), SquaredL2(), Tsallis(alpha=1.25), Unregularized(), Unknown()):
        calls += [lambda o=omega: ORACLE.smoothed_value(theta, o), lambda o=omega: ORACLE.smoothed_mean(theta, o)]
        calls += [lambda o=omega: ORACLE.smoothed_hessian_product(theta, theta.isfinite().float(), o)]
        calls += [lambda o=omega: ORACLE.smoothed_value(theta.clone().requires_grad_(), o)]
    for call in calls:
        with pytest.raises(InfeasibleError, match="no alignment") as error:
            call()
        assert error.value.batch_index == 1


def test_too_many_to_enumerate():
    with pytest.raises(InvalidInputError, match="alignments of 12 and 12 items"):
        ORACLE.enumerate((12, 12))
    assert len(Dtw(band=1).enumerate((10, 10))) == len(paths(10, 10, 1))


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["normal", "lengths", "band"])
def test_cuda(case):
    oracle, theta, _ = instances(case, 6, 5)
    moved = oracle.bind(**{name: t.cuda() for name, t in oracle.bound.items()})
    v = torch.randn_like(theta)
    for alpha in ALPHAS:
        omega = regularizer(alpha)
        for method, args in (("smoothed_value", ()), ("smoothed_mean", ()), ("smoothed_hessian_product", (v,))):
            found = getattr(moved, method)(theta.cuda(), *(a.cuda() for a in args), omega)
            assert found.is_cuda
            torch.testing.assert_close(found.cpu(), getattr(oracle, method)(theta, *args, omega), atol=1e-9, rtol=1e-7)
    assert torch.equal(moved.argmax(theta.cuda()).cpu(), oracle.argmax(theta))
