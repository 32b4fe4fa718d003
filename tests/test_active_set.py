"""The active set solver, against quadratic programs solved independently over enumerated structures."""

from __future__ import annotations

import itertools
from types import MappingProxyType

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from structinf import get_oracle
from structinf.errors import InfeasibleError, InvalidInputError, PluginError
from structinf.oracle import Oracle
from structinf.parts import as_tuple, map_parts
from structinf.solvers.active_set import active_set, run
from structinf.solvers.active_set_torch import BatchedPrograms
from structinf.solvers.coordinates import Objective


class Listed(Oracle):
    """The structures that are the rows of a tensor, or of several for potentials that are a tuple."""

    event_ndim = 1
    structure_ndim = MappingProxyType({"allowed": 1})  # (B, structures): which of them an instance has
    name = "listed"

    def __init__(self, *structures, kept=None, mixed=None):
        self.structures = [s.double() for s in structures]
        self.kept, self.mixed = kept, mixed
        self.seen = []

    def argmax(self, theta):
        tensors = as_tuple(theta)
        self.seen.append([tuple(t.shape) for t in tensors])
        structures = [s.to(tensors[0].device) for s in self.structures]
        terms = [torch.where(s == 0, 0.0, s * t[:, None]) for s, t in zip(structures, tensors, strict=True)]
        score = sum(t.flatten(2).sum(2) for t in terms)
        if "allowed" in self.bound:
            score = torch.where(self.bound["allowed"], score, -torch.inf)
        value, best = score.max(1)
        if bool(value.isneginf().any()):
            raise InfeasibleError("no structure", int(value.isneginf().nonzero()[0]))
        y = tuple(s[best].to(tensors[0].dtype) for s in structures)
        return y if isinstance(theta, tuple) else y[0]

    def readout(self, y):
        if self.mixed is not None:
            return y.flatten(1) @ self.mixed.to(y.device)
        return y if self.kept is None else y[self.kept]


def batched(oracle, theta, *, readout=False, tolerance, max_iter, warm_start=None):
    """The solver with the programs that serve other devices."""
    with torch.no_grad():
        programs = BatchedPrograms(Objective(oracle, theta, readout))
        return run(programs, tolerance=tolerance, max_iter=max_iter, warm_start=warm_start)


BOTH = pytest.mark.parametrize("solver", [active_set, batched])
TIGHT = {"tolerance": 0.0, "max_iter": 1000}


def reference(structures, theta, readout=None):
    """Penalised coordinates of the solution, and its value, by sequential quadratic programming over all structures.

    Parameters
    ----------
    structures : (n, d) array
    theta : (d,) array
    readout : (d, r) array or None
    """
    possible = ~((structures != 0) & np.isinf(theta)).any(1)
    structures = structures[possible]
    rows = structures if readout is None else structures @ readout
    score = structures @ np.where(np.isinf(theta), 0.0, theta)
    shift, scale = score.max(), 1 + np.abs(score).max()
    n = len(rows)
    result = minimize(
        lambda p: (0.5 * ((p @ rows) ** 2).sum() - (score - shift) @ p) / scale,
        np.full(n, 1 / n),
        jac=lambda p: (rows @ (p @ rows) - (score - shift)) / scale,
        bounds=[(0, None)] * n,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return result.x @ rows, shift - scale * result.fun


def certified_gap(structures, theta, mean, readout=None):
    """max_y ⟨θ − ∇, y − μ⟩ over the enumerated structures."""
    rows, seen = (structures, mean) if readout is None else (structures @ readout, mean @ readout)
    score = np.where(structures == 0, 0.0, structures * theta).sum(1)
    linear = np.where(mean == 0, 0.0, mean * theta).sum()
    return (score - rows @ seen).max() - (linear - seen @ seen)


def assignments(n):
    return torch.stack([torch.eye(n)[list(p)] for p in itertools.permutations(range(n))])


def bits(d):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)))


def subsets(d, k):
    rows = torch.zeros(0, d)
    for chosen in itertools.combinations(range(d), k):
        rows = torch.cat([rows, torch.zeros(1, d).index_fill(1, torch.tensor(chosen), 1.0)])
    return rows


def rankings(n):
    return torch.tensor(list(itertools.permutations(range(1, n + 1))), dtype=torch.float64)


def chains(steps, states):
    """Indicators of tags and numbers of transitions."""
    tags = torch.tensor(list(itertools.product(range(states), repeat=steps)))
    moves = torch.zeros(len(tags), states, states)
    for t in range(steps - 1):
        moves[torch.arange(len(tags)), tags[:, t], tags[:, t + 1]] += 1
    return torch.nn.functional.one_hot(tags, states), moves


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SETS = {
    "assignments": assignments(4),
    "bits": bits(4),
    "subsets": subsets(6, 3),
    "rankings": rankings(4),
    "repeated": subsets(4, 2).repeat(3, 1),
    "real": draw(7, 20, 5),
    "collinear": torch.linspace(-1, 2, 7)[:, None] * torch.tensor([1.0, 2.0, -1.0]),
    "single": torch.tensor([[1.0, 0.0, 2.0]]),
    "origin": torch.zeros(1, 3),
}


# ----------------------------------------------------------------------------- values


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


# ----------------------------------------------------------------------------- convergence


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


# ----------------------------------------------------------------------------- gradients


def differences(solve, theta, v, u, step=1e-6):
    """⟨v, ∂μ⟩ + ⟨u, ∂p⟩ by central differences, in each coordinate of each tensor of θ."""
    tensors = as_tuple(theta)
    gradient = [torch.zeros_like(t) for t in tensors]
    for g, t in zip(gradient, tensors, strict=True):
        for i in range(t[0].numel()):
            values = []
            for sign in (step, -step):
                moved = [x.clone() for x in tensors]
                next(m for m, x in zip(moved, tensors, strict=True) if x is t).flatten(1)[:, i] += sign
                s = solve(tuple(moved) if isinstance(theta, tuple) else moved[0])
                inner = sum((a * b).flatten(1).sum(1) for a, b in zip(as_tuple(v), as_tuple(s.mean), strict=True))
                values.append(inner + (u * s.weights).sum(0))
            g.flatten(1)[:, i] = (values[0] - values[1]) / (2 * step)
    return gradient


@BOTH
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_vjp_against_differences(solver, scale):
    structures, theta = assignments(3), scale * draw(21, 4, 3, 3)
    solution = solver(Listed(structures), theta, **TIGHT)
    v, u = draw(22, 4, 3, 3), draw(23, *solution.weights.shape)
    (expected,) = differences(lambda t: solver(Listed(structures), t, **TIGHT), theta, v, u)
    torch.testing.assert_close(solution.vjp(v, u), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(solution.vjp(v, None) + solution.vjp(None, u), expected, atol=1e-8, rtol=0)


@BOTH
def test_vjp_with_a_readout(solver):
    tags, moves = chains(3, 2)
    theta = draw(24, 3, 3, 2), draw(25, 3, 2, 2)

    def solve(t):
        return solver(Listed(tags, moves, kept=0), t, readout=True, **TIGHT)

    solution = solve(theta)
    v, u = (draw(26, 3, 3, 2), draw(27, 3, 2, 2)), draw(28, *solution.weights.shape)
    for found, expected in zip(solution.vjp(v, u), differences(solve, theta, v, u), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)

    structures, mix, theta = assignments(3), draw(29, 9, 4), draw(30, 4, 3, 3)
    solution = solver(Listed(structures, mixed=mix), theta, readout=True, **TIGHT)
    v, u = draw(31, 4, 3, 3), draw(32, *solution.weights.shape)
    (expected,) = differences(lambda t: solver(Listed(structures, mixed=mix), t, readout=True, **TIGHT), theta, v, u)
    torch.testing.assert_close(solution.vjp(v, u), expected, atol=1e-7, rtol=0)


@BOTH
def test_vjp_depends_on_the_support_alone(solver):
    structures, theta, v = assignments(4), draw(33, 8, 4, 4), draw(34, 8, 4, 4)
    gradients = [solver(Listed(structures), theta, tolerance=t, max_iter=1000).vjp(v, None) for t in (1e-6, 1e-10, 0.0)]
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], atol=1e-12, rtol=0)


def test_vjp_is_symmetric_and_of_theta_dtype():
    theta, v, w = draw(35, 3, 4, 4).float(), draw(36, 3, 4, 4).float(), draw(37, 3, 4, 4).float()
    solution = active_set(Listed(assignments(4)), theta, **TIGHT)
    gradient = solution.vjp(v, None)
    assert gradient.dtype == torch.float32
    assert gradient.shape == theta.shape
    torch.testing.assert_close((gradient * w).sum(), (solution.vjp(w, None) * v).sum(), atol=1e-5, rtol=1e-5)
    assert not solution.vjp(None, None).any()


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


# ----------------------------------------------------------------------------- inputs


@BOTH
def test_empty_batch_and_empty_events(solver):
    solution = solver(Listed(assignments(3)), torch.zeros(0, 3, 3), **TIGHT)
    assert solution.mean.shape == (0, 3, 3)
    assert solution.weights.shape == (0, 0)
    assert solution.oracle_calls == 0
    assert solution.support().shape == (0, 0, 3, 3)
    assert solution.vjp(torch.zeros(0, 3, 3), None).shape == (0, 3, 3)
    nothing = solver(Listed(torch.zeros(1, 0)), torch.zeros(2, 0), **TIGHT)
    assert nothing.converged.all()
    assert nothing.weights.tolist() == [[1, 1]]
    assert nothing.value.tolist() == [0, 0]


@BOTH
def test_input_is_left_alone(solver):
    base = draw(43, 3, 4, 4).transpose(1, 2)
    theta = base.clone().transpose(1, 2).requires_grad_()
    before = theta.detach().clone()
    solution = solver(Listed(assignments(4)), theta, **TIGHT)
    assert torch.equal(theta, before)
    assert theta.grad is None
    assert not solution.mean.requires_grad
    same = solver(Listed(assignments(4)), before.contiguous(), **TIGHT)
    assert torch.equal(solution.mean, same.mean)


@BOTH
def test_infeasible_instance_is_named(solver):
    theta = draw(44, 3, 3, 3)
    theta[1, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        solver(Listed(assignments(3)), theta, **TIGHT)
    assert error.value.batch_index == 1


@BOTH
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda t: t[:1], "shape"),
        (lambda t: torch.zeros_like(t).float(), "dtype"),
        (lambda t: (torch.zeros_like(t),), "form"),
        (lambda t: t.numpy(), "form"),
        (lambda t: torch.ones_like(t), "batch index 1"),
        (lambda t: -torch.ones_like(t), "batch index 1"),
        (lambda t: torch.full_like(t, torch.nan), "batch index 0"),
    ],
)
def test_broken_oracles_are_reported(solver, answer, message):
    class Broken(Oracle):
        event_ndim = 1
        name = "broken"

        def argmax(self, theta):
            return answer(theta)

    theta = draw(45, 2, 3)
    theta[1, 1] = -torch.inf
    with pytest.raises(PluginError, match=f"broken.*{message}"):
        solver(Broken(), theta, **TIGHT)


def test_inner_forms_of_cotangents():
    tags, moves = chains(3, 2)
    theta = draw(46, 2, 3, 2), draw(47, 1, 2, 2)
    solution = active_set(Listed(tags, moves, kept=0), theta, readout=True, **TIGHT)
    gradient = solution.vjp(map_parts(torch.ones_like, solution.mean), None)
    assert [g.shape for g in gradient] == [(2, 3, 2), (2, 2, 2)]


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


@pytest.mark.cuda
@pytest.mark.parametrize("readout", ["all", "kept", "mixed"])
def test_cuda(readout):
    tags, moves = chains(4, 3)
    if readout == "mixed":
        structures, theta = (assignments(4),), draw(48, 16, 4, 4)
    else:
        structures, theta = (tags, moves), (draw(49, 16, 4, 3), draw(50, 1, 3, 3))
    oracle = Listed(
        *structures, kept=0 if readout == "kept" else None, mixed=draw(51, 16, 5) if readout == "mixed" else None
    )
    here, there = (
        active_set(oracle, map_parts(lambda t, d=device: t.to(d), theta), readout=readout != "all", **TIGHT)
        for device in ("cpu", "cuda")
    )
    v = map_parts(torch.randn_like, here.mean)
    # Not of the weights: the two may decompose the mean differently where optimal structures are dependent.
    gradients = here.vjp(v, None), there.vjp(map_parts(Tensor.cuda, v), None)
    for mine, other in zip(as_tuple(here.mean), as_tuple(there.mean), strict=True):
        assert other.is_cuda
        torch.testing.assert_close(mine, other.cpu(), atol=1e-9, rtol=0)
    for mine, other in zip(*map(as_tuple, gradients), strict=True):
        torch.testing.assert_close(mine, other.cpu(), atol=1e-9, rtol=0)
    warm = active_set(
        oracle, map_parts(Tensor.cuda, theta), readout=readout != "all", warm_start=there.support(), **TIGHT
    )
    assert warm.converged.all()
    assert warm.oracle_calls == 1
