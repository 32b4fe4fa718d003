"""The tested methods with the required form of their results, for checks of form, batches and memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..oracle import EntropyProjectable, GibbsOracle, KBest, Oracle, Projectable, Samplable
from ..parts import Parts, as_tuple, batch_size, map_parts
from ..relaxation import missing_ability_reason
from ..solution import Solution
from .cases import Case
from .comparisons import attach_case_to_errors, expect, fail, named_tensors

__all__ = [
    "ARGMAX",
    "Method",
    "Output",
    "call_method",
    "call_on_case",
    "directions",
    "methods_of",
    "methods_under_test",
]

NUM_SAMPLES = 3
K = 3


def _wave(theta: Parts) -> Parts:
    """Return finite numbers in the form of θ with the full batch. Numbers of an instance depend only on its scores."""

    def wave(t: Tensor) -> Tensor:
        places = torch.arange(math.prod(t.shape[1:]), device=t.device).reshape(1, *t.shape[1:])
        return torch.cos(torch.where(t.isneginf(), 0.5, t) + 2.0 * places).expand(size, *t.shape[1:]).contiguous()

    size = batch_size(theta)
    return map_parts(wave, theta)


def _weight(theta: Parts) -> Tensor:
    rows = [t.flatten(1).sum(1) for t in as_tuple(_wave(theta))]
    return 1.5 + torch.stack(rows).sum(0).sin()


def directions(theta: Parts) -> Iterator[Parts]:
    """Return a direction with the full batch, and for a ``theta`` shared by the batch also a shared direction."""
    full = _wave(theta)
    yield full
    if any(t.shape[0] != z.shape[0] for t, z in zip(as_tuple(theta), as_tuple(full), strict=True)):
        yield map_parts(lambda z, t: z[: len(t)], full, theta)


@dataclass(frozen=True)
class OutputSpec:
    """The required form of an output: structures or numbers for each instance, or tensors in the form of θ.

    ``prefix`` are the dimensions in front of the batch, None for any size. The default dtype is the dtype of θ.
    ``exact`` outputs have no rounding errors. A ``solver_detail``, such as a number of iterations, may be None, and may
    depend on the other instances of the batch.
    """

    name: str
    form: Literal["structure", "instance", "theta"]
    prefix: tuple[int | None, ...] = ()
    dtype: torch.dtype | None = None
    exact: bool = False
    solver_detail: bool = False


@dataclass(frozen=True)
class Method:
    """A method, its call, its required outputs, whether it is random, and whether autograd records the call."""

    name: str
    ability: type[Oracle]
    call: Callable[[Any, Parts], Any]
    outputs: tuple[OutputSpec, ...]
    random: bool = False
    records: bool = False


def _method(
    name: str,
    ability: type[Oracle],
    *outputs: OutputSpec,
    arguments: Callable[[Parts], tuple[Any, ...]] = lambda theta: (),
    random: bool = False,
    **options: Any,
) -> Method:
    """Return the method ``name`` of an oracle, called with θ, ``arguments`` made from θ, and ``options``."""

    def call(oracle: Oracle, theta: Parts) -> Any:
        return getattr(oracle, name)(theta, *arguments(theta), **options)

    return Method(name, ability, call, outputs, random)


def _draw(theta: Parts) -> tuple[int, torch.Generator]:
    return NUM_SAMPLES, torch.Generator().manual_seed(7)


ARGMAX = _method("argmax", Oracle, OutputSpec("the structure", "structure", exact=True))

METHODS = (
    ARGMAX,
    _method("log_partition", GibbsOracle, OutputSpec("log Z", "instance")),
    _method("marginals", GibbsOracle, OutputSpec("the mean", "structure")),
    _method(
        "log_partition_vjp", GibbsOracle, OutputSpec("the gradient", "theta"), arguments=lambda theta: (_weight(theta),)
    ),
    _method(
        "covariance_product",
        GibbsOracle,
        OutputSpec("the product", "structure"),
        arguments=lambda theta: (_wave(theta),),
    ),
    _method("sample", Samplable, OutputSpec("the sample", "structure", (NUM_SAMPLES,)), arguments=_draw, random=True),
    _method(
        "topk",
        KBest,
        OutputSpec("the structures", "structure", (K,), exact=True),
        OutputSpec("the scores", "instance", (K,)),
        OutputSpec("valid", "instance", (K,), torch.bool, exact=True),
        arguments=lambda theta: (K,),
    ),
    _method("project", Projectable, OutputSpec("the projection", "structure")),
    _method("project_entropy", EntropyProjectable, OutputSpec("the mean of most entropy", "structure"), binary=False),
    _method(
        "project_entropy", EntropyProjectable, OutputSpec("the mean of most binary entropy", "structure"), binary=True
    ),
)

SOLUTION = {
    "mean": OutputSpec("the mean", "structure"),
    "value": OutputSpec("the value", "instance"),
    "weights": OutputSpec("the weights", "instance", (None,), solver_detail=True),
    "gap": OutputSpec("the gap", "instance", solver_detail=True),
    "residual": OutputSpec("the residual", "instance", solver_detail=True),
    "converged": OutputSpec("converged", "instance", dtype=torch.bool, solver_detail=True),
    "support": OutputSpec("the support", "structure", (None,), solver_detail=True),
}


def methods_of(oracle: Oracle) -> list[Method]:
    """Return the methods of ``oracle``."""
    return [method for method in METHODS if missing_ability_reason(oracle, method.ability) is None]


def methods_under_test(case: Case) -> list[Method]:
    """Return ``solve`` of the relaxation of the case, or without a relaxation the methods of the oracle."""
    if case.target.relaxation is None:
        return methods_of(case.oracle)

    def solve(oracle: Oracle, theta: Parts) -> Solution:
        return case.relaxation.solve(oracle, theta)

    outputs = tuple(SOLUTION.values())
    return [Method("solve", Oracle, solve, outputs, random=case.relaxation.is_stochastic, records=True)]


@dataclass(frozen=True)
class Output:
    """One output tensor of a method, and the index of the corresponding tensor of θ (0 for numbers)."""

    name: str
    value: Tensor
    spec: OutputSpec
    batch_dim: int
    index: int


def call_on_case(method: Method, case: Case) -> list[Output]:
    """Call :func:`call_method` with the oracle and the scores of ``case``; attach the case to errors."""
    with attach_case_to_errors(case):
        return call_method(method, case.oracle, case.theta)


def call_method(method: Method, oracle: Oracle, theta: Parts) -> list[Output]:
    """Return the output tensors of the method; raise CheckFailed for a wrong form, shape, dtype or device."""
    with contextlib.nullcontext() if method.records else torch.no_grad():
        answer = method.call(oracle, theta)
    if isinstance(answer, Solution):
        answer = tuple(getattr(answer, field) for field in SOLUTION)
    elif len(method.outputs) == 1:
        answer = (answer,)
    if not isinstance(answer, tuple) or len(answer) != len(method.outputs):
        fail(f"{method.name} must return {len(method.outputs)} results, got {_describe(answer)}")
    return [
        output
        for spec, value in zip(method.outputs, answer, strict=True)
        if value is not None or not spec.solver_detail
        for output in _tensors(method, spec, value, theta)
    ]


def _tensors(method: Method, spec: OutputSpec, value: Any, theta: Parts) -> Iterator[Output]:
    name = f"{spec.name} from {method.name}"
    size, first = batch_size(theta), as_tuple(theta)[0]
    if spec.form == "instance":
        shapes = [(size,)]
    else:
        shapes = [tuple(t.shape) if spec.form == "theta" else (size, *t.shape[1:]) for t in as_tuple(theta)]
        if isinstance(value, tuple) != isinstance(theta, tuple) or len(as_tuple(value)) != len(shapes):
            form = f"a tuple of {len(shapes)} tensors" if isinstance(theta, tuple) else "one tensor"
            fail(f"{name} must have the form of theta, {form}; got {_describe(value)}")
    for i, (label, t, shape) in enumerate(named_tensors(name, value, shapes)):
        expect(isinstance(t, Tensor), f"{label} must be a tensor, got {_describe(t)}")
        prefix = t.shape[: len(spec.prefix)] if None in spec.prefix else spec.prefix
        expected = (*prefix, *shape)
        expect(t.shape == expected, f"{label} must have shape {expected}, got {tuple(t.shape)}")
        dtype = spec.dtype or first.dtype
        expect(t.dtype == dtype, f"{label} must have dtype {dtype}, got {t.dtype}")
        expect(t.device == first.device, f"{label} must be on {first.device}, got {t.device}")
        yield Output(label, t, spec, len(spec.prefix), i)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
