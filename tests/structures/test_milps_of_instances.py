"""Integer programs whose constraints differ between the instances of a batch."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.testing import check_oracle

MATRICES = torch.tensor([[[1.0, 2.0, 3.0], [0.0, 1.0, 1.0]], [[2.0, 2.0, 1.0], [1.0, 0.0, -1.0]]])[[0, 1, 0]]
UPPER = torch.tensor([[3.0, 1.0], [3.0, 0.0], [4.0, 2.0]])
LOWER = torch.tensor([[1.0, -torch.inf], [0.0, -1.0], [2.0, 1.0]])
DATA: dict[str, Any] = {"A": MATRICES, "lower": LOWER, "upper": UPPER}


def scores() -> Tensor:
    return torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def points(b: int) -> Tensor:
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    sums = every @ MATRICES[b].T
    return every[((sums >= LOWER[b]) & (sums <= UPPER[b])).all(1)].double()


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_each_instance_has_its_constraints(solver: str) -> None:
    if solver == "cp_sat":
        pytest.importorskip("ortools")
    theta = scores()
    y = si.relax(theta, "milp", "map", solver=solver, **DATA)
    mean = si.relax(theta, "milp", "sparsemap", tolerance=0, solver=solver, **DATA)
    best = si.topk(theta, "milp", k=4, solver=solver, **DATA)
    for b in range(3):
        own: dict[str, Any] = {"A": MATRICES[b], "lower": LOWER[b], "upper": UPPER[b], "solver": solver}
        assert torch.equal(y[b], si.relax(theta[b], "milp", "map", **own))
        assert torch.equal(mean[b], si.relax(theta[b], "milp", "sparsemap", tolerance=0, **own))
        ranked = (points(b) @ theta[b]).sort(descending=True).values
        assert torch.allclose(best.scores[: len(ranked), b], ranked[:4])
        assert torch.equal(si.get_oracle("milp", **own).enumerate((3,)).sort(0).values, points(b).sort(0).values)
    assert torch.equal(si.encode(y.long(), theta, "milp", solver=solver, **DATA), y)


def test_data_join_options() -> None:
    theta = scores()
    for name in DATA:
        options = {key: value[0] for key, value in DATA.items() if key != name}
        y = si.relax(theta, "milp", "map", **options, **{name: DATA[name]})
        alone = [si.relax(theta[b], "milp", "map", **options, **{name: DATA[name][b]}) for b in range(3)]
        assert torch.equal(y, torch.stack(alone))


@pytest.mark.full
def test_the_laws_of_oracles(conformance_dtypes: Any) -> None:
    check_oracle(si.get_oracle("milp"), (3,), instance_data=DATA, dtypes=conformance_dtypes)


def test_copies_rows_and_infeasible_instances() -> None:
    theta = scores().requires_grad_()
    oracle = si.get_oracle("milp").bind(**DATA)
    copied = pickle.loads(pickle.dumps(oracle))
    assert torch.equal(copied.argmax(theta.detach()), oracle.argmax(theta.detach()))
    rows = torch.tensor([2, 0])
    assert torch.equal(oracle[rows].argmax(theta.detach()[rows]), oracle.argmax(theta.detach())[rows])
    assert torch.equal(oracle.repeat(2).argmax(theta.detach().repeat(2, 1)), oracle.argmax(theta.detach()).repeat(2, 1))
    upper = UPPER.clone()
    upper[1] = -torch.inf
    data = {**DATA, "upper": upper}
    with pytest.raises(InfeasibleError, match="batch index 1"):
        si.relax(theta, "milp", **data)
    loss = si.FenchelYoungLoss("milp", on_infeasible="zero", reduction="none")(
        theta, torch.zeros(3, 3, dtype=torch.float64), **{**data, "lower": LOWER.clamp(max=0)}
    )
    assert loss[1] == 0
    assert torch.autograd.grad(loss.sum(), theta)[0][1].count_nonzero() == 0
    assert si.relax(torch.zeros(0, 3), "milp", "map", A=torch.zeros(0, 2, 3), upper=1.0).shape == (0, 3)


def test_errors() -> None:
    theta = scores()
    with pytest.raises(InvalidInputError, match="milp needs A"):
        si.relax(theta, "milp", "map")
    with pytest.raises(InvalidInputError, match=r"upper must hold a number for each of the 2 rows of A"):
        si.relax(theta, "milp", "map", A=MATRICES, upper=torch.zeros(3, 4))
    with pytest.raises(InvalidInputError, match="NaN"):
        si.relax(theta, "milp", "map", A=MATRICES * torch.nan)
    with pytest.raises(InvalidInputError, match="labels"):
        si.encode(torch.ones(3, 3, dtype=torch.int64), theta, "milp", **DATA)


def test_data_receive_no_gradient() -> None:
    with pytest.raises(InvalidInputError, match="A requires a gradient, but only theta receives one"):
        si.relax(scores(), "milp", "map", A=MATRICES.clone().requires_grad_(), upper=UPPER)
