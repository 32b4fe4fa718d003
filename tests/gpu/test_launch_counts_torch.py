"""Launches and synchronisations of public calls on a GPU without Triton, for scores of a few parts."""

from __future__ import annotations

import pytest

from launch_cases import calls_of, count

# Launches and synchronisations of each call.
CEILINGS: dict[str, dict[str, tuple[int, int]]] = {
    "chain": {"map": (110, 1), "marginals": (200, 2), "marginals and backward": (600, 3), "loss": (180, 3)},
    "semi_markov": {"map": (145, 1), "marginals": (180, 1), "marginals and backward": (480, 1), "loss": (210, 9)},
    "dtw": {"marginals": (330, 7)},
    "needleman_wunsch": {"map": (460, 1), "marginals": (590, 1)},
    "binary_tree": {"map": (245, 1), "marginals": (305, 1)},
    "subset": {"map": (25, 1), "marginals": (400, 1)},
    "arborescence": {"map": (15, 4), "marginals": (275, 1), "marginals and backward": (750, 1), "loss": (220, 3)},
    "categorical": {"map": (7, 1), "marginals": (6, 1), "marginals and backward": (12, 1), "loss": (48, 2)},
}


@pytest.mark.parametrize(("case", "call"), [(case, call) for case in CEILINGS for call in CEILINGS[case]])
def test_work_of_a_call_without_triton(case: str, call: str) -> None:
    launches, synchronisations = CEILINGS[case][call]
    found = count(calls_of(case)[call])
    assert found.launches <= launches, found.report()
    assert found.synchronisations <= synchronisations, found.report()
    assert found.triton_launches == 0
