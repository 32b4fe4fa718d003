"""Every registered estimator over every registered oracle, or why it does not work for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import oracle_examples
import structinf as si
from estimator_enumeration import flat, generator, tensors
from oracle_examples import Example
from structinf.testing.cases import Case, CheckTarget

pytestmark = pytest.mark.slow


def cases(example: Example, *families: str) -> list[Case]:
    target = CheckTarget.make(example.oracle(), example.event_shape, example.instance_data)
    return list(target.cases(families or ("forbidden",), [torch.float64]))


def expected(f: Any, case: Case, estimator: Any, theta: Any) -> torch.Tensor:
    return si.expect(f, theta, case.target.oracle, estimator, generator=generator(), **case.instance_data)


@pytest.mark.matrix
@pytest.mark.parametrize("name", si.list_estimators())
@oracle_examples.parametrize(lambda example: example.relaxed)
def test_weights_sum_to_one(example: Example, name: str):
    # With so many draws, the mass that is not listed is always found.
    estimator = si.get_estimator(name, **({"draws": 10_000} if name == "sum_and_sample" else {}))
    if (missing := estimator.unsupported_reason(example.oracle())) is not None:
        with pytest.raises(si.UnsupportedError) as error:
            expected(len, cases(example)[0], name, cases(example)[0].user_theta)
        assert missing in str(error.value)
        assert "Supported estimators: exact, " in str(error.value)
        return
    for case in cases(example):
        leaves = [t.clone().requires_grad_() for t in tensors(case.user_theta)]
        theta = tuple(leaves) if isinstance(case.user_theta, tuple) else leaves[0]
        one = expected(lambda y: flat(y).new_ones(len(flat(y))), case, estimator, theta)
        torch.testing.assert_close(one, torch.ones_like(one), rtol=0, atol=1e-10)
        for g in torch.autograd.grad(one.sum(), leaves):
            torch.testing.assert_close(g, torch.zeros_like(g), rtol=0, atol=1e-10)


PAIRS = [
    pytest.param(example, name, relaxation, id=f"{example}-{name}")
    for example in oracle_examples.EXAMPLES
    for name, relaxation in (("exact", "marginals"), ("sparsemap", "sparsemap"))
    if example.relaxed
    and si.get_estimator(name).unsupported_reason(example.oracle()) is None
    and si.get_relaxation(relaxation).unsupported_reason(example.oracle()) is None
]


@pytest.mark.parametrize(("example", "name", "relaxation"), PAIRS)
def test_the_mean_structure_is_the_relaxation_s(example: Example, name: str, relaxation: str):
    for case in cases(example, "normal", "forbidden"):
        leaves = [t.clone().requires_grad_() for t in tensors(case.user_theta)]
        theta = tuple(leaves) if isinstance(case.user_theta, tuple) else leaves[0]
        exact = {"tolerance": 0} if name == "sparsemap" else {}
        mean = flat(si.relax(theta, case.target.oracle, relaxation, **exact, **case.instance_data))
        along = torch.linspace(-1, 2, mean.shape[1], dtype=torch.float64)
        value = expected(lambda y, v=along: flat(y) @ v, case, si.get_estimator(name, **exact), theta)
        torch.testing.assert_close(value, mean @ along, rtol=0, atol=1e-8)
        slopes = (torch.autograd.grad(v.sum(), leaves) for v in (value, mean @ along))
        for g, wanted in zip(*slopes, strict=True):
            torch.testing.assert_close(g, wanted, rtol=0, atol=1e-8)
