"""Calls of public functions whose launches on a GPU the tests count."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.parts import Parts, as_tuple, map_parts

__all__ = ["CASES", "calls_of", "count"]

_GENERATOR = torch.Generator().manual_seed(0)


def _scores(*shapes: tuple[int, ...]) -> Parts:
    tensors = tuple(torch.randn(2, *shape, generator=_GENERATOR) for shape in shapes)
    return tensors if len(tensors) > 1 else tensors[0]


def _tags() -> Parts:
    return torch.randn(2, 4, 2, generator=_GENERATOR), torch.randn(1, 2, 2, generator=_GENERATOR)


_EDGES = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 0)]
_SIZES = {"k": torch.tensor([2, 1]), "lengths": torch.tensor([4, 3])}
_GRAPHS = si.GraphBatch.of([_EDGES, _EDGES[:3]], directed=False)

CASES: dict[str, tuple[Parts, dict[str, Any], dict[str, Any]]] = {
    "chain": (_tags(), {}, {}),
    "chain with lengths": (_tags(), {}, {"lengths": torch.tensor([4, 3])}),
    "chain of edges": (_scores((3, 2, 2)), {}, {}),
    "semi_markov": (_scores((3, 2, 2, 2)), {}, {}),
    "semi_markov with pairs": (_scores((3, 2, 2, 2)), {"pairwise": True}, {}),
    "semi_markov with lengths": (_scores((3, 2, 2), (2, 2)), {}, {"lengths": torch.tensor([3, 2])}),
    "semi_markov with boundaries": (_scores((3, 2), (3, 2, 2), (2, 2), (2, 2)), {}, {}),
    "semi_markov with boundaries and lengths": (
        _scores((3, 2), (3, 2, 2), (2, 2), (2, 2)),
        {},
        {"lengths": torch.tensor([3, 2])},
    ),
    "dtw": (_scores((3, 3)), {}, {}),
    "dtw with lengths": (_scores((3, 3)), {}, {"lengths": torch.tensor([[3, 3], [2, 3]])}),
    "needleman_wunsch": (_scores((2, 3), (2,)), {}, {}),
    "needleman_wunsch with lengths": (_scores((2, 3), (2,)), {}, {"lengths": torch.tensor([[2, 3], [2, 2]])}),
    "monotonic_alignment": (_scores((2, 3)), {}, {}),
    "monotonic_alignment with lengths": (_scores((2, 3)), {}, {"lengths": torch.tensor([[2, 3], [2, 2]])}),
    "binary_tree": (_scores((3, 3)), {}, {}),
    "binary_tree with lengths": (_scores((3, 3)), {}, {"lengths": torch.tensor([3, 2])}),
    "projective_tree": (_scores((3, 3)), {}, {}),
    "projective_tree with lengths": (_scores((4, 4)), {}, {"lengths": torch.tensor([3, 2])}),
    "subset": (_scores((4,)), {"k": 2}, {}),
    "subset with lengths": (_scores((4,)), {"k": 2}, {"lengths": torch.tensor([4, 3])}),
    "subset with sizes": (_scores((4,)), {}, {"k": torch.tensor([2, 1])}),
    "subset with sizes and lengths": (_scores((4,)), {}, _SIZES),
    "subset of at most k": (_scores((4,)), {"at_most": True}, {"k": torch.tensor([2, 5])}),
    "subset of at most k with lengths": (_scores((4,)), {"at_most": True}, {**_SIZES, "k": torch.tensor([2, 5])}),
    "bits with lengths": (_scores((4,)), {}, {"lengths": torch.tensor([4, 3])}),
    "correlated_subset": (_scores((4,), (3,)), {"k": 2}, {}),
    "correlated_subset with lengths": (_scores((4,), (3,)), {"k": 2}, {"lengths": torch.tensor([4, 3])}),
    "correlated_subset with sizes": (_scores((4,), (3,)), {}, {"k": torch.tensor([2, 1])}),
    "correlated_subset with sizes and lengths": (_scores((4,), (3,)), {}, _SIZES),
    "knapsack": (_scores((4,)), {"weights": (1, 2, 3, 2), "capacity": 4}, {}),
    "knapsack with data": (
        _scores((4,)),
        {},
        {"weights": torch.tensor([[1, 2, 3, 2], [2, 1, 3, 1]]), "capacity": torch.tensor([4, 5])},
    ),
    "grid_path": (_scores((2, 3)), {}, {}),
    "arborescence": (_scores((3, 3)), {}, {}),
    "arborescence with lengths": (_scores((4, 4)), {}, {"lengths": torch.tensor([3, 2])}),
    "assignment": (_scores((3, 3)), {}, {}),
    "spanning_tree": (_scores((4, 4)), {}, {}),
    "spanning_tree with lengths": (_scores((4, 4)), {}, {"lengths": torch.tensor([4, 3])}),
    "spanning_tree of edges": (_scores((6,)), {"edges": _EDGES}, {}),
    "spanning_tree of graphs": (_scores((6,)), {"edges": _GRAPHS}, {"graph_index": torch.tensor([1, 0])}),
    "categorical": (_scores((6,)), {}, {}),
}
"""The scores, the options of the oracle and the instance data of each case; the name starts with the oracle's name."""


@functools.cache
def calls_of(case: str) -> dict[str, Callable[[], Any]]:
    """Return calls for scores and instance data on the device.

    The calls are ``map``, with and without ``infer``, ``log_partition``, ``entropy``, ``log_prob``, ``sparsemap``,
    ``samples``, ``k best``, and ``marginals`` and losses with and without the backward pass. The gold structures of
    losses are given as parts, or as labels.

    Parameters
    ----------
    case : str
        A name of `CASES`.
    """
    theta, options, data = CASES[case]
    oracle = si.get_oracle(case.partition(" ")[0], **options)
    structures = si.relax(theta, oracle, "map", **data)
    gold, labels = on_device(structures), on_device(si.decode(structures, oracle, **data))
    data = {name: on_device(value) for name, value in data.items()}
    fixed, leaves = on_device(theta), on_device(theta, requires_grad=True)
    loss = si.FenchelYoungLoss(oracle, "marginals")
    weight = map_parts(lambda t: on_device(torch.randn(2, *t.shape[1:], generator=_GENERATOR)), theta)

    def backward() -> None:
        mean = si.relax(leaves, oracle, "marginals", **data)
        torch.autograd.grad(as_tuple(mean), as_tuple(leaves), as_tuple(weight))

    return {
        "map": lambda: si.relax(fixed, oracle, "map", **data),
        "log_partition": lambda: si.log_partition(fixed, oracle, **data),
        "marginals": lambda: si.relax(fixed, oracle, "marginals", **data),
        "sparsemap": lambda: si.relax(fixed, oracle, "sparsemap", **data),
        "infer map": lambda: si.infer(fixed, oracle, "map", **data),
        "samples": lambda: si.sample(fixed, oracle, 4, **data),
        "k best": lambda: si.topk(fixed, oracle, 3, **data),
        "entropy": lambda: si.entropy(fixed, oracle, **data),
        "marginals and backward": backward,
        "log_prob": lambda: si.log_prob(fixed, gold, oracle, **data),
        "loss": lambda: loss(fixed, gold, **data),
        "loss and backward": lambda: loss(leaves, gold, **data).backward(),
        "loss of labels and backward": lambda: loss(leaves, labels, **data).backward(),
    }


@functools.cache
def _copy_tables(case: str) -> None:
    """Call a function of the case, so that the tables of its graph are on the device."""
    calls = calls_of(case)
    with LaunchCounter():
        calls["marginals"]()


def count(case: str, call: str) -> LaunchCounter:
    """Return the counts of a call of :func:`calls_of`, which is not the first of the case."""
    _copy_tables(case)
    with LaunchCounter() as counter:
        calls_of(case)[call]()
    return counter
