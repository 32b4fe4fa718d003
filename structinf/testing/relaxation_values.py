"""Laws about what a relaxation computes: a point of conv(Y), its limit, its derivatives, and its loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..losses import FenchelYoungLoss
from ..parts import Parts, as_tuple, differentiate, inner_product, map_parts, pack_like, sum_to_batch_of
from ..relaxation import RegularizedRelaxation, Relaxation
from .cases import Case
from .compare import NotApplicable, expect, expect_close, rounding
from .enumeration import flat_parts, nearest_point
from .gradients import expect_derivative
from .law import LawBook
from .potentials import instance
from .relaxation_form import solve

__all__ = ["LAWS"]

LAWS = LawBook()

SMOOTH = ("normal", "small", "forbidden")
DOUBLE = (torch.float64,)


@LAWS("μ lies in conv(Y), and has no part of −inf")
def hull(case: Case) -> None:
    with torch.no_grad():
        mean = solve(case).mean
    room = case.room * math.sqrt(case.subject.parts)
    for t, m in zip(as_tuple(case.theta), as_tuple(mean), strict=True):
        expect(not bool((t.isneginf() & (m.abs() > 0)).any()), "the mean is not 0 at a part of −inf")
    for b in range(case.size):
        target = flat_parts(instance(mean, b))[0]
        distance = (_nearest(case, b, target) - target).norm().item()
        expect(distance <= room, f"the mean at batch index {b} lies {distance:.3g} away from conv(Y)")


@LAWS(
    "as the temperature falls to 0, μ comes as close to argmax as scores can tell",
    families=("normal", "forbidden"),
    dtypes=DOUBLE,
)
def temperature(case: Case) -> None:
    low = 1e-4
    fields = [f.name for f in dataclasses.fields(case.relaxation)] if dataclasses.is_dataclass(case.relaxation) else []
    relaxation, theta = case.relaxation, case.theta
    if relaxation.is_stochastic and not isinstance(relaxation, RegularizedRelaxation):
        raise NotApplicable("the noise stays, however small the temperature is")
    if "temperature" in fields:
        relaxation = dataclasses.replace(relaxation, temperature=low)  # type: ignore[type-var]
    elif isinstance(relaxation, RegularizedRelaxation):
        theta = map_parts(lambda t: t / low, theta)
    else:
        raise NotApplicable("the relaxation has no temperature")
    with torch.no_grad():
        mean = relaxation.mean(case.oracle, theta)
    best = inner_product(case.theta, case.oracle.argmax(case.theta))
    # ⟨θ, μ⟩ falls short by at most temperature times the range of Ω, which is of the order of the parts' number.
    short = best - inner_product(case.theta, mean)
    expect(
        bool((short <= 10 * low * (1 + case.subject.parts)).all()),
        f"at temperature {low} the mean scores {short.max().item():.3g} less than argmax",
    )


@LAWS(
    "μ's gradient is that of its values, also beside −inf", kind=RegularizedRelaxation, families=SMOOTH, dtypes=DOUBLE
)
def first_derivative(case: Case) -> None:
    _expect_no_estimate(case)
    expect_derivative(lambda theta: _mean(case, theta), case.theta, case.generator(), "the mean")


@LAWS(
    "a second derivative of μ is right or refused with UnsupportedError, never silently wrong",
    kind=RegularizedRelaxation,
    families=SMOOTH,
    dtypes=DOUBLE,
)
def second_derivative(case: Case) -> None:
    _expect_no_estimate(case)
    try:
        expect_derivative(lambda theta: _mean(case, theta), case.theta, case.generator(), "the mean", order=2)
    except UnsupportedError:
        return


@LAWS(
    "the value is max ⟨θ, μ⟩ − Ω(μ): at least any structure's, with gradient μ and the right Hessian",
    kind=RegularizedRelaxation,
)
def conjugate(case: Case) -> None:
    relaxation = _regularized(case)
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(case.theta)]
    theta = pack_like(leaves, case.theta)
    value = relaxation.conjugate(case.oracle, theta)
    solution = solve(case)
    size = case.scale + case.subject.parts
    room = rounding(case.dtype, size, factor=64)
    expect_close(value, solution.value, room, "conjugate() (solve().value is expected)")
    found = pack_like(differentiate(value.sum(), leaves), case.theta)
    expected = sum_to_batch_of(solution.mean, case.theta)
    expect_close(found, expected, 4 * case.room, "the gradient of conjugate() (the mean is expected)")
    for y in map(case.structure_near, case.share(range(3))):
        # Both may be estimates, of the same draws.
        best, omega = _regularized(case).conjugate_and_omega(case.oracle, case.theta, y)
        bound = inner_product(case.theta, y) - omega
        low = (best - bound).double().amin().item()
        expect(low >= -room, f"the value is {-low:.3g} below ⟨θ, y⟩ − Ω(y) of a structure y")


@LAWS("the Fenchel-Young loss is at least 0, and 0 where μ is the gold structure", kind=RegularizedRelaxation)
def loss_minimum(case: Case) -> None:
    loss = _loss(case)
    size = case.scale + case.subject.parts
    room = rounding(case.dtype, size, factor=64)
    for y in map(case.structure_near, case.share(range(3))):
        value = loss(case.given, y, **case.instance_data)
        expect(bool(value.isfinite().all()), "the loss is not finite")
        expect(value.double().min().item() >= -room, f"the loss is {value.min().item():.3g}, below 0")
    sharp = case.with_tensors([t * 1e4 for t in as_tuple(case.given)])
    y = sharp.oracle.argmax(sharp.theta)
    with torch.no_grad():
        mean = solve(sharp).mean
    value = loss(sharp.given, y, **case.instance_data)
    for b in range(case.size):
        if (flat_parts(instance(mean, b)) - flat_parts(instance(y, b))).abs().max() <= 1e-12:
            expect(
                value[b].item() <= 1e4 * room, f"the loss is {value[b].item():.3g} where the mean is the gold structure"
            )


@LAWS("the loss has gradient μ − y and the right Hessian", kind=RegularizedRelaxation, families=SMOOTH, dtypes=DOUBLE)
def loss_derivatives(case: Case) -> None:
    loss = _loss(case)
    y = case.structure_near(0)
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(case.given)]
    value = loss(case.with_tensors(leaves).given, y, **case.instance_data).sum()
    found = pack_like(differentiate(value, leaves), case.given)
    mean = _mean(case, case.theta)
    expected = sum_to_batch_of(map_parts(torch.sub, mean, y), case.given)
    expect_close(found, expected, 4 * case.room, "the gradient of the loss (μ − y is expected)")
    for order in (1,) if case.relaxation.is_stochastic else (1, 2):
        expect_derivative(
            lambda given: loss(given, y, **case.instance_data),
            case.given,
            case.generator(order),
            "the loss",
            order=order,
        )


# ----------------------------------------------------------------------------- shared steps


def _mean(case: Case, theta: Parts) -> Parts:
    return case.relaxation.mean(case.oracle, theta)


def _regularized(case: Case) -> RegularizedRelaxation:
    assert isinstance(case.relaxation, RegularizedRelaxation)
    return case.relaxation


def _loss(case: Case) -> Callable[..., Tensor]:
    """The loss of each instance, from the same draws each time."""
    relaxation: Relaxation = case.relaxation
    loss = FenchelYoungLoss(case.subject.oracle, relaxation, reduction="none")
    return lambda given, y, **instance_data: loss(given, y, generator=case.is_stochastic(), **instance_data)


def _expect_no_estimate(case: Case) -> None:
    if case.relaxation.is_stochastic:
        raise NotApplicable("the derivative is an estimate")


def _nearest(case: Case, b: int, target: Tensor) -> Tensor:
    """The point of conv(Y), of instance b, nearest to ``target``."""
    listed = case.enumeration(b)
    if listed is not None:
        rows = flat_parts(listed.structures)
        return nearest_point(lambda direction: rows[(rows @ direction).argmax()], target)
    if case.oracle.requires_nonpositive_theta:
        raise NotApplicable("the oracle lists no structures, and tells the best for costs alone")
    one = case.rows([b])

    def best(direction: Tensor) -> Tensor:
        pieces = direction.split([t[0].numel() for t in as_tuple(one.theta)])
        shaped = [p.reshape(1, *t.shape[1:]) for p, t in zip(pieces, as_tuple(one.theta), strict=True)]
        toward = one.with_tensors(shaped)
        return flat_parts(toward.oracle.argmax(toward.theta))[0]

    return nearest_point(best, target)
