"""The active set solver, against quadratic programs solved independently over enumerated structures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from active_set_problems import (
    BOTH,
    SETS,
    TIGHT,
    Listed,
    assignments,
    batched,
    bits,
    certified_gap,
    chains,
    draw,
    reference,
    subsets,
)
from structinf.solvers.active_set import active_set


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 1000.0])
@pytest.mark.parametrize("name", SETS)
def test_agrees_with_an_independent_program(name, scale):
    structures = SETS[name]
    theta = scale * draw(0, 3, *structures.shape[1:])
    flat = structures.flatten(1).double().numpy()
    solutions = [solver(Listed(structures), theta, **TIGHT) for solver in (active_set, batched)]
    for b, row in enumerate(theta.flatten(1).numpy()):
        mean, value = reference(flat, row)
        size = np.abs(flat * row).sum(1).max() + (flat**2).sum(1).max()
        for solution in solutions:
            found = solution.mean[b].flatten().numpy()
            assert solution.converged[b]
            np.testing.assert_allclose(found, mean, atol=1e-6)
            np.testing.assert_allclose(solution.value[b], value, atol=1e-8, rtol=1e-11)
            assert certified_gap(flat, row, found) <= 1e-12 * size


@BOTH
def test_support_is_a_sparse_distribution(solver):
    structures = assignments(4)
    solution = solver(Listed(structures), draw(1, 6, 4, 4), **TIGHT)
    support = solution.support()
    used = solution.weights > 0
    assert support.shape == (*solution.weights.shape, 4, 4)
    assert used.any(1).all()
    assert used[0].all()
    torch.testing.assert_close(solution.weights.sum(0), torch.ones(6, dtype=torch.float64), atol=1e-15, rtol=0)
    assert (solution.weights.diff(dim=0) <= 0).all()
    mean = (solution.weights[..., None, None] * support).sum(0)
    torch.testing.assert_close(mean, solution.mean, atol=1e-15, rtol=0)
    known = {tuple(y.flatten().tolist()) for y in structures.double()}
    for b in range(6):
        mine = [tuple(y.flatten().tolist()) for y, u in zip(support[:, b], used[:, b], strict=True) if u]
        assert len(set(mine)) == len(mine)
        assert set(mine) <= known
    assert not support[~used].any()


@BOTH
def test_golden_values(solver):
    def mean(structures, theta):
        solution = solver(Listed(structures), theta[None].double(), **TIGHT)
        assert solution.converged.all()
        return solution

    def close(found, wanted):
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)

    two = mean(assignments(2), torch.tensor([[1, 0], [0, 0.5]]))
    close(two.mean[0], [[0.875, 0.125], [0.125, 0.875]])
    close(two.weights[:, 0], [0.875, 0.125])
    three = mean(assignments(3), torch.tensor([[1, 0.5, 0], [0.2, 0, 0.4], [0, 0.1, 0.3]]))
    close(three.mean[0], [[0.65, 0.35, 0], [0.241667, 0.241667, 0.516667], [0.108333, 0.408333, 0.483333]])
    close(mean(subsets(4, 2), torch.tensor([0, 0.25, 0.5, 0.75])).mean[0], [0.125, 0.375, 0.625, 0.875])
    steps = torch.tensor([0, 0.25, 0.5, 0.75, 1])
    at_most = bits(5)
    close(mean(at_most[at_most.sum(1) <= 2], steps).mean[0], [0, 0.125, 0.375, 0.625, 0.875])
    close(mean(at_most[at_most.sum(1) <= 3], 2 * steps).mean[0], [0, 0.25, 0.75, 1, 1])
    trees = subsets(3, 2)  # any two edges of a triangle
    close(mean(trees, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).log()).mean[0], [0.153426, 0.846574, 1])
    close(mean(torch.eye(3), torch.tensor([1.0, 2.0, 0.0])).mean[0], [0, 1, 0])


@BOTH
def test_forbidden_parts_never_enter(solver):
    structures = assignments(4)
    theta = draw(2, 4, 4, 4)
    theta[0, 0, :3] = theta[1, 1, 2] = theta[2, :2, :2] = -torch.inf
    solution = solver(Listed(structures), theta, **TIGHT)
    assert solution.converged.all()
    assert (solution.mean[theta.isneginf()] == 0).all()
    flat = structures.flatten(1).double().numpy()
    for b in range(4):
        mean, _ = reference(flat, theta[b].flatten().numpy())
        np.testing.assert_allclose(solution.mean[b].flatten(), mean, atol=1e-6)
    gradient = solution.vjp(draw(3, 4, 4, 4), None)
    assert (gradient[theta.isneginf()] == 0).all()
    assert gradient.isfinite().all()


# ----------------------------------------------------------------------------- readouts


@BOTH
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 100.0])
def test_readout_that_keeps_a_tensor(solver, scale):
    tags, moves = chains(5, 3)
    theta = scale * draw(4, 6, 5, 3), scale * draw(5, 1, 3, 3)
    oracle = Listed(tags, moves, kept=0)
    solution = solver(oracle, theta, readout=True, **TIGHT)
    assert solution.converged.all()
    assert [t.shape for t in solution.mean] == [(6, 5, 3), (6, 3, 3)]
    # The penalty does not see the shared transition, so the oracle gets it shared in every round.
    assert {shapes[1] for shapes in oracle.seen} == {(1, 3, 3)}
    flat = torch.cat([tags.flatten(1).double(), moves.flatten(1).double()], 1).numpy()
    select = np.eye(24)[:, :15]
    for b in range(6):
        row = np.concatenate([theta[0][b].flatten(), theta[1][0].flatten()])
        found = torch.cat([m[b].flatten() for m in solution.mean]).numpy()
        assert certified_gap(flat, row, found, select) <= 1e-12 * (5 + np.abs(flat * row).sum(1).max())
        np.testing.assert_allclose(solution.value[b], row @ found - found[:15] @ found[:15] / 2, rtol=1e-13)
        unary, transition = (s[:, b].flatten(1) for s in solution.support())
        np.testing.assert_allclose(solution.weights[:, b] @ unary, found[:15], atol=1e-14)
        np.testing.assert_allclose(solution.weights[:, b] @ transition, found[15:], atol=1e-14)


@BOTH
def test_readout_that_keeps_a_tensor_against_an_independent_program(solver):
    tags, moves = chains(3, 2)
    theta = draw(4, 6, 3, 2), draw(5, 6, 2, 2)
    solution = solver(Listed(tags, moves, kept=0), theta, readout=True, **TIGHT)
    flat = torch.cat([tags.flatten(1).double(), moves.flatten(1).double()], 1).numpy()
    for b in range(6):
        row = np.concatenate([t[b].flatten() for t in theta])
        mean, value = reference(flat, row, np.eye(10)[:, :6])
        np.testing.assert_allclose(solution.mean[0][b].flatten(), mean, atol=1e-6)
        np.testing.assert_allclose(solution.value[b], value, atol=1e-8)


@BOTH
def test_tuple_with_all_coordinates_penalised(solver):
    tags, moves = chains(3, 3)
    theta = draw(6, 5, 3, 3), draw(7, 1, 3, 3)
    oracle = Listed(tags, moves)
    solution = solver(oracle, theta, **TIGHT)
    # The first call sees θ; later ones the gradient, which differs between instances.
    assert oracle.seen[1][1] == (5, 3, 3)
    flat = torch.cat([tags.flatten(1).double(), moves.flatten(1).double()], 1).numpy()
    for b in range(5):
        row = np.concatenate([theta[0][b].flatten(), theta[1][0].flatten()])
        found = torch.cat([m[b].flatten() for m in solution.mean]).numpy()
        np.testing.assert_allclose(found, reference(flat, row)[0], atol=1e-6)


@BOTH
@pytest.mark.parametrize("width", [2, 4, 9])
def test_readout_that_mixes(solver, width):
    """Fewer readout coordinates than parts make structures dependent in them that differ in score."""
    structures, mix = assignments(3).double(), draw(8, 9, width)
    theta = draw(9, 8, 3, 3)
    oracle = Listed(structures, mixed=mix)
    solution = solver(oracle, theta, readout=True, **TIGHT)
    assert solution.converged.all()
    flat = structures.flatten(1).numpy()
    for b, row in enumerate(theta.flatten(1).numpy()):
        mean, value = reference(flat, row, mix.numpy())
        found = solution.mean[b].flatten().numpy()
        np.testing.assert_allclose(found @ mix.numpy(), mean, atol=1e-6)
        np.testing.assert_allclose(solution.value[b], value, atol=1e-8)
        assert certified_gap(flat, row, found, mix.numpy()) <= 1e-11
        assert int((solution.weights[:, b] > 0).sum()) <= width + 1


@BOTH
def test_readout_that_sees_part_of_a_tensor(solver):
    """A scaled-down identity is no selection; a masking one is, and need not be the same for each tensor."""
    structures = subsets(5, 2).double()
    theta = draw(10, 4, 5)
    for diagonal in (torch.tensor([1.0, 1, 0, 1, 0]), torch.tensor([1.0, 0.5, 0, 2, 1])):
        mix = diagonal.diag().double()
        solution = solver(Listed(structures, mixed=mix), theta, readout=True, **TIGHT)
        for b, row in enumerate(theta.numpy()):
            found = solution.mean[b].numpy()
            np.testing.assert_allclose(
                found @ mix.numpy(), reference(structures.numpy(), row, mix.numpy())[0], atol=1e-6
            )


@BOTH
def test_readout_that_repeats_a_tensor(solver):
    """Twice the squares: as half the scores, penalised once."""

    class Twice(Listed):
        def readout(self, y):
            return y, y

    structures, theta = assignments(4), draw(52, 5, 4, 4)
    twice = solver(Twice(structures), theta, readout=True, **TIGHT)
    once = solver(Listed(structures), theta / 2, **TIGHT)
    torch.testing.assert_close(twice.mean, once.mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(twice.value, 2 * once.value, atol=1e-12, rtol=0)
    v = draw(53, 5, 4, 4)
    torch.testing.assert_close(2 * twice.vjp(v, None), once.vjp(v, None), atol=1e-12, rtol=0)


@BOTH
def test_tied_structures_that_the_penalty_cannot_tell_apart(solver):
    """Zero readout: a linear program, whose best vertex is the answer."""
    structures = assignments(3).double()
    theta = draw(11, 5, 3, 3)
    solution = solver(Listed(structures, mixed=torch.zeros(9, 1).double()), theta, readout=True, **TIGHT)
    best = torch.einsum("kij,bij->bk", structures, theta).argmax(1)
    assert solution.converged.all()
    assert torch.equal(solution.mean, structures[best])


@BOTH
@pytest.mark.parametrize("seed", range(25))
def test_random_polytopes(solver, seed):
    """Repeated and dependent structures, scores that are often tied or −inf, readouts of all ranks."""
    random = np.random.default_rng(seed)
    d, width = random.integers(1, 7, 2)
    structures = torch.from_numpy(random.integers(0, 3, (random.integers(1, 40), d)).astype(float))
    theta = torch.from_numpy(random.integers(-4, 5, (8, d)) * random.choice([0.01, 0.5, 30.0]))
    theta[torch.from_numpy(random.random((8, d)) < 0.1)] = -torch.inf
    allowed = ((structures == 0) | ~theta[:, None].isneginf()).all(2)
    theta, allowed = theta[allowed.any(1)], allowed[allowed.any(1)]
    mix = torch.from_numpy(random.integers(-1, 2, (d, width)).astype(float)) if seed % 2 else None
    solution = solver(Listed(structures, mixed=mix), theta, readout=mix is not None, **TIGHT)
    assert solution.converged.all()
    readout = None if mix is None else mix.numpy()
    for b, row in enumerate(theta.masked_fill(theta.isneginf(), 0).numpy()):
        mine = structures[allowed[b]].numpy()
        seen = mine if readout is None else mine @ readout
        size = np.abs(mine * row).sum(1).max() + (seen**2).sum(1).max()
        assert certified_gap(mine, row, solution.mean[b].numpy(), readout) <= 1e-12 * size
        assert (solution.mean[b][theta[b].isneginf()] == 0).all()
