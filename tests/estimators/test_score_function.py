"""Baselines of sampled gradients: what they are, how much they help, what they keep."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import structinf as si
from estimator_enumeration import GIBBS, Listed, cost, flat, generator, gradients, potentials, repeated, tensors
from oracle_example import Example
from structinf.estimators import Baseline, FunctionValues, MovingAverage, ScoreFunction

CATEGORICAL = GIBBS[0]


class Guess(nn.Module):
    """The same number for all."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(x))


def slope(estimator: si.Estimator, theta: Any, example: Example, seed: int = 0, f: Any = cost) -> torch.Tensor:
    return gradients(si.expect(f, theta, example.oracle(), estimator, generator=generator(seed)), theta)


# ----------------------------------------------------------------------------- formulas


@pytest.mark.parametrize("example", GIBBS, ids=str)
@pytest.mark.parametrize("baseline", ["none", "leave_one_out", "self_critic"])
def test_value_and_gradient_are_their_formulas(example: Example, baseline: str):
    """Mean f, and Σ (f(Y) − b) (Y − E[Y]) / n, for the samples that the generator gives."""
    theta, n, listed = potentials(example, 3), 7, Listed.of(example)
    estimator = ScoreFunction(samples=n, baseline=baseline)
    value = si.expect(cost, theta, example.oracle(), estimator, generator=generator(3))
    drawn: Any = si.sample(theta, example.oracle(), n, generator=generator(3))
    y = torch.cat([t.flatten(2) for t in tensors(drawn)], 2)
    f = torch.stack([cost(rows) for rows in y])
    if baseline == "leave_one_out":
        b = (f.sum(0) - f) / (n - 1)
    elif baseline == "self_critic":
        b = listed.costs()[listed.scores(theta).argmax(1)]
    else:
        b = torch.zeros(())
    mean = listed.scores(theta).softmax(1) @ listed.rows
    torch.testing.assert_close(value, f.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(value, theta), ((f - b)[..., None] * (y - mean)).mean(0), rtol=0, atol=1e-12)


def test_a_structure_that_several_samples_have_is_evaluated_once():
    theta, calls = potentials(CATEGORICAL, 5), []

    def counting(y: torch.Tensor) -> torch.Tensor:
        calls.append(y)
        return cost(y)

    si.expect(counting, theta, "categorical", "score_function", samples=50, generator=generator(1))
    drawn: Any = si.sample(theta, "categorical", 50, generator=generator(1))
    assert len(calls) == 1
    assert len(calls[0]) == int((drawn.sum(0) > 0).sum())


def test_the_self_critic_is_one_more_evaluation():
    theta, calls = potentials(CATEGORICAL, 5), []

    def counting(y: torch.Tensor) -> torch.Tensor:
        calls.append(len(y))
        return cost(y)

    estimator = ScoreFunction(samples=1, baseline="self_critic")
    si.expect(counting, theta, "categorical", estimator, generator=generator(1))
    drawn: Any = si.sample(theta, "categorical", 1, generator=generator(1))[0]
    assert calls == [5 + int((drawn.argmax(1) != theta.argmax(1)).sum())]


def test_the_gradient_of_f_is_in_it():
    theta, shift = potentials(CATEGORICAL, 4), torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = si.expect(
        lambda y: cost(y) + shift * y[:, 0], theta, "categorical", "score_function", generator=generator()
    )
    drawn: Any = si.sample(theta, "categorical", 10, generator=generator())
    value.sum().backward()
    torch.testing.assert_close(shift.grad, drawn[:, :, 0].mean(0).sum())


# ----------------------------------------------------------------------------- variance


def test_baselines_reduce_the_variance():
    theta = repeated(potentials(CATEGORICAL), 4000)
    spread = {}
    for baseline in ("none", "leave_one_out", "self_critic", "moving_average"):
        estimator = si.get_estimator("score_function", samples=4, baseline=baseline)
        slope(estimator, theta, CATEGORICAL, seed=1)
        spread[baseline] = float(slope(estimator, theta, CATEGORICAL).var(0).sum())
    assert spread["leave_one_out"] < 0.5 * spread["none"]
    assert spread["moving_average"] < 0.5 * spread["none"]
    assert spread["self_critic"] < spread["none"]


def test_a_learned_baseline_reduces_the_variance():
    theta, inputs = repeated(potentials(CATEGORICAL), 4000), torch.zeros(4000, 1)
    guess = Guess()
    estimator = si.get_estimator("score_function", samples=4, baseline=guess)

    def risk(seed: int) -> torch.Tensor:
        return si.expect(
            lambda y, _: cost(y), theta, "categorical", estimator, inputs=inputs, generator=generator(seed)
        )

    untrained = gradients(risk(0), theta).var(0).sum()
    optimizer = torch.optim.SGD(guess.parameters(), lr=0.4)
    for seed in range(1, 10):
        optimizer.zero_grad()
        risk(seed).mean().backward()
        optimizer.step()
    exact = Listed.of(CATEGORICAL).gibbs(potentials(CATEGORICAL))[0]
    assert abs(guess.value.item() - exact.item()) < 0.05
    assert gradients(risk(0), theta).var(0).sum() < 0.5 * untrained


# ----------------------------------------------------------------------------- learned


@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_a_learned_baseline_gets_the_gradient_of_its_squared_error(factor: float):
    theta, guess = potentials(CATEGORICAL, 3), Guess()
    inputs = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    estimator = ScoreFunction(samples=6, baseline=guess)
    value = si.expect(lambda y, x: cost(y), theta, "categorical", estimator, inputs=inputs, generator=generator())
    (factor * value).sum().backward()
    f = torch.stack([cost(y) for y in si.sample(theta, "categorical", 6, generator=generator())])
    # Of the size of what arrives, and of no sign but its own.
    torch.testing.assert_close(guess.value.grad, abs(factor) * (-2 * f).mean(0).sum())
    assert inputs.grad is None or not inputs.grad.any()


def test_a_learned_baseline_is_called_with_the_potentials_where_there_are_no_inputs():
    seen = []

    class Sees(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            seen.append(given)
            return given[0].new_zeros(given[0].shape[:2])

    unary, transition = torch.randn(2, 3, 4, 2, requires_grad=True), torch.randn(2, 2)
    si.expect(lambda y: cost(y), (unary, transition), "chain", ScoreFunction(baseline=Sees()), lengths=[[4, 1, 2]] * 2)
    assert [t.shape for t in seen[0]] == [(2, 3, 4, 2), (2, 3, 2, 2)]
    assert not any(t.requires_grad for t in seen[0])
    assert not seen[0][0][:, 1, 1:].any()  # the padding


@pytest.mark.parametrize("shape", [(), (4, 1), (3,)])
def test_a_baseline_of_the_wrong_shape(shape: tuple[int, ...]):
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(shape)

    with pytest.raises(si.InvalidInputError, match=r"baseline: the module must return one .* \(4,\), got shape"):
        si.expect(cost, potentials(CATEGORICAL, 4), "categorical", ScoreFunction(baseline=Wrong()))


# ----------------------------------------------------------------------------- moving averages


def test_a_moving_average_is_of_earlier_calls_and_in_the_state():
    theta, estimator = potentials(CATEGORICAL, 2), ScoreFunction(samples=3, baseline=MovingAverage(decay=0.5))
    means = []
    for seed in range(3):
        value = si.expect(cost, theta, "categorical", estimator, generator=generator(seed))
        means.append(value.mean().item())
    state = estimator.state_dict()
    assert list(state) == ["baseline.average", "baseline.calls"]
    expected = (means[0] / 4 + means[1] / 2 + means[2]) / (1 / 4 + 1 / 2 + 1)
    assert state["baseline.average"].item() / (1 - 0.5**3) == pytest.approx(expected)

    other = ScoreFunction(samples=3, baseline=MovingAverage(decay=0.5))
    before = slope(other, theta, CATEGORICAL)
    other.load_state_dict(state)
    torch.testing.assert_close(slope(other.eval(), theta, CATEGORICAL), slope(estimator.eval(), theta, CATEGORICAL))
    assert not torch.equal(slope(other, theta, CATEGORICAL), before)
    assert other.state_dict()["baseline.calls"] == 3  # as it is in evaluation


def test_a_moving_average_is_of_no_use_by_name():
    with pytest.raises(si.InvalidInputError, match=r"keeps a state.*get_estimator"):
        si.expect(cost, potentials(CATEGORICAL), "categorical", "score_function", baseline="moving_average")


def test_a_copy_keeps_its_own_average():
    theta, estimator = potentials(CATEGORICAL, 2), ScoreFunction(samples=3, baseline="moving_average")
    slope(estimator, theta, CATEGORICAL)
    other = copy.deepcopy(estimator)
    slope(other, theta, CATEGORICAL)
    assert estimator.state_dict()["baseline.calls"] == 1
    assert other.state_dict()["baseline.calls"] == 2


def test_a_baseline_of_one_s_own():
    class Half(Baseline):
        def forward(self, found: FunctionValues, samples: int) -> torch.Tensor:
            return torch.full_like(found.values, 0.5)

    theta = potentials(CATEGORICAL, 2)
    shifted = slope(ScoreFunction(baseline="none"), theta, CATEGORICAL, f=lambda y: cost(y) - 0.5)
    torch.testing.assert_close(slope(ScoreFunction(baseline=Half()), theta, CATEGORICAL), shifted)


# ----------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"samples": 1}, 'baseline="leave_one_out" needs samples of at least 2, got 1; use more samples'),
        ({"baseline": "mean"}, 'baseline must be "none", "moving_average", "leave_one_out", "self_critic" or a torch'),
        ({"baseline": 0.5}, "baseline must be .* got 0.5"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str):
    with pytest.raises(si.InvalidInputError, match=message):
        si.get_estimator("score_function", **options)


@pytest.mark.parametrize("decay", [1.0, -0.1, True, "0.9"])
def test_a_wrong_decay(decay: Any):
    with pytest.raises(si.InvalidInputError, match="decay must be a number of at least 0 and below 1"):
        MovingAverage(decay)


def test_second_derivatives_are_estimates_too():
    theta = repeated(potentials(CATEGORICAL), 3000)
    v = torch.linspace(-1, 1, 4, dtype=torch.float64)
    value = si.expect(cost, theta, "categorical", "score_function", samples=30, baseline="none", generator=generator())
    (first,) = torch.autograd.grad(value.sum(), theta, create_graph=True)
    (second,) = torch.autograd.grad((first @ v).sum(), theta)
    one = potentials(CATEGORICAL)
    (exact,) = torch.autograd.grad(si.expect(cost, one, "categorical").sum(), one, create_graph=True)
    (exact,) = torch.autograd.grad((exact @ v).sum(), one)
    error = second.std(0) / len(second) ** 0.5
    assert bool(((flat(second).mean(0) - exact[0]).abs() <= 4 * error).all())
