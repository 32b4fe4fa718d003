"""Checks of every method: the form of its result, and independence of batches, memory layout and order."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import as_tuple, map_parts
from .cases import Case
from .check import Check, add_check
from .comparisons import (
    NotApplicable,
    expect,
    expect_close,
    expect_equal,
    expect_untouched,
    fail,
    named_tensors,
)
from .methods import ARGMAX, Output, call_method, call_on_case, methods_under_test
from .theta_families import instance

__all__ = ["ORACLE_CHECKS", "RELAXATION_CHECKS"]

ORACLE_CHECKS: list[Check] = []
RELAXATION_CHECKS: list[Check] = []

NORMAL = ("normal",)
UNSCALED = ("normal", "ties", "zeros", "forbidden")


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=("normal", "forbidden"))
def form(case: Case) -> None:
    """Every method returns results with θ's form, dtype and device, the full batch and no NaN, for any batch size."""
    for sub_case in (case, case.rows([0])):
        _expect_no_nan(_outputs(sub_case))


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=NORMAL)
def empty_batch(case: Case) -> None:
    """Every method returns an empty result for an empty batch."""
    _outputs(case.rows([]))


@add_check(ORACLE_CHECKS)
def no_nan(case: Case) -> None:
    """No result contains NaN, at any scale of the scores, and next to scores of −inf."""
    _expect_no_nan(_outputs(case))


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=(*UNSCALED, "forbidden ties"))
def input_untouched(case: Case) -> None:
    """No method writes to θ, changes its requires_grad, or returns its memory."""
    for method in methods_under_test(case):
        for needs_grad in (False, True):
            theta = map_parts(lambda t, needs=needs_grad: t.detach().clone().requires_grad_(needs), case.theta)
            with expect_untouched(theta, method.name):
                outputs = call_method(method, case.oracle, theta)
                recorded = [output.value.sum() for output in _per_instance(outputs) if output.value.requires_grad]
                if recorded:
                    torch.stack(recorded).sum().backward()
            for name, t in named_tensors("theta", theta):
                for output in outputs:
                    expect(not _share_memory(output.value, t), f"{output.name} shares its memory with {name}")


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=NORMAL)
def new_memory(case: Case) -> None:
    """No call changes the result of an earlier call."""
    other = case.rows(list(reversed(range(case.size))))
    for method in methods_under_test(case):
        first = call_on_case(method, case)
        copies = [output.value.detach().clone() for output in first]
        call_on_case(method, other)
        for output, copied in zip(first, copies, strict=True):
            expect(
                torch.equal(output.value.detach(), copied),
                f"a second call changed {output.name} of the first call; return new tensors, not a buffer",
            )


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=UNSCALED)
def repeatable(case: Case) -> None:
    """Equal inputs give equal results, also with ties, and a relaxation's mean() equals the mean of solve()."""
    _expect_same_outputs(case, case.oracle, "called again", exactly=True)
    if case.target.relaxation is not None:
        mean = case.determined_parts(case.relaxation.mean(case.oracle, case.theta))
        expected = case.determined_parts(case.relaxation.solve(case.oracle, case.theta).mean)
        expect_close(mean, expected, case.tolerance, "mean() (solve().mean is expected)")


@add_check(ORACLE_CHECKS, families=UNSCALED)
def strides(case: Case) -> None:
    """Non-contiguous scores give the same results as contiguous scores."""
    _expect_same_outputs(case, case.oracle, "with non-contiguous scores", layout=_with_scattered_memory)


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=(*UNSCALED, "large"))
def batch_independence(case: Case) -> None:
    """The result for an instance depends neither on the other instances of the batch, nor on its batch index."""
    methods = [method for method in methods_under_test(case) if not method.random]
    if not methods:
        raise NotApplicable("the noise of an instance depends on its batch index")
    order = [2, 0, 3, 0, 1] if case.size == 4 else list(reversed(range(case.size)))
    shuffled, single = case.rows(order), [case.rows([b]) for b in range(case.size)]
    for method in methods:
        together, mixed = (_per_instance(call_on_case(method, c)) for c in (case, shuffled))
        alone = [_per_instance(call_method(method, c.oracle, instance(case.theta, b))) for b, c in enumerate(single)]
        for i, output in enumerate(together):
            dim, name = output.batch_dim, output.name
            separate = torch.cat([outputs[i].value for outputs in alone], dim)
            _expect_same(separate, output, case, f"{name} of instances {list(range(case.size))} alone", alone=True)
            moved = output.value.index_select(dim, torch.tensor(order, device=output.value.device))
            expected = dataclasses.replace(output, value=moved)
            _expect_same(mixed[i].value, expected, case, f"{name} of instances {order} in another batch")


@add_check(ORACLE_CHECKS, families=NORMAL)
def rows_and_repeat(case: Case) -> None:
    """The oracles ``oracle[rows]`` and ``oracle.repeat(n)`` have the instance data of the rows."""
    if not case.instance_data:
        raise NotApplicable("no instance data is bound")
    oracle = case.oracle
    expected = call_on_case(ARGMAX, case)
    mask = torch.arange(case.size, device="cpu") % 2 == 0
    index = torch.arange(case.size, device="cpu").flip(0)
    for rows in (slice(1, None), mask, index):
        theta = map_parts(lambda t, rows=rows: t[rows] if t.shape[0] == case.size else t, case.theta)
        for a, e in zip(call_method(ARGMAX, oracle[rows], theta), expected, strict=True):
            expect_equal(a.value, e.value[rows], f"{a.name} over oracle[{rows}]")
    tiled = map_parts(lambda t: t.repeat(2, *[1] * (t.ndim - 1)) if t.shape[0] == case.size else t, case.theta)
    for a, e in zip(call_method(ARGMAX, oracle.repeat(2), tiled), expected, strict=True):
        expect_equal(a.value, torch.cat([e.value, e.value]), f"{a.name} over oracle.repeat(2)")


@add_check(ORACLE_CHECKS, families=NORMAL)
def instance_data(case: Case) -> None:
    """An oracle refuses unknown instance data, and without instance data gives a result or an InvalidInputError."""
    try:
        case.target.oracle.bind(no_such_data=1)
    except TypeError:
        pass
    else:
        fail("bind(no_such_data=1) raised no TypeError")
    if case.instance_data:
        with contextlib.suppress(InvalidInputError, TypeError):
            case.target.try_argmax({})


@add_check(ORACLE_CHECKS, families=NORMAL)
def copies(case: Case) -> None:
    """Copies, deep copies and unpickled copies of an oracle give the same results.

    An oracle that cannot be pickled raises UnsupportedError with the reason. Pickle needs classes and functions of a
    module, so oracles of other classes or with other functions are only copied.
    """
    makers: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
    oracle = case.target.oracle
    functions = [value for value in getattr(oracle, "__dict__", {}).values() if inspect.isfunction(value)]
    if all(map(_is_importable, [type(oracle), *functions])):
        with contextlib.suppress(UnsupportedError):
            pickled = pickle.dumps(case.oracle)
            makers.append(lambda _: pickle.loads(pickled))
    for make in makers:
        _expect_same_outputs(case, make(case.oracle), "of a copy", exactly=True)


# ----------------------------------------------------------------------------- shared steps


def _outputs(case: Case) -> list[Output]:
    return [output for method in methods_under_test(case) for output in call_on_case(method, case)]


def _expect_no_nan(outputs: Sequence[Output]) -> None:
    for output in outputs:
        expect(not output.value.isnan().any(), f"{output.name} contains NaN")


def _per_instance(outputs: Sequence[Output]) -> list[Output]:
    """Return the outputs that have one entry per instance and do not depend on the other instances."""
    return [output for output in outputs if output.spec.form != "theta" and not output.spec.solver_detail]


def _expect_same_outputs(
    case: Case,
    oracle: Oracle,
    how: str,
    *,
    layout: Callable[[Tensor], Tensor] = torch.clone,
    exactly: bool = False,
) -> None:
    """Raise CheckFailed unless the methods of ``oracle`` give the outputs of the case, with θ in another ``layout``."""
    for method in methods_under_test(case):
        expected = call_on_case(method, case)
        actual = call_method(method, oracle, map_parts(layout, case.theta))
        for a, e in zip(actual, expected, strict=True):
            if exactly:
                expect_equal(a.value, e.value, f"{a.name}, {how},")
            else:
                _expect_same(a.value, e, case, f"{a.name}, {how},")


def _expect_same(actual: Tensor, expected: Output, case: Case, what: str, alone: bool = False) -> None:
    if expected.spec.exact:
        expect_equal(actual, expected.value, what)
    else:
        expect_close(actual, expected.value, _summation_tolerance(expected, case, alone), what)


def _summation_tolerance(output: Output, case: Case, alone: bool) -> Tensor:
    """Return a tolerance for sums that round differently in another batch, or for an instance ``alone``."""
    if case.target.relaxation is not None:
        return case.tolerance * (1 + case.target.num_parts if alone and output.spec.form == "instance" else 1)
    sizes = [t.abs().nan_to_num(posinf=0).flatten(1).sum(1).amax() for t in as_tuple(case.theta)]
    size = output.value.abs().nan_to_num(posinf=0)
    others = [dim for dim in range(size.ndim) if dim != output.batch_dim or output.spec.form == "theta"]
    largest = size.amax(others, keepdim=True) if size.numel() and others else size
    return case.rounding_error(1 + torch.stack(sizes).sum() + largest)


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _with_scattered_memory(t: Tensor) -> Tensor:
    """Return a tensor with equal values whose memory has gaps between the values and a reversed order of dimensions."""
    backwards = list(reversed(range(t.ndim)))
    wide = t.new_full((*(t.shape[d] for d in backwards), 2), torch.nan)
    wide[..., 0] = t.permute(backwards)
    return wide[..., 0].permute(backwards)


def _is_importable(named: Any) -> bool:
    """Return whether pickle can import a class or function. Pickle cannot import those defined inside functions."""
    if "." in named.__qualname__:
        return False
    module = importlib.import_module(named.__module__) if named.__module__ != "__main__" else __import__("__main__")
    return getattr(module, named.__name__, None) is named
