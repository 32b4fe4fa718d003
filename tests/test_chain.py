"""Linear chains, against all tag sequences listed in plain Python."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch

import structinf
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.parts import as_tuple, batch_size, inner, map_parts
from structinf_oracles.chain import Chain
from structinf_oracles.chain_form import original_form
from structinf_oracles.kernels import chain_torch

CHAIN = Chain()
NEG = -math.inf
DTYPES = [torch.float32, torch.float64]
FORMS = ["shared", "own", "steps", "shared steps", "shared unary", "edges"]
SCALES = [1e-3, 1.0, 30.0, 1e3]
B, T, S = 3, 4, 3
LENGTHS = [4, 1, 3]


def potentials(form, dtype=torch.float64, scale=1.0, shape=(B, T, S)):
    b, t, s = shape
    unary = torch.randn(b, t, s, dtype=dtype) * scale
    steps = torch.randn(b, t - 1, s, s, dtype=dtype) * scale
    own = torch.randn(b, s, s, dtype=dtype) * scale
    return {
        "shared": (unary, own[:1]),
        "own": (unary, own),
        "steps": (unary, steps),
        "shared steps": (unary, steps[:1]),
        "shared unary": (unary[:1], own),
        "edges": steps,
    }[form]


def forbid(theta, share=0.15):
    """Some parts at −inf, but none of the sequence 0, 0, 0, ..."""

    def cut(t):
        t = torch.where(torch.rand(t.shape) < share, NEG, t)
        first = (..., 0) if isinstance(theta, tuple) and t.shape == theta[0].shape else (..., 0, 0)
        t[first] = 0.5
        return t

    return map_parts(cut, theta)


def part_scores(theta, b):
    """unary(t, i) and transition(t, i, j), from token t to the next, of instance ``b``: plain numbers."""
    tensors = [t[min(b, len(t) - 1)].double() for t in as_tuple(theta)]
    if not isinstance(theta, tuple):
        return (lambda t, i: 0.0), (lambda t, i, j: tensors[0][t, i, j].item())
    unary, transition = tensors
    if transition.ndim == 2:
        return (lambda t, i: unary[t, i].item()), (lambda t, i, j: transition[i, j].item())
    return (lambda t, i: unary[t, i].item()), (lambda t, i, j: transition[t, i, j].item())


def sequences(theta, lengths):
    """For each instance, all its tag sequences and their scores; by edges alone, a single token has one, tag 0."""
    states = as_tuple(theta)[0].shape[-1]
    found = []
    for b, length in enumerate(lengths):
        unary, transition = part_scores(theta, b)
        scored = {}
        choices = range(states if isinstance(theta, tuple) or length > 1 else 1)
        for tags in itertools.product(choices, repeat=length):
            score = sum(unary(t, i) for t, i in enumerate(tags))
            scored[tags] = score + sum(transition(t, tags[t], tags[t + 1]) for t in range(length - 1))
        found.append(scored)
    return found


def indicators(theta, tags):
    """The structure (1, *event) of one tag sequence, in float64."""

    def fill(t, is_edges):
        y = torch.zeros(1, *t.shape[1:], dtype=torch.float64)
        for position in range(len(tags) - is_edges):
            if not is_edges:
                y[0, position, tags[position]] = 1
            elif t.ndim == 3:
                y[0, tags[position], tags[position + 1]] += 1
            else:
                y[0, position, tags[position], tags[position + 1]] = 1
        return y

    return (fill(theta[0], 0), fill(theta[1], 1)) if isinstance(theta, tuple) else fill(theta, 1)


def log_sum(scores):
    top = max(scores)
    return top + math.log(sum(math.exp(x - top) for x in scores))


class Exact:
    """Sums over all sequences of each instance, in float64."""

    def __init__(self, theta, lengths):
        self.theta, self.sequences = theta, sequences(theta, lengths)
        self.log_z = torch.tensor([log_sum(list(s.values())) for s in self.sequences], dtype=torch.float64)

    def mean(self, weigh=lambda b, tags, y: 1.0):
        """E[weight · Y], (B, *event)."""
        rows = []
        for b, scored in enumerate(self.sequences):
            total = map_parts(lambda t: torch.zeros(1, *t.shape[1:], dtype=torch.float64), self.theta)
            for tags, score in scored.items():
                y = indicators(self.theta, tags)
                factor = math.exp(score - self.log_z[b]) * weigh(b, tags, y)
                total = map_parts(lambda a, z, factor=factor: a + factor * z, total, y)
            rows.append(total)
        return map_parts(lambda *r: torch.cat(r), *rows)

    def covariance_product(self, v):
        v = map_parts(lambda t: t.double(), v)

        def along(b, tags, y):
            return float(inner(map_parts(lambda t: t[min(b, len(t) - 1)][None], v), y))

        mean, size = self.mean(), len(self.sequences)
        expected = [
            sum(math.exp(x - self.log_z[b]) * along(b, s, indicators(self.theta, s)) for s, x in scored.items())
            for b, scored in enumerate(self.sequences)
        ]
        shift = torch.tensor(expected, dtype=torch.float64)
        return map_parts(lambda a, m: a - shift.view(size, *[1] * (m.ndim - 1)) * m, self.mean(along), mean)


def assert_parts_close(found, exact, atol):
    for a, b in zip(as_tuple(found), as_tuple(exact), strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=0)


def assert_equal_parts(found, wanted):
    for a, b in zip(as_tuple(found), as_tuple(wanted), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def tolerance(theta):
    """Rounding of scores of this size, a few times over."""
    size = max(float(t.where(t > NEG, 0).abs().max()) for t in as_tuple(theta))
    return 20 * torch.finfo(as_tuple(theta)[0].dtype).eps * (1 + size)


def bound(lengths=LENGTHS):
    return CHAIN.bind(lengths=torch.tensor(lengths))


def copies(theta):
    return map_parts(lambda t: t.clone().requires_grad_(), theta)


# ----------------------------------------------------------------------------- sums


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
    value, nodes, edges = chain_torch.mean(*inputs)
    torch.testing.assert_close(value, bound().log_partition(theta))
    assert_parts_close(original_form(nodes, edges, theta), bound().marginals(theta), 1e-12)
    tags, feasible = chain_torch.best_tags(*inputs)
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
    assert torch.autograd.gradcheck(call, finite)
    assert torch.autograd.gradgradcheck(call, finite)

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
    from structinf_oracles.kernels import chain_scaled, chain_scaled_tangent, chain_smooth, chain_sums

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
        chain_smooth.value(0, b, np.arange(b), u, a, n, math.inf, exact)
        factors = chain_sums._factors(transition.numpy())
        chain_scaled.log_partition(0, b, unary.numpy(), *factors, n, found)
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
        chain_smooth.mean(0, k, k, rows, u[allowed], a, lengths, math.inf, ones, np.empty(k), *wanted)
        nodes, edges = CHAIN.marginals((unary[torch.from_numpy(allowed)], transition))
        close = 20 * torch.finfo(dtype).eps * (1 + size)
        torch.testing.assert_close(nodes.double(), torch.from_numpy(wanted[0]), atol=close, rtol=0)
        torch.testing.assert_close(edges.double(), torch.from_numpy(wanted[1][:, 0]), atol=t * close, rtol=0)

        v, v_edges = torch.randn(b, t, s, dtype=dtype), torch.randn(1, s, s, dtype=dtype)
        value, nodes, edges = np.empty(b), np.zeros_like(v.numpy()), np.zeros((b, s, s), v.numpy().dtype)
        chain_scaled_tangent.covariance_product(
            0, b, unary.numpy(), *factors, n, v.numpy(), v_edges.numpy(), value, nodes, edges
        )
        rows = np.flatnonzero(np.isfinite(value))
        assert np.array_equal(rows, np.flatnonzero(np.isfinite(found)))
        wanted = np.zeros((b, t, s)), np.zeros((b, 1, s, s))
        v, v_edges = v.double().numpy(), v_edges[:, None].double().numpy()
        chain_smooth.hessian_product(0, len(rows), rows, u, a, n, math.inf, v, v_edges, np.empty(b), *wanted)
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
    return chain.log_partition(theta) - inner(theta, mean)


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


# ----------------------------------------------------------------------------- the best


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
def test_argmax_and_topk_equal_enumeration(form, scale, dtype):
    theta = forbid(potentials(form, dtype, scale))
    chain, close = bound(), tolerance(theta)
    best = chain.argmax(theta)
    top, scores, valid = chain.topk(theta, 5)
    assert all(y.dtype == dtype for y in (*as_tuple(best), *as_tuple(top), scores))
    for b, scored in enumerate(sequences(theta, LENGTHS)):
        wanted = sorted((x for x in scored.values() if x > NEG), reverse=True)[:5]
        assert valid[:, b].tolist() == [r < len(wanted) for r in range(5)]
        for r, value in enumerate(wanted):
            assert scores[r, b].item() == pytest.approx(value, abs=close)
            row = map_parts(lambda t, r=r, b=b: t[r, b][None], top)
            found = chain[[b]].decode(row)[0, : LENGTHS[b]].tolist()
            assert scored[tuple(found)] == pytest.approx(value, abs=close)
            assert_equal_parts(map_parts(lambda t: t.double(), row), indicators(theta, found))
        missing = map_parts(lambda t, b=b: t[:, b][~valid[:, b]], top)
        assert all(not bool(t.any()) for t in as_tuple(missing))
        assert bool(scores[len(wanted) :, b].isneginf().all())
    torch.testing.assert_close(chain.score(theta, best), scores[0], atol=close, rtol=0)
    assert_equal_parts(best, map_parts(lambda t: t[0], top))


@pytest.mark.parametrize("form", FORMS)
def test_ties_go_to_the_lowest_tags(form):
    theta = map_parts(torch.zeros_like, potentials(form, torch.float32))
    assert_equal_parts(CHAIN.argmax(theta), CHAIN.encode(torch.zeros(B, T, dtype=torch.int64), theta))
    top, scores, valid = CHAIN.topk(theta, 4)
    assert bool(valid.all())
    assert not bool(scores.any())
    listed = [CHAIN.decode(map_parts(lambda t, r=r: t[r], top)).tolist() for r in range(4)]
    assert listed == [[tags] * B for tags in ([0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 1, 0, 0])]


def test_topk_lists_every_sequence_once():
    theta = potentials("shared", shape=(2, 3, 3))
    top, scores, valid = CHAIN.topk(theta, 30)
    assert valid.sum(0).tolist() == [27, 27]
    assert bool((scores[:26] >= scores[1:27]).all())
    for b in range(2):
        tags = CHAIN.decode(map_parts(lambda t, b=b: t[:27, b], top))
        assert len({tuple(row) for row in tags.tolist()}) == 27
    torch.testing.assert_close(scores.logsumexp(0), CHAIN.log_partition(theta))


def test_topk_needs_a_positive_k():
    with pytest.raises(InvalidInputError, match="k must be at least 1, got 0"):
        CHAIN.topk(potentials("shared"), 0)


def test_log_probabilities_are_at_most_zero():
    theta = potentials("shared", torch.float32, 5.0, (5, 4, 6))
    chain = bound([4, 1, 2, 3, 4])
    best = chain.argmax(theta)
    log_prob = chain.score(theta, best) - chain.log_partition(theta)
    assert bool((log_prob <= 1e-6).all())


# ----------------------------------------------------------------------------- samples


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_samples_follow_the_distribution(form, dtype):
    theta = forbid(potentials(form, dtype, shape=(3, 3, 2)))
    lengths = [3, 2, 3]
    chain, n = bound(lengths), 20_000
    y = chain.sample(theta, n, torch.Generator().manual_seed(3))
    assert all(t.dtype == dtype and t.shape[:2] == (n, 3) for t in as_tuple(y))
    for b, scored in enumerate(sequences(theta, lengths)):
        tags = chain[[b]].repeat(n).decode(map_parts(lambda t, b=b: t[:, b], y))
        seen = Counter(tuple(row[: lengths[b]]) for row in tags.tolist())
        total = log_sum(list(scored.values()))
        assert set(seen) <= {s for s, x in scored.items() if x > NEG}
        for sequence, score in scored.items():
            p = math.exp(score - total)
            assert abs(seen[sequence] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9
    assert_equal_parts(y, chain.sample(theta, n, torch.Generator().manual_seed(3)))
    again = chain.sample(theta, n)
    assert any(not torch.equal(a, b) for a, b in zip(as_tuple(y), as_tuple(again), strict=True))


# ----------------------------------------------------------------------------- forms, labels, padding


@pytest.mark.parametrize("form", ["shared", "own", "steps", "edges"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_labels_round_trip_over_all_sequences(form, length):
    theta = potentials(form, torch.float32, shape=(1, 4, 3))
    shapes = tuple(t.shape[1:] for t in as_tuple(theta))
    chain = bound([length])
    every = chain.enumerate(shapes if isinstance(theta, tuple) else shapes[0])
    count = len(as_tuple(every)[0])
    wanted = list(sequences(theta, [length])[0])
    assert count == len(wanted)
    assert all(t.dtype == torch.float64 for t in as_tuple(every))
    for y, tags in zip(zip(*as_tuple(every), strict=True), wanted, strict=True):
        assert_equal_parts(y, tuple(t[0] for t in as_tuple(indicators(theta, tags))))
    decoded = chain.repeat(count).decode(every)
    assert decoded.tolist() == [[*tags, *[-1] * (4 - length)] for tags in wanted]
    padded = torch.where(decoded < 0, -100, decoded)
    encoded = chain.repeat(count).encode(padded.int(), theta)
    assert all(t.dtype == torch.float32 for t in as_tuple(encoded))
    assert_equal_parts(map_parts(lambda t: t.double(), encoded), every)
    total = inner(map_parts(lambda t: t.double(), theta), every).logsumexp(0)
    torch.testing.assert_close(chain.log_partition(theta)[0].double(), total, atol=1e-5, rtol=0)


def test_too_many_sequences_to_list():
    with pytest.raises(InvalidInputError, match="there are 1048576 tag sequences of 20 tokens and 2 states, too many"):
        CHAIN.enumerate(((20, 2), (2, 2)))
    with pytest.raises(InvalidInputError, match=r"there are about 10\^5000 tag sequences"):
        CHAIN.enumerate((4999, 10, 10))
    assert len(bound([3]).enumerate((19, 2, 2))) == 8


def test_a_single_token_by_edges_alone():
    """It has one structure, which is empty, next to longer neighbours or alone."""
    mixed, alone = potentials("edges"), potentials("edges", shape=(B, 1, S))
    for chain, theta in ((bound([1, 3, 1]), mixed), (CHAIN, alone)):
        short = [0, 2]
        assert not bool(chain.log_partition(theta)[short].any())
        leaf = copies(theta)
        recorded = chain.log_partition(leaf)
        assert not bool(recorded[short].any())
        (gradient,) = torch.autograd.grad(recorded[short].sum(), leaf)
        assert not bool(gradient.any())
        structures, scores, valid = chain.topk(theta, 2)
        assert valid[:, short].tolist() == [[True] * 2, [False] * 2]
        assert scores[:, short].tolist() == [[0.0] * 2, [NEG] * 2]
        for y in (structures[0], chain.argmax(theta), chain.marginals(theta), chain.sample(theta, 1)[0]):
            assert not bool(y[short].any())
        assert chain.decode(chain.argmax(theta))[short, 0].tolist() == [0, 0]


def test_wrong_labels():
    theta = potentials("shared")
    with pytest.raises(InvalidInputError, match="between 0 and 2, got 3 at batch index 2, position 1"):
        bound().encode(torch.tensor([[0, 0, 0, 0], [0, 9, 9, 9], [0, 3, 0, 9]]), theta)
    with pytest.raises(InvalidInputError, match="got -1 at batch index 0, position 3"):
        CHAIN.encode(torch.tensor([[0, 0, 0, -1]]), theta)
    with pytest.raises(InvalidInputError, match=r"shape \(B, 4\), got shape \(3, 3\)"):
        CHAIN.encode(torch.zeros(3, 3, dtype=torch.int64), theta)


@pytest.mark.parametrize("form", ["shared", "own", "steps", "edges"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_hamming_cost_counts_wrong_tags(form, length):
    theta = potentials(form, shape=(1, 4, 2))
    shapes = tuple(t.shape[1:] for t in as_tuple(theta))
    chain = bound([length])
    every = chain.enumerate(shapes if isinstance(theta, tuple) else shapes[0])
    labels = chain.repeat(len(as_tuple(every)[0])).decode(every)
    for row, y in enumerate(zip(*as_tuple(every), strict=True)):
        gold = tuple(t[None] for t in y) if isinstance(theta, tuple) else y[0][None]
        cost = chain.hamming_cost(gold)
        assert all(t.shape == g.shape for t, g in zip(as_tuple(cost), as_tuple(gold), strict=True))
        distance = inner(cost, every) - inner(cost, gold)
        assert torch.equal(distance, (labels != labels[row]).sum(1).double())
        padding = as_tuple(cost)[0][:, length - (form == "edges") :]
        assert not bool(padding.any())
    # A transition that all instances share stays one matrix when its cost is added.
    costs = chain.hamming_cost(every)
    assert form == "edges" or len(costs[1]) == 1


def test_readout_is_what_the_tags_say():
    theta = potentials("shared")
    y = CHAIN.argmax(theta)
    assert CHAIN.readout(y) is y[0]
    r = torch.randn(B, T, S).double()
    assert_equal_parts(CHAIN.readout_transpose(r, theta), (r, torch.zeros(B, S, S).double()))
    edges = potentials("edges")
    assert CHAIN.readout(edges) is edges


@pytest.mark.parametrize("form", FORMS)
def test_padding_is_marked_and_never_used(form):
    theta = potentials(form, torch.float32)
    chain = bound([2, 1, 3])
    masks = chain.valid_parts(theta)
    for mask, t in zip(as_tuple(masks), as_tuple(theta), strict=True):
        assert mask.shape == t.shape
        assert mask.dtype == torch.bool
    used = map_parts(lambda m, t: torch.where(m, t, 0.0), masks, theta)
    poisoned = map_parts(lambda m, t: torch.where(m, t, math.nan), masks, theta)
    weight = torch.ones(B)
    calls = {
        "argmax": chain.argmax,
        "marginals": chain.marginals,
        "log_partition": chain.log_partition,
        "vjp": lambda t: chain.log_partition_vjp(t, weight),
        "covariance": lambda t: chain.covariance_product(t, used),
        "topk": lambda t: chain.topk(t, 3)[0],
        "sample": lambda t: chain.sample(t, 2, torch.Generator().manual_seed(0)),
    }
    for call in calls.values():
        assert_equal_parts(call(poisoned), call(used))
    mean, everywhere = chain.marginals(used), map_parts(lambda m: m.expand(B, *m.shape[1:]), masks)
    if form not in ("shared steps", "shared unary"):
        assert all(not bool(p[~m].any()) for p, m in zip(as_tuple(mean), as_tuple(everywhere), strict=True))
    assert CHAIN.valid_parts(theta) is None
    assert bound([T] * B).valid_parts(theta) is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_an_instance_does_not_depend_on_its_batch(form, scale):
    theta = forbid(potentials(form, scale=scale))
    chain, v = bound(), map_parts(torch.randn_like, theta)
    for b, length in enumerate(LENGTHS):
        alone = map_parts(lambda t, b=b: t[min(b, len(t) - 1)][None], theta)
        along = map_parts(lambda t, b=b: t[min(b, len(t) - 1)][None], v)
        short = alone
        if form == "edges":
            short = alone[:, : length - 1]
        elif form in ("steps", "shared steps"):
            short = alone[0][:, :length], alone[1][:, : length - 1]
        else:
            short = alone[0][:, :length], alone[1]
        one = chain[b : b + 1]
        torch.testing.assert_close(chain.log_partition(theta)[b], one.log_partition(alone)[0], atol=0, rtol=1e-12)
        torch.testing.assert_close(chain.log_partition(theta)[b], CHAIN.log_partition(short)[0], atol=1e-10, rtol=1e-12)
        for together, single in (
            (chain.argmax(theta), one.argmax(alone)),
            (chain.marginals(theta), one.marginals(alone)),
            (chain.covariance_product(theta, v), one.covariance_product(alone, along)),
            (map_parts(lambda t: t[0], chain.topk(theta, 2)[0]), map_parts(lambda t: t[0], one.topk(alone, 2)[0])),
        ):
            assert_parts_close(map_parts(lambda t, b=b: t[b][None], together), single, 1e-10)


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 1, 1), (2, 3, 1), (0, 3, 2), (0, 1, 2), (2, 2, 2)])
def test_smallest_sizes(form, shape):
    theta = potentials(form, shape=shape)
    b, t, s = shape
    size = b
    if b == 0 and form == "shared":
        theta = theta[0], torch.randn(1, s, s).double()
    CHAIN.validate(theta)
    assert batch_size(theta) == size
    value = CHAIN.log_partition(theta)
    assert value.shape == CHAIN.log_partition(copies(theta)).shape == (size,)
    if size:
        torch.testing.assert_close(value, Exact(theta, [t] * b).log_z)
        assert_parts_close(CHAIN.marginals(theta), Exact(theta, [t] * b).mean(), 1e-12)
    for y in (CHAIN.argmax(theta), CHAIN.marginals(theta), CHAIN.covariance_product(theta, theta)):
        assert all(z.shape == (size, *x.shape[1:]) for z, x in zip(as_tuple(y), as_tuple(theta), strict=True))
    gradient = CHAIN.log_partition_vjp(theta, torch.ones(size).double())
    assert all(z.shape == x.shape for z, x in zip(as_tuple(gradient), as_tuple(theta), strict=True))
    top, scores, valid = CHAIN.topk(theta, 2)
    assert scores.shape == valid.shape == (2, size)
    for y in (top, CHAIN.sample(theta, 2)):
        assert all(z.shape == (2, size, *x.shape[1:]) for z, x in zip(as_tuple(y), as_tuple(theta), strict=True))
    assert CHAIN.decode(CHAIN.argmax(theta)).shape == (size, t)


def test_event_dimensions_of_each_form():
    def ndims(*shapes):
        tensors = tuple(torch.zeros(shape) for shape in shapes)
        return CHAIN.event_ndims(tensors if len(tensors) > 1 else tensors[0])

    assert ndims((4, 2, 2)) == ndims((7, 4, 2, 2)) == (3,)
    assert ndims((5, 2), (2, 2)) == ndims((7, 5, 2), (2, 2)) == ndims((6, 7, 5, 2), (2, 2)) == (2, 2)
    assert ndims((7, 5, 2), (7, 2, 2)) == ndims((7, 5, 2), (1, 2, 2)) == ndims((6, 7, 5, 2), (6, 7, 2, 2)) == (2, 2)
    assert ndims((5, 2), (4, 2, 2)) == ndims((7, 5, 2), (1, 4, 2, 2)) == (2, 3)
    with pytest.raises(InvalidInputError, match=r"unary \(6, 7, 5, 2\) and transition \(7, 2, 2\)"):
        ndims((6, 7, 5, 2), (7, 2, 2))
    shared = r"share has shape \(1, T - 1, S, S\)"
    with pytest.raises(InvalidInputError, match=rf"{shared}.* got unary \(6, 7, 5, 2\) and transition \(4, 2, 2\)"):
        ndims((6, 7, 5, 2), (4, 2, 2))
    for steps in ((4, 2, 2), (6, 4, 2, 2)):
        with pytest.raises(InvalidInputError, match=rf"shapes \(7, 5, 2\) and .* do not agree; .*{shared}"):
            ndims((7, 5, 2), steps)
    with pytest.raises(InvalidInputError, match=r"unary \(5,\) and transition \(2, 2\)"):
        ndims((5,), (2, 2))
    with pytest.raises(InvalidInputError, match="got 3 tensors"):
        ndims((5, 2), (2, 2), (2,))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 5, 3), (1, 2, 2)),
        ((2, 5, 3), (1, 3, 2)),
        ((2, 5, 3), (1, 5, 3, 3)),
        ((2, 5, 0), (1, 0, 0)),
        ((2, 0, 3), (1, 3, 3)),
        ((2, 5, 3, 2),),
    ],
)
def test_shapes_that_do_not_fit(shapes):
    theta = tuple(torch.zeros(shape) for shape in shapes)
    with pytest.raises(InvalidInputError, match=r"got \("):
        CHAIN.validate(theta if len(theta) > 1 else theta[0])


@pytest.mark.parametrize("lengths", [[4, 0, 3], [4, 1, 5], [4, 1, -2]])
def test_lengths_out_of_range(lengths):
    with pytest.raises(InvalidInputError, match=r"between 1 and 4 \(T = 4 tokens\)"):
        bound(lengths).validate(potentials("shared"))


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_no_allowed_sequence(form, differentiable):
    theta = potentials(form)
    cut = theta[-1] if form == "steps" else as_tuple(theta)[0]
    cut[2, 1] = NEG
    theta = copies(theta) if differentiable else theta
    chain = bound([4, 4, 4])
    calls = [chain.log_partition]
    if not differentiable:
        calls += [
            chain.argmax,
            chain.marginals,
            lambda t: chain.topk(t, 2),
            lambda t: chain.sample(t, 2),
            lambda t: chain.covariance_product(t, t),
            lambda t: chain.log_partition_vjp(t, torch.ones(B).double()),
        ]
    for call in calls:
        with pytest.raises(InfeasibleError, match="no tag sequence of finite score exists for batch index 2") as caught:
            call(theta)
        assert caught.value.batch_index == 2
    # The instance is fine if it ends before.
    short = bound([4, 4, 1])
    short.log_partition(theta)
    short.argmax(map_parts(torch.Tensor.detach, theta))


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_input_is_left_alone(form):
    theta = potentials(form, torch.float32)
    strided = map_parts(lambda t: t.mT.contiguous().mT, theta)
    assert not any(t.is_contiguous() for t in as_tuple(strided))
    before, versions = map_parts(torch.clone, theta), [t._version for t in as_tuple(strided)]
    chain = bound()
    for call in (
        chain.argmax,
        chain.marginals,
        chain.log_partition,
        lambda t: chain.log_partition_vjp(t, torch.ones(B)),
        lambda t: chain.covariance_product(t, t),
        lambda t: chain.topk(t, 2)[0],
        lambda t: chain.sample(t, 2, torch.Generator().manual_seed(0)),
    ):
        assert_equal_parts(call(strided), call(theta))
    assert_equal_parts(strided, before)
    assert [t._version for t in as_tuple(strided)] == versions
    assert not any(t.requires_grad for t in as_tuple(strided))
    # A leaf that requires grad, seen through a view.
    leaf = torch.randn(4, 2, requires_grad=True)
    CHAIN.log_partition((leaf[None], torch.zeros(1, 2, 2))).sum().backward()
    assert leaf._version == 0
    torch.testing.assert_close(leaf.grad.sum(1), torch.ones(4))


@pytest.mark.parametrize("form", FORMS)
def test_threads_change_nothing(form):
    theta = potentials(form, torch.float32, shape=(16, 30, 12))
    v, weight = map_parts(torch.randn_like, theta), torch.randn(16)
    wide = map_parts(lambda t: t * 50, theta)

    def results():
        return [
            *as_tuple(CHAIN.argmax(theta)),
            *as_tuple(CHAIN.marginals(theta)),
            *as_tuple(CHAIN.covariance_product(theta, v)),
            *as_tuple(CHAIN.log_partition_vjp(theta, weight)),
            *as_tuple(CHAIN.log_partition_vjp(wide, weight)),
        ]

    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(results())
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_memory_grows_as_the_inputs_do():
    """T = 20,000; and S = 1,000 with a shared transition, where a (B, T, S, S) array would take 960 MB."""
    script = """
import resource, torch
from structinf_oracles.chain import Chain
chain = Chain()
def run(theta):
    weight = torch.ones(len(theta[0]))
    with torch.no_grad():
        chain.log_partition(theta), chain.log_partition_vjp(theta, weight), chain.argmax(theta), chain.sample(theta, 1)
run((torch.randn(2, 5, 4), torch.randn(1, 4, 4)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run((torch.randn(4, 60, 1000), torch.randn(1, 1000, 1000)))
run((torch.randn(4, 60, 1000), 30 * torch.randn(1, 1000, 1000)))
run((torch.randn(4, 20_000, 3), torch.randn(1, 3, 3)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    if sys.platform != "linux":
        pytest.skip("ru_maxrss is in kB on Linux alone")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_cuda(form):
    theta = forbid(potentials(form))
    device = map_parts(lambda t: t.cuda(), theta)
    chain, on_device = bound(), CHAIN.bind(lengths=torch.tensor(LENGTHS).cuda())
    weight, v = torch.randn(B).double(), map_parts(torch.randn_like, theta)
    v_device = map_parts(lambda t: t.cuda(), v)
    for found, wanted in (
        (on_device.argmax(device), chain.argmax(theta)),
        (on_device.log_partition(device), chain.log_partition(theta)),
        (on_device.marginals(device), chain.marginals(theta)),
        (on_device.log_partition_vjp(device, weight.cuda()), chain.log_partition_vjp(theta, weight)),
        (on_device.covariance_product(device, v_device), chain.covariance_product(theta, v)),
        (on_device.topk(device, 3)[0], chain.topk(theta, 3)[0]),
        (on_device.encode(on_device.decode(on_device.argmax(device)), device), chain.argmax(theta)),
    ):
        assert all(t.is_cuda for t in as_tuple(found))
        assert_parts_close(map_parts(lambda t: t.cpu(), found), wanted, 1e-10)
    assert all(t.is_cuda for t in as_tuple(on_device.sample(device, 2, torch.Generator("cuda").manual_seed(0))))
