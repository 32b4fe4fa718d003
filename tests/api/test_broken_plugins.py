"""Broken plugins, at least one for almost every check, are caught by the check that tests for the mistake."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from structinf import InfeasibleError, LinearConstraints, LinearlyConstrained, Oracle, Parts
from structinf.parts import as_tuple, map_parts
from structinf.relaxations.map import MAP
from structinf.relaxations.marginals import Marginals
from structinf.relaxations.sparsemap import SparseMAP
from structinf.solution import Solution
from structinf.testing import (
    CheckError,
    Enumeration,
    check_oracle,
    check_relaxation,
    list_oracle_checks,
    list_relaxation_checks,
)
from toy_oracles import SHAPES, Cube, Explicit, Knapsack, Walk

pytestmark = pytest.mark.slow

DTYPES = (torch.float64, torch.float32)
FAIL_IN_FLOAT32 = ("form", "optimal")
"""Checks with a broken oracle that passes in float64."""


def variant(base: type, *options: Any, **overrides: Any) -> Any:
    """An object of ``base`` with some methods replaced."""
    return dataclass(frozen=True)(type(f"Broken{base.__name__}", (base,), overrides))(*options)


# ----------------------------------------------------------------------------- broken oracles

GENERATOR = torch.Generator().manual_seed(0)


class NoneOfCube(Cube, LinearlyConstrained):
    """Any subset of the parts, with the constraint that there are none."""

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        d = event_shape[0]
        return LinearConstraints.of(([0] * d, range(d), [1] * d), d, [0], [0])


def _mixture(self: Any, theta: Tensor) -> Tensor:
    return theta.softmax(1)


def _writes(self: Any, theta: Tensor) -> Tensor:
    theta.mul_(2)
    return Knapsack.argmax(self, theta)


def _writes_by_numpy(self: Any, theta: Tensor) -> Tensor:
    """Replace −inf by a large number in the memory of θ, which changes no version counter."""
    scores = theta.detach().numpy()
    scores[scores == -torch.inf] = -1e9
    return Explicit.argmax(self, theta)


def _replaces_minus_inf(self: Any, theta: Tensor) -> Tensor:
    y = Explicit.argmax(self, theta.clone())
    theta.masked_fill_(theta.isneginf(), -torch.nan)
    return y


def _flips(self: Any, theta: Tensor) -> Tensor:
    theta.requires_grad_()
    return Knapsack.argmax(self, theta.detach())


BUFFERS: dict[Any, Tensor] = {}


def _reuses_a_buffer(self: Any, theta: Tensor) -> Tensor:
    return BUFFERS.setdefault((theta.shape, theta.dtype), theta.clone()).copy_(Knapsack.argmax(self, theta))


def _random_ties(self: Any, theta: Tensor) -> Tensor:
    return Knapsack.argmax(self, theta + 1e-9 * torch.rand(theta.shape, generator=GENERATOR).to(theta))


def _looks_at_the_batch(self: Any, theta: Tensor) -> Tensor:
    return Knapsack.argmax(self, theta - theta.nan_to_num(neginf=0).mean(0) if len(theta) else theta)


def _views(self: Any, theta: Tensor) -> Tensor:
    return Knapsack.argmax(self, theta.view(-1).view(theta.shape))


def _greedy(self: Any, theta: Tensor) -> Tensor:
    y = torch.zeros_like(theta)
    for b in range(len(theta)):
        left = self.capacity
        for i in theta[b].argsort(descending=True, stable=True).tolist():
            if theta[b, i] > 0 and i + 1 <= left:
                y[b, i], left = 1, left - i - 1
    return y


def _big_constant(self: Any, theta: Tensor) -> Tensor:
    return Explicit.argmax(self, theta.nan_to_num(neginf=-1e3))


def _worst(self: Any, theta: Tensor) -> Tensor:
    structures, scores = self.table(theta)
    return self.pick(structures, scores.nan_to_num(neginf=torch.inf).min(1).indices)


def _no_check(self: Any, theta: Tensor) -> Tensor:
    structures, scores = self.table(theta)
    return self.pick(structures, scores.max(1).indices)


def _first_index(self: Any, theta: Tensor) -> Tensor:
    try:
        return Explicit.argmax(self, theta)
    except InfeasibleError as error:
        raise InfeasibleError("some instance is infeasible", 0) from error


def _overflows(self: Any, theta: Parts) -> Tensor:
    return self.table(theta)[1].exp().sum(1).log()


def _rounds(self: Any, theta: Parts) -> Tensor:
    return Explicit.log_partition(self, map_parts(torch.Tensor.float, theta)).to(as_tuple(theta)[0])


def _second_moment(self: Any, theta: Parts, v: Parts) -> Parts:
    structures, scores = self.table(theta)
    weights = scores.softmax(1) * sum(
        (y * z[:, None]).flatten(2).sum(2) for y, z in zip(as_tuple(structures), as_tuple(v), strict=True)
    )
    return map_parts(lambda y: (y * weights.view(*weights.shape, *[1] * (y.ndim - 2))).sum(1), structures)


def _uniform(self: Any, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
    return Explicit.sample(self, torch.where(theta.isneginf(), theta, 0.0), n, generator)


def _global_generator(self: Any, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
    return Explicit.sample(self, theta, n, None)


def _with_replacement(self, theta, n, generator=None):
    return self.sample(theta, n, generator), torch.ones(n, len(theta), dtype=torch.bool)


def _best_first(self, theta, n, generator=None):
    structures, _, valid = self.topk(theta, n)
    return structures, valid


def _stuck_generator(self: Any, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
    return Explicit.sample(self, theta, n, torch.Generator().manual_seed(generator.initial_seed()))


def _mean_sample(self: Any, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
    return self.marginals(theta).expand(n, *theta.shape).clone()


def _all_valid(self: Any, theta: Parts, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    return structures, scores, torch.ones_like(valid)


def _worst_first(self: Any, theta: Parts, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    whole = valid.all(0)
    return structures.flip(0).where(whole[:, None], structures), scores.flip(0).where(whole, scores), valid


def _stale_scores(self: Any, theta: Parts, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    return structures, scores[:1].expand_as(scores).where(valid, -torch.inf), valid


def _off_by_one(self: Any, labels: Tensor, like: Parts) -> Parts:
    return Walk.encode(self, (labels - 1).clamp(min=0), like)


@dataclass(frozen=True)
class Locked(Knapsack):
    lock: Any = field(default_factory=threading.Lock)


BROKEN: list[tuple[str, Any]] = [
    ("form", variant(Explicit, argmax=lambda self, theta: Explicit.argmax(self, theta)[:, :-1])),
    ("form", variant(Explicit, argmax=lambda self, theta: Explicit.argmax(self, theta).double())),
    ("form", variant(Explicit, argmax=lambda self, theta: Explicit.argmax(self, theta)[:1])),
    ("form", variant(Explicit, argmax=lambda self, theta: Explicit.argmax(self, theta).tolist())),
    ("form", variant(Explicit, argmax=lambda self, theta: (Explicit.argmax(self, theta),))),
    ("form", variant(Walk, argmax=lambda self, theta: list(Walk.argmax(self, theta)))),
    ("form", variant(Walk, argmax=lambda self, theta: Walk.argmax(self, theta)[0])),
    ("form", variant(Explicit, topk=lambda self, theta, k: Explicit.topk(self, theta, k)[:2])),
    ("form", variant(Explicit, log_partition=lambda self, theta: Explicit.log_partition(self, theta)[:, None])),
    ("empty_batch", variant(Knapsack, 6, argmax=lambda self, theta: Knapsack.argmax(self, theta - theta.max()))),
    ("input_untouched", variant(Knapsack, 6, argmax=_writes)),
    ("input_untouched", variant(Explicit, argmax=_writes_by_numpy)),
    ("input_untouched", variant(Explicit, argmax=_replaces_minus_inf)),
    ("input_untouched", variant(Knapsack, 6, argmax=_flips)),
    (
        "input_untouched",
        variant(
            Cube, project=lambda self, theta: theta if bool((theta == theta.clamp(0, 1)).all()) else theta.clamp(0, 1)
        ),
    ),
    ("new_memory", variant(Knapsack, 6, argmax=_reuses_a_buffer)),
    ("repeatable", variant(Knapsack, 6, argmax=_random_ties)),
    ("strides", variant(Knapsack, 6, argmax=_views)),
    ("batch_independence", variant(Knapsack, 6, argmax=_looks_at_the_batch)),
    (
        "rows_and_repeat",
        variant(Walk, repeat=lambda self, n: self[torch.arange(len(self.bound["lengths"])).repeat_interleave(n)]),
    ),
    ("instance_data", variant(Knapsack, 6, bind=lambda self, **instance_data: self)),
    ("copies", Locked(6)),
    ("vertex", variant(Knapsack, 6, argmax=_mixture)),
    ("vertex", variant(Explicit, argmax=_mixture)),
    ("vertex", variant(Walk, listed=lambda self, theta: Walk().listed(theta))),
    ("enumeration", variant(Walk, lengths=lambda self, size, steps: [steps] * size)),
    ("optimal", variant(Knapsack, 6, argmax=_greedy)),
    ("optimal", variant(Explicit, argmax=_worst)),
    ("optimal", variant(Explicit, argmax=_big_constant)),
    ("infeasible", variant(Explicit, argmax=_no_check)),
    ("infeasible", variant(Explicit, argmax=_first_index)),
    ("k_best", variant(Explicit, topk=_all_valid)),
    ("k_best", variant(Explicit, topk=_worst_first)),
    ("k_best", variant(Explicit, topk=_stale_scores)),
    ("projection", variant(Cube, project=Cube.argmax)),
    ("projection", variant(Cube, project=lambda self, theta: theta.detach().clamp(0, 1))),
    ("enumeration", Explicit(((1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 1, 0)))),
    ("enumeration", variant(Explicit, enumerate=lambda self, shape: Explicit.enumerate(self, shape).float())),
    ("known_set", variant(Explicit, known_set="all_bits")),
    ("known_set", variant(Explicit, known_set="one_of_n")),
    ("readout", variant(Explicit, readout=lambda self, y: y + 1)),
    ("readout", variant(Explicit, readout_transpose=lambda self, r, theta: 2 * r)),
    ("hamming_cost", variant(Explicit, hamming_cost=lambda self, y: y)),
    ("labels", variant(Walk, encode=_off_by_one)),
    ("labels", variant(Walk, decode=lambda self, y: Walk.decode(self, y).to(y[0]))),
    ("membership", variant(Explicit, contains=lambda self, y: y.sum(1) == 1)),
    (
        "membership",
        variant(Explicit, has_binary_parts=lambda self, theta: True, contains=lambda self, y: (y <= 1).all(1)),
    ),
    ("membership", variant(Explicit, contains=lambda self, y: (y <= 1).all())),
    ("no_nan", variant(Explicit, log_partition=_overflows)),
    ("log_partition", variant(Explicit, log_partition=_rounds)),
    ("marginals", variant(Explicit, marginals=Explicit.argmax)),
    ("form", variant(Explicit, log_partition=lambda self, theta: Explicit.log_partition(self, theta.detach()))),
    ("log_partition_vjp", variant(Explicit, log_partition_vjp=lambda self, theta, weight: self.marginals(theta))),
    ("covariance_product", variant(Explicit, covariance_product=_second_moment)),
    ("frequencies", variant(Explicit, sample=_uniform)),
    ("samples", variant(Explicit, sample=_mean_sample)),
    ("randomness", variant(Explicit, sample=_stuck_generator)),
    ("draws_without_replacement", variant(Explicit, sample_without_replacement=_with_replacement)),
    ("pairs_without_replacement", variant(Explicit, sample_without_replacement=_best_first)),
    ("linear_constraints", NoneOfCube()),
    ("padding", variant(Walk, valid_parts=lambda self, theta: None)),
    ("lengths", variant(Walk, validate=lambda self, theta: None)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("check", "oracle"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_oracle_is_caught_by_the_right_check(check: str, oracle: Oracle) -> None:
    shape = next((shape for base, shape in SHAPES.items() if isinstance(oracle, base)), (4,))
    with pytest.raises(CheckError) as error:
        check_oracle(oracle, shape, dtypes=DTYPES if check in FAIL_IN_FLOAT32 else DTYPES[:1])
    assert error.value.check == check, error.value
    message = str(error.value)
    requirement = next(c.requirement for c in list_oracle_checks() if c.name == check)
    assert message.startswith(f"{oracle!r} fails the check {check!r}: {requirement}\n")
    assert "The input on which it fails:\n    " in message
    assert "theta = " in message


# ----------------------------------------------------------------------------- broken relaxations


def relaxation(base: type, /, **overrides: Any) -> Any:
    """A relaxation with some methods replaced."""
    return dataclass(frozen=True, kw_only=True)(type(f"Broken{base.__name__}", (base,), overrides))()


def of_mean(base: type, change: Callable[[Tensor], Tensor]) -> Any:
    """A relaxation whose mean, asked for alone or with the record, is changed."""

    def solve(self: Any, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        whole = base(**{f.name: getattr(self, f.name) for f in fields(self)})
        found = whole.solve(oracle, theta, warm_start)
        return replace(found, mean=map_parts(change, found.mean))

    return relaxation(base, solve=solve, mean=lambda self, oracle, theta: self.solve(oracle, theta).mean)


class HalfGradient(torch.autograd.Function):
    """The identity, with half its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / 2


class OnceOnly(torch.autograd.Function):
    """Marginals whose first derivative is right, and whose second one is silently lost."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> Tensor:
        ctx.save_for_backward(theta)
        return Explicit().marginals(theta)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return Explicit().covariance_product(ctx.saved_tensors[0].detach(), g.detach()) + 0 * g


def _writing(self: Any, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
    for t in as_tuple(theta):
        t.detach().add_(1)
    return Marginals.solve(self, oracle, theta, warm_start)


def _heavy(self: Any, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
    found = SparseMAP.solve(self, oracle, theta, warm_start)
    return replace(found, weights=found.weights * 1.01)


def _cold(self: Any, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
    found = SparseMAP.solve(self, oracle, theta, None)
    return found if warm_start is None else replace(found, mean=map_parts(torch.zeros_like, found.mean))


BROKEN_RELAXATIONS: list[tuple[str, Any]] = [
    ("form", of_mean(Marginals, torch.Tensor.double)),
    ("form", of_mean(Marginals, lambda mean: mean[:1])),
    ("form", of_mean(Marginals, lambda mean: mean / 0 * 0)),
    ("input_untouched", relaxation(Marginals, solve=_writing)),
    ("repeatable", relaxation(SparseMAP, mean=lambda self, oracle, theta: map_parts(torch.zeros_like, theta))),
    ("repeatable", of_mean(MAP, lambda mean: mean + 1e-3 * torch.rand(()))),
    ("batch_independence", of_mean(Marginals, lambda mean: mean.flip(0))),
    ("support", relaxation(SparseMAP, solve=_heavy)),
    ("warm_start", relaxation(SparseMAP, solve=_cold)),
    ("hull", of_mean(Marginals, lambda mean: 1.1 * mean)),
    ("temperature", relaxation(Marginals, mean=lambda self, oracle, theta: Marginals().mean(oracle, theta))),
    ("first_derivative", of_mean(Marginals, HalfGradient.apply)),
    (
        "second_derivative",
        relaxation(Marginals, mean=lambda self, oracle, theta: OnceOnly.apply(theta / self.temperature)),
    ),
    ("conjugate", relaxation(Marginals, conjugate=lambda self, oracle, theta: oracle.log_partition(theta) - 9)),
    ("loss_minimum", relaxation(Marginals, omega=lambda self, oracle, y: y.new_ones(len(y)))),
]


@pytest.mark.parametrize(
    ("check", "broken"), BROKEN_RELAXATIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_relaxation_is_caught_by_the_right_check(check: str, broken: Any) -> None:
    with pytest.raises(CheckError) as error:
        check_relaxation(broken, Explicit(), SHAPES[Explicit])
    assert error.value.check == check, error.value
    message = str(error.value)
    requirement = next(c.requirement for c in list_relaxation_checks() if c.name == check)
    assert message.startswith(f"{broken.exact()!r} of {Explicit()!r} fails the check {check!r}: {requirement}\n")
    assert "The input on which it fails:\n    " in message


# ----------------------------------------------------------------------------- what is said about them


def test_a_plugin_that_crashes_is_told_so():
    with pytest.raises(CheckError, match=r"ZeroDivisionError was raised: .*\nThe input") as error:
        check_oracle(variant(Knapsack, 6, argmax=lambda self, theta: theta / (1 // 0)), (4,))
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_the_printed_input_can_be_run_again():
    oracle = variant(Explicit, argmax=_worst)
    with pytest.raises(CheckError) as error:
        check_oracle(oracle, (4,))
    code = textwrap.dedent(str(error.value).split("The input on which it fails:\n")[1])
    namespace: dict[str, Any] = {"torch": torch, "BrokenExplicit": type(oracle)}
    exec(code, namespace)
    theta = namespace["theta"]
    assert theta.shape == (1, 4)  # one instance is enough
    found = namespace["oracle"].score(theta, namespace["oracle"].argmax(theta))
    assert found < Enumeration(oracle.enumerate((4,))).max_score(theta)


def test_instance_data_and_forbidden_parts_are_printed():
    with pytest.raises(CheckError) as error:
        check_oracle(variant(Walk, listed=lambda self, theta: Walk().listed(theta)), SHAPES[Walk])
    assert "oracle = BrokenWalk().bind(lengths=torch.tensor([" in str(error.value)
    with pytest.raises(CheckError) as error:
        check_oracle(variant(Explicit, argmax=_big_constant), (4,))
    assert "from math import inf\n" in str(error.value)
    assert "-inf" in str(error.value)


@pytest.mark.parametrize("argmax", [_writes_by_numpy, _replaces_minus_inf])
def test_an_input_is_printed_as_it_was_before_argmax_wrote_into_it(argmax):
    with pytest.raises(CheckError) as error:
        check_oracle(variant(Explicit, argmax=argmax), (4,))
    message = str(error.value)
    assert "\nargmax wrote into theta" in message
    theta = message.split("theta = ")[1]
    if argmax is _writes_by_numpy:  # a write of no entry changes nothing
        assert message.splitlines()[1].endswith(" is -1e+09 where -inf is expected")
        assert "-inf" in theta
    assert "-1000000000.0" not in theta
    assert "nan" not in theta


def test_a_write_into_theta_is_no_fault_of_other_methods():
    oracle = variant(Explicit, argmax=_replaces_minus_inf)
    report = check_oracle(oracle, (4,), dtypes=(torch.float64,), raise_on_failure=False)
    assert "input_untouched" in report.failed
    messages = [str(result.error) for result in report.results if result.error is not None]
    assert not any("log_partition" in message or "NaN" in message for message in messages)


def test_a_report_goes_on_past_a_failure():
    oracle = variant(Explicit, argmax=_worst, sample=_uniform)
    report = check_oracle(oracle, (4,), raise_on_failure=False)
    results = {result.check: result for result in report.results}
    assert list(results) == [check.name for check in list_oracle_checks()]
    assert results["optimal"].status == results["frequencies"].status == "failed"
    assert results["log_partition"].status == "passed"
    assert results["log_partition"].num_inputs > 10
    assert results["lengths"].status == "not applicable"
    assert report.failed == [name for name, result in results.items() if result.error]
    with pytest.raises(CheckError, match="fails the check"):
        report.raise_if_failed()
