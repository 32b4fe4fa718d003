"""Shapes in annotations are checked at every call under pytest, and each of them is well formed."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from jaxtyping import Float, Int, jaxtyped
from torch import Tensor

from shape_check import annotated_modules, checked


@jaxtyped(typechecker=checked)
def rows_and_sums(
    x: Float[Tensor, "*batch n"], like: Float[Tensor, "*batch"] | None = None
) -> tuple[Float[Tensor, "*batch"], Int[Tensor, " n"]]:
    return x.sum(-1), torch.arange(x.shape[-1] + (like is not None and bool(like.isnan().any())))


def test_right_shapes_pass():
    rows_and_sums(torch.ones(2, 3, 4))
    rows_and_sums(torch.ones(2, 3, 4), torch.ones(2, 3))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((torch.ones(2, 3), torch.ones(3)), id="other batch"),
        pytest.param((torch.ones(2, 3, dtype=torch.int64),), id="other kind of number"),
        pytest.param((torch.ones(2, 3), torch.full((2,), torch.nan)), id="wrong result"),
    ],
)
def test_wrong_shapes_fail(arguments):
    with pytest.raises(jaxtyping.TypeCheckError):
        rows_and_sums(*arguments)


def shapes_of(source: str) -> Iterator[str]:
    """Annotations of arguments and results that speak of shapes, as written."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield ast.unparse(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield ast.unparse(node.returns)


@pytest.mark.parametrize("name", list(annotated_modules()))
def test_annotations_are_well_formed(name):
    # jaxtyping checks nothing where it cannot evaluate an annotation, so a slip would go unnoticed.
    module = importlib.import_module(name)
    shapes = [shape for shape in shapes_of(inspect.getsource(module)) if "jaxtyping." in shape]
    assert shapes
    for shape in shapes:
        eval(shape, {**vars(module), "jaxtyping": jaxtyping})
