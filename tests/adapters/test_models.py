"""Oracles of models written with ortools.math_opt, and with cvxpy, gurobipy and pyomo where they are installed."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import structinf as si
from structinf import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    PluginError,
    SolverLimitError,
    UnboundedError,
    UnsupportedError,
)
from structinf.solver_oracle import Outcome
from structinf.testing import check_oracle

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


@each_package
def test_it_finds_the_best_solutions(package):
    oracle = oracle_of(package)
    theta = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
    theta[3] *= 1e-6
    theta[4] *= 1e6
    theta[5, 1] += 1e-9
    scores = theta.numpy() @ KNAPSACK.T
    y = si.relax(theta, oracle, "map")
    assert y.tolist() == KNAPSACK[scores.argmax(1)].tolist()
    backwards = si.relax(theta.flip(0), oracle, "map").flip(0)
    assert torch.equal(backwards, y)
    assert si.relax(theta[:4].half().view(2, 2, 4), oracle, "map").dtype == torch.float16
    assert si.relax(theta[:0], oracle, "map").shape == (0, 4)


@each_package
def test_methods_agree_with_milp(package):
    oracle, milp = oracle_of(package), si.get_oracle("milp", A=ROWS, upper=UPPER)
    theta = torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gold = si.relax(-theta, milp, "map")
    for method, options in (("sparsemap", {}), ("frank_wolfe", {}), ("blackbox", {})):
        found, wanted = (si.relax(theta, o, method, **options) for o in (oracle, milp))
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    for loss in (si.SPOPlusLoss, lambda o: si.FenchelYoungLoss(o, "perturbed", samples=3)):
        gradients = []
        for o in (oracle, milp):
            leaf = theta.clone().requires_grad_()
            target = gold + 0.1 * torch.arange(4) if loss is si.SPOPlusLoss else gold
            torch.manual_seed(0)
            loss(o)(leaf, target).backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)
    costs = [si.FenchelYoungLoss(o, "map", cost="hamming")(theta, gold) for o in (oracle, milp)]
    torch.testing.assert_close(*costs)


@each_package
def test_forbidden_parts_and_bounds(package):
    theta = torch.tensor([[9.0, -torch.inf, 1.0, 1.0], [9.0, 9.0, 1.0, 1.0]])
    assert si.relax(theta, oracle_of(package), "map").tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]
    oracle = oracle_of(package, low=1.0, high=2.0, upper=np.array([20.0, 8.0]))
    with pytest.raises(InfeasibleError, match="batch index 1"):
        si.relax(torch.tensor([[1.0] * 4, [1.0] * 4]).index_put((torch.tensor([1]),), theta[0]), oracle, "map")


@each_package
def test_continuous_variables(package):
    oracle = oracle_of(package, integer=False, rows=np.array([[1.0, 2.0]]), upper=np.array([4.0]), low=-1.0, high=3.0)
    theta = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 3.0], [0.0, 0.0]])
    y = si.relax(theta, oracle, "map")
    torch.testing.assert_close(y[:3], torch.tensor([[3.0, 0.5], [-1.0, 2.5], [-1.0, 2.5]]))
    corners = [[-1, -1], [-1, 2.5], [3, -1], [3, 0.5]]
    assert y[3].tolist() in corners
    with pytest.raises(UnsupportedError, match="no Hamming cost"):
        si.FenchelYoungLoss(oracle, "map", cost="hamming")(theta, y)
    mean = si.relax(torch.tensor([2.0, 2.0]), oracle, "sparsemap")
    torch.testing.assert_close(mean, torch.tensor([1.6, 1.2]), atol=1e-4, rtol=0)


@each_package
def test_infeasible_and_unbounded_models(package):
    with pytest.raises(InfeasibleError, match="batch index 0"):
        si.relax(torch.ones(2, 4), oracle_of(package, low=1.0), "map")
    oracle = oracle_of(
        package, rows=np.array([[1.0, 1.0]]), upper=np.array([1.0]), low=-np.inf, high=np.inf, integer=False
    )
    with pytest.raises(UnboundedError, match="batch index 1"):
        si.relax(torch.tensor([[1.0, 1.0], [1.0, 2.0]]), oracle, "map")
    oracle = oracle_of(
        package,
        rows=np.array([[1.0, 1.0], [-1, -1]]),
        upper=np.array([1.0, -2.0]),
        low=-np.inf,
        high=np.inf,
        integer=False,
    )
    with pytest.raises(InfeasibleError, match="batch index 0"):
        si.relax(torch.tensor([1.0, 2.0]), oracle, "map")


@each_package
def test_time_limit(package):
    generator = np.random.default_rng(0)
    rows = generator.integers(100, 1000, (5, 150)).astype(float)
    changes = {"rows": rows, "upper": rows.sum(1) / 2}
    theta = torch.from_numpy(generator.integers(1000, 1100, (1, 150))).double()
    with pytest.raises(SolverLimitError, match=r"time limit.*batch index 0"):
        oracle_of(package, time_limit=0.05, **changes).argmax(theta)


@each_package
def test_copies_and_pickles(package):
    make, model = PACKAGES[package]
    oracle = make(*model())
    theta = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    for other in (copy.copy(oracle), copy.deepcopy(oracle)):
        assert torch.equal(si.relax(theta, other, "map"), si.relax(theta, oracle, "map"))
    with pytest.raises(UnsupportedError, match=f"pass a function that returns the model.*from_{package}"):
        pickle.dumps(oracle)
    built = pickle.loads(pickle.dumps(make(model)))
    assert torch.equal(si.relax(theta, built, "map"), si.relax(theta, oracle, "map"))
    assert built != oracle
    assert "(4,)" in repr(built)


@each_package
def test_wrong_arguments(package):
    make, build = PACKAGES[package]
    model, x = build()
    _, other = build()
    with pytest.raises(InvalidInputError, match="model must be a"):
        make(3, x)
    with pytest.raises(InvalidInputError, match="must return a tuple"):
        make(lambda: model)
    with pytest.raises(InvalidInputError, match="variables: pass the variables"):
        make(model)
    with pytest.raises(InvalidInputError, match="variable"):
        make(model, other)
    with pytest.raises(InvalidInputError, match="variable"):
        make(model, "abc")
    with pytest.raises(InvalidInputError, match="time_limit"):
        make(model, x, time_limit=-1)
    with pytest.raises(InvalidInputError, match="solver_options"):
        make(model, x, solver_options=3)
    if package != "gurobi":
        with pytest.raises(InvalidInputError, match="solver"):
            make(model, x, solver="nothing")
    if package != "cvxpy":
        one = x[0].item() if package == "gurobi" else x[0]
        with pytest.raises(InvalidInputError, match="given twice"):
            make(model, [one, one])
        with pytest.raises(InvalidInputError, match="at least one variable"):
            make(model, [])
    oracle = make(model, x)
    with pytest.raises(InvalidInputError, match=r"shape \(\.\.\., 4\); got \(3,\)"):
        si.relax(torch.ones(2, 3), oracle, "map")
    with pytest.raises(UnsupportedError, match="no integer labels"):
        si.encode(torch.ones(4, dtype=torch.long), torch.ones(4), oracle)


@each_package
def test_the_model_of_the_user_stays(package):
    make, build = PACKAGES[package]
    model, x = build()
    oracle = make(model, x)
    si.relax(torch.tensor([1.0, -torch.inf, 1.0, 1.0]), oracle, "map")
    if package == "math_opt":
        assert [model.objective.get_linear_coefficient(v) for v in x] == [1, 0, 0, 0]
        assert x[1].upper_bound == 1
    elif package == "gurobi":
        assert model.getObjective().size() == 1
    elif package == "pyomo":
        assert len(list(model.component_objects())) == 3
        assert x[1].value is None


@each_package
def test_a_missing_package_names_the_extra(package, monkeypatch):
    make, build = PACKAGES[package]
    model, x = build()
    module = {
        "math_opt": "ortools.math_opt.python.mathopt",
        "cvxpy": "cvxpy",
        "gurobi": "gurobipy",
        "pyomo": "pyomo.environ",
    }
    extra = "solvers" if package == "math_opt" else package
    monkeypatch.setitem(sys.modules, module[package], None)
    with pytest.raises(ImportError, match=rf"structinf\[{extra}\]"):
        make(model, x)


@each_package
def test_pools_and_threads(package):
    oracle = oracle_of(package)
    theta = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    wanted = si.relax(theta, oracle, "map")
    assert torch.equal(si.relax(theta, si.pooled(oracle, solve_ratio=1.0), "map"), wanted)
    threads = si.parallel(oracle, workers=2, backend="threading")
    assert torch.equal(si.relax(theta, threads, "map"), wanted)
    assert torch.equal(si.relax(theta, threads, "map"), wanted)


@pytest.mark.full
@each_package
def test_processes(package):
    make, build = PACKAGES[package]
    theta = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    oracle = si.parallel(make(build), workers=2)
    try:
        assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, oracle_of(package), "map"))
    finally:
        oracle.close()
    with pytest.raises(UnsupportedError, match="cannot be pickled"):
        si.relax(theta, si.parallel(oracle_of(package), workers=2), "map")


@pytest.mark.full
@each_package
def test_laws(package, conformance_dtypes):
    assert not check_oracle(oracle_of(package), event_shape=(4,), dtypes=conformance_dtypes).failed
    line = oracle_of(package, integer=False, rows=np.array([[1.0, 2.0]]), upper=np.array([2.0]))
    assert not check_oracle(line, event_shape=(2,), dtypes=conformance_dtypes).failed


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


@each_package
def test_scores_of_zero_are_never_unbounded(package):
    rows, upper = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([0.0, -1.0])
    oracle = oracle_of(package, rows=rows, upper=upper, low=-np.inf, high=np.inf)
    own = oracle._solver_model
    own.solve = lambda *arguments: Outcome("unbounded")  # the solver cannot tell
    with pytest.raises(InfeasibleError, match="batch index 0"):
        si.relax(torch.ones(1, 2), oracle, "map")


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


@pytest.mark.parametrize("package", ["math_opt", "gurobi", "pyomo"])
def test_lists_of_arrays(package):
    make, build = PACKAGES[package]
    model, x = build()
    if package == "math_opt":
        pairs, uneven = [np.array(x[:2]), np.array(x[2:])], [np.array(x[:1]), x[1:]]
    elif package == "gurobi":
        pairs, uneven = [x[:2], x[2:]], [x[:1], x[1:]]
    else:
        pairs, uneven = [{0: x[0], 1: x[1]}, {0: x[2], 1: x[3]}], [[x[0]], [x[1], x[2]]]
    theta = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = si.relax(theta, make(model, x), "map").view(2, 2)
    assert torch.equal(si.relax(theta.view(2, 2), make(model, pairs), "map"), expected)
    with pytest.raises(InvalidInputError, match="different shapes; give one flat list"):
        make(model, uneven)


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
