"""Any subset of d elements, against enumeration and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import enumerators_subsets as plain
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InvalidInputError
from structinf_oracles.bits import Bits

pytestmark = pytest.mark.slow

INF = math.inf
DOUBLE = torch.float64


def program(size):
    return Program(
        Bits(),
        (size,),
        lambda length: list(plain.bits(size, length)),
        lambda length: plain.bits_grammar(size, length),
        lengths=list(range(size + 1)),
    )


PROGRAMS = [program(4), program(1)]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_sums_are_those_of_each_element(scale, dtype):
    theta = scale * torch.randn(3, 6, dtype=dtype)
    theta[0, 2] = theta[1] = -INF
    expected = [sum(max(t, 0) + math.log1p(math.exp(-abs(t))) for t in row) for row in theta.tolist()]
    rounding = 1e-6 if dtype == torch.float32 else 1e-14
    assert Bits().log_partition(theta).tolist() == pytest.approx(expected, rel=rounding)
    assert Bits().marginals(theta)[1].tolist() == [0] * 6
    assert Bits().sample(theta, 5)[:, 1].sum() == 0


def test_sums_have_derivatives_of_all_orders():
    theta = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    value = Bits().log_partition(theta).sum()
    p = theta.detach().sigmoid()
    for expected in (p, p * (1 - p), p * (1 - p) * (1 - 2 * p), p * (1 - p) * (1 - 6 * p + 6 * p * p)):
        (value,) = torch.autograd.grad(value, theta, create_graph=True)
        torch.testing.assert_close(value, expected)
        value = value.sum()


def test_samples_are_of_each_element_alone():
    theta = torch.tensor([[-1.0, 0.0, 3.0, -INF, 200.0]], dtype=DOUBLE)
    generator = torch.Generator().manual_seed(3)
    drawn, p = Bits().sample(theta, 20_000, generator)[:, 0], theta[0, :3].sigmoid()
    torch.testing.assert_close(drawn.mean(0), theta[0].sigmoid(), atol=0.015, rtol=0)
    torch.testing.assert_close(drawn[:, :3].T.cov(), torch.diag(p * (1 - p)), atol=0.015, rtol=0)


def test_projections_clip():
    theta = torch.tensor([[-0.5, 0.25, 7.0, -INF]])
    assert Bits().project(theta).tolist() == [[0, 0.25, 1, 0]]
    assert gradcheck(Bits().project, torch.randn(3, 4, dtype=DOUBLE, requires_grad=True))
    for binary in (False, True):
        theta = torch.randn(3, 4, dtype=DOUBLE, requires_grad=True)
        assert gradgradcheck(lambda t, b=binary: Bits().project_entropy(t, binary=b), theta)


def test_ties_are_left():
    assert Bits().argmax(torch.tensor([[0.0, -0.0, 1e-30]])).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_instances_and_no_elements(shape):
    theta = torch.zeros(shape)
    for ask in (Bits().argmax, Bits().project, Bits().marginals, lambda t: Bits().sample(t, 1)[0]):
        assert ask(theta).shape == shape
    assert Bits().log_partition(torch.zeros(2, 0)).tolist() == [0, 0]
    assert Bits().enumerate((0,)).shape == (1, 0)


def test_labels_are_memberships():
    bits = Bits().bind(lengths=torch.tensor([2]))
    theta = torch.zeros(1, 3)
    assert bits.encode(torch.tensor([[1, 0, -1]]), theta).tolist() == [[1, 0, 0]]
    with pytest.raises(InvalidInputError, match="neither 0 nor 1"):
        bits.encode(torch.tensor([[1, 2, 0]]), theta)
    with pytest.raises(InvalidInputError, match="lengths must lie between 0 and 3"):
        Bits().bind(lengths=torch.tensor([4])).validate(theta)
