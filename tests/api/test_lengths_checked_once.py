"""Lengths are validated once in a public call, and by methods of oracles that are called directly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structinf as si
from structinf.calls.problem import Problem
from structinf.validation import instance_data

CASES: dict[str, tuple[Any, Any]] = {
    "arborescence": (torch.zeros(2, 4, 4), [3, 2]),
    "chain": ((torch.zeros(2, 4, 3), torch.zeros(3, 3)), [4, 2]),
    "projective_tree": (torch.zeros(2, 4, 4), [3, 2]),
    "spanning_tree": (torch.zeros(2, 4, 4), [4, 2]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
def test_a_public_call_checks_lengths_once(name, relaxation, monkeypatch):
    theta, lengths = CASES[name]
    calls = []

    def counted(value: torch.Tensor, *args: Any) -> None:
        calls.append(value)
        original(value, *args)

    original = instance_data.check_lengths
    for module in ("structinf.validation.instance_data", *MODULES):
        monkeypatch.setattr(f"{module}.check_lengths", counted, raising=False)
    si.relax(theta, name, relaxation, lengths=lengths)
    assert len(calls) == 1


MODULES = (
    "structinf_oracles.chain",
    "structinf_oracles.common.dependency_arcs",
    "structinf_oracles.common.undirected_graphs",
)


@pytest.mark.parametrize("name", CASES)
def test_methods_that_are_called_directly_check_lengths(name):
    theta, _ = CASES[name]
    with pytest.raises(si.InvalidInputError, match="lengths"):
        si.get_oracle(name).bind(lengths=[9, 1]).argmax(theta if name != "chain" else (theta[0], theta[1][None]))


def test_bound_oracles_of_a_user_are_not_taken_for_validated():
    oracle = si.get_oracle("arborescence").bind(lengths=[3, 2])
    problem = Problem.build(torch.zeros(2, 4, 4), oracle, {})
    assert not problem.oracle.must_check_lengths()
    assert not problem.oracle[torch.tensor([0])].must_check_lengths()
    assert not problem.oracle.repeat(3).must_check_lengths()
    assert oracle.must_check_lengths()
    assert problem.oracle.bind(lengths=[1, 1]).must_check_lengths()
