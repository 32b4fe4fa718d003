"""Checks of the structures of an oracle: the best structure, the list of all structures, and labels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..oracle import EntropyProjectable, Enumerable, Factorized, KBest, Oracle, Projectable
from ..parts import Parts, as_tuple, inner_product, map_parts, pack_like
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, attach_case_to_errors, expect, expect_close, expect_equal, fail, named_tensors
from .enumeration import Enumeration, nearest_point_of_hull, row_group_ids, rows_of_parts, to_float64_cpu
from .finite_differences import expect_derivative
from .theta_families import instance, magnitude

__all__ = ["ORACLE_CHECKS", "structures_of"]

ORACLE_CHECKS: list[Check] = []

NORMAL = ("normal",)


@add_check(ORACLE_CHECKS, ability=Enumerable, families=NORMAL)
def enumeration(case: Case) -> None:
    """Enumerate lists every structure once, in float64."""
    masks = case.oracle.valid_parts(case.theta)
    for b, _, listed in case.enumerations():
        shapes = case.target.event_shapes
        for name, t, shape in named_tensors("enumerate's result", listed.structures, shapes):
            expect(t.dtype == torch.float64, f"{name} must be float64, got {t.dtype}")
            expect(t.shape[1:] == shape, f"{name} must have shape (N, *{shape}), got {tuple(t.shape)}")
        rows = rows_of_parts(listed.structures)
        expect(len(rows) > 0, f"enumerate lists no structure at batch index {b}")
        if masks is not None:
            for t, mask in zip(as_tuple(listed.structures), as_tuple(masks), strict=True):
                padding = t[:, ~mask[min(b, len(mask) - 1)]]
                expect(
                    not padding.any(),
                    f"enumerate lists structures with parts outside valid_parts at batch index {b}; "
                    "it must list the structures of the instance's own length, padded with 0",
                )
        expect(len(row_group_ids(rows).unique()) == len(rows), f"enumerate lists a structure twice at batch index {b}")


@add_check(ORACLE_CHECKS, ability=Enumerable, families=NORMAL)
def known_set(case: Case) -> None:
    """The structures are the set that known_set names."""
    oracle = case.oracle
    if (name := oracle.known_set) is None:
        raise NotApplicable("the oracle's known_set is None")
    masks = as_tuple(masks)[0] if (masks := oracle.valid_parts(case.theta)) is not None else None
    for b, _, listed in case.enumerations():
        rows = rows_of_parts(listed.structures)
        n = rows.shape[1] if masks is None else int(masks[min(b, len(masks) - 1)].sum())
        ones: int | None = {"one_of_n": 1, "all_bits": None, "k_of_n": _size_of(oracle, b)}[name]
        count = 2**n if ones is None else math.comb(n, ones)
        is_binary = bool(((rows == 0) | (rows == 1)).all())
        expect(
            is_binary and len(rows) == count and (ones is None or bool((rows.sum(1) == ones).all())),
            f"known_set is {name!r}, so the {n} parts at batch index {b} must have {count} structures of 0 and 1"
            + ("" if ones is None else f", with {ones} parts of 1"),
        )


def _size_of(oracle: Oracle, index: int) -> int | None:
    """Return the size k of the structures of an instance, None for oracles without k."""
    data = oracle.bound.get("k")
    return getattr(oracle, "k", None) if data is None else int(data[index])


@add_check(ORACLE_CHECKS)
def vertex(case: Case) -> None:
    """Argmax returns a structure, never a mixture, even on ties."""
    y = case.oracle.argmax(case.theta)
    for name, t in named_tensors("the structure", y):
        expect(t.isfinite().all(), f"{name} from argmax holds NaN or infinity")
    for b, _, listed in case.enumerations():
        if listed.position(instance(y, b)) is None:
            fail(f"argmax at batch index {b} is none of the {len(listed)} structures: {_as_text(instance(y, b))}")
    if not isinstance(case.oracle, Enumerable):
        _expect_no_mixture(case, y)


@add_check(ORACLE_CHECKS, families=("normal", "ties"))
def indicators(case: Case) -> None:
    """The parts of structures are 0 or 1 if has_binary_parts returns True."""
    if not case.oracle.has_binary_parts(case.theta):
        raise NotApplicable("the oracle's has_binary_parts returns False")
    found = [case.oracle.argmax(case.theta), *(listed.structures for _, _, listed in case.enumerations())]
    for name, t in (pair for y in found for pair in named_tensors("a structure", y)):
        wrong = t[(t != 0) & (t != 1)]
        expect(not len(wrong), f"{name} has a part of {wrong[0].item() if len(wrong) else None}")


@add_check(ORACLE_CHECKS)
def optimal(case: Case) -> None:
    """No structure scores higher than the structure from argmax, at any scale."""
    theta = to_float64_cpu(case.theta)
    y = to_float64_cpu(case.oracle.argmax(case.theta))
    found = inner_product(theta, y)
    # The best listed structure comes first.
    for other in itertools.islice(structures_of(case), 1 if isinstance(case.oracle, Enumerable) else None):
        scores = inner_product(theta, other)
        tolerance = case.rounding_error(magnitude(theta, y) + magnitude(theta, other))
        for b in (scores > found + tolerance).nonzero()[:, 0].tolist():
            shown = f"but {_as_text(instance(other, b))} scores {scores[b].item():.9g}"
            fail(f"argmax at batch index {b} scores {found[b].item():.9g}, {shown}")


@add_check(ORACLE_CHECKS, families=("normal",), dtypes=(torch.float64,))
def optimal_among_answers(case: Case) -> None:
    """No structure that argmax returns for other scores scores higher than the structure from argmax."""
    if case.instance_data:
        raise NotApplicable("instances with different data have different structures")
    count, generator = 200, case.generator("optimal_among_answers")
    shapes = [t.shape[1:] for t in as_tuple(case.theta)]
    drawn = [torch.randn(count, *shape, generator=generator, dtype=torch.float64, device="cpu") for shape in shapes]
    theta = pack_like([case.target.to_valid_sign(t) for t in drawn], case.theta)
    y = case.target.oracle.argmax(theta)
    flat_theta, flat_y = (torch.cat([t.flatten(1) for t in as_tuple(parts)], 1) for parts in (theta, y))
    scores = flat_theta @ flat_y.T  # (scores, structures)
    best, other = scores.max(1)
    tolerance = case.rounding_error((flat_theta.abs() @ flat_y.abs().T).amax(1))
    for i in (best > scores.diagonal() + tolerance).nonzero()[:, 0].tolist():
        shown = f"{_as_text(instance(y, int(other[i])))}, its answer for other scores, has {best[i].item():.9g}"
        with attach_case_to_errors(case.with_tensors(as_tuple(instance(theta, i)))):
            fail(f"argmax of {_as_text(instance(theta, i))} has the score {scores[i, i].item():.9g}, but {shown}")


@add_check(ORACLE_CHECKS, families=("forbidden", "forbidden ties", "forbidden large"))
def forbidden(case: Case) -> None:
    """Argmax returns no structure with a part of score −inf."""
    y = case.oracle.argmax(case.theta)
    for name, t, z in named_tensors("theta", case.theta, y):
        used = (t.isneginf() & (z != 0)).nonzero()
        if len(used):
            b, *part = used[0].tolist()
            fail(f"argmax uses part {tuple(part)} of {name} at batch index {b}, which is −inf")


@add_check(ORACLE_CHECKS, ability=KBest, families=("normal", "ties", "forbidden ties", "forbidden large"))
def k_best(case: Case) -> None:
    """The k best structures are distinct and sorted with their scores; if fewer exist, the list has fewer."""
    assert isinstance(case.oracle, KBest)
    for k in (1, 4):
        structures, scores, valid = case.oracle.topk(case.theta, k)
        _expect_k_best(case, to_float64_cpu(structures), scores.double(), valid, k)
    for b, theta, enumeration in case.enumerations():
        if len(enumeration) > 200:
            continue
        k, allowed = len(enumeration) + 2, int(enumeration.allowed(theta).sum())
        _, scores, valid = case.rows([b]).oracle.topk(instance(case.theta, b), k)  # type: ignore[attr-defined]
        num_found = int(valid.sum())
        expect(num_found == allowed, f"topk(theta, {k}) finds {num_found} of {allowed} structures at batch index {b}")
        best = enumeration.scores(theta).sort(descending=True).values[:allowed]
        tolerance = case.rounding_error(enumeration.magnitude(theta))
        expect_close(scores[:allowed, 0], best, tolerance, f"scores of all structures from topk at batch index {b}")


def _expect_k_best(case: Case, structures: Parts, scores: Tensor, valid: Tensor, k: int) -> None:
    theta = to_float64_cpu(case.theta)
    expect(valid[0].all(), "valid[0] from topk is False although a structure exists")
    expect((valid[1:] <= valid[:-1]).all(), "valid from topk is False before it is True")
    expect((scores[~valid] == -torch.inf).all(), "a score from topk is not −inf where valid is False")
    for name, t in named_tensors("the structure from topk", structures):
        expect((t[~valid] == 0).all(), f"{name} is not 0 where valid is False")
    for i in range(k):
        y = map_parts(lambda t, i=i: t[i], structures)
        size = magnitude(theta, y) + 1e-30
        tolerance = case.rounding_error(size)
        expected = inner_product(theta, y).where(valid[i], -torch.inf)
        expect_close(scores[i], expected, tolerance, f"scores[{i}] from topk (the score of its structure is expected)")
        if i:
            is_descending = (scores[i] <= scores[i - 1] + tolerance) | ~valid[i]
            expect(is_descending.all(), f"scores[{i}] from topk is above scores[{i - 1}]")
    for b in range(case.size):
        rows = rows_of_parts(map_parts(lambda t, b=b: t[valid[:, b], b], structures))
        expect(len(row_group_ids(rows).unique()) == len(rows), f"topk lists a structure twice at batch index {b}")
        enumeration = case.enumeration(b)
        if enumeration is None:
            best = inner_product(theta, to_float64_cpu(case.oracle.argmax(case.theta)))[b : b + 1]
        else:
            best = enumeration.scores(instance(theta, b)).sort(descending=True).values[:k]
            best = best[best > -torch.inf]
        count = min(len(best), k)
        tolerance = case.rounding_error(magnitude(theta, map_parts(lambda t: t[0], structures))[b] + best.abs().max())
        expect_close(scores[:count, b], best[:count], tolerance, f"scores from topk at batch index {b}")


@add_check(ORACLE_CHECKS, ability=Factorized, families=NORMAL)
def factorization(case: Case) -> None:
    """The tables of θ have the cardinalities of factorization, and structures give each variable one value."""
    assert isinstance(case.oracle, Factorized)
    cardinalities, factors = case.oracle.factorization()
    tables = as_tuple(case.theta)
    expect(isinstance(case.theta, tuple), "theta is no tuple of tables")
    expect(len(factors) == len(tables), f"factorization has {len(factors)} factors for {len(tables)} tables of theta")
    for k, (table, factor) in enumerate(zip(tables, factors, strict=True)):
        shape = tuple(cardinalities[v] for v in factor)
        expect(len(set(factor)) == len(factor) > 0, f"the variables of factor {k} are not distinct, or none: {factor}")
        expect(table.shape[1:] == shape, f"theta[{k}] has shape {tuple(table.shape)}, factorization expects {shape}")
    expect({v for factor in factors for v in factor} == set(range(len(cardinalities))), "a variable has no factor")
    for b, _, listed in case.enumerations():
        values: dict[int, Tensor] = {}
        for k, (table, factor) in enumerate(zip(as_tuple(listed.structures), factors, strict=True)):
            expect((table.flatten(1).sum(1) == 1).all(), f"a structure has no single entry in table {k}")
            places = table.flatten(1).argmax(1)
            for v in reversed(factor):
                value, places = places % cardinalities[v], places // cardinalities[v]
                same = torch.equal(values.setdefault(v, value), value)
                expect(same, f"a structure gives variable {v} another value in table {k} at batch index {b}")
        count = math.prod(cardinalities)
        expect(len(listed) == count, f"there are {len(listed)} structures for {count} assignments of values")


@add_check(ORACLE_CHECKS, ability=Projectable, families=("normal", "ties", "small", "forbidden"))
def projection(case: Case) -> None:
    """The projection is the nearest point of conv(Y), to 1e-6, and differentiable by autograd."""
    assert isinstance(case.oracle, Projectable)
    mean = case.oracle.project(case.theta)
    for b, theta, enumeration in case.enumerations():
        size = torch.stack([t.abs().nan_to_num(posinf=0).amax() for t in as_tuple(theta)]).amax()
        tolerance = 1e-6 + case.rounding_error(10 + size)
        expect_close(instance(mean, b), enumeration.project(theta), tolerance, f"the projection at batch index {b}")
    if case.dtype == torch.float64 and not _has_ties(case.theta):
        expect_derivative(case.oracle.project, case.theta, case.generator(), "project")


@add_check(ORACLE_CHECKS, ability=EntropyProjectable, families=("normal", "ties", "small", "forbidden"))
def entropy_projection(case: Case) -> None:
    """The mean of largest entropy is the best point of conv(Y), and differentiable by autograd."""
    assert isinstance(case.oracle, EntropyProjectable)
    for binary in (False, True):
        project = functools.partial(case.oracle.project_entropy, binary=binary)
        mean = project(case.theta)
        for b, theta, enumeration in case.enumerations():
            _expect_most_entropy(case, rows_of_parts(instance(mean, b))[0], theta, enumeration, binary, b)
        if case.dtype == torch.float64 and not _has_ties(case.theta):
            expect_derivative(project, case.theta, case.generator(), f"project_entropy(binary={binary})")


def _expect_most_entropy(
    case: Case, mean: Tensor, theta: Parts, enumeration: Enumeration, binary: bool, b: int
) -> None:
    """Check that a point is best: the objective decreases from the point towards every structure."""
    rows = rows_of_parts(enumeration.structures)[enumeration.allowed(theta)]
    inside = nearest_point_of_hull(rows, mean)
    what = f"project_entropy(binary={binary}) at batch index {b}"
    expect_close(mean, inside, 1e-6 + case.rounding_error(10.0), f"{what} (the nearest point of conv(Y) is expected)")
    used = (rows != mean).any(0)  # other parts are equal in all structures
    scores, mu, rows = rows_of_parts(theta)[0][used], mean[used], rows[:, used]
    slope = scores - 1 - mu.log() + (1 + (1 - mu).log() if binary else 0)
    gain = ((rows - mu) @ slope).max() if len(mu) else 0.0
    tolerance = 1e-6 + case.rounding_error((scores.abs() + 2 + (1 / (1 - mu) if binary else 0)).sum())
    expect(gain <= tolerance, f"{what} is not best: towards a structure, the objective rises by {float(gain):.3g}")


@add_check(ORACLE_CHECKS, families=NORMAL)
def readout(case: Case) -> None:
    """Readout is linear, and readout_transpose is its transpose."""
    generator = case.generator("readout")
    y, z = (_noise(case, generator) for _ in range(2))
    both = case.oracle.readout(map_parts(lambda a, b: 2 * a - b, y, z))
    apart = map_parts(lambda a, b: 2 * a - b, case.oracle.readout(y), case.oracle.readout(z))
    tolerance = case.rounding_error(10.0)
    expect_close(both, apart, tolerance, "readout(2y − z) against 2 readout(y) − readout(z)")
    r = map_parts(lambda t: torch.randn(t.shape, generator=generator, dtype=torch.float64, device="cpu").to(t), both)
    back = case.oracle.readout_transpose(r, case.theta)
    for name, t, like in named_tensors("readout_transpose's result", back, y):
        expect(t.shape == like.shape, f"{name} must have shape {tuple(like.shape)}, got {tuple(t.shape)}")
    sizes = inner_product(map_parts(torch.abs, case.oracle.readout(y)), map_parts(torch.abs, r))
    expect_close(
        inner_product(y, back),
        inner_product(case.oracle.readout(y), r),
        case.rounding_error(1 + sizes),
        "⟨y, Rᵀr⟩ against ⟨Ry, r⟩",
    )


@add_check(ORACLE_CHECKS, families=NORMAL)
def hamming_cost(case: Case) -> None:
    """The Hamming cost is 0 for the gold structure, and at least 0 for every other structure."""
    gold = case.oracle.argmax(case.theta)
    try:
        cost = to_float64_cpu(case.oracle.hamming_cost(gold))
    except UnsupportedError:
        raise NotApplicable("the oracle has no Hamming cost") from None
    own = inner_product(cost, to_float64_cpu(gold))
    for other in structures_of(case):
        tolerance = case.rounding_error(magnitude(cost, other) + own.abs())
        expect(
            bool((inner_product(cost, other) - own >= -tolerance).all()),
            "hamming_cost makes some structure cheaper than the gold one",
        )


@add_check(ORACLE_CHECKS, families=("normal", "ties"))
def labels(case: Case) -> None:
    """Encode and decode are inverse functions, and labels out of range raise an error."""
    try:
        found = case.oracle.decode(case.oracle.argmax(case.theta))
        case.oracle.encode(found, case.theta)
    except UnsupportedError:
        raise NotApplicable("the oracle has no integer labels") from None
    for y in structures_of(case):
        y = map_parts(lambda t, like: t.to(like), y, case.theta)
        found = case.oracle.decode(y)
        expect(not (found.is_floating_point() or found.is_complex()), f"decode must return integers, got {found.dtype}")
        ndim = case.oracle.label_ndim
        expect(
            found.shape[:1] == (case.size,) and found.ndim == ndim + 1,
            f"decode must return ({case.size},) and {ndim} (label_ndim) more dimensions, got {tuple(found.shape)}",
        )
        again = case.oracle.encode(found, case.theta)
        for name, t, like in named_tensors("encode's result", again, case.theta):
            expect(t.dtype == like.dtype, f"{name} must have θ's dtype, got {t.dtype}")
        expect_equal(again, y, "encode(decode(y))")
    try:
        case.oracle.encode(torch.full_like(found, 10_000), case.theta)
    except InvalidInputError:
        return
    fail("labels of 10000 were accepted")


@add_check(ORACLE_CHECKS, families=("normal", "ties"))
def membership(case: Case) -> None:
    """The method contains accepts the structures and, if parts are 0 or 1, rejects midpoints between them."""
    last: Parts | None = None
    for y in structures_of(case):
        y = map_parts(lambda t, like: t.to(like), y, case.theta)
        found = case.oracle.contains(y)
        if found is None:
            raise NotApplicable("contains is undefined")
        is_mask = isinstance(found, Tensor) and found.dtype == torch.bool and found.shape == (case.size,)
        expect(is_mask, f"contains must return a bool tensor ({case.size},) or None, got {found!r}")
        expect(bool(found.all()), "contains rejects a structure")
        if last is not None and case.oracle.has_binary_parts(case.theta):
            between = map_parts(lambda t, other: (t + other) / 2, y, last)
            differs = torch.stack([(t % 1 != 0).flatten(1).any(1) for t in as_tuple(between)]).any(0)
            accepted = case.oracle.contains(between)
            expect(accepted is None or not bool((accepted & differs).any()), "contains accepts a part of 0.5")
        last = y


# ----------------------------------------------------------------------------- shared steps


def structures_of(case: Case) -> Iterator[Parts]:
    """Yield batches of structures (B, *event) in float64: all structures, or 30 structures from argmax without a list.

    From a list of more than 200 structures, yield the best 100 and a regular selection of the others.
    """
    if not isinstance(case.oracle, Enumerable):
        yield from (to_float64_cpu(case.structure_near(i)) for i in range(30))
        return
    ordered = [_best_and_others(listed, theta) for _, theta, listed in case.enumerations()]
    for i in range(max(len(as_tuple(rows)[0]) for rows in ordered)):
        chosen = [map_parts(lambda t: t[i % len(t)], rows) for rows in ordered]  # noqa: B023
        yield map_parts(lambda *rows: torch.stack(rows), *chosen)


def _best_and_others(listed: Enumeration, theta: Parts) -> Parts:
    best, rest = listed.scores(theta).argsort(descending=True).tensor_split([100])
    chosen = torch.cat([best, rest[:: max(1, math.ceil(len(rest) / 100))]])
    return map_parts(lambda t: t[chosen], listed.structures)


def _noise(case: Case, generator: torch.Generator) -> Parts:
    return map_parts(
        lambda t: torch.randn(case.size, *t.shape[1:], generator=generator, dtype=torch.float64, device="cpu").to(t),
        case.theta,
    )


def _has_ties(theta: Parts) -> bool:
    return any(bool((t == t.round())[~t.isneginf()].any()) for t in as_tuple(theta))


def _as_text(y: Parts) -> str:
    shown = ", ".join(str(t[0].tolist()) for t in as_tuple(y))
    return f"({shown})" if isinstance(y, tuple) else shown


def _expect_no_mixture(case: Case, y: Parts) -> None:
    """Without a list of all structures, check that y is best in the direction of y, and not a mixture."""
    indicator = [bool(((t == 0) | (t == 1)).all()) for t in as_tuple(y)]
    if any(indicator):
        # Among 0/1 vectors y', only y' = y maximizes ⟨2y − 1, y'⟩. For costs, all y' ≤ y maximize ⟨y − 1, y'⟩.
        costs = case.oracle.requires_nonpositive_theta
        gain, direction = (1, "y − 1") if costs else (2, "2y − 1")
        own = [gain * t - 1 if flag else torch.zeros_like(t) for t, flag in zip(as_tuple(y), indicator, strict=True)]
        again = case.oracle.argmax(case.with_tensors(own).theta)
        what = (
            f"for y = argmax(theta), only y is best at the scores {direction}, but argmax returns another structure. "
        )
        what += "Does argmax return means, or minimise? Its result"
        for name, a, t, flag in named_tensors(what, again, y, indicator):
            if flag:
                expect_equal(a, a * t if costs else t, name)
    if all(bool((t == t.round()).all()) for t in as_tuple(y)):
        return
    kept = 0
    for i in range(3):
        generator = case.generator(i)
        moved = [
            t * (1 + 1e-5 * torch.randn(t.shape, generator=generator, dtype=torch.float64, device="cpu").to(t))
            for t in as_tuple(case.theta)
        ]
        again = as_tuple(case.oracle.argmax(case.with_tensors(moved).theta))
        kept += all(torch.equal(a, t) for a, t in zip(again, as_tuple(y), strict=True))
    expect(kept, "argmax returns fractions that change with every small change of θ: a mixture, not a structure")
