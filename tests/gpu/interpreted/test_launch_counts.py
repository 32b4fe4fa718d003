"""Launches and synchronisations of public calls through Triton kernels: at most 12 and 1 in most forward passes."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from launch_cases import count
from launch_counter import LaunchCounter, on_device
from structinf.parts import as_tuple

# Launches and synchronisations of each call.
CEILINGS: dict[str, dict[str, tuple[int, int]]] = {
    "chain": {
        "map": (12, 1),
        "marginals": (7, 1),
        "marginals and backward": (12, 1),
        "loss and backward": (75, 1),
        "loss of labels and backward": (62, 1),
    },
    "semi_markov": {
        "loss and backward": (125, 1),
        "loss of labels and backward": (100, 1),
        "map": (12, 1),
        "marginals": (12, 1),
        "marginals and backward": (16, 1),
    },
    "semi_markov with boundaries": {
        "loss and backward": (209, 1),
        "loss of labels and backward": (175, 1),
        "map": (34, 1),
        "marginals": (31, 1),
        "marginals and backward": (55, 1),
    },
    "needleman_wunsch": {"map": (9, 1), "marginals": (9, 1), "marginals and backward": (14, 1)},
    "monotonic_alignment": {"marginals": (7, 1)},
    "dtw": {
        "loss and backward": (92, 1),
        "loss of labels and backward": (74, 1),
        "map": (6, 1),
        "marginals": (7, 1),
        "marginals and backward": (10, 1),
    },
    "binary_tree": {
        "map": (12, 1),
        "marginals": (12, 1),
        "loss and backward": (105, 1),
        "loss of labels and backward": (85, 1),
    },
    "projective_tree": {
        "map": (12, 1),
        "marginals": (12, 1),
        "marginals and backward": (16, 1),
        "loss and backward": (86, 1),
        "loss of labels and backward": (73, 1),
    },
    "arborescence": {
        "marginals": (12, 1),
        "marginals and backward": (16, 1),
        "loss and backward": (77, 1),
        "loss of labels and backward": (64, 1),
    },
    "spanning_tree": {
        "map": (12, 1),
        "marginals": (12, 1),
        "marginals and backward": (21, 1),
        "loss and backward": (108, 1),
    },
}


@pytest.mark.parametrize(
    ("case", "call"),
    [
        pytest.param(case, call, marks=() if case == "chain" or call == "map" else pytest.mark.full)
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


@pytest.mark.parametrize(
    "case", ["chain", *(pytest.param(case, marks=pytest.mark.full) for case in ("dtw", "binary_tree"))]
)
@pytest.mark.parametrize("call", ["marginals and backward", "loss and backward", "loss of labels and backward"])
def test_calls_without_checks_do_not_wait(case: str, call: str) -> None:
    with si.unchecked():
        found = count(case, call)
    assert found.synchronisations == found.copies == 0, found.report()


@pytest.mark.parametrize("name", ["assignment", pytest.param("chain", marks=pytest.mark.full)])
def test_work_of_a_round_of_sparsemap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two calls of the argmax: the kernel, and a read of its report with the checks of the oracle."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 3, 3)] if name == "assignment" else [(3, 3, 2), (1, 2, 2)]
    tensors = [on_device(torch.randn(*shape, generator=generator)) for shape in shapes]
    theta, oracle = tensors[0] if len(tensors) == 1 else tuple(tensors), si.get_oracle(name)
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
        si.infer(theta, oracle, "sparsemap")
    rounds = list(zip(marks[3:-1:2], marks[4:-1:2], strict=True))  # the first one also writes the tolerances
    assert len(rounds) > 1
    for end, start in rounds:
        assert start[1] - end[1] <= 1, counter.report()
        if start[2] == end[2]:  # no instance leaves the batch
            assert start[0] - end[0] <= 3, counter.report()
