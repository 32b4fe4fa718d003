"""Laws about the Gibbs distribution p(y) ∝ exp⟨θ, y⟩: its sum, means, covariances and samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..oracle import Enumerable, GibbsOracle, KBest, Samplable
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
from .cases import Case
from .compare import expect, expect_close, expect_equal, fail, named_tensors, rounding
from .enumeration import flat_parts, numbered
from .gradients import expect_derivative
from .law import LawBook
from .potentials import instance, magnitude
from .queries import directions

__all__ = ["LAWS"]

LAWS = LawBook()

ONE = ("normal",)
SMOOTH = ("normal", "ties", "zeros", "forbidden")
DOUBLE = (torch.float64,)


@LAWS("log_partition is log Σ exp⟨θ, y⟩ over all structures, at any scale", ability=GibbsOracle)
def log_partition(case: Case) -> None:
    oracle = _gibbs(case)
    value = oracle.log_partition(case.theta)
    for b, theta, enumeration in case.enumerations():
        room = rounding(case.dtype, enumeration.magnitude(theta) + math.log(len(enumeration)) + 1)
        expect_close(value[b], enumeration.log_partition(theta), room, f"log_partition at batch index {b}")
    if isinstance(oracle, Enumerable):
        return
    theta = map_parts(torch.Tensor.double, case.theta)
    best = map_parts(torch.Tensor.double, oracle.argmax(case.theta))
    floor = inner_product(theta, best)
    if isinstance(oracle, KBest):
        floor = oracle.topk(case.theta, 8)[1].double().logsumexp(0)
    room = rounding(case.dtype, magnitude(theta, best) + 1)
    expect(bool((value >= floor - room).all()), "log_partition is below the log-sum of a few structures")


@LAWS("marginals are the mean of all structures under p, at any scale", ability=GibbsOracle)
def marginals(case: Case) -> None:
    oracle = _gibbs(case)
    mean = oracle.marginals(case.theta)
    expected = _autograd(case)
    room = case.room
    expect_close(mean, expected, room, "marginals (the gradient of log_partition is expected)")
    value, same = oracle.log_partition_and_marginals(case.theta)
    expect_close(value, oracle.log_partition(case.theta), room, "the value of log_partition_and_marginals")
    expect_close(same, mean, room, "the mean of log_partition_and_marginals")
    for b, theta, enumeration in case.enumerations():
        size = rounding(case.dtype, enumeration.magnitude(theta) + 1)
        expect_close(instance(mean, b), enumeration.marginals(theta), size, f"marginals at batch index {b}")


@LAWS("log_partition_vjp is the gradient of Σ_b w_b log Z_b, in θ's own form", ability=GibbsOracle)
def log_partition_vjp(case: Case) -> None:
    oracle = _gibbs(case)
    weight = torch.randn(case.size, generator=case.generator(), dtype=torch.float64).to(case.dtype)
    means = oracle.marginals(case.theta)
    expected = scale_per_instance(means, weight)
    actual = oracle.log_partition_vjp(case.theta, weight)
    expect_close(actual, sum_to_batch_of(expected, case.theta), 4 * case.room, "log_partition_vjp")


@LAWS("covariance_product is Cov[Y] v, the Hessian of log_partition times v", ability=GibbsOracle)
def covariance_product(case: Case) -> None:
    oracle = _gibbs(case)
    for v in directions(case.theta):
        actual = oracle.covariance_product(case.theta, v)
        for b, theta, enumeration in case.enumerations():
            expected = enumeration.covariance_product(theta, instance(v, b))
            size = 4 * rounding(case.dtype, (enumeration.magnitude(theta) + 1) * _reach(v))
            expect_close(instance(actual, b), expected, size, f"covariance_product at batch index {b}")
        if not isinstance(oracle, Enumerable):
            expect_close(actual, _autograd(case, v), 4 * case.room * _reach(v), "covariance_product")


@LAWS(
    "log_partition is differentiable by autograd wherever θ requires grad, to any order, also beside −inf",
    ability=GibbsOracle,
    families=SMOOTH,
    dtypes=DOUBLE,
)
def derivatives(case: Case) -> None:
    oracle = _gibbs(case)
    for order in case.share((1, 2, 3)):
        expect_derivative(oracle.log_partition, case.theta, case.generator(order), "log_partition", order=order)


@LAWS("log_partition leaves θ as it is while autograd records", ability=GibbsOracle, families=("normal", "forbidden"))
def recording(case: Case) -> None:
    theta = map_parts(lambda t: t.detach().clone().requires_grad_(), case.theta)
    before = [(t.detach().clone(), t._version) for t in as_tuple(theta)]
    value = _gibbs(case).log_partition(theta)
    expect(value.requires_grad, "log_partition does not require grad although θ does")
    plain = _gibbs(case).log_partition(case.theta)
    expect_close(value, plain, case.room, "log_partition while autograd records")
    for (name, t), (values, version) in zip(named_tensors("theta", theta), before, strict=True):
        expect_equal(t, values, f"{name} after log_partition")
        expect(t._version == version, f"log_partition wrote into {name}")
        expect(t.requires_grad and t.is_leaf, f"log_partition changed {name} itself")


@LAWS("samples are structures without parts of −inf", ability=Samplable)
def samples(case: Case) -> None:
    drawn = _sample(case, 20, 0)
    for (name, t), y in zip(named_tensors("theta", case.theta), as_tuple(drawn), strict=True):
        expect(not bool((t.isneginf() & (y != 0)).any()), f"a sample uses a part of {name} that is −inf")
    for b, _, enumeration in case.enumerations():
        for i in range(20):
            y = map_parts(lambda t, i=i, b=b: t[i, b : b + 1], drawn)
            expect(enumeration.position(y) is not None, f"sample {i} at batch index {b} is no structure")


@LAWS(
    "structures are drawn as often as p says, by a chi-square test that a right sampler passes but once in a million",
    ability=Samplable,
    families=("normal", "zeros", "forbidden"),
    dtypes=DOUBLE,
)
def frequencies(case: Case) -> None:
    n = 4000
    drawn = _sample(case, n, 1)
    for b, theta, enumeration in case.enumerations():
        p = enumeration.probabilities(theta)
        listed = flat_parts(enumeration.structures)
        rows = flat_parts(map_parts(lambda t, b=b: t[:, b], drawn))
        places = numbered(torch.cat([listed, rows]))
        counts = places[len(p) :].bincount(minlength=int(places.max()) + 1)[places[: len(p)]].double()
        _expect_frequencies(counts, n * p, b)
    if isinstance(case.oracle, GibbsOracle) and not isinstance(case.oracle, Enumerable):
        for (name, t), mean in zip(
            named_tensors("the samples", drawn), as_tuple(case.oracle.marginals(case.theta)), strict=True
        ):
            # Six standard errors, and what one structure too many or too few may do to a rare part.
            room = 6 * t.std(0) / math.sqrt(n) + 6 / n
            expect_close(t.mean(0), mean, room, f"the mean of {name} (the marginal is expected)")


def _expect_frequencies(counts: Tensor, expected: Tensor, b: int) -> None:
    """Pearson's test, the cells of fewer than five expected counts taken together."""
    rare = expected < 5
    cells = torch.stack([counts, expected])
    cells = torch.cat([cells[:, ~rare], cells[:, rare].sum(1, keepdim=True)], 1)
    cells = cells[:, cells[1] > 1]
    terms = (cells[0] - cells[1]).square() / cells[1]
    freedom = max(len(terms) - 1, 1)
    if terms.sum() > freedom + 6 * math.sqrt(2 * freedom) + 18:
        k = int((counts - expected).square().div(expected.clamp(min=1)).argmax())
        fail(
            f"samples at batch index {b} have chi-square {terms.sum().item():.1f} with {freedom} degrees of freedom; "
            f"structure {k} came {int(counts[k])} times where {expected[k].item():.1f} are expected"
        )


@LAWS("samples come from the given generator alone", ability=Samplable, families=ONE)
def randomness(case: Case) -> None:
    state = torch.get_rng_state()
    first, second = _sample(case, 50, 3), _sample(case, 50, 3)
    expect(bool((state == torch.get_rng_state()).all()), "sample draws from torch's global generator")
    expect_equal(second, first, "samples of the same seed")
    other = _sample(case, 50, 4)
    more = [e for b in range(case.size) if (e := case.enumeration(b)) is not None and len(e) > 1]
    if more and all(torch.equal(a, b) for a, b in zip(as_tuple(first), as_tuple(other), strict=True)):
        fail("samples of another seed are the same")
    assert isinstance(case.oracle, Samplable)
    generator = torch.Generator().manual_seed(5)
    one, two = (case.oracle.sample(case.theta, 50, generator) for _ in range(2))
    if more and all(torch.equal(a, b) for a, b in zip(as_tuple(one), as_tuple(two), strict=True)):
        fail("a second call with the same generator draws the same samples: its state does not move on")


# ----------------------------------------------------------------------------- shared steps


def _gibbs(case: Case) -> GibbsOracle:
    assert isinstance(case.oracle, GibbsOracle)
    return case.oracle


def _sample(case: Case, n: int, seed: int) -> Parts:
    assert isinstance(case.oracle, Samplable)
    return case.oracle.sample(case.theta, n, torch.Generator().manual_seed(case.subject.seed + seed))


def _reach(v: Parts) -> Tensor:
    """Σ |v_i|, which a sum over structures of ⟨v, y⟩ cannot exceed."""
    return torch.stack([t.detach().double().abs().flatten(1).sum(1).max() for t in as_tuple(v)]).sum().cpu()


def _autograd(case: Case, v: Parts | None = None) -> Parts:
    """∇ log Z, or ∇² log Z v, of each instance by autograd through log_partition."""
    if v is None:
        return gradient_by_autograd(_gibbs(case).log_partition, case.theta)
    return hessian_product_by_autograd(_gibbs(case).log_partition, case.theta, v)
