"""The search for rivals of a support, compared with linear programs over all structures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import structinf
from uniqueness import find_rivals

CASES = [("bits", (3,), {}), ("subset", (5,), {"k": 2}), ("assignment", (3, 3), {}), ("arborescence", (4, 4), {})]


def are_unique(mean: np.ndarray, structures: np.ndarray) -> bool:
    """Whether only one distribution over the ``structures`` (n, d) has this ``mean`` (d,)."""
    equations = {"A_eq": np.vstack([structures.T, np.ones(len(structures))]), "b_eq": np.append(mean, 1)}
    for structure in np.eye(len(structures)):
        least, most = (linprog(sign * structure, **equations).fun * sign for sign in (1, -1))
        if most - least > 1e-6:
            return False
    return True


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("name", "shape", "options"), CASES, ids=[name for name, *_ in CASES])
def test_rivals_exist_where_weights_are_not_unique(name, shape, options, scale):
    oracle = structinf.get_oracle(name, **options)
    structures = oracle.enumerate(shape).flatten(1).numpy()
    for _ in range(4):
        theta = scale * torch.randn(shape, dtype=torch.float64)
        mean = structinf.relax(theta, oracle, "sparsemap", tolerance=0).flatten().numpy()
        assert are_unique(mean, structures) == (not find_rivals(theta, oracle))


def test_a_square_has_two_diagonals():
    assert find_rivals(torch.full((2,), 0.5), "bits")
    assert not find_rivals(torch.tensor([0.5, 2.0]), "bits")


def test_a_structure_at_the_margin_is_a_rival():
    assert find_rivals(torch.tensor([1.0, 0.5, 0.0]), "categorical", temperature=0.5)  # the mean is (1, 0, 0)
    assert not find_rivals(torch.tensor([1.0, 0.4, 0.0]), "categorical", temperature=0.5)


def test_ties_of_the_best_structure_are_rivals():
    assert find_rivals(torch.tensor([1.0, 1.0, 0.0]), "categorical", "map")
    assert not find_rivals(torch.tensor([1.0, 0.9, 0.0]), "categorical", "map")
