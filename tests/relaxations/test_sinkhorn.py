"""Entropic transport: known values, convergence, derivatives, and what is refused."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import structinf as si
from sinkhorn_inputs import backwards, draw, margins, residual
from structinf import ConvergenceError, ConvergenceWarning, InfeasibleError, InvalidInputError
from structinf.solvers import sinkhorn_torch
from structinf.solvers.sinkhorn import forbid_unusable_cells

COST = [[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [0.5, 2.0, 0.0]]
ROWS, COLUMNS = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]


# ----------------------------------------------------------------------------- values


def test_two_by_two_in_closed_form() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    plan = si.sinkhorn(-torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64), half, half)
    diagonal = 0.5 / (1 + math.exp(-1))
    assert plan.flatten().tolist() == pytest.approx([diagonal, 0.5 - diagonal, 0.5 - diagonal, diagonal], abs=1e-15)
    assert plan[0, 0].item() == pytest.approx(0.365529, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.1, 1e-3])
def test_given_margins(temperature: float) -> None:
    rows, columns = torch.tensor(ROWS).double(), torch.tensor(COLUMNS).double()
    plan = si.sinkhorn(-torch.tensor(COST).double(), rows, columns, temperature)
    expected = torch.tensor([[0.25, 0.25, 0], [0, 0.25, 0], [0, 0, 0.25]]).double()
    torch.testing.assert_close(plan, expected, atol=1e-5, rtol=0)
    assert residual(plan, rows, columns) < 1e-12
    if temperature == 0.1:
        # Sweeps alone come here after some millions; P[0, 2] P[2, 0] / (P[0, 0] P[2, 2]) = e^−25.
        assert (plan[0, 2] * plan[2, 0] / plan[0, 0] / plan[2, 2]).item() == pytest.approx(math.exp(-25), rel=1e-9)
        assert plan[2, 0].item() == pytest.approx(9.285e-7, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("n", [10, 50, 200])
def test_residual_is_below_the_tolerance(n: int, temperature: float, dtype: torch.dtype) -> None:
    theta = draw(2, n, n).to(dtype)
    found = si.sinkhorn(theta, temperature=temperature, tolerance=1e-6, record=True)
    assert found.converged.all()
    assert (found.residual <= 1e-6).all()
    assert found.mean.dtype == dtype
    assert residual(found.mean) < (2e-6 if dtype == torch.float32 else 1.0001e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (1, 7), (40, 15), (15, 40), (30, 30)])
def test_uneven_margins_at_any_scale(n: int, m: int, scale: float) -> None:
    rows, columns = margins(3, n, seed=1) ** 4, margins(3, m, seed=2) ** 4
    rows[0, 0] = 0 if n > 1 else rows[0, 0]
    columns[1, -1] = 0 if m > 1 else columns[1, -1]
    columns = columns * rows.sum(1, keepdim=True) / columns.sum(1, keepdim=True)
    for temperature in (1.0, 1e-2):
        found = si.sinkhorn(draw(3, n, m) * scale, rows, columns, temperature, record=True)
        assert found.converged.all()
        size = 1e-12 + 1e-14 * scale / temperature
        assert residual(found.mean, rows, columns) < size
        assert (found.mean[0, 0] == 0).all() or n == 1
        assert (found.mean[1, :, -1] == 0).all() or m == 1


@pytest.mark.parametrize(("n", "m"), [(40, 12), (8, 60)])
def test_margins_of_all_sizes_far_below_the_scores(n: int, m: int) -> None:
    """Potentials are far from where they start, so that sums underflow in each sweep."""
    for seed in range(3):
        rows, columns = margins(8, n, seed=seed) ** 8, margins(8, m, seed=seed + 10) ** 8
        columns = columns * rows.sum(1, keepdim=True) / columns.sum(1, keepdim=True)
        scores = 1e3 * draw(8, n, m, seed=seed)
        for temperature in (1e-2, 1e-3):
            assert si.sinkhorn(scores, rows, columns, temperature, record=True).converged.all()
    if n >= m:
        found = sinkhorn_torch.solve(scores, rows, columns, temperature, 0.0, 1e-12, 10_000)
        assert (found.residual <= found.target_residual).all()


def best_by_scipy(theta: np.ndarray, rows: np.ndarray, columns: np.ndarray, temperature: float) -> np.ndarray:
    """min of minus the objective by SLSQP, what is left of bounds (columns) among the terms."""
    n, m = theta.shape

    def loss(x: np.ndarray) -> float:
        plan = x.reshape(n, m)
        left = np.clip(columns - plan.sum(0), 1e-300, None) if columns.sum() > rows.sum() + 1e-9 else np.ones(1)
        every = np.concatenate([plan.ravel(), left])
        return temperature * (every * np.log(every)).sum() - (theta * plan).sum()

    sums = [{"type": "eq", "fun": lambda x: x.reshape(n, m).sum(1) - rows}]
    kind = "ineq" if columns.sum() > rows.sum() + 1e-9 else "eq"
    sums.append({"type": kind, "fun": lambda x: (columns - x.reshape(n, m).sum(0))[: m - (kind == "eq")]})
    start = np.outer(rows, columns).ravel() / columns.sum()
    bounds = [(1e-12, None)] * (n * m)
    return minimize(
        loss, start, method="SLSQP", bounds=bounds, constraints=sums, options={"ftol": 1e-15, "maxiter": 500}
    ).x.reshape(n, m)


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_is_the_optimum(temperature: float, slack: bool) -> None:
    theta, rows, columns = draw(3, 4), margins(3, seed=3), margins(4, seed=4) * (1.5 if slack else 1)
    plan = si.sinkhorn(theta, rows, columns, temperature, slack=slack)
    expected = best_by_scipy(theta.numpy(), rows.numpy(), columns.numpy(), temperature)
    np.testing.assert_allclose(plan.numpy(), expected, atol=2e-6)


def test_value_is_the_objective() -> None:
    theta, rows, columns = draw(2, 3, 4), margins(2, 3), margins(2, 4)
    found = si.sinkhorn(theta, rows, columns, 0.2, record=True)
    plan = found.mean
    expected = (theta * plan - 0.2 * torch.xlogy(plan, plan)).sum((1, 2))
    torch.testing.assert_close(found.value, expected, atol=1e-12, rtol=0)


def test_divergence_of_itself_is_zero() -> None:
    x = draw(20, 2)
    cost = torch.cdist(x, x).square()
    weights = torch.full((20,), 1 / 20, dtype=torch.float64)
    values = [-si.sinkhorn(-c, weights, weights, 0.05, record=True).value for c in (cost, cost.mT, cost)]
    assert (values[0] - (values[1] + values[2]) / 2).abs().item() < 1e-8


def test_total_with_slack_on_both_sides() -> None:
    theta = draw(3, 5)
    plan = si.sinkhorn(theta, slack=True, total=2.0)
    assert plan.sum().item() == pytest.approx(2, abs=1e-12)
    assert (plan.sum(0) < 1).all()
    assert (plan.sum(1) < 1).all()
    assert si.sinkhorn(theta, slack=True, total=0.0).abs().max() == 0
    cold = si.sinkhorn(theta, temperature=1e-3, slack=True, total=2.0)
    pairs = [
        theta[i, j] + theta[k, h] for i in range(3) for k in range(i) for j in range(5) for h in range(5) if j != h
    ]
    assert (theta * cold).sum().item() == pytest.approx(max(pairs).item(), abs=1e-6)


def test_batches_equal_single_instances() -> None:
    theta, rows, columns = draw(2, 3, 4, 5), margins(2, 3, 4), margins(2, 3, 5)
    together = si.sinkhorn(theta, rows, columns)
    for i in range(2):
        for j in range(3):
            alone = si.sinkhorn(theta[i, j], rows[i, j], columns[i, j])
            torch.testing.assert_close(together[i, j], alone, atol=1e-14, rtol=0)
    shared = si.sinkhorn(theta, rows[0, 0], columns[0, 0])
    torch.testing.assert_close(shared[1, 2], si.sinkhorn(theta[1, 2], rows[0, 0], columns[0, 0]), atol=1e-14, rtol=0)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0)])
def test_nothing(shape: tuple[int, ...]) -> None:
    assert si.sinkhorn(torch.zeros(shape)).shape == shape


def test_assignments_become_the_best_one() -> None:
    theta = draw(4, 6, 6)
    cold = si.relax(theta, "assignment", "sinkhorn", temperature=1e-4)
    torch.testing.assert_close(cold, si.relax(theta, "assignment", "map"), atol=1e-6, rtol=0)


# ----------------------------------------------------------------------------- forbidden cells


def test_cells_that_no_plan_can_use_are_empty() -> None:
    theta = torch.zeros(3, 3, dtype=torch.float64)
    theta[1, 0] = theta[2, 0] = -torch.inf  # so that row 0 takes all of column 0, and nothing else
    expected = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]).double()
    found = si.sinkhorn(theta, record=True)
    torch.testing.assert_close(found.mean, expected, atol=1e-14, rtol=0)
    assert found.converged


@pytest.mark.parametrize("seed", range(5))
def test_forbidden_cells_against_all_permutations(seed: int) -> None:
    """A cell can be used if and only if it lies in some permutation without forbidden cells."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.zeros(1, 5, 5, dtype=torch.float64)
    scores[torch.rand(1, 5, 5, generator=generator) < 0.45] = -torch.inf
    scores[0].fill_diagonal_(0)
    oracle = si.get_oracle("assignment")
    every = oracle.enumerate((5, 5))
    allowed = every[(every.bool() & torch.isneginf(scores)).flatten(1).any(1).logical_not()]
    ones = torch.ones(1, 5, dtype=torch.float64)
    usable = ~torch.isneginf(forbid_unusable_cells(scores, ones, ones))
    assert torch.equal(usable[0], allowed.sum(0) > 0)


@pytest.mark.parametrize("small", [1e-8, 1e-13, 1e-20, 1e-300])
def test_margins_below_the_rounding_of_others(small: float) -> None:
    theta = draw(2, 3, 3)
    theta[0, 0, 2] = -torch.inf
    rows = torch.tensor([1.0, 0.5, small], dtype=torch.float64)
    columns = torch.tensor([1.0, small, 0.5], dtype=torch.float64)
    found = si.sinkhorn(theta, rows, columns, record=True)
    assert found.converged.all()
    assert residual(found.mean, rows, columns) < 1e-12
    torch.testing.assert_close(found.mean[:, 2].sum(1) / small, torch.ones(2, dtype=torch.float64), atol=1e-9, rtol=0)
    assert torch.equal(found.mean[1], si.sinkhorn(theta[1], rows, columns))
    theta[0, 2, [0, 2]] = -torch.inf
    columns = torch.tensor([1.0, 0.0, 0.5 + small], dtype=torch.float64)
    with pytest.raises(InfeasibleError, match="batch index 0"):  # however little it is
        si.sinkhorn(theta, rows, columns)


def test_scores_far_above_the_temperature() -> None:
    """The plan is a vertex, and the weights between its columns are below the smallest normal number."""
    for seed in range(40):
        found = si.sinkhorn(draw(20, 6, seed=seed) * 1e7, slack=True, record=True)
        assert found.mean.isfinite().all()
        assert found.converged


@backwards
@pytest.mark.parametrize("least", [-1e9, -1e15, torch.finfo(torch.float32).min])
def test_a_finite_score_in_place_of_minus_infinity(least: float, backward: str) -> None:
    """It does not pass for the size of the numbers, whose rounding the residual may have."""
    theta, mask = draw(2, 12, 12), draw(2, 12, 12, seed=1) > 0.5
    mask[:, range(12), range(12)] = False
    options = {"temperature": 0.2, "backward": backward}
    found = si.sinkhorn(theta.masked_fill(mask, least), record=True, **options)
    expected = si.sinkhorn(theta.masked_fill(mask, -torch.inf), **options)
    assert found.converged.all()
    assert (found.residual < 1e-12).all()
    torch.testing.assert_close(found.mean, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("offset", [1e6, 1e9, 1e11])
def test_what_all_scores_have_in_common(offset: float) -> None:
    theta = draw(2, 20, 20) + offset
    plans = (si.sinkhorn(scores, temperature=0.01) for scores in (theta, theta - offset))
    torch.testing.assert_close(*plans, atol=1e-11, rtol=0)


def test_scores_beyond_what_rounding_leaves_of_them() -> None:
    theta = draw(20, 20) * 1e15
    found = si.sinkhorn(theta, record=True)
    assert found.converged
    assert found.residual == 0
    assert torch.equal(found.mean, si.relax(theta, "assignment", "map"))


def test_no_plan_at_all() -> None:
    theta = torch.zeros(2, 2, 2)
    theta[1, :, 1] = -torch.inf
    for call in (lambda: si.sinkhorn(theta), lambda: si.relax(theta, "assignment", "sinkhorn")):
        with pytest.raises(InfeasibleError, match="batch index 1") as error:
            call()
        assert error.value.batch_index == 1
    unmatched = si.relax(theta, "assignment", "sinkhorn", allow_unmatched=True)
    torch.testing.assert_close(unmatched[1], torch.tensor([[0.5, 0], [0.5, 0]]), atol=1e-6, rtol=0)


# ----------------------------------------------------------------------------- annealing, and where it fails


@backwards
def test_a_loose_tolerance_ends_each_instance_by_itself(backward: str) -> None:
    theta = draw(5, 4, 4) * torch.tensor([0.1, 1, 3, 6, 9]).view(-1, 1, 1)
    options = {"tolerance": 1e-2, "backward": backward}
    together, alone = (si.sinkhorn(t, **options) for t in (theta, theta[0]))
    assert torch.equal(together[0], alone)


@backwards
def test_annealing_gives_the_same_plan(backward: str) -> None:
    theta = draw(3, 5, 5)
    plain = si.sinkhorn(theta, temperature=0.3)
    annealed = si.sinkhorn(theta, temperature=0.3, initial_temperature=5.0, backward=backward)
    torch.testing.assert_close(annealed, plain, atol=1e-11, rtol=0)


@backwards
def test_too_few_iterations(backward: str) -> None:
    theta = draw(2, 5, 5)
    options = {"temperature": 1e-3, "max_iter": 3, "backward": backward, "record": True}
    with pytest.warns(ConvergenceWarning, match=r"residual of \d.*max_iter") as caught:
        found = si.sinkhorn(theta, **options)
    assert caught[0].filename == __file__
    assert not found.converged.all()
    assert (found.residual > 1e-12).any()
    assert found.mean.isfinite().all()
    np.testing.assert_allclose(residual(found.mean), found.residual.max().item(), rtol=1e-6)
    with pytest.raises(ConvergenceError, match="batch index"):
        si.sinkhorn(theta, on_failure="raise", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        si.sinkhorn(theta, on_failure="ignore", **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [1.0, 1, 1], "columns": [1.0, 1, 2]}, r"add up to 3 and columns to 4.*batch index 0"),
        ({"rows": [1.0, -1, 3]}, "rows must be finite and at least 0, got -1 at batch index 0, position 1"),
        ({"rows": [1.0, math.nan, 3]}, "got nan"),
        ({"rows": [1.0, 1.0]}, "rows must hold one sum for each of the 3 rows"),
        ({"columns": torch.ones(5, 3)}, r"got shape \(5, 3\)"),
        ({"rows": "ab"}, "rows must be a tensor or a list of numbers, got 'ab'"),
        ({"columns": [[1.0], [1.0, 2.0]]}, "columns must be a tensor or a list of numbers"),
        ({"total": "ab", "slack": True}, "total must be a tensor or a list of numbers"),
        ({"total": 1.0}, "slack=True"),
        ({"rows": torch.ones(3).half(), "columns": torch.tensor([1.0, 1.0, 1.05]).half()}, "give equal totals"),
        ({"total": 4.0, "slack": True}, "smaller sum"),
        ({"total": torch.ones(3), "slack": True}, r"total must have .* got shape \(3,\)"),
        ({"slack": 1}, "slack must be True or False"),
        ({"temperature": 0.0}, "temperature"),
        ({"initial_temperature": -1.0}, "temperature"),
        ({"temperature": 1e-320}, "too small"),
        ({"backward": "autograd"}, '"implicit" or "unrolled"'),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.sinkhorn(torch.ones(2, 3, 3), **arguments)


def test_scores_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="NaN at batch index 0"):
        si.sinkhorn(torch.tensor([[math.nan, 0.0], [0.0, 0.0]]))
    with pytest.raises(InvalidInputError, match="scores of rows and columns"):
        si.sinkhorn(torch.zeros(3))
    with pytest.raises(TypeError, match=r"floating-point"):
        si.sinkhorn(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"no option 'eps'.*temperature"):
        si.sinkhorn(torch.zeros(2, 2), eps=0.1)


def test_half_precision_and_strides() -> None:
    theta = draw(2, 4, 6)
    plan = si.sinkhorn(theta.half(), slack=True)
    assert plan.dtype == torch.float16
    torch.testing.assert_close(plan.double(), si.sinkhorn(theta, slack=True), atol=2e-3, rtol=0)
    turned = si.sinkhorn(theta.mT, slack=True)
    torch.testing.assert_close(turned.mT, si.sinkhorn(theta, slack=True), atol=1e-13, rtol=0)
