"""A knapsack as a model of each package."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import structinf as si

ROWS = np.array([[3.0, 5.0, 2.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
UPPER = np.array([8.0, 3.0])
KNAPSACK = np.array([y for y in itertools.product((0.0, 1.0), repeat=4) if (ROWS @ y <= UPPER).all()])


def math_opt_model(low=0.0, high=1.0, integer=True, rows=ROWS, upper=UPPER):
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    x = [model.add_variable(lb=low, ub=high, is_integer=integer) for _ in range(rows.shape[1])]
    for row, most in zip(rows, upper, strict=True):
        model.add_linear_constraint(mathopt.LinearSum(c * v for c, v in zip(row.tolist(), x, strict=True)) <= most)
    model.minimize(x[0])  # ignored
    return model, x


def gurobi_model(low=0.0, high=1.0, integer=True, rows=ROWS, upper=UPPER):
    gurobipy = pytest.importorskip("gurobipy")
    environment = gurobipy.Env(params={"OutputFlag": 0})
    model = gurobipy.Model(env=environment)
    x = model.addMVar(rows.shape[1], lb=low, ub=high, vtype="I" if integer else "C")
    model.addConstr(rows @ x <= upper)
    model.setObjective(x[0] * x[0])
    return model, x


def pyomo_model(low=0.0, high=1.0, integer=True, rows=ROWS, upper=UPPER):
    pyo = pytest.importorskip("pyomo.environ")
    pytest.importorskip("highspy")
    model = pyo.ConcreteModel()
    bounds = tuple(None if np.isinf(end) else end for end in (low, high))
    model.x = pyo.Var(range(rows.shape[1]), domain=pyo.Integers if integer else pyo.Reals, bounds=bounds)
    model.rows = pyo.ConstraintList()
    for row, most in zip(rows, upper, strict=True):
        model.rows.add(sum(c * model.x[i] for i, c in enumerate(row)) <= most)
    model.cost = pyo.Objective(expr=model.x[0] ** 2)
    return model, model.x


def cvxpy_model(low=0.0, high=1.0, integer=True, rows=ROWS, upper=UPPER):
    cvxpy = pytest.importorskip("cvxpy")
    x = cvxpy.Variable(rows.shape[1], integer=integer, bounds=[low, high])
    return cvxpy.Problem(cvxpy.Minimize(x[0]), [rows @ x <= upper]), x


PACKAGES = {
    "math_opt": (si.from_math_opt, math_opt_model),
    "cvxpy": (si.from_cvxpy, cvxpy_model),
    "gurobi": (si.from_gurobi, gurobi_model),
    "pyomo": (si.from_pyomo, pyomo_model),
}
each_package = pytest.mark.parametrize("package", PACKAGES)


def oracle_of(package, time_limit=None, on_limit="raise", **changes):
    make, model = PACKAGES[package]
    return make(*model(**changes), time_limit=time_limit, on_limit=on_limit)
