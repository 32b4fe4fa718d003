"""Checks of public input: infeasible and invalid scores, shapes, dtypes, devices, padding and lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..api import relax
from ..errors import InfeasibleError, InvalidInputError
from ..oracle import Enumerable, GibbsOracle
from ..parts import Parts, as_tuple, inner_product, map_parts
from ..relaxation import Relaxation
from ..relaxations.map import MAP
from ..relaxations.marginals import Marginals
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, attach_case_to_errors, expect, expect_close, expect_equal, fail, named_tensors
from .methods import call_on_case, methods_under_test
from .theta_families import instance

__all__ = ["ORACLE_CHECKS", "RELAXATION_CHECKS"]

ORACLE_CHECKS: list[Check] = []
RELAXATION_CHECKS: list[Check] = []

NORMAL = ("normal",)
FLOAT = (torch.float32,)


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=NORMAL)
def infeasible(case: Case) -> None:
    """An instance without a structure of finite score raises an InfeasibleError that names the batch index."""
    infeasible_case = _make_last_instance_infeasible(case)
    last = infeasible_case.size - 1
    for method in methods_under_test(infeasible_case):
        name = method.name
        with attach_case_to_errors(infeasible_case):
            try:
                with torch.no_grad():
                    answer = method.call(infeasible_case.oracle, infeasible_case.theta)
            except InfeasibleError as error:
                index, message = error.batch_index, f"InfeasibleError from {name}"
                expect(index == last, f"{message} has batch_index {index}, but the infeasible instance is {last}")
                expect(str(last) in str(error), f"{message} does not name batch index {last}: {error}")
                continue
            # Alternatively, a k-best list marks all structures as not valid.
            is_empty = name == "topk" and not answer[2][:, last].any()
            expect(
                is_empty,
                f"{name} returns a result for batch index {last}, where every part is −inf, instead of an "
                "InfeasibleError; call structinf.validation.check_feasible with the best scores or the sums",
            )


@add_check(ORACLE_CHECKS, families=NORMAL)
def refusals(case: Case) -> None:
    """Integers, NaN and +inf raise an error that names the value and the position."""
    try:
        _relax(case, MAP(), map_parts(lambda t: t.long(), case.user_theta))
    except TypeError as error:
        expect("int64" in str(error), f"the error about integer potentials does not name their dtype, int64: {error}")
    else:
        fail("integer potentials were accepted")
    # A part used by the best structure is never padding.
    y = case.oracle.argmax(case.theta)
    for i, (t, z) in enumerate(zip(as_tuple(case.user_theta), as_tuple(y), strict=True)):
        used = (z != 0).nonzero()
        if not len(used):
            continue
        place = used[-1].tolist()
        if t.shape[0] == 1:
            place[0] = 0
        for value, word in ((torch.nan, "NaN"), (torch.inf, "inf")):
            tensors = [s.clone() for s in as_tuple(case.user_theta)]
            tensors[i][tuple(place)] = value
            corrupted = case.with_tensors(tensors)
            try:
                _relax(corrupted, MAP())
            except InvalidInputError as error:
                is_named = word in str(error) and (t.shape[0] == 1 or f"batch index {place[0]}" in str(error))
                expect(is_named, f"the error does not say {word} and batch index {place[0]}: {error}")
            else:
                fail(f"a potential of {word} was accepted")


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=("normal", "forbidden"))
def leading_dims(case: Case) -> None:
    """Any number of leading dimensions may be the batch."""
    size = case.size

    def grouped(t: Tensor) -> Tensor:
        return t.reshape(2, size // 2, *t.shape[1:]) if t.shape[0] == size else t[None]

    tolerance = _tolerance(case) if case.target.relaxation is None else case.tolerance
    for relaxation, mean in _means(case):
        name = relaxation.label()
        if size % 2 == 0:
            instance_data = {key: grouped(value) for key, value in case.instance_data.items()}
            found = _relax(case, relaxation, map_parts(grouped, case.user_theta), instance_data)
            expected = map_parts(lambda t: t.reshape(2, size // 2, *t.shape[1:]), mean)
            expect_close(found, expected, tolerance, f"{name} with two batch dimensions")
        if not relaxation.is_stochastic:  # a batch of one draws other noise
            first = case.rows([0])
            instance_data = {key: value[0] for key, value in first.instance_data.items()}
            found = _relax(case, relaxation, map_parts(lambda t: t[0], first.user_theta), instance_data)
            expect_close(found, map_parts(lambda t: t[0], mean), tolerance, f"{name} without batch dimensions")
        try:
            found = _relax(case, relaxation, map_parts(lambda t: t if t.shape[0] == size else t[0], case.user_theta))
        except InvalidInputError:
            continue  # the form may be ambiguous for an oracle that accepts several forms
        expect_close(found, mean, tolerance, f"{name} with shared tensors without batch dimensions")


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=("normal", "forbidden"), dtypes=FLOAT)
def half_precision(case: Case) -> None:
    """Half precision gives half precision, with the values of float32."""
    for dtype in (torch.bfloat16, torch.float16):
        half = case.with_tensors([t.to(dtype) for t in as_tuple(case.user_theta)])
        single = half.with_tensors([t.float() for t in as_tuple(half.user_theta)])
        for (relaxation, mean), (_, expected) in zip(_means(half), _means(single), strict=True):
            for name, a, e in named_tensors(f"the {relaxation.label()} of {dtype}", mean, expected):
                expect(a.dtype == dtype, f"{name} has dtype {a.dtype}")
                expect_close(a, e, 2 * torch.finfo(dtype).eps * (1 + e.abs().double()), name)


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=("normal", "ties"))
def padding(case: Case) -> None:
    """Parts in the padding are 0 with gradient 0, for any scores in the padding, including NaN."""
    is_relaxation = case.target.relaxation is not None
    if not is_relaxation:
        _expect_right_masks(case)
    masks, full_masks = as_tuple(_padding_masks(case)), as_tuple(_padding_masks(case, shared=False))
    for method in methods_under_test(case):
        for output in call_on_case(method, case):
            if output.spec.form == "structure":
                in_padding = (output.value != 0) & ~full_masks[output.index]
                expect(not in_padding.any(), f"{output.name} is not 0 in the padding")
    means = list(_means(case))
    for value in (torch.nan,) if is_relaxation else (torch.nan, torch.inf, -torch.inf, 1e30):
        tensors = [t.masked_fill(~m, value) for t, m in zip(as_tuple(case.user_theta), masks, strict=True)]
        changed = case.with_tensors([t.requires_grad_(is_relaxation) for t in tensors])
        with attach_case_to_errors(changed):
            for (relaxation, expected), (_, mean) in zip(means, _means(changed), strict=True):
                expect_equal(mean, expected, f"{relaxation.label()} with {value} in the padding")
                _expect_no_gradient(as_tuple(mean), changed.user_theta, masks)


@add_check(ORACLE_CHECKS, families=NORMAL, dtypes=FLOAT)
def lengths(case: Case) -> None:
    """Lengths may be a list or any integer dtype, and all be shorter than the padding."""
    if "lengths" not in case.instance_data:
        raise NotApplicable("no lengths are bound")
    bound = case.instance_data["lengths"]
    shortest = int(bound.flatten(1).sum(1).argmin()) if bound.ndim > 1 else int(bound.argmin())
    short = case.rows([shortest])

    def relax_with(relaxation: Relaxation, lengths: Any) -> Parts:
        return _relax(case, relaxation, case.user_theta, {**case.instance_data, "lengths": lengths})

    for (relaxation, together), (_, alone) in zip(_means(case), _means(short), strict=True):
        for given in (bound.tolist(), bound.to(torch.int32), bound.to(torch.int64), bound.to(torch.uint8)):
            kind = given.dtype if isinstance(given, Tensor) else "a list"
            expect_equal(relax_with(relaxation, given), together, f"{relaxation.label()} with lengths as {kind}")
        expected = map_parts(lambda t: t[shortest : shortest + 1], together)
        expect_close(alone, expected, _tolerance(case), f"{relaxation.label()} of the shortest instance alone")
    for wrong in (bound.double() + 0.5, torch.full_like(bound, -1), torch.full_like(bound, 10_000)):
        try:
            relax_with(MAP(), wrong)
        except InvalidInputError as error:
            expect("lengths" in str(error), f"the error about wrong lengths does not name them: {error}")
        else:
            fail(f"lengths of {wrong.flatten()[0].item()} were accepted; call structinf.validation.check_lengths")


@add_check(ORACLE_CHECKS, RELAXATION_CHECKS, families=("normal", "forbidden"), dtypes=FLOAT)
def cuda(case: Case) -> None:
    """CUDA tensors give results on the device, equal to the results on the CPU."""
    if not torch.cuda.is_available():
        raise NotApplicable("this machine has no CUDA GPU")
    if case.target.relaxation is not None and case.relaxation.is_stochastic:
        raise NotApplicable("a generator draws other noise on another device")
    on_device = case.with_tensors([t.cuda() for t in as_tuple(case.user_theta)])
    for (relaxation, expected), (_, mean) in zip(_means(case), _means(on_device), strict=True):
        for name, t in named_tensors(relaxation.label(), mean):
            expect(t.is_cuda, f"{name} of CUDA tensors is on {t.device}")
        expect_close(mean, expected, _tolerance(case), f"{relaxation.label()} on CUDA")


# ----------------------------------------------------------------------------- shared steps


def _relax(
    case: Case, relaxation: Relaxation, theta: Parts | None = None, instance_data: Mapping[str, Any] | None = None
) -> Parts:
    """Return the mean of a public call, by default with the scores and instance data of the case."""
    theta = map_parts(torch.clone, case.user_theta if theta is None else theta)
    instance_data = case.instance_data if instance_data is None else instance_data
    with attach_case_to_errors(case):
        return relax(theta, case.target.oracle, relaxation, generator=case.noise_generator(), **instance_data)


def _means(case: Case) -> Iterator[tuple[Relaxation, Any]]:
    """Return the mean of the tested relaxation; for an oracle, the best structure and, if available, the marginals."""
    gibbs = [Marginals()] if isinstance(case.target.oracle, GibbsOracle) else []
    for relaxation in [MAP(), *gibbs] if case.target.relaxation is None else [case.relaxation]:
        yield relaxation, _relax(case, relaxation)


def _tolerance(case: Case) -> Tensor:
    return case.rounding_error(100.0)


def _make_last_instance_infeasible(case: Case) -> Case:
    """Return the case with −inf in every part of the last instance; raise NotApplicable if a structure remains."""

    def in_last_row(t: Tensor, value: float) -> Tensor:
        t = t.clone()
        if t.shape[0] == case.size:
            t[-1] = value
        return t

    if case.oracle.always_feasible:
        raise NotApplicable("the oracle has a smaller structure for any parts of −inf")
    tensors = as_tuple(case.user_theta)
    costly = case.with_tensors([in_last_row(torch.zeros_like(t), -1.0) for t in tensors])
    if inner_product(costly.theta, costly.oracle.argmax(costly.theta))[-1] >= 0:
        raise NotApplicable("some structure uses no part that could be forbidden")
    return case.with_tensors([in_last_row(t, -torch.inf) for t in tensors])


def _expect_right_masks(case: Case) -> None:
    """Check that valid_parts includes every part used by a structure, and is not None if lengths exclude parts."""
    theta = map_parts(lambda t: t.expand(case.size, *t.shape[1:]), case.theta)
    masks = case.oracle.valid_parts(theta) if case.instance_data else None
    if masks is not None:
        for name, m, t in named_tensors("the mask from valid_parts", masks, theta):
            expect(m.dtype == torch.bool, f"{name} must be bool, got {m.dtype}")
            expect(m.shape[1:] == t.shape[1:] and len(m) in (1, case.size), f"{name} has shape {tuple(m.shape)}")
    if not case.instance_data or not isinstance(case.oracle, Enumerable):
        return
    for b, _, listed in case.enumerations():
        used = map_parts(lambda y: (y != 0).any(0), listed.structures)
        if masks is not None:
            for name, m, u in named_tensors("the mask from valid_parts", masks, used):
                is_left_out = (u & ~instance(m, b)[0].cpu()).any()
                expect(not is_left_out, f"{name} leaves out a part in use at batch index {b}")
        elif "lengths" in case.instance_data and case.target.parts_in_use is not None:
            idle = [(u & ~v).any() for u, v in zip(as_tuple(case.target.parts_in_use), as_tuple(used), strict=True)]
            expect(not any(idle), f"valid_parts is None although lengths put parts out of use at batch index {b}")


def _padding_masks(case: Case, shared: bool = True) -> Parts:
    """Return masks of the parts inside the lengths, a row for each instance. Shared tensors have a single row.

    With ``shared=False``, shared tensors also have a row for each instance. Raise NotApplicable without padding.
    """

    def rows(t: Tensor) -> Tensor:
        return t if shared else t.expand(case.size, *t.shape[1:])

    masks = case.oracle.valid_parts(map_parts(rows, case.theta)) if case.instance_data else None
    if masks is None:
        raise NotApplicable("no part is padding: no instance data is bound, or valid_parts returns None")
    if not shared:
        return masks
    return map_parts(lambda m, t: m.any(0, keepdim=True) if t.shape[0] == 1 else m, masks, case.theta)


def _expect_no_gradient(mean: Sequence[Tensor], theta: Parts, masks: Sequence[Tensor]) -> None:
    """Check that Σ mean² has no gradient for ``theta``, or a finite gradient that is 0 outside the masks."""
    if not all(m.requires_grad for m in mean):
        return
    torch.stack([m.square().sum() for m in mean]).sum().backward()
    for name, t, m in named_tensors("theta", theta, masks):
        if t.grad is not None:
            expect(t.grad.isfinite().all(), f"the gradient of {name} is not finite")
            expect(not (t.grad != 0).logical_and(~m).any(), f"the gradient of {name} is not 0 in the padding")
