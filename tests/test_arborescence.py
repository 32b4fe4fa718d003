"""Arborescences, against all trees listed in plain Python, exact rational determinants, and networkx."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import networkx
import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.kernels import elimination
from structinf_oracles.arborescence import Arborescence

NEVER = -math.inf
SCALES = [1e-3, 1.0, 100.0, 1000.0]
DTYPES = [torch.float32, torch.float64]
both_roots = pytest.mark.parametrize("single_root", [False, True], ids=["roots", "root"])


# ----------------------------------------------------------------------------- by hand


def trees(n, single_root):
    """Heads of words 1, ..., n, in every way without a cycle."""
    for heads in itertools.product(range(n + 1), repeat=n):
        if single_root and heads.count(0) != 1:
            continue
        for word in range(1, n + 1):
            steps, node = 0, word
            while node and steps <= n:
                node, steps = heads[node - 1], steps + 1
            if node:
                break
        else:
            yield heads


def arcs(heads, size):
    y = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    for word, head in enumerate(heads, 1):
        y[head, word] = 1
    return y


class Sums:
    """Everything about one instance, by enumeration in float64."""

    def __init__(self, theta, length, single_root):
        size = theta.shape[-1] - 1
        theta = theta.double()
        listed = list(trees(length, single_root))
        self.heads = listed
        self.trees = torch.stack([arcs(heads, size) for heads in listed])
        self.scores = torch.tensor(
            [math.fsum(float(theta[head, word]) for word, head in enumerate(heads, 1)) for heads in listed],
            dtype=torch.float64,
        )
        self.best = self.scores.max()
        if self.best > NEVER:
            self.log_partition = torch.logsumexp(self.scores, 0)
            self.p = (self.scores - self.log_partition).exp()
            self.marginals = torch.einsum("k,khm->hm", self.p, self.trees)

    def covariance_product(self, v):
        along = torch.where(self.trees == 0, 0.0, self.trees * v).sum((1, 2))
        return torch.einsum("k,khm->hm", self.p * (along - self.p @ along), self.trees)


def scores(batch, n, scale=1.0, dtype=torch.float64, forbid=0.0):
    theta = torch.randn(batch, n + 1, n + 1, dtype=dtype) * scale
    return theta.masked_fill(torch.rand(theta.shape) < forbid, NEVER)


def feasible_cases(count, scale, dtype, single_root, forbid):
    """Instances of 1 to 5 words, padded to 5, that have a tree: θ, lengths and sums."""
    found = []
    while len(found) < count:
        theta, length = scores(1, 5, scale, dtype, forbid)[0], int(torch.randint(1, 6, ()))
        sums = Sums(theta, length, single_root)
        if sums.best > NEVER:
            found.append((theta, length, sums))
    theta, lengths, sums = zip(*found, strict=True)
    return torch.stack(theta), torch.tensor(lengths), sums


# ----------------------------------------------------------------------------- golden values


@pytest.mark.parametrize("n", range(1, 6))
def test_counts(n):
    zeros = torch.zeros(1, n + 1, n + 1)
    for single_root, count in [(False, (n + 1) ** (n - 1)), (True, n ** (n - 1))]:
        oracle = Arborescence(single_root=single_root)
        torch.testing.assert_close(oracle.log_partition(zeros).exp(), torch.tensor([float(count)]))
        listed = oracle.enumerate((n + 1, n + 1))
        assert len(listed) == count
        assert {tuple(h) for h in oracle.decode(listed).tolist()} == set(trees(n, single_root))


def test_two_words():
    zeros = torch.zeros(1, 3, 3)
    several, single = Arborescence(), Arborescence(single_root=True)
    torch.testing.assert_close(several.log_partition(zeros).exp(), torch.tensor([3.0]))
    torch.testing.assert_close(several.marginals(zeros), torch.tensor([[[0, 2, 2], [0, 0, 1], [0, 1, 0]]]) / 3)
    torch.testing.assert_close(single.log_partition(zeros).exp(), torch.tensor([2.0]))
    torch.testing.assert_close(single.marginals(zeros), torch.tensor([[[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]]]))


def test_greedy_heads_form_a_cycle():
    theta = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 10.0], [0.0, 10.0, 0.0]]])
    for oracle in (Arborescence(), Arborescence(single_root=True)):
        y = oracle.argmax(theta)
        assert oracle.decode(y).tolist() == [[0, 1]]
        assert oracle.score(theta, y).item() == 11


@both_roots
@pytest.mark.parametrize("dtype", DTYPES)
def test_single_word(single_root, dtype):
    theta = torch.full((2, 2, 2), math.nan, dtype=dtype)
    theta[:, 0, 1] = torch.tensor([-700.0, 3.0])
    oracle = Arborescence(single_root=single_root)
    only = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=dtype).expand(2, 2, 2)
    assert torch.equal(oracle.argmax(theta), only)
    assert torch.equal(oracle.marginals(theta), only)
    assert torch.equal(oracle.log_partition(theta), theta[:, 0, 1])
    assert torch.equal(oracle.covariance_product(theta, torch.randn_like(theta)), torch.zeros_like(theta))
    assert torch.equal(oracle.sample(theta, 3), only.expand(3, 2, 2, 2))
    assert torch.equal(oracle.enumerate((2, 2)), only[:1].double())


# ----------------------------------------------------------------------------- against enumeration


@both_roots
@pytest.mark.parametrize("forbid", [0.0, 0.4])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype, scale, forbid, single_root):
    theta, lengths, sums = feasible_cases(12, scale, dtype, single_root, forbid)
    oracle = Arborescence(single_root=single_root).bind(lengths=lengths)
    v = torch.randn(theta.shape, dtype=dtype)
    # Relative to the sum of the scores in value; a probability has the scores' rounding as its relative error.
    near = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-13}
    near_p = {"rtol": 0, "atol": 2e-7} if dtype == torch.float32 else {"rtol": 0, "atol": 4e-15 * (10 + scale)}

    value = torch.stack([s.log_partition for s in sums]).to(dtype)
    means = torch.stack([s.marginals for s in sums]).to(dtype)
    product = torch.stack([s.covariance_product(v[b].double()) for b, s in enumerate(sums)]).to(dtype)
    torch.testing.assert_close(oracle.log_partition(theta), value, **near)
    torch.testing.assert_close(oracle.marginals(theta), means, **near_p)
    torch.testing.assert_close(oracle.covariance_product(theta, v), product, rtol=0, atol=5 * near_p["atol"])

    # The same through autograd.
    leaf = theta.clone().requires_grad_()
    recorded = oracle.log_partition(leaf)
    torch.testing.assert_close(recorded.detach(), value, **near)
    (gradient,) = torch.autograd.grad(recorded.sum(), leaf, create_graph=True)
    torch.testing.assert_close(gradient.detach(), means, rtol=0, atol=10 * near_p["atol"])
    (hessian,) = torch.autograd.grad(gradient, leaf, v)
    torch.testing.assert_close(hessian, product, rtol=0, atol=50 * near_p["atol"])


@both_roots
@pytest.mark.parametrize("kind", ["normal", "ties", "negative", "forbidden"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax(dtype, kind, single_root):
    theta, lengths, sums = feasible_cases(40, 1.0, dtype, single_root, 0.5 if kind == "forbidden" else 0.0)
    if kind == "ties":
        theta = theta.round().clamp(-1, 1)
    if kind == "negative":
        theta = -theta.abs() - 100
    if kind != "normal":
        sums = [Sums(t, int(length), single_root) for t, length in zip(theta, lengths, strict=True)]
    oracle = Arborescence(single_root=single_root).bind(lengths=lengths)
    y = oracle.argmax(theta)
    assert y.dtype == dtype
    for b, s in enumerate(sums):
        assert (s.trees == y[b].double()).all((1, 2)).any()
        torch.testing.assert_close(oracle.score(theta.double(), y.double())[b], s.best, rtol=1e-13, atol=0)
        alone = Arborescence(single_root=single_root).bind(lengths=lengths[b : b + 1])
        assert torch.equal(alone.argmax(theta[b : b + 1])[0], y[b])
    if single_root:
        assert torch.equal(y[:, 0].sum(1), torch.ones(len(y), dtype=dtype))


@pytest.mark.parametrize("n", [7, 14])
def test_argmax_of_many_words(n):
    theta = scores(8, n)
    several = Arborescence()
    best = several.score(theta, several.argmax(theta))
    for b in range(len(theta)):
        graph = networkx.DiGraph()
        for head, word in itertools.product(range(n + 1), range(1, n + 1)):
            if head != word:
                graph.add_edge(head, word, weight=theta[b, head, word].item())
        tree = networkx.maximum_spanning_arborescence(graph)
        assert tree.size(weight="weight") == pytest.approx(best[b].item(), rel=1e-12)

    single = Arborescence(single_root=True)
    one = single.argmax(theta)
    assert torch.equal(one[:, 0].sum(1), torch.ones(8, dtype=torch.float64))
    by_root = []
    for root in range(1, n + 1):
        only = theta.clone()
        only[:, 0] = NEVER
        only[:, 0, root] = theta[:, 0, root]
        by_root.append(several.score(only, several.argmax(only)))
    torch.testing.assert_close(single.score(theta, one), torch.stack(by_root).amax(0), rtol=1e-13, atol=0)


# ----------------------------------------------------------------------------- exact arithmetic


def tree_sum(weights, single_root):
    """Sum over trees by the matrix-tree theorem, in rational numbers. ``weights[h][m]``."""
    words = range(1, len(weights))
    heads = words if single_root else range(len(weights))
    matrix = [[sum(weights[h][m] for h in heads if h != m) if h == m else -weights[h][m] for m in words] for h in words]
    if single_root:
        matrix[0] = [weights[0][m] for m in words]
    value = Fraction(1)
    for k in range(len(matrix)):
        pivot = next((i for i in range(k, len(matrix)) if matrix[i][k]), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            matrix[k], matrix[pivot], value = matrix[pivot], matrix[k], -value
        value *= matrix[k][k]
        for i in range(k + 1, len(matrix)):
            factor = matrix[i][k] / matrix[k][k]
            for j in range(k, len(matrix)):
                matrix[i][j] -= factor * matrix[k][j]
    return value


def log_of(value):
    """Natural logarithm of a positive Fraction of any size."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(value / Fraction(2) ** shift) + shift * math.log(2)


@both_roots
@pytest.mark.parametrize("spread", [3, 60, 900])
@pytest.mark.parametrize("forbid", [0.0, 0.5])
def test_each_marginal_is_accurate_relative_to_itself(forbid, spread, single_root):
    rng = np.random.default_rng(spread)
    n = 6
    for _ in range(3):
        powers = rng.integers(-spread, spread + 1, (n + 1, n + 1))
        allowed = rng.random((n + 1, n + 1)) >= forbid
        weights = [[Fraction(2) ** int(powers[h, m]) * bool(allowed[h, m]) for m in range(n + 1)] for h in range(n + 1)]
        total = tree_sum(weights, single_root)
        if total == 0:
            continue
        theta = torch.tensor(np.where(allowed, powers * math.log(2), NEVER))[None]
        oracle = Arborescence(single_root=single_root)
        assert oracle.log_partition(theta).item() == pytest.approx(log_of(total), rel=1e-13, abs=1e-12)
        means = oracle.marginals(theta)[0]
        for h, m in itertools.product(range(n + 1), range(1, n + 1)):
            if h == m or not allowed[h, m]:
                assert means[h, m] == 0
                continue
            without = [list(row) for row in weights]
            without[h][m] = Fraction(0)
            exact = float(1 - tree_sum(without, single_root) / total)
            # θ's own rounding alone moves a weight of 2^900 by 1e-13. Below 1e-150 a marginal may be 0.
            assert means[h, m].item() == pytest.approx(exact, rel=1e-11, abs=1e-150)


@both_roots
@pytest.mark.parametrize("n", [9, 33, 64])
@pytest.mark.parametrize("forbid", [0.0, 0.8])
def test_with_and_without_exponents(forbid, n, single_root):
    from structinf.kernels.elimination_cpu import OUT_OF_RANGE, log_partition
    from structinf.kernels.elimination_halving import sums

    theta, v = scores(3, n, forbid=forbid), torch.randn(3, n + 1, n + 1, dtype=torch.float64)
    ring = torch.arange(n)
    theta[:, ring, ring + 1] = 0.5  # 0 -> 1 -> 2 -> ... is always there
    lengths = np.array([n, n // 2, n])
    found = []
    for wide in (None, True):
        status = np.full(3, OUT_OF_RANGE)
        z, means, product = np.empty((3, 3)), np.zeros(theta.shape), np.zeros(theta.shape)
        log_partition(0, 3, theta.numpy(), lengths, single_root, wide, z[0], status.copy())
        sums(0, 3, theta.numpy(), None, lengths, single_root, wide, z[1], means, None, status.copy())
        sums(0, 3, theta.numpy(), v.numpy(), lengths, single_root, wide, z[2], None, product, status)
        assert not status.any()
        found.append((z, means, product))
    (z, means, product), wide = found
    np.testing.assert_allclose(z, wide[0], rtol=1e-13)
    np.testing.assert_allclose(means, wide[1], rtol=1e-11)
    np.testing.assert_allclose(product, wide[2], atol=1e-13)
    np.testing.assert_allclose(z - z[:1], 0, atol=1e-12)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(means[b].sum(0)[1 : length + 1], 1, rtol=1e-12)
        assert not means[b, length + 1 :].any()
        assert not means[b, :, length + 1 :].any()

    leaf = theta.clone().requires_grad_()
    value = Arborescence(single_root=single_root).bind(lengths=torch.from_numpy(lengths)).log_partition(leaf)
    np.testing.assert_allclose(value.detach(), z[0], rtol=1e-13)
    np.testing.assert_allclose(torch.autograd.grad(value.sum(), leaf)[0], means, atol=1e-13)


def test_finite_scores_that_stand_for_infinity():
    oracle = Arborescence()
    theta = torch.tensor([[[0.0, -1e30, -1e30], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    half = torch.tensor([[[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]]])
    torch.testing.assert_close(oracle.marginals(theta), half)
    torch.testing.assert_close(oracle.log_partition(theta), torch.tensor([-1e30]))
    assert oracle.decode(oracle.argmax(theta)).tolist() == [[0, 1]]


# ----------------------------------------------------------------------------- derivatives


@both_roots
def test_gradcheck(single_root):
    base = scores(2, 4, forbid=0.25)
    base[:, 0] = torch.randn(2, 5, dtype=torch.float64)
    base[:, 1, 2:] = torch.randn(2, 3, dtype=torch.float64)
    free = torch.isfinite(base)
    oracle = Arborescence(single_root=single_root).bind(lengths=torch.tensor([4, 3]))

    def log_partition(values):
        return oracle.log_partition(base.masked_scatter(free, values))

    values = base[free].requires_grad_()
    assert torch.autograd.gradcheck(log_partition, values)
    assert torch.autograd.gradgradcheck(log_partition, values)


@both_roots
def test_nothing_outside_the_trees_is_read(single_root):
    theta = scores(2, 4)
    lengths = torch.tensor([2, 3])
    oracle = Arborescence(single_root=single_root).bind(lengths=lengths)
    inside = oracle.valid_parts(theta)
    assert inside.shape == theta.shape
    dirty, v = theta.masked_fill(~inside, math.nan), torch.randn_like(theta)
    clean = theta.masked_fill(~inside, 0)
    assert torch.equal(oracle.argmax(dirty), oracle.argmax(clean))
    assert torch.equal(oracle.log_partition(dirty), oracle.log_partition(clean))
    assert torch.equal(oracle.marginals(dirty), oracle.marginals(clean))
    product = oracle.covariance_product(dirty, v.masked_fill(~inside, math.nan))
    assert torch.equal(product, oracle.covariance_product(clean, v))
    leaf = dirty.clone().requires_grad_()
    value = oracle.log_partition(leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    (hessian,) = torch.autograd.grad((gradient * v).sum(), leaf)
    for result in (oracle.marginals(dirty), product, gradient, hessian):
        assert not result.isnan().any()
        assert torch.equal(result[~inside], torch.zeros_like(result[~inside]))
    heads = oracle.decode(oracle.sample(dirty, 4, torch.Generator().manual_seed(0)).flatten(0, 1))
    assert torch.equal(heads >= 0, (torch.arange(4) < lengths[:, None]).repeat(4, 1))


# ----------------------------------------------------------------------------- samples


def assert_frequencies(oracle, theta, sums, samples=4000):
    heads = oracle.decode(oracle.sample(theta, samples, torch.Generator().manual_seed(1))[:, 0])
    drawn = [tuple(h for h in row if h >= 0) for row in heads.tolist()]
    counts = dict.fromkeys(sums.heads, 0)
    for tree in drawn:
        counts[tree] += 1
    observed, expected = np.array(list(counts.values()), float), samples * sums.p.numpy()
    assert not observed[expected == 0].any()
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        keep = expected > 1e-9
        observed, expected = observed[keep], expected[keep]
    if len(expected) > 1:
        assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


@both_roots
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1000.0])
@pytest.mark.parametrize("forbid", [0.0, 0.4])
def test_samples(forbid, scale, single_root):
    theta, lengths, sums = feasible_cases(4, scale, torch.float64, single_root, forbid)
    for b in range(4):
        oracle = Arborescence(single_root=single_root).bind(lengths=lengths[b : b + 1])
        assert_frequencies(oracle, theta[b : b + 1], sums[b])


@both_roots
def test_samples_where_the_walk_hardly_ever_reaches_the_root(single_root):
    theta = scores(1, 4)
    theta[:, 0] -= 2000
    theta[:, 1, 2] += 500
    theta[:, 2, 1] += 500
    theta[:, 3, 4] += 300
    theta[:, 4, 3] += 300
    theta[:, 1:3, 3:] -= 700
    theta[:, 3:, 1:3] -= 700
    assert_frequencies(Arborescence(single_root=single_root), theta, Sums(theta[0], 4, single_root))


def test_samples_follow_the_generator():
    theta, oracle = scores(3, 6), Arborescence()
    draws = [oracle.sample(theta, 5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert draws[0].shape == (5, 3, 7, 7)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(oracle.sample(theta, 5), oracle.sample(theta, 5))
    assert oracle.sample(theta, 0).shape == (0, 3, 7, 7)


# ----------------------------------------------------------------------------- form and labels


@pytest.mark.parametrize("single_root", [False, True])
def test_labels(single_root):
    for n in range(1, 5):
        oracle = Arborescence(single_root=single_root)
        like = torch.zeros(1, n + 2, n + 2)
        for heads in trees(n, single_root):
            bound = oracle.bind(lengths=torch.tensor([n]))
            labels = torch.tensor([[*heads, 77]])
            y = bound.encode(labels, like)
            assert torch.equal(y[0].double(), arcs(heads, n + 1))
            assert bound.decode(y).tolist() == [[*heads, -1]]


@pytest.mark.parametrize(
    ("labels", "lengths", "message"),
    [
        (
            [[0, 1, 2], [0, 4, 1]],
            None,
            r"between 0, the root, and the number of words, 3; got 4 for word 2 at batch index 1",
        ),
        ([[0, 1, 1], [0, 3, 1]], [3, 2], r"number of words, 2; got 3 for word 2 at batch index 1"),
        ([[0, 1, -1]], None, r"got -1 for word 3 at batch index 0"),
        (
            [[0, 1, 1], [0, 3, 2]],
            None,
            r"batch index 1 are not a tree: some words never lead to the root, .*\[0, 3, 2\]",
        ),
        ([[0, 2, 1]], None, r"not a tree"),
        ([[2, 0, 0]], None, r"batch index 0 have 2 words below the root, where single_root=True"),
        ([[0, 1]], None, r"shape \(B, 3\), got shape \(1, 2\)"),
    ],
)
def test_labels_that_are_no_trees(labels, lengths, message):
    labels = torch.tensor(labels)
    bound = None if lengths is None else torch.tensor(lengths)
    oracle = Arborescence(single_root=True).bind(lengths=bound)
    with pytest.raises(InvalidInputError, match=message):
        oracle.encode(labels, torch.zeros(len(labels), 4, 4))


@both_roots
def test_hamming_cost_counts_wrong_heads(single_root):
    oracle = Arborescence(single_root=single_root).bind(lengths=torch.tensor([3]))
    gold = oracle.enumerate((5, 5))
    for y in gold:
        cost = oracle.hamming_cost(y[None])
        wrong = (oracle.decode(gold) != oracle.decode(y[None])).sum(1)
        difference = oracle.score(cost.expand_as(gold), gold) - oracle.score(cost, y[None])
        torch.testing.assert_close(difference, wrong.double())


def test_bad_shapes_and_lengths():
    oracle = Arborescence()
    for shape in [(2, 3, 4), (2, 1, 1)]:
        with pytest.raises(InvalidInputError, match="n >= 1 words"):
            oracle.validate(torch.zeros(shape))
    for lengths in ([1, 0], [4, 1]):
        with pytest.raises(InvalidInputError, match="n = 3 words"):
            oracle.bind(lengths=torch.tensor(lengths)).validate(torch.zeros(2, 4, 4))


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize(
    ("single_root", "arcs_left", "message"),
    [
        (False, [(0, 1), (2, 3), (3, 2)], "no arborescence of finite score exists for batch index 1"),
        (True, [(0, 1), (0, 2), (2, 3), (1, 3)], "no arborescence with a single root of finite score .* index 1"),
        (True, [(1, 2), (2, 1), (1, 3), (2, 3)], "no arborescence with a single root"),
    ],
)
def test_infeasible(single_root, arcs_left, message, scale):
    theta = torch.randn(3, 4, 4) * scale
    theta[1] = NEVER
    for head, word in arcs_left:
        theta[1, head, word] = 0
    oracle = Arborescence(single_root=single_root)
    recorded = theta.clone().requires_grad_()
    calls = [
        lambda: oracle.argmax(theta),
        lambda: oracle.log_partition(theta),
        lambda: oracle.log_partition(recorded),
        lambda: oracle.marginals(theta),
        lambda: oracle.covariance_product(theta, torch.ones_like(theta)),
        lambda: oracle.sample(theta, 2),
    ]
    for call in calls:
        with pytest.raises(InfeasibleError, match=message) as caught:
            call()
        assert caught.value.batch_index == 1


@both_roots
@pytest.mark.parametrize("dtype", DTYPES)
def test_form(dtype, single_root):
    oracle = Arborescence(single_root=single_root)
    wide = torch.randn(7, 7, 8, dtype=dtype)
    theta = wide.permute(2, 1, 0)[::2]
    before = wide.clone()
    v = torch.randn(1, 7, 7, dtype=dtype)
    for method in (oracle.argmax, oracle.log_partition, oracle.marginals, lambda t: oracle.covariance_product(t, v)):
        result = method(theta)
        assert result.dtype == dtype
        assert torch.equal(result, method(theta.contiguous()))
        assert torch.equal(result[2:3], method(theta[2:3].clone()))
        assert len(method(theta[:0])) == 0
    assert oracle.sample(theta[:0], 3).shape == (3, 0, 7, 7)
    assert oracle.sample(theta, 3).dtype == dtype
    assert torch.equal(wide, before)
    assert not wide.requires_grad
    weight = torch.randn(4, dtype=dtype)
    expected = oracle.marginals(theta) * weight[:, None, None]
    torch.testing.assert_close(oracle.log_partition_vjp(theta, weight), expected)


def test_lengths_of_any_kind():
    theta = scores(3, 5)
    kinds = [[5, 2, 3], torch.tensor([5, 2, 3], dtype=torch.int32), torch.tensor([5, 2, 3])]
    results = [si.relax(theta, "arborescence", "map", lengths=lengths) for lengths in kinds]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    alone = Arborescence().argmax(theta[1:2, :3, :3])
    assert torch.equal(results[0][1, :3, :3], alone[0])
    assert results[0][1].sum() == 2


def test_half_precision():
    theta = torch.zeros(1, 3, 3, dtype=torch.float16)
    means = si.relax(theta, "arborescence", "marginals")
    assert means.dtype == torch.float16
    assert means[0, 0, 1].item() == pytest.approx(2 / 3, abs=1e-3)
    for single_root, count in [(False, 3), (True, 2)]:
        value = Arborescence(single_root=single_root).log_partition(theta)
        assert value.item() == pytest.approx(math.log(count), abs=1e-3)


def test_spanning_trees_of_a_symmetric_graph():
    weights = torch.tensor([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]], dtype=torch.float64)
    value, means = elimination.marginals(weights.log()[None])
    assert value.exp().item() == pytest.approx(11)
    edges = means[0] + means[0].T
    torch.testing.assert_close(edges[[0, 0, 1], [1, 2, 2]], torch.tensor([5, 8, 9], dtype=torch.float64) / 11)
