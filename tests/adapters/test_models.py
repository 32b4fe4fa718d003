"""Oracles of models written with ortools.math_opt, and with cvxpy, gurobipy and pyomo where they are installed."""

from __future__ import annotations

import copy
import pickle
import sys

import numpy as np
import pytest
import torch

import structinf as si
from model_packages import KNAPSACK, PACKAGES, ROWS, UPPER, each_package, oracle_of
from structinf import (
    InfeasibleError,
    InvalidInputError,
    SolverLimitError,
    UnboundedError,
    UnsupportedError,
)
from structinf.solver_oracle import Outcome
from structinf.testing import check_oracle


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


@each_package
def test_scores_of_zero_are_never_unbounded(package):
    rows, upper = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([0.0, -1.0])
    oracle = oracle_of(package, rows=rows, upper=upper, low=-np.inf, high=np.inf)
    own = oracle._solver_model
    own.solve = lambda *arguments: Outcome("unbounded")  # the solver cannot tell
    with pytest.raises(InfeasibleError, match="batch index 0"):
        si.relax(torch.ones(1, 2), oracle, "map")


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
