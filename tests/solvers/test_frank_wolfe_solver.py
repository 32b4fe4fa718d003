"""The Frank-Wolfe solver, against scipy over enumerated structures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from active_set_problems import SETS, Listed, assignments, bits, subsets
from frank_wolfe_reference import FLAT, VARIANTS, certified_gap, cubic, draw, own_entropy, quadratic, solution
from structinf import InvalidInputError, PluginError
from structinf.solvers.active_set import active_set
from structinf.solvers.frank_wolfe import frank_wolfe

pytestmark = pytest.mark.slow

TIGHT = {"tolerance": 1e-12, "max_iter": 1000}
STRUCTURES = {"assignments": assignments(3), "subsets": subsets(5, 2), "bits": bits(4)}

named = pytest.mark.parametrize("omega", FLAT)
variants = pytest.mark.parametrize("variant", VARIANTS)


@pytest.mark.matrix
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("omega", [*FLAT, "quadratic", "cubic"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_agrees_with_an_independent_solver(name, omega, scale):
    structures = STRUCTURES[name]
    flat = structures.flatten(1).double().numpy()
    function = {"quadratic": quadratic(flat.shape[1]), "cubic": cubic}.get(omega)
    theta = scale * draw(0, 3, *structures.shape[1:])
    found = frank_wolfe(Listed(structures), theta, function or omega, **TIGHT)
    assert found.converged.all()
    for b, row in enumerate(theta.flatten(1).numpy()):
        mine, of = found.mean[b].flatten().numpy(), function or FLAT[omega]
        mean, value = solution(flat, row, of)
        assert value - found.value[b].item() <= 1e-9 * (1 + scale)
        # scipy knows its optimum to the root of its own tolerance, which is coarse where weights are near 0.
        np.testing.assert_allclose(mine, mean, atol=1e-4 if scale <= 1 else 5e-3)
        if of(found.mean.flatten(1)).isfinite().all() and mine.min() > 1e-9:
            assert certified_gap(flat, row, mine, of) <= 1e-11 * (1 + scale)


@pytest.mark.parametrize("name", SETS)
def test_squared_norm_agrees_with_the_active_set_method(name):
    structures = SETS[name]
    theta = draw(1, 4, *structures.shape[1:])
    exact = active_set(Listed(structures), theta, **TIGHT)
    found = frank_wolfe(Listed(structures), theta, "squared_l2", **TIGHT)
    torch.testing.assert_close(found.mean, exact.mean, atol=1e-9, rtol=0)
    assert found.converged.all()
    found = frank_wolfe(Listed(structures), theta, "squared_l2", variant="vanilla", tolerance=1e-3, max_iter=1000)
    assert found.converged.all()
    # ½ ‖μ − μ*‖² is at most the gap.
    assert ((found.mean - exact.mean).flatten(1).square().sum(1) / 2 <= found.gap + 1e-12).all()


@named
@variants
def test_certificates_are_true_bounds(variant, omega):
    structures, theta = assignments(4), draw(2, 5, 4, 4)
    best = frank_wolfe(Listed(structures), theta, omega, **TIGHT).value
    for rounds in (1, 2, 4, 8, 16, 32):
        found = frank_wolfe(Listed(structures), theta, omega, variant=variant, tolerance=1e-9, max_iter=rounds)
        assert (found.value <= best + 1e-12).all()
        assert (best - found.value <= found.gap + 1e-11).all()


@named
def test_variants_agree_within_their_certificates(omega):
    structures, theta = assignments(4), draw(3, 5, 4, 4)
    exact = frank_wolfe(Listed(structures), theta, omega, **TIGHT)
    found = frank_wolfe(Listed(structures), theta, omega, variant="vanilla", tolerance=1e-3, max_iter=2000)
    assert found.converged.all()
    # All three regularizers are strongly convex on the unit cube, with constant 1.
    distance = (found.mean - exact.mean).flatten(1).square().sum(1) / 2
    assert (distance <= found.gap + 1e-12).all()


def test_a_round_has_the_documented_gap():
    theta = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    found = frank_wolfe(Listed(torch.eye(3)), theta, "squared_l2", variant="vanilla", tolerance=0.0, max_iter=1)
    assert found.gap.item() == pytest.approx(0.0, abs=1e-15)  # the vertex is the projection
    theta = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    found = frank_wolfe(Listed(torch.eye(2)), theta, "squared_l2", variant="vanilla", tolerance=1e-12, max_iter=1)
    torch.testing.assert_close(found.mean, torch.tensor([[0.75, 0.25]], dtype=torch.float64))


@named
def test_support_is_a_distribution_of_independent_structures(omega):
    structures, theta = assignments(4), draw(4, 6, 4, 4)
    found = frank_wolfe(Listed(structures), theta, omega, **TIGHT)
    support = found.support()
    torch.testing.assert_close(found.weights.sum(0), torch.ones(6, dtype=torch.float64), atol=1e-14, rtol=0)
    assert (found.weights.diff(dim=0) <= 0).all()
    torch.testing.assert_close((found.weights[..., None, None] * support).sum(0), found.mean, atol=1e-14, rtol=0)
    for b in range(6):
        used = support[:, b][found.weights[:, b] > 0].flatten(1)
        assert torch.linalg.matrix_rank(torch.nn.functional.pad(used, (0, 1), value=1.0)) == len(used)


@named
def test_parts_of_minus_infinity_and_parts_that_no_structure_uses(omega):
    structures, theta = assignments(4), draw(5, 3, 4, 4)
    theta[0, 0, :3] = theta[1, 1, 2] = theta[2, :2, :2] = -torch.inf
    found = frank_wolfe(Listed(structures), theta, omega, **TIGHT)
    assert found.converged.all()
    assert (found.mean[theta.isneginf()] == 0).all()
    gradient = found.vjp(draw(6, 3, 4, 4), None)
    assert gradient.isfinite().all()
    assert (gradient[theta.isneginf()] == 0).all()
    for b, row in enumerate(theta.flatten(1).numpy()):
        mean, _ = solution(structures.flatten(1).double().numpy(), row, FLAT[omega])
        np.testing.assert_allclose(found.mean[b].flatten(), mean, atol=1e-4)


@named
def test_large_scores_leave_vertices(omega):
    structures, theta = assignments(4), draw(7, 4, 4, 4, scale=1e4)
    found = frank_wolfe(Listed(structures), theta, omega, **TIGHT)
    best = torch.einsum("kij,bij->bk", structures.double(), theta).argmax(1)
    assert found.converged.all()
    torch.testing.assert_close(found.mean, structures[best].double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("score", [-1e3, -1e6])
def test_a_mean_that_underflows_has_converged(score):
    """The best structure is 0, and with it the scale of the scores."""
    found = frank_wolfe(Listed(bits(4)), torch.full((1, 4), score).double(), "entropy", **TIGHT)
    assert found.converged
    assert found.mean.max() < 1e-300


@named
def test_symmetric_scores_have_the_derivative_of_the_whole_face(omega):
    """The centre of the assignments is a mean of four of them, which span a part of their polytope."""
    found = frank_wolfe(Listed(assignments(4)), torch.zeros(1, 4, 4).double(), omega, **TIGHT)
    v = draw(8, 1, 4, 4)
    centred = v - v.mean(1, keepdim=True) - v.mean(2, keepdim=True) + v.mean((1, 2), keepdim=True)
    curvature = {"squared_l2": 1.0, "entropy": 4.0, "binary_entropy": 4 + 4 / 3}[omega]
    torch.testing.assert_close(found.vjp(v, None), centred / curvature, atol=1e-6, rtol=0)


def test_own_entropy_is_the_named_one():
    structures, theta = assignments(3), draw(9, 4, 3, 3)
    theta[0, 0, 0] = -torch.inf
    own = frank_wolfe(Listed(structures), theta, own_entropy, **TIGHT)
    named = frank_wolfe(Listed(structures), theta, "entropy", **TIGHT)
    torch.testing.assert_close(own.mean, named.mean, atol=1e-9, rtol=0)
    v = draw(10, 4, 3, 3)
    torch.testing.assert_close(own.vjp(v, None), named.vjp(v, None), atol=1e-7, rtol=0)


@variants
def test_warm_start(variant):
    structures, theta = assignments(3), draw(11, 3, 3, 3)
    options = {"variant": variant, "tolerance": 1e-4, "max_iter": 2000}
    first = frank_wolfe(Listed(structures), theta, "entropy", **options)
    again = frank_wolfe(Listed(structures), theta, "entropy", warm_start=first.support(), **options)
    assert again.converged.all()
    torch.testing.assert_close(again.mean, first.mean, atol=0.05, rtol=0)


@named
@variants
def test_empty_batch(variant, omega):
    found = frank_wolfe(Listed(assignments(3)), torch.zeros(0, 3, 3), omega, variant=variant, **TIGHT)
    assert found.mean.shape == (0, 3, 3)
    assert found.weights.shape == (0, 0)
    assert found.support().shape == (0, 0, 3, 3)
    assert found.vjp(torch.zeros(0, 3, 3), None).shape == (0, 3, 3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("omega", [*FLAT, cubic])
def test_structures_without_parts(omega, variant):
    found = frank_wolfe(Listed(torch.zeros(1, 0)), torch.zeros(2, 0), omega, variant=variant, **TIGHT)
    assert found.mean.shape == (2, 0)
    assert found.converged.all()
    assert found.vjp(torch.zeros(2, 0), None).shape == (2, 0)


def test_parts_outside_the_domain_are_refused():
    two = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    theta = torch.tensor([[1.0, 0.0]])
    with pytest.raises(InvalidInputError, match=r"binary_entropy needs parts between 0 and 1.*batch index 0"):
        frank_wolfe(Listed(two), theta, "binary_entropy", **TIGHT)
    assert frank_wolfe(Listed(two), theta, "entropy", **TIGHT).converged.all()
    with pytest.raises(InvalidInputError, match="entropy needs parts of at least 0"):
        frank_wolfe(Listed(-two), theta, "entropy", **TIGHT)


def test_functions_that_are_none_are_refused():
    theta = draw(12, 3, 3, 3)
    with pytest.raises(InvalidInputError, match=r"shape \(3,\), got \(\)"):
        frank_wolfe(Listed(assignments(3)), theta, lambda mean: mean.sum(), **TIGHT)
    with pytest.raises(InvalidInputError, match="finite gradient inside"):
        frank_wolfe(Listed(assignments(3)), theta, lambda mean: (mean - 2).sqrt().flatten(1).sum(1), **TIGHT)


def test_a_structure_of_score_minus_infinity_is_the_plugins_fault():
    class Wrong(Listed):
        def argmax(self, theta):
            return torch.ones_like(theta)

    theta = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])
    with pytest.raises(PluginError, match="batch index 1"):
        frank_wolfe(Wrong(torch.eye(2)), theta, "entropy", **TIGHT)
