"""The interior-point method over flows of hypergraphs, against the active-set method and finite differences."""

from __future__ import annotations

import pytest
import torch

import structinf
from oracle_examples_dynamic_programs import PROGRAMS
from structinf.errors import InfeasibleError
from structinf.parts import as_tuple, map_parts
from structinf.solvers import flow_projection
from structinf.solvers.active_set import active_set
from structinf.solvers.flow_projection import project_flow

CHAIN = structinf.get_oracle("chain")


@pytest.fixture(autouse=True)
def large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_projection, "_MAX_MULTIPLICATIONS", 20_000_000)
    monkeypatch.setattr(flow_projection, "_SMALL", 20_000_000)


BOTH = pytest.mark.parametrize("readout", [False, True], ids=["all", "readout"])
FORMS = ("shared", "steps", "edges")


def chain_scores(form, batch, steps, states, scale=1.0, seed=0, shared_batch=False):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return scale * torch.randn(shape, dtype=torch.float64, generator=generator)

    unary, rows = draw(batch, steps, states), 1 if shared_batch else batch
    if form == "shared":
        return unary, draw(rows, states, states)
    moves = draw(rows, steps - 1, states, states)
    return moves if form == "edges" else (unary, moves)


def solve(oracle, theta, readout, tolerance=0.0, max_iter=100):
    return project_flow(oracle, theta, readout=readout, tolerance=tolerance, max_iter=max_iter)


def reference(oracle, theta, readout):
    return active_set(oracle, theta, readout=readout, tolerance=1e-13, max_iter=5000)


def read(oracle, y, readout):
    return as_tuple(oracle.readout(y)) if readout else as_tuple(y)


def size_of(theta, mean):
    """The size of the terms of the objective, for the rounding of values."""
    terms = zip(as_tuple(theta), as_tuple(mean), strict=True)
    return 1 + sum(
        torch.where(m == 0, 0.0, t * m).abs().flatten(1).sum(1) + m.square().flatten(1).sum(1) for t, m in terms
    )


def certified_gap(oracle, theta, mean, readout):
    """max_y ⟨θ − ∇Ω(μ), y − μ⟩, by the oracle's argmax."""
    penalised = oracle.readout(mean) if readout else mean
    kept = {id(t) for t in as_tuple(penalised)}
    gradient = map_parts(lambda t, m: t - m if id(m) in kept else t.expand_as(m), theta, mean)
    best = oracle.argmax(gradient)
    terms = zip(as_tuple(gradient), as_tuple(best), as_tuple(mean), strict=True)
    return sum(torch.where((y == 0) & (m == 0), 0.0, g * (y - m)).flatten(1).sum(1) for g, y, m in terms)


def check_exact(oracle, theta, readout):
    """Compare an exact solution with the active set; the parts without a penalty may differ at equal value."""
    solution, wanted = solve(oracle, theta, readout), reference(oracle, theta, readout)
    if readout and not {id(t) for t in as_tuple(oracle.readout(theta))} <= {id(t) for t in as_tuple(theta)}:
        assert solution is None  # the readout does not consist of tensors of the structure
        return solution
    assert solution.converged.all()
    scale = size_of(theta, wanted.mean)
    assert ((solution.value - wanted.value).abs() <= 1e-11 * scale).all()
    assert (solution.gap <= 1e-12 * scale).all()
    pairs = zip(read(oracle, solution.mean, readout), read(oracle, wanted.mean, readout), strict=True)
    for found, exact in pairs:
        torch.testing.assert_close(found, exact, atol=1e-9, rtol=0)
    for mean, scores in zip(as_tuple(solution.mean), as_tuple(theta), strict=True):
        assert (mean >= 0).all()
        assert (mean[scores.expand_as(mean).isneginf()] == 0).all()
    return solution, wanted


# ----------------------------------------------------------------------------- solutions


def test_parts_with_weights_take_the_active_set():
    # A part of θ has several parts of the hypergraph, one for each weight.
    oracle = structinf.get_oracle("dtw", step_pattern="symmetric2")
    assert project_flow(oracle, torch.zeros(1, 2, 3), readout=False, tolerance=1e-5, max_iter=9) is None


@pytest.mark.matrix
@BOTH
@pytest.mark.parametrize("scale", [0.0, 0.03, 1.0, 1000.0])
@pytest.mark.parametrize("example", [p for p in PROGRAMS if p.name != "categorical"], ids=str)
def test_agrees_with_the_active_set(example, scale, readout):
    oracle = example.oracle()
    generator = torch.Generator().manual_seed(3)
    tensors = [scale * torch.randn(4, *shape, dtype=torch.float64, generator=generator) for shape in example.shapes]
    theta = tuple(tensors) if example.is_tuple else tensors[0]
    check_exact(oracle, theta, readout)
    if example.lengths and "lengths" in oracle.instance_ndim:
        lengths = list(example.lengths)
        bound = oracle.bind(lengths=torch.tensor([lengths[i % len(lengths)] for i in range(4)]))
        check_exact(bound, theta, readout)


@BOTH
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("form", FORMS)
def test_zeros_of_chains_are_exact(form, scale, readout):
    theta = chain_scores(form, 5, 6, 3, scale, seed=7)
    solution, wanted = check_exact(CHAIN, theta, readout)
    for found, exact in zip(as_tuple(solution.mean), as_tuple(wanted.mean), strict=True):
        torch.testing.assert_close(found, exact, atol=1e-9, rtol=0)
        assert torch.equal(found > 0, exact > 1e-12)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_and_ties(form, readout):
    for theta in (chain_scores(form, 3, 5, 3, 0.0), map_parts(torch.round, chain_scores(form, 18, 5, 3, 1.0))):
        check_exact(CHAIN, theta, readout)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_an_instance_has_the_same_bits_alone_and_beside_other_lengths(form, readout):
    lengths = torch.tensor([6, 1, 2, 3, 6, 5, 4, 6, 2])
    theta = chain_scores(form, len(lengths), 6, 3)
    together = as_tuple(solve(CHAIN.bind(lengths=lengths), theta, readout, 1e-5).mean)
    for b in range(len(lengths)):
        alone = solve(
            CHAIN.bind(lengths=lengths[b : b + 1]), map_parts(lambda t, b=b: t[b : b + 1], theta), readout, 1e-5
        )
        assert all(torch.equal(t[b : b + 1], z) for t, z in zip(together, as_tuple(alone.mean), strict=True))


def test_the_same_solver_serves_all_lengths(monkeypatch):
    monkeypatch.setattr(flow_projection, "_limit", lambda parts, exact: 18_000)
    oracle, theta = structinf.get_oracle("projective_tree"), torch.zeros(2, 6, 6)
    for lengths in ([5, 2], [2, 2]):
        assert solve(oracle.bind(lengths=torch.tensor(lengths)), theta, False, 1e-5) is None


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_lengths_and_forbidden_transitions(form, readout):
    theta = chain_scores(form, 7, 6, 3, seed=1)
    moves = as_tuple(theta)[-1]
    moves[..., 0, 2] = moves[..., 1, 1] = -torch.inf
    for tensor in as_tuple(theta)[:-1]:
        tensor[:, 2, 1] = -torch.inf
    oracle = CHAIN.bind(lengths=torch.tensor([6, 1, 3, 2, 6, 5, 4]))
    solution, _ = check_exact(oracle, theta, readout)
    if form == "steps":
        for row, length in zip(solution.mean[0], oracle.bound["lengths"], strict=True):
            assert not row[length:].any()


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("steps", "states"), [(1, 4), (4, 1), (1, 1), (2, 2)])
def test_smallest_chains(form, steps, states, readout):
    check_exact(CHAIN, chain_scores(form, 2, steps, states), readout)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_mean_is_a_flow(form, readout):
    theta = chain_scores(form, 20, 9, 4, 0.3)
    for tolerance in (0.0, 0.01):
        mean = solve(CHAIN, theta, readout, tolerance).mean
        if form == "edges":
            torch.testing.assert_close(mean[:, :-1].sum(2), mean[:, 1:].sum(3), atol=1e-14, rtol=0)
            torch.testing.assert_close(mean.sum((2, 3)), torch.ones_like(mean[:, :, 0, 0]), atol=1e-13, rtol=0)
            continue
        tags, moves = mean
        torch.testing.assert_close(tags.sum(2), torch.ones_like(tags[:, :, 0]), atol=1e-13, rtol=0)
        if form == "steps":
            torch.testing.assert_close(moves.sum(3), tags[:, :-1], atol=1e-14, rtol=0)
            torch.testing.assert_close(moves.sum(2), tags[:, 1:], atol=1e-14, rtol=0)
        else:
            torch.testing.assert_close(moves.sum(2), tags[:, :-1].sum(1), atol=1e-13, rtol=0)
            torch.testing.assert_close(moves.sum(1), tags[:, 1:].sum(1), atol=1e-13, rtol=0)


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [0.03, 1.0, 100.0])
def test_tolerance_bounds_the_error(form, scale, readout):
    steps, states = 8, 4
    theta = chain_scores(form, 20, steps, states, scale)
    exact = solve(CHAIN, theta, readout)
    hyperedges = {"shared": 2 * steps - 1, "steps": 2 * steps - 1, "edges": steps - 1}[form]
    largest = steps if readout and form != "edges" else hyperedges
    for tolerance in (0.1, 0.01, 1e-4):
        solution = solve(CHAIN, theta, readout, tolerance)
        assert solution.converged.all()
        differences = zip(read(CHAIN, solution.mean, readout), read(CHAIN, exact.mean, readout), strict=True)
        error = sum((a - b).square().flatten(1).sum(1) for a, b in differences).sqrt()
        assert (error <= tolerance * largest**0.5).all()
        assert (solution.gap >= exact.value - solution.value - 1e-10 * scale).all()
        gap = certified_gap(CHAIN, theta, solution.mean, readout)
        torch.testing.assert_close(solution.gap, gap, atol=1e-9 * max(scale, 1), rtol=1e-6)


@BOTH
def test_larger_graphs(readout):
    generator = torch.Generator().manual_seed(0)
    for name, shape in (("grid_path", (12, 9)), ("binary_tree", (7, 7)), ("dtw", (8, 10))):
        theta = 0.3 * torch.randn(3, *shape, dtype=torch.float64, generator=generator)
        check_exact(structinf.get_oracle(name), theta, readout)


@BOTH
@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_precision_of_rounding_is_reached(rounded, scale, readout):
    generator = torch.Generator().manual_seed(0)
    shapes = {"dtw": [(12, 12)], "grid_path": [(12, 9)], "needleman_wunsch": [(8, 8), (2,)]}
    problems = [(CHAIN, chain_scores("shared", 32, 20, 4, scale))]
    for name, sizes in shapes.items():
        tensors = tuple(scale * torch.randn(32, *s, dtype=torch.float64, generator=generator) for s in sizes)
        problems.append((structinf.get_oracle(name), tensors if len(sizes) > 1 else tensors[0]))
    for oracle, theta in problems:
        given = map_parts(torch.round, theta) if rounded else theta
        solution = solve(oracle, given, readout)
        # Pivoting may cycle at ties. The active-set method then solves the instance.
        assert solution.converged.sum() >= (30 if rounded else 32)
        rounding = 1e-12 * size_of(given, solution.mean)
        assert (certified_gap(oracle, given, solution.mean, readout) <= rounding).all()


# ----------------------------------------------------------------------------- forms of scores


@BOTH
def test_batches(readout):
    theta = chain_scores("shared", 37, 5, 3)
    whole = solve(CHAIN, theta, readout)
    for rows in ([0], [5, 36], list(range(17, 34))):
        part = solve(CHAIN, map_parts(lambda t, rows=rows: t[rows], theta), readout)
        for a, b in zip(as_tuple(part.mean), as_tuple(whole.mean), strict=True):
            torch.testing.assert_close(a, b[rows], atol=1e-10, rtol=0)
    shared = chain_scores("shared", 37, 5, 3, shared_batch=True)
    expanded = map_parts(lambda t: t.expand(37, *t.shape[1:]).contiguous(), shared)
    for a, b in zip(solve(CHAIN, shared, readout).mean, solve(CHAIN, expanded, readout).mean, strict=True):
        assert torch.equal(a, b)
    empty = map_parts(lambda t: t[:0], theta)
    solution = solve(CHAIN, empty, readout)
    assert [t.shape for t in solution.mean] == [t.shape for t in empty]
    assert solution.value.shape == solution.gap.shape == solution.converged.shape == (0,)
    assert [t.shape for t in solution.vjp(solution.mean)] == [t.shape for t in empty]


def test_float32():
    theta = chain_scores("steps", 3, 5, 3)
    single = map_parts(torch.Tensor.float, theta)
    solution = solve(CHAIN, single, False)
    exact = solve(CHAIN, map_parts(torch.Tensor.double, single), False)
    for tensor in (*solution.mean, solution.value, solution.gap, *solution.vjp(solution.mean)):
        assert tensor.dtype == torch.float32
    for a, b in zip(solution.mean, exact.mean, strict=True):
        assert torch.equal(a, b.float())


def test_threads():
    theta = chain_scores("steps", 40, 20, 5)
    alone = solve(CHAIN, theta, True)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        both = solve(CHAIN, theta, True)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(alone.mean, both.mean, strict=True):
        assert torch.equal(a, b)


def test_infeasible_instance():
    theta = chain_scores("steps", 3, 4, 2)
    theta[0][1, 2] = -torch.inf
    with pytest.raises(InfeasibleError, match="batch index 1"):
        solve(CHAIN, theta, False)


def test_few_iterations_are_reported():
    solution = solve(CHAIN, chain_scores("steps", 3, 20, 5), False, max_iter=1)
    assert not solution.converged.any()
    assert (solution.gap > 1e-6).all()


def test_problems_for_other_solvers():
    class Doubled(type(CHAIN)):
        def readout(self, y):
            return 2 * y[0]

    theta = chain_scores("steps", 2, 4, 2)
    options = {"tolerance": 0.01, "max_iter": 50}
    assert project_flow(Doubled(), theta, readout=True, **options) is None
    assert project_flow(Doubled(), theta, readout=False, **options) is not None
    assert project_flow(CHAIN, map_parts(lambda t: t.to("meta"), theta), readout=False, **options) is None
    tree = torch.zeros(1, 75, 75)
    assert project_flow(structinf.get_oracle("binary_tree"), tree, readout=False, **options) is None


# ----------------------------------------------------------------------------- gradients


def cotangent_like(mean, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return map_parts(lambda t: torch.randn(t.shape, dtype=torch.float64, generator=generator), mean)


@BOTH
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("form", FORMS)
def test_vjp_agrees_with_the_active_set(form, scale, readout):
    theta = chain_scores(form, 6, 6, 3, scale, seed=9)
    solution, wanted = solve(CHAIN, theta, readout), reference(CHAIN, theta, readout)
    cotangent = cotangent_like(solution.mean)
    pairs = zip(as_tuple(solution.vjp(cotangent)), as_tuple(wanted.vjp(cotangent, None)), strict=True)
    for found, exact in pairs:
        torch.testing.assert_close(found, exact, atol=1e-8, rtol=1e-8)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_default_is_exact_on_the_face(form, readout):
    theta = chain_scores(form, 6, 6, 3, 0.3, seed=9)
    exact, default = (
        project_flow(CHAIN, theta, readout=readout, tolerance=t, max_iter=50, exact=e)
        for t, e in ((0.0, False), (1e-5, True))
    )
    assert default.converged.all()
    for found, wanted in zip(as_tuple(default.mean), as_tuple(exact.mean), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-13, rtol=0)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_vjp_agrees_with_finite_differences(form, readout):
    theta = chain_scores(form, 4, 5, 3, seed=2)
    direction = cotangent_like(theta, seed=6)
    solution = solve(CHAIN, theta, readout)
    cotangent = cotangent_like(solution.mean)

    def product(a, b):
        return sum((x * y).flatten(1).sum(1) for x, y in zip(as_tuple(a), as_tuple(b), strict=True))

    step = 1e-5
    ahead, behind = (
        solve(CHAIN, map_parts(lambda t, d, s=sign: t + s * step * d, theta, direction), readout).mean
        for sign in (1, -1)
    )
    difference = (product(ahead, cotangent) - product(behind, cotangent)) / (2 * step)
    torch.testing.assert_close(product(solution.vjp(cotangent), direction), difference, atol=1e-5, rtol=1e-5)


def test_vjp_without_a_unique_mean_is_finite():
    # Equal transitions leave the pairs of tags undetermined; the penalty sees the tags only.
    unary, moves = chain_scores("steps", 3, 6, 3, 0.1)
    theta = unary, torch.zeros_like(moves)
    solution = solve(CHAIN, theta, True)
    gradient = solution.vjp(cotangent_like(solution.mean))
    assert all(bool(g.isfinite().all()) and float(g.abs().max()) < 1e3 for g in gradient)
    cotangent = cotangent_like(unary)
    found = solution.vjp((cotangent, torch.zeros_like(moves)))[0]
    # The tags of different tokens do not interact, and all have a positive mean.
    assert (solution.mean[0] > 0).all()
    torch.testing.assert_close(found, cotangent - cotangent.mean(2, keepdim=True), atol=1e-6, rtol=0)


def test_vjp_of_forbidden_parts_is_zero():
    theta = chain_scores("steps", 3, 6, 3)
    theta[1][:, 2, 0, 1] = -torch.inf
    solution = solve(CHAIN.bind(lengths=torch.tensor([6, 4, 2])), theta, False)
    unary, moves = solution.vjp(cotangent_like(solution.mean))
    assert not moves[:, 2, 0, 1].any()
    assert not unary[1, 4:].any()
    assert not unary[2, 2:].any()
    assert not moves[2, 1:].any()
