"""Best assignments, arborescences and spanning trees by Triton kernels, with the ties of the compiled loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import structinf as si
from structinf_oracles.assignment import Assignment
from structinf_oracles.kernels.arborescence import triton_argmax
from structinf_oracles.kernels.arborescence.argmax import argmax as arborescence_argmax
from structinf_oracles.kernels.assignment import rectangular
from structinf_oracles.kernels.assignment import triton_shortest_augmenting_paths as augmenting_paths
from structinf_oracles.kernels.spanning_tree import triton_prim
from structinf_oracles.kernels.spanning_tree.argmax import prim

SCORES = ["normal", "ties", "forbidden", "thousands"]


def draw(kind: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + SCORES.index(kind))
    if kind == "normal":
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    theta = torch.randint(-1, 2, shape, generator=generator).double()
    if kind == "ties":
        return theta
    forbidden = torch.rand(shape, generator=generator) < 0.35
    return (1000 * theta if kind == "thousands" else theta).masked_fill(forbidden, -math.inf)


# ----------------------------------------------------------------------------- assignments


def compiled_assignments(theta: Tensor, sizes: Tensor | None, by_score: bool) -> tuple[Tensor, Tensor]:
    """Return structures and feasibility by the loops of the CPU, whatever the mode of the process."""
    oracle = Assignment(allow_unmatched="by_score" if by_score else False)
    full = oracle._with_free_columns(theta)
    if sizes is not None:
        oracle = oracle.bind(lengths=sizes)
    y, feasible = torch.zeros_like(full), np.empty(len(full), np.bool_)
    rectangular.argmax(0, len(full), *oracle._layout(full), y.numpy(), feasible)
    return y[..., : theta.shape[2]], torch.from_numpy(feasible)


def assert_equal_assignments(theta: Tensor, sizes: Tensor | None, by_score: bool) -> None:
    full = Assignment(allow_unmatched="by_score")._with_free_columns(theta) if by_score else theta
    y, feasible = augmenting_paths.argmax(full, sizes, theta.shape[1] if by_score else 0)
    expected, expected_feasible = compiled_assignments(theta, sizes, by_score)
    assert torch.equal(feasible, expected_feasible)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("by_score", [False, True])
@pytest.mark.parametrize("kind", SCORES)
def test_assignments(kind: str, by_score: bool) -> None:
    assert_equal_assignments(draw(kind, 4, 4, 4), None, by_score)
    sizes = torch.tensor([[3, 4], [3, 2], [0, 2]])
    assert_equal_assignments(draw(kind, 3, 3, 4), sizes, by_score)


@pytest.mark.full
@pytest.mark.parametrize("by_score", [False, True])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (5, 3), (3, 5), (7, 7)])
def test_assignments_of_all_shapes(kind: str, shape: tuple[int, int], by_score: bool) -> None:
    theta, generator = draw(kind, 6, *shape), torch.Generator().manual_seed(0)
    sizes = torch.stack([torch.randint(0, size + 1, (6,), generator=generator) for size in shape], 1)
    for dtype in (torch.float64, torch.float32):
        assert_equal_assignments(theta.to(dtype), None, by_score)
        assert_equal_assignments(theta.to(dtype), sizes, by_score)


def test_assignments_of_scores_that_are_not_finite_end() -> None:
    theta = draw("normal", 3, 3, 3)
    theta[0, 1], theta[1, :, 1], theta[2] = math.nan, math.inf, math.nan
    y, feasible = augmenting_paths.argmax(theta, torch.tensor([[3, 3], [-5, 3], [3, 10**9]]), 0)
    assert y.isfinite().all()
    assert not feasible.any()
    assert augmenting_paths.argmax(theta[:0], None, 0)[0].shape == (0, 3, 3)


def test_public_calls_of_assignments() -> None:
    theta = draw("forbidden", 2, 3, 4).transpose(1, 2).nan_to_num(neginf=-2.5)  # not contiguous
    expected = compiled_assignments(theta, None, False)[0]
    assert torch.equal(si.relax(theta, "assignment", "map"), expected)
    assert torch.equal(si.relax(theta[0], "assignment", "map", lengths=[4, 3]), expected[0])
    theta[1, :, 2] = -math.inf
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(theta, "assignment", "map")
    # The number of pairs depends on the scores, so the CPU decides.
    assert si.relax(theta, "assignment", "map", allow_unmatched=True)[1].sum() == 2


# ----------------------------------------------------------------------------- arborescences


def assert_equal_trees(theta: Tensor, lengths: Tensor, single_root: bool) -> None:
    y, feasible = triton_argmax.argmax(theta, lengths, single_root)
    expected, value = torch.zeros_like(theta), torch.empty(len(theta), dtype=torch.float64)
    scores = theta.contiguous().numpy()
    arborescence_argmax(0, len(theta), scores, lengths.numpy(), single_root, expected.numpy(), value.numpy())
    assert torch.equal(feasible, value > -math.inf)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", SCORES)
def test_trees(kind: str, single_root: bool) -> None:
    theta = draw(kind, 3, 5, 5)
    theta[0, 0] -= 5  # cycles
    assert_equal_trees(theta, torch.tensor([4, 3, 1]), single_root)


@pytest.mark.full
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("words", [1, 2, 3, 6, 9])
def test_trees_of_all_sizes(kind: str, words: int, single_root: bool) -> None:
    theta, generator = draw(kind, 8, words + 1, words + 1), torch.Generator().manual_seed(0)
    theta[::2, 0] -= 5
    lengths = torch.randint(1, words + 1, (8,), generator=generator)
    for dtype in (torch.float64, torch.float32):
        assert_equal_trees(theta.to(dtype), torch.full((8,), words), single_root)
        assert_equal_trees(theta.to(dtype), lengths, single_root)


def test_trees_of_scores_that_are_not_finite_end() -> None:
    theta = draw("normal", 3, 4, 4)
    theta[0], theta[1, :, 2], theta[2, 1:] = math.nan, math.inf, math.nan
    y, feasible = triton_argmax.argmax(theta, torch.tensor([3, 3, 10**9]), False)
    assert y.isfinite().all()
    assert feasible.tolist() == [False, False, True]
    assert triton_argmax.argmax(theta[:0], torch.zeros(0).long(), True)[0].shape == (0, 4, 4)


@pytest.mark.full
def test_public_calls_of_trees() -> None:
    theta = draw("normal", 2, 4, 4).transpose(1, 2)
    y = si.relax(theta, "arborescence", "map", lengths=[3, 2])
    assert_equal_trees(theta, torch.tensor([3, 2]), False)
    assert torch.equal(y, triton_argmax.argmax(theta, torch.tensor([3, 2]), False)[0])
    theta[1, :, 2] = -math.inf
    with pytest.raises(si.InfeasibleError, match=r"single root .* batch index 1"):
        si.relax(theta, "arborescence", "map", single_root=True)


# ----------------------------------------------------------------------------- spanning trees


def assert_equal_spanning_trees(theta: Tensor, lengths: Tensor) -> None:
    y, feasible = triton_prim.argmax(theta, lengths)
    expected, expected_feasible = torch.zeros_like(theta), np.empty(len(theta), np.bool_)
    prim(0, len(theta), theta.contiguous().numpy(), lengths.numpy(), expected.numpy(), expected_feasible)
    assert torch.equal(feasible, torch.from_numpy(expected_feasible))
    assert torch.equal(y[feasible], expected[feasible])


@pytest.mark.parametrize("kind", SCORES)
def test_spanning_trees(kind: str) -> None:
    assert_equal_spanning_trees(draw(kind, 3, 5, 5), torch.tensor([5, 4, 1]))
    assert_equal_spanning_trees(draw(kind, 2, 4, 4).float().mT, torch.tensor([4, 2]))


@pytest.mark.full
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 9])
def test_spanning_trees_of_all_sizes(kind: str, nodes: int) -> None:
    lengths = torch.randint(1, nodes + 1, (8,), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.float32):
        assert_equal_spanning_trees(draw(kind, 8, nodes, nodes).to(dtype), lengths)


def test_spanning_trees_of_scores_that_are_not_finite_end() -> None:
    theta = draw("normal", 3, 3, 3)
    theta[0], theta[1, 0] = math.nan, math.inf
    y, feasible = triton_prim.argmax(theta, torch.tensor([3, 3, 10**9]))
    assert y.isfinite().all()
    assert feasible.tolist() == [False, True, True]
    assert triton_prim.argmax(theta[:0], torch.zeros(0).long())[0].shape == (0, 3, 3)


def test_public_calls_of_spanning_trees() -> None:
    theta = draw("normal", 2, 4, 4)
    y = si.relax(theta, "spanning_tree", "map", lengths=[4, 3])
    assert_equal_spanning_trees(theta, torch.tensor([4, 3]))
    assert torch.equal(y, triton_prim.argmax(theta, torch.tensor([4, 3]))[0])
    theta[1, 0] = -math.inf
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(theta, "spanning_tree", "map")
