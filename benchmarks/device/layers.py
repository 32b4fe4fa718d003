"""Layers of every structure with every supported relaxation, one size each, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple, map_parts

__all__ = ["SIZES", "Size", "combinations", "grid_edges", "make"]

BATCH = 32


@dataclass(frozen=True)
class Size:
    """The options of a structure, and the event shapes of θ."""

    shapes: tuple[tuple[int, ...], ...]
    quick: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    quick_options: Mapping[str, Any] | None = None


def grid_edges(n: int) -> list[tuple[int, int]]:
    """Return the edges to the right and down between n × n nodes."""
    right = [(n * i + j, n * i + j + 1) for i in range(n) for j in range(n - 1)]
    return right + [(n * i + j, n * (i + 1) + j) for i in range(n - 1) for j in range(n)]


def _one(*shape: int) -> tuple[tuple[int, ...], ...]:
    return (shape,)


SIZES: Mapping[str, Size] = {
    "arborescence": Size(_one(21, 21), _one(3, 3)),
    "assignment": Size(_one(20, 20), _one(3, 3)),
    "binary_tree": Size(_one(20, 20), _one(3, 3)),
    "bits": Size(_one(100), _one(3)),
    "categorical": Size(_one(1000), _one(3)),
    "chain": Size(((50, 10), (10, 10)), ((3, 2), (2, 2))),
    "correlated_subset": Size(((50,), (49,)), ((4,), (3,)), {"k": 5}, {"k": 2}),
    "dag_path": Size(_one(40), _one(4), {"graph": grid_edges(5)}, {"graph": grid_edges(2)}),
    "dtw": Size(_one(50, 50), _one(2, 3)),
    "flow": Size(
        _one(40),
        _one(4),
        {"graph": grid_edges(5), "supplies": {0: 2, 24: -2}},
        {"graph": grid_edges(2), "supplies": {0: 1, 3: -1}},
    ),
    "grid_path": Size(_one(12, 12), _one(2, 3)),
    "knapsack": Size(
        _one(30), _one(3), {"weights": tuple(range(1, 31)), "capacity": 60}, {"weights": (1, 2, 3), "capacity": 3}
    ),
    "matching": Size(_one(12, 12), _one(4, 4)),
    "monotonic_alignment": Size(_one(30, 50), _one(2, 3)),
    "needleman_wunsch": Size(((40, 40), (2,)), ((2, 2), (2,))),
    "path": Size(
        _one(40),
        _one(4),
        {"graph": grid_edges(5), "source": 0, "target": 24},
        {"graph": grid_edges(2), "source": 0, "target": 3},
    ),
    "projective_tree": Size(_one(21, 21), _one(3, 3)),
    "ranking": Size(_one(100), _one(3)),
    "semi_markov": Size(_one(50, 5, 5), _one(3, 2, 2)),
    "spanning_tree": Size(_one(20, 20), _one(3, 3)),
    "subset": Size(_one(100), _one(4), {"k": 10}, {"k": 2}),
    "transportation": Size(
        _one(10, 10),
        _one(2, 2),
        {"supplies": (1,) * 10, "demands": (1,) * 10},
        {"supplies": (1, 2), "demands": (2, 1)},
    ),
}
"""Without tours, programs and constraint models, whose solvers are other libraries', called for each instance."""


def combinations() -> Iterator[tuple[str, str]]:
    """Return the names of structures, each with its supported relaxations."""
    for structure, size in SIZES.items():
        oracle = si.get_oracle(structure, **size.options)
        for relaxation in si.list_relaxations():
            if si.get_relaxation(relaxation).unsupported_reason(oracle) is None:
                yield structure, relaxation


def make(device: str, structure: str, relaxation: str, quick: bool) -> Callable[[], Any]:
    """Return a function for a forward and a backward pass of a batch; only the forward pass if the gradient is 0."""
    size = SIZES[structure]
    options = (size.quick_options if quick else None) or size.options
    oracle = si.get_oracle(structure, **options)
    layer = si.Layer(oracle, relaxation).to(device)
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(2 if quick else BATCH, *shape, generator=generator)
        for shape in (size.quick if quick else size.shapes)
    ]
    if structure in ("chain", "needleman_wunsch"):
        tensors[1] = tensors[1][0]  # shared by the batch
    if oracle.requires_nonpositive_theta:
        tensors = [-t.abs() for t in tensors]
    leaves = tuple(t.to(device).requires_grad_() for t in tensors)
    theta = leaves if len(leaves) > 1 else leaves[0]

    def run() -> Any:
        mean = as_tuple(layer(theta))
        if layer.relaxation.piecewise_constant:
            return mean
        return torch.autograd.grad(mean, leaves, cotangents(mean))

    def cotangents(mean: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(map_parts(lambda m: torch.linspace(-1, 1, m.shape[-1], device=device).expand_as(m), mean))

    return run
