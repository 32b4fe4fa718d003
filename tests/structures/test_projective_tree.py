"""Projective trees, against all of them listed in plain Python, known counts, and non-projective trees."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import enumerators_trees as plain
import structinf as si
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.arborescence import Arborescence
from structinf_oracles.projective_tree import ProjectiveTree

pytestmark = pytest.mark.slow

INF = math.inf


def program(words, single_root=False, labels=None):
    return Program(
        ProjectiveTree(single_root=single_root, labelled=labels is not None),
        (words + 1, words + 1, *([labels] if labels else [])),
        lambda length: list(plain.projective_tree(words, single_root, labels, length)),
        lambda length: plain.projective_tree_grammar(words, single_root, labels, length),
        lengths=[*range(1, words + 1), words],
    )


PROGRAMS = [
    program(3),
    program(4, single_root=True),
    program(2, labels=2),
    program(1, single_root=True, labels=3),
]

both_roots = pytest.mark.parametrize("single_root", [False, True], ids=["roots", "root"])


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


# ----------------------------------------------------------------------------- known values


@pytest.mark.parametrize("n", range(1, 6))
def test_counts(n):
    zeros = torch.zeros(1, n + 1, n + 1)
    assert ProjectiveTree().count(zeros) == [[1, 3, 12, 55, 273][n - 1]]
    assert ProjectiveTree(single_root=True).count(zeros) == [[1, 2, 7, 30, 143][n - 1]]
    labelled = ProjectiveTree(labelled=True)
    assert labelled.count(torch.zeros(1, n + 1, n + 1, 3)) == [ProjectiveTree().count(zeros)[0] * 3**n]


def test_counts_of_many_words():
    lengths = torch.arange(1, 41)
    zeros = torch.zeros(40, 41, 41)
    several, single = (ProjectiveTree(single_root=one).bind(lengths=lengths).count(zeros) for one in (False, True))
    for n in range(1, 41):
        # Trees in which each node's children are in order, left and right of it apart: ternary trees.
        assert several[n - 1] == math.comb(3 * n, n) // (2 * n + 1)
        assert single[n - 1] == math.comb(3 * n - 2, n - 1) // n


def test_two_words():
    zeros = torch.zeros(1, 3, 3)
    several, single = ProjectiveTree(), ProjectiveTree(single_root=True)
    torch.testing.assert_close(several.log_partition(zeros).exp(), torch.tensor([3.0]))
    torch.testing.assert_close(several.marginals(zeros), torch.tensor([[[0, 2, 2], [0, 0, 1], [0, 1, 0]]]) / 3)
    torch.testing.assert_close(single.marginals(zeros), torch.tensor([[[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]]]))


def test_crossing_arcs():
    theta = torch.zeros(1, 5, 5)
    theta[0, 3, 1], theta[0, 2, 4], theta[0, 0, 2], theta[0, 2, 3] = 2.0, 2.5, 1.0, 1.0
    crossing = Arborescence(single_root=True)
    assert crossing.decode(crossing.argmax(theta)).tolist() == [[3, 0, 2, 2]]
    tree = ProjectiveTree(single_root=True)
    assert tree.decode(tree.argmax(theta)).tolist() == [[2, 0, 2, 2]]


@both_roots
def test_all_trees_of_two_words_are_projective(single_root):
    theta = torch.randn(5, 3, 3, dtype=torch.float64)
    projective, any_tree = ProjectiveTree(single_root=single_root), Arborescence(single_root=single_root)
    torch.testing.assert_close(projective.log_partition(theta), any_tree.log_partition(theta))
    torch.testing.assert_close(projective.marginals(theta), any_tree.marginals(theta))
    torch.testing.assert_close(projective.covariance_product(theta, theta), any_tree.covariance_product(theta, theta))


@both_roots
def test_labels_are_chosen_apart_from_heads(single_root):
    theta = torch.randn(3, 8, 8, 4, dtype=torch.float64)
    labelled, plain_trees = (ProjectiveTree(single_root=single_root, labelled=own) for own in (True, False))
    torch.testing.assert_close(labelled.log_partition(theta), plain_trees.log_partition(theta.logsumexp(3)))
    mean = plain_trees.marginals(theta.logsumexp(3))
    torch.testing.assert_close(labelled.marginals(theta), mean[..., None] * theta.softmax(3))
    best = plain_trees.argmax(theta.amax(3))
    torch.testing.assert_close(labelled.argmax(theta).sum(3), best)
    heads = plain_trees.decode(best)
    names = theta.argmax(3).transpose(1, 2)[:, 1:].gather(2, heads[..., None])
    assert torch.equal(labelled.decode(labelled.argmax(theta)), torch.cat([heads[..., None], names], 2))


@both_roots
def test_many_words(single_root):
    """The best and the samples are trees, and moments belong to the samples."""
    theta = 2 * torch.randn(1, 26, 26)
    oracle = ProjectiveTree(single_root=single_root)
    drawn = oracle.sample(theta, 4000, torch.Generator().manual_seed(0))[:, 0]
    for heads in oracle.decode(torch.cat([oracle.argmax(theta), drawn[:50]])).tolist():
        assert not single_root or heads.count(0) == 1
        arcs = [(min(h, m), max(h, m)) for m, h in enumerate(heads, 1)]
        assert not any(a < c < b < d for (a, b), (c, d) in itertools.product(arcs, repeat=2))
    mean = oracle.marginals(theta)[0]
    assert ((drawn.mean(0) - mean).abs() <= 5 * (mean * (1 - mean) / 4000).clamp(min=0).sqrt() + 1e-3).all()
    words = torch.ones(25)
    torch.testing.assert_close(mean[:, 1:].sum(0), words)
    if single_root:
        torch.testing.assert_close(mean[0].sum(), torch.tensor(1.0))


def test_time_grows_with_the_cube():
    edges = [ProjectiveTree().hypergraph(torch.zeros(1, n + 1, n + 1)).edges for n in (20, 40, 80)]
    assert edges[1] / edges[0] < 8
    assert edges[2] < 0.55 * 80**3


# ----------------------------------------------------------------------------- form and labels


@both_roots
def test_nothing_reads_what_is_no_arc(single_root):
    theta = torch.randn(2, 5, 5, dtype=torch.float64)
    holes = theta.clone()
    holes[:, :, 0] = holes.diagonal(dim1=1, dim2=2)[:] = math.nan
    holes[0, 4] = holes[0, :, 4] = math.nan
    found = [si.infer(t, ProjectiveTree(single_root=single_root), "marginals", lengths=[3, 4]) for t in (theta, holes)]
    assert torch.equal(found[0].mean, found[1].mean)
    assert not found[0].mean[:, :, 0].any()
    assert not found[0].mean[0, 4].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    theta = torch.zeros(1, 4, 4, dtype=dtype)
    found = si.infer(theta, ProjectiveTree(), "marginals")
    assert found.mean.dtype == dtype
    assert found.value.item() == pytest.approx(math.log(12), abs=1e-2)


def test_padded_labels():
    oracle = ProjectiveTree().bind(lengths=torch.tensor([2, 3]))
    labels = torch.tensor([[2, 0, 77], [0, 1, 2]])
    y = oracle.encode(labels, torch.zeros(2, 4, 4))
    assert y.sum((1, 2)).tolist() == [2, 3]
    assert oracle.decode(y).tolist() == [[2, 0, -1], [0, 1, 2]]
    named = ProjectiveTree(labelled=True).bind(lengths=torch.tensor([1]))
    y = named.encode(torch.tensor([[[0, 4], [9, 9]]]), torch.zeros(1, 3, 3, 5))
    assert named.decode(y).tolist() == [[[0, 4], [-1, -1]]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 4], r"a head is neither 0 \(the root\) nor a word in use at batch index 1"),
        ([0, 1, -1], "a head is neither"),
        ([0, 2, 1], "do not form a projective tree with a single root at batch index 1"),
        ([0, 3, 2], "do not form a projective tree"),
        ([3, 0, 1], "do not form a projective tree"),
        ([2, 0, 0], "do not form a projective tree with a single root"),
    ],
)
def test_labels_that_are_no_trees(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        ProjectiveTree(single_root=True).encode(torch.tensor([[0, 1, 2], labels]), torch.zeros(2, 4, 4))


def test_heads_beyond_the_length():
    with pytest.raises(InvalidInputError, match=r"a head is neither 0 \(the root\) nor a word in use at batch index 0"):
        ProjectiveTree().bind(lengths=torch.tensor([2])).encode(torch.tensor([[0, 3, 0]]), torch.zeros(1, 4, 4))


def test_labels_of_a_wrong_form():
    with pytest.raises(InvalidInputError, match=r"heads, \(B, 3\), got shape \(1, 3, 2\)"):
        ProjectiveTree().encode(torch.zeros(1, 3, 2, dtype=torch.int64), torch.zeros(1, 4, 4))
    with pytest.raises(InvalidInputError, match=r"heads and labels of arcs, \(B, 3, 2\), got shape \(1, 3\)"):
        ProjectiveTree(labelled=True).encode(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 4, 4, 2))
    with pytest.raises(InvalidInputError, match="an arc's label is out of range at batch index 0"):
        ProjectiveTree(labelled=True).encode(torch.tensor([[[0, 2]]]), torch.zeros(1, 2, 2, 2))


def test_hamming_cost_counts_wrong_words():
    oracle = ProjectiveTree(labelled=True)
    gold, other = (
        oracle.encode(torch.tensor([y]), torch.zeros(1, 4, 4, 2))
        for y in (
            [[0, 0], [1, 0], [1, 1]],
            [[0, 0], [1, 1], [2, 1]],
        )
    )
    assert (oracle.hamming_cost(gold) * (other - gold)).sum() == 2


# ----------------------------------------------------------------------------- refusals


def test_shapes_that_do_not_fit():
    for labelled, shape in [(False, (2, 3)), (False, (1, 1)), (True, (3, 2, 1)), (True, (3, 3, 0))]:
        with pytest.raises(InvalidInputError, match=r"takes scores .* from head to word"):
            ProjectiveTree(labelled=labelled).validate(torch.zeros(2, *shape))
    for length in (0, 4):
        with pytest.raises(InvalidInputError, match=r"between [01] and 3 \(n = 3 words, root not included\)"):
            ProjectiveTree().bind(lengths=torch.tensor([2, length])).validate(torch.zeros(2, 4, 4))
    with pytest.raises(InvalidInputError, match="needs at least 3 dimensions"):
        si.relax(torch.zeros(3, 3), ProjectiveTree(labelled=True), "marginals")


def test_infeasible():
    theta = torch.zeros(2, 4, 4)
    theta[1, 1:] = -INF  # all three words hang from the root
    assert ProjectiveTree().decode(ProjectiveTree().argmax(theta))[1].tolist() == [0, 0, 0]
    with pytest.raises(InfeasibleError, match="batch index 1"):
        ProjectiveTree(single_root=True).argmax(theta)
