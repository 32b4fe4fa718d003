"""Convert gold structures, integer labels and costs of parts to the flat batch of a problem."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ..compile.functorch import check_not_captured
from ..deferred_checks import DeferredChecks, copies_on_cpu, skips_checks
from ..errors import InvalidInputError, UnsupportedError, renumber_instances
from ..oracle import Oracle
from ..parts import Parts, as_tuple, list_to_tuple, map_parts, pack_like
from ..validation import check_real, check_values
from ..validation.tensors import check_dense
from .accepted_form import zeros_on_cpu
from .arguments import broadcasts, check_all_finite, count_dimensions, describe, shape_text
from .mean_checks import check_means, part_bounds
from .problem import Problem
from .solved_rows import SolvedRows

__all__ = [
    "checks_every_structure",
    "encode_labels",
    "flatten_labels",
    "flatten_parts",
    "gold_structures",
    "structures_to_decode",
]


def encode_labels(problem: Problem, labels: Tensor, what: str) -> Parts:
    """Return the structures (B, *event) of integer labels of the user's batch shape."""
    if type(problem.oracle).encode is Oracle.encode:
        form = shape_text(problem.batch_shape + as_tuple(problem.theta)[0].shape[1:])
        raise UnsupportedError(
            f"{what} must be a structure in floating point, in the form of theta, {form}, as {problem.oracle.label()} "
            f"has no integer labels; got {labels.dtype} of shape {shape_text(labels.shape)}, so pass "
            f"{what}.to(theta.dtype) if it is a structure"
        )
    if problem.has_size_0:
        return map_parts(torch.zeros_like, problem.theta)
    flat = flatten_labels(problem, labels, what)
    if flat.is_cpu or not problem.oracle.has_labels_on_cpu:
        return problem.oracle.encode(flat, problem.theta)
    on_cpu = _on_cpu(problem)
    y = on_cpu.oracle.encode(copies_on_cpu(flat)[0], on_cpu.theta)
    return map_parts(lambda t: t.to(flat.device, non_blocking=True), y)


def _on_cpu(problem: Problem) -> Problem:
    """Return the problem with its oracle on the CPU, and zeros for its scores, which take no memory."""
    return dataclasses.replace(problem, oracle=problem.oracle.on_cpu(), theta=zeros_on_cpu(problem.theta), checks=None)


def flatten_labels(problem: Problem, labels: Tensor, what: str) -> Tensor:
    """Return integer labels of the user's batch shape as (B, ...) int64, on the device of θ."""
    check_dense(what, labels)
    check_values(what, labels)
    n = problem.oracle.label_ndim
    if labels.ndim < n or labels.shape[: labels.ndim - n] != problem.batch_shape:
        form = f" are {problem.oracle.label_form}, and" if problem.oracle.label_form else ""
        raise InvalidInputError(
            f"{what}: integer labels of {problem.oracle.label()}{form} must have the batch shape "
            f"{shape_text(problem.batch_shape)} and {count_dimensions(n)}, got shape {shape_text(labels.shape)}; "
            f"{_instead_of_labels(problem, labels, what)}"
        )
    device = as_tuple(problem.theta)[0].device
    flat = labels.to(device, torch.int64).reshape(math.prod(problem.batch_shape), *labels.shape[labels.ndim - n :])
    return problem.select(flat)


def _instead_of_labels(problem: Problem, labels: Tensor, what: str) -> str:
    """Return what to pass in place of integers of a wrong shape, for an error message."""
    if isinstance(problem.theta, Tensor) and labels.shape == problem.batch_shape + problem.event_shapes[0]:
        return f"pass a structure in floating point: {what}.to(theta.dtype)"
    if _is_one_hot_form(problem, labels):
        return f"pass the labels of one-hot vectors: {what}.argmax(-1)"
    forms = " and ".join(shape_text(problem.batch_shape + event) for event in problem.event_shapes)
    return f"a structure in floating point has the form of theta, {forms}"


def _is_one_hot_form(problem: Problem, y: Any) -> bool:
    """Return whether ``y`` has the shape of labels with a dimension of classes more, while θ is a tuple."""
    if not (isinstance(y, Tensor) and isinstance(problem.theta, tuple) and _has_labels(problem.oracle)):
        return False
    classes = problem.event_shapes[0]
    return len(classes) == problem.oracle.label_ndim + 1 and y.shape == problem.batch_shape + classes


def flatten_parts(problem: Problem, y: Any, what: str, instead: str = "") -> Parts:
    """Flatten structures, or costs of parts, in the form of θ to (B, *event), with 0 in the padding.

    Error messages about the form end with ``instead``, a hint at another accepted argument.
    """
    if problem.has_flat_form(y):
        check_not_captured(what, y)
        form = problem.without_padding(y)
        check_all_finite(as_tuple(form)[0], what)
        return form
    received = y
    y = list_to_tuple(y)
    if isinstance(y, tuple) != isinstance(problem.theta, tuple) or len(as_tuple(y)) != len(as_tuple(problem.theta)):
        form = f"a tuple of {len(problem.theta)} tensors" if isinstance(problem.theta, tuple) else "one tensor"
        raise InvalidInputError(f"{what} must have the form of theta, {form}, got {describe(received)}{instead}")
    flat = []
    for i, (t, like) in enumerate(zip(as_tuple(y), as_tuple(problem.theta), strict=True)):
        event = problem.event_shapes[i]
        if not isinstance(t, Tensor):
            raise TypeError(f"{what} must be a tensor in the form of theta, got {describe(t)}{instead}")
        check_dense(what, t)
        if t.shape[t.ndim - len(event) :] != event or not broadcasts(
            t.shape[: t.ndim - len(event)], problem.batch_shape
        ):
            where = f"{what}[{i}]" if isinstance(y, tuple) else what
            raise InvalidInputError(
                f"{where} must have shape {shape_text(problem.batch_shape + event)} "
                f"(batch {shape_text(problem.batch_shape)}, structure {shape_text(event)}), "
                f"got {shape_text(t.shape)}{instead}"
            )
        check_not_captured(what, t)
        check_values(what, t)
        check_real(what, t)
        t = t.to(like).expand(problem.batch_shape + event)
        t = problem.select(t.reshape(math.prod(problem.batch_shape), *event))
        flat.append(t.new_zeros(0, *like.shape[1:]) if problem.has_size_0 else t)
    form = problem.without_padding(pack_like(flat, problem.theta))
    for t in as_tuple(form):
        if problem.checks is None:
            check_all_finite(t, what)
        elif not skips_checks(t):
            # The sum is finite only if all entries are.
            problem.checks.add(t.sum(), math.isfinite, functools.partial(check_all_finite, t, what))
    return form


def gold_structures(
    problem: Problem,
    y: Any,
    what: str,
    *,
    allows_means: bool = False,
    is_known: Callable[[Tensor], bool] | None = None,
) -> Parts:
    """Return gold structures (B, *event), given as structures or as integer labels.

    If the oracle has labels, encoding and decoding check that structures belong to Y; else the oracle's ``contains``,
    or bounds of its parts. With ``allows_means``, instances with fractions may be means in conv(Y), which
    :func:`check_means` checks. Plain tensors of structures for which ``is_known`` returns True have passed the checks
    in an earlier call.
    """
    if is_known is not None and problem.has_flat_form(y):
        check_not_captured(what, y)
        if is_known(y):
            return y
    if isinstance(y, Tensor) and not (y.is_floating_point() or y.is_complex() or y.dtype is torch.bool):
        return encode_labels(problem, y, what)
    form = flatten_parts(problem, y, what, _or_labels(problem, y, what))
    check_gold = _check_gold_or_mean if allows_means else _check_gold
    if problem.checks is None:
        check_gold(problem, form, what)
    elif not skips_checks(as_tuple(form)[0]):
        if problem.oracle.has_labels_on_cpu:
            _add_check_on_cpu(problem, form, lambda copies: check_gold(_on_cpu(problem), copies, what))
            return form
        check = functools.partial(check_gold, problem, form, what)
        known = problem.oracle.contains(form)
        if known is not None:
            problem.checks.add(known.all(), bool, check)
            return form
        try:
            with problem.checks.replacing(check):
                wrong = _wrong_parts(problem, form, what)
        except InvalidInputError:  # of an oracle that reads the labels at once
            if not allows_means:
                raise
            check()
            wrong = []
        if wrong:
            problem.checks.add(torch.stack([t.any() for t in wrong]).any(), operator.not_, check)
    return form


def _add_check_on_cpu(problem: Problem, form: Parts, check: Callable[[Parts], None]) -> None:
    """Add ``check``, of a copy of ``form`` (B, *event), to the checks; the same copy reads the bound data."""
    oracle, count = problem.oracle, len(as_tuple(form))
    data = {} if oracle.knows_data_on_cpu else oracle.bound

    def check_copies(copies: list[Tensor]) -> None:
        if data:
            oracle.store_data_on_cpu(dict(zip(data, (t.clone() for t in copies[count:]), strict=True)))
        check(pack_like(copies[:count], form))

    cast(DeferredChecks, problem.checks).add_copies([*as_tuple(form), *data.values()], check_copies)


def checks_every_structure(oracle: Oracle) -> bool:
    """Return whether :func:`gold_structures` refuses all parts that are no structure of the oracle."""
    return _has_labels(oracle) or type(oracle).contains is not Oracle.contains


def structures_to_decode(problem: Problem, y: Any, what: str) -> Parts:
    """Return structures (B, *event), and raise InvalidInputError for means of several structures.

    Instances of zeros, such as those of missing ranks in the k best structures, pass.
    """
    form = flatten_parts(problem, y, what)
    if _has_labels(problem.oracle):
        check = functools.partial(_check_no_mean, problem, form, what)
        if problem.checks is None:
            check()
        elif not skips_checks(as_tuple(form)[0]):
            problem.checks.add(_has_fraction(form).any(), operator.not_, check)
    return form


def _has_fraction(form: Parts) -> Tensor:
    """Return which instances of ``form`` (B, *event) have parts that are no integers, (B,) bool."""
    return torch.stack([(t != t.round()).flatten(1).any(1) for t in as_tuple(form)]).any(0)


def _check_no_mean(problem: Problem, form: Parts, what: str) -> None:
    """Raise InvalidInputError for an instance of ``form`` (B, *event) with fractions that is no structure."""
    has_fraction = _has_fraction(form)
    if bool(has_fraction.any()):
        instead = "decode takes structures, such as the result of map, and no means of several structures"
        _check_some_gold(problem, form, what, has_fraction, instead)


def _check_gold_or_mean(problem: Problem, form: Parts, what: str) -> None:
    """Raise InvalidInputError for an instance of ``form`` (B, *event) that is no structure, and no mean."""
    if all(torch.equal(t, t.round()) for t in as_tuple(form)):
        _check_gold(problem, form, what)
        return
    check_means(problem.oracle, form, what)
    _check_some_gold(problem, form, what, ~_has_fraction(form))


def _check_some_gold(problem: Problem, form: Parts, what: str, wanted: Tensor, instead: str = "") -> None:
    """Run :func:`_check_gold` on the instances where ``wanted`` (B,) is True."""
    chosen = SolvedRows(wanted.nonzero()[:, 0], ~wanted, problem.oracle)
    of_chosen = dataclasses.replace(
        problem, oracle=problem.oracle[chosen.index], theta=chosen.select_parts(problem.theta), solved=None
    )
    with renumber_instances(chosen.index):
        _check_gold(of_chosen, chosen.select_parts(form), what, instead)


def _check_gold(problem: Problem, form: Parts, what: str, instead: str = "") -> None:
    """Raise InvalidInputError if an instance of ``form`` (B, *event) is no structure, as far as known."""
    known = problem.oracle.contains(form)
    if known is not None and bool(known.all()):
        return
    wrong = [t.flatten(1).any(1) for t in _wrong_parts(problem, form, what)]
    if wrong and bool((is_wrong := torch.stack(wrong).any(0)).any()):
        if not instead:
            labels = "give integer labels, or 0/1 parts" if _has_labels(problem.oracle) else "give structures"
            instead = f"{labels} as argmax returns them, not scores or costs"
        index = int(is_wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"{what} is not a structure of {problem.oracle.label()} at batch index {index}; {instead}"
        )


def _wrong_parts(problem: Problem, form: Parts, what: str) -> list[Tensor]:
    """Return which parts of ``form`` (B, *event) differ from those of the structures of its own labels.

    For an oracle without labels, return which instances ``contains`` refuses, (B, 1), or which parts are not integers
    within their bounds. The list is empty if nothing is known.
    """
    again = _encode_again(problem, form, what)
    if again is not None:
        return [a != t for a, t in zip(as_tuple(again), as_tuple(form), strict=True)]
    known = problem.oracle.contains(form)
    if known is not None:
        return [~known.unsqueeze(1)]
    bounds = part_bounds(problem.oracle, form)
    if bounds is None:
        return []
    parts = zip(as_tuple(form), *map(as_tuple, bounds), strict=True)
    return [(t != t.round()) | (t < low) | (t > high) for t, low, high in parts]


def _has_labels(oracle: Oracle) -> bool:
    return type(oracle).decode is not Oracle.decode


def _encode_again(problem: Problem, form: Parts, what: str) -> Parts | None:
    """Return the structures of the labels of ``form``; None if the oracle with these options has no labels."""
    if not _has_labels(problem.oracle):
        return None
    try:
        return problem.oracle.encode(problem.oracle.decode(form), form)
    except UnsupportedError:
        return None
    except InvalidInputError as error:
        why = str(error).removeprefix("y: ").removeprefix("labels: ")
        raise InvalidInputError(f"{what} is not a structure of {problem.oracle.label()}: {why}") from None


def _or_labels(problem: Problem, y: Any, what: str) -> str:
    """Return a hint at integer labels, as a clause of an error message; empty if the oracle has no labels."""
    if type(problem.oracle).encode is Oracle.encode:
        return ""
    n = problem.oracle.label_ndim
    dims = f" followed by {count_dimensions(n)}" if n else ""
    convert = f"{what}.argmax(-1)" if _is_one_hot_form(problem, y) else f"torch.as_tensor({what}).long()"
    return f"; labels are a tensor of integers of shape {shape_text(problem.batch_shape)}{dims}: {convert}"
