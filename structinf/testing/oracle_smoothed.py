"""Laws about smoothed recursions: their values between known ones, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ..oracle import GibbsOracle
from ..parts import (
    as_tuple,
    gradient_by_autograd,
    hessian_product_by_autograd,
    inner_product,
    map_parts,
    scale_per_instance,
    sum_to_batch_of,
)
from ..regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized
from ..smoothing import Smoothable
from .cases import Case
from .compare import NotApplicable, expect, expect_close
from .gradients import expect_derivative
from .law import LawBook
from .queries import directions

__all__ = ["LAWS"]

LAWS = LawBook()

SMOOTH = ("normal", "forbidden")
DOUBLE = (torch.float64,)


class OwnSquaredL2(Regularizer):
    """A regularizer as a user writes one, which compiled recursions do not know."""

    def value(self, x: Tensor) -> Tensor:
        return SquaredL2().value(x)

    def gradient(self, x: Tensor) -> Tensor:
        return SquaredL2().gradient(x)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return SquaredL2().hessian_product(q, z)


REGULARIZERS: tuple[Regularizer, ...] = (Negentropy(), SquaredL2(), Tsallis(alpha=1.5), Tsallis(alpha=1.25))

# Regularizers, and one that says the same of each.
WITH_OWN: Sequence[tuple[Regularizer, Regularizer]] = (
    *zip(REGULARIZERS, REGULARIZERS, strict=True),
    (SquaredL2(), OwnSquaredL2()),
    (OwnSquaredL2(), SquaredL2()),
)


@LAWS("smoothed with nothing, the value is the best score and the mean a best structure", ability=Smoothable)
def smoothed_with_none(case: Case) -> None:
    oracle, hard = _smoothable(case), Unregularized()
    best = inner_product(case.theta, oracle.argmax(case.theta))
    expect_close(oracle.smoothed_value(case.theta, hard), best, case.room, "the value smoothed with nothing")
    mean = oracle.smoothed_mean(case.theta, hard)
    expect_close(inner_product(case.theta, mean), best, case.room, "the score of the mean smoothed with nothing")


@LAWS("smoothed with the negative entropy, the value is log_partition and the mean the marginals", ability=Smoothable)
def smoothed_with_entropy(case: Case) -> None:
    oracle = _smoothable(case)
    if not isinstance(oracle, GibbsOracle):
        raise NotApplicable("the oracle has no log_partition")
    value, mean = oracle.smoothed_value(case.theta, Negentropy()), oracle.smoothed_mean(case.theta, Negentropy())
    expect_close(value, oracle.log_partition(case.theta), case.room, "the value smoothed with the negative entropy")
    expect_close(mean, oracle.marginals(case.theta), case.room, "the mean smoothed with the negative entropy")


@LAWS("the smoothed value lies between the best score and log_partition", ability=Smoothable)
def smoothed_bounds(case: Case) -> None:
    oracle = _smoothable(case)
    least = inner_product(case.theta, oracle.argmax(case.theta))
    most = oracle.smoothed_value(case.theta, Negentropy())
    for regularizer in REGULARIZERS[1:]:
        value = oracle.smoothed_value(case.theta, regularizer)
        expect(bool((value >= least - case.room).all()), f"{regularizer}: the value is below the best score")
        expect(bool((value <= most + case.room).all()), f"{regularizer}: the value is above that of Negentropy()")


@LAWS("smoothed_mean is the gradient of smoothed_value, for regularizers of one's own too", ability=Smoothable)
def smoothed_mean(case: Case) -> None:
    oracle = _smoothable(case)
    for regularizer, own in case.share(WITH_OWN):
        mean = oracle.smoothed_mean(case.theta, regularizer)
        expected = gradient_by_autograd(lambda t, r=own: oracle.smoothed_value(t, r), case.theta)
        expect_close(mean, expected, case.room, f"smoothed_mean with {regularizer} (autograd's gradient is expected)")
        value, same = oracle.smoothed_value_and_mean(case.theta, regularizer)
        what = f"smoothed_value_and_mean with {regularizer}"
        expect_close(value, oracle.smoothed_value(case.theta, regularizer), case.room, f"the value of {what}")
        expect_close(same, mean, case.room, f"the mean of {what}")


@LAWS("smoothed_vjp is the gradient of Σ_b w_b DP_b, in θ's own form", ability=Smoothable, families=SMOOTH)
def smoothed_vjp(case: Case) -> None:
    oracle = _smoothable(case)
    weight = torch.randn(case.size, generator=case.generator(), dtype=torch.float64).to(case.dtype)
    for regularizer in REGULARIZERS:
        expected = sum_to_batch_of(
            scale_per_instance(oracle.smoothed_mean(case.theta, regularizer), weight), case.theta
        )
        actual = oracle.smoothed_vjp(case.theta, weight, regularizer)
        expect_close(actual, expected, 4 * case.room, f"smoothed_vjp with {regularizer}")


@LAWS("smoothed_hessian_product is the Hessian of smoothed_value times v", ability=Smoothable, families=SMOOTH)
def smoothed_hessian_product(case: Case) -> None:
    oracle = _smoothable(case)
    for regularizer, own in case.share(WITH_OWN):
        for v in directions(case.theta):
            spread = map_parts(lambda z: z.expand(case.size, *z.shape[1:]), v)
            expected = hessian_product_by_autograd(lambda t, r=own: oracle.smoothed_value(t, r), case.theta, spread)
            actual = oracle.smoothed_hessian_product(case.theta, v, regularizer)
            size = 16 * case.room * (1 + max(float(e.abs().max()) if e.numel() else 0.0 for e in as_tuple(expected)))
            expect_close(actual, expected, size, f"smoothed_hessian_product with {regularizer}")


@LAWS(
    "smoothed_value is differentiable by autograd wherever θ requires grad, to any order, also beside −inf",
    ability=Smoothable,
    families=SMOOTH,
    dtypes=DOUBLE,
)
def smoothed_derivatives(case: Case) -> None:
    oracle = _smoothable(case)
    for regularizer, order in case.share(list(product((SquaredL2(), Tsallis(alpha=1.25)), (1, 2, 3)))):
        expect_derivative(
            lambda t, r=regularizer: oracle.smoothed_value(t, r),
            case.theta,
            case.generator(order),
            f"smoothed_value with {regularizer}",
            order=order,
        )


# ----------------------------------------------------------------------------- shared steps


def _smoothable(case: Case) -> Smoothable:
    assert isinstance(case.oracle, Smoothable)
    return case.oracle
