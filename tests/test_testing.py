"""The conformance suites: right plugins pass, and each kind of broken one is caught by the law that it breaks."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import structinf
from structinf import (
    Enumerable,
    InfeasibleError,
    InvalidInputError,
    Oracle,
    Potentials,
    Projectable,
    RegularizedRelaxation,
)
from structinf.oracle import GibbsOracle, as_tuple, inner, map_parts
from structinf.relaxations.map import Map
from structinf.relaxations.marginals import Marginals
from structinf.relaxations.sparsemap import SparseMAP
from structinf.solution import Solution
from structinf.testing import (
    Enumeration,
    LawError,
    check_oracle,
    check_relaxation,
    nearest_point,
    oracle_laws,
    oracle_results,
    relaxation_laws,
    relaxation_results,
)
from toys import Explicit, Knapsack, Listing, Walk

SHAPES = {Knapsack: (4,), Explicit: (4,), Walk: ((3, 2), (2, 2))}


def variant(base: type, *options: Any, **overrides: Any) -> Any:
    """An object of ``base`` with some methods replaced."""
    return dataclass(frozen=True)(type(f"Broken{base.__name__}", (base,), overrides))(*options)


# ----------------------------------------------------------------------------- right plugins


@pytest.mark.parametrize("oracle", [Knapsack(6), Explicit(), Walk()], ids=lambda o: o.name)
def test_right_oracles_pass(oracle):
    report = check_oracle(oracle, SHAPES[type(oracle)])
    assert not report.broken
    assert {"form", "optimal", "vertex", "refusals", "half_precision"} <= set(report.held)
    if isinstance(oracle, Listing):
        assert {"log_partition", "derivatives", "frequencies", "k_best", "projection", "infeasible"} <= set(report.held)
    if isinstance(oracle, Walk):
        assert {"lengths", "padding", "labels", "rows_and_repeat"} <= set(report.held)


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
def test_right_relaxations_pass(relaxation):
    report = check_relaxation(relaxation, Walk(), SHAPES[Walk])
    wanted = {"hull", "temperature", "first_derivative", "conjugate", "loss_minimum", "loss_derivatives", "padding"}
    assert wanted <= set(report.held)


@dataclass(frozen=True)
class Masked(Oracle):
    """One of the parts that a mask, which each instance must have, leaves."""

    event_ndim = 1
    structure_ndim: ClassVar = {"mask": 1}

    def validate(self, theta: Potentials) -> None:
        if "mask" not in self.bound:
            raise InvalidInputError("pass mask=..., (..., K) booleans")

    def argmax(self, theta: Tensor) -> Tensor:
        best = theta.masked_fill(~self.bound["mask"], -torch.inf)
        if len(theta) and (lost := best.isneginf().all(1)).any():
            raise InfeasibleError(f"batch index {int(lost.nonzero()[0])}", int(lost.nonzero()[0]))
        return torch.nn.functional.one_hot(best.argmax(1), theta.shape[1]).to(theta)


MASKS = {"mask": [[True, False, True], [True, True, False], [True, True, True], [False, True, True]]}


def test_an_oracle_that_needs_instance_data():
    report = check_oracle(Masked(), (3,), structure=MASKS)
    assert {"optimal", "rows_and_repeat", "instance_data"} <= set(report.held)
    for relaxation in ("map", "sparsemap"):  # every oracle call of every relaxation and loss gets the mask
        assert not check_relaxation(relaxation, Masked(), (3,), structure=MASKS).broken


def test_instance_data_from_a_function():
    def draw(size: int, generator: torch.Generator) -> dict[str, Tensor]:
        mask = torch.rand(size, 3, generator=generator) < 0.5
        mask[:, 1] = True
        return {"mask": mask}

    assert not check_oracle(Masked(), (3,), structure=draw).broken


# ----------------------------------------------------------------------------- broken oracles

GENERATOR = torch.Generator().manual_seed(0)


def _mixture(self: Any, theta: Tensor) -> Tensor:
    return theta.softmax(1)


def _writes(self: Any, theta: Tensor) -> Tensor:
    theta.mul_(2)
    return Knapsack.argmax(self, theta)


def _flips(self: Any, theta: Tensor) -> Tensor:
    theta.requires_grad_()
    return Knapsack.argmax(self, theta.detach())


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


def _overflows(self: Any, theta: Potentials) -> Tensor:
    return self.table(theta)[1].exp().sum(1).log()


def _rounds(self: Any, theta: Potentials) -> Tensor:
    return Explicit.log_partition(self, map_parts(torch.Tensor.float, theta)).to(as_tuple(theta)[0])


def _second_moment(self: Any, theta: Potentials, v: Potentials) -> Potentials:
    structures, scores = self.table(theta)
    weights = scores.softmax(1) * sum(
        (y * z[:, None]).flatten(2).sum(2) for y, z in zip(as_tuple(structures), as_tuple(v), strict=True)
    )
    return map_parts(lambda y: (y * weights.view(*weights.shape, *[1] * (y.ndim - 2))).sum(1), structures)


def _uniform(self: Any, theta: Potentials, n: int, generator: torch.Generator | None = None) -> Potentials:
    return Explicit.sample(self, theta * 0 if len(theta) else theta, n, generator)


def _global_generator(self: Any, theta: Potentials, n: int, generator: torch.Generator | None = None) -> Potentials:
    return Explicit.sample(self, theta, n, None)


def _stuck_generator(self: Any, theta: Potentials, n: int, generator: torch.Generator | None = None) -> Potentials:
    return Explicit.sample(self, theta, n, torch.Generator().manual_seed(generator.initial_seed()))


def _mean_sample(self: Any, theta: Potentials, n: int, generator: torch.Generator | None = None) -> Potentials:
    return self.marginals(theta).expand(n, *theta.shape).clone()


def _all_valid(self: Any, theta: Potentials, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    return structures, scores, torch.ones_like(valid)


def _worst_first(self: Any, theta: Potentials, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    return (structures.flip(0), scores.flip(0), valid.flip(0)) if bool(valid.all()) else (structures, scores, valid)


def _stale_scores(self: Any, theta: Potentials, k: int) -> Any:
    structures, scores, valid = Explicit.topk(self, theta, k)
    return structures, scores[:1].expand_as(scores).where(valid, -torch.inf), valid


def _off_by_one(self: Any, labels: Tensor, like: Potentials) -> Potentials:
    return Walk.encode(self, (labels - 1).clamp(min=0), like)


@dataclass(frozen=True)
class Cube(Projectable):
    """Any subset; a point inside the cube is its own projection, handed back as it is."""

    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        return (theta > 0).to(theta)

    def project(self, theta: Tensor) -> Tensor:
        inside = ((theta >= 0) & (theta <= 1)).all()
        return theta if inside else theta.clamp(0, 1)


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
    ("input_untouched", variant(Knapsack, 6, argmax=_flips)),
    ("input_untouched", Cube()),
    ("repeatable", variant(Knapsack, 6, argmax=_random_ties)),
    ("strides", variant(Knapsack, 6, argmax=_views)),
    ("batch_independence", variant(Knapsack, 6, argmax=_looks_at_the_batch)),
    (
        "rows_and_repeat",
        variant(Walk, repeat=lambda self, n: self[torch.arange(len(self.bound["lengths"])).repeat_interleave(n)]),
    ),
    ("instance_data", variant(Knapsack, 6, bind=lambda self, **structure: self)),
    ("copies", Locked(6)),
    ("vertex", variant(Knapsack, 6, argmax=_mixture)),
    ("vertex", variant(Explicit, argmax=_mixture)),
    ("vertex", variant(Walk, lengths=lambda self, size, steps: [steps] * size, enumerate=Walk.enumerate)),
    ("optimal", variant(Knapsack, 6, argmax=_greedy)),
    ("optimal", variant(Explicit, argmax=_worst)),
    ("optimal", variant(Explicit, argmax=_big_constant)),
    ("infeasible", variant(Explicit, argmax=_no_check)),
    ("infeasible", variant(Explicit, argmax=_first_index)),
    ("k_best", variant(Explicit, topk=_all_valid)),
    ("k_best", variant(Explicit, topk=_worst_first)),
    ("k_best", variant(Explicit, topk=_stale_scores)),
    ("projection", variant(Explicit, project=Explicit.argmax)),
    ("enumeration", Explicit(((1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 1, 0)))),
    ("enumeration", variant(Explicit, enumerate=lambda self, shape: Explicit.enumerate(self, shape).float())),
    ("readout", variant(Explicit, readout=lambda self, y: y + 1)),
    ("readout", variant(Explicit, readout_transpose=lambda self, r, theta: 2 * r)),
    ("hamming_cost", variant(Explicit, hamming_cost=lambda self, y: y)),
    ("labels", variant(Walk, encode=_off_by_one)),
    ("labels", variant(Walk, decode=lambda self, y: Walk.decode(self, y).to(y[0]))),
    ("log_partition", variant(Explicit, log_partition=_overflows)),
    ("log_partition", variant(Explicit, log_partition=_rounds)),
    ("marginals", variant(Explicit, marginals=Explicit.argmax)),
    ("marginals", variant(Explicit, log_partition=lambda self, theta: Explicit.log_partition(self, theta.detach()))),
    ("log_partition_vjp", variant(Explicit, log_partition_vjp=lambda self, theta, weight: self.marginals(theta))),
    ("covariance_product", variant(Explicit, covariance_product=_second_moment)),
    ("frequencies", variant(Explicit, sample=_uniform)),
    ("samples", variant(Explicit, sample=_mean_sample)),
    ("randomness", variant(Explicit, sample=_stuck_generator)),
    ("padding", variant(Walk, valid_parts=lambda self, theta: None)),
    ("lengths", variant(Walk, validate=lambda self, theta: None)),
]


@pytest.mark.parametrize(("law", "oracle"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_oracle_is_caught_by_the_right_law(law: str, oracle: Oracle) -> None:
    with pytest.raises(LawError) as error:
        check_oracle(oracle, next((s for base, s in SHAPES.items() if isinstance(oracle, base)), (4,)))
    assert error.value.law == law, error.value
    message = str(error.value)
    sentence = next(rule.sentence for rule in oracle_laws() if rule.name == law)
    assert message.startswith(f"{oracle!r} breaks the law {law!r}: {sentence}\n")
    assert "The smallest input found:\n    " in message
    assert "theta = " in message
