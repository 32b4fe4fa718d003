"""Step patterns, open ends and bounds of the length of warping paths, against lists of all paths."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch

import enumerators_paths as listed
import structinf
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.regularizers import SquaredL2
from structinf_oracles.common.step_patterns import PATTERNS, check_pattern
from structinf_oracles.dtw import DTW

pytestmark = pytest.mark.slow

KNIGHTS = (((1, 1, 1),), ((1, 2, 3),), ((2, 1, 3),))


def program(rows, columns, pattern, lengths=(), **options):
    steps = PATTERNS.get(pattern, pattern)
    renamed = {"bounds" if key == "length_bounds" else key: value for key, value in options.items()}
    return Program(
        DTW(step_pattern=pattern, **options),
        (rows, columns),
        lambda n: list(listed.warping_paths(rows, columns, steps, n, **renamed)),
        lambda n: listed.warping_grammar(rows, columns, steps, n, **renamed),
        lengths,
    )


PROGRAMS = [
    program(3, 2, "symmetricP1", ((3, 2), (2, 2))),
    program(2, 3, "asymmetric", ((2, 3), (1, 2)), open_begin=True, open_end=True),
    program(3, 3, "symmetric2", ((3, 3), (2, 3)), length_bounds=(3, 4)),
]


@every_query(PROGRAMS)
def test_query(query, program) -> None:
    query(program)


# ----------------------------------------------------------------------------- values


COST = torch.tensor([[(7 * i + 3 * j * j) % 11 for j in range(6)] for i in range(5)], dtype=torch.float64)

# Distances of dtw-python 1.9.0 for this cost.
DISTANCES = [
    ({"step_pattern": "symmetric1"}, 18.0),
    ({"step_pattern": "symmetric2"}, 20.0),
    ({"step_pattern": "symmetricP05"}, 40.0),
    ({"step_pattern": "symmetricP1"}, 47.0),
    ({"step_pattern": "symmetricP2"}, 47.0),
    ({"step_pattern": "asymmetric"}, 18.0),
    ({"step_pattern": "asymmetricP05"}, 18.666666666666664),
    ({"step_pattern": "asymmetricP1"}, 21.5),
    ({"step_pattern": "asymmetricP2"}, 21.333333333333332),
    ({"step_pattern": "mori2006"}, 75.0),
    ({"step_pattern": "asymmetric", "open_end": True}, 10.0),
    ({"step_pattern": "asymmetric", "open_begin": True}, 14.0),
    ({"step_pattern": "asymmetric", "open_begin": True, "open_end": True}, 10.0),
    ({"step_pattern": "symmetric2", "window": "itakura"}, 42.0),
    ({"step_pattern": "symmetric2", "window": "sakoe_chiba", "band": 1}, 33.0),
    ({"step_pattern": "symmetric1", "window": "slanted_band", "band": 1}, 25.0),
]


@pytest.mark.parametrize(("options", "expected"), DISTANCES)
def test_distances_of_dtw_python(options, expected) -> None:
    value = structinf.infer(-COST, "dtw", "map", **options).value
    assert value.item() == pytest.approx(-expected, abs=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", PATTERNS)
def test_random_costs_against_dtw_python(name: str) -> None:
    peer = pytest.importorskip("dtw")
    generator = np.random.default_rng(0)
    for n, m in generator.integers(1, 9, (30, 2)):
        cost = generator.random((n, m))
        theta, oracle = torch.from_numpy(-cost)[None], DTW(step_pattern=name)
        try:
            known = peer.dtw(cost, step_pattern=getattr(peer.stepPattern, name))
        except ValueError:  # no path
            with pytest.raises(InfeasibleError):
                oracle.argmax(theta)
            continue
        y = oracle.argmax(theta)
        assert oracle.score(theta, y).item() == pytest.approx(-known.distance)
        cells = oracle.decode(y)[0]
        assert cells[cells[:, 0] >= 0].tolist() == [list(cell) for cell in zip(known.index1, known.index2, strict=True)]


@pytest.mark.parametrize("name", PATTERNS)
def test_paths_of_each_pattern(name: str) -> None:
    for n, m in ((1, 2), (3, 2), (4, 3)):
        expected = list(listed.warping_paths(n, m, PATTERNS[name]))
        oracle, theta = DTW(step_pattern=name), torch.randn(1, n, m, dtype=torch.float64)
        if not expected:
            for ask in (oracle.argmax, oracle.count, lambda t, o=oracle: o.topk(t, 2)):
                with pytest.raises(InfeasibleError, match=rf"no path for these sizes with step_pattern='{name}'"):
                    ask(theta)
            continue
        y = torch.from_numpy(np.stack([y for (y,) in expected]))
        torch.testing.assert_close(oracle.log_partition(theta), (theta * y).sum((1, 2)).logsumexp(0, keepdim=True))
        assert oracle.count(theta) == [len(y)]
        torch.testing.assert_close(oracle.encode(oracle.decode(y), y), y)
        torch.testing.assert_close(
            oracle.log_prob(theta.expand_as(y), y), (theta * y).sum((1, 2)) - oracle.log_partition(theta)
        )


def test_lengths_without_path_are_infeasible() -> None:
    theta, lengths = torch.randn(3, 3, 6), [[3, 6], [3, 4], [2, 3]]
    with pytest.raises(InfeasibleError, match=r"no path for lengths \[3, 6\] .* at batch index 0"):
        structinf.relax(theta, "dtw", "marginals", step_pattern="symmetricP1", lengths=lengths)
    mean = structinf.relax(theta, "dtw", "marginals", step_pattern="symmetricP1", lengths=lengths, on_infeasible="zero")
    assert mean.flatten(1).any(1).tolist() == [False, True, True]


def test_open_ends_are_the_best_of_all_ranges() -> None:
    theta = torch.randn(2, 3, 5, dtype=torch.float64)
    whole = DTW(open_begin=True, open_end=True)
    values = [DTW().log_partition(theta[:, :, a:b]) for a, b in itertools.combinations(range(6), 2)]
    torch.testing.assert_close(whole.log_partition(theta), torch.stack(values).logsumexp(0))
    for option, ranges in (("open_begin", [(a, 5) for a in range(5)]), ("open_end", [(0, b) for b in range(1, 6)])):
        values = [DTW().log_partition(theta[:, :, a:b]) for a, b in ranges]
        torch.testing.assert_close(DTW(**{option: True}).log_partition(theta), torch.stack(values).logsumexp(0))
    # A band that excludes the last cell is no error with an open end.
    near = DTW(open_end=True, band=1).argmax(theta)
    assert not near[:, :, 4].any()
    with pytest.raises(InvalidInputError, match="at least 2"):
        DTW(open_begin=True, band=1).argmax(theta)


def test_bounds_of_the_length() -> None:
    theta = torch.randn(1, 4, 5, dtype=torch.float64)
    counts = []
    for length in range(5, 9):
        oracle = DTW(length_bounds=(length, length))
        assert oracle.argmax(theta).sum() == length
        counts += oracle.count(theta)
    assert [sum(counts)] == DTW().count(theta) == DTW(length_bounds=(1, 99)).count(theta)
    torch.testing.assert_close(DTW(length_bounds=(1, 8)).marginals(theta), DTW().marginals(theta))
    with pytest.raises(InfeasibleError, match="no path for these sizes"):
        DTW(length_bounds=(1, 4)).argmax(theta)
    with pytest.raises(InvalidInputError, match="visits at most 8 cells, fewer than the least number 9"):
        DTW(length_bounds=(9, 9)).argmax(theta)


# ----------------------------------------------------------------------------- relaxations, dtypes, windows


@pytest.mark.parametrize("options", [{"step_pattern": "symmetric2"}, {"open_begin": True, "open_end": True}])
def test_relaxations_against_the_list(options) -> None:
    torch.manual_seed(0)
    theta = torch.randn(2, 3, 4, dtype=torch.float64)
    solution = structinf.infer(theta, "dtw", "sparsemap", **options)
    steps = PATTERNS[options.get("step_pattern", "symmetric1")]
    ends = {key: value for key, value in options.items() if key != "step_pattern"}
    y = torch.from_numpy(np.stack([y for (y,) in listed.warping_paths(3, 4, steps, **ends)]))
    # Optimality: no structure scores more at the gradient θ − μ than μ itself.
    gradient = theta - solution.mean
    best = (gradient.unsqueeze(1) * y).sum((2, 3)).amax(1)
    torch.testing.assert_close(best, (gradient * solution.mean).sum((1, 2)), rtol=1e-4, atol=1e-4)
    leaf = theta.clone().requires_grad_()
    for relaxation in ("sparsemap", "marginals"):
        relax = partial(structinf.relax, oracle="dtw", relaxation=relaxation, **options)
        assert torch.autograd.gradcheck(relax, leaf, atol=1e-3, fast_mode=True)
    gold = structinf.relax(torch.randn(2, 3, 4, dtype=torch.float64), "dtw", "map", **options)
    assert (structinf.FenchelYoungLoss("dtw", "marginals", **options)(theta, gold) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_narrow_dtypes_and_large_scores(dtype) -> None:
    theta = torch.randn(2, 4, 5, dtype=torch.float64).to(dtype)
    for options in ({"step_pattern": "asymmetricP1"}, {"open_end": True}, {"length_bounds": (5, 6)}):
        found = structinf.relax(theta, "dtw", "marginals", **options)
        assert found.dtype == dtype
        expected = structinf.relax(theta.double(), "dtw", "marginals", **options)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3 if dtype == torch.float16 else 1e-5)
    theta = 1000 * theta.float()
    near, best = (structinf.relax(theta, "dtw", name, step_pattern="symmetric2") for name in ("marginals", "map"))
    torch.testing.assert_close(near, best, rtol=0, atol=1e-3)


@pytest.mark.parametrize("window", [None, "slanted_band"])
@pytest.mark.parametrize(
    "options", [{}, {"open_end": True}, {"step_pattern": "symmetric2"}, {"length_bounds": (1, 7)}], ids=str
)
def test_bands_of_instances_replace_the_option(options, window) -> None:
    theta = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = structinf.get_oracle("dtw", window=window, **options)
    data = {"band": torch.tensor([1, 3])}
    for band in (0, 1, 4):
        oracle = structinf.get_oracle("dtw", band=band, window=window, **options)
        for relaxation in ("map", "marginals", "sparsemap"):
            torch.testing.assert_close(
                structinf.relax(theta, oracle, relaxation, **data), structinf.relax(theta, expected, relaxation, **data)
            )
        assert structinf.count(theta, oracle, **data) == structinf.count(theta, expected, **data)
        for query in (structinf.entropy, structinf.log_partition):
            torch.testing.assert_close(query(theta, oracle, **data), query(theta, expected, **data))
        best = structinf.topk(theta, oracle, 3, **data)
        torch.testing.assert_close(best.scores, structinf.topk(theta, expected, 3, **data).scores)
        one = {"band": data["band"][1:]}
        support = structinf.Gibbs(theta[1:], oracle, **one).enumerate_support()
        assert len(support) == structinf.count(theta[1:], expected, **one)[0]


def test_windows_and_patterns_together() -> None:
    theta = torch.randn(2, 5, 6, dtype=torch.float64)
    window = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(1)) < 0.8
    window[:, range(5), range(5)] = window[:, -1] = True
    oracle, forbidden = DTW(step_pattern="symmetric2").bind(window=window), theta.masked_fill(~window, -torch.inf)
    free = DTW(step_pattern="symmetric2")
    for omega in (SquaredL2(),):
        assert torch.equal(oracle.smoothed_mean(theta, omega), free.smoothed_mean(forbidden, omega))
    assert torch.equal(oracle.argmax(theta), free.argmax(forbidden))
    y = DTW(step_pattern="symmetric2", window="itakura").enumerate((4, 4))
    assert len(y) == DTW(window="itakura").count(torch.zeros(1, 4, 4))[0]
    assert DTW(step_pattern="symmetric2").argmax(theta[:0]).shape == (0, 5, 6)


# ----------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_pattern": "symmetric3"}, "step_pattern must be one of symmetric1, .* got 'symmetric3'"),
        ({"step_pattern": ()}, "step_pattern must be a name or a sequence of steps"),
        ({"step_pattern": [[(1, 1)]]}, "step_pattern must be a name or a sequence of steps"),
        ({"step_pattern": [[(1, -1, 1)]]}, r"the move \(1, -1, 1\) must go down and right"),
        ({"step_pattern": [[(0, 0, 1)]]}, "must go down and right"),
        ({"step_pattern": [[(1, 1, 0)]]}, "the weight of the move .* must be a finite number above 0"),
        ({"step_pattern": [[(1, 0, 1)], [(1, 0, 1), (1, 0, 2)]]}, "visit the same cells"),
        ({"step_pattern": [[(1, 0, 1)], [(1, 0, 2)]]}, "visit the same cells"),
        ({"open_end": 1}, "open_end must be True or False"),
        ({"length_bounds": (3, 2)}, "1 ≤ least ≤ most"),
        ({"length_bounds": 3}, "length_bounds must be None or two integers"),
    ],
)
def test_wrong_options_are_refused(options, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DTW(**options)


def test_custom_patterns_are_lists_or_tuples() -> None:
    as_lists = DTW(step_pattern=[[list(move) for move in step] for step in KNIGHTS])
    assert as_lists == DTW(step_pattern=KNIGHTS)
    theta = torch.randn(1, 4, 4)
    assert as_lists.count(theta) == [len(list(listed.warping_paths(4, 4, KNIGHTS)))]
    for pattern in PATTERNS.values():
        assert check_pattern(pattern) == pattern


def test_labels_that_are_no_path_of_the_pattern() -> None:
    pad = [-1, -1]
    for oracle, cells, message in (
        (
            DTW(step_pattern="symmetricP1"),
            [[0, 0], [0, 1], [1, 2], [2, 2], pad],
            "must form a path by the step pattern",
        ),
        (DTW(length_bounds=(3, 3)), [[0, 0], [0, 1], [1, 2], [2, 2], pad], "must form a path by the step pattern"),
        (DTW(open_begin=True), [[1, 0], [2, 1], [2, 2], pad, pad], "must start in row 0"),
        (DTW(open_end=True), [[0, 0], [1, 1], [1, 2], pad, pad], "must end in the last row"),
        (DTW(open_end=True), [[0, 0], [2, 1], [1, 1], [2, 2], pad], "must form a path"),
    ):
        with pytest.raises(InvalidInputError, match=f"{message}.*batch index 0"):
            oracle.encode(torch.tensor([cells]), torch.zeros(1, 3, 3))
    y = DTW(open_begin=True).encode(torch.tensor([[[0, 1], [1, 2], [2, 2], pad, pad]]), torch.zeros(1, 3, 3))
    assert y.nonzero()[:, 1:].tolist() == [[0, 1], [1, 2], [2, 2]]


def test_weighted_cells_have_no_hamming_cost() -> None:
    y = torch.eye(3)[None]
    assert DTW(open_end=True).hamming_cost(y).shape == (1, 3, 3)
    assert DTW(open_end=True).has_binary_parts(y)
    assert not DTW(step_pattern="symmetric2").has_binary_parts(y)
    with pytest.raises(UnsupportedError, match="no Hamming cost with step_pattern='symmetric2'"):
        DTW(step_pattern="symmetric2").hamming_cost(y)
