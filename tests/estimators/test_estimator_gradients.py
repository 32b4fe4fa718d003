"""Every estimator's value and gradient against sums over lists of all structures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structinf as si
from estimator_enumeration import (
    GIBBS,
    LISTS_BEST,
    SMALL,
    Listed,
    cost,
    flat,
    generator,
    gradients,
    near,
    potentials,
    repeated,
    tensors,
)
from oracle_example import Example
from structinf.noise import Normal

pytestmark = pytest.mark.slow

small = pytest.mark.parametrize("example", SMALL, ids=str)
lists_best = pytest.mark.parametrize("example", LISTS_BEST, ids=str)


def check(value: torch.Tensor, theta: Any, exact: torch.Tensor, slope: torch.Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(value, exact, rtol=0, atol=tolerance)
    torch.testing.assert_close(gradients(value, theta), slope, rtol=0, atol=tolerance)


# ----------------------------------------------------------------------------- sums over all structures


@small
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_exact(example: Example, scale: float):
    theta = potentials(example, 3, scale=scale)
    check(si.expect(cost, theta, example.oracle()), theta, *Listed.of(example).gibbs(theta))


@small
def test_exact_is_differentiable_twice(example: Example):
    theta, weight = potentials(example, 2), torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    own = tensors(theta)

    def risk(weight: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        given = parts if example.is_tuple else parts[0]
        return si.expect(lambda y, w: (w * cost(y)).exp(), given, example.oracle(), inputs=weight)

    assert torch.autograd.gradcheck(risk, (weight, *own))
    assert torch.autograd.gradgradcheck(risk, (weight, *own))


@small
def test_forbidden_parts_are_not_evaluated_and_get_no_gradient(example: Example):
    theta = potentials(example, 2)
    first = tensors(theta)[0]
    # One that the first structure in the list has.
    rows = Listed.of(example).rows
    part = int((rows[0] != 0).long().argmax())
    with torch.no_grad():
        first.view(2, -1)[0, part] = -torch.inf
    listed, seen = Listed.of(example), []

    def seeing(y: Any) -> torch.Tensor:
        seen.append(flat(y))
        return cost(y)

    for estimator in si.list_estimators():
        try:
            value = si.expect(seeing, theta, example.oracle(), estimator, generator=generator())
        except si.UnsupportedError:
            continue
        assert value.isfinite().all()
        slope = gradients(value, theta)
        assert slope.isfinite().all()
        assert slope[0, part] == 0
        if estimator == "exact":
            torch.testing.assert_close(value, listed.gibbs(theta)[0], rtol=0, atol=1e-10)
            torch.testing.assert_close(slope, listed.gibbs(theta)[1], rtol=0, atol=1e-10)
            assert len(seen[-1]) == int(listed.scores(theta).isfinite().sum())


# ----------------------------------------------------------------------------- sparse sums


@small
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_sparsemax(example: Example, temperature: float):
    theta = potentials(example, 4)
    exact, slope, sizes = Listed.of(example).sparsemax(theta, temperature=temperature)
    calls = []

    def counting(y: Any) -> torch.Tensor:
        calls.append(len(flat(y)))
        return cost(y)

    value = si.expect(counting, theta, example.oracle(), "sparsemax", temperature=temperature)
    check(value, theta, exact, slope)
    assert calls == [int(sizes.sum())]


@lists_best
@pytest.mark.parametrize(("k", "temperature"), [(1, 1.0), (3, 1.0), (3, 0.5), (50, 1.0), (50, 2.0)])
def test_topk_sparsemax(example: Example, k: int, temperature: float):
    theta = potentials(example, 4, scale=0.3)
    exact, slope, sizes = Listed.of(example).sparsemax(theta, k, temperature)
    estimator: Any = si.get_estimator("topk_sparsemax", k=k, temperature=temperature)
    check(si.expect(cost, theta, example.oracle(), estimator), theta, exact, slope)
    assert estimator.certified(theta, example.oracle()).tolist() == (sizes < k).tolist()
    _, _, all_sizes = Listed.of(example).sparsemax(theta, temperature=temperature)
    assert bool((all_sizes[sizes < k] == sizes[sizes < k]).all())


@lists_best
def test_topk_sparsemax_with_growing_k(example: Example):
    theta = potentials(example, 4, scale=0.3)
    exact, slope, sizes = Listed.of(example).sparsemax(theta)
    most = int(sizes.max())
    estimator: Any = si.get_estimator("topk_sparsemax", k=1, exact=True)
    check(si.expect(cost, theta, example.oracle(), estimator), theta, exact, slope)
    if most > 1:
        limited = si.get_estimator("topk_sparsemax", k=1, exact=True, max_k=most)
        with pytest.raises(si.ConvergenceError, match=f"all of the {most} best structures.*max_k"):
            si.expect(cost, theta, example.oracle(), limited)
    with pytest.raises(si.InvalidInputError, match="max_k"):
        si.get_estimator("topk_sparsemax", k=5, exact=True, max_k=4)


@small
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}])
def test_sparsemap_weighs_the_solution_s_structures(example: Example, options: Any):
    theta = potentials(example, 4, scale=0.5)
    solution = si.infer(theta, example.oracle(), "sparsemap", **options)
    assert solution.weights is not None
    values = torch.stack([cost(y) for y in zip(*tensors(solution.support), strict=True)])
    expected = (solution.weights * values).sum(0)
    calls = []

    def counting(y: Any) -> torch.Tensor:
        calls.append(len(flat(y)))
        return cost(y)

    value = si.expect(counting, theta, example.oracle(), "sparsemap", **options)
    check(value, theta, expected.detach(), gradients(expected, theta))
    assert calls == [int((solution.weights != 0).sum())]


def test_sparsemap_of_a_categorical_choice_is_sparsemax():
    theta = potentials(SMALL[0], 5)
    check(
        si.expect(cost, theta, "categorical", "sparsemap", tolerance=0),
        theta,
        *Listed.of(SMALL[0]).sparsemax(theta)[:2],
    )


# ----------------------------------------------------------------------------- perturbed


@small
def test_perturbed_is_its_formula(example: Example):
    """Mean f(Y), and its gradient Σ (f(Y) − mean of the others) U / (σ n), for Y = argmax ⟨θ + σU, y⟩."""
    theta, listed, n, sigma = potentials(example, 2), Listed.of(example), 6, 0.7
    value = si.expect(cost, theta, example.oracle(), "perturbed", samples=n, sigma=sigma, generator=generator(5))
    g = generator(5)
    draws = [Normal().sample((n, *t.shape), dtype=torch.float64, device=t.device, generator=g) for t in tensors(theta)]
    noise = torch.cat([u.flatten(2) for u in draws], 2)
    best = ((flat(theta).detach() + sigma * noise) @ listed.rows.T).argmax(2)
    f = listed.costs()[best]
    others = (f.sum(0) - f) / (n - 1)
    slope = ((f - others)[..., None] * noise).sum(0) / (sigma * n)
    slope = torch.where((listed.rows != 0).any(0), slope, 0.0)  # parts of no structure have no noise
    check(value, theta, f.mean(0), slope)


def test_perturbed_by_gumbel_noise_is_unbiased_for_a_gibbs_choice():
    theta = repeated(potentials(SMALL[0]), 1000)
    value = si.expect(cost, theta, "categorical", "perturbed", noise="gumbel", samples=100, generator=generator())
    exact, slope = Listed.of(SMALL[0]).gibbs(theta)
    assert near(value.detach(), exact[0])
    assert near(gradients(value, theta), slope[0])


# ----------------------------------------------------------------------------- samples


def made(baseline: Any, samples: int) -> si.Estimator:
    if baseline == "learned":
        baseline = torch.nn.Sequential(torch.nn.Linear(1, 1, dtype=torch.float64), torch.nn.Flatten(0))
    return si.get_estimator("score_function", samples=samples, baseline=baseline)


@pytest.mark.parametrize(
    ("example", "baseline"),
    [
        *((example, baseline) for example in GIBBS for baseline in ("none", "leave_one_out")),
        *((GIBBS[i], baseline) for i in (0, -1) for baseline in ("self_critic", "moving_average", "learned")),
    ],
    ids=str,
)
def test_score_function_is_unbiased(example: Example, baseline: str):
    theta = repeated(potentials(example), 1000)
    estimator, g = made(baseline, 100), generator(1)
    inputs = torch.ones(1000, 1, dtype=torch.float64)

    def value() -> torch.Tensor:
        return si.expect(lambda y, _: cost(y), theta, example.oracle(), estimator, inputs=inputs, generator=g)

    value()  # what a moving average is of
    exact, slope = Listed.of(example).gibbs(theta)
    found = value()
    assert near(found.detach(), exact[0])
    assert near(gradients(found, theta), slope[0])


@pytest.mark.parametrize("example", [e for e in GIBBS if e in LISTS_BEST], ids=str)
@pytest.mark.parametrize(
    ("baseline", "samples", "draws"), [("listed", 1, 1), ("listed", 10, 1000), ("listed", 3, 5), ("none", 3, 5)]
)
def test_sum_and_sample_is_unbiased(example: Example, baseline: str, samples: int, draws: int):
    theta = repeated(potentials(example), 2000)
    exact, slope = Listed.of(example).gibbs(theta)
    options = {"k": 2, "samples": samples, "draws": draws, "baseline": baseline}
    value = si.expect(
        cost, theta, example.oracle(), si.get_estimator("sum_and_sample", **options), generator=generator(2)
    )
    assert near(value.detach(), exact[0])
    assert near(gradients(value, theta), slope[0])


@pytest.mark.parametrize("example", [e for e in GIBBS if e in LISTS_BEST], ids=str)
def test_sum_and_sample_of_all_structures_is_exact_and_draws_none(example: Example):
    theta = potentials(example, 3)
    count = len(Listed.of(example).rows)
    estimator, unused = si.get_estimator("sum_and_sample", k=count), generator()
    value = si.expect(cost, theta, example.oracle(), estimator, generator=unused)
    check(value, theta, *Listed.of(example).gibbs(theta))
    assert torch.equal(unused.get_state(), generator().get_state())


def test_sum_and_sample_takes_no_more_samples_than_it_is_told():
    weights, exact = [], torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    theta = exact.log().expand(300, 4).clone().requires_grad_()

    def shares(y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        weights.append((y, rows))
        return y[:, 1]

    estimator = si.get_estimator("sum_and_sample", k=1, samples=3)
    value = si.expect(shares, theta, "categorical", estimator, inputs=torch.arange(300), generator=generator())
    (_, rows), thirds = weights[0], value.detach() / (1 - 0.6) * 3
    assert rows.bincount().max() <= 1 + 3
    torch.testing.assert_close(thirds, thirds.round())  # each of three samples counts a third


def test_summing_more_varies_less():
    example = SMALL[1]
    theta = repeated(potentials(example), 2000)

    def spread(estimator: si.Estimator) -> float:
        value = si.expect(cost, theta, example.oracle(), estimator, generator=generator())
        return float(gradients(value, theta).var(0).sum())

    sampled = spread(si.get_estimator("score_function", samples=2, baseline="leave_one_out"))
    spreads = [spread(si.get_estimator("sum_and_sample", k=k, samples=2)) for k in (1, 3, 6)]
    assert sampled > spreads[0] > spreads[1] > spreads[2]
