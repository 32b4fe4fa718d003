"""Launches and synchronisations of public calls through Triton kernels.

The forward pass of a dynamic program takes at most 12 launches and 1 synchronisation.
"""

from __future__ import annotations

import pytest

import structinf as si
from launch_cases import CASES, count
from launch_counter import LaunchCounter, on_device
from structinf.parts import as_tuple

FORWARD = ("map", "log_partition", "marginals")
PROGRAMS = (
    "chain", "chain with lengths", "chain of edges", "semi_markov", "semi_markov with pairs",
    "semi_markov with lengths", "semi_markov with boundaries", "semi_markov with boundaries and lengths", "dtw",
    "dtw with lengths", "needleman_wunsch", "needleman_wunsch with lengths", "monotonic_alignment",
    "monotonic_alignment with lengths", "binary_tree", "binary_tree with lengths", "projective_tree",
    "projective_tree with lengths", "correlated_subset", "knapsack", "grid_path", "arborescence",
    "arborescence with lengths", "spanning_tree", "spanning_tree with lengths", "subset", "subset with lengths",
    "subset with sizes", "subset with sizes and lengths", "subset of at most k", "subset of at most k with lengths",
    "correlated_subset with lengths", "correlated_subset with sizes", "correlated_subset with sizes and lengths",
    "spanning_tree of graphs", "bits with lengths", "categorical",
)  # fmt: skip
DEFAULT = {("chain with lengths", "map"), ("dtw with lengths", "log_partition")}
DEFAULT |= {("subset with sizes and lengths", "log_partition")}
DEFAULT |= {("semi_markov with boundaries", call) for call in FORWARD}

# Launches and synchronisations of other calls. Knapsacks read their instance data to build the hypergraph, with the
# checks of the scores; their losses and k best wait again.
CEILINGS: dict[str, dict[str, tuple[int, int]]] = {
    "chain": {
        "entropy": (11, 1),
        "marginals and backward": (9, 1),
        "loss and backward": (70, 1),
        "loss of labels and backward": (56, 1),
    },
    "chain with lengths": {"entropy": (13, 1)},
    "dtw with lengths": {"entropy": (13, 1)},
    "needleman_wunsch with lengths": {"entropy": (19, 1)},
    "binary_tree with lengths": {"entropy": (17, 1)},
    "spanning_tree with lengths": {"entropy": (15, 1)},
    "categorical": {"entropy": (12, 1)},
    "semi_markov": {"loss and backward": (103, 1), "loss of labels and backward": (76, 1)},
    "semi_markov with boundaries": {
        "loss and backward": (191, 1),
        "loss of labels and backward": (154, 1),
        "marginals and backward": (12, 1),
    },
    "needleman_wunsch": {"marginals and backward": (13, 1)},
    "dtw": {
        "loss and backward": (96, 1),
        "loss of labels and backward": (75, 1),
        "marginals and backward": (8, 1),
    },
    "binary_tree": {"loss and backward": (100, 1), "loss of labels and backward": (74, 1)},
    "projective_tree": {
        "marginals and backward": (12, 1),
        "loss and backward": (83, 1),
        "loss of labels and backward": (71, 1),
    },
    "knapsack with data": {
        **dict.fromkeys(("map", "log_partition", "marginals", "samples"), (9, 1)),
        **dict.fromkeys(("infer map", "entropy"), (13, 1)),
        **dict.fromkeys(("loss", "log_prob"), (40, 2)),
        "k best": (4, 2),
    },
    "arborescence": {
        "marginals and backward": (12, 1),
        "loss and backward": (73, 1),
        "loss of labels and backward": (60, 1),
    },
    "subset": {"sparsemap": (6, 1)},
    "subset with sizes": {"sparsemap": (9, 1)},
    "subset with sizes and lengths": {"map": (8, 1), "sparsemap": (10, 1)},
    "spanning_tree of edges": {
        "map": (7, 1),
        "log_partition": (8, 1),
        "marginals": (9, 1),
        "marginals and backward": (17, 1),
    },
    "spanning_tree": {"marginals and backward": (14, 1), "loss and backward": (108, 1)},
}


@pytest.mark.parametrize(
    ("case", "call"),
    [
        pytest.param(case, call, marks=() if (case, call) in DEFAULT else pytest.mark.full)
        for case in PROGRAMS
        for call in FORWARD
    ],
)
def test_forward_passes(case: str, call: str) -> None:
    found = count(case, call)
    assert found.launches <= 12, found.report()
    assert found.synchronisations <= 1, found.report()
    assert found.copies == 0, found.report()
    assert found.triton_launches > 0


QUERIES = {"samples": 14, "k best": 18, "infer map": 18, "log_prob": 130}
"""The largest numbers of launches of queries, which wait once."""


@pytest.mark.parametrize("call", QUERIES)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in ("chain with lengths", "dtw") else pytest.mark.full) for case in PROGRAMS],
)
def test_queries_wait_once(case: str, call: str) -> None:
    if call == "k best" and "k" in CASES[case][2]:
        call = "infer map"  # the data k of the oracle and the k of the call have one name
    found = count(case, call)
    assert found.launches <= QUERIES[call], found.report()
    assert found.synchronisations <= 1, found.report()


@pytest.mark.parametrize(
    ("case", "call"),
    [
        pytest.param(case, call, marks=() if (case, call) == ("chain", "loss and backward") else pytest.mark.full)
        for case in CEILINGS
        for call in CEILINGS[case]
    ],
)
def test_work_of_a_call(case: str, call: str) -> None:
    launches, synchronisations = CEILINGS[case][call]
    found = count(case, call)
    assert found.launches <= launches, found.report()
    assert found.synchronisations <= synchronisations, found.report()
    assert found.triton_launches > 0


@pytest.mark.full
@pytest.mark.parametrize("case", ["knapsack with data", *(case for case in PROGRAMS if CASES[case][2])])
@pytest.mark.parametrize("relaxation", ["map", "marginals"])
def test_forward_passes_with_data_on_the_cpu(case: str, relaxation: str) -> None:
    scores, options, data = CASES[case]
    theta, oracle = on_device(scores), si.get_oracle(case.partition(" ")[0], **options)
    for given in (data, {name: value.tolist() for name, value in data.items()}):
        for _ in range(2):  # the first call copies the tables of the graph
            with LaunchCounter() as found:
                si.relax(theta, oracle, relaxation, **given)
        assert found.launches <= 12, found.report()
        assert found.synchronisations <= 1, found.report()


@pytest.mark.full
@pytest.mark.parametrize("call", ["map", "marginals"])
def test_bound_data_of_knapsacks_are_read_once(call: str) -> None:
    scores, _, data = CASES["knapsack with data"]
    theta = on_device(scores)
    with LaunchCounter():
        oracle = si.get_oracle("knapsack").bind(**{name: on_device(value) for name, value in data.items()})
        si.relax(theta, oracle, call)
    with LaunchCounter() as found:
        si.relax(theta, oracle, call)
    assert found.launches <= 12, found.report()
    assert found.synchronisations <= 1, found.report()


@pytest.mark.parametrize(
    "case", ["chain", *(pytest.param(case, marks=pytest.mark.full) for case in ("dtw", "binary_tree"))]
)
@pytest.mark.parametrize("call", ["marginals and backward", "loss and backward", "loss of labels and backward"])
def test_calls_without_checks_do_not_wait(case: str, call: str) -> None:
    with si.unchecked():
        found = count(case, call)
    assert found.synchronisations == found.copies == 0, found.report()


@pytest.mark.parametrize(
    "case", ["assignment", *(pytest.param(case, marks=pytest.mark.full) for case in (*PROGRAMS, "knapsack with data"))]
)
def test_work_of_a_round_of_sparsemap(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two calls of the argmax: the kernel, and a read of its report with the checks of the oracle."""
    scores, options, data = CASES[case]
    theta, oracle = on_device(scores), si.get_oracle(case.partition(" ")[0], **options)
    marks: list[tuple[int, int, int]] = []
    argmax = type(oracle).argmax

    def marked(self: si.Oracle, scores: si.Parts) -> si.Parts:
        before = counter.launches, counter.synchronisations
        y = argmax(self, scores)
        marks.append((*before, len(as_tuple(y)[0])))
        marks.append((counter.launches, counter.synchronisations, len(as_tuple(y)[0])))
        return y

    monkeypatch.setattr(type(oracle), "argmax", marked)
    with LaunchCounter() as counter:
        si.infer(theta, oracle, "sparsemap", **{name: on_device(value) for name, value in data.items()})
    rounds = list(zip(marks[3:-1:2], marks[4:-1:2], strict=True))  # the first one also writes the tolerances
    assert case != "assignment" or len(rounds) > 1
    for end, start in rounds:
        assert start[1] - end[1] <= 1, counter.report()
        if start[2] == end[2]:  # no instance leaves the batch
            assert start[0] - end[0] <= 3, counter.report()
