"""Alignments with gaps against lists of all alignments, textbook recursions, and known values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import enumerators_paths as listed
from hypergraph_program_assertions import Program, every_query
from structinf.calls.problem import Problem
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.regularizers import SquaredL2
from structinf_oracles.needleman_wunsch import NeedlemanWunsch

pytestmark = pytest.mark.slow

MODES = ("global", "local", "semi_global", "overlap", "dovetail", "extension")
VARIANTS = list(itertools.product(("global", "local"), (False, True)))
variants = pytest.mark.parametrize(("mode", "affine"), VARIANTS)


def make(mode: str, affine: bool) -> NeedlemanWunsch:
    return NeedlemanWunsch(mode=mode, affine=affine)


def shapes(rows: int, columns: int, affine: bool) -> tuple[tuple[int, ...], ...]:
    return (rows, columns), (2, 2) if affine else (2,)


def program(rows: int, columns: int, mode: str, affine: bool, lengths=()) -> Program:
    return Program(
        make(mode, affine),
        shapes(rows, columns, affine),
        lambda n: list(listed.alignments(rows, columns, mode, affine, n)),
        lambda n: listed.alignment_grammar(rows, columns, mode, affine, n),
        lengths,
    )


PROGRAMS = [
    *(program(3, 2, mode, affine, ((3, 2), (3, 1), (1, 2), (1, 1), (2, 2))) for mode, affine in VARIANTS),
    program(1, 1, "global", False),
    program(1, 1, "local", True),
    program(3, 3, "local", False, ((3, 3), (2, 3))),
    program(1, 4, "global", True),
    program(2, 3, "semi_global", True, ((2, 3), (2, 1))),
    program(3, 3, "overlap", True, ((3, 3), (3, 2))),
    program(2, 3, "dovetail", False),
    program(3, 2, "extension", False, ((3, 2), (1, 2))),
]


@every_query(PROGRAMS)
def test_query(query, program) -> None:
    query(program)


# ----------------------------------------------------------------------------- known values


def matches(one: str, other: str, same: float = 1.0, different: float = -1.0) -> Tensor:
    a, b = (torch.tensor(list(text.encode())) for text in (one, other))
    return torch.where(a[:, None] == b, same, different)


def score(oracle: NeedlemanWunsch, match: Tensor, gap) -> float:
    theta = (match[None], torch.tensor(gap)[None])
    return oracle.score(theta, oracle.argmax(theta)).item()


def test_gattaca() -> None:
    oracle, match = NeedlemanWunsch(), matches("GATTACA", "GATTACA")
    assert score(oracle, match, [-1.0, -1.0]) == 7
    y = oracle.argmax((match[None], torch.tensor([[-1.0, -1.0]])))
    assert torch.equal(y[0], torch.eye(7)[None])
    assert y[1].tolist() == [[0, 0]]
    assert oracle.decode(y).tolist() == [[[i, i] for i in range(7)]]


def test_textbook_examples() -> None:
    # The usual example of the method: +1 a match, −1 a mismatch or gap.
    assert score(NeedlemanWunsch(), matches("GATTACA", "GCATGCG"), [-1.0, -1.0]) == 0
    # And of Smith & Waterman's: +3, −3, −2 a gap; GTT-AC with GTTGAC.
    local = NeedlemanWunsch(mode="local")
    match = matches("TGTTACGG", "GGTTGACTA", 3.0, -3.0)
    assert score(local, match, [-2.0, -2.0]) == 13
    pairs = local.decode(local.argmax((match[None], torch.tensor([[-2.0, -2.0]]))))[0]
    assert pairs.tolist() == [[1, 1], [2, 2], [3, 3], [4, 5], [5, 6], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5), (4, 4), (20, 30)])
@pytest.mark.parametrize("affine", [False, True])
def test_numbers_of_alignments(rows: int, columns: int, affine: bool) -> None:
    zeros = tuple(torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes(rows, columns, affine))
    whole, part = make("global", affine), make("local", affine)
    count = math.comb(rows + columns, rows)
    assert whole.count(zeros) == [count]
    assert whole.log_partition(zeros).item() == pytest.approx(math.log(count))
    # Unscored, what lies outside the region makes no difference: as many sets of matches.
    assert part.count(zeros) == [count]
    for mode in MODES[2:]:
        assert make(mode, affine).count(zeros) == [count]


# Row and column elements that have no score at the left, upper, right and lower border of the classical tables.
BORDERS = {
    "global": "", "semi_global": "upper lower", "overlap": "left upper right lower", "dovetail": "left lower",
}  # fmt: skip


def classical(match: np.ndarray, gap: np.ndarray, mode: str) -> float:
    """Gotoh's three tables, in which a gap of either side may follow one of the other."""
    n, m = match.shape
    best, rows, columns = (np.full((n + 1, m + 1), -math.inf) for _ in range(3))
    best[0, 0] = 0
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        if i:
            rows[i, j] = max(max(best[i - 1, j], columns[i - 1, j]) + gap[0, 0], rows[i - 1, j] + gap[0, 1])
        if j:
            columns[i, j] = max(max(best[i, j - 1], rows[i, j - 1]) + gap[1, 0], columns[i, j - 1] + gap[1, 1])
        if i and j:
            best[i, j] = match[i - 1, j - 1] + max(t[i - 1, j - 1] for t in (best, rows, columns))
        borders = BORDERS.get(mode, "")
        if mode == "local" or (j == 0 and "left" in borders) or (i == 0 and "upper" in borders):
            best[i, j] = max(best[i, j], 0)
    last = np.maximum(np.maximum(best, rows), columns)
    if mode in ("local", "extension"):
        return last.max()
    ends = [last[n, m], *(last[:, m] if "right" in borders else ()), *(last[n] if "lower" in borders else ())]
    return max(ends)


@pytest.mark.parametrize(("mode", "affine"), list(itertools.product(MODES, (False, True))))
def test_against_the_classical_recursion(mode: str, affine: bool) -> None:
    generator = np.random.default_rng(0)
    match = generator.standard_normal((6, 7, 9)) - 0.5
    # Extending costs no more than opening; else the classical recursion would open anew.
    gap = -np.sort(generator.random((6, 2, 2)))[..., ::-1]
    if not affine:
        gap[..., 1] = gap[..., 0]
    if mode == "overlap":
        # The classical recursion frees the cheaper side at each end, and the library the longer side.
        gap[:, 1] = gap[:, 0]
    theta = torch.from_numpy(match), torch.from_numpy((gap if affine else gap[..., 0]).copy())
    oracle = make(mode, affine)
    y = oracle.argmax(theta)
    assert oracle.score(theta, y).tolist() == pytest.approx(
        [classical(a, g, mode) for a, g in zip(match, gap, strict=True)]
    )
    for found, expected in zip(oracle.encode(oracle.decode(y), theta), y, strict=True):
        assert torch.equal(found, expected)


# Scores of parasail 1.3.4 for a match of 2, a mismatch of −3, opening a gap of −3 and extending by −1: nw, sw, sg_dx,
# sg, sg_qb_de. Biopython 1.88 gives the same scores, with end gap scores of 0 for the same ends.
SCORES_OF_PARASAIL = {"global": -5, "local": 10, "semi_global": 3, "overlap": 9, "dovetail": 9}


@pytest.mark.parametrize(("mode", "expected"), SCORES_OF_PARASAIL.items())
def test_scores_of_alignment_libraries(mode: str, expected: float) -> None:
    match = matches("TTACGATTAGC", "GATTGCCAATACGA", 2.0, -3.0)
    assert score(make(mode, True), match, [[-3.0, -1.0]] * 2) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "name"),
    [("global", "nw"), ("local", "sw"), ("semi_global", "sg_dx"), ("overlap", "sg"), ("dovetail", "sg_qb_de")],
)
def test_random_sequences_against_parasail(mode: str, name: str) -> None:
    parasail = pytest.importorskip("parasail")
    generator, matrix = np.random.default_rng(0), parasail.matrix_create("ACGT", 2, -3)
    for rows, columns in generator.integers(1, 14, (100, 2)):
        one, other = ("".join(generator.choice(list("ACGT"), size)) for size in (rows, columns))
        known = getattr(parasail, name)(one, other, 3, 1, matrix).score
        if mode in ("overlap", "dovetail"):
            known = max(known, 0)  # overlaps without matches
        assert score(make(mode, True), matches(one, other, 2.0, -3.0), [[-3.0, -1.0]] * 2) == known


@pytest.mark.parametrize("mode", MODES[2:])
def test_free_ends_in_float32_and_at_large_scores(mode: str) -> None:
    match, gap = torch.randn(2, 4, 6), torch.tensor([-0.5, -0.3])
    oracle = make(mode, False)
    exact = oracle.marginals((match.double(), gap.double()[None]))
    for found, expected in zip(oracle.marginals((match, gap[None])), exact, strict=True):
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    best, near = oracle.argmax((match, gap[None])), oracle.marginals((1000 * match, 1000 * gap[None]))
    for found, expected in zip(near, best, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_an_alignment_without_matches_where_ends_are_free() -> None:
    gap = torch.tensor([[[-2.0, -1.0], [-5.0, -5.0]]])
    for mode, counts in (("semi_global", [1, 2]), ("overlap", [0, 0]), ("dovetail", [0, 0]), ("extension", [0, 0])):
        oracle, theta = make(mode, True), (torch.full((1, 3, 2), -math.inf), gap)
        y = oracle.argmax(theta)
        assert not y[0].any()
        assert y[1].tolist() == [[[float(x) for x in counts], [0.0, 0.0]]]
        assert oracle.always_feasible == (mode != "semi_global")
        assert torch.equal(oracle.encode(oracle.decode(y), theta)[1], y[1])


def test_linear_gaps_are_affine_ones_of_one_score() -> None:
    match, gap = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    for mode in ("global", "local"):
        linear, affine = make(mode, False), make(mode, True)
        same = match, gap.unsqueeze(2).expand(3, 2, 2)
        torch.testing.assert_close(linear.log_partition((match, gap)), affine.log_partition(same))
        torch.testing.assert_close(linear.marginals((match, gap))[0], affine.marginals(same)[0])
        torch.testing.assert_close(linear.marginals((match, gap))[1], affine.marginals(same)[1].sum(2))


def test_gap_scores_by_position_are_matches_less() -> None:
    match, one, other = torch.randn(1, 3, 2), torch.randn(1, 3), torch.randn(1, 2)
    oracle = NeedlemanWunsch()
    value = oracle.log_partition((match - one.unsqueeze(2) - other.unsqueeze(1), torch.zeros(1, 2)))
    scores = []
    for y, _ in listed.alignments(3, 2):
        y = torch.from_numpy(y).float()
        scores.append((match[0] * y).sum() + (one[0] * (1 - y.sum(1))).sum() + (other[0] * (1 - y.sum(0))).sum())
    torch.testing.assert_close(value + one.sum() + other.sum(), torch.stack(scores).logsumexp(0)[None])


def test_local_alignments_may_be_empty() -> None:
    for affine in (False, True):
        oracle = make("local", affine)
        assert oracle.always_feasible
        theta = tuple(torch.full((2, *shape), -math.inf) for shape in shapes(2, 3, affine))
        assert all(not t.any() for t in oracle.argmax(theta))
        assert oracle.log_partition(theta).tolist() == [0.0, 0.0]
        assert oracle.decode(oracle.argmax(theta)).tolist() == [[[-1, -1]] * 2] * 2
        # On a tie, the empty one is found.
        assert all(not t.any() for t in oracle.argmax(tuple(torch.zeros_like(t) for t in theta)))
    assert not make("global", False).always_feasible


def test_forbidden_gaps() -> None:
    gap = torch.full((2, 2), -math.inf)
    theta = torch.zeros(2, 3, 3), gap
    assert torch.equal(NeedlemanWunsch().argmax(theta)[0], torch.eye(3).expand(2, 3, 3))
    with pytest.raises(InfeasibleError, match="batch index 1"):
        NeedlemanWunsch().bind(lengths=torch.tensor([[3, 3], [3, 2]])).argmax(theta)
    # Without extensions, gaps are single elements.
    gap = torch.tensor([[[-1.0, -math.inf]] * 2])
    single = NeedlemanWunsch(affine=True)
    expected = sum(y[1][:, 1].sum() == 0 for y in listed.alignments(3, 3, affine=True))
    assert single.count((torch.zeros(1, 3, 3), gap)) == [expected]


# ----------------------------------------------------------------------------- forms


@variants
def test_shared_gap_scores(mode: str, affine: bool) -> None:
    oracle = make(mode, affine)
    match, gap = (torch.randn(*s, dtype=torch.float64) for s in ((4, 3, 3), shapes(1, 1, affine)[1]))
    problem = Problem.build((match, gap), oracle, {})
    assert problem.theta[1].shape == (1, *gap.shape)
    each = match, gap.expand(4, *gap.shape)
    for found, expected in zip(oracle.marginals(problem.theta), oracle.marginals(each), strict=True):
        assert torch.equal(found, expected)
    weight = torch.randn(4, dtype=torch.float64)
    shared, own = oracle.log_partition_vjp(problem.theta, weight), oracle.log_partition_vjp(each, weight)
    assert torch.equal(shared[0], own[0])
    torch.testing.assert_close(shared[1], own[1].sum(0, keepdim=True))
    gap.requires_grad_()
    oracle.smoothed_value((match, gap[None]), SquaredL2()).sum().backward()
    mean = oracle.smoothed_mean(each, SquaredL2())[1].sum(0)
    torch.testing.assert_close(gap.grad, mean)


def test_hamming_cost_counts_half_the_matches_that_differ() -> None:
    oracle = NeedlemanWunsch(affine=True)
    structures = oracle.enumerate(shapes(3, 2, True))
    gold = tuple(t[:1] for t in structures)
    cost = oracle.hamming_cost(gold)
    every = tuple(c.expand_as(t) for c, t in zip(cost, structures, strict=True))
    found = oracle.score(every, structures) - oracle.score(cost, gold)
    torch.testing.assert_close(found, 0.5 * (structures[0] != gold[0]).double().sum((1, 2)))


def test_input_is_left_alone_and_may_be_strided() -> None:
    match, gap = torch.randn(4, 3, 2).permute(2, 1, 0), torch.randn(2, 2).T
    kept = match.clone(), gap.clone()
    oracle = NeedlemanWunsch()
    for found, expected in zip(oracle.marginals((match, gap)), oracle.marginals(kept), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(match, kept[0])
    assert torch.equal(gap, kept[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "semiglobal"}, r'mode must be "global", "local", .* or "extension", got \'semiglobal\''),
        ({"affine": "yes"}, r"affine must be True or False, got 'yes'"),
    ],
)
def test_wrong_options_are_refused(options, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        NeedlemanWunsch(**options)


@pytest.mark.parametrize(
    ("theta", "options", "instance_data", "message"),
    [
        (
            ((2, 3, 3), (2, 3)),
            {},
            {},
            r"theta\[1\] must have shape \(2,\) .* affine=False, the scores of skipping .* got \(3,\)",
        ),
        (
            ((2, 3, 3), (2, 2, 1)),
            {"affine": True},
            {},
            r"theta\[1\] must have shape \(2, 2\).*affine=True.* got \(2, 1\)",
        ),
        (((2, 3, 3), (2,)), {"affine": True}, {}, r"theta\[1\]: .* needs at least 2 dimensions"),
        (((2, 3, 3),), {}, {}, r"takes a tuple of 2 tensors"),
        (((2, 3, 0), (2,)), {}, {}, r"at least one row and one column, got shape \(3, 0\)"),
        (((2, 3, 3), (2,)), {}, {"lengths": [[3, 3], [0, 3]]}, r"lengths must lie between 1 and 3 .* batch index 1"),
        (((2, 3, 3), (2,)), {}, {"lengths": [[4, 3], [1, 3]]}, r"lengths must lie between 1 and 3 .* batch index 0"),
    ],
)
def test_wrong_input_is_refused(theta, options, instance_data, message: str) -> None:
    tensors = tuple(torch.zeros(shape) for shape in theta)
    with pytest.raises(InvalidInputError, match=message):
        Problem.build(tensors, NeedlemanWunsch(**options), instance_data)


def test_wrong_labels_are_refused() -> None:
    oracle = NeedlemanWunsch().bind(lengths=torch.tensor([[2, 3], [2, 3]]))
    like, pad = (torch.zeros(2, 3, 3), torch.zeros(2, 2)), [-1, -1]
    for wrong, message in (
        ([[0, 0], [2, 2], pad], "a cell lies outside the grid in use at batch index 1"),
        ([[0, 0], pad, [1, 1]], "a cell follows the padding at batch index 1"),
        ([[0, 1], [1, 1], pad], "matches must rise in rows and in columns at batch index 1"),
        ([[1, 0], [0, 1], pad], "matches must rise in rows and in columns at batch index 1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            oracle.encode(torch.tensor([[pad] * 3, wrong]), like)
    match, gap = oracle.encode(torch.tensor([[pad] * 3, [[0, 1], pad, pad]]), like)
    assert match.sum((1, 2)).tolist() == [0, 1]
    assert gap.tolist() == [[2, 3], [1, 2]]
