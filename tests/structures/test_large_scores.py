"""Scores beyond the precision of their sums, as small temperatures and large finite masks make them."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from oracle_examples import parametrize
from structinf.parts import as_tuple, map_parts

pytestmark = pytest.mark.slow

REGULARIZERS = ["negentropy", "squared_l2", si.Tsallis(alpha=1.5), si.Tsallis(alpha=1.25)]

smoothable = parametrize(lambda example: isinstance(example.oracle(), si.Smoothable))


def draw(example, dtype):
    tensors = [torch.randn(3, *shape, dtype=dtype) for shape in example.shapes]
    return tuple(tensors) if example.is_tuple else tensors[0]


@pytest.mark.matrix
@smoothable
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=str)
@pytest.mark.parametrize("temperature", [1e-7, 1e-12, 1e-30])
def test_means_tend_to_a_best_structure(example, regularizer, dtype, temperature):
    theta, oracle = draw(example, dtype), example.oracle()
    best = si.relax(theta, oracle, "map")
    mean = si.relax(theta, oracle, "smoothed", regularizer=regularizer, temperature=temperature)
    for y, m in zip(as_tuple(best), as_tuple(mean), strict=True):
        torch.testing.assert_close(m, y, rtol=0, atol=1e-3 if dtype is torch.float32 else 1e-6)


@smoothable
@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=str)
@pytest.mark.parametrize("mask", [-1e9, -1e30])
def test_a_mask_that_all_structures_must_use_leaves_means_in_the_hull(example, regularizer, mask):
    """Where parts are all equally bad: means have the parts that all structures have, as often as they do."""
    theta, oracle = draw(example, torch.float64), example.oracle()
    theta = map_parts(lambda t: torch.full_like(t, mask), theta)
    mean = si.relax(theta, oracle, "smoothed", regularizer=regularizer)
    every = si.get_oracle(example.name, **example.options).enumerate(example.event_shape)
    for m, y in zip(as_tuple(mean), as_tuple(every), strict=True):
        assert (m >= y.amin(0) - 1e-9).all()
        assert (m <= y.amax(0) + 1e-9).all()
        assert (m.flatten(1).sum(1) >= y.flatten(1).sum(1).min() - 1e-9).all()
        assert (m.flatten(1).sum(1) <= y.flatten(1).sum(1).max() + 1e-9).all()


def test_choices_of_masked_parts_are_still_choices():
    mean = si.relax(torch.tensor([-1e30, -1e30, -1e30, 0.0]), "subset", "marginals", k=2)
    assert mean.sum() == 2
    assert (mean[:3] > 0).all()
    unary, transition = torch.zeros(3, 2), torch.tensor([[-1e9, -1e9], [-1e9, -2e9]])
    assert si.relax((unary, transition), "chain", "marginals")[1].sum() == 2
