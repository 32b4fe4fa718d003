"""Lists of parts name the structures of argmax, for all oracles with such lists and their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.errors import InfeasibleError
from structinf.parts import as_tuple, map_parts, pack_like, parts_to_vectors
from structinf.solvers.argmax import best_samples
from structinf.solvers.sampled_structures import DenseStructures, ListedStructures
from structinf_oracles.subset import Subset

SIZE = 6
SHAPES: dict[str, Any] = {
    "arborescence": [(SIZE, 7, 7)],
    "assignment": [(SIZE, 5, 5)],
    "chain": [(SIZE, 5, 3), (1, 3, 3)],
    "subset": [(SIZE, 9)],
}
CASES: list[tuple[str, dict[str, Any], list[tuple[int, ...]], dict[str, Any]]] = [
    *((name, {"k": 3} if name == "subset" else {}, shapes, {}) for name, shapes in SHAPES.items()),
    ("arborescence", {"single_root": True}, SHAPES["arborescence"], {}),
    ("arborescence", {}, SHAPES["arborescence"], {"lengths": [6, 1, 3, 4, 2, 5]}),
    ("assignment", {}, [(SIZE, 4, 7)], {}),
    ("assignment", {}, [(SIZE, 7, 4)], {}),
    ("assignment", {"allow_unmatched": True}, SHAPES["assignment"], {}),
    ("assignment", {"allow_unmatched": "by_score"}, [(SIZE, 4, 5)], {}),
    ("assignment", {}, SHAPES["assignment"], {"lengths": [[5, 2], [1, 1], [3, 4], [5, 5], [0, 3], [2, 5]]}),
    ("chain", {}, SHAPES["chain"], {"lengths": [5, 1, 3, 2, 4, 5]}),
    ("chain", {}, [(SIZE, 5, 3), (SIZE, 4, 3, 3)], {}),
    ("chain", {}, [(1, 5, 3), (SIZE, 3, 3)], {}),
    ("chain", {}, [(SIZE, 1, 3), (1, 3, 3)], {}),
    ("chain", {}, [(SIZE, 4, 3, 3)], {"lengths": [5, 1, 3, 2, 4, 5]}),
    ("subset", {"k": 0}, SHAPES["subset"], {}),
    ("subset", {"k": 4, "at_most": True}, SHAPES["subset"], {}),
    ("subset", {"k": 2}, SHAPES["subset"], {"lengths": [9, 2, 3, 5, 8, 4]}),
    ("subset", {}, SHAPES["subset"], {"k": [0, 9, 3, 1, 2, 4]}),
]


def _sum_of_indicators(lists: Tensor, y: si.Parts) -> Tensor:
    vectors = torch.zeros_like(parts_to_vectors(y))
    for row, parts in zip(vectors, lists.tolist(), strict=True):
        for part in parts:
            if part >= 0:
                row[part] += 1
    return vectors


def _result(method: Callable[[Any], Any], theta: Any) -> Any:
    """Return the result of ``method``, or the message of its error about an infeasible instance."""
    try:
        return method(theta)
    except InfeasibleError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["random", "ties", "forbidden"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}-{[*case[3]]}")
def test_lists_name_the_parts_of_argmax(case: Any, kind: str, dtype: torch.dtype) -> None:
    name, options, shapes, data = case
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    if kind == "ties":
        tensors = [t.round() for t in tensors]
    if kind == "forbidden":
        masks = [torch.rand(shape, generator=generator) < 0.1 for shape in shapes]
        tensors = [t.masked_fill(mask, -torch.inf) for t, mask in zip(tensors, masks, strict=True)]
    theta: Any = tuple(tensors) if len(tensors) > 1 else tensors[0]
    oracle = si.get_oracle(name, **options).bind(**data)
    y, lists = _result(oracle.argmax, theta), _result(oracle.argmax_indices, theta)
    if isinstance(y, str):
        assert lists == y
        return
    assert lists.dtype is torch.int32
    assert torch.equal(_sum_of_indicators(lists, y), parts_to_vectors(y))


def test_other_oracles_have_no_lists() -> None:
    assert si.get_oracle("bits").argmax_indices(torch.zeros(2, 3)) is None


def test_lists_and_dense_structures_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    theta = tuple(torch.randn(shape, generator=generator) for shape in ((8, 5, 3), (8, 3, 3)))
    noiseless = theta[0][:2], theta[1][:1]
    oracle = si.get_oracle("chain")
    found = best_samples(oracle, theta, noiseless, 4)
    assert isinstance(found, ListedStructures)
    y = map_parts(lambda t: t.view(4, 2, *t.shape[1:]), oracle.argmax(theta))
    dense = DenseStructures(y, map_parts(lambda t: t.mean(0), y))
    v = pack_like([torch.randn(t.shape[1:], generator=generator) for t in as_tuple(y)], y)
    for one, other in zip(as_tuple(found.structures), as_tuple(y), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(as_tuple(found.mean), as_tuple(dense.mean), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(found.inner_products(v), dense.inner_products(v))


def test_a_subclass_of_a_user_has_its_own_argmax() -> None:
    class Lowest(Subset):
        def argmax(self, theta: Tensor) -> Any:
            return super().argmax(-theta)

    mean = si.relax(torch.tensor([[5.0, 1.0, 0.0]]), Lowest(1), "perturbed", noise="normal", sigma=0.01)
    assert torch.equal(mean, torch.tensor([[0.0, 0.0, 1.0]]))
