"""A user's own regularizer, in every structure that can be smoothed."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from oracle_examples import parametrize
from structinf.parts import as_tuple

smoothable = parametrize(lambda example: isinstance(example.oracle(), si.Smoothable))


class TwiceTheEntropy(si.Regularizer):
    """As one writes it, without a thought for choices that are all forbidden."""

    def value(self, x):
        top = x.amax(-1, keepdim=True)
        return top.squeeze(-1) + 2 * ((x - top) / 2).exp().sum(-1).log()

    def gradient(self, x):
        return (x / 2).softmax(-1)

    def hessian_product(self, q, z):
        return q * (z - (q * z).sum(-1, keepdim=True)) / 2


def draw(example):
    """Many forbidden parts, but for those of one structure."""
    theta = [torch.randn(4, *shape, dtype=torch.float64) for shape in example.shapes]
    y = as_tuple(si.relax(tuple(theta) if example.is_tuple else theta[0], example.oracle(), "map"))
    theta[0].masked_fill_((torch.rand_like(theta[0]) < 0.4) & (y[0] == 0), -math.inf)
    return tuple(theta) if example.is_tuple else theta[0]


@smoothable
def test_it_is_the_entropy_of_twice_the_temperature(example):
    theta, oracle = draw(example), example.oracle()
    expected = si.relax(theta, oracle, "smoothed", temperature=2.0)
    found = si.relax(theta, oracle, "smoothed", regularizer=TwiceTheEntropy())
    for a, b in zip(as_tuple(found), as_tuple(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_choice_with_nothing_to_choose():
    theta = torch.tensor([[0.0, -math.inf, 0.0], [0.0, -math.inf, 0.0], [0.0, 0.0, 0.0]])
    for name in ("dtw", "grid_path"):
        mean = si.relax(theta, name, "smoothed", regularizer=TwiceTheEntropy())
        torch.testing.assert_close(mean, si.relax(theta, name, "smoothed", temperature=2.0))


@pytest.mark.parametrize("kind", [si.Negentropy, si.SquaredL2, si.Tsallis, si.Unregularized])
def test_those_of_the_library_have_no_subclasses(kind):
    with pytest.raises(TypeError, match=f"{kind.__name__} cannot be subclassed.*subclass Regularizer instead"):
        type("Mine", (kind,), {})
