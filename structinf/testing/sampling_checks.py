"""Checks of samplers: the samples are structures, have the distribution p(y) ∝ exp⟨θ, y⟩, and use the generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..oracle import Enumerable, GibbsOracle, Samplable
from ..parts import Parts, as_tuple, map_parts
from ..solvers.distinct_samples import sample_without_replacement
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, expect, expect_close, expect_equal, fail, named_tensors
from .enumeration import row_group_ids, rows_of_parts, to_float64_cpu
from .theta_families import instance

__all__ = ["ORACLE_CHECKS"]

ORACLE_CHECKS: list[Check] = []

DOUBLE = (torch.float64,)


@add_check(ORACLE_CHECKS, ability=Samplable)
def samples(case: Case) -> None:
    """Samples are structures, and use no part with score −inf."""
    drawn = _sample(case, 20, 0)
    for name, t, y in named_tensors("theta", case.theta, drawn):
        expect(not (t.isneginf() & (y != 0)).any(), f"a sample uses a part whose score in {name} is −inf")
    for b, _, enumeration in case.enumerations():
        for i in range(20):
            y = map_parts(lambda t, i=i, b=b: t[i, b : b + 1], drawn)
            expect(enumeration.position(y) is not None, f"sample {i} at batch index {b} is not a structure")


@add_check(ORACLE_CHECKS, ability=Samplable, families=("normal", "zeros", "forbidden"), dtypes=DOUBLE)
def frequencies(case: Case) -> None:
    """The frequencies of sampled structures agree with p: a chi-square test that fails a right sampler once in 10⁶."""
    n = 4000
    drawn = _sample(case, n, 1)
    for b, theta, enumeration in case.enumerations():
        p = enumeration.probabilities(theta)
        listed = rows_of_parts(enumeration.structures)
        rows = rows_of_parts(map_parts(lambda t, b=b: t[:, b], drawn))
        places = row_group_ids(torch.cat([listed, rows]))
        counts = places[len(p) :].bincount(minlength=int(places.max()) + 1)[places[: len(p)]].double()
        _expect_frequencies(counts, n * p, b)
    if isinstance(case.oracle, GibbsOracle) and not isinstance(case.oracle, Enumerable):
        for name, t, mean in named_tensors("the samples", drawn, case.oracle.marginals(case.theta)):
            # Six standard errors, plus an allowance of 6 / n for rare parts.
            tolerance = 6 * t.std(0) / math.sqrt(n) + 6 / n
            expect_close(t.mean(0), mean, tolerance, f"the mean of {name} (the marginal is expected)")


def _expect_frequencies(counts: Tensor, expected: Tensor, b: int) -> None:
    """Apply Pearson's chi-square test. Cells with an expected count below 5 are merged."""
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
            f"structure {k} was drawn {int(counts[k])} times, {expected[k].item():.1f} times are expected"
        )


@add_check(ORACLE_CHECKS, ability=Samplable, families=("normal",))
def randomness(case: Case) -> None:
    """Samples depend on the given generator only, and advance its state."""
    state = torch.get_rng_state()
    first, second = _sample(case, 50, 3), _sample(case, 50, 3)
    expect((state == torch.get_rng_state()).all(), "sample draws from torch's global generator")
    expect_equal(second, first, "samples of the same seed")
    other = _sample(case, 50, 4)
    more = [e for b in range(case.size) if (e := case.enumeration(b)) is not None and len(e) > 1]
    if more and all(torch.equal(a, b) for a, b in zip(as_tuple(first), as_tuple(other), strict=True)):
        fail("samples with different seeds are equal")
    assert isinstance(case.oracle, Samplable)
    generator = torch.Generator().manual_seed(5)
    one, two = (case.oracle.sample(case.theta, 50, generator) for _ in range(2))
    if more and all(torch.equal(a, b) for a, b in zip(as_tuple(one), as_tuple(two), strict=True)):
        fail("a second call with the same generator draws the same samples; sample must advance the generator's state")


@add_check(ORACLE_CHECKS, ability=Samplable, families=("normal", "forbidden"), dtypes=DOUBLE)
def draws_without_replacement(case: Case) -> None:
    """Draws without replacement are different structures, as many as there are, alone or in a batch."""
    _require_draws(case)
    n = 4
    structures, valid = _draw(case, n)
    for name, t, y in named_tensors("theta", case.theta, structures):
        expect(not (t.isneginf() & (y != 0)).any(), f"a draw uses a part whose score in {name} is −inf")
    for b in range(case.size):
        rows = rows_of_parts(map_parts(lambda t, b=b: t[valid[:, b], b], structures))
        expect(len(row_group_ids(rows).unique()) == len(rows), f"a structure is drawn twice at batch index {b}")
        enumeration = case.enumeration(b)
        if enumeration is None:
            found = int(_draw(case.rows([b]), n)[1].sum())
        else:
            found = min(n, int(enumeration.allowed(instance(to_float64_cpu(case.theta), b)).sum()))
            for i in range(len(rows)):
                y = map_parts(lambda t, i=i, b=b: t[i, b : b + 1], structures)
                expect(enumeration.position(y) is not None, f"draw {i} at batch index {b} is not a structure")
        expect(len(rows) == found, f"{n} draws find {len(rows)} of {found} structures at batch index {b}")


@add_check(ORACLE_CHECKS, ability=Samplable, families=("normal",), dtypes=DOUBLE)
def pairs_without_replacement(case: Case) -> None:
    """The frequencies of two draws agree with p(y) p(z) / (1 − p(y)): a chi-square test, as for samples."""
    _require_draws(case)
    n = 200
    many = case.rows(list(range(case.size)) * n)
    structures, valid = _draw(many, 2)
    rows = [map_parts(lambda t, i=i: t[i].unflatten(0, (n, case.size)), structures) for i in range(2)]
    for b, theta, enumeration in case.enumerations():
        p = enumeration.probabilities(theta)
        if not 1 < int((p > 0).sum()) <= 50:
            continue
        expect(valid[:, b :: case.size].all(), f"two draws find fewer than two structures at batch index {b}")
        listed = rows_of_parts(enumeration.structures)
        drawn = [rows_of_parts(map_parts(lambda t, b=b: t[:, b], one)) for one in rows]
        places = row_group_ids(torch.cat([listed, *drawn]))
        position = torch.empty(int(places.max()) + 1, dtype=torch.int64, device="cpu").fill_(len(p))
        position[places[: len(p)]] = torch.arange(len(p), device="cpu")
        first, second = position[places[len(p) :]].view(2, n)
        counts = (first * len(p) + second).bincount(minlength=len(p) ** 2)[: len(p) ** 2].double()
        expected = (p[:, None] * p / (1 - p[:, None])).fill_diagonal_(0)
        _expect_frequencies(counts, n * expected.flatten(), b)


def _require_draws(case: Case) -> None:
    if not isinstance(case.oracle, GibbsOracle):
        raise NotApplicable("the oracle has no log-partition function, which draws without replacement need")


def _draw(case: Case, n: int) -> tuple[Parts, Tensor]:
    generator = torch.Generator().manual_seed(case.target.seed + 6)
    try:
        structures, valid = sample_without_replacement(case.oracle, case.theta, n, generator)
    except UnsupportedError as error:  # rare structures, which the oracle cannot draw
        raise NotApplicable(str(error)) from None
    return map_parts(lambda t: t.cpu(), structures), valid.cpu()


# ----------------------------------------------------------------------------- shared steps


def _sample(case: Case, n: int, seed: int) -> Parts:
    assert isinstance(case.oracle, Samplable)
    return case.oracle.sample(case.theta, n, torch.Generator().manual_seed(case.target.seed + seed))
