"""Variables, attributes and options of models of single packages."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import structinf as si
from model_packages import gurobi_model, math_opt_model, oracle_of
from structinf import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    PluginError,
)
from structinf.solver_oracle import Outcome


def test_shapes_of_variables():
    _, x = math_opt_model()
    model, x = math_opt_model()
    oracle = si.from_math_opt(model, [x[:2], x[2:]])
    assert si.relax(torch.tensor([[[9.0, 9.0], [1.0, 1.0]]]), oracle, "map").tolist() == [[[1, 1], [0, 0]]]
    oracle = si.from_math_opt(model, {"a": x[3], "b": x[1]}, solver="cp_sat", solver_options={"threads": 1})
    assert si.relax(torch.tensor([1.0, 2.0]), oracle, "map").tolist() == [0, 1]


def test_a_failing_solver_names_the_instance():
    model, x = math_opt_model(integer=False)
    x[0].integer = True
    oracle = si.from_math_opt(model, x, solver="glop")
    with pytest.raises(PluginError, match="batch index 0"):
        si.relax(torch.ones(1, 4), oracle, "map")
    with pytest.raises(InvalidInputError, match="solver_options"):
        si.from_math_opt(model, x, solver_options={"nothing": 1})


def test_cvxpy_expressions_and_attributes():
    cp = pytest.importorskip("cvxpy")
    x, y = cp.Variable(2, boolean=[(0,)]), cp.Variable(2, nonneg=True)
    problem = cp.Problem(cp.Minimize(0), [x <= 1.5, x >= 0, y <= 2 - x])
    oracle = si.from_cvxpy(problem, cp.vstack([x, y]))
    theta = torch.tensor([[[1.0, 2.0], [0.1, 0.1]], [[-1.0, 2.0], [3.0, 3.0]]])
    wanted = [[[1, 1.5], [1, 0.5]], [[0, 0], [2, 2]]]
    torch.testing.assert_close(si.relax(theta, oracle, "map"), torch.tensor(wanted), atol=1e-6, rtol=0)
    theta[1, 1, 0] = -torch.inf
    found = si.relax(theta, oracle, "map")[1]
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [0.0, 2.0]]), atol=1e-6, rtol=0)
    assert si.relax(torch.ones(4), si.from_cvxpy(problem, [x, y]), "map").sum() == 4
    assert not oracle.has_binary_parts(theta)
    with pytest.raises(InvalidInputError, match="affine"):
        si.from_cvxpy(problem, cp.abs(x))
    with pytest.raises(InvalidInputError, match="not convex"):
        si.from_cvxpy(cp.Problem(cp.Minimize(0), [cp.norm(x) >= 1]), x)
    with pytest.raises(InvalidInputError, match="has no value"):
        si.from_cvxpy(cp.Problem(cp.Minimize(0), [x <= cp.Parameter(name="most")]), x)
    with pytest.raises(InvalidInputError, match="time_limit has no known option"):
        si.relax(theta, si.from_cvxpy(problem, cp.vstack([x, y]), solver="GLOP", time_limit=3), "map")


def test_cvxpy_convex_sets():
    cp = pytest.importorskip("cvxpy")
    x = cp.Variable(3)
    oracle = si.from_cvxpy(cp.Problem(cp.Minimize(0), [cp.norm(x) <= 2]), x)
    theta = torch.tensor([[3.0, 4.0, 0.0], [300.0, -torch.inf, -400.0]])
    best = torch.tensor([[1.2, 1.6, 0.0], [1.2, 0.0, -1.6]])
    torch.testing.assert_close(si.relax(theta, oracle, "map"), best, atol=1e-5, rtol=0)
    torch.testing.assert_close(si.relax(theta[:1], oracle, "frank_wolfe"), best[:1], atol=1e-2, rtol=0)


def test_gurobi_attributes():
    gurobipy = pytest.importorskip("gurobipy")
    model = gurobipy.Model(env=gurobipy.Env(params={"OutputFlag": 0}))
    x = model.addVars(["a", "b"], ub=4, vtype="S", lb=2)
    model.addConstr(x["a"] + x["b"] <= 5)
    model.setObjectiveN(x["a"], 0)
    model.setObjectiveN(x["b"], 1)
    oracle = si.from_gurobi(model, x, solver_options={"Threads": 1})
    theta = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [3.0, -torch.inf]])
    assert si.relax(theta, oracle, "map").tolist() == [[0, 4], [0, 4], [4, 0]]
    with pytest.raises(InvalidInputError, match="Gurobi refuses nothing=1"):
        si.from_gurobi(model, x, solver_options={"nothing": 1})


def test_pyomo_variables():
    pyo = pytest.importorskip("pyomo.environ")
    pytest.importorskip("highspy")
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(2), range(2), domain=pyo.Binary)
    model.y = pyo.Var(bounds=(1, 2))
    model.rows = pyo.Constraint(range(2), rule=lambda m, i: m.x[i, 0] + m.x[i, 1] <= 1)
    model.x[1, 1].fix(1)
    grid = [[model.x[i, j] for j in range(2)] for i in range(2)]
    theta = torch.tensor([[3.0, 4.0], [5.0, -9.0]])
    assert si.relax(theta, si.from_pyomo(model, grid), "map").tolist() == [[0, 1], [0, 1]]
    theta[1, 1] = -torch.inf
    with pytest.raises(InfeasibleError):
        si.relax(theta, si.from_pyomo(model, grid), "map")
    # y is in no constraint
    assert si.relax(torch.zeros(1), si.from_pyomo(model, [model.y]), "map").tolist() in ([1], [2])
    assert si.relax(torch.ones(1), si.from_pyomo(model, [model.y]), "map").tolist() == [2]
    with pytest.raises(InvalidInputError, match="create_instance"):
        si.from_pyomo(pyo.AbstractModel(), [model.y])


def test_pyomo_blocks():
    pyo = pytest.importorskip("pyomo.environ")
    pytest.importorskip("highspy")
    model = pyo.ConcreteModel()
    model.plant = pyo.Block(range(2))
    for block in model.plant.values():
        block.on = pyo.Var(domain=pyo.Binary)
        block.made = pyo.Var(range(2), bounds=(0, 3), domain=pyo.Integers)
        block.most = pyo.Constraint(expr=block.made[0] + block.made[1] <= 4 * block.on)
        block.cost = pyo.Objective(expr=block.on)  # ignored
    model.one = pyo.Constraint(expr=model.plant[0].on + model.plant[1].on <= 1)
    theta = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    oracle = si.from_pyomo(model, [block.made for block in model.plant.values()])
    assert si.relax(theta, oracle, "map").tolist() == [[0, 0], [3, 1]]
    assert all(block.cost.active for block in model.plant.values())
    for block in (model.plant, model.plant[0]):
        with pytest.raises(InvalidInputError, match=r"is the block plant.* of another model; pass the whole model"):
            si.from_pyomo(block, model.plant[0].made)


def test_pyomo_components_that_need_a_transformation():
    pyo = pytest.importorskip("pyomo.environ")
    gdp = pytest.importorskip("pyomo.gdp")
    pytest.importorskip("highspy")
    model = pyo.ConcreteModel()
    model.inner = pyo.Block()
    model.x = pyo.Var(range(2), bounds=(0, 4))
    model.inner.either = gdp.Disjunction(expr=[[model.x[0] <= 1], [model.x[1] <= 1]])
    with pytest.raises(InvalidInputError, match=r"leave out the Disjunction inner.either; replace it"):
        si.from_pyomo(model, model.x)
    pyo.TransformationFactory("gdp.bigm").apply_to(model)
    assert si.relax(torch.tensor([3.0, 2.0]), si.from_pyomo(model, model.x), "map").tolist() == [4, 1]
    model.b = pyo.BooleanVar(range(2))
    model.xor = pyo.LogicalConstraint(expr=pyo.xor(model.b[0], model.b[1]))
    with pytest.raises(InvalidInputError, match="leave out the LogicalConstraint xor"):
        si.from_pyomo(model, model.x)


def test_threads_share_the_model_of_an_unpickled_oracle():
    oracle = pickle.loads(pickle.dumps(si.from_math_opt(math_opt_model)))
    theta = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    with ThreadPoolExecutor(4) as threads:
        assert len({id(m) for m in threads.map(lambda _: oracle._solver_model, range(8))}) == 1
        found = list(threads.map(lambda row: si.relax(row, oracle, "map"), theta))
    assert torch.equal(torch.stack(found), si.relax(theta, oracle, "map"))


def test_a_warning_names_the_reason_of_the_stop():
    oracle = oracle_of("math_opt", on_limit="warn")
    outcome = Outcome("limit", np.array([1.0, 1, 0, 0]), 0.5, "the status NODE")
    oracle._solver_model.solve = lambda *arguments: outcome
    with pytest.warns(ConvergenceWarning, match="stopped at the status NODE"):
        assert oracle.argmax(torch.ones(1, 4)).tolist() == [[1, 1, 0, 0]]


def test_options_of_gurobi_win():
    pytest.importorskip("gurobipy")
    model, x = gurobi_model()
    oracle = si.from_gurobi(model, x, time_limit=9, solver_options={"mipgap": 0.1, "TimeLimit": 5})
    si.relax(torch.ones(4), oracle, "map")
    parameters = vars(oracle._solver_model)["_model"].Params
    assert (parameters.MIPGap, parameters.MIPGapAbs, parameters.TimeLimit) == (0.1, 0.0, 5.0)


def test_cvxpy_parameters():
    cp = pytest.importorskip("cvxpy")
    x, cost, most = cp.Variable(3, boolean=True), cp.Parameter(3), cp.Parameter(value=1)
    oracle = si.from_cvxpy(cp.Problem(cp.Minimize(cost @ x), [cp.sum(x) <= most]), x)  # cost has no value
    theta = torch.tensor([1.0, 2.0, 3.0])
    assert si.relax(theta, oracle, "map").tolist() == [0, 0, 1]
    most.value = 2
    assert si.relax(theta, oracle, "map").tolist() == [0, 1, 1]
    most.value = None
    with pytest.raises(InvalidInputError, match="has no value"):
        si.relax(theta, oracle, "map")


def test_cvxpy_domains():
    cp = pytest.importorskip("cvxpy")
    theta = torch.tensor([[1.0, 2.0, 3.0], [4.0, -5.0, 6.0]])

    def best(variable, *constraints, scores=theta):
        oracle = si.from_cvxpy(cp.Problem(cp.Minimize(0), list(constraints)), variable)
        return si.relax(scores, oracle, "map").tolist(), oracle

    x = cp.Variable((2, 3), boolean=[(0, 1, 1), (2, 0, 1)])
    y, oracle = best(x, x <= 1.5, x >= 0)
    assert y == [[1.5, 1.5, 1], [1, 0, 1.5]]
    assert oracle._solver_model.is_integer.reshape(2, 3).tolist() == [[False, False, True], [True, True, False]]
    x = cp.Variable(3, boolean=True, bounds=[-5, np.array([1, 5, 0])])
    y, oracle = best(x, cp.sum(x) <= 2, scores=theta[0])
    assert y == [1, 1, 0]
    assert oracle.has_binary_parts(theta)
    x, y = cp.Variable(2, boolean=True), cp.Variable(1, boolean=True)
    found, oracle = best([x, y], cp.sum(x) + cp.sum(y) <= 2, scores=theta[0])
    assert found == [0, 1, 1]
    assert oracle.has_binary_parts(theta)
    most = cp.Parameter(3, value=np.array([1.0, 2.0, 3.0]))
    x = cp.Variable(3, bounds=[0, most])
    assert best(x, cp.sum(x) <= 4, scores=theta[0])[0] == [0, 1, 3]
    x = cp.Variable((2, 2), diag=True)
    assert best(x, x <= 1, x >= -1, scores=theta[:, :2])[0] == [[1, 0], [0, -1]]
    with pytest.raises(InvalidInputError, match="cannot join the list"):
        best([cp.Variable(2), cp.Variable((2, 2))], scores=theta)


def test_cvxpy_imaginary_parts():
    cp = pytest.importorskip("cvxpy")
    x = cp.Variable(2, complex=True)
    oracle = si.from_cvxpy(cp.Problem(cp.Minimize(0), [cp.norm(x) <= 2]), cp.imag(x))
    found = si.relax(torch.tensor([3.0, 4.0]), oracle, "map")
    torch.testing.assert_close(found, torch.tensor([1.2, 1.6]), atol=1e-4, rtol=0)
