"""Laws about input as users pass it, through the public functions: shapes, dtypes, padding, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
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
from .compare import NotApplicable, expect, expect_close, expect_equal, fail, named_tensors, rounding, trying
from .law import LawBook
from .potentials import instance
from .queries import queries_of

__all__ = ["LAWS", "expect_leading_dims", "expect_names", "padding_masks", "without_structure"]

LAWS = LawBook()

ONE = ("normal",)
FLOAT = (torch.float32,)


@LAWS(
    "an instance without any structure of finite score is an InfeasibleError that names its batch index", families=ONE
)
def infeasible(case: Case) -> None:
    blocked = without_structure(case)
    last = blocked.size - 1
    for query in queries_of(blocked.oracle):
        try:
            with trying(blocked), torch.no_grad():
                answer = query.call(blocked.oracle, blocked.theta)
        except InfeasibleError as error:
            expect_names(error, last, query.name)
        else:
            if query.name == "topk" and not bool(answer[2][:, last].any()):
                continue  # all marked as not valid: as good an answer
            fail(
                f"{query.name} answers at batch index {last}, where every part is −inf; "
                "structinf.validation.check_feasible, given the best scores or the sums, raises what is wanted",
                blocked,
            )


@LAWS("integers, NaN and +inf are refused with what and where", families=ONE)
def refusals(case: Case) -> None:
    oracle = case.subject.oracle
    try:
        relax(map_parts(lambda t: t.long(), case.given), oracle, MAP(), **case.instance_data)
    except TypeError as error:
        expect("int64" in str(error), f"the error about integer potentials does not say so: {error}")
    else:
        fail("integer potentials were accepted")
    # Where is it never padding? There the best structure has a part.
    y = case.oracle.argmax(case.theta)
    for i, (t, z) in enumerate(zip(as_tuple(case.given), as_tuple(y), strict=True)):
        used = (z != 0).nonzero()
        if not len(used):
            continue
        place = used[-1].tolist()
        if t.shape[0] == 1:
            place[0] = 0
        for value, word in ((torch.nan, "NaN"), (torch.inf, "inf")):
            tensors = [s.clone() for s in as_tuple(case.given)]
            tensors[i][tuple(place)] = value
            spoilt = case.with_tensors(tensors)
            try:
                with trying(spoilt):
                    relax(spoilt.given, oracle, MAP(), **case.instance_data)
            except InvalidInputError as error:
                told = word in str(error) and (t.shape[0] == 1 or f"batch index {place[0]}" in str(error))
                expect(told, f"the error does not say {word} and batch index {place[0]}: {error}")
            else:
                fail(f"a potential of {word} was accepted")


@LAWS("half precision is answered in half precision, as float32 would", families=("normal", "forbidden"), dtypes=FLOAT)
def half_precision(case: Case) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        given = map_parts(lambda t, d=dtype: t.to(d), case.given)
        for relaxation, answer in public_answers(case, given):
            expected = relax(
                map_parts(torch.Tensor.float, given), case.subject.oracle, relaxation, **case.instance_data
            )
            for (name, a), e in zip(
                named_tensors(f"the {relaxation.label()} of {dtype}", answer), as_tuple(expected), strict=True
            ):
                expect(a.dtype == dtype, f"{name} has dtype {a.dtype}")
                expect_close(a, e, 2 * torch.finfo(dtype).eps * (1 + e.abs().double()), name)


@LAWS("any number of leading dimensions may be the batch", families=("normal", "forbidden"))
def leading_dims(case: Case) -> None:
    for relaxation, flat in public_answers(case, case.given):
        expect_leading_dims(case, relaxation, flat, rounding(case.dtype, 100.0))


@LAWS("parts in the padding come back 0, whatever lies there, NaN included", families=("normal", "ties"))
def padding(case: Case) -> None:
    _expect_padding_is_named(case)
    for (name, m), t in zip(
        named_tensors("the mask from valid_parts", padding_masks(case)), as_tuple(case.theta), strict=True
    ):
        expect(m.dtype == torch.bool, f"{name} must be bool, got {m.dtype}")
        expect(m.shape[1:] == t.shape[1:] and len(m) in (1, case.size), f"{name} has shape {tuple(m.shape)}")
    full = padding_masks(case, shared=False)
    for query in queries_of(case.oracle):
        with torch.no_grad():
            answer = query.call(case.oracle, case.theta)
        if query.pieces[0].of == "parts":
            parts = answer if len(query.pieces) == 1 else answer[0]
            for (name, t), m in zip(named_tensors(query.name, parts), as_tuple(full), strict=True):
                expect(not bool(((t != 0) & ~m).any()), f"{name} is not 0 in the padding")
    for filling in (torch.nan, torch.inf, -torch.inf, 1e30):
        masks = as_tuple(padding_masks(case))
        other = case.with_tensors(
            [t.masked_fill(~m, filling) for t, m in zip(as_tuple(case.given), masks, strict=True)]
        )
        with trying(other):
            answers = list(public_answers(other, other.given))
        for (relaxation, expected), (_, answer) in zip(public_answers(case, case.given), answers, strict=True):
            expect_equal(answer, expected, f"{relaxation.label()} with {filling} in the padding")


@LAWS("lengths may be a list or any integer dtype, and all be shorter than the padding", families=ONE, dtypes=FLOAT)
def lengths(case: Case) -> None:
    if "lengths" not in case.instance_data:
        raise NotApplicable("no lengths are bound")
    given = case.instance_data["lengths"]
    rest = {key: value for key, value in case.instance_data.items() if key != "lengths"}
    for relaxation, expected in public_answers(case, case.given):
        for form in (given.tolist(), given.to(torch.int32), given.to(torch.int64), given.to(torch.uint8)):
            answer = relax(case.given, case.subject.oracle, relaxation, lengths=form, **rest)
            kind = form.dtype if isinstance(form, Tensor) else "a list"
            expect_equal(answer, expected, f"{relaxation.label()} with lengths as {kind}")
    shortest = int(given.flatten(1).sum(1).argmin()) if given.ndim > 1 else int(given.argmin())
    short = case.rows([shortest])
    for relaxation, answer in public_answers(short, short.given):
        together = relax(case.given, case.subject.oracle, relaxation, **case.instance_data)
        expected = map_parts(lambda t: t[shortest : shortest + 1], together)
        expect_close(
            answer, expected, rounding(case.dtype, 100.0), f"{relaxation.label()} of the shortest instance alone"
        )
    for wrong in (given.double() + 0.5, torch.full_like(given, -1), torch.full_like(given, 10_000)):
        try:
            relax(case.given, case.subject.oracle, MAP(), lengths=wrong, **rest)
        except InvalidInputError as error:
            expect("lengths" in str(error), f"the error about wrong lengths does not name them: {error}")
        else:
            fail(f"lengths of {wrong.flatten()[0].item()} were accepted; call structinf.validation.check_lengths")


@LAWS("CUDA tensors are answered on the device, as on the CPU", families=("normal", "forbidden"), dtypes=FLOAT)
def cuda(case: Case) -> None:
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA GPU here")
    given = map_parts(lambda t: t.cuda(), case.given)
    for (relaxation, expected), (_, answer) in zip(
        public_answers(case, case.given), public_answers(case, given), strict=True
    ):
        for name, t in named_tensors(relaxation.label(), answer):
            expect(t.is_cuda, f"{name} of CUDA tensors is on {t.device}")
        expect_close(answer, expected, rounding(case.dtype, 100.0), f"{relaxation.label()} on CUDA")


# ----------------------------------------------------------------------------- shared steps


def without_structure(case: Case) -> Case:
    """The case with −inf in every part of its last instance; NotApplicable if that leaves a structure."""

    def in_last_row(t: Tensor, value: float) -> Tensor:
        t = t.clone()
        if t.shape[0] == case.size:
            t[-1] = value
        return t

    if case.oracle.always_feasible:
        raise NotApplicable("the oracle has a smaller structure for any parts of −inf")
    tensors = as_tuple(case.given)
    probe = case.with_tensors([in_last_row(torch.zeros_like(t), -1.0) for t in tensors])
    if bool(inner_product(probe.theta, probe.oracle.argmax(probe.theta))[-1] >= 0):
        raise NotApplicable("some structure uses no part that could be forbidden")
    return case.with_tensors([in_last_row(t, -torch.inf) for t in tensors])


def expect_names(error: InfeasibleError, index: int, name: str) -> None:
    """The error from ``name`` is about the instance ``index``, and says so."""
    received = error.batch_index
    expect(received == index, f"InfeasibleError from {name} has batch_index {received}, the instance is {index}")
    expect(str(index) in str(error), f"InfeasibleError from {name} does not name batch index {index}: {error}")


def expect_leading_dims(case: Case, relaxation: Relaxation, flat: Parts, room: Tensor) -> None:
    """The answer ``flat`` comes also with two batch dimensions and with none; shared tensors may have ones or none."""
    size, oracle = case.size, case.subject.oracle

    def grouped(t: Tensor) -> Tensor:
        return t.reshape(2, size // 2, *t.shape[1:]) if t.shape[0] == size else t[None]

    if size % 2 == 0:
        instance_data = {key: grouped(value) for key, value in case.instance_data.items()}
        answer = relax(
            map_parts(grouped, case.given), oracle, relaxation, generator=case.is_stochastic(), **instance_data
        )
        shaped = map_parts(lambda t: t.reshape(2, size // 2, *t.shape[1:]), flat)
        expect_close(answer, shaped, room, f"{relaxation.label()} with two batch dimensions")
    if not relaxation.is_stochastic:  # the noise of a batch of one is another
        alone = case.rows([0])
        instance_data = {key: value[0] for key, value in alone.instance_data.items()}
        answer = relax(map_parts(lambda t: t[0], alone.given), oracle, relaxation, **instance_data)
        expect_close(answer, map_parts(lambda t: t[0], flat), room, f"{relaxation.label()} without batch dimensions")
    bare = map_parts(lambda t: t if t.shape[0] == size else t[0], case.given)
    try:
        answer = relax(bare, oracle, relaxation, generator=case.is_stochastic(), **case.instance_data)
    except InvalidInputError:
        return  # an oracle of several forms may not be able to tell which one this is
    expect_close(answer, flat, room, f"{relaxation.label()} with shared tensors without batch dimensions")


def _expect_padding_is_named(case: Case) -> None:
    """valid_parts leaves out no part that a structure uses, and is not None if lengths put some out of use."""
    masks = case.oracle.valid_parts(map_parts(lambda t: t.expand(case.size, *t.shape[1:]), case.theta))
    if not case.instance_data or not isinstance(case.oracle, Enumerable):
        return
    for b, _, listed in case.enumerations():
        used = map_parts(lambda y: (y != 0).any(0), listed.structures)
        if masks is not None:
            for (name, m), u in zip(named_tensors("the mask from valid_parts", masks), as_tuple(used), strict=True):
                expect(
                    not bool((u & ~instance(m, b)[0].cpu()).any()),
                    f"{name} leaves out a part in use at batch index {b}",
                )
        elif "lengths" in case.instance_data and case.subject.usable is not None:
            idle = [bool((u & ~v).any()) for u, v in zip(as_tuple(case.subject.usable), as_tuple(used), strict=True)]
            expect(not any(idle), f"valid_parts is None although lengths put parts out of use at batch index {b}")


def padding_masks(case: Case, shared: bool = True) -> Parts:
    """Which parts are inside the lengths: a row for each instance, and for tensors that all ``shared`` one or as many.

    NotApplicable if all are.
    """

    def rows(t: Tensor) -> Tensor:
        return t if shared else t.expand(case.size, *t.shape[1:])

    masks = case.oracle.valid_parts(map_parts(rows, case.theta)) if case.instance_data else None
    if masks is None:
        raise NotApplicable("no part is padding: no instance data is bound, or valid_parts returns None")
    if not shared:
        return masks
    return map_parts(lambda m, t: m.any(0, keepdim=True) if t.shape[0] == 1 else m, masks, case.theta)


def public_answers(case: Case, given: Parts) -> Iterator[tuple[Relaxation, Any]]:
    """The structure, and the mean if there is one, of ``given`` as users get them."""
    for relaxation in (MAP(), Marginals()):
        if isinstance(relaxation, MAP) or isinstance(case.subject.oracle, GibbsOracle):
            yield relaxation, relax(given, case.subject.oracle, relaxation, **case.instance_data)
