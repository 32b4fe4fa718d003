"""Checks of values on a device: the errors of CPU calls, after a single synchronisation, and calls without checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from launch_counter import LaunchCounter, on_device
from oracle_example import Example
from oracle_examples import parametrize
from structinf.parts import as_tuple

_generator = torch.Generator().manual_seed(0)
SQUARE = torch.randn(2, 4, 4, generator=_generator)
TAGS = torch.tensor([[0, 1, 2], [2, 1, 0]])
UNARY, TRANSITION = torch.randn(2, 3, 3, generator=_generator), torch.randn(3, 3, generator=_generator)
FORBIDDEN = UNARY.index_fill(1, torch.tensor([1]), -math.inf)
INVALID = SQUARE.index_fill(2, torch.tensor([1]), math.nan)


def _with(t: Tensor, value: float, *place: int) -> Tensor:
    t = t.clone()
    t[place] = value
    return t


def _tags(*, forbids: tuple[int, ...] = ()) -> Tensor:
    return _with(UNARY, -math.inf, *forbids) if forbids else UNARY


def _labels(name: str, value: int) -> Tensor:
    """Return labels for scores of the shape of SQUARE, with a wrong ``value`` in the second instance."""
    theta = SQUARE.unsqueeze(3) if name == "semi_markov" else SQUARE
    labels = si.decode(si.relax(theta, name, "map"), name)
    return _with(labels, value, 1, 0, 0)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "NaN": (lambda t: si.relax(t, "arborescence", "marginals"), (INVALID,)),
    "+inf": (lambda t: si.relax(t, "categorical", "map"), (_with(SQUARE, math.inf, 1, 2, 3),)),
    "NaN shared by the batch": (
        lambda *t: si.relax(t, "chain", "marginals"),
        (UNARY, _with(TRANSITION, math.nan, 0, 1)),
    ),
    "NaN in an iterative solver": (lambda t: si.relax(t, "assignment", "sinkhorn"), (INVALID,)),
    "NaN in infer": (lambda t: si.infer(t, "arborescence", "marginals"), (INVALID,)),
    "NaN in a query": (lambda t: si.log_partition(t, "arborescence"), (INVALID,)),
    "NaN in a distribution": (lambda t: si.Gibbs(t, "arborescence"), (INVALID,)),
    "NaN in decode": (lambda t: si.decode(t, "assignment"), (INVALID,)),
    "NaN in a cost": (si.soft_dtw, (INVALID,)),
    "NaN in an alignment matrix": (si.alignment_matrix, (INVALID,)),
    "NaN in an alignment path": (si.alignment_path, (INVALID,)),
    "NaN in a true score": (si.SPOPlusLoss("assignment"), (SQUARE, INVALID)),
    "infeasible marginals": (lambda *t: si.relax(t, "chain", "marginals"), (FORBIDDEN, TRANSITION)),
    "infeasible argmax": (lambda *t: si.relax(t, "chain", "map"), (FORBIDDEN, TRANSITION)),
    "infeasible in a batch of two dimensions": (
        lambda t: si.relax(t[:, None], "categorical", "map"),
        (SQUARE.masked_fill(torch.eye(2, 4).bool()[:, :, None], -math.inf),),
    ),
    "infeasible for noise": (
        lambda t: si.relax(t, "categorical", "perturbed", generator=torch.Generator().manual_seed(0)),
        (SQUARE.masked_fill(torch.eye(2, 4).bool()[:, :, None], -math.inf),),
    ),
    "infeasible loss": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals")((u, t), y),
        (FORBIDDEN, TRANSITION, TAGS),
    ),
    "forbidden gold": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals")((u, t), y),
        (_tags(forbids=(1, 2, 0)), TRANSITION, TAGS),
    ),
    "invalid labels": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals")((u, t), y),
        (UNARY, TRANSITION, _with(TAGS, 7, 1, 2)),
    ),
    **{
        f"invalid labels of {name}, {value}": (si.FenchelYoungLoss(name, "marginals"), (theta, _labels(name, value)))
        for name, theta in (("dtw", SQUARE), ("binary_tree", SQUARE), ("semi_markov", SQUARE.unsqueeze(3)))
        for value in (2, 10**9, -(10**9))
    },
    **{
        f"heads of {name}, {what}": (si.FenchelYoungLoss(name, "marginals", single_root=True), (SQUARE, heads))
        for name in ("arborescence", "projective_tree")
        for what, heads in (
            ("no node", torch.tensor([[0, 1, 2], [0, 1, 10**9]])),
            ("below 0", torch.tensor([[0, 1, 2], [0, -(10**9), 1]])),
            ("a cycle", torch.tensor([[0, 1, 2], [0, 3, 2]])),
            ("two roots", torch.tensor([[0, 1, 2], [0, 1, 0]])),
        )
    },
    **{
        f"edges of spanning trees, {what}": (si.FenchelYoungLoss("spanning_tree", "marginals"), (SQUARE, edges))
        for what, edges in (
            ("no node", torch.tensor([[[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2], [2, 10**9]]])),
            ("unknown", torch.tensor([[[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2], [-1, -1]]])),
            ("a cycle", torch.tensor([[[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2], [2, 0]]])),
        )
    },
    **{
        f"gold that is no structure of {name}, {value}": (si.FenchelYoungLoss(name, "marginals"), (theta, gold))
        for name, theta in (("dtw", SQUARE), ("binary_tree", SQUARE), ("semi_markov", SQUARE.unsqueeze(3)))
        for value, gold in (("all parts", torch.ones_like(theta)), ("two parts", _with(0 * theta, 1.0, 1, -1)))
    },
    **{
        f"cells of grid paths, {what}": (si.FenchelYoungLoss("grid_path", "marginals"), (SQUARE[:, :2, :2], cells))
        for what, cells in (
            ("outside", torch.tensor([[[0, 0], [1, 0], [1, 1]], [[0, 0], [10**9, 0], [1, 1]]])),
            ("another start", torch.tensor([[[0, 0], [1, 0], [1, 1]], [[1, 0], [1, 1], [-1, -1]]])),
            ("no move", torch.tensor([[[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 1], [-1, -1]]])),
            ("another end", torch.tensor([[[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 0], [-1, -1]]])),
        )
    },
    "a grid whose end no move reaches": (
        lambda t, n: si.relax(t, si.get_oracle("grid_path", moves=((2, 0), (0, 1))), "map", lengths=n),
        (SQUARE, torch.tensor([[3, 4], [2, 1]])),
    ),
    **{
        f"items of knapsacks, {what}": (
            lambda t, y: si.FenchelYoungLoss("knapsack", "marginals", weights=(1, 2, 3, 2), capacity=4)(t, y),
            (SQUARE[0], items),
        )
        for what, items in (
            ("too heavy", torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 1]])),
            ("no choice", torch.tensor([[1, 0, 0, 0], [0, 7, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])),
        )
    },
    "gold outside of conv(Y)": (si.FenchelYoungLoss("subset", "smoothed", k=1), (SQUARE[0], torch.ones(4, 4))),
    "gold that is no structure": (si.FenchelYoungLoss("assignment", "map"), (SQUARE, torch.full((2, 4, 4), 0.5))),
    "gold that is no mean": (si.FenchelYoungLoss("subset", "map", k=1), (SQUARE[0], torch.full((4, 4), 1.5))),
    "a wrong label beside an unknown label": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals")((u, t), y),
        (UNARY, TRANSITION, _with(_with(TAGS, 7, 1, 2), -1, 0, 0)),
    ),
    "no allowed structure": (
        lambda u, t, m: si.FenchelYoungLoss("chain", "marginals")((u, t), allowed=m),
        (UNARY, TRANSITION, torch.zeros(2, 3, 3, dtype=torch.bool)),
    ),
    "length below 0": (lambda t: si.relax(t, "arborescence", "marginals", lengths=[3, -1]), (SQUARE,)),
    "NaN in gold": (si.FenchelYoungLoss("assignment", "map"), (SQUARE, INVALID)),
    "overflow": (lambda t: si.relax(1e38 * t, "categorical", "marginals", temperature=1e-3), (SQUARE,)),
    "lengths in a list": (lambda t: si.relax(t, "arborescence", "marginals", lengths=[4, 1]), (SQUARE,)),
    "lengths on the device": (lambda t, n: si.relax(t, "arborescence", "map", lengths=n), (SQUARE, TAGS[0, 1:] + 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_a_device_raises_the_error_of_the_cpu(name: str) -> None:
    function, arguments = CALLS[name]
    with pytest.raises(si.StructinfError) as expected:
        function(*arguments)
    with LaunchCounter(), pytest.raises(type(expected.value)) as found:
        function(*on_device(arguments))
    assert str(found.value) == str(expected.value).replace(" cpu", " cuda:0")


VALUES: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    f"{name} of an infeasible instance": (
        lambda *t, name=name: si.infer(t, "chain", name, on_infeasible="zero").value,
        (_with(UNARY, -math.inf, 1, 2), TRANSITION),
    )
    for name in ("marginals", "map", "sparsemap", "smoothed")
}
VALUES |= {
    "losses with an infeasible instance": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals", on_infeasible="zero")((u, t), y),
        (_with(UNARY, -math.inf, 1, 2), TRANSITION, _with(TAGS, 7, 1, 2)),
    ),
    "empty instances, lengths in a list": (
        lambda t: si.log_partition(t, "arborescence", lengths=[0, 3]),
        (SQUARE,),
    ),
    "empty instances, lengths on the device": (
        lambda t, n: si.relax(t, "arborescence", "marginals", lengths=n),
        (SQUARE, torch.tensor([2, 0])),
    ),
    "unknown labels": (
        lambda u, t, y: si.FenchelYoungLoss("chain", "marginals")((u, t), y),
        (UNARY, TRANSITION, _with(TAGS, -1, 1, 2)),
    ),
    "allowed parts": (
        lambda u, t, m: si.FenchelYoungLoss("chain", "smoothed", regularizer="squared_l2")((u, t), allowed=m),
        (UNARY, TRANSITION, UNARY > -0.5),
    ),
    "a mean": (si.FenchelYoungLoss("assignment", "sinkhorn"), (SQUARE, torch.full((2, 4, 4), 0.25))),
    "a teacher": (
        lambda t, s: si.FenchelYoungLoss("arborescence", "marginals")(t, target_potentials=s),
        (SQUARE, -SQUARE),
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_call_on_a_device_returns_the_value_of_the_cpu(name: str) -> None:
    function, arguments = VALUES[name]
    expected = function(*arguments)
    with LaunchCounter():
        found = function(*on_device(arguments))
    torch.testing.assert_close(found.cpu(), expected)


def test_checks_of_direct_calls_do_not_wait() -> None:
    with LaunchCounter(), pytest.raises(si.InfeasibleError, match="batch index 0"):
        si.get_oracle("categorical").argmax(on_device(torch.full((1, 3), -math.inf)))


def test_an_error_of_the_oracle_does_not_hide_invalid_scores() -> None:
    class Fails(si.Oracle):
        event_ndim = 1

        def argmax(self, theta: Tensor) -> Tensor:
            raise RuntimeError("a singular matrix")

    with LaunchCounter(), pytest.raises(si.InvalidInputError, match="NaN"):
        si.relax(on_device(torch.full((2, 3), math.nan)), Fails(), "map")
    with LaunchCounter(), pytest.raises(RuntimeError, match="singular"):
        si.relax(on_device(torch.zeros(2, 3)), Fails(), "map")


@pytest.mark.parametrize(
    ("value", "message"), [(math.nan, "NaN or infinity for batch index 0"), (1.0, "no structure .* batch index 1")]
)
def test_structures_of_plugins_are_checked(value: float, message: str) -> None:
    class FirstTwo(si.Oracle):
        event_ndim = 1

        def argmax(self, theta: Tensor) -> Tensor:
            return torch.zeros_like(theta).index_fill(1, torch.tensor([0, 1]), value)

    theta = on_device(torch.zeros(2, 3).index_fill(0, torch.tensor([1]), -math.inf))
    with LaunchCounter(), pytest.raises(si.StructinfError, match=message):
        si.relax(theta, FirstTwo(), "map")


@parametrize()
def test_argmax_of_a_built_in_oracle_checks_its_structures(example: Example) -> None:
    """Calls on a device rely on this law, and do not check the structures of built-in oracles again."""
    oracle = example.oracle()
    if "terminals" in oracle.instance_ndim and not example.options.get("source"):
        oracle = oracle.bind(terminals=[[0, 1]])
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        scores = [torch.randn(1, *shape, generator=generator) for shape in example.shapes]
        hidden = [torch.rand(t.shape, generator=generator) < 0.2 + 0.2 * (seed % 4) for t in scores]
        theta = [-t.abs().masked_fill(mask, math.inf) for t, mask in zip(scores, hidden, strict=True)]
        try:
            y = oracle.argmax(tuple(theta) if example.is_tuple else theta[0])
        except si.InfeasibleError:
            continue
        for mask, z in zip(hidden, as_tuple(y), strict=True):
            assert not (mask & (z != 0)).any()


# ----------------------------------------------------------------------------- without checks


def test_a_call_without_checks_does_not_wait() -> None:
    theta = on_device(SQUARE, requires_grad=True)
    lengths = on_device(torch.tensor([3, 2]))
    layer = si.Layer("arborescence", "marginals", temperature=0.5)
    expected = layer(SQUARE, lengths=[3, 2])
    with LaunchCounter() as count, si.unchecked():
        mean = layer(theta, lengths=lengths)
        mean.square().sum().backward()
    assert count.synchronisations == count.copies == 0, count.report()
    torch.testing.assert_close(mean, expected)


def test_calls_without_checks_accept_invalid_values_on_a_device_alone() -> None:
    with LaunchCounter(), si.unchecked():
        si.relax(on_device(INVALID), "arborescence", "marginals")
    with si.unchecked(), pytest.raises(si.InvalidInputError, match="NaN"):
        si.relax(INVALID, "arborescence", "marginals")


def test_checks_return_after_the_context() -> None:
    with pytest.raises(KeyError), si.unchecked():
        raise KeyError
    with LaunchCounter(), pytest.raises(si.InvalidInputError, match="NaN"):
        si.relax(on_device(INVALID), "arborescence", "marginals")


def test_types_and_shapes_are_checked_always() -> None:
    with LaunchCounter(), si.unchecked(), pytest.raises(si.InvalidInputError, match="theta"):
        si.relax(on_device(torch.zeros(2, 3, 4)), "arborescence", "marginals")


# ----------------------------------------------------------------------------- lengths on a device

_GRID = torch.randn(2, 3, 3, generator=_generator)
LENGTHS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "chain": (torch.randn(2, 2, 2, 2, generator=_generator), [3, 0], [4, 3]),
    "semi_markov": (_GRID[..., None], [0, 3], [-1, 3]),
    "binary_tree": (_GRID, [3, 0], [3, 7]),
    "projective_tree": (_GRID, [0, 2], [3, 2]),
    "arborescence": (_GRID, [0, 0], [2, 10**9]),
    "spanning_tree": (_GRID, [0, 3], [3, 4]),
    "dtw": (_GRID, [[3, 2], [0, 0]], [[3, 2], [0, 1]]),
    "monotonic_alignment": (_GRID, [[0, 0], [2, 3]], [[2, 3], [2, 4]]),
    "assignment": (_GRID, [[3, 2], [0, 0]], [[3, 2], [4, 1]]),
}
"""Scores, lengths with empty instances, and invalid lengths."""


@pytest.mark.parametrize(
    "name",
    [
        *(n for n in LENGTHS if n in ("chain", "dtw")),
        *(pytest.param(n, marks=pytest.mark.full) for n in LENGTHS if n not in ("chain", "dtw")),
    ],
)
def test_lengths_on_a_device_are_checked_at_the_end(name: str) -> None:
    theta, empty, invalid = LENGTHS[name]
    relaxation = "map" if name == "assignment" else "marginals"
    lengths = on_device(torch.tensor(empty))
    oracle = si.get_oracle(name)

    def value_and_gradient(theta: Tensor, lengths: Tensor, oracle: Any, **options: Any) -> tuple[Tensor, ...]:
        leaf = theta.detach().clone().requires_grad_()
        solution = si.infer(leaf, oracle, relaxation, lengths=lengths, **options)
        (gradient,) = torch.autograd.grad(solution.value.sum(), leaf)
        return solution.value.detach().cpu(), as_tuple(solution.mean)[0].detach().cpu(), gradient.cpu()

    for options in ({}, {"on_infeasible": "zero"}):
        expected = value_and_gradient(theta, torch.tensor(empty), oracle, **options)
        with LaunchCounter():
            found = value_and_gradient(on_device(theta), lengths, oracle, **options)
            again = value_and_gradient(on_device(theta), None, oracle.bind(lengths=lengths), **options)  # type: ignore[arg-type]
        for values in (found, again):
            torch.testing.assert_close(values, expected)
    assert lengths.tolist() == empty
    with pytest.raises(si.InvalidInputError) as error:
        si.relax(theta, oracle, relaxation, lengths=torch.tensor(invalid))
    with LaunchCounter(), pytest.raises(si.InvalidInputError) as found_error:
        si.relax(on_device(theta), oracle, relaxation, lengths=on_device(torch.tensor(invalid)))
    assert str(found_error.value) == str(error.value)
    assert found_error.value.__context__ is None


@pytest.mark.parametrize("moves", ["down-right", ((2, 0), (0, 1))])
def test_grids_and_their_labels_cost_no_wait_of_their_own(moves: Any) -> None:
    theta, sizes = SQUARE, torch.tensor([[3, 4], [1, 2]])
    oracle = si.get_oracle("grid_path", moves=moves)
    cells = si.decode(si.relax(theta, oracle, "map", lengths=sizes), oracle, lengths=sizes)
    loss, arguments, lengths = si.FenchelYoungLoss(oracle, "map"), on_device((theta, cells)), on_device(sizes)
    with LaunchCounter():
        loss(*arguments, lengths=lengths)  # copies the tables of the graph
    with LaunchCounter() as count:
        loss(*arguments, lengths=lengths)
    assert (count.synchronisations, count.copies) == (1, 0), count.report()


def test_labels_of_knapsacks_cost_no_wait_of_their_own() -> None:
    loss = si.FenchelYoungLoss("knapsack", "map", weights=(1, 2, 3, 2), capacity=4)
    arguments = on_device((SQUARE[0], torch.eye(4, dtype=torch.int64)))
    with LaunchCounter():
        loss(*arguments)
    with LaunchCounter() as count:
        loss(*arguments)
    assert (count.synchronisations, count.copies) == (1, 0), count.report()


def test_lengths_on_a_device_cost_no_wait_of_their_own() -> None:
    theta, lengths = on_device(SQUARE), on_device(torch.tensor([3, 2]))
    si.relax(SQUARE, "arborescence", "marginals")
    with LaunchCounter() as count:
        si.relax(theta, "arborescence", "marginals", lengths=lengths)
    assert count.synchronisations == 1, count.report()
    with LaunchCounter() as count:
        loss = si.FenchelYoungLoss("arborescence", "marginals")
        loss(theta, on_device(torch.tensor([[0, 1, 2], [0, 1, 7]])), lengths=lengths)
    assert count.synchronisations == 1, count.report()
