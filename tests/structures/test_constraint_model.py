"""Constraint models of one's own: parts of every kind, limits, labels, pickles, and what is refused."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from ortools.sat.python import cp_model

import enumerators
import structinf as si
from enumerators_integer_programs import Seating
from structinf import ConvergenceWarning, InfeasibleError, InvalidInputError, SolverLimitError
from structinf.solver_oracle import Outcome
from structinf_oracles.common.constraint_program import ConstraintProgram
from structinf_oracles.constraint_model import ConstraintModel

pytestmark = pytest.mark.slow

INF = float("inf")


def mixed() -> tuple[Any, Any]:
    """Two integers, a negated variable, and a constant; their sum is at most 3, by a variable that is not scored."""
    model = cp_model.CpModel()
    a, b = model.new_int_var(0, 3, "a"), model.new_int_var(1, 2, "b")
    left, total = model.new_bool_var("left"), model.new_int_var(0, 3, "total")
    model.add(total == a + b + left.negated())
    return model, [[a, b], [left.negated(), 1]]


def mixed_solutions() -> list[tuple[np.ndarray]]:
    return [
        (np.array([[a, b], [taken, 1]], float),)
        for a, b, taken in itertools.product(range(4), range(1, 3), range(2))
        if a + b + taken <= 3
    ]


def hard(weights: int = 3, items: int = 60) -> tuple[Any, Any]:
    """A market split: equations that few or no subsets satisfy, made soft so that any subset is a solution."""
    model = cp_model.CpModel()
    y = [model.new_bool_var("") for _ in range(items)]
    off = []
    for i in range(weights):
        weight = np.random.default_rng(i).integers(1, 100, items).tolist()
        off.append(model.new_int_var(-sum(weight), sum(weight), ""))
        model.add(sum(w * v for w, v in zip(weight, y, strict=True)) - sum(weight) // 2 == off[-1])
    miss = model.new_int_var(0, 10**6, "")
    model.add_max_equality(miss, [sign * o for o in off for sign in (1, -1)])
    return model, [*y, miss]


def test_parts_of_every_kind():
    oracle = ConstraintModel(mixed)
    assert oracle.event_shape == (2, 2)
    listed = mixed_solutions()
    assert oracle.enumerate((2, 2)).tolist() == sorted(y.tolist() for (y,) in listed)
    for scale in (1e-30, 1e-3, 1.0, 1e3):
        theta = torch.randn(20, 2, 2, dtype=torch.float64) * scale
        y = oracle.argmax(theta)
        for t, z in zip(theta.numpy(), y.numpy(), strict=True):
            assert enumerators.score((t,), (z,)) == pytest.approx(enumerators.best((t,), listed), rel=1e-14)
    assert torch.equal(oracle.encode(oracle.decode(y), theta), y)


def test_minus_infinity_is_zero_where_that_may_be():
    oracle = ConstraintModel(mixed)
    assert oracle.argmax(torch.tensor([[[-INF, 1.0], [-INF, 0.0]]])).tolist() == [[[0, 2], [0, 1]]]
    for place in ((0, 1), (1, 1)):  # at least 1, and always 1
        theta = torch.zeros(2, 2, 2)
        theta[1][place] = -INF
        with pytest.raises(InfeasibleError, match="batch index 1"):
            oracle.argmax(theta)


@pytest.mark.parametrize("labels", [[[3, 1], [0, 1]], [[0, 1], [1, 0]], [[10_000, 1], [0, 1]], [[-1, 1], [0, 1]]])
def test_labels_that_are_no_solution(labels):
    with pytest.raises(InvalidInputError, match="no solution of the model has these values at batch index 1"):
        ConstraintModel(mixed).encode(torch.tensor([[[0, 1], [0, 1]], labels]), torch.zeros(2, 2, 2))


def test_the_model_is_built_once_and_again_after_pickling():
    calls = []

    def build():
        calls.append(1)
        return mixed()

    oracle = ConstraintModel(build)
    for _ in range(3):
        si.relax(torch.zeros(2, 2, 2), oracle, "sparsemap")
    assert len(calls) == 1
    seating = ConstraintModel(Seating(4), seed=3)
    again = pickle.loads(pickle.dumps(seating))
    assert again == seating
    assert hash(again) == hash(seating)
    theta = torch.randn(3, 4, 4)
    assert torch.equal(again.argmax(theta), seating.argmax(theta))
    assert seating != ConstraintModel(Seating(4))


def test_a_loss_checks_that_gold_is_a_solution():
    loss = si.FenchelYoungLoss(ConstraintModel(Seating(3)), "sparsemap")
    theta = torch.randn(2, 3, 3, requires_grad=True)
    gold = torch.tensor([[[1, 0, 0], [0, 0, 1], [0, 1, 0]]] * 2)
    loss(theta, gold).backward()
    assert theta.grad is not None
    with pytest.raises(InvalidInputError, match="no solution of the model"):
        loss(theta, torch.eye(3).expand(2, 3, 3))


@dataclass
class Mutable:
    """What has no hash."""

    size: int

    def __call__(self) -> tuple[Any, Any]:
        return Seating(self.size)()


def test_labels_where_the_function_has_no_hash():
    oracle = ConstraintModel(Mutable(3))
    labels = torch.tensor([[[1, 0, 0], [0, 0, 1], [0, 1, 0]]])
    assert oracle.encode(labels, torch.zeros(1, 3, 3)).equal(labels.float())


def test_what_a_limit_left_open_is_asked_again(monkeypatch):
    oracle = ConstraintModel(Seating(3))
    labels, theta = torch.tensor([[[1, 0, 0], [0, 0, 1], [0, 1, 0]]]), torch.zeros(1, 3, 3)
    with monkeypatch.context() as patch:
        patch.setattr(ConstraintProgram, "_solve", lambda *_: Outcome("limit"))
        with pytest.raises(SolverLimitError, match="batch index 0"):
            oracle.encode(labels, theta)
    assert oracle.encode(labels, theta).equal(labels.float())
    monkeypatch.setattr(ConstraintProgram, "_solve", None)  # known by now
    assert oracle.encode(labels, theta).equal(labels.float())


def test_a_limit_with_an_incumbent():
    theta = torch.zeros(2, 61)
    theta[1, -1] = -1.0
    with pytest.raises(
        SolverLimitError, match="for batch index 1 with a solution of the model whose score may be below"
    ):
        ConstraintModel(hard, time_limit=1).argmax(theta)
    with pytest.warns(ConvergenceWarning, match=r"best, by a relative gap, at batch index 1 \(by "):
        y = ConstraintModel(hard, time_limit=1, on_limit="warn").argmax(theta)
    assert ConstraintModel(hard).encode(y.long(), theta).equal(y)
    with pytest.raises(SolverLimitError, match="without any solution of the model for batch index 0"):
        ConstraintModel(hard, time_limit=1e-9, on_limit="warn").argmax(theta)


def with_objective() -> tuple[Any, Any]:
    model, parts = mixed()
    model.maximize(parts[0][0])
    return model, parts


def expressions() -> tuple[Any, Any]:
    model, parts = mixed()
    return model, [2 * parts[0][0]]


def endless() -> tuple[Any, Any]:
    model = cp_model.CpModel()
    return model, [model.new_int_var(0, 2**40, "")]


def of_another_model() -> tuple[Any, Any]:
    return mixed()[0], mixed()[1]


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (with_objective, "remove it"),
        (expressions, "add a variable equal to the expression"),
        (endless, "within ±2"),
        (lambda: (cp_model.CpModel(), [2**70]), "within ±2"),
        (of_another_model, ".* at index 0 belongs to another model"),
        (lambda: (cp_model.CpModel(), mixed()[1]), ".* at index 0 belongs to another model"),
        (lambda: (cp_model.CpModel(), 1), "must return a list or an array of variables"),
        (lambda: None, "must return a tuple of a CpModel"),
        (lambda: (cp_model.CpModel(), []), "no variables"),
        ("no function", "must be a function"),
    ],
)
def test_what_is_refused(build, why):
    with pytest.raises(InvalidInputError, match=why):
        ConstraintModel(build)


def test_scores_of_another_shape():
    with pytest.raises(InvalidInputError, match=r"shape of the model's variables, \(2, 2\)"):
        si.relax(torch.zeros(4, 2, 3), ConstraintModel(mixed), "map")
