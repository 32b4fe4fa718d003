"""Launches and synchronisations of public calls through Triton kernels: at most 12 and 1 in most forward passes."""

from __future__ import annotations

import pytest

from launch_cases import count

# Launches and synchronisations of each call.
CEILINGS: dict[str, dict[str, tuple[int, int]]] = {
    "semi_markov": {"map": (12, 1), "marginals": (12, 1), "marginals and backward": (16, 1)},
    "needleman_wunsch": {"map": (9, 1), "marginals": (9, 1), "marginals and backward": (14, 1)},
    "monotonic_alignment": {"marginals": (7, 1)},
    "dtw": {"map": (6, 1), "marginals": (7, 1), "marginals and backward": (10, 1)},
    # The masks of the spans and arcs in use take 7 and 10 launches.
    "binary_tree": {"map": (14, 1), "marginals": (14, 1)},
    "arborescence": {"marginals": (18, 1)},
}


@pytest.mark.parametrize(("case", "call"), [(case, call) for case in CEILINGS for call in CEILINGS[case]])
def test_work_of_a_call(case: str, call: str) -> None:
    launches, synchronisations = CEILINGS[case][call]
    found = count(case, call)
    assert found.launches <= launches, found.report()
    assert found.synchronisations <= synchronisations, found.report()
    assert found.triton_launches > 0
