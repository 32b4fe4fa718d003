"""Rounds of the active set solver: tolerances, batches, warm starts, large supports."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from active_set_problems import BOTH, TIGHT, Listed, assignments, batched, certified_gap, draw, reference
from structinf import get_oracle
from structinf.errors import InvalidInputError
from structinf.oracle import Oracle
from structinf.solvers.active_set import active_set


@BOTH
def test_one_round_is_not_enough_and_says_so(solver):
    structures, theta = assignments(4), 0.3 * draw(12, 3, 4, 4)
    solution = solver(Listed(structures), theta, tolerance=1e-9, max_iter=1)
    flat = structures.flatten(1).double().numpy()
    assert not solution.converged.any()
    assert solution.oracle_calls == 2
    best = solver(Listed(structures), theta, **TIGHT)
    for b in range(3):
        gap = certified_gap(flat, theta[b].flatten().numpy(), solution.mean[b].flatten().numpy())
        np.testing.assert_allclose(solution.gap[b], gap, atol=1e-12)
        assert best.value[b] - solution.value[b] <= solution.gap[b]
        assert 0.5 * (best.mean[b] - solution.mean[b]).square().sum() <= solution.gap[b]


@BOTH
def test_tolerance_is_relative_to_the_scores(solver):
    structures = assignments(4)
    for scale in (1e-3, 1.0, 1e3):
        theta = scale * draw(13, 8, 4, 4)
        loose = solver(Listed(structures), theta, tolerance=1e-2, max_iter=100)
        size = (structures * theta.abs()[:, None]).flatten(2).sum(2).amax(1) + 4
        assert loose.converged.all()
        assert (loose.gap <= 1e-2 * size).all()
        assert solver(Listed(structures), theta, **TIGHT).converged.all()


def test_float32_converges_as_well_as_float64():
    structures = assignments(5)
    theta = draw(14, 16, 5, 5).float()
    single, double = (active_set(Listed(structures), t, **TIGHT) for t in (theta, theta.double()))
    assert single.mean.dtype == single.weights.dtype == single.value.dtype == single.gap.dtype == torch.float32
    assert single.converged.all()
    assert single.oracle_calls == double.oracle_calls
    torch.testing.assert_close(single.mean, double.mean.float(), atol=0, rtol=0)
    torch.testing.assert_close(single.support(), double.support().float(), atol=0, rtol=0)


@BOTH
def test_batch_does_not_matter(solver):
    structures, theta = assignments(4), draw(15, 12, 4, 4)
    together = solver(Listed(structures), theta, **TIGHT)
    atol = 0 if solver is active_set else 1e-14  # matrix products over batches may round otherwise
    for b in range(12):
        alone = solver(Listed(structures), theta[b : b + 1], **TIGHT)
        torch.testing.assert_close(alone.mean[0], together.mean[b], atol=atol, rtol=0)
        torch.testing.assert_close(alone.weights[:, 0], together.weights[: len(alone.weights), b], atol=atol, rtol=0)
        assert alone.iterations[0] == together.iterations[b]
        assert together.oracle_calls >= alone.oracle_calls


@BOTH
def test_bound_data_follow_the_instances(solver):
    """Instances finish at different times; the oracle must keep pairing each with its own data."""
    structures = assignments(4)
    allowed = draw(16, 10, 24) > -0.5
    theta = 0.5 * draw(17, 10, 4, 4)
    solution = solver(Listed(structures, kept=slice(None)).bind(allowed=allowed), theta, readout=True, **TIGHT)
    for b in range(10):
        flat = structures[allowed[b]].flatten(1).double().numpy()
        np.testing.assert_allclose(
            solution.mean[b].flatten(), reference(flat, theta[b].flatten().numpy())[0], atol=1e-6
        )


@BOTH
def test_warm_start(solver):
    structures, theta = assignments(5), 0.3 * draw(18, 6, 5, 5)
    cold = solver(Listed(structures), theta, **TIGHT)
    again = solver(Listed(structures), theta, warm_start=cold.support(), **TIGHT)
    assert again.oracle_calls == 1 < cold.oracle_calls
    assert again.converged.all()
    torch.testing.assert_close(again.mean, cold.mean, atol=1e-12, rtol=0)
    near = theta + 1e-3 * draw(19, 6, 5, 5)
    warm, fresh = (solver(Listed(structures), near, warm_start=w, **TIGHT) for w in (cold.support(), None))
    torch.testing.assert_close(warm.mean, fresh.mean, atol=1e-12, rtol=0)
    assert warm.oracle_calls < fresh.oracle_calls


@BOTH
def test_warm_start_passes_over_useless_structures(solver):
    structures, theta = assignments(3).double(), draw(20, 4, 3, 3)
    theta[0, 0, 0] = -torch.inf
    every = structures[:, None].expand(-1, 4, -1, -1)
    start = torch.cat([torch.zeros(1, 4, 3, 3), every, every])
    cold = solver(Listed(structures), theta, **TIGHT)
    warm = solver(Listed(structures), theta, warm_start=start, **TIGHT)
    torch.testing.assert_close(warm.mean, cold.mean, atol=1e-12, rtol=0)
    assert warm.converged.all()
    assert warm.mean[0, 0, 0] == 0
    nothing = solver(Listed(structures), theta, warm_start=start[:1], **TIGHT)
    torch.testing.assert_close(nothing.mean, cold.mean, atol=0, rtol=0)
    with pytest.raises(InvalidInputError, match="warm_start"):
        solver(Listed(structures), theta, warm_start=start[:, :2], **TIGHT)


# ----------------------------------------------------------------------------- growth and agreement


class Assigned(Oracle):
    """Assignments of any size."""

    event_ndim = 2

    def argmax(self, theta):
        from scipy.optimize import linear_sum_assignment

        y = torch.zeros_like(theta)
        for b, scores in enumerate(theta.numpy()):
            rows, columns = linear_sum_assignment(scores, maximize=True)
            y[b, rows, columns] = 1
        return y


class Thresholded(Oracle):
    """Any subset, so that the number of non-zeros differs between structures."""

    event_ndim = 1

    def argmax(self, theta):
        return (theta > 0).to(theta.dtype)


@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_large_supports(scale):
    """Supports and non-zeros outgrow the room that was first made for them; both programs agree."""
    theta = scale * draw(38, 4, 12, 12)
    mine, other = (solver(Assigned(), theta, **TIGHT) for solver in (active_set, batched))
    assert mine.converged.all()
    assert other.converged.all()
    assert scale == 1.0 or len(mine.weights) > 64
    torch.testing.assert_close(mine.mean, other.mean, atol=1e-9, rtol=0)
    torch.testing.assert_close(mine.value, other.value, atol=1e-9, rtol=0)
    v = draw(39, 4, 12, 12)
    torch.testing.assert_close(mine.vjp(v, None), other.vjp(v, None), atol=1e-9, rtol=0)
    support = mine.support()
    torch.testing.assert_close((mine.weights[..., None, None] * support).sum(0), mine.mean, atol=1e-13, rtol=0)


@BOTH
def test_box(solver):
    """The projection onto the cube is clipping."""
    theta = torch.cat([draw(40, 3, 40), 0.5 + 0.5 * draw(41, 3, 40)])
    solution = solver(Thresholded(), theta, **TIGHT)
    torch.testing.assert_close(solution.mean, theta.clamp(0, 1), atol=1e-9, rtol=0)


@BOTH
def test_regular_ties(solver):
    """All scores equal: the mean is uniform, and the support need not be unique."""
    solution = solver(Assigned(), torch.full((2, 8, 8), 3.0, dtype=torch.float64), **TIGHT)
    torch.testing.assert_close(solution.mean, torch.full((2, 8, 8), 1 / 8, dtype=torch.float64), atol=1e-12, rtol=0)
    assert solution.converged.all()
    assert solution.vjp(draw(42, 2, 8, 8), None).isfinite().all()


@pytest.mark.parametrize("batch", [1, 48])
def test_batched_programs_of_long_chains(batch):
    # Of many instances some meet dependent vertices in a round in which others take theirs in at once.
    unary = torch.randn(batch, 50, 10, generator=torch.Generator().manual_seed(0))
    transition = torch.randn(1, 10, 10, generator=torch.Generator().manual_seed(0))
    chain = get_oracle("chain")
    mine = batched(chain, (unary, transition), readout=True, tolerance=1e-12, max_iter=1000)
    compiled = active_set(chain, (unary, transition), readout=True, tolerance=1e-12, max_iter=1000)
    assert mine.converged.all()
    assert compiled.converged.all()
    torch.testing.assert_close(mine.mean[0], compiled.mean[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(mine.value, compiled.value)
