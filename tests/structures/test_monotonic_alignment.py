"""Monotonic alignments, against enumeration, counts, and the search of Glow-TTS in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import enumerators_subsets as plain
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.monotonic_alignment import MonotonicAlignment

pytestmark = pytest.mark.slow

INF = math.inf


def program(rows, columns, surjective, lengths):
    return Program(
        MonotonicAlignment(surjective=surjective),
        (rows, columns),
        lambda own: list(plain.monotonic_alignment(rows, columns, surjective, own)),
        lambda own: plain.monotonic_alignment_grammar(rows, columns, surjective, own),
        lengths=lengths,
    )


PROGRAMS = [
    program(3, 4, False, [(3, 4), (1, 1), (2, 4), (3, 2), (1, 3)]),
    program(4, 2, False, [(4, 1), (4, 2), (2, 2)]),
    program(1, 1, False, [(1, 1), (1, 1)]),
    program(3, 5, True, [(3, 5), (3, 3), (1, 1), (2, 4), (1, 5)]),
    program(3, 3, True, [(3, 3), (2, 3), (2, 2)]),
]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


# ----------------------------------------------------------------------------- known values


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("m", range(1, 6))
def test_counts(n, m):
    theta = torch.zeros(1, n, m)
    assert MonotonicAlignment().count(theta) == [math.comb(n + m - 1, m)]
    if n <= m:
        assert MonotonicAlignment(surjective=True).count(theta) == [math.comb(m - 1, n - 1)]


def search(value):
    """Kim et al. 2020, Algorithm 1: the row of each column, of which the next goes on by at most one."""
    n, m = value.shape
    q = np.full((n, m), -np.inf)
    for j in range(m):
        for i in range(min(j + 1, n)):
            before = (
                [0.0] if (i, j) == (0, 0) else [q[i - 1, j - 1] if i and j else -np.inf, q[i, j - 1] if j else -np.inf]
            )
            q[i, j] = max(before) + value[i, j]
    rows = [n - 1]
    for j in reversed(range(1, m)):
        i = rows[-1]
        rows.append(i - 1 if i and q[i - 1, j - 1] >= q[i, j - 1] else i)
    return rows[::-1]


def test_monotonic_alignment_search():
    theta = torch.randn(6, 9, 30, dtype=torch.float64)
    lengths = torch.tensor([[9, 30], [9, 9], [1, 30], [4, 17], [8, 9], [9, 29]])
    oracle = MonotonicAlignment(surjective=True).bind(lengths=lengths)
    found = oracle.decode(oracle.argmax(theta))
    for b, (n, m) in enumerate(lengths.tolist()):
        assert found[b].tolist() == search(theta[b, :n, :m].numpy()) + [-1] * (30 - m)


def test_ends_by_forbidden_cells():
    """Free alignments that must start in the first row and end in the last."""
    theta = torch.zeros(1, 4, 6)
    theta[0, 1:, 0] = theta[0, :-1, -1] = -INF
    assert MonotonicAlignment().count(theta) == [math.comb(4 + 4 - 1, 4)]


def test_ties_go_to_the_lowest_row_from_the_last_column_backwards():
    theta = torch.zeros(1, 3, 5)
    assert MonotonicAlignment().decode(MonotonicAlignment().argmax(theta)).tolist() == [[0, 0, 0, 0, 0]]
    surjective = MonotonicAlignment(surjective=True)
    assert surjective.decode(surjective.argmax(theta)).tolist() == [[0, 0, 0, 1, 2]]
    theta[0, 0, 3] = -1
    assert MonotonicAlignment().decode(MonotonicAlignment().argmax(theta)).tolist() == [[0, 0, 0, 1, 1]]


def test_infeasible_alignments():
    theta = torch.zeros(2, 3, 4)
    theta[1, :, 2] = -INF
    theta[1, :2, 0] = theta[1, 2, 3] = -INF
    for oracle in (MonotonicAlignment(), MonotonicAlignment(surjective=True)):
        with pytest.raises(InfeasibleError, match="batch index 1"):
            oracle.argmax(theta)


def test_columns_sum_up_to_one():
    theta = torch.randn(3, 20, 50)
    for surjective in (False, True):
        mean = MonotonicAlignment(surjective=surjective).marginals(theta)
        torch.testing.assert_close(mean.sum(1), torch.ones(3, 50))


# ----------------------------------------------------------------------------- labels and costs


def test_labels_are_rows():
    oracle = MonotonicAlignment().bind(lengths=torch.tensor([[3, 3], [2, 4]]))
    labels = torch.tensor([[0, 2, 2, -1], [1, 1, 1, 1]])
    y = oracle.encode(labels, torch.zeros(2, 3, 4))
    assert y.sum((1, 2)).tolist() == [3, 4]
    assert torch.equal(oracle.decode(y), labels)


@pytest.mark.parametrize(
    ("labels", "surjective", "message"),
    [
        ([0, 1, 0], False, "a row is below the row of the column before"),
        ([0, 3, 3], False, "a row is not in use"),
        ([0, -1, 2], False, "a row is not in use"),
        ([0, 2, 2], True, "a row is skipped"),
        ([1, 1, 2], True, "a row is skipped"),
        ([0, 1, 1], True, "a row is skipped"),
    ],
)
def test_labels_that_name_no_alignment(labels, surjective, message):
    with pytest.raises(InvalidInputError, match=f"{message} at batch index 1"):
        MonotonicAlignment(surjective=surjective).encode(torch.tensor([[0, 1, 2], labels]), torch.zeros(2, 3, 3))


def test_hamming_distances_count_columns():
    oracle = MonotonicAlignment()
    gold, other = (oracle.encode(torch.tensor([rows]), torch.zeros(1, 3, 4)) for rows in ([0, 1, 1, 2], [0, 0, 1, 1]))
    assert (oracle.hamming_cost(gold) * (other - gold)).sum() == 2


# ----------------------------------------------------------------------------- refusals


def test_shapes_that_do_not_fit():
    with pytest.raises(InvalidInputError, match="at least one row and one column"):
        MonotonicAlignment().validate(torch.zeros(1, 0, 3))
    with pytest.raises(
        InvalidInputError, match=r"a column for each row, got 4 rows and 3 columns .*index 0; transpose"
    ):
        MonotonicAlignment(surjective=True).validate(torch.zeros(1, 4, 3))
    oracle = MonotonicAlignment(surjective=True).bind(lengths=torch.tensor([[3, 3], [3, 2]]))
    with pytest.raises(InvalidInputError, match="got 3 rows and 2 columns at batch index 1"):
        oracle.validate(torch.zeros(2, 4, 3))
    with pytest.raises(InvalidInputError, match=r"lengths must lie between 1 and 4 \(n = 4 rows\)"):
        MonotonicAlignment().bind(lengths=torch.tensor([[0, 3]])).validate(torch.zeros(1, 4, 3))
    with pytest.raises(InvalidInputError, match="surjective must be True or False, got None"):
        MonotonicAlignment(surjective=None)
    with pytest.raises(InvalidInputError, match=r"shape \(..., 3\); got \(1, 4\)"):
        MonotonicAlignment().encode(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, 3))
