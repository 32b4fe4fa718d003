"""The battery of bad and unusual inputs: calls of the library, inputs, and the rule for each result.

The rule: a call raises an error with a message of the library, or returns the right value. An error has such a
message if a ``raise`` statement of the library raises it. A value is right if it equals the value of an ordinary input
with the same meaning (another dtype, memory layout, batch shape, ...).
"""

from __future__ import annotations

import dis
import functools
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import structinf as si
import structinf_oracles
from oracle_example import Example
from structinf.parts import as_tuple, map_parts
from structinf.testing.cases import CheckTarget

__all__ = ["Call", "Input", "calls_of", "draw", "error_failure", "failure", "inputs_of", "instance_data_of"]

ROOTS = tuple(str(Path(module.__file__).parent) for module in (si, structinf_oracles))

Result = Any
"""A tensor, a number, or a tuple or list of results."""


@dataclass(frozen=True)
class Call:
    """A public call.

    Attributes
    ----------
    run : callable
        Takes the scores, and options that include instance data; uses a fixed seed. Returns a :data:`Result`.
    is_random : bool
        Whether the value depends on the order of random numbers, and therefore on the batch.
    is_smooth : bool
        Whether small changes of the scores change the value little. Rounded scores can have another best structure.
    """

    name: str
    run: Callable[..., Result]
    is_random: bool = False
    is_smooth: bool = False


def _as_it_is(t: Tensor) -> Tensor:
    return t


@dataclass(frozen=True)
class Input:
    """Scores and options of a call.

    Attributes
    ----------
    expected : str
        ``"error"``: an error of the library; ``"error or value"``: this or any finite value; ``"value"``: the value for
        the scores ``like`` with the options ``like_options``.
    convert : callable
        Converts the value for ``like`` to the expected value.
    words : str
        Text that the error must contain.
    """

    name: str
    theta: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    expected: str = "error"
    like: Any = None
    like_options: Mapping[str, Any] = field(default_factory=dict)
    convert: Callable[[Tensor], Tensor] = _as_it_is
    tolerance: float = 1e-5
    words: str = ""


# ----------------------------------------------------------------------------- calls


def calls_of(example: Example, instance_data: Mapping[str, Any]) -> Iterator[Call]:
    """Yield the public calls that support the oracle: relaxations, losses, queries, distributions, estimators."""
    oracle = example.oracle()
    yield from _relaxation_calls(oracle)
    yield from _loss_calls(oracle)
    for name, query in _QUERIES.items():
        run = functools.partial(_with_oracle, query, oracle)
        if not isinstance(_result(run, draw(example), instance_data)[1], si.UnsupportedError):
            yield Call(f"si.{name}", run, name == "sample", name in _SMOOTH)
    for name in si.list_estimators():
        if si.get_estimator(name).unsupported_reason(oracle) is None:
            run = functools.partial(_expect, estimator=name)
            yield Call(f"si.expect with {name}", functools.partial(_with_oracle, run, oracle), True)


def _with_oracle(function: Callable[..., Result], oracle: si.Oracle, theta: Any, **data: Any) -> Result:
    return function(theta, oracle, **data)


def _relaxation_calls(oracle: si.Oracle) -> Iterator[Call]:
    for name in si.list_relaxations():
        relaxation = si.get_relaxation(name)
        if relaxation.unsupported_reason(oracle) is not None:
            continue
        random, smooth = relaxation.is_stochastic, isinstance(relaxation, si.RegularizedRelaxation) and name != "map"

        def relax(theta: Any, name: str = name, **options: Any) -> Result:
            return si.relax(theta, oracle, name, **options)

        def infer(theta: Any, name: str = name, **options: Any) -> Result:
            solution = si.infer(theta, oracle, name, **options)
            return solution.mean, solution.value

        yield Call(f"si.relax with {name}", relax, random, smooth)
        yield Call(f"si.infer with {name}", infer, random, smooth)


def _loss_calls(oracle: si.Oracle) -> Iterator[Call]:
    for name in si.list_relaxations():
        relaxation = si.get_relaxation(name)
        if relaxation.unsupported_reason(oracle) is None and isinstance(relaxation, si.RegularizedRelaxation):

            def loss(theta: Any, name: str = name, **data: Any) -> Result:
                scores = tuple(theta) if isinstance(theta, list) else theta
                zeros = map_parts(torch.zeros_like, scores) if _is_scores(scores) else theta
                gold = si.relax(zeros, oracle, "map", **data)
                return si.FenchelYoungLoss(oracle, name, reduction="none")(theta, gold, **data)

            yield Call(f"FenchelYoungLoss with {name}", loss, relaxation.is_stochastic, True)


def _is_scores(theta: Any) -> bool:
    return all(isinstance(t, Tensor) for t in as_tuple(theta)) and as_tuple(theta) != ()


def _expect(theta: Any, oracle: si.Oracle, *, estimator: str, **data: Any) -> Result:
    def first_part(y: Any) -> Tensor:
        first = as_tuple(y)[0]
        return first.flatten(1)[:, :1].sum(1)

    return si.expect(first_part, theta, oracle, estimator, **data)


def _topk(theta: Any, oracle: si.Oracle, **data: Any) -> Result:
    # Instance data may have the name k of the number of structures.
    found = oracle.bind(k=data.pop("k")) if "k" in data else oracle
    return si.topk(theta, found, 2, **data).scores


_QUERIES: Mapping[str, Callable[..., Result]] = {
    "log_partition": si.log_partition,
    "entropy": si.entropy,
    "topk": _topk,
    "sample": lambda theta, oracle, **data: si.sample(theta, oracle, 2, **data),
    "Gibbs": lambda theta, oracle, **data: si.Gibbs(theta, oracle, **data).mean,
    "decode": lambda theta, oracle, **data: si.decode(si.relax(theta, oracle, "map", **data), oracle),
}
_SMOOTH = ("log_partition", "entropy", "topk", "Gibbs")


# ----------------------------------------------------------------------------- inputs

BATCH = 3


def instance_data_of(example: Example) -> dict[str, Tensor]:
    """Return valid instance data of a batch; empty if the oracle has none."""
    target = CheckTarget.make(example.oracle(), example.event_shape, example.instance_data)
    return target.sample_instance_data(BATCH, torch.Generator().manual_seed(0))


def inputs_of(example: Example, options: Mapping[str, Any]) -> Iterator[Input]:
    """Yield the inputs for an example. ``options`` are instance data of a batch of :data:`BATCH` (or nothing)."""
    oracle, theta = example.oracle(), draw(example)
    yield from _wrong_scores(example, theta, options)
    yield from _wrong_instance_data(oracle, theta)
    yield from _wrong_options(theta, options)
    yield from _other_forms(example, theta, options)
    yield from _extreme_scores(oracle, theta, options)


def draw(example: Example) -> Any:
    """Return random scores of a batch of :data:`BATCH`, in float64."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64) for shape in example.shapes]
    drawn = [-t.abs() if example.oracle().requires_nonpositive_theta else t for t in drawn]
    return tuple(drawn) if example.is_tuple else drawn[0]


def _with_number(theta: Any, number: float, everywhere: bool = False) -> Any:
    """Return θ with ``number`` in instance 1 of the first tensor: in its parts all, or in the last part."""
    first, *others = (t.clone() for t in as_tuple(theta))
    view = first[1].view(-1)
    view[slice(None) if everywhere else slice(-1, None)] = number
    return (first, *others) if isinstance(theta, tuple) else first


def _wrong_scores(example: Example, theta: Any, options: Mapping[str, Any]) -> Iterator[Input]:
    for number in (math.nan, math.inf):
        # The last part may be padding, which is not read.
        yield Input(f"{number} in the last part", _with_number(theta, number), options, "error or value")
        yield Input(f"{number} everywhere in instance 1", _with_number(theta, number, True), words="1")
    first = as_tuple(theta)[0]
    wrong = {
        "None": None,
        "a string": "scores",
        "a number": 1.0,
        "a list of numbers": [1.0, 2.0],
        "an empty tuple": (),
        "one tensor too many": (*as_tuple(theta), first, first),
        "integers": map_parts(lambda t: t.long(), theta),
        "booleans": map_parts(lambda t: t > 0, theta),
        "complex numbers": map_parts(lambda t: t.to(torch.complex64), theta),
        "sparse": map_parts(lambda t: t.to_sparse(), theta),
        "too few dimensions": map_parts(lambda t: t.flatten()[0], theta),
        "float8": map_parts(lambda t: t.to(torch.float8_e4m3fn), theta),
        "a numpy array": map_parts(lambda t: t.numpy(), theta),
        "two dtypes": (first.float(), *as_tuple(theta)[1:]) if example.is_tuple else None,
        "batches of 3 and 2": (first, *(t[:2] for t in as_tuple(theta)[1:])) if example.is_tuple else None,
    }
    yield from (Input(name, value, options) for name, value in wrong.items())
    yield Input("meta tensors", map_parts(lambda t: t.to("meta"), theta), options, "error or value")
    sizes = {
        "a size of 0": map_parts(lambda t: t[..., :0], theta),
        "one entry less in the last dimension": map_parts(lambda t: t[..., :-1], theta),
        "one entry less in the first dimension": map_parts(lambda t: t[:, :-1], theta),
        "sizes of 1": map_parts(lambda t: t[(slice(None), *[slice(1)] * (t.ndim - 1))], theta),
    }
    yield from (Input(name, value, {}, "error or value") for name, value in sizes.items())


def _wrong_instance_data(oracle: si.Oracle, theta: Any) -> Iterator[Input]:
    for name, ndim in oracle.instance_ndim.items():
        own = (2,) * ndim
        wrong = {
            "a string": "long",
            "negative": torch.full((BATCH, *own), -1),
            "far too large": torch.full((BATCH, *own), 10**7),
            "of 64 bits": torch.full((BATCH, *own), 2**62),
            "fractions": torch.full((BATCH, *own), 1.5),
            "nan": torch.full((BATCH, *own), math.nan),
            "of another batch": torch.ones((BATCH + 2, *own), dtype=torch.int64),
            "with too many dimensions": torch.ones((BATCH, *own, 2, 2), dtype=torch.int64),
            "complex": torch.ones((BATCH, *own), dtype=torch.complex64),
            "a dictionary": {"a": 1},
            "ragged lists": [[1, 2], [1]],
        }
        # Only lengths have one meaning for all oracles; other data may accept some of these values.
        expected = "error" if name == "lengths" else "error or value"
        yield from (Input(f"{name} {what}", theta, {name: value}, expected) for what, value in wrong.items())
        yield Input(f"{name} of 0", theta, {name: torch.zeros((BATCH, *own), dtype=torch.int64)}, "error or value")
        yield Input(f"{name} booleans", theta, {name: torch.ones((BATCH, *own), dtype=torch.bool)}, "error or value")
    yield Input("unknown instance data", theta, {"lenghts": [1, 1, 1]})


def _wrong_options(theta: Any, options: Mapping[str, Any]) -> Iterator[Input]:
    for name in ("temperature", "tolerance", "max_iter", "num_samples", "sigma", "step_size", "generator"):
        for value in ("a", None, math.nan, -1, True, [1.0, 2.0], torch.zeros(2), object()):
            yield Input(f"{name}={value!r:.20}", theta, {**options, name: value}, "error or value")


def _other_forms(example: Example, theta: Any, options: Mapping[str, Any]) -> Iterator[Input]:
    """Yield inputs whose values must equal the values of ordinary inputs."""

    def same(name: str, changed: Any, changed_options: Mapping[str, Any] = options, **rest: Any) -> Input:
        return Input(
            name, changed, changed_options, "value", rest.pop("like", theta), rest.pop("like_options", options), **rest
        )

    def spread(t: Tensor) -> Tensor:
        wide = torch.full((*t.shape, 2), math.nan, dtype=t.dtype)
        wide[..., 0] = t
        return wide[..., 0]

    yield same("not contiguous", map_parts(spread, theta))
    yield same("transposed in memory", map_parts(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), theta))
    yield same("requires grad", map_parts(lambda t: t.clone().requires_grad_(), theta))
    yield same(
        "a list of tensors" if example.is_tuple else "a clone", list(theta) if example.is_tuple else theta.clone()
    )
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 2e-2)):
        rounded = map_parts(lambda t, dtype=dtype: t.to(dtype), theta)
        exact = map_parts(lambda t: t.double(), rounded)
        yield same(str(dtype), rounded, like=exact, tolerance=tolerance)
    empty = {name: value[:0] for name, value in options.items()}
    yield same("an empty batch", map_parts(lambda t: t[:0], theta), empty, convert=lambda t: _rows(t, slice(0)))
    one = {name: value[1] for name, value in options.items()}
    yield same("no batch dimension", map_parts(lambda t: t[1], theta), one, convert=lambda t: _rows(t, 1))
    last = {name: value[1:2] for name, value in options.items()}
    yield same("a batch of 1", map_parts(lambda t: t[1:2], theta), last, convert=lambda t: _rows(t, slice(1, 2)))
    more = {name: value[None] for name, value in options.items()}
    yield same("two batch dimensions", map_parts(lambda t: t[None], theta), more, convert=lambda t: _add_dimension(t))
    ties = map_parts(torch.zeros_like, theta)
    yield Input("ties", ties, options, "error or value")
    if options:
        lists = {name: value.tolist() for name, value in options.items()}
        yield same("instance data as lists", theta, lists)
        int32 = {name: value.int() for name, value in options.items()}
        yield same("instance data of 32 bits", theta, int32)


def _rows(t: Tensor, rows: Any) -> Tensor:
    """Return ``rows`` of the dimension of size :data:`BATCH` that is the batch: the first one of this size."""
    dim = 0 if t.shape[0] == BATCH else 1
    return t[(slice(None),) * dim + (rows,)]


def _add_dimension(t: Tensor) -> Tensor:
    return t.unsqueeze(0 if t.shape[0] == BATCH else 1)


def _extreme_scores(oracle: si.Oracle, theta: Any, options: Mapping[str, Any]) -> Iterator[Input]:
    for scale in (1e-300, 1e-30, 1e3, 1e30, 1e300):
        yield Input(f"scores times {scale:g}", map_parts(lambda t, s=scale: t * s, theta), options, "error or value")
    for scale in (1e-30, 1e3, 1e30):
        scaled = map_parts(lambda t, s=scale: (t * s).float(), theta)
        yield Input(f"float32 scores times {scale:g}", scaled, options, "error or value")
    yield Input("−inf in a part", _with_number(theta, -math.inf), options, "error or value")
    yield Input("−inf in instance 1", _with_number(theta, -math.inf, True), options, "error or value")
    yield Input("−inf everywhere", map_parts(lambda t: torch.full_like(t, -math.inf), theta), options, "error or value")


# ----------------------------------------------------------------------------- the rule


def failure(call: Call, case: Input) -> str | None:
    """Return how the result of ``call`` for ``case`` breaks the rule, or None."""
    result, error = _result(call.run, case.theta, case.options)
    if error is not None:
        return _error_failure(error, case)
    if case.expected == "error":
        return f"no error, but the value {_short(result)}"
    if case.expected == "value" and not call.is_random and not (_is_rounded(case) and not call.is_smooth):
        return _value_failure(call, case, result)
    wrong = [t for t in _tensors(result) if t.device.type != "meta" and bool(torch.isnan(t).any())]
    return f"NaN in the value {_short(result)}" if wrong else None


def error_failure(call: Callable[[], Any]) -> str | None:
    """Return how an error of ``call`` breaks the rule, or None; any value is right."""
    _, error = _result(lambda _: call(), None, {})
    return None if error is None else _error_failure(error, Input("", None))


def _is_rounded(case: Input) -> bool:
    return case.tolerance > 1e-5


def _result(run: Callable[..., Result], theta: Any, options: Mapping[str, Any]) -> tuple[Result, BaseException | None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(theta, **options), None
        except Exception as error:
            return None, error


def _error_failure(error: BaseException, case: Input) -> str | None:
    described = f"{type(error).__name__}: {str(error)[:200]}"
    if case.expected == "value" and not isinstance(error, si.StructinfError):
        return f"instead of a value, {described}"
    *_, (last, line) = traceback.walk_tb(error.__traceback__)
    file = last.f_code.co_filename
    if not (file.startswith(ROOTS) and _is_raise_statement(last)):
        return f"an error that is not the library's ({Path(file).name}, line {line}): {described}"
    if case.words and case.words not in str(error):
        return f"the error does not say {case.words!r}: {described}"
    if case.expected == "value":
        return f"instead of a value, {described}"
    return None


def _is_raise_statement(frame: FrameType) -> bool:
    """Return whether the frame ended at a ``raise`` statement, and not in a call of compiled code."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RAISE_VARARGS"


def _value_failure(call: Call, case: Input, result: Result) -> str | None:
    reference, error = _result(call.run, case.like, case.like_options)
    if error is not None:
        return f"the ordinary input raises {type(error).__name__}: {str(error)[:100]}"
    found, expected = _tensors(result), [case.convert(t) for t in _tensors(reference)]
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return f"shape {tuple(a.shape)} instead of {tuple(b.shape)}"
        if a.numel() and not torch.allclose(a.double(), b.double(), rtol=case.tolerance, atol=case.tolerance):
            return f"a value off by {(a.double() - b.double()).abs().max():.2g}"
    return None


def _tensors(result: Result) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result.detach()]
    if isinstance(result, (tuple, list)):
        return [t for item in result for t in _tensors(item)]
    return [] if result is None else [torch.as_tensor(result)]


def _short(result: Result) -> str:
    return " ".join(str(result).split())[:80]
