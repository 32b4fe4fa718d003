"""Laws about every method of an oracle: what it returns, and that batches, memory and order do not matter."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from .cases import Case
from .compare import NotApplicable, expect, expect_close, expect_equal, fail, named_tensors, rounding, trying
from .law import LawBook
from .potentials import instance
from .queries import QUERIES, Answer, ask, queries_of

__all__ = ["LAWS"]

LAWS = LawBook()

ONE = ("normal",)
KINDS = ("normal", "ties", "zeros", "forbidden")


@LAWS(
    "every method returns θ's form, dtype and device with the full batch, whatever the batch size",
    families=("normal", "forbidden"),
)
def form(case: Case) -> None:
    for some in (case, case.rows([0])):
        with trying(some):
            for query in queries_of(some.oracle):
                ask(query, some.oracle, some.theta)


@LAWS("the empty batch has an empty answer", families=ONE)
def empty_batch(case: Case) -> None:
    nothing = case.rows([])
    with trying(nothing):
        for query in queries_of(nothing.oracle):
            ask(query, nothing.oracle, nothing.theta)


@LAWS("no answer holds NaN, at any scale and beside parts of −inf")
def no_nan(case: Case) -> None:
    for query in queries_of(case.oracle):
        for answer in ask(query, case.oracle, case.theta):
            expect(not answer.value.isnan().any(), f"{answer.name} holds NaN")


@LAWS("θ is neither written to, nor flipped to requires_grad, nor handed back", families=KINDS)
def input_untouched(case: Case) -> None:
    for query in queries_of(case.oracle):
        for needs_grad in (False, True):
            theta = map_parts(lambda t, needs=needs_grad: t.detach().clone().requires_grad_(needs), case.theta)
            before = [(t.detach().clone(), t._version) for t in as_tuple(theta)]
            answers = ask(query, case.oracle, theta)
            for (name, t), (values, version) in zip(named_tensors("theta", theta), before, strict=True):
                expect_equal(t, values, f"{name} after {query.name}")
                expect(t._version == version, f"{query.name} wrote into {name}")
                expect(t.requires_grad == needs_grad, f"{query.name} changed requires_grad of {name}")
                for answer in answers:
                    expect(not _share_memory(answer.value, t), f"{answer.name} lies in the memory of {name}")


@LAWS("the same question has the same answer every time, ties included", families=KINDS)
def repeatable(case: Case) -> None:
    _same_answers(case, lambda: (case.oracle, map_parts(torch.clone, case.theta)), "asked again", exactly=True)


@LAWS("non-contiguous potentials have the same answer", families=KINDS)
def strides(case: Case) -> None:
    _same_answers(case, lambda: (case.oracle, map_parts(_spread_out, case.theta)), "with non-contiguous potentials")


@LAWS(
    "an instance's answer does not depend on the other instances of its batch, nor on its place in it",
    families=(*KINDS, "large"),
)
def batch_independence(case: Case) -> None:
    order = [2, 0, 3, 0, 1] if case.size == 4 else list(reversed(range(case.size)))
    shuffled, single = case.rows(order), [case.rows([b]) for b in range(case.size)]
    for query in queries_of(case.oracle):
        if query.random:
            continue
        together = ask(query, case.oracle, case.theta)
        with trying(shuffled):
            mixed = ask(query, shuffled.oracle, shuffled.theta)
        alone = [ask(query, one.oracle, instance(case.theta, b)) for b, one in enumerate(single)]
        for i, answer in enumerate(together):
            if answer.batch_dim is not None:
                apart = torch.cat([answers[i].value for answers in alone], answer.batch_dim)
                _same(apart, answer, case, f"{answer.name} of instances {list(range(case.size))} alone")
                rows = torch.tensor(order, device=answer.value.device)
                moved = dataclasses.replace(answer, value=answer.value.index_select(answer.batch_dim, rows))
                _same(mixed[i].value, moved, case, f"{answer.name} of instances {order} in another batch")


@LAWS("oracle[rows] and oracle.repeat(n) carry the instance data of these rows along", families=ONE)
def rows_and_repeat(case: Case) -> None:
    if not case.instance_data:
        raise NotApplicable("no instance data is bound")
    oracle = case.oracle
    expected = ask(QUERIES[0], oracle, case.theta)
    mask = torch.arange(case.size) % 2 == 0
    index = torch.arange(case.size).flip(0)
    for rows in (slice(1, None), mask, index):
        actual = ask(QUERIES[0], oracle[rows], _rows_of(case.theta, rows, case.size))
        for a, e in zip(actual, expected, strict=True):
            expect_equal(a.value, e.value[rows], f"{a.name} over oracle[{rows}]")
    tiled = map_parts(lambda t: t.repeat(2, *[1] * (t.ndim - 1)) if t.shape[0] == case.size else t, case.theta)
    for a, e in zip(ask(QUERIES[0], oracle.repeat(2), tiled), expected, strict=True):
        expect_equal(a.value, torch.cat([e.value, e.value]), f"{a.name} over oracle.repeat(2)")


@LAWS(
    "an oracle takes the instance data that instance_ndim names, and without it answers or says what it needs",
    families=ONE,
)
def instance_data(case: Case) -> None:
    try:
        case.subject.oracle.bind(no_such_data=1)
    except TypeError:
        pass
    else:
        fail("bind(no_such_data=1) was accepted")
    if case.instance_data:
        with contextlib.suppress(InvalidInputError, TypeError):
            case.subject.probe({})


@LAWS("copies, deep copies and pickles of an oracle give the same answers", families=ONE)
def copies(case: Case) -> None:
    makers: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
    if _is_importable(type(case.subject.oracle)):
        makers.append(lambda oracle: pickle.loads(pickle.dumps(oracle)))
    for make in makers:
        twin = make(case.oracle)
        _same_answers(case, lambda twin=twin: (twin, case.theta), "of a copy", exactly=True)


# ----------------------------------------------------------------------------- shared steps


def _same_answers(case: Case, variant: Callable[[], tuple[Oracle, Parts]], how: str, exactly: bool = False) -> None:
    for query in queries_of(case.oracle):
        expected = ask(query, case.oracle, case.theta)
        for a, e in zip(ask(query, *variant()), expected, strict=True):
            if exactly:
                expect_equal(a.value, e.value, f"{a.name}, {how},")
            else:
                _same(a.value, e, case, f"{a.name}, {how},")


def _same(actual: Tensor, expected: Answer, case: Case, what: str) -> None:
    if expected.exact:
        expect_equal(actual, expected.value, what)
    else:
        expect_close(actual, expected.value, _room(expected, case), what)


def _room(answer: Answer, case: Case) -> Tensor:
    """For sums that another order of the batch may round otherwise."""
    sizes = [t.abs().nan_to_num(posinf=0).flatten(1).sum(1).amax() for t in as_tuple(case.theta)]
    size = answer.value.abs().nan_to_num(posinf=0)
    others = [dim for dim in range(size.ndim) if dim != answer.batch_dim]
    largest = size.amax(others, keepdim=True) if size.numel() and others else size
    return rounding(case.dtype, 1 + torch.stack(sizes).sum() + largest)


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _spread_out(t: Tensor) -> Tensor:
    """The same values, no two of them neighbours in memory, and the dimensions in reverse order there."""
    backwards = list(reversed(range(t.ndim)))
    wide = t.new_full((*(t.shape[d] for d in backwards), 2), torch.nan)
    wide[..., 0] = t.permute(backwards)
    return wide[..., 0].permute(backwards)


def _rows_of(theta: Parts, rows: Any, size: int) -> Parts:
    return map_parts(lambda t: t[rows] if t.shape[0] == size else t, theta)


def _is_importable(cls: type) -> bool:
    """Whether pickle can find the class again: not if it was defined inside a function."""
    if "." in cls.__qualname__:
        return False
    module = importlib.import_module(cls.__module__) if cls.__module__ != "__main__" else __import__("__main__")
    return getattr(module, cls.__name__, None) is cls
