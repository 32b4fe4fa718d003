"""Lengths are validated once in a public call, and by methods of oracles that are called directly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structinf as si
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

    def counted(value: torch.Tensor, *args: Any, **options: Any) -> None:
        calls.append(value)
        original(value, *args, **options)

    original = instance_data.check_lengths
    for module in ("structinf.validation.instance_data", *MODULES):
        monkeypatch.setattr(f"{module}.check_lengths", counted, raising=False)
    si.relax(theta, name, relaxation, lengths=lengths)
    assert len(calls) == 1


MODULES = (
    "structinf_oracles.chain",
    "structinf_oracles.common.dependency_arcs",
    "structinf_oracles.common.scored_edges",
)


@pytest.mark.parametrize("name", CASES)
def test_methods_that_are_called_directly_check_lengths(name):
    theta, _ = CASES[name]
    with pytest.raises(si.InvalidInputError, match="lengths"):
        si.get_oracle(name).bind(lengths=[9, 1]).argmax(theta if name != "chain" else (theta[0], theta[1][None]))


def test_changed_lengths_of_a_user_do_not_reach_an_oracle():
    lengths = torch.tensor([3, 2])
    oracle = si.get_oracle("arborescence").bind(lengths=lengths)
    y: Any = oracle.argmax(torch.zeros(2, 4, 4))
    lengths.fill_(10**7)
    again: Any = oracle.argmax(torch.zeros(2, 4, 4))
    assert torch.equal(again, y)
    with pytest.raises(si.InvalidInputError, match="lengths must lie between 0 and 3"):
        oracle.bind(lengths=lengths).argmax(torch.zeros(2, 4, 4))


@pytest.mark.parametrize("rows", [0, (slice(None), 0), (slice(None), slice(1)), torch.tensor([[0, 1], [1, 0]])])
def test_indices_that_change_the_form_of_the_lengths_are_refused(rows):
    oracle = si.get_oracle("dtw").bind(lengths=[[2, 3], [3, 3]])
    oracle.argmax(torch.zeros(2, 3, 3))
    with pytest.raises(si.InvalidInputError, match="lengths"):
        oracle[rows].argmax(torch.zeros(2, 3, 3))
