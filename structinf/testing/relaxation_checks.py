"""Checks of relaxations: the mean, the support, the limit of low temperatures, the derivatives, and the loss."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import torch
from torch import Tensor

from ..api import infer
from ..errors import UnsupportedError
from ..losses import FenchelYoungLoss
from ..parts import Parts, as_tuple, differentiate, inner_product, map_parts, pack_like, sum_to_batch_of
from ..relaxation import RegularizedRelaxation
from ..solution import Solution
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, expect, expect_close
from .enumeration import nearest_point, nearest_point_of_hull, rows_of_parts
from .finite_differences import expect_derivative
from .theta_families import instance

__all__ = ["RELAXATION_CHECKS"]

RELAXATION_CHECKS: list[Check] = []

SMOOTH = ("normal", "small", "forbidden")
DOUBLE = (torch.float64,)


@add_check(RELAXATION_CHECKS, families=("normal",))
def own_generator(case: Case) -> None:
    """A relaxation with a generator draws noise from this generator only."""
    if not case.relaxation.is_stochastic:
        raise NotApplicable("the relaxation draws no noise")
    before = torch.get_rng_state()
    mean = as_tuple(case.relaxation.solve(case.oracle, case.theta).mean)
    if all(m.requires_grad for m in mean):
        torch.stack([m.sum() for m in mean]).sum().backward()
    expect(torch.equal(torch.get_rng_state(), before), "the relaxation also drew from torch's global generator")


@add_check(RELAXATION_CHECKS)
def support(case: Case) -> None:
    """The weights are a distribution, the support consists of structures, and their weighted mean is the mean."""
    solution = _solve(case)
    weights, structures = solution.weights, solution.support
    if weights is None or structures is None:
        raise NotApplicable("the relaxation keeps no support")
    tolerance = case.rounding_error(1.0)
    expect((weights >= 0).all(), "a weight is negative")
    total = weights.double().sum(0)
    expect_close(total, torch.ones_like(total), tolerance, "the sum of the weights")
    mixed = map_parts(lambda t: (t * weights.view(*weights.shape, *[1] * (t.ndim - 2)).to(t)).sum(0), structures)
    largest = max((t.abs().max().item() for t in as_tuple(structures) if t.numel()), default=1.0)
    expect_close(mixed, solution.mean, tolerance * (1 + largest), "Σ weights · support (the mean is expected)")
    for b, _, listed in case.enumerations():
        for k in (weights[:, b] > 0).nonzero()[:, 0].tolist():
            y = map_parts(lambda t, k=k, b=b: t[k, b : b + 1], structures)
            expect(listed.position(y) is not None, f"support[{k}] at batch index {b} is not a structure")


@add_check(RELAXATION_CHECKS, families=("normal",))
def warm_start(case: Case) -> None:
    """A warm start from the solution's own support gives the same mean and value."""
    oracle, relaxation = case.target.oracle, case.relaxation
    with torch.no_grad():
        first = infer(case.user_theta, oracle, relaxation, **case.instance_data)
        if first.support is None:
            raise NotApplicable("the relaxation keeps no support")
        try:
            again = infer(case.user_theta, oracle, relaxation, warm_start=first, **case.instance_data)
        except UnsupportedError:
            raise NotApplicable("the relaxation is not iterative") from None
    expect_close(again.mean, first.mean, case.tolerance, "the mean from a warm start")
    expect_close(again.value, first.value, case.tolerance * case.target.num_parts, "the value from a warm start")


@add_check(RELAXATION_CHECKS)
def hull(case: Case) -> None:
    """The mean lies in conv(Y), unless the relaxation says that it may not, and is 0 at parts with score −inf."""
    mean = _solve(case).mean
    tolerance = case.tolerance * math.sqrt(case.target.num_parts)
    for t, m in zip(as_tuple(case.theta), as_tuple(mean), strict=True):
        expect(not (t.isneginf() & (m != 0)).any(), "the mean is not 0 at a part with score −inf")
    if case.relaxation.mean_may_leave_hull:
        return
    for b in range(case.size):
        target = rows_of_parts(instance(mean, b))[0]
        distance = (_nearest_point(case, b, target) - target).norm().item()
        expect(distance <= tolerance, f"the mean at batch index {b} lies {distance:.3g} away from conv(Y)")


@add_check(RELAXATION_CHECKS, families=("normal", "forbidden"), dtypes=DOUBLE)
def temperature(case: Case) -> None:
    """The score of the mean approaches the best score as the temperature falls to 0."""
    low = 1e-4
    relaxation, theta = case.relaxation, case.theta
    is_regularized = isinstance(relaxation, RegularizedRelaxation)
    if relaxation.is_stochastic and not is_regularized:
        raise NotApplicable("the noise of the relaxation does not vanish at low temperatures")
    if is_regularized and relaxation.value_may_miss_maximum:
        raise NotApplicable("the value of the relaxation may miss the maximum")
    if dataclasses.is_dataclass(relaxation) and "temperature" in (f.name for f in dataclasses.fields(relaxation)):
        relaxation = dataclasses.replace(relaxation, temperature=low)
    elif is_regularized:
        theta = map_parts(lambda t: t / low, theta)
    else:
        raise NotApplicable("the relaxation has no temperature")
    with torch.no_grad():
        mean = relaxation.mean(case.oracle, theta)
    # ⟨θ, μ⟩ is below the best score by at most the temperature times the range of Ω, at most about the number of parts.
    short = (inner_product(case.theta, case.oracle.argmax(case.theta)) - inner_product(case.theta, mean)).max().item()
    bound = 10 * low * (1 + case.target.num_parts)
    expect(short <= bound, f"at temperature {low} the mean scores {short:.3g} less than argmax")


@add_check(RELAXATION_CHECKS, kind=RegularizedRelaxation, families=SMOOTH, dtypes=DOUBLE)
def first_derivative(case: Case) -> None:
    """The derivative of the mean agrees with finite differences, also next to scores of −inf."""
    _expect_mean_derivative(case, 1)


@add_check(RELAXATION_CHECKS, kind=RegularizedRelaxation, families=SMOOTH, dtypes=DOUBLE)
def second_derivative(case: Case) -> None:
    """The second derivative of the mean is right, or raises UnsupportedError."""
    with contextlib.suppress(UnsupportedError):
        _expect_mean_derivative(case, 2)


def _expect_mean_derivative(case: Case, order: int) -> None:
    if case.relaxation.is_stochastic:
        raise NotApplicable("the derivative is a stochastic estimate")
    mean = lambda theta: case.relaxation.mean(case.oracle, theta)  # noqa: E731
    expect_derivative(mean, case.theta, case.generator(), "the mean", order)


@add_check(RELAXATION_CHECKS, kind=RegularizedRelaxation)
def conjugate(case: Case) -> None:
    """The value is max ⟨θ, μ⟩ − Ω(μ): at least ⟨θ, y⟩ − Ω(y) of every structure y, and its gradient is the mean."""
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(case.theta)]
    value = _regularized(case).conjugate(case.oracle, pack_like(leaves, case.theta))
    solution, tolerance = _solve(case), _value_tolerance(case)
    # The maximum lies between the value and the value plus the gap.
    gap = 0.0 if solution.gap is None else solution.gap.double()
    expect_close(value, solution.value, tolerance + gap, "conjugate() (solve().value is expected)")
    found = case.determined_parts(pack_like(differentiate(value.sum(), leaves), case.theta))
    expected = case.determined_parts(sum_to_batch_of(solution.mean, case.theta))
    expect_close(found, expected, 4 * case.tolerance, "the gradient of conjugate() (the mean is expected)")
    if _regularized(case).value_may_miss_maximum:
        return
    for y in map(case.structure_near, case.select_share(range(3))):
        # If the value and Ω are estimates, both use the same noise.
        best, omega = _regularized(case).conjugate_and_omega(case.oracle, case.theta, y)
        difference = (best - (inner_product(case.theta, y) - omega)).double().amin().item()
        expect(difference >= -tolerance, f"the value is {-difference:.3g} below ⟨θ, y⟩ − Ω(y) for a structure y")


@add_check(RELAXATION_CHECKS, kind=RegularizedRelaxation)
def loss_minimum(case: Case) -> None:
    """The Fenchel-Young loss is at least 0, and equals 0 where the mean is the gold structure."""
    tolerance = _value_tolerance(case)
    for y in map(case.structure_near, case.select_share(range(3))):
        loss = _loss(case, case.user_theta, y)
        expect(loss.isfinite().all(), "the loss is not finite")
        least = loss.double().min().item()
        expect(_regularized(case).value_may_miss_maximum or least >= -tolerance, f"the loss is {least:.3g}, below 0")
    sharp = case.with_tensors([t * 1e4 for t in as_tuple(case.user_theta)])
    y, mean = sharp.oracle.argmax(sharp.theta), _solve(sharp).mean
    loss = _loss(sharp, sharp.user_theta, y)
    at_gold = (rows_of_parts(mean) - rows_of_parts(y)).abs().amax(1) <= 1e-12
    for value in loss[at_gold].tolist():
        expect(value <= 1e4 * tolerance, f"the loss is {value:.3g} where the mean is the gold structure")


@add_check(RELAXATION_CHECKS, kind=RegularizedRelaxation, families=SMOOTH, dtypes=DOUBLE)
def loss_derivatives(case: Case) -> None:
    """The gradient of the Fenchel-Young loss is μ − y, and its Hessian agrees with finite differences."""
    y = case.structure_near(0)
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(case.user_theta)]
    loss = _loss(case, pack_like(leaves, case.user_theta), y).sum()
    found = pack_like(differentiate(loss, leaves), case.user_theta)
    mean = case.relaxation.mean(case.oracle, case.theta)
    expected = sum_to_batch_of(map_parts(torch.sub, mean, y), case.user_theta)
    expect_close(found, expected, 4 * case.tolerance, "the gradient of the loss (μ − y is expected)")
    for order in (1,) if case.relaxation.is_stochastic else (1, 2):
        expect_derivative(
            lambda theta: _loss(case, theta, y), case.user_theta, case.generator(order), "the loss", order
        )


# ----------------------------------------------------------------------------- shared steps


def _solve(case: Case) -> Solution:
    with torch.no_grad():
        return case.relaxation.solve(case.oracle, case.theta)


def _value_tolerance(case: Case) -> Tensor:
    return case.rounding_error(case.scale + case.target.num_parts, factor=64)


def _regularized(case: Case) -> RegularizedRelaxation:
    assert isinstance(case.relaxation, RegularizedRelaxation)
    return case.relaxation


def _loss(case: Case, theta: Parts, y: Parts) -> Tensor:
    """Return the loss of each instance, with the same noise at every call."""
    loss = FenchelYoungLoss(case.target.oracle, case.relaxation, reduction="none")
    return loss(theta, y, generator=case.noise_generator(), **case.instance_data)


def _nearest_point(case: Case, b: int, target: Tensor) -> Tensor:
    """Return the point of conv(Y) of instance ``b`` nearest to ``target``."""
    listed = case.enumeration(b)
    if listed is not None:
        return nearest_point_of_hull(rows_of_parts(listed.structures), target)
    if case.oracle.requires_nonpositive_theta:
        raise NotApplicable("the oracle does not enumerate structures, and takes only scores of at most 0")
    one = case.rows([b])

    def best(direction: Tensor) -> Tensor:
        pieces = direction.split([t[0].numel() for t in as_tuple(one.theta)])
        shaped = [p.reshape(1, *t.shape[1:]) for p, t in zip(pieces, as_tuple(one.theta), strict=True)]
        toward = one.with_tensors(shaped)
        return rows_of_parts(toward.oracle.argmax(toward.theta))[0]

    return nearest_point(best, target)
