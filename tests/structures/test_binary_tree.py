"""Binary trees, against all of them listed in plain Python, Catalan's numbers, and a grammar's inside recursion."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import enumerators_trees as plain
import structinf as si
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.binary_tree import BinaryTree

pytestmark = pytest.mark.slow

INF = math.inf

# Trees of label 0 split into 1 and 2, both of which split too.
GRAMMAR = ((0, 1, 2), (1, 1, 2), (2, 2, 1), (2, 2, 2))


def program(words, labels=None, rules=None, roots=None, steps=None):
    given = (labels, rules, roots)
    return Program(
        BinaryTree(labelled=labels is not None, rules=rules, roots=roots, unary_rules=steps),
        (words, words, *([labels + len(steps or ())] if labels else [])),
        lambda length: list(plain.binary_tree(words, *given, length, steps or ())),
        lambda length: plain.binary_tree_grammar(words, *given, length, steps or ()),
        lengths=[*range(1, words + 1), words],
    )


PROGRAMS = [
    program(4),
    program(1, labels=3, roots=(0, 2)),
    program(3, labels=2),
    program(3, labels=3, rules=GRAMMAR, roots=(0,)),
    program(3, labels=2, steps=((1, 0),)),
    program(3, labels=3, rules=GRAMMAR[:2], roots=(2,), steps=((2, 0), (0, 2), (2, 1))),
]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


def catalan(n):
    return math.comb(2 * n, n) // (n + 1)


# ----------------------------------------------------------------------------- known values


def test_counts():
    zeros = torch.zeros(60, 60, 60)
    found = BinaryTree().bind(lengths=torch.arange(1, 61)).count(zeros)
    assert found[:7] == [1, 1, 2, 5, 14, 42, 132]
    assert found == [catalan(n) for n in range(60)]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_counts_with_labels(n):
    zeros = torch.zeros(1, n, n, 3)
    trees = catalan(n - 1)
    every = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    for rules in (None, every):
        assert BinaryTree(labelled=True, rules=rules).count(zeros) == [trees * 3 ** (2 * n - 1)]
        assert BinaryTree(labelled=True, rules=rules, roots=[0, 2]).count(zeros) == [trees * 2 * 3 ** (2 * n - 2)]
    # One label for each tree, or branching to the left alone.
    assert BinaryTree(labelled=True, rules=[(2, 2, 2)], roots=[2]).count(zeros) == [trees]
    assert BinaryTree(labelled=True, rules=[(0, 0, 1)], roots=[0]).count(zeros) == [1]


def test_rules_given_twice_count_once():
    twice = BinaryTree(labelled=True, rules=[[0, 0, 0], [0, 0, 0]], roots=[0, 0])
    assert twice == BinaryTree(labelled=True, rules=((0, 0, 0),), roots=(0,))
    assert twice.count(torch.zeros(1, 4, 4, 1)) == [5]


def test_rules_for_all_labels_are_no_rules():
    """But for DP_Ω, which chooses labels earlier."""
    theta = torch.randn(3, 7, 7, 2, dtype=torch.float64)
    every = [(a, b, c) for a in range(2) for b in range(2) for c in range(2)]
    free, ruled = BinaryTree(labelled=True), BinaryTree(labelled=True, rules=every)
    torch.testing.assert_close(free.log_partition(theta), ruled.log_partition(theta))
    torch.testing.assert_close(free.marginals(theta), ruled.marginals(theta))
    torch.testing.assert_close(free.covariance_product(theta, theta), ruled.covariance_product(theta, theta))
    assert torch.equal(free.argmax(theta), ruled.argmax(theta))


def test_labels_are_chosen_apart_from_spans():
    theta = torch.randn(3, 9, 9, 4, dtype=torch.float64)
    labelled, unlabelled = BinaryTree(labelled=True), BinaryTree()
    torch.testing.assert_close(labelled.log_partition(theta), unlabelled.log_partition(theta.logsumexp(3)))
    mean = unlabelled.marginals(theta.logsumexp(3))
    torch.testing.assert_close(labelled.marginals(theta), mean[..., None] * theta.softmax(3))
    best = unlabelled.argmax(theta.amax(3))
    assert torch.equal(labelled.argmax(theta), best[..., None] * (theta == theta.amax(3, keepdim=True)))


def test_inside_recursion_of_a_grammar():
    words, labels = 6, 3
    theta = torch.randn(1, words, words, labels, dtype=torch.float64)

    @functools.cache
    def inside(i, j, label):
        below = sum(
            inside(i, k, left) * inside(k + 1, j, right)
            for k in range(i, j)
            for parent, left, right in GRAMMAR
            if parent == label
        )
        return math.exp(theta[0, i, j, label]) * (1 if i == j else below)

    oracle = BinaryTree(labelled=True, rules=GRAMMAR, roots=(0, 1))
    total = inside(0, words - 1, 0) + inside(0, words - 1, 1)
    assert oracle.log_partition(theta).item() == pytest.approx(math.log(total), rel=1e-12)


def test_many_words():
    """The best and the samples are trees, and moments belong to the samples."""
    theta = torch.randn(1, 25, 25)
    oracle = BinaryTree()
    drawn = oracle.sample(theta, 4000, torch.Generator().manual_seed(0))[:, 0]
    for y in torch.cat([oracle.argmax(theta), drawn[:30]]):
        spans = set(map(tuple, y.nonzero().tolist()))
        assert len(spans) == 49
        for i, j in spans:
            assert i == j or sum((i, k) in spans and (k + 1, j) in spans for k in range(i, j)) == 1
    mean = oracle.marginals(theta)[0]
    assert ((drawn.mean(0) - mean).abs() <= 5 * (mean * (1 - mean) / 4000).clamp(min=0).sqrt() + 1e-3).all()
    torch.testing.assert_close(mean.diagonal(), torch.ones(25))
    torch.testing.assert_close(mean.sum(), torch.tensor(49.0))


def test_time_grows_with_the_cube():
    edges = [BinaryTree().hypergraph(torch.zeros(1, n, n)).edges for n in (20, 40, 80)]
    assert edges[1] / edges[0] < 8
    assert edges[2] < 0.18 * 80**3


# ----------------------------------------------------------------------------- form and labels


def test_nothing_reads_what_is_no_span():
    theta = torch.randn(2, 4, 4, dtype=torch.float64)
    holes = theta.clone()
    holes[:, 3, 1] = holes[:, 1, 0] = holes[0, :, 3] = math.nan
    found = [si.infer(t, BinaryTree(), "marginals", lengths=[3, 4]) for t in (theta, holes)]
    assert torch.equal(found[0].mean, found[1].mean)
    assert not found[0].mean.tril(-1).any()
    assert not found[0].mean[0, :, 3].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    found = si.infer(torch.zeros(1, 5, 5, dtype=dtype), BinaryTree(), "marginals")
    assert found.mean.dtype == dtype
    assert found.value.item() == pytest.approx(math.log(14), abs=1e-2)


def test_labels_come_in_any_order():
    oracle = BinaryTree().bind(lengths=torch.tensor([3, 2]))
    labels = torch.tensor([[[1, 2], [0, 2], [2, 2], [0, 0], [1, 1]], [[0, 1], [0, 0], [1, 1], [7, 7], [0, 0]]])
    y = oracle.encode(labels, torch.zeros(2, 3, 3))
    assert y.sum((1, 2)).tolist() == [5, 3]
    assert oracle.decode(y).tolist() == [
        [[0, 2], [0, 0], [1, 2], [1, 1], [2, 2]],
        [[0, 1], [0, 0], [1, 1], [-1, -1], [-1, -1]],
    ]
    labelled = BinaryTree(labelled=True)
    labels = torch.tensor([[[1, 1, 4], [0, 1, 2], [0, 0, 3]]])
    assert labelled.decode(labelled.encode(labels, torch.zeros(1, 2, 2, 5))).tolist() == [
        [[0, 1, 2], [0, 0, 3], [1, 1, 4]]
    ]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 2], [0, 0], [1, 2], [1, 1], [2, 3]], "a span lies outside the words in use at batch index 1"),
        ([[0, 2], [0, 0], [2, 1], [1, 1], [2, 2]], "a span lies outside the words in use"),
        ([[-1, 2], [0, 0], [1, 2], [1, 1], [2, 2]], "a span lies outside the words in use"),
        ([[0, 2], [0, 0], [1, 2], [1, 1], [1, 1]], "the spans do not form a binary tree at batch index 1"),
        ([[0, 2], [0, 0], [1, 2], [1, 1], [0, 1]], "the spans do not form a binary tree"),
    ],
)
def test_labels_that_are_no_trees(labels, message):
    good = [[0, 2], [0, 0], [1, 2], [1, 1], [2, 2]]
    with pytest.raises(InvalidInputError, match=message):
        BinaryTree().encode(torch.tensor([good, labels]), torch.zeros(2, 3, 3))


def test_labels_that_the_rules_forbid():
    oracle, like = BinaryTree(labelled=True, rules=GRAMMAR, roots=(0,)), torch.zeros(1, 2, 2, 3)
    oracle.encode(torch.tensor([[[0, 1, 0], [0, 0, 1], [1, 1, 2]]]), like)
    for wrong in ([[0, 1, 0], [0, 0, 2], [1, 1, 2]], [[0, 1, 1], [0, 0, 1], [1, 1, 2]]):
        with pytest.raises(InvalidInputError, match="do not form a binary tree that the rules allow at batch index 0"):
            oracle.encode(torch.tensor([wrong]), like)
    with pytest.raises(InvalidInputError, match="a span's label is out of range at batch index 0"):
        oracle.encode(torch.tensor([[[0, 1, 0], [0, 0, 3], [1, 1, 2]]]), like)


def test_labels_of_a_wrong_form():
    with pytest.raises(
        InvalidInputError, match=r"\(first word, last word\) of shape \(B, 5, 2\), got shape \(1, 5, 3\)"
    ):
        BinaryTree().encode(torch.zeros(1, 5, 3, dtype=torch.int64), torch.zeros(1, 3, 3))
    with pytest.raises(
        InvalidInputError, match=r"\(first word, last word, label\) of shape \(B, 5, 3\), got shape \(1, 3, 3\)"
    ):
        BinaryTree(labelled=True).encode(torch.zeros(1, 3, 3, dtype=torch.int64), torch.zeros(1, 3, 3, 2))


def test_hamming_cost_counts_missing_spans():
    oracle, like = BinaryTree(), torch.zeros(1, 4, 4)
    words = [[i, i] for i in range(4)]
    gold, other = (
        oracle.encode(torch.tensor([[*words, [0, 3], *spans]]), like) for spans in ([[0, 1], [2, 3]], [[0, 1], [0, 2]])
    )
    assert (oracle.hamming_cost(gold) * (other - gold)).sum() == 1


# ----------------------------------------------------------------------------- refusals


def test_shapes_that_do_not_fit():
    for labelled, shape in [(False, (2, 3)), (False, (0, 0)), (True, (3, 2, 1)), (True, (3, 3, 0))]:
        with pytest.raises(
            InvalidInputError, match=r"takes scores .* indexed by first and last word, for n >= 1 words"
        ):
            BinaryTree(labelled=labelled).validate(torch.zeros(2, *shape))
    for length in (0, 4):
        with pytest.raises(InvalidInputError, match=r"between [01] and 3 \(n = 3 words\)"):
            BinaryTree().bind(lengths=torch.tensor([2, length])).validate(torch.zeros(2, 3, 3))
    with pytest.raises(InvalidInputError, match="rules or roots with label 2, but theta scores only the labels 0 to 1"):
        BinaryTree(labelled=True, rules=GRAMMAR).validate(torch.zeros(1, 3, 3, 2))
    with pytest.raises(InvalidInputError, match="label 4, but theta"):
        BinaryTree(labelled=True, roots=[4]).validate(torch.zeros(1, 3, 3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": [(0, 0, 0)]}, "pass labelled=True"),
        ({"roots": [0]}, "pass labelled=True"),
        ({"labelled": True, "rules": [(0, 0)]}, r"must be triples of labels \(parent, left, right\), got \(0, 0\)"),
        ({"labelled": True, "rules": [(0, 0, -1)]}, "rules: labels must be integers of at least 0, got"),
        ({"labelled": True, "rules": [(0, 0, 1.5)]}, "rules: labels must be integers of at least 0, got"),
        ({"labelled": True, "rules": [0, 0, 0]}, r"rules must be a sequence of triples .*, got \[0, 0, 0\]"),
        ({"labelled": True, "roots": 3}, "roots: labels must be integers of at least 0, got 3"),
        ({"labelled": True, "roots": []}, "roots must hold at least one label"),
    ],
)
def test_options_that_are_no_grammar(options, message):
    with pytest.raises(InvalidInputError, match=message):
        BinaryTree(**options)


def test_lengths_without_trees():
    """0 -> 1 1, and nothing splits 1: trees have one word or two."""
    oracle = BinaryTree(labelled=True, rules=[(0, 1, 1)])
    theta = torch.zeros(2, 3, 3, 2)
    assert oracle.bind(lengths=torch.tensor([1, 2])).count(theta) == [2, 1]
    for lengths, index in ((None, 0), (torch.tensor([2, 3]), 1)):
        with pytest.raises(InvalidInputError, match=f"no tree over 3 words follows the rules, at batch index {index}"):
            oracle.bind(lengths=lengths).validate(theta)
    with pytest.raises(InvalidInputError, match="no tree over 2 words"):
        si.relax(theta, BinaryTree(labelled=True, rules=[]), "marginals", lengths=[1, 2])


def test_infeasible():
    theta = torch.zeros(2, 4, 4)
    theta[1, 0, 1:3] = theta[1, 1:3, 3] = -INF  # the span of all words splits nowhere
    with pytest.raises(InfeasibleError, match="batch index 1"):
        BinaryTree().marginals(theta)
    theta[1, 0, 1] = theta[1, 2, 3] = 0
    assert BinaryTree().count(theta) == [5, 1]


# ----------------------------------------------------------------------------- unary rules


def test_unary_rules_of_a_small_grammar() -> None:
    """Sentences of noun phrases and verb phrases, each of one or more words, with the unary rules of single words."""
    s, np_, vp, noun, verb = range(5)
    options = {"rules": [(s, np_, vp), (np_, noun, np_), (vp, verb, np_)], "unary_rules": [(np_, noun), (vp, verb)]}
    tree = BinaryTree(labelled=True, roots=[s], **options)
    theta = torch.zeros(1, 4, 4, 7, dtype=torch.float64)
    words = torch.full((4, 7), -INF, dtype=torch.float64)
    words[0, noun] = words[1, noun] = words[2, verb] = words[3, noun] = 0.0
    words[[0, 1, 3], 5], words[2, 6] = 1.0, 2.0
    theta[0, range(4), range(4)] = words
    # A noun phrase over the words 0 and 1 ends in the unary rule; so does the object of the verb.
    assert tree.count(theta) == [1]
    spans = tree.decode(tree.argmax(theta))[0].tolist()
    assert spans == [[0, 3, s], [0, 1, np_], [0, 0, noun], [1, 1, 5], [2, 3, vp], [2, 2, verb], [3, 3, 5]]
    assert tree.log_partition(theta).item() == pytest.approx(2.0)
    # A chain of unary rules is one rule with its own score.
    assert tree.count(torch.zeros(1, 1, 1, 7)) == [1]
    with_chain = BinaryTree(labelled=True, roots=[s], rules=options["rules"], unary_rules=[(np_, noun), (s, vp)])
    assert with_chain.count(torch.zeros(1, 1, 1, 7)) == [2]


def test_mixed_lengths_with_unary_rules() -> None:
    tree = BinaryTree(labelled=True, rules=GRAMMAR, roots=(0, 1), unary_rules=[(0, 1), (1, 2)])
    theta = torch.randn(5, 4, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 0, 1, 3, 2])
    for relaxation in ("map", "marginals", "sparsemap"):
        mean = si.relax(theta, tree, relaxation, lengths=lengths)
        for b, n in enumerate(lengths.tolist()):
            own = theta[b, :n, :n]
            if n and relaxation == "sparsemap":
                torch.testing.assert_close(mean[b, :n, :n], si.relax(own, tree, relaxation), atol=1e-12, rtol=0)
            elif n:
                assert torch.equal(mean[b, :n, :n], si.relax(own, tree, relaxation))
            assert mean[b].sum() == pytest.approx(max(2 * n - 1, 0))
    y = si.relax(theta, tree, "map", lengths=lengths)
    labels = si.decode(y, tree, lengths=lengths)
    assert torch.equal(si.encode(labels, theta, tree, lengths=lengths), y)
    assert (labels[..., 2] >= 3).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labelled": True, "unary_rules": [(0, 0)]}, r"pairs of different labels \(parent, child\), got \(0, 0\)"),
        ({"labelled": True, "unary_rules": [(0, 1, 2)]}, r"pairs of different labels"),
        ({"labelled": True, "unary_rules": [(0, 1), (0, 1)]}, "unary_rules must be different"),
        ({"labelled": True, "unary_rules": 3}, r"unary_rules must be a sequence of pairs .* for example \[\(0, 1\)\]"),
        ({"labelled": True, "unary_rules": [(0, -1)]}, "unary_rules: labels must be integers of at least 0"),
        ({"unary_rules": [(0, 1)]}, "pass labelled=True"),
    ],
)
def test_wrong_unary_rules(options, message) -> None:
    with pytest.raises(InvalidInputError, match=message):
        BinaryTree(**options)


def test_scores_of_unary_rules() -> None:
    tree = BinaryTree(labelled=True, unary_rules=[(0, 1), (1, 0)])
    with pytest.raises(InvalidInputError, match=r"\(n, n, L \+ 2\) of spans with labels and unary rules"):
        si.relax(torch.zeros(2, 2, 2), tree, "map")
    with pytest.raises(InvalidInputError, match="label 1, but theta scores only the labels 0 to 0 and 2 unary rules"):
        si.relax(torch.zeros(2, 2, 3), tree, "map")
    theta = torch.zeros(1, 2, 2, 4)
    assert tree.describe_part(theta, 0, (0, 1, 3)) == "span of the words 0 to 1 with unary rule 1, 1 -> 0"
    assert tree.describe_part(theta, 0, (0, 1, 1)) == "span of the words 0 to 1 with label 1"
