"""Numbers of graphs and sizes of subsets of each instance on a device."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf_oracles.common import subsets

GRAPHS = si.GraphBatch.of([[(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2)]], directed=False)
SCORES = torch.tensor([[0.5, 1.0, -1.0], [0.25, 2.0, 0.0]])


def test_the_default_graphs_are_copied_to_the_device() -> None:
    for relaxation in ("map", "marginals"):
        expected = si.relax(SCORES, "spanning_tree", relaxation, edges=GRAPHS)
        with LaunchCounter():
            found = si.relax(on_device(SCORES), "spanning_tree", relaxation, edges=GRAPHS).cpu()
        torch.testing.assert_close(found, expected)


def test_numbers_of_graphs_on_the_device_are_checked_at_the_end() -> None:
    index = on_device(torch.tensor([1, 0]))
    expected = si.log_partition(SCORES, "spanning_tree", edges=GRAPHS, graph_index=index)
    with LaunchCounter():
        found = si.log_partition(on_device(SCORES), "spanning_tree", edges=GRAPHS, graph_index=index).cpu()
    torch.testing.assert_close(found, expected)
    wrong = on_device(torch.tensor([0, 2]))
    with LaunchCounter(), pytest.raises(si.InvalidInputError, match="between 0 and 1, got 2 at batch index 1"):
        si.log_partition(on_device(SCORES), "spanning_tree", edges=GRAPHS, graph_index=wrong)


def test_sizes_on_the_device_are_checked_at_the_end() -> None:
    theta, k, lengths = torch.randn(2, 4), torch.tensor([2, 1]), torch.tensor([3, 4])
    for data in ({"k": k}, {"k": k, "lengths": lengths}):
        expected = si.relax(theta, "subset", "map", **data)
        with LaunchCounter() as count:
            found = si.relax(on_device(theta), "subset", "map", **on_device_values(data)).cpu()
        assert torch.equal(found, expected), count.report()
    for wrong, message in (([5, 1], "4 elements in use, got 5 at batch index 0"), ([1, -1], "got -1 at batch index 1")):
        data = on_device_values({"k": torch.tensor(wrong)})
        with LaunchCounter(), pytest.raises(si.InvalidInputError, match=message):
            si.relax(on_device(theta), "subset", "map", **data)
    for wrong in (4, -1):
        data = on_device_values({"k": torch.tensor([wrong, 1]), "lengths": lengths})
        message = f"the 3 elements in use, got {wrong} at batch index 0"
        for call in (
            lambda data=data: si.relax(on_device(theta), "subset", "map", **data),
            lambda data=data: si.log_partition(on_device(theta), "subset", **data),
        ):
            with LaunchCounter(), pytest.raises(si.InvalidInputError, match=message):
                call()


@pytest.mark.parametrize("at_most", [False, True])
def test_sums_over_subsets_do_not_read_sizes_on_the_device(at_most: bool) -> None:
    theta, k, lengths = torch.randn(2, 4), torch.tensor([2, 3]), torch.tensor([3, 4])
    if at_most:
        k[1] = 7
    for data in ({"k": k}, {"k": k, "lengths": lengths}):
        oracle = si.get_oracle("subset", at_most=at_most)
        expected = si.relax(theta, oracle, "marginals", **data)
        for _ in range(2):  # the first call copies the tables of the graph
            with LaunchCounter() as count:
                found = si.relax(on_device(theta), oracle, "marginals", **on_device_values(data))
        with LaunchCounter():
            torch.testing.assert_close(found.cpu(), expected)
        assert count.synchronisations == 1, count.report()


def test_sums_over_subsets_of_many_elements_read_the_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsets, "_MOST_ELEMENTS", 5)
    theta, k = torch.randn(2, 6), torch.tensor([1, 2])
    expected = si.log_partition(theta, "subset", k=k)
    for _ in range(2):
        with LaunchCounter() as count:
            found = si.log_partition(on_device(theta), "subset", k=on_device(k))
    with LaunchCounter():
        torch.testing.assert_close(found.cpu(), expected)
    assert count.synchronisations == 2, count.report()


def test_lengths_and_sizes_are_copied_in_one_launch() -> None:
    k, lengths = on_device(torch.tensor([2, 1])), on_device(torch.tensor([3, 4]))
    with LaunchCounter() as count:
        bound = si.get_oracle("subset").bind(k=k, lengths=lengths).bound
        k.zero_()
        assert bound["k"].tolist() == [2, 1]
        assert bound["lengths"].tolist() == [3, 4]
    assert count.launches == 2, count.report()


def on_device_values(data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: on_device(value) for name, value in data.items()}
