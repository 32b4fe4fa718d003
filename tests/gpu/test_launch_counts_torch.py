"""Launches and synchronisations of public calls on a GPU without Triton, for scores of a few parts."""

from __future__ import annotations

import pytest

from launch_cases import count

# Launches and synchronisations of each call.
CEILINGS: dict[str, dict[str, tuple[int, int]]] = {
    "chain": {"map": (70, 1), "marginals": (132, 2), "marginals and backward": (390, 3), "loss": (131, 2)},
    "semi_markov": {"map": (114, 1), "marginals": (140, 1), "marginals and backward": (375, 1), "loss": (170, 1)},
    "dtw": {"marginals": (215, 7)},
    "needleman_wunsch": {"map": (285, 1), "marginals": (360, 1)},
    "binary_tree": {"map": (180, 1), "marginals": (225, 1)},
    "subset": {"map": (22, 1), "marginals": (250, 1)},
    "arborescence": {"map": (13, 4), "marginals": (187, 1), "marginals and backward": (495, 1), "loss": (175, 3)},
    "categorical": {"map": (6, 1), "marginals": (5, 1), "marginals and backward": (11, 1), "loss": (51, 2)},
}


@pytest.mark.parametrize(("case", "call"), [(case, call) for case in CEILINGS for call in CEILINGS[case]])
def test_work_of_a_call_without_triton(case: str, call: str) -> None:
    launches, synchronisations = CEILINGS[case][call]
    found = count(case, call)
    assert found.launches <= launches, found.report()
    assert found.synchronisations <= synchronisations, found.report()
    assert found.triton_launches == 0
