"""Checks of sums and smoothed recursions: a convex function of θ, its gradient (the mean) and its Hessian.

``log_partition`` of a GibbsOracle and ``smoothed_value`` of a Smoothable oracle are convex functions with five methods
each. Most checks are therefore shared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..oracle import Enumerable, GibbsOracle, KBest, Oracle
from ..parts import (
    Parts,
    as_tuple,
    gradient_by_autograd,
    hessian_product_by_autograd,
    inner_product,
    map_parts,
    scale_per_instance,
    sum_to_batch_of,
)
from ..regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
from ..relaxation import missing_ability_reason
from ..smoothing import Smoothable
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, expect, expect_close, expect_untouched
from .finite_differences import expect_derivative
from .methods import directions
from .theta_families import instance, magnitude

__all__ = ["ORACLE_CHECKS"]

ORACLE_CHECKS: list[Check] = []

DOUBLE = (torch.float64,)


class CustomSquaredL2(Regularizer):
    """A regularizer of a user, unknown to compiled recursions."""

    def value(self, x: Tensor) -> Tensor:
        return SquaredL2().value(x)

    def gradient(self, x: Tensor) -> Tensor:
        return SquaredL2().gradient(x)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return SquaredL2().hessian_product(q, z)


REGULARIZERS: tuple[Regularizer, ...] = (Negentropy(), SquaredL2(), Tsallis(alpha=1.5), Tsallis(alpha=1.25))

# A regularizer, and an equal regularizer for the reference by autograd.
REGULARIZERS_AND_REFERENCES: Sequence[tuple[Regularizer, Regularizer]] = (
    *zip(REGULARIZERS, REGULARIZERS, strict=True),
    (SquaredL2(), CustomSquaredL2()),
    (CustomSquaredL2(), SquaredL2()),
)


# ----------------------------------------------------------------------------- values


@add_check(ORACLE_CHECKS, ability=GibbsOracle)
def log_partition(case: Case) -> None:
    """log_partition is log Σ exp⟨θ, y⟩ over all structures, at any scale."""
    oracle: Any = case.oracle
    value = oracle.log_partition(case.theta)
    for b, theta, listed in case.enumerations():
        tolerance = case.rounding_error(listed.magnitude(theta) + math.log(len(listed)) + 1)
        expect_close(value[b], listed.log_partition(theta), tolerance, f"log_partition at batch index {b}")
    if isinstance(oracle, Enumerable):
        return
    theta = map_parts(torch.Tensor.double, case.theta)
    best = map_parts(torch.Tensor.double, oracle.argmax(case.theta))
    floor = inner_product(theta, best)
    if isinstance(oracle, KBest):
        floor = oracle.topk(case.theta, 8)[1].double().logsumexp(0)
    tolerance = case.rounding_error(magnitude(theta, best) + 1)
    expect((value >= floor - tolerance).all(), "log_partition is below the log-sum of the best structures")


@add_check(ORACLE_CHECKS, ability=Smoothable)
def smoothed_with_none(case: Case) -> None:
    """Without smoothing, the value is the best score and the mean a best structure."""
    oracle: Any = case.oracle
    best = inner_product(case.theta, oracle.argmax(case.theta))
    value, mean = oracle.smoothed_value(case.theta, Unregularized()), oracle.smoothed_mean(case.theta, Unregularized())
    expect_close(value, best, case.tolerance, "the value without smoothing")
    expect_close(inner_product(case.theta, mean), best, case.tolerance, "the score of the mean without smoothing")


@add_check(ORACLE_CHECKS, ability=Smoothable)
def smoothed_with_entropy(case: Case) -> None:
    """Smoothed with the negative entropy, the value is log_partition and the mean the marginals."""
    oracle: Any = case.oracle
    if (reason := missing_ability_reason(oracle, GibbsOracle)) is not None:
        raise NotApplicable(reason)
    value, mean = oracle.smoothed_value(case.theta, Negentropy()), oracle.smoothed_mean(case.theta, Negentropy())
    how = "smoothed with the negative entropy"
    expect_close(value, oracle.log_partition(case.theta), case.tolerance, f"the value {how}")
    expect_close(mean, oracle.marginals(case.theta), case.tolerance, f"the mean {how}")


@add_check(ORACLE_CHECKS, ability=Smoothable)
def smoothed_bounds(case: Case) -> None:
    """The smoothed value lies between the best score and log_partition."""
    oracle: Any = case.oracle
    lower = inner_product(case.theta, oracle.argmax(case.theta)) - case.tolerance
    upper = oracle.smoothed_value(case.theta, Negentropy()) + case.tolerance
    for regularizer in REGULARIZERS[1:]:
        value = oracle.smoothed_value(case.theta, regularizer)
        expect((value >= lower).all(), f"{regularizer}: the value is below the best score")
        expect((value <= upper).all(), f"{regularizer}: the value is above that of Negentropy()")


# ----------------------------------------------------------------------------- derivatives of both


@dataclass(frozen=True)
class Function:
    """A convex function of θ: an oracle and five names of methods.

    The methods return the value, the gradient, both, the product of a weight (B,) with the Jacobian, and the product of
    a direction with the Hessian.

    The regularizer follows the other arguments, as ``options``. The reference by autograd calls the value with
    ``reference_options``, and must give the same numbers.
    """

    oracle: Oracle
    methods: Sequence[str]
    options: tuple[Regularizer, ...] = ()
    reference_options: tuple[Regularizer, ...] = ()

    def call(self, i: int, *args: Any) -> Any:
        return getattr(self.oracle, self.methods[i])(*args, *self.options)

    def name(self, i: int) -> str:
        return self.methods[i] + "".join(f" with {option}" for option in self.options)

    def reference(self, theta: Parts) -> Tensor:
        return getattr(self.oracle, self.methods[VALUE])(theta, *self.reference_options)


VALUE, GRADIENT, BOTH, VJP, HESSIAN_PRODUCT = range(5)
GIBBS_METHODS = "log_partition", "marginals", "log_partition_and_marginals", "log_partition_vjp", "covariance_product"
SMOOTHED_METHODS = [f"smoothed_{name}" for name in ("value", "mean", "value_and_mean", "vjp", "hessian_product")]


def _smoothed(case: Case, regularizer: Regularizer, reference: Regularizer) -> Function:
    return Function(case.oracle, SMOOTHED_METHODS, (regularizer,), (reference,))


@add_check(ORACLE_CHECKS, ability=GibbsOracle)
def marginals(case: Case) -> None:
    """Marginals are the mean of all structures under p, at any scale."""
    function = Function(case.oracle, GIBBS_METHODS)
    _expect_gradient(case, function)
    mean = function.call(GRADIENT, case.theta)
    for b, theta, listed in case.enumerations():
        tolerance = case.rounding_error(listed.magnitude(theta) + 1)
        expect_close(instance(mean, b), listed.marginals(theta), tolerance, f"marginals at batch index {b}")


@add_check(ORACLE_CHECKS, ability=Smoothable)
def smoothed_mean(case: Case) -> None:
    """smoothed_mean is the gradient of smoothed_value, for custom regularizers too."""
    for regularizers in case.select_share(REGULARIZERS_AND_REFERENCES):
        _expect_gradient(case, _smoothed(case, *regularizers))


def _expect_gradient(case: Case, function: Function) -> None:
    mean = function.call(GRADIENT, case.theta)
    expected = gradient_by_autograd(function.reference, case.theta)
    what = f"{function.name(GRADIENT)} (the gradient of {function.methods[VALUE]} is expected)"
    expect_close(mean, expected, case.tolerance, what)
    value, same = function.call(BOTH, case.theta)
    expect_close(value, function.call(VALUE, case.theta), case.tolerance, f"the value of {function.name(BOTH)}")
    expect_close(same, mean, case.tolerance, f"the mean of {function.name(BOTH)}")


@add_check(ORACLE_CHECKS, ability=GibbsOracle)
def log_partition_vjp(case: Case) -> None:
    """log_partition_vjp is the gradient of Σ_b w_b log Z_b, in θ's own form."""
    _expect_vjp(case, Function(case.oracle, GIBBS_METHODS))


@add_check(ORACLE_CHECKS, ability=Smoothable, families=("normal", "forbidden"))
def smoothed_vjp(case: Case) -> None:
    """smoothed_vjp is the gradient of Σ_b w_b DP_b, in θ's own form."""
    for regularizer in REGULARIZERS:
        _expect_vjp(case, _smoothed(case, regularizer, regularizer))


def _expect_vjp(case: Case, function: Function) -> None:
    weight = torch.randn(case.size, generator=case.generator(), dtype=torch.float64, device="cpu").to(case.dtype)
    expected = sum_to_batch_of(scale_per_instance(function.call(GRADIENT, case.theta), weight), case.theta)
    expect_close(function.call(VJP, case.theta, weight), expected, 4 * case.tolerance, function.name(VJP))


@add_check(ORACLE_CHECKS, ability=GibbsOracle)
def covariance_product(case: Case) -> None:
    """covariance_product is Cov[Y] v, the Hessian of log_partition times v."""
    for v, found in _hessian_products(case, function := Function(case.oracle, GIBBS_METHODS)):
        # Σ |v_i| bounds ⟨v, y⟩ and its mean over structures.
        reach = torch.stack([t.detach().double().abs().flatten(1).sum(1).max() for t in as_tuple(v)]).sum().cpu()
        for b, theta, listed in case.enumerations():
            tolerance = 4 * case.rounding_error((listed.magnitude(theta) + 1) * reach)
            expected = listed.covariance_product(theta, instance(v, b))
            expect_close(instance(found, b), expected, tolerance, f"covariance_product at batch index {b}")
        if not isinstance(case.oracle, Enumerable):
            expected = hessian_product_by_autograd(function.reference, case.theta, v)
            expect_close(found, expected, 4 * case.tolerance * reach, "covariance_product")


@add_check(ORACLE_CHECKS, ability=Smoothable, families=("normal", "forbidden"))
def smoothed_hessian_product(case: Case) -> None:
    """smoothed_hessian_product is the Hessian of smoothed_value times v."""
    for regularizers in case.select_share(REGULARIZERS_AND_REFERENCES):
        for v, found in _hessian_products(case, function := _smoothed(case, *regularizers)):
            expected = hessian_product_by_autograd(function.reference, case.theta, v)
            largest = max(float(e.abs().max()) if e.numel() else 0.0 for e in as_tuple(expected))
            expect_close(found, expected, 16 * case.tolerance * (1 + largest), function.name(HESSIAN_PRODUCT))


def _hessian_products(case: Case, function: Function) -> Iterator[tuple[Parts, Parts]]:
    """Yield directions, with the product of the Hessian with each direction."""
    for v in directions(case.theta):
        yield v, function.call(HESSIAN_PRODUCT, case.theta, v)


@add_check(ORACLE_CHECKS, ability=GibbsOracle, families=("normal", "ties", "zeros", "forbidden"), dtypes=DOUBLE)
def derivatives(case: Case) -> None:
    """log_partition is differentiable by autograd wherever θ requires grad, to any order, also beside −inf."""
    for order in case.select_share((1, 2, 3)):
        _expect_derivatives(case, Function(case.oracle, GIBBS_METHODS), order)


@add_check(ORACLE_CHECKS, ability=GibbsOracle, families=("normal", "forbidden"))
def autograd_recording(case: Case) -> None:
    """log_partition does not change θ while autograd records."""
    oracle: Any = case.oracle
    theta = map_parts(lambda t: t.detach().clone().requires_grad_(), case.theta)
    with expect_untouched(theta, "log_partition"):
        value = oracle.log_partition(theta)
    expect(value.requires_grad, "log_partition does not require grad although θ does")
    expect_close(value, oracle.log_partition(case.theta), case.tolerance, "log_partition while autograd records")


@add_check(ORACLE_CHECKS, ability=Smoothable, families=("normal", "forbidden"), dtypes=DOUBLE)
def smoothed_derivatives(case: Case) -> None:
    """smoothed_value is differentiable by autograd wherever θ requires grad, to any order, also beside −inf."""
    for regularizer, order in case.select_share(list(product((SquaredL2(), Tsallis(alpha=1.25)), (1, 2, 3)))):
        _expect_derivatives(case, _smoothed(case, regularizer, regularizer), order)


def _expect_derivatives(case: Case, function: Function, order: int) -> None:
    value = functools.partial(function.call, VALUE)
    expect_derivative(value, case.theta, case.generator(order), function.name(VALUE), order)
