"""Batches of assignments, their lengths, devices, lists and labels."""

from __future__ import annotations

import math

import pytest
import torch

from assignment_enumeration import BY_SCORE, INF, ORACLE, PARTIAL, SHAPES, is_matching, scores, whole
from structinf.errors import InvalidInputError
from structinf.oracle import GibbsOracle
from structinf_oracles.assignment import Assignment


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
    torch.set_num_threads(3)
    try:
        assert torch.equal(ORACLE.argmax(theta), y)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("oracle", [ORACLE, PARTIAL, BY_SCORE])
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
    with pytest.raises(InvalidInputError, match="the numbers of rows and of columns in use"):
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
        ([[0, 1, 2], [0, 4, 1]], "between 0 and 3, or −1 for an unmatched row, got 4 for row 1 at batch index 1"),
        ([[0, -2, 2], [0, 1, 2]], "got -2 for row 1 at batch index 0"),
        ([[0, 1, 2], [3, 1, 3]], r"rows \[0, 2\] have the same column, 3, at batch index 1"),
        ([[0, 1, 2], [3, 1, -1]], "the whole smaller side, in 3 pairs, got 2 pairs at batch index 1"),
        ([[0, 1], [3, 1]], r"a column, or −1, for each of 3 rows, shape \(..., 3\); got \(2, 2\)"),
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
