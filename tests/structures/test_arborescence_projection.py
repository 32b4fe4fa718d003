"""sparsemap of arborescences by cuts, against the active set, against all sets of words, and finite differences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from arborescence_enumeration import NEVER, both_roots
from structinf.errors import InfeasibleError
from structinf.solvers.active_set import active_set
from structinf_oracles.arborescence import Arborescence

pytestmark = pytest.mark.slow

STEPS = 1000


def project(theta, single_root=False, lengths=None):
    oracle = Arborescence(single_root=single_root)
    if lengths is not None:
        oracle = oracle.bind(lengths=torch.as_tensor(lengths))
    return oracle.solve_quadratic(theta, 0.0, STEPS)


def by_active_set(theta, single_root, lengths=None):
    oracle = Arborescence(single_root=single_root)
    if lengths is not None:
        oracle = oracle.bind(lengths=torch.as_tensor(lengths))
    return active_set(oracle, theta, tolerance=1e-13, max_iter=5000)


def normal(batch, n, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, n + 1, n + 1, generator=generator, dtype=torch.float64)


def forbid(theta, share, seed=0):
    """Set arcs to −inf, but no arc of one random tree in which each word has a lower-numbered head."""
    generator = torch.Generator().manual_seed(seed)
    theta = theta.masked_fill(torch.rand(theta.shape, generator=generator) < share, NEVER)
    for m in range(1, theta.shape[1]):
        h = int(torch.randint(1, m, (), generator=generator)) if m > 1 else 0
        theta[:, h, m] = torch.randn(len(theta), generator=generator, dtype=torch.float64)
    return theta


def assert_same_solution(theta, single_root, lengths=None):
    result, expected = project(theta, single_root, lengths), by_active_set(theta, single_root, lengths)
    assert result.converged.all()
    largest = float(theta[theta > NEVER].abs().max().clamp(min=1))
    torch.testing.assert_close(result.mean, expected.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(result.value, expected.value, rtol=1e-12, atol=1e-14 * largest)
    assert (result.gap >= 0).all()
    assert (result.gap <= 1e-14 * largest).all()


# ----------------------------------------------------------------------------- values


@both_roots
def test_two_words(single_root):
    # All arcs are 1/2, so μ(0, 1) + μ(0, 2) = 1.
    result = project(torch.zeros(1, 3, 3, dtype=torch.float64), single_root)
    expected = torch.tensor([[[0, 1, 1], [0, 0, 1], [0, 1, 0]]], dtype=torch.float64) / 2
    torch.testing.assert_close(result.mean, expected)
    torch.testing.assert_close(result.value, torch.tensor([-0.5], dtype=torch.float64))


def test_a_cycle_is_cut():
    theta = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 10.0], [0.0, 10.0, 0.0]]])
    result = project(theta)
    # The arcs between the words have the sum 1. With it, the objective is maximal at μ(0, 1) = 0.75.
    torch.testing.assert_close(result.mean, torch.tensor([[[0.0, 0.75, 0.25], [0, 0, 0.75], [0, 0.25, 0]]]))


@both_roots
@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 3.0, 10.0, 1000.0])
def test_active_set_agrees(n, scale, single_root):
    assert_same_solution(normal(3, n, scale, seed=n), single_root)


@both_roots
@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("unit", [0.0, 0.1, 1.0, 50.0])
def test_ties(n, unit, single_root):
    generator = torch.Generator().manual_seed(n)
    theta = unit * torch.randint(-2, 3, (4, n + 1, n + 1), generator=generator).double()
    assert_same_solution(theta, single_root)


@both_roots
@pytest.mark.parametrize("n", [2, 4, 7, 10])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_forbidden_arcs(n, share, single_root):
    theta = forbid(normal(3, n, 2.0), share, seed=n)
    assert_same_solution(theta, single_root)
    assert (project(theta, single_root).mean[theta == NEVER] == 0).all()


@both_roots
def test_very_low_scores_act_as_forbidden_arcs(single_root):
    theta = forbid(normal(4, 6, 0.5), 0.4)
    low = theta.masked_fill(theta == NEVER, -1e6)
    torch.testing.assert_close(project(low, single_root).mean, project(theta, single_root).mean, rtol=0, atol=1e-7)


@both_roots
def test_lengths(single_root):
    theta, lengths = normal(6, 7, 1.0), [1, 2, 3, 5, 6, 7]
    assert_same_solution(theta, single_root, lengths)
    means = project(theta, single_root, lengths).mean
    for b, length in enumerate(lengths):
        alone = project(theta[b : b + 1, : length + 1, : length + 1], single_root).mean
        torch.testing.assert_close(means[b, : length + 1, : length + 1], alone[0])
        assert (means[b, length + 1 :] == 0).all()
        assert (means[b, :, length + 1 :] == 0).all()


def test_larger_instances_converge():
    for n, scale in itertools.product([30, 60], [0.03, 1.0, 10.0, 1000.0]):
        result = project(normal(2, n, scale))
        assert result.converged.all()
        assert_enough_enters(result.mean, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_layout(dtype):
    theta = normal(3, 5, 1.0).to(dtype)
    result, expected = project(theta.mT.contiguous().mT), project(theta)
    for tensor in (result.mean, result.value, result.gap, result.vjp(theta)):
        assert tensor.dtype == dtype
    torch.testing.assert_close(result.mean, expected.mean)
    torch.testing.assert_close(expected.mean.double(), project(theta.double()).mean, rtol=0, atol=1e-6)


def test_unread_entries_have_no_effect():
    theta = normal(2, 4, 1.0)
    other = theta.clone()
    other[:, :, 0] = math.inf
    other.diagonal(dim1=1, dim2=2).fill_(1e6)
    torch.testing.assert_close(project(other).mean, project(theta).mean, rtol=0, atol=0)
    assert (project(theta).vjp(torch.ones_like(theta))[:, :, 0] == 0).all()


def test_empty_batch():
    result = project(torch.empty(0, 4, 4))
    assert result.mean.shape == (0, 4, 4)
    assert result.converged.shape == result.value.shape == result.gap.shape == (0,)
    assert result.vjp(torch.empty(0, 4, 4)).shape == (0, 4, 4)


def test_too_few_steps():
    theta = normal(8, 8, 3.0)
    result = Arborescence().solve_quadratic(theta, 0.0, 1)
    assert not result.converged.all()
    assert (result.gap[~result.converged] == math.inf).all()
    assert result.mean.isfinite().all()


# ----------------------------------------------------------------------------- constraints and optimality


def assert_enough_enters(means, slack):
    """Check the maximum flow from the root to each word, in integers."""
    unit = 2**30
    for mean in means:
        network = csr_array((mean.double() * unit).round().int().numpy())
        for word in range(1, len(mean)):
            flow = maximum_flow(network, 0, word).flow_value
            assert flow >= unit * (1 - slack) - network.nnz


@both_roots
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 5.0, 100.0])
def test_one_unit_enters_every_set(scale, single_root):
    n = 8
    theta = torch.cat([normal(3, n, scale), forbid(normal(3, n, scale), 0.5)])
    result = project(theta, single_root)
    mean = result.mean
    assert (mean >= 0).all()
    torch.testing.assert_close(mean.sum(1)[:, 1:], torch.ones(6, n, dtype=torch.float64))
    if single_root:
        torch.testing.assert_close(mean[:, 0].sum(1), torch.ones(6, dtype=torch.float64))
    members = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=torch.float64)[1:]
    members = torch.nn.functional.pad(members, (1, 0))
    entering = torch.einsum("sh,bhm,sm->bs", 1 - members, mean, members)
    assert (entering >= 1 - 1e-11).all()
    assert_enough_enters(mean, 1e-9)


@both_roots
@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])
def test_no_tree_is_better_than_the_gap(scale, single_root):
    theta = normal(16, 12, scale)
    result = project(theta, single_root)
    direction = theta - result.mean
    best = Arborescence(single_root=single_root).argmax(direction)
    bound = (direction * (best - result.mean)).sum((1, 2))
    assert (bound <= 1e-11 * max(1.0, scale**2)).all()


@both_roots
def test_infeasible(single_root):
    theta = torch.zeros(3, 4, 4)
    theta[1, :, 2] = NEVER
    with pytest.raises(InfeasibleError, match="index 1"):
        project(theta, single_root)
    theta = torch.zeros(1, 4, 4)
    theta[0, 0] = NEVER
    with pytest.raises(InfeasibleError):
        project(theta, single_root)


def test_two_necessary_roots_are_infeasible_for_one():
    theta = torch.full((1, 4, 4), NEVER)
    theta[0, 0, 1:] = 0.0
    theta[0, 1, 2] = 0.0
    assert project(theta).mean[0, 0, 3] == 1
    with pytest.raises(InfeasibleError, match="single root"):
        project(theta, single_root=True)


# ----------------------------------------------------------------------------- derivatives


@both_roots
@pytest.mark.parametrize("n", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 3.0])
def test_derivatives(n, scale, single_root):
    theta, v = normal(4, n, scale, seed=n), normal(4, n, 1.0, seed=n + 50)
    product = project(theta, single_root).vjp(v)
    step = 1e-7
    # The Jacobian is symmetric. Differences to both sides agree where no constraint becomes active in between.
    ahead, back = (project(theta + sign * step * v, single_root).mean for sign in (1, -1))
    middle = project(theta, single_root).mean
    smooth = ((ahead - middle) - (middle - back)).abs().amax((1, 2)) < 1e-9
    assert smooth.float().mean() >= 0.5
    torch.testing.assert_close(product[smooth], ((ahead - back) / (2 * step))[smooth], rtol=0, atol=1e-5)


@both_roots
@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0])
def test_derivatives_of_the_active_set(scale, single_root):
    theta, v = normal(4, 7, scale), normal(4, 7, 1.0, seed=1)
    lengths = [7, 5, 6, 2]
    product = project(theta, single_root, lengths).vjp(v)
    expected = by_active_set(theta, single_root, lengths).vjp(v, None)
    torch.testing.assert_close(product, expected, rtol=0, atol=1e-7)


@both_roots
def test_jacobian_is_a_projection(single_root):
    theta, v = forbid(normal(4, 9, 0.5), 0.3), normal(4, 9, 1.0, seed=2)
    result = project(theta, single_root)
    once = result.vjp(v)
    torch.testing.assert_close(result.vjp(once), once)
    assert ((once * v).sum((1, 2)) >= 0).all()
    assert (once[result.mean == 0] == 0).all()


@both_roots
def test_derivatives_with_ties_are_of_norm_one_at_most(single_root):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randint(-1, 2, (20, 6, 6), generator=generator).double()
    v = normal(20, 5, 1.0)
    product = project(theta, single_root).vjp(v)
    assert (product.square().sum((1, 2)) <= v.square().sum((1, 2))).all()
    torch.testing.assert_close(product.sum(1), torch.zeros(20, 6, dtype=torch.float64))
