"""Searches at their limits: dead ends, ties, empty batches, large scores, gradients, and errors of systems."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import structinf as si
from structinf.transitions import BitsInOrder, PlackettLuce, ShiftReduce, enumerate_sequences
from transition_tables import LongSequences, Table, table


def test_dead_ends():
    scores = torch.full((2, 64, 3), -torch.inf)
    scores[1, 0, 0] = 0.0
    for found in (
        si.decode_beam(Table(3), scores, 2),
        si.stochastic_beam(Table(3), scores, 2),
        si.sample_ancestral(Table(3), scores, 2),
    ):
        assert found.valid[0].tolist() == [False, True]
        assert found.scores[0].tolist() == [-torch.inf, 0.0]
        assert found.actions[0].tolist() == [[-1], [0]]
    assert not si.decode_beam(Table(3), scores[:1], 2).valid.any()
    assert not si.stochastic_beam(LongSequences(torch.zeros(3, 0)), scores, 2).valid.any()
    assert si.decode_greedy(Table(3), scores).valid.tolist() == [False, True]


def test_more_sequences_than_there_are():
    found = si.stochastic_beam(BitsInOrder(), torch.zeros(3, 2), 7)
    assert found.valid.sum(0).tolist() == [4] * 3
    assert (found.threshold == -torch.inf).all()
    assert (found.inclusion[:4] == 1).all()
    assert not found.inclusion[4:].any()


def test_ties_are_in_a_fixed_order():
    found = si.decode_beam(BitsInOrder(), torch.zeros(2, 3), 8)
    assert found.structures[:, 1].tolist() == [list(map(float, bits)) for bits in itertools.product((0, 1), repeat=3)]
    wide = torch.zeros(1, 1000).index_fill(1, torch.tensor([7, 500]), 1.0)
    assert si.decode_beam(PlackettLuce(k=1), wide, 4).actions[:, 0, 0].tolist() == [7, 500, 0, 1]


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batches_and_length_1(batch):
    theta = torch.zeros(batch, 1, 1)
    for found in (
        si.decode_beam(ShiftReduce(), theta, 2),
        si.sample_ancestral(ShiftReduce(), theta, 2),
        si.stochastic_beam(ShiftReduce(), theta, 2),
    ):
        assert found.structures.shape == (2, batch, 1, 1)
        assert found.actions.shape[:2] == (2, batch)
    assert si.sequence_log_prob(ShiftReduce(), theta, torch.zeros(batch, 1, dtype=torch.int64)).shape == (batch,)
    assert si.sample_ancestral(ShiftReduce(), theta, 0).scores.shape == (0, batch)


def test_large_scores_in_float32():
    theta = 1000 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for found in (si.decode_beam(PlackettLuce(), theta, 5), si.stochastic_beam(PlackettLuce(), theta, 5)):
        exact = PlackettLuce().log_prob(theta.double(), found.actions)
        torch.testing.assert_close(found.scores, exact, rtol=1e-6, atol=1e-3)
        assert found.valid.all()


def test_gradients_of_log_probabilities():
    scores = table(3, 3, 3, forbidden=0.2).requires_grad_()
    found = enumerate_sequences(Table(3), scores)
    log_p = si.sequence_log_prob(Table(3), scores, found.actions)
    p = torch.where(found.valid, log_p, -torch.inf).exp()
    weight = torch.linspace(-1, 1, len(p), dtype=torch.float64)[:, None]
    (gradient,) = torch.autograd.grad((p * weight).sum(), scores)
    assert gradient.isfinite().all()
    # Σ_a p(a) ∇log p(a) f(a), as finite differences of the enumeration.
    step = 1e-6
    for index in [(0, 0, 1), (1, 2, 0), (2, 3, 2)]:
        if scores[index] == -torch.inf:
            continue
        values = []
        for sign in (1, -1):
            moved = scores.detach().clone()
            moved[index] += sign * step
            values.append((si.sequence_log_prob(Table(3), moved, found.actions).exp() * found.valid * weight).sum())
        torch.testing.assert_close(gradient[index], (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-8)


def test_log_probabilities_of_wrong_actions():
    theta = torch.zeros(2, 3, requires_grad=True)
    repeated = torch.tensor([[0, 0, 1], [2, 1, 0]])
    log_p = si.sequence_log_prob(PlackettLuce(), theta, repeated)
    assert log_p.tolist() == pytest.approx([-torch.inf, -math.log(6)])
    log_p[1].backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    with pytest.raises(si.InvalidInputError, match=r"actions must have shape \(\.\.\., 2, T\)"):
        si.sequence_log_prob(PlackettLuce(), theta, repeated[:1])
    with pytest.raises(si.InvalidInputError, match="below A = 3"):
        si.sequence_log_prob(PlackettLuce(), theta, repeated + 1)
    with pytest.raises(si.InvalidInputError, match="after its end"):
        si.sequence_log_prob(PlackettLuce(k=1), theta, repeated)
    with pytest.raises(TypeError, match="int64"):
        si.sequence_log_prob(PlackettLuce(), theta, repeated.float())
    with pytest.raises(si.InvalidInputError, match="in step 3, after its end"):
        si.sequence_log_prob(BitsInOrder(), theta, torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(si.InvalidInputError, match="action after −1"):
        si.sequence_log_prob(BitsInOrder(), theta, torch.tensor([[1, -1, 1], [0, 0, 0]]))
    with pytest.raises(si.InvalidInputError, match="temperature 1e-300 is too small"):
        si.sequence_log_prob(BitsInOrder(), theta, torch.zeros(2, 3, dtype=torch.int64), temperature=1e-300)


def test_errors_of_systems():
    class Endless(Table):
        max_steps = 5

        def done(self, state):
            return torch.zeros_like(state.ended)

        def step(self, state, action):
            return state

    class NoNumber(Table):
        def actions(self, state):
            return super().actions(state) * torch.nan

    class Transposed(Table):
        def actions(self, state):
            return super().actions(state).T

    scores = table(2, 3, 2)
    for call in (si.decode_greedy, lambda *a: si.sample_ancestral(*a, 2)):
        with pytest.raises(si.PluginError, match="max_steps = 5"):
            call(Endless(2), scores)
    with pytest.raises(si.PluginError, match=r"NaN or \+inf for the state in row 0"):
        si.decode_greedy(NoNumber(2), scores)
    with pytest.raises(si.PluginError, match=r"must return scores of shape \(2, A\)"):
        si.decode_greedy(Transposed(2), scores)
    with pytest.raises(TypeError, match=r"must be a structinf\.TransitionSystem, got 'bits'"):
        si.decode_greedy("bits", scores)  # type: ignore[arg-type]
    with pytest.raises(si.InvalidInputError, match="k must be an integer of at least 1"):
        si.decode_beam(Table(2), scores, 0)
    for penalty, message in ((math.inf, "length_penalty must be finite"), (1e5, "length_penalty .* is too large")):
        with pytest.raises(si.InvalidInputError, match=message):
            si.decode_beam(Table(2), scores, 1, length_penalty=penalty)
    for wrong in ((scores[:, 0],), (scores[:, 0], [1, 1], 2)):
        with pytest.raises(si.InvalidInputError, match="inputs must be a tensor, or a tuple"):
            si.decode_greedy(BitsInOrder(), wrong)
    with pytest.raises(si.InvalidInputError, match=r"lengths must be integers .* in torch\.float32"):
        si.decode_greedy(BitsInOrder(), (scores[:, 0], torch.ones(2)))
    with pytest.raises(TypeError, match="lengths must be a tensor or list"):
        si.decode_greedy(BitsInOrder(), (scores[:, 0], "x"))
    with pytest.raises(si.UnsupportedError, match="more than 5 sequences"):
        enumerate_sequences(Table(2), scores, most=5)
