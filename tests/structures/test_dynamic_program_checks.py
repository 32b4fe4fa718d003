"""DynamicProgram passes the conformance suite, and refuses wrong recursions."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

import structinf as si
from dynamic_program_examples import (
    EXAMPLES,
    Example,
    FewOnes,
    Grid,
    Rod,
    Tags,
    assert_close,
    every_alpha,
    every_example,
    flat,
)
from regularizers_by_alpha import INF, REGULARIZERS
from structinf.dp.recursion import DynamicProgram
from structinf.errors import InfeasibleError, PluginError, UnsupportedError
from structinf.parts import as_tuple, map_parts
from structinf.regularizers import Negentropy, SquaredL2
from structinf.smoothing import smooth_max_with_backward

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- conformance


@pytest.mark.parametrize(
    ("oracle", "event_shape", "instance_data", "dtype"),
    [
        (FewOnes(k=2), (4,), None, torch.float64),
        (Grid(), (2, 3), {"lengths": [[2, 3], [1, 2], [2, 2], [2, 1]]}, torch.float64),
        pytest.param(Tags(), ((2, 2), (2, 2)), None, torch.float32, marks=pytest.mark.full),
    ],
    ids=["FewOnes", "Grid", "Tags"],
)
def test_conformance(oracle, event_shape, instance_data, dtype):
    assert not si.testing.check_oracle(oracle, event_shape, instance_data=instance_data, dtypes=[dtype]).failed


def test_conformance_of_counts():
    # Pieces are counted, up to four of a length: no cost of a piece adds up to a Hamming distance then.
    report = si.testing.check_oracle(Rod(length=4), (3,), dtypes=[torch.float64], raise_on_failure=False)
    assert report.failed == ["hamming_cost"]


def test_ties_go_to_the_first_entry():
    assert FewOnes(k=2).argmax(torch.zeros(2, 4)).tolist() == [[0.0] * 4] * 2
    assert Grid().argmax(torch.zeros(1, 2, 2)).tolist() == [[[1.0, 1.0], [0.0, 1.0]]]


@every_alpha
def test_forbidden_parts(alpha):
    oracle, regularizer, theta = Grid(), REGULARIZERS[alpha], torch.randn(2, 3, 3, dtype=torch.float64)
    theta[0, 1, :2] = theta[1, 0, 1] = -INF
    theta[1, :, 2] = theta[1, 2, 2].clone()
    inputs = theta.clone().requires_grad_()
    value = oracle.smoothed_value(inputs, regularizer)
    (first,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.randn_like(theta)).sum(), inputs)
    for derivative in (first, second):
        assert derivative.isfinite().all()
        assert not derivative[theta.isneginf()].any()
    for b in range(2):
        at, goal = Example(oracle, (3, 3)).at(theta, b, alpha)
        assert_close(value[b], at.v[goal])
        assert_close(flat(first)[b], at.mean(goal))
    drawn = oracle.smoothed_sample(theta, 50, regularizer)
    assert not drawn[:, theta.isneginf()].any()


def test_infeasible_instances_are_named():
    theta = torch.zeros(3, 3, 3)
    theta[1, 2, 2] = -INF
    oracle = Grid()
    queries = [
        oracle.argmax,
        oracle.log_partition,
        oracle.marginals,
        lambda t: oracle.sample(t, 2),
        lambda t: oracle.smoothed_value(t, SquaredL2()),
        lambda t: oracle.smoothed_hessian_product(t, t, SquaredL2()),
    ]
    for query in queries:
        with pytest.raises(InfeasibleError, match=r"no structure of Grid .* batch index 1") as error:
            query(theta)
        assert error.value.batch_index == 1


@every_example
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_batch_and_dtypes(example, dtype):
    oracle, some = example.bound, example.draw(dtype=dtype)
    none = map_parts(lambda t: t[:0], some)
    for o, theta, size in ((oracle, some, 3), (oracle[torch.zeros(3, dtype=torch.bool)], none, 0)):
        assert o.log_partition(theta).shape == (size,)
        assert o.log_partition(theta).dtype is dtype
        for answer in (
            o.argmax(theta),
            o.smoothed_mean(theta, SquaredL2()),
            map_parts(lambda y: y[:1], o.sample(theta, 1)),
        ):
            assert [t.dtype for t in as_tuple(answer)] == [dtype] * len(as_tuple(theta))
        assert [t.shape for t in as_tuple(o.sample(theta, 2))] == [(2, *t.shape) for t in as_tuple(theta)]


def test_relax_with_lengths_and_rubbish_in_the_padding():
    unary, transition = torch.randn(2, 1, 4, 3), torch.randn(3, 3)
    unary[1, 0, 2:] = torch.nan
    for relaxation in ("map", "marginals"):
        mean, counts = si.relax((unary, transition), Tags(), relaxation, lengths=[[4], [2]])
        assert not mean[1, 0, 2:].any()
        torch.testing.assert_close(mean.sum(-1), torch.tensor([[[1.0] * 4], [[1.0, 1.0, 0.0, 0.0]]]))
        torch.testing.assert_close(counts.sum((-1, -2)), torch.tensor([[3.0], [1.0]]))


# ----------------------------------------------------------------------------- the valid parts


def test_valid_parts_are_those_of_some_derivation():
    for example in EXAMPLES:
        if not example.lengths:
            continue
        theta = example.draw()
        masks = as_tuple(example.bound.valid_parts(theta))
        for b, lengths in enumerate(example.lengths):
            used = as_tuple(example.oracle.bind(lengths=torch.tensor([lengths])).enumerate(example.event_shape))
            for mask, y in zip(masks, used, strict=True):
                assert torch.equal(mask[b], y.any(0))
        if isinstance(theta, tuple):
            shared = example.bound.valid_parts((theta[0], theta[1][:1]))[1]
            assert torch.equal(shared, masks[1].any(0, keepdim=True))


def test_valid_parts_of_opposite_signs_and_of_rare_derivations():
    class Signed(DynamicProgram):
        """Signs ±1; the first part is in one of 2^1200 derivations."""

        event_ndim = 1
        instance_ndim: ClassVar = {"lengths": 0}

        def value(self, theta, smax):
            rare = theta[:, 0]
            for _ in range(1200):
                rare = smax(torch.stack([rare, torch.zeros_like(rare)]), 0)
            inside = torch.arange(theta.shape[1]) < self.bound["lengths"][:, None]
            signs = smax(torch.stack([theta, -theta], -1)).where(inside, 0.0)
            return rare + signs[:, 1:].sum(1)

    oracle = Signed().bind(lengths=torch.tensor([3, 1]))
    assert oracle.valid_parts(torch.zeros(2, 4)).tolist() == [[True, True, True, False], [True, False, False, False]]
    assert Signed().valid_parts(torch.zeros(2, 4)) is None


# ----------------------------------------------------------------------------- wrong recursions


def program(recursion) -> DynamicProgram:
    return type("Program", (DynamicProgram,), {"event_ndim": 1, "value": recursion})()


def test_wrong_results_of_value_are_refused():
    for recursion, came in (
        (lambda self, theta, smax: smax(theta).sum(), r"shape \(\)"),
        (lambda self, theta, smax: theta, r"shape \(2, 3\)"),
        (lambda self, theta, smax: 0.0, "float"),
    ):
        with pytest.raises(PluginError, match=rf"value of Program must return .* shape \(2,\); got .*{came}"):
            program(recursion).argmax(torch.zeros(2, 3))


def test_fractions_of_a_maximum_cannot_be_sampled():
    for factor in (0.5, -1.0):
        with pytest.raises(PluginError, match=rf"whole multiples .* got the factor {factor:g}$"):
            program(lambda self, theta, smax, f=factor: f * smax(theta)).sample(torch.zeros(2, 3), 1)


def test_value_is_neither_theta_nor_of_another_dtype():
    theta = torch.randn(2, 3)
    first = program(lambda self, theta, smax: theta[:, 0])
    value = first.log_partition(theta)
    value += 1
    assert torch.equal(value, theta[:, 0] + 1)
    double = program(lambda self, theta, smax: smax(theta + torch.zeros(3, dtype=torch.float64)))
    assert double.log_partition(theta).dtype is torch.float32


def test_walks_have_no_second_derivative():
    x = torch.randn(2, 3, requires_grad=True)
    value = smooth_max_with_backward(Negentropy(), x, -1, lambda x, g: torch.zeros_like(x))
    with pytest.raises(UnsupportedError, match="no derivative"):
        torch.autograd.grad(value.sum(), x, create_graph=True)


def test_k_best_is_out_of_reach():
    assert "HypergraphProgram" in FewOnes(k=1).unsupported["KBest"]
