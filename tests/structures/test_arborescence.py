"""Arborescences, against all trees listed in plain Python, and networkx."""

from __future__ import annotations

import itertools
import math

import networkx
import pytest
import torch

import structinf as si
from arborescence_enumeration import DTYPES, NEVER, SCALES, Sums, arcs, both_roots, feasible_cases, scores, trees
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.arborescence import Arborescence

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- golden values


@pytest.mark.parametrize(("single_root", "count"), [(False, 9**7), (True, 8**7)])
def test_too_many_trees_to_list(single_root, count):
    with pytest.raises(InvalidInputError, match=f"there are {count} arborescences of 8 words, too many"):
        Arborescence(single_root).enumerate((9, 9))


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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(3)
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
            r"between 0 \(the root\) and the number of words, 3; got 4 for word 2 at batch index 1",
        ),
        ([[0, 1, 1], [0, 3, 1]], [3, 2], r"number of words, 2; got 3 for word 2 at batch index 1"),
        ([[0, 1, -1]], None, r"got -1 for word 3 at batch index 0"),
        (
            [[0, 1, 1], [0, 3, 2]],
            None,
            r"batch index 1 are not a tree, as a cycle of heads never reaches the root; .*\[0, 3, 2\]",
        ),
        ([[0, 2, 1]], None, r"not a tree"),
        ([[2, 0, 0]], None, r"batch index 0 have 2 words whose head is the root, but single_root=True"),
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
        value = si.log_partition(theta, "arborescence", single_root=single_root)
        assert value.item() == pytest.approx(math.log(count), abs=1e-3)
    with pytest.raises(TypeError, match=r"take float32 or float64, got torch.float16; convert it with \.float\(\)"):
        Arborescence().log_partition(theta)
