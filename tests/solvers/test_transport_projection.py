"""The projection onto transport polytopes, against the active set, optimality conditions and differences."""

from __future__ import annotations

import pytest
import torch

from structinf.errors import InfeasibleError, PluginError
from structinf.solvers import transport_projection, transport_projection_torch
from structinf.solvers.active_set import active_set
from structinf.solvers.transport_projection import project_transport
from structinf_oracles.assignment import Assignment
from structinf_oracles.transportation import Transportation

SCALES = [0.0, 0.03, 0.3, 1.0, 3.0, 30.0, 1000.0]
LENGTHS = torch.tensor([[5, 6], [3, 5], [5, 2], [1, 1], [0, 3], [4, 4]])

# Name: the oracle, the shape of θ, and the part of forbidden cells.
CASES = {
    "one cell": (Assignment(), (4, 1, 1), 0),
    "row": (Assignment(), (4, 1, 5), 0),
    "column": (Assignment(), (4, 5, 1), 0),
    "square": (Assignment(), (6, 6, 6), 0),
    "wide": (Assignment(), (6, 4, 7), 0),
    "tall": (Assignment(), (6, 7, 4), 0),
    "lengths": (Assignment().bind(lengths=LENGTHS), (6, 5, 6), 0),
    "unmatched": (Assignment(allow_unmatched=True), (20, 5, 5), 0.6),
    "unmatched, wide": (Assignment(allow_unmatched=True), (20, 4, 6), 0.6),
    "unmatched, tall": (Assignment(allow_unmatched=True), (20, 6, 4), 0.6),
    "equal totals": (Transportation([3, 1, 4], [2, 2, 2, 2]), (4, 3, 4), 0),
    "two large rows": (Transportation([7, 8], [1, 2, 1, 1, 1, 1]), (4, 2, 6), 0),
    "two large columns": (Transportation([1, 2, 1, 1, 1, 1], [4, 7]), (4, 6, 2), 0),
    "wide bounds": (Transportation([2, 1, 1], [3, 1, 2, 1, 2]), (4, 3, 5), 0),
    "tall bounds": (Transportation([3, 1, 2, 1, 2], [2, 1, 1]), (4, 5, 3), 0),
    "zeros": (Transportation([7, 0, 3], [2, 5, 0]), (4, 3, 3), 0),
    "a bound of several bounds": (Transportation([5, 4, 6, 3], [4, 6, 2, 2, 1]), (4, 4, 5), 0),
}  # fmt: skip


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(name, scale, seed=0):
    oracle, shape, forbidden = CASES[name]
    theta = scale * draw(seed, *shape)
    if forbidden:
        theta[torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < forbidden] = -torch.inf
        theta[0] = -torch.inf
    valid = oracle.valid_parts(theta)
    return oracle, theta if valid is None else torch.where(valid, theta, 0.0)


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(transport_projection, "solve_projection", transport_projection_torch.solve)


def project(oracle, theta, max_iter=200):
    return project_transport(oracle, theta, tolerance=1e-12, max_iter=max_iter)


def objective(theta, mu):
    return torch.where(mu > 0, theta * mu, 0.0).sum((1, 2)) - 0.5 * mu.square().sum((1, 2))


def margin_error(oracle, theta, mu):
    """Return the largest violation of a sum, relative to the largest margin."""
    rows, columns, total = oracle.margins(theta)
    total = torch.minimum(rows.sum(1), columns.sum(1)) if total is None else total
    errors = [(mu.sum((1, 2)) - total).abs(), (mu.sum(2) - rows).amax(1), (mu.sum(1) - columns).amax(1)]
    return torch.stack(errors).amax() / torch.maximum(rows.max(), columns.max())


@pytest.mark.matrix
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_active_set(name, scale):
    oracle, theta = scores(name, scale)
    found, expected = project(oracle, theta), active_set(oracle, theta, tolerance=0.0, max_iter=2000)
    assert found.converged.all()
    size = 1 + expected.mean.max()
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-12 * size * (1 + scale), rtol=0)
    torch.testing.assert_close(found.value, expected.value, atol=1e-13, rtol=1e-13)
    assert (found.mean >= 0).all()
    assert margin_error(oracle, theta, found.mean) < 1e-13
    if scale > 0:  # all-equal scores have supports of several dimensions
        v = draw(1, *theta.shape)
        torch.testing.assert_close(found.vjp(v), expected.vjp(v, None), atol=1e-9, rtol=0)


@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("name", CASES)
def test_gap_bounds_the_error_of_the_value(name, scale):
    oracle, theta = scores(name, scale)
    best = active_set(oracle, theta, tolerance=0.0, max_iter=2000).value
    size = 1 + torch.where(theta.isneginf(), 0.0, theta).abs().amax((1, 2))
    for max_iter in (0, 1, 3, 200):
        found = project(oracle, theta, max_iter)
        torch.testing.assert_close(found.value, objective(theta, found.mean), atol=1e-12, rtol=1e-12)
        assert (found.gap >= 0).all()
        assert (best <= found.value + found.gap + 1e-14 * size).all()
        assert (found.gap[found.converged] <= 1e-11 * 20 * size[found.converged]).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("n", "m"), [(25, 25), (30, 12), (12, 30)])
def test_optimality_conditions_of_larger_problems(n, m, scale):
    """The mean is optimal if no structure has a higher score for the gradient θ − μ."""
    for theta in (scale * draw(2, 6, n, m), (scale * draw(3, 6, n, m)).round()):
        found = project(Assignment(), theta)
        assert found.converged.all()
        assert margin_error(Assignment(), theta, found.mean) < 1e-13
        gradient = theta - found.mean
        best = Assignment().argmax(gradient)
        assert (((best - found.mean) * gradient).sum((1, 2)) <= 1e-12 * n * (1 + scale)).all()


@pytest.mark.parametrize("seed", range(10))
def test_random_margins_with_ties(seed):
    generator = torch.Generator().manual_seed(seed)
    n, m = torch.randint(1, 8, (2,), generator=generator).tolist()
    supplies, demands = (torch.randint(0, 4, (k,), generator=generator).tolist() for k in (n, m))
    oracle = Transportation(supplies, demands)
    theta = torch.randint(-2, 3, (8, n, m), generator=generator).double()
    found, expected = project(oracle, theta), active_set(oracle, theta, tolerance=0.0, max_iter=2000)
    assert found.converged.all()
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.value, expected.value, atol=1e-12, rtol=1e-13)


def test_forbidden_cells():
    theta = draw(4, 8, 6, 6)
    theta[0, 0, :5] = theta[1, 1, 2] = theta[2, :3, :3] = -torch.inf
    theta[3] = torch.where(torch.eye(6) > 0, theta[3], -torch.inf)  # a single plan
    theta[4] = torch.where(torch.ones(6, 6).triu() > 0, theta[4], -torch.inf)  # with allowed cells used by no plan
    found, expected = project(Assignment(), theta), active_set(Assignment(), theta, tolerance=0.0, max_iter=2000)
    assert found.converged.all()
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-13, rtol=0)
    assert (found.mean[theta.isneginf()] == 0).all()
    v = draw(5, 8, 6, 6)
    gradient = found.vjp(v)
    assert (gradient[theta.isneginf()] == 0).all()
    torch.testing.assert_close(gradient, expected.vjp(v, None), atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 3, 5), (3, 5, 3)])
def test_infeasible_instances_raise(shape):
    theta = draw(6, *shape)
    theta[1, :2, 1:] = theta[1, 1:, :2] = -torch.inf  # two rows with a single column, two columns with a single row
    with pytest.raises(InfeasibleError) as expected:
        Assignment().argmax(theta)
    with pytest.raises(InfeasibleError) as found:
        project(Assignment(), theta)
    assert str(found.value) == str(expected.value)
    theta[1] = -torch.inf
    with pytest.raises(InfeasibleError, match="batch index 1"):
        project(Assignment(), theta)


@pytest.mark.parametrize("name", CASES)
def test_vjp_against_differences(name):
    oracle, theta = scores(name, 0.7, seed=7)
    v, step = draw(8, *theta.shape), 1e-6
    size, parts = len(theta), theta[0].numel()
    changes = step * torch.eye(parts, dtype=torch.float64).view(parts, 1, *theta.shape[1:])
    moved = torch.cat([theta + changes, theta - changes]).flatten(0, 1)
    ahead, behind = project(oracle.repeat(2 * parts), moved).mean.view(2, parts, *theta.shape)
    gradient = ((ahead - behind) * v).sum((2, 3)).T.reshape(size, *theta.shape[1:]) / (2 * step)
    gradient[theta.isneginf()] = 0.0
    torch.testing.assert_close(project(oracle, theta).vjp(v), gradient, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_vjp_is_a_projection(name):
    oracle, theta = scores(name, 3.0, seed=9)
    found, v, w = project(oracle, theta), draw(10, *theta.shape), draw(11, *theta.shape)
    image = found.vjp(v)
    torch.testing.assert_close(found.vjp(image), image, atol=1e-12, rtol=0)
    torch.testing.assert_close((image * w).sum((1, 2)), (v * found.vjp(w)).sum((1, 2)), atol=1e-12, rtol=0)
    torch.testing.assert_close(image.sum((1, 2)), torch.zeros(len(theta), dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 3, 5)])
def test_forms_of_inputs_and_results(shape, dtype):
    theta = draw(12, *shape).to(dtype)
    found, expected = project(Assignment(), theta), project(Assignment(), theta.double())
    assert found.mean.dtype == found.value.dtype == found.gap.dtype == found.vjp(theta).dtype == dtype
    assert found.converged.dtype == torch.bool
    torch.testing.assert_close(found.mean, expected.mean.to(dtype), atol=0, rtol=0)
    torch.testing.assert_close(found.value, expected.value.to(dtype), atol=0, rtol=0)
    other = project(Assignment(), theta.mT.contiguous().mT)
    torch.testing.assert_close(other.mean, found.mean, atol=1e-15, rtol=0)
    alone = project(Assignment(), theta[2:3])
    torch.testing.assert_close(alone.mean, found.mean[2:3], atol=1e-15, rtol=0)
    graph = project(Assignment(), theta.clone().requires_grad_())
    assert not graph.mean.requires_grad


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 0, 0)])
def test_empty_problems(shape):
    found = project(Assignment(), torch.zeros(shape))
    assert found.mean.shape == found.vjp(torch.zeros(shape)).shape == shape
    assert found.value.shape == found.gap.shape == found.converged.shape == shape[:1]
    assert found.converged.all()
    assert not found.value.any()


def test_too_few_steps():
    found = project(Assignment(), draw(13, 5, 8, 8), max_iter=1)
    assert not found.converged.any()
    assert project(Assignment(), torch.zeros(5, 8, 8), max_iter=1).converged.all()


def test_very_large_scores():
    theta = 1e9 * draw(14, 5, 8, 8)
    found = project(Assignment(), theta)
    assert found.converged.all()
    torch.testing.assert_close(found.mean, Assignment().argmax(theta), atol=1e-15, rtol=0)


def test_margins_of_different_magnitudes():
    class Plans(Assignment):
        def margins(self, theta):
            rows = torch.tensor([[1e-9, 1.0, 2.0, 3e-5]], dtype=torch.float64)
            columns = torch.tensor([[0.5, 2.5 + 1e-9, 3e-5]], dtype=torch.float64)
            return rows, columns, None

    theta = draw(15, 6, 4, 3)
    found = project(Plans(), theta)
    rows, columns, _ = Plans().margins(theta)
    assert found.converged.all()
    torch.testing.assert_close(found.mean.sum(2), rows.expand(6, 4), atol=1e-13, rtol=0)
    torch.testing.assert_close(found.mean.sum(1), columns.expand(6, 3), atol=1e-13, rtol=0)
    # θ − μ plus potentials is 0 at positive cells and at most 0 elsewhere: around a cycle of four cells, the sum of θ −
    # μ with alternating signs is at most 0 if the cells with a minus are positive.
    rest = theta - found.mean
    for i in range(4):
        for j in range(3):
            gain = rest[:, i : i + 1, j : j + 1] - rest[:, i : i + 1, :] - rest[:, :, j : j + 1] + rest
            positive = (found.mean[:, i : i + 1, :] > 0) & (found.mean[:, :, j : j + 1] > 0)
            assert (gain[positive] <= 1e-12).all()


@pytest.mark.parametrize("scale", [0.1, 10.0, 1000.0])
def test_bounds_on_both_sides(scale):
    """With these scores, potentials of columns reach their bounds in many steps."""
    generator = torch.Generator().manual_seed(18)
    rows, columns = (torch.randint(0, 5, (64, k), generator=generator).double() for k in (10, 9))
    total = (torch.minimum(rows.sum(1), columns.sum(1)) * torch.rand(64, generator=generator)).floor()

    class Plans(Assignment):
        def margins(self, theta):
            return rows, columns, total

    theta = scale * draw(19, 64, 10, 9)
    found = project(Plans(), theta)
    assert found.converged.all()
    assert margin_error(Plans(), theta, found.mean) < 1e-12
    assert (found.gap <= 1e-11 * (1 + scale) * (1 + total)).all()
    assert not found.mean[total == 0].any()


def test_wrong_margins_raise():
    class Plans(Assignment):
        def margins(self, theta):
            return torch.ones(1, 2), torch.ones(1, 3), None

    with pytest.raises(PluginError, match="margins of assignment"):
        project(Plans(), torch.zeros(2, 3, 3))


@pytest.mark.cuda
def test_other_devices():
    for shape in ((6, 8, 8), (6, 4, 7), (6, 7, 4)):
        theta, v = draw(16, *shape), draw(17, *shape)
        expected, found = project(Assignment(), theta), project(Assignment(), theta.cuda())
        assert found.mean.is_cuda
        assert found.converged.all()
        torch.testing.assert_close(found.mean.cpu(), expected.mean, atol=1e-13, rtol=0)
        torch.testing.assert_close(found.vjp(v.cuda()).cpu(), expected.vjp(v), atol=1e-12, rtol=0)
