"""Mixed-integer programs: values by enumeration and by vertices, every status, limits, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

import enumerators
import enumerators_integer_programs as programs
import structinf as si
from structinf import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    SolverLimitError,
    UnboundedError,
    UnsupportedError,
)
from structinf_oracles.milp import MILP

pytestmark = pytest.mark.slow

INF = float("inf")
SOLVERS = pytest.mark.parametrize("solver", ["highs", "cp_sat"])


def split(items: int, equal: bool) -> dict[str, np.ndarray]:
    """A program that takes long: a knapsack of many rows, or a market split without an easy solution."""
    A = np.random.default_rng(1).integers(1, 1000, (30, items))
    half = A.sum(1) // 2
    return {"A": A, "upper": half, **({"lower": half} if equal else {})}


@SOLVERS
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30])
def test_small_boxes(solver, scale):
    generator = np.random.default_rng(0)
    for kind in ("normal", "ties"):
        A = generator.integers(-3, 4, (2, 4))
        bounds = ([0, -1, 0, 1], [2, 1, 1, 2])
        rows = {"lower": (-4, -9), "upper": (5, 3)}
        listed = list(programs.program(A.tolist(), **rows, bounds=bounds))
        oracle = MILP(A, **rows, bounds=bounds, solver=solver)
        theta = generator.standard_normal((15, 4)) if kind == "normal" else generator.integers(-1, 2, (15, 4)) * 1.0
        y = oracle.argmax(torch.from_numpy(theta * scale))
        for t, z in zip(theta, y.numpy(), strict=True):
            assert any(np.array_equal(z, s) for (s,) in listed)
            assert enumerators.score((t,), (z,)) == pytest.approx(enumerators.best((t,), listed), rel=1e-12)
        assert torch.equal(oracle.encode(oracle.decode(y), y), y)


@SOLVERS
@pytest.mark.parametrize("difference", [1e-6, 1e-9, 1e-11])
def test_nearly_equal_points_are_told_apart(solver, difference):
    generator = np.random.default_rng(1)
    A = generator.integers(1, 5, (2, 6))
    listed = np.array([y for (y,) in programs.program(A.tolist(), upper=A.sum(1) // 2)])
    theta = []
    for _ in range(20):
        t = generator.standard_normal(6)
        first, second = listed[np.argsort(-listed @ t)[:2]]
        apart = first - second
        theta.append(t - apart * (apart @ t - difference) / (apart @ apart))
    y = MILP(A, upper=A.sum(1) // 2, solver=solver).argmax(torch.tensor(np.array(theta))).numpy()
    short = (np.array(theta) @ listed.T).max(1) - (theta * y).sum(1)
    assert short.max() < 1e-14


def test_a_linear_program_answers_with_a_vertex():
    A, upper = np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([4.0, 6.0])
    lines = [*zip(A, upper, strict=True), ([1, 0], 0), ([0, 1], 0), ([1, 0], 5), ([0, 1], 5)]
    vertices = []
    for (a, b), (c, d) in itertools.combinations(lines, 2):
        if abs(np.linalg.det([a, c])) > 1e-9:
            y = np.linalg.solve([a, c], [b, d])
            if (A @ y <= upper + 1e-9).all() and (y >= -1e-9).all() and (y <= 5 + 1e-9).all():
                vertices.append(y)
    oracle = MILP(A, upper=upper, bounds=(0, 5), integrality=False)
    theta = torch.randn(30, 2, dtype=torch.float64)
    y = oracle.argmax(theta).numpy()
    distance = np.abs(y[:, None] - np.array(vertices)).max(2)
    assert distance.min(1).max() < 1e-12
    np.testing.assert_allclose((theta.numpy() * y).sum(1), (theta.numpy() @ np.array(vertices).T).max(1), rtol=1e-12)
    half = MILP(A, upper=upper, bounds=(0, 5), integrality=[True, False]).argmax(theta).numpy()
    assert np.array_equal(half[:, 0], half[:, 0].round())
    with pytest.raises(UnsupportedError, match="no integer labels"):
        oracle.decode(theta)
    with pytest.raises(UnsupportedError, match="infinitely many points"):
        oracle.enumerate((2,))


@SOLVERS
def test_infeasible(solver):
    for oracle in (
        MILP([[1], [1]], lower=[2, -INF], upper=[INF, 1], bounds=(0, 5), solver=solver),
        MILP([[1]], lower=2, bounds=(-INF if solver == "highs" else -9, 1), solver=solver),
        MILP([[1]], lower=2, upper=1, bounds=(0, 5), solver=solver),
        MILP([[1]], bounds=(2, 1), solver=solver),
        MILP([[2]], lower=1, upper=1, bounds=(0, 5), solver=solver),
    ):
        with pytest.raises(InfeasibleError, match="batch index 0"):
            oracle.argmax(torch.ones(2, 1))
    needed = MILP([[1, 1]], lower=1, solver=solver)
    assert needed.argmax(torch.tensor([[-INF, -5.0]])).tolist() == [[0, 1]]
    with pytest.raises(InfeasibleError, match="batch index 1"):
        needed.argmax(torch.tensor([[0.0, 0.0], [-INF, -INF]]))
    with pytest.raises(InfeasibleError, match="batch index 0"):
        MILP([[1]], bounds=(1, 2), solver=solver).argmax(torch.tensor([[-INF]]))


@pytest.mark.parametrize("integrality", [True, False, [True, False, True]])
def test_unbounded_is_not_infeasible(integrality):
    oracle = MILP([[1, -1, 1]], lower=0, upper=0, bounds=(1, INF), integrality=integrality)
    theta = torch.tensor([[-1.0, -1.0, -1.0], [-11.0, 9.5, -7.27]])
    assert oracle.argmax(theta[:1]).tolist() == [[1, 2, 1]]
    with pytest.raises(UnboundedError, match="batch index 1") as error:
        oracle.argmax(theta)
    assert error.value.batch_index == 1
    neither = MILP([[1, -1, 1], [1, -1, 1]], lower=[0, 1], upper=[0, 1], bounds=(1, INF), integrality=integrality)
    with pytest.raises(InfeasibleError):
        neither.argmax(theta[1:])


def test_budgets():
    theta = torch.tensor([[-1.0, -1.0]])
    assert MILP([[1, 1]], lower=1, upper=1).argmax(theta).sum() == 1
    assert MILP([[1, 1]], upper=1).argmax(theta).sum() == 0


@SOLVERS
def test_limits(solver):
    theta = torch.rand(2, 100, generator=torch.Generator().manual_seed(0)) + 0.5
    slow = split(100, equal=False)
    with pytest.raises(
        SolverLimitError, match=r"batch index 0 with a point whose score may be below the best by 0\.\d"
    ):
        MILP(**slow, solver=solver, time_limit=1).argmax(theta[:1])
    with pytest.warns(ConvergenceWarning, match=r"at batch index 0 \(by 0\.\d+\), batch index 1 \(by 0\.\d+\)"):
        y = MILP(**slow, solver=solver, time_limit=1, on_limit="warn").argmax(theta)
    assert (torch.from_numpy(slow["A"]).float() @ y.T <= torch.from_numpy(slow["upper"])[:, None]).all()
    y = MILP(**slow, solver=solver, gap=0.5).argmax(theta)
    assert (y.sum(1) > 10).all()
    with pytest.raises(SolverLimitError, match="without any point for batch index 0"):
        MILP(**split(100, equal=True), solver=solver, time_limit=0.2, on_limit="warn").argmax(theta)


@pytest.mark.parametrize("seconds", [1e-6, 1e-3, 1e-2])
def test_a_limit_of_time_is_called_so(seconds):
    """HiGHS does not say what stopped it before it began."""
    generator = np.random.default_rng(0)
    program = MILP(generator.random((300, 400)), upper=10, bounds=(0, INF), integrality=False, time_limit=seconds)
    with pytest.raises(SolverLimitError, match="at its time limit without any point for batch index 0"):
        program.argmax(torch.from_numpy(generator.random((1, 400))))


def test_forms_of_the_matrix_make_equal_oracles():
    dense = [[1, 0, 2], [0, 3, 0]]
    oracles = [MILP(A, upper=3) for A in (dense, np.array(dense, np.int8), coo_array(dense), torch.tensor(dense))]
    theta = torch.randn(4, 3)
    for oracle in [*oracles, pickle.loads(pickle.dumps(oracles[0])), MILP(oracles[0].A, upper=[3.0, 3.0])]:
        assert oracle == oracles[0]
        assert hash(oracle) == hash(oracles[0])
        assert torch.equal(oracle.argmax(theta), oracles[0].argmax(theta))
    assert oracles[0] != MILP([[1, 0, 2], [0, 3, 1]], upper=3)
    assert oracles[0] != MILP(dense, upper=4)
    assert "Matrix(2 rows, 3 columns, 3 non-zeros)" in repr(oracles[0])


def test_no_rows_and_no_variables():
    assert MILP(np.zeros((0, 2))).argmax(torch.tensor([[1.0, -1.0]])).tolist() == [[1, 0]]
    assert MILP(np.zeros((1, 0)), upper=1).argmax(torch.zeros(2, 0)).shape == (2, 0)
    with pytest.raises(InfeasibleError):
        MILP(np.zeros((1, 0)), lower=1).argmax(torch.zeros(2, 0))
    assert MILP([[1.0]]).argmax(torch.zeros(0, 1)).shape == (0, 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"A": [1, 2]}, "a row for each constraint"),
        ({"A": [[1], [1, 2]]}, "array of numbers"),
        ({"A": [[np.nan]]}, "NaN or infinity"),
        ({"A": [[1]], "upper": [1, 2]}, "a number for each row of A"),
        ({"A": [[1]], "lower": np.nan}, "lower must not hold NaN"),
        ({"A": [[1]], "bounds": 3}, "a pair"),
        ({"A": [[1]], "bounds": ("a", 1)}, "a number for each variable"),
        ({"A": [[1]], "integrality": 2}, "True or False"),
        ({"A": [[1]], "solver": "simplex"}, '"highs" or "cp_sat"'),
        ({"A": [[1]], "seed": 3}, "seed must be 0"),
        ({"A": [[0.5]], "solver": "cp_sat"}, "integers in A"),
        ({"A": [[1]], "solver": "cp_sat", "bounds": (0, INF)}, "finite bounds"),
        ({"A": [[1]], "solver": "cp_sat", "integrality": False}, "integer variables"),
        ({"A": [[1]], "solver": "cp_sat", "bounds": (0, 1e19)}, "within ±2"),
        ({"A": [[2.0**55, 1]], "solver": "cp_sat", "upper": 2.0**55}, "from 0 to 3.60288e.* for row 0"),
        ({"A": [[1, 1], [1e300, 0]], "solver": "cp_sat", "upper": 1}, "from 0 to 1e.* for row 1"),
    ],
)
def test_what_is_refused(options, why):
    with pytest.raises(InvalidInputError, match=why):
        MILP(**options)


def test_wrong_labels_and_sizes():
    oracle = MILP([[1, 1, 1]], upper=2)
    for labels, why in (([1, 1, 1], "row of A"), ([0, 2, 0], "out of its bounds"), ([1, 1], "3 variables")):
        with pytest.raises(InvalidInputError, match=why):
            oracle.encode(torch.tensor([labels]), torch.zeros(1, 3))
    with pytest.raises(InvalidInputError, match="the 3 columns of A"):
        si.relax(torch.zeros(2, 4), oracle, "map")
    with pytest.raises(InvalidInputError, match="must be finite to list all points"):
        MILP([[1]], upper=2, bounds=(-INF, 1)).enumerate((1,))
