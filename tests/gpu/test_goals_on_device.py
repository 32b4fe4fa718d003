"""Goals of hypergraph programs, chosen by lengths on a device."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from hypergraph_examples import FewOnes
from launch_counter import LaunchCounter, on_device
from structinf.errors import InfeasibleError, InvalidInputError


def test_goals_are_indexed_without_waiting() -> None:
    oracle, lengths = FewOnes(1), on_device(torch.tensor([2, 3, 0, -1, 9]))
    graph = oracle.hypergraph(torch.zeros(1, 3))
    expected = graph.goal(torch.tensor([2, 3, 0, -1, 9]), 5).tolist()
    with LaunchCounter() as count:
        device = lengths.device
        graph.goal_on(device, lengths, 5)  # copies the goals
        copied = count.synchronisations
        found, last = graph.goal_on(device, lengths, 5), graph.goal_on(device, None, 2)
    assert count.synchronisations == copied
    assert found.tolist() == expected
    assert last.tolist() == expected[1:2] * 2


def test_lengths_without_a_goal_raise_at_the_check_of_values() -> None:
    theta, lengths = on_device(torch.zeros(3, 3)), on_device(torch.tensor([2, 9, 1]))
    message = "FewOnes has no structure of lengths 9 at batch index 1"
    with LaunchCounter():
        with pytest.raises(InvalidInputError, match=message):
            si.relax(theta, FewOnes(1), "marginals", lengths=lengths)
        with pytest.raises(InvalidInputError, match=message):
            FewOnes(1).bind(lengths=lengths).argmax(theta)
        with pytest.raises(InfeasibleError, match="batch index 0, 1 and 2"):
            si.relax(on_device(torch.full((3, 3), -torch.inf)), si.get_oracle("subset", k=1), "marginals")
