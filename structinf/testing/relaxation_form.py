"""Laws about the record that a relaxation returns: its form, and that batches, memory and order do not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..api import infer, relax
from ..errors import InfeasibleError, UnsupportedError
from ..parts import Parts, as_tuple, map_parts
from ..solution import Solution
from .cases import Case
from .compare import NotApplicable, expect, expect_close, expect_equal, fail, named_tensors, rounding, trying
from .law import LawBook
from .oracle_input import expect_leading_dims, expect_names, padding_masks, without_structure

__all__ = ["LAWS", "solve"]

LAWS = LawBook()

ONE = ("normal",)
KINDS = ("normal", "ties", "zeros", "forbidden")
FLOAT = (torch.float32,)


@LAWS("the solution has θ's form, dtype and device with the full batch", families=("normal", "forbidden"))
def form(case: Case) -> None:
    for some in (case, case.rows([0])):
        with trying(some):
            _expect_form(some, solve(some))


@LAWS("the empty batch has an empty solution", families=ONE)
def empty_batch(case: Case) -> None:
    nothing = case.rows([])
    with trying(nothing):
        _expect_form(nothing, solve(nothing))


@LAWS("θ is neither written to, nor flipped to requires_grad, nor handed back", families=KINDS)
def input_untouched(case: Case) -> None:
    for needs_grad in (False, True):
        theta = map_parts(lambda t, needs=needs_grad: t.detach().clone().requires_grad_(needs), case.theta)
        before = [(t.detach().clone(), t._version) for t in as_tuple(theta)]
        mean = as_tuple(solve(case, theta).mean)
        if needs_grad and any(m.requires_grad for m in mean):
            torch.stack([m.sum() for m in mean if m.requires_grad]).sum().backward()
        for (name, t), (values, version) in zip(named_tensors("theta", theta), before, strict=True):
            expect_equal(t, values, f"{name} afterwards")
            expect(t._version == version, f"{name} was written to")
            expect(t.requires_grad == needs_grad, f"requires_grad of {name} was changed")
            for m in mean:
                same = m.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
                expect(not (m.numel() and same), f"the mean lies in the memory of {name}")


@LAWS(
    "μ and the other fields are the same every time, and whether asked for alone or with the whole record",
    families=KINDS,
)
def repeatable(case: Case) -> None:
    with torch.no_grad():
        first, second = solve(case), solve(case)
        alone = case.relaxation.mean(case.oracle, case.theta)
    for name, (value, _) in _fields(first).items():
        expect_equal(_fields(second)[name][0], value, f"{name} asked for again")
    expect_close(alone, first.mean, case.room, "mean() (solve().mean is expected)")


@LAWS("noise comes from the generator alone, if one is given", families=ONE)
def own_generator(case: Case) -> None:
    if not case.relaxation.is_stochastic:
        raise NotApplicable("the relaxation draws no noise")
    before = torch.get_rng_state()
    mean = solve(case).mean
    if all(m.requires_grad for m in as_tuple(mean)):
        torch.stack([m.sum() for m in as_tuple(mean)]).sum().backward()
    expect(torch.equal(torch.get_rng_state(), before), "torch's own generator was drawn from, too")


@LAWS(
    "an instance's solution does not depend on the other instances of its batch, nor on its place in it",
    families=(*KINDS, "large"),
)
def batch_independence(case: Case) -> None:
    if case.relaxation.is_stochastic:
        raise NotApplicable("the noise of an instance depends on its place in the batch")
    order = [2, 0, 3, 0, 1] if case.size == 4 else list(reversed(range(case.size)))
    with torch.no_grad():
        together, mixed = solve(case), _solve(case.rows(order))
        alone = [_solve(case.rows([b])) for b in range(case.size)]
    for name in ("the mean", "the value"):
        value = _fields(together)[name][0]
        apart = map_parts(lambda *rows: torch.cat(rows), *[_fields(one)[name][0] for one in alone])
        room = case.room * (1 + (0 if name == "the mean" else case.subject.parts))
        expect_close(apart, value, room, f"{name} of instances {list(range(case.size))} alone")
        expected = map_parts(lambda t: t[order], value)
        expect_close(_fields(mixed)[name][0], expected, case.room, f"{name} of instances {order} in another batch")


@LAWS(
    "an instance without any structure of finite score is an InfeasibleError that names its batch index", families=ONE
)
def infeasible(case: Case) -> None:
    blocked = without_structure(case)
    try:
        with trying(blocked):
            solve(blocked)
    except InfeasibleError as error:
        expect_names(error, blocked.size - 1, "solve")
    else:
        fail(f"there is a solution at batch index {blocked.size - 1}, where every part is −inf", blocked)


@LAWS("a solution with a support is its weighted mean, of structures, by weights that are a distribution")
def support(case: Case) -> None:
    with torch.no_grad():
        solution = solve(case)
    weights, structures = solution.weights, solution.support
    if weights is None or structures is None:
        raise NotApplicable("the relaxation keeps no support")
    room = rounding(case.dtype, 1.0)
    expect(bool((weights >= 0).all()), "a weight is negative")
    expect_close(weights.double().sum(0), torch.ones(case.size, dtype=torch.float64), room, "the sum of the weights")
    mixed = map_parts(lambda t: (t * weights.view(*weights.shape, *[1] * (t.ndim - 2)).to(t)).sum(0), structures)
    largest = max((t.abs().max().item() for t in as_tuple(structures) if t.numel()), default=1.0)
    expect_close(mixed, solution.mean, room * (1 + largest), "Σ weights · support (the mean is expected)")
    for b, _, listed in case.enumerations():
        for k in (weights[:, b] > 0).nonzero()[:, 0].tolist():
            y = map_parts(lambda t, k=k, b=b: t[k, b : b + 1], structures)
            expect(listed.position(y) is not None, f"support[{k}] at batch index {b} is no structure")


@LAWS("a solution started from its own support is the same", families=ONE)
def warm_start(case: Case) -> None:
    oracle, relaxation = case.subject.oracle, case.relaxation
    with torch.no_grad():
        first = infer(case.given, oracle, relaxation, **case.instance_data)
        if first.support is None:
            raise NotApplicable("the relaxation keeps no support")
        try:
            again = infer(case.given, oracle, relaxation, warm_start=first, **case.instance_data)
        except UnsupportedError:
            raise NotApplicable("the relaxation is not iterative") from None
    expect_close(again.mean, first.mean, case.room, "the mean from a warm start")
    expect_close(again.value, first.value, case.room * case.subject.parts, "the value from a warm start")


@LAWS("any number of leading dimensions may be the batch", families=("normal", "forbidden"))
def leading_dims(case: Case) -> None:
    flat = relax(case.given, case.subject.oracle, case.relaxation, **case.instance_data)
    expect_leading_dims(case, case.relaxation, flat, case.room)


@LAWS("half precision is answered in half precision, as float32 would", families=("normal", "forbidden"), dtypes=FLOAT)
def half_precision(case: Case) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        given = map_parts(lambda t, d=dtype: t.to(d), case.given)
        answer = relax(given, case.subject.oracle, case.relaxation, **case.instance_data)
        expected = relax(
            map_parts(torch.Tensor.float, given), case.subject.oracle, case.relaxation, **case.instance_data
        )
        for (name, a), e in zip(named_tensors("the mean", answer), as_tuple(expected), strict=True):
            expect(a.dtype == dtype, f"{name} of {dtype} has dtype {a.dtype}")
            expect_close(a, e, 2 * torch.finfo(dtype).eps * (1 + e.abs().double()), f"{name} of {dtype}")


@LAWS("the padding does not matter, and comes back 0 with gradient 0", families=("normal", "ties"))
def padding(case: Case) -> None:
    masks = padding_masks(case)
    oracle, relaxation = case.subject.oracle, case.relaxation
    expected = relax(case.given, oracle, case.relaxation, **case.instance_data)
    leaves = []
    for t, m in zip(as_tuple(case.given), as_tuple(masks), strict=True):
        leaves.append(t.masked_fill(~m, torch.nan).requires_grad_())
    answer = relax(case.with_tensors(leaves).given, oracle, relaxation, **case.instance_data)
    expect_equal(answer, expected, "the mean with NaN in the padding")
    for (name, a), m in zip(
        named_tensors("the mean", answer), as_tuple(padding_masks(case, shared=False)), strict=True
    ):
        expect(not bool(((a != 0) & ~m).any()), f"{name} is not 0 in the padding")
    if all(a.requires_grad for a in as_tuple(answer)):
        torch.stack([a.square().sum() for a in as_tuple(answer)]).sum().backward()
        for (name, t), g in zip(named_tensors("theta", tuple(leaves)), leaves, strict=True):
            if g.grad is not None:
                expect(bool(g.grad.isfinite().all()), f"the gradient of {name} is not finite")
                expect(not bool((t.isnan() & (g.grad != 0)).any()), f"the gradient of {name} is not 0 in the padding")


@LAWS("CUDA tensors are answered on the device, as on the CPU", families=("normal", "forbidden"), dtypes=FLOAT)
def cuda(case: Case) -> None:
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA GPU here")
    if case.relaxation.is_stochastic:
        raise NotApplicable("a generator draws other noise on another device")
    oracle, relaxation = case.subject.oracle, case.relaxation
    expected = relax(case.given, oracle, relaxation, **case.instance_data)
    answer = relax(map_parts(lambda t: t.cuda(), case.given), oracle, relaxation, **case.instance_data)
    for name, t in named_tensors("the mean", answer):
        expect(t.is_cuda, f"{name} of CUDA tensors is on {t.device}")
    expect_close(answer, expected, rounding(case.dtype, 100.0), "the mean on CUDA")


# ----------------------------------------------------------------------------- shared steps


def solve(case: Case, theta: Parts | None = None) -> Solution:
    """The record for the case's potentials, or others of their form."""
    return case.relaxation.solve(case.oracle, case.theta if theta is None else theta)


def _solve(changed: Case) -> Solution:
    with trying(changed):
        return solve(changed)


def _fields(solution: Solution) -> dict[str, tuple[Any, int]]:
    """Fields that are there, by name, each with the place of its batch dimension."""
    every = {
        "the mean": (solution.mean, 0),
        "the value": (solution.value, 0),
        "the weights": (solution.weights, 1),
        "the gap": (solution.gap, 0),
        "converged": (solution.converged, 0),
        "the support": (solution.support, 1),
    }
    return {name: row for name, row in every.items() if row[0] is not None}


def _expect_form(case: Case, solution: Solution) -> None:
    first = as_tuple(case.theta)[0]
    for name, (value, batch_dim) in _fields(solution).items():
        parts = name in ("the mean", "the support")
        if parts and (
            isinstance(value, tuple) != isinstance(case.theta, tuple)
            or len(as_tuple(value)) != len(as_tuple(case.theta))
        ):
            fail(f"{name} must have the form of theta")
        for (label, t), like in zip(named_tensors(name, value), _likes(case, parts), strict=True):
            wanted = (*t.shape[:batch_dim], case.size, *(like if parts else ()))
            expect(t.shape == wanted, f"{label} must have shape {wanted}, got {tuple(t.shape)}")
            dtype = torch.bool if name == "converged" else first.dtype
            expect(t.dtype == dtype, f"{label} must have dtype {dtype}, got {t.dtype}")
            expect(t.device == first.device, f"{label} must be on {first.device}, got {t.device}")
            expect(not t.isnan().any(), f"{label} holds NaN")


def _likes(case: Case, parts: bool) -> Iterator[tuple[int, ...]]:
    yield from case.subject.event_shapes if parts else [()]
