"""Checks of transport polytopes: the row and column sums common to all structures."""

from __future__ import annotations

import torch
from torch import Tensor

from ..oracle import TransportPolytope
from ..parts import Parts
from .cases import Case
from .check import Check, add_check
from .comparisons import expect, expect_close, expect_equal
from .structure_checks import structures_of

__all__ = ["ORACLE_CHECKS"]

ORACLE_CHECKS: list[Check] = []

SOME_FAMILIES = ("normal", "ties", "forbidden")


@add_check(ORACLE_CHECKS, ability=TransportPolytope, families=SOME_FAMILIES)
def margins(case: Case) -> None:
    """Margins are at least 0, in the dtype of θ or float64, per instance or shared, and independent of the scores."""
    batch, n, m = _theta(case).shape
    found = _margins(case)
    for (name, t), shapes in zip(found.items(), ([(batch, n), (1, n)], [(batch, m), (1, m)], [(batch,)]), strict=True):
        if t is None:
            continue
        expect(tuple(t.shape) in shapes, f"{name} must have shape {shapes[0]} or {shapes[-1]}, got {tuple(t.shape)}")
        expect(t.dtype in (case.dtype, torch.float64), f"{name} must have dtype {case.dtype} or float64, got {t.dtype}")
        expect((t.isfinite() & (t >= 0)).all(), f"{name} must be finite and at least 0")
    other = torch.float32 if case.dtype == torch.float64 else torch.float64
    variants = {
        f"as {other}": _theta(case).to(other),
        "of other scores": torch.where(_theta(case).isneginf(), -torch.inf, 1.0 - 2.0 * _theta(case)),
    }
    for how, theta in variants.items():
        for name, again in _margins(case, theta).items():
            expected = found[name]
            expect((again is None) == (expected is None), f"{name} is None for some potentials {how}, not for others")
            if again is not None and expected is not None:
                expect_equal(again.to(expected), expected, f"{name} {how}")


@add_check(ORACLE_CHECKS, ability=TransportPolytope, families=SOME_FAMILIES)
def polytope(case: Case) -> None:
    """The sums of structures equal the margins; on a side with a larger total, the margins are upper bounds."""
    rows, columns, total = _margins(case).values()
    assert rows is not None
    assert columns is not None
    _expect_margins(case, _as_tensor(case.oracle.argmax(case.theta)).double(), rows, columns, total)
    if total is None:
        for y in structures_of(case):
            _expect_margins(case, _as_tensor(y), rows, columns, None)


# ----------------------------------------------------------------------------- shared steps


def _expect_margins(case: Case, y: Tensor, rows: Tensor, columns: Tensor, total: Tensor | None) -> None:
    rows, columns, y = rows.double().cpu(), columns.double().cpu(), y.cpu()
    supply, demand = rows.sum(1), columns.sum(1)
    wanted = torch.minimum(supply, demand) if total is None else total.double().cpu()
    tolerance = case.rounding_error(1 + torch.maximum(supply, demand).max())
    expect((y >= 0).all(), "a structure has a part below 0")
    expect_close(y.sum((1, 2)), wanted.expand(len(y)), tolerance, "the sum of a structure")
    for name, sums, most in (("rows", y.sum(2), rows), ("columns", y.sum(1), columns)):
        expect((sums <= most + tolerance).all(), f"a structure's sums of {name} are larger than the margins")


def _theta(case: Case) -> Tensor:
    return _as_tensor(case.theta)


def _as_tensor(parts: Parts) -> Tensor:
    expect(isinstance(parts, Tensor), "a transport polytope's potentials must be one tensor (B, n, m)")
    assert isinstance(parts, Tensor)
    return parts


def _margins(case: Case, theta: Parts | None = None) -> dict[str, Tensor | None]:
    assert isinstance(case.oracle, TransportPolytope)
    answer = case.oracle.margins(_as_tensor(case.theta if theta is None else theta))
    return dict(zip(("the rows' margin", "the columns' margin", "the total"), answer, strict=True))
