"""Shapes in annotations are checked at every call under pytest, and each of them is well formed."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from torch import Tensor

import structinf
from shape_checker import NAMES, annotated_modules, checked, shapes_of
from structinf.shapes import Float, Int


@checked
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
    with pytest.raises(TypeError, match="of rows_and_sums is not of its annotated shape"):
        rows_and_sums(*arguments)


@checked
@dataclass
class Pair:
    first: Float[Tensor, " n"]
    second: Float[Tensor, " n"]


def test_fields_are_arguments():
    Pair(torch.ones(2), second=torch.ones(2))
    with pytest.raises(TypeError, match="second of "):
        Pair(torch.ones(2), second=torch.ones(3))


def test_the_library_is_checked():
    with pytest.raises(TypeError, match="weight of scale_per_instance is not of its annotated shape"):
        structinf.parts.scale_per_instance(torch.zeros(2, 3), torch.zeros(2, 1))


@pytest.mark.parametrize("name", list(annotated_modules()))
def test_annotations_are_well_formed(name):
    # An annotation is evaluated when its function is first called, which may be never.
    module = importlib.import_module(name)
    shapes = [shape for node in ast.walk(ast.parse(inspect.getsource(module))) for shape in shapes_of(node)]
    assert shapes
    for shape in shapes:
        eval(shape, {**vars(module), **{name: getattr(jaxtyping, name) for name in NAMES}})
