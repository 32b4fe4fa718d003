"""Calls whose algorithms run on the CPU, for tensors on a device: one copy of the batch, and the results of the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.parts import as_tuple

_generator = torch.Generator().manual_seed(0)
_SQUARE = torch.randn(2, 4, 4, generator=_generator)
_EDGES = ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (3, 1))
_COSTS = -torch.rand(2, 6, generator=_generator)
_LENGTHS = {"lengths": torch.tensor([4, 3])}
_SIZES = {"lengths": torch.tensor([[4, 4], [3, 4]])}
_UNARY = torch.randn(2, 4, 2, generator=_generator), torch.randn(1, 2, 2, generator=_generator)

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "chain": (_UNARY, {}, _LENGTHS),
    "semi_markov": (_SQUARE[:, :3, :2, None], {}, {"lengths": torch.tensor([3, 2])}),
    "dtw": (_SQUARE, {}, _SIZES),
    "binary_tree": (_SQUARE, {}, _LENGTHS),
    "knapsack": (_SQUARE[:, 0], {"weights": (1, 2, 3, 2), "capacity": 4}, {}),
    "subset": (_SQUARE[:, 0], {"k": 2}, _LENGTHS),
    "arborescence": (_SQUARE, {}, {"lengths": torch.tensor([3, 2])}),
    "spanning_tree": (_SQUARE, {}, _LENGTHS),
    "spanning_tree of edges": (_COSTS, {"edges": _EDGES}, {}),
    "assignment": (_SQUARE, {}, _SIZES),
    "matching": (_SQUARE, {"perfect": False}, {}),
    "matching of edges": (_COSTS, {"edges": _EDGES}, {}),
    "ranking": (_SQUARE[:, 0], {}, _LENGTHS),
    "path": (_COSTS, {"graph": _EDGES, "source": 0, "target": 3}, {}),
    "flow": (_COSTS, {"graph": _EDGES, "supplies": {0: 2, 3: -2}, "capacities": (1, 2, 2, 1, 1, 2)}, {}),
    "transportation": (_SQUARE[:, :2, :3], {"supplies": (1, 2), "demands": (2, 1, 1)}, {}),
    "dag_path": (_COSTS[:, :5], {"graph": _EDGES[:5], "source": 0, "target": 3}, {}),
}
"""The scores, the options of the oracle and the instance data."""


def _oracle(case: str) -> Any:
    return si.get_oracle(case.partition(" ")[0], **CASES[case][1])


def _assert_equal(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        for t, s in zip(as_tuple(a), as_tuple(b), strict=True):
            assert t.is_cuda
            torch.testing.assert_close(t.cpu(), s)


@pytest.mark.parametrize("case", CASES)
def test_the_k_best_structures_take_one_copy_from_the_device(case: str) -> None:
    theta, _, data = CASES[case]
    oracle = _oracle(case)
    expected = si.topk(theta, oracle, 3, **data)
    given = {name: on_device(value) for name, value in data.items()}
    with LaunchCounter() as count:
        found = si.topk(on_device(theta), oracle, 3, **given)
    with LaunchCounter():
        _assert_equal(found, expected)
    assert count.synchronisations == 1, count.report()
    # The copies to the device do not wait: structures, scores, and which are valid.
    assert count.copies <= 1 + len(as_tuple(theta)) + 2, count.report()
    assert count.launches <= 30, count.report()


@pytest.mark.parametrize(
    "case", ["chain", "dtw", "binary_tree", "subset", "arborescence", "spanning_tree", "spanning_tree of edges"]
)
def test_samples_take_one_copy_from_the_device(case: str) -> None:
    theta, _, data = CASES[case]
    given = {name: on_device(value) for name, value in data.items()}
    expected = si.sample(theta, _oracle(case), 3, generator=torch.Generator().manual_seed(0), **data)
    with LaunchCounter() as count:
        found = si.sample(on_device(theta), _oracle(case), 3, generator=torch.Generator().manual_seed(0), **given)
    with LaunchCounter():
        _assert_equal([found], [expected])
    assert count.synchronisations == 1, count.report()


_EVEN, _TERMINALS = {"lengths": torch.tensor([4, 2])}, {"terminals": torch.tensor([[0, 3], [3, 0]])}
_CPU_CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{case: (_oracle(case), {}) for case in ("matching", "matching of edges", "path", "flow", "transportation")},
    "matching with lengths": (si.get_oracle("matching"), _EVEN),
    "path with terminals": (si.get_oracle("path", graph=_EDGES, directed=False), _TERMINALS),
}
"""Oracles of the CPU, and instance data."""


@pytest.mark.parametrize("case", _CPU_CALLS)
def test_losses_read_gold_structures_with_the_scores(case: str) -> None:
    theta, (oracle, data) = CASES[case.partition(" with")[0]][0], _CPU_CALLS[case]
    gold = si.relax(theta, oracle, "map", **data)
    loss = si.FenchelYoungLoss(oracle, "map")
    expected = loss(0.5 * theta, gold, **data)
    given = {name: on_device(value) for name, value in data.items()}
    with LaunchCounter() as count:
        si.infer(on_device(theta), oracle, "map", **given)
    assert count.synchronisations == 1, count.report()
    arguments = on_device((0.5 * theta, gold))
    with LaunchCounter() as count:
        found = loss(*arguments, **given)
    with LaunchCounter():
        torch.testing.assert_close(found.cpu(), expected)
    # One copy reads scores, data and gold structures, and a last read checks that no loss is negative.
    assert count.synchronisations <= 2, count.report()


_KNAPSACKS = {"weights": torch.tensor([[1, 2, 3, 2], [2, 1, 3, 1]]), "capacity": torch.tensor([4, 5])}


@pytest.mark.parametrize(
    ("name", "options", "data"),
    [
        ("matching", {}, {"lengths": torch.tensor([4, 3])}),
        ("matching", {}, {"lengths": torch.tensor([3, 5])}),
        ("path", {"graph": _EDGES}, {"terminals": torch.tensor([[0, 3], [0, 4]])}),
        ("knapsack", {}, _KNAPSACKS | {"weights": torch.tensor([[1, 2, 3, 2], [2, -1, 3, 1]])}),
        ("knapsack", {}, {"weights": _KNAPSACKS["weights"]}),
        ("knapsack", {}, _KNAPSACKS | {"capacity": torch.tensor([4.0, 5.5])}),
    ],
)
def test_wrong_data_are_reported_as_on_the_cpu(name: str, options: dict[str, Any], data: dict[str, Any]) -> None:
    theta = {"matching": _SQUARE, "path": _COSTS, "knapsack": _SQUARE[:, 0]}[name]
    oracle, gold = si.get_oracle(name, **options), torch.zeros_like(theta)
    given = {key: on_device(value) for key, value in data.items()}
    for scores in (theta, theta * math.nan):
        for call in (
            lambda t, y, **d: si.relax(t, oracle, "map", **d),
            lambda t, y, **d: si.topk(t, oracle, 2, **d),
            lambda t, y, **d: si.FenchelYoungLoss(oracle, "map")(t, y, **d),
        ):
            with pytest.raises(si.InvalidInputError) as expected:
                call(scores, gold, **data)
            with LaunchCounter(), pytest.raises(si.InvalidInputError) as found:
                call(on_device(scores), on_device(gold), **given)
            assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("case", [*_CPU_CALLS, "knapsack with data"])
@pytest.mark.parametrize("wrong", ["gold", "fractions", "scores", "both"])
def test_wrong_gold_structures_are_reported_as_on_the_cpu(case: str, wrong: str) -> None:
    oracle, data = _CPU_CALLS.get(case, (si.get_oracle("knapsack"), _KNAPSACKS))
    theta = CASES[case.partition(" with")[0]][0]
    gold = si.relax(theta, oracle, "map", **data)
    if wrong in ("gold", "both"):
        gold[1] = 7 * gold[1] if case in ("flow", "transportation") else case != "matching with lengths"
    elif wrong == "fractions":
        gold[1] = gold[1] + 0.5
    if wrong in ("scores", "both"):
        theta = theta * math.nan
    given = {name: on_device(value) for name, value in data.items()}
    loss = si.FenchelYoungLoss(oracle, "map")
    with pytest.raises(si.StructinfError) as expected:
        loss(theta, gold, **data)
    with LaunchCounter(), pytest.raises(type(expected.value)) as found:
        loss(on_device(theta), on_device(gold), **given)
    assert str(found.value) == str(expected.value)


def _infeasible(case: str) -> Any:
    theta = CASES[case][0]
    return tuple(torch.full_like(t, -math.inf) for t in theta) if isinstance(theta, tuple) else theta - math.inf


@pytest.mark.parametrize("case", ["chain", "dtw", "binary_tree", "arborescence", "spanning_tree", "assignment", "path"])
@pytest.mark.parametrize("wrong", ["NaN", "infeasible", "lengths"])
def test_errors_are_those_of_the_cpu(case: str, wrong: str) -> None:
    theta, _, data = CASES[case]
    if wrong == "lengths" and not data:
        data = {"lengths": torch.tensor([4, 4])}
    elif wrong == "lengths":
        data = {"lengths": data["lengths"] + 3}
    elif wrong == "NaN":
        theta = tuple(t * math.nan for t in theta) if isinstance(theta, tuple) else theta * math.nan
    else:
        theta = _infeasible(case)
    given = {name: on_device(value) for name, value in data.items()}
    oracle = _oracle(case)
    calls: list[Any] = [lambda t, d: si.topk(t, oracle, 2, **d), lambda t, d: si.infer(t, oracle, "map", **d)]
    calls += [lambda t, d: si.sample(t, oracle, 2, **d)] * isinstance(oracle, si.Samplable)
    for call in calls:
        with pytest.raises((si.StructinfError, TypeError)) as expected:
            call(theta, data)
        with LaunchCounter(), pytest.raises(type(expected.value)) as found:
            call(on_device(theta), given)
        assert str(found.value) == str(expected.value)


def _oracle_of_labels(name: str) -> Any:
    own = {"subset": {"k": 2}, "correlated_subset": {"k": 2}, "markov_field": {
        "cardinalities": (2, 3), "factors": ((0, 1),)}}  # fmt: skip
    return (
        _oracle(name) if name in ("path", "flow", "matching", "dag_path") else si.get_oracle(name, **own.get(name, {}))
    )


_LABELS: dict[str, tuple[Any, list[Any]]] = {
    "assignment": (_SQUARE, [[0, 1, 2, 7], [0, 1, 1, 2]]),
    "subset": (_SQUARE[:, 0], [[1, 1, 1, 0], [1, 0, 0, 0], [1, 2, 0, 0]]),
    "correlated_subset": ((_SQUARE[:, 0], _SQUARE[:, 1, :3]), [[1, 1, 1, 0]]),
    "ranking": (_SQUARE[:, 0], [[1, 2, 3, 3], [0, 1, 2, 3]]),
    "monotonic_alignment": (_SQUARE, [[0, 1, 1, 4], [0, 2, 1, 3], [0, 1, 2, 10**9]]),
    "needleman_wunsch": ((_SQUARE, _SQUARE[:, 0, :2]), [[[0, 0], [1, 1], [1, 2], [3, 3]]]),
    "markov_field": ((_SQUARE[:, :2, :3],), [[0, 3], [2, 0], [-(10**9), 0]]),
    "dag_path": (_COSTS[:, :5], [[0, 2, -1], [1, -1, -1], [9, -1, -1], [0, -1, 1]]),
    "path": (_COSTS, [[0, 2, -1], [1, -1, -1], [9, -1, -1], [0, -1, 1]]),
    "matching": (_SQUARE, [[1, 0, 3, 9], [1, 2, 0, 3], [0, 1, 2, 3]]),
    "flow": (_COSTS, [[2, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]),
}
"""Scores, and invalid labels of an instance."""


@pytest.mark.parametrize("name", _LABELS)
def test_labels_are_checked_as_on_the_cpu(name: str) -> None:
    theta, wrong = _LABELS[name]
    oracle = _oracle_of_labels(name)
    labels = si.decode(si.relax(theta, oracle, "map"), oracle)
    loss = si.FenchelYoungLoss(oracle, "map")
    expected_loss = loss(theta, labels)
    given = on_device(theta)
    with LaunchCounter():
        torch.testing.assert_close(loss(given, on_device(labels)).cpu(), expected_loss)
    for row in wrong:
        bad = labels.clone()
        bad[1] = torch.tensor(row)
        with pytest.raises(si.InvalidInputError) as expected:
            loss(theta, bad)
        with LaunchCounter(), pytest.raises(si.InvalidInputError) as found:
            loss(given, on_device(bad))
        assert str(found.value) == str(expected.value)


# ----------------------------------------------------------------------------- oracles with data on the device


@pytest.mark.parametrize("case", ["arborescence", "binary_tree", "subset"])
def test_bound_data_are_checked_in_the_first_call(case: str) -> None:
    theta, _, data = CASES[case]
    expected = si.relax(theta, _oracle(case), "marginals", **data)
    given = on_device(theta)
    with LaunchCounter() as first:
        bound = _oracle(case).bind(**{name: on_device(value) for name, value in data.items()})
        si.relax(given, bound, "marginals")
    with LaunchCounter() as count:
        found = si.relax(given, bound, "marginals")
    with LaunchCounter():
        torch.testing.assert_close(found.cpu(), expected)
    assert count.synchronisations == 1, count.report()
    assert first.synchronisations > 1, first.report()


def test_changed_data_are_checked_again() -> None:
    theta, wrong = on_device(_SQUARE), on_device(torch.tensor([3, 9]))
    with LaunchCounter():
        bound = si.get_oracle("arborescence").bind(lengths=on_device(torch.tensor([3, 2])))
        si.relax(theta, bound, "marginals")
        bound.bound["lengths"].copy_(wrong)
        with pytest.raises(si.InvalidInputError, match="got 9 at batch index 1"):
            si.relax(theta, bound, "marginals")
    with LaunchCounter():
        bound = si.get_oracle("arborescence").bind(lengths=wrong)
        with si.unchecked():
            si.encode(on_device(torch.tensor([[0, 1, 2], [0, 1, 2]])), theta, bound)
        with pytest.raises(si.InvalidInputError, match="got 9 at batch index 1"):
            si.relax(theta, bound, "marginals")


def test_other_shapes_of_scores_are_checked_again() -> None:
    with LaunchCounter():
        bound = si.get_oracle("arborescence").bind(lengths=on_device(torch.tensor([3, 2])))
        si.relax(on_device(_SQUARE), bound, "marginals")
        with pytest.raises(si.InvalidInputError, match="lengths must lie between 0 and 2"):
            si.relax(on_device(_SQUARE[:, :3, :3].contiguous()), bound, "marginals")
