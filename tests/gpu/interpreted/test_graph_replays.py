"""Forward and backward passes without checks give a GPU the same work for all values, as CUDA graphs need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from launch_cases import CASES
from launch_counter import on_device
from recorded_work import RecordedWork
from structinf.parts import Parts, as_tuple, map_parts

LENGTHS = {
    "chain": [4, 2],
    "binary_tree": [3, 2],
    "arborescence": [2, 1],
    "semi_markov with boundaries": [3, 2],
}
NAMES = (
    *("chain", "semi_markov", "dtw", "needleman_wunsch", "monotonic_alignment", "binary_tree", "projective_tree"),
    *("subset", "knapsack", "grid_path", "arborescence", "categorical"),
    "semi_markov with boundaries",
)
SPANNING_TREES = ("spanning_tree", "spanning_tree of edges")
CALLS = [
    *((name, call) for name in NAMES for call in ("map", "marginals", "loss of labels")),
    *((name, call) for name in SPANNING_TREES for call in ("map", "marginals", "loss of labels")),
    *((name, "smoothed") for name in ("chain", "dtw", "binary_tree")),
    ("chain", "loss"),
    ("dtw", "soft-DTW"),
]


def make(name: str, call: str, wrap: Callable[..., Any]) -> Callable[[Parts], tuple[Tensor, ...]]:
    """Return a function of the scores: the results of a call, and a product with its Jacobian."""
    theta, options, _ = CASES[name]
    oracle = si.get_oracle(name.partition(" ")[0], **options)
    on_cpu = {"lengths": torch.tensor(LENGTHS[name])} if name in LENGTHS else {}
    data = {key: wrap(t) for key, t in on_cpu.items()}
    best = si.relax(theta, oracle, "map", **on_cpu)
    gold = wrap(si.decode(best, oracle, **on_cpu) if call == "loss of labels" else best)
    weights = wrap(tuple(torch.linspace(-1, 1, t.numel()).view(t.shape) for t in as_tuple(best)))
    loss = si.FenchelYoungLoss(oracle, "marginals")
    smoothed = si.get_relaxation("smoothed", regularizer="squared_l2")
    layer = si.Layer(oracle, smoothed if call == "smoothed" else "marginals")

    def run(scores: Parts) -> tuple[Tensor, ...]:
        if call == "map":
            return as_tuple(si.relax(scores, oracle, "map", **data))
        result: Any
        if call == "soft-DTW":
            result, cotangents = si.soft_dtw(scores).sum(), None
        elif call.startswith("loss"):
            result, cotangents = loss(scores, gold, **data), None
        else:
            result, cotangents = layer(scores, **data), weights
        gradients = torch.autograd.grad(as_tuple(result), as_tuple(scores), cotangents)
        return (*(t.detach() for t in as_tuple(result)), *gradients)

    return run


@pytest.mark.parametrize(
    ("name", "call"),
    [pytest.param(*case, marks=() if case == ("chain", "marginals") else pytest.mark.full) for case in CALLS],
)
def test_the_work_of_a_call_does_not_depend_on_values(name: str, call: str) -> None:
    theta, others = CASES[name][0], map_parts(lambda t: 2 - t.flip(0).roll(1, -1), CASES[name][0])
    leaves = on_device(theta, requires_grad=True)
    run = make(name, call, on_device)
    with RecordedWork(), si.unchecked():
        run(leaves)  # copies the tables of a graph, which later calls keep
    with RecordedWork() as work, si.unchecked():
        results = run(leaves)
    assert work.synchronisations == work.copies == 0, work.report()
    for leaf, values in zip(as_tuple(leaves), as_tuple(others), strict=True):
        leaf.data.copy_(values)
    work.repeat()
    expected = make(name, call, lambda t: t)(map_parts(lambda t: t.clone().requires_grad_(), others))
    assert len(results) == len(expected)
    for found, other in zip(results, expected, strict=True):
        torch.testing.assert_close(found, other)
