"""Greedy decoding, beams, samples with and without replacement, and log-probabilities, against enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.transitions import BitsInOrder, PlackettLuce, Shared, ShiftReduce, enumerate_sequences
from structinf.transitions.action_blocks import ActionBlocks, number_of_blocks

LOG_P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()


@dataclass(frozen=True)
class Prefix:
    """The tokens of a sequence so far, −1 for no token."""

    table: Shared
    tokens: Tensor
    count: Tensor
    ended: Tensor


class Table(si.TransitionSystem):
    """Sequences of at most ``longest`` tokens, which end with token 0, with scores by the number of the prefix.

    A table (B, prefixes, A) holds the scores. The prefix of tokens a, b has the number (a + 1) (A + 1) + (b + 1).
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def start(self, inputs: Any) -> Prefix:
        batch = len(inputs)
        tokens = torch.full((batch, self.longest), -1)
        zero = torch.zeros(batch, dtype=torch.int64)
        return Prefix(Shared.of(inputs), tokens, zero, zero.bool())

    def actions(self, state: Prefix) -> Tensor:
        number = torch.zeros_like(state.count)
        base = state.table.values.shape[2] + 1
        for i in range(self.longest):
            number = torch.where(state.count > i, number * base + state.tokens[:, i] + 1, number)
        return state.table.at(number)

    def step(self, state: Prefix, action: Tensor) -> Prefix:
        tokens = state.tokens.scatter(1, state.count[:, None], action[:, None])
        return replace(state, tokens=tokens, count=state.count + 1, ended=action == 0)

    def done(self, state: Prefix) -> Tensor:
        return state.ended | (state.count == self.longest)

    def structure(self, state: Prefix) -> Tensor:
        return state.tokens


def table(batch: int, actions: int, longest: int, seed: int = 0, forbidden: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = batch, (actions + 1) ** longest, actions
    scores = torch.randn(shape, dtype=torch.float64, generator=generator)
    return scores.masked_fill(torch.rand(shape, generator=generator) < forbidden, -torch.inf)


def listed(scores: Tensor, longest: int) -> dict[tuple[int, ...], float]:
    """Return all complete sequences with their log-probabilities, from the scores (prefixes, A) of an instance."""
    found, base = {}, scores.shape[1] + 1
    waiting: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while waiting:
        prefix, total = waiting.pop()
        number = 0
        for token in prefix:
            number = number * base + token + 1
        row = scores[number]
        if row.max() == -torch.inf:
            continue
        for token, log_p in enumerate((row - row.logsumexp(0)).tolist()):
            after = (*prefix, token)
            if log_p == -math.inf:
                continue
            if token == 0 or len(after) == longest:
                found[after] = total + log_p
            else:
                waiting.append((after, total + log_p))
    return found


def as_dict(found: Any, b: int) -> dict[tuple[int, ...], float]:
    return {
        tuple(a for a in actions if a >= 0): score
        for actions, score, valid in zip(
            found.actions[:, b].tolist(), found.scores[:, b].tolist(), found.valid[:, b].tolist(), strict=True
        )
        if valid
    }


# ------------------------------------------------------------------------------- known values


def test_shift_reduce_of_four_leaves():
    found = enumerate_sequences(ShiftReduce(), torch.zeros(1, 4, 4, dtype=torch.float64))
    p = {"".join("SR"[a] for a in actions): s for actions, s in as_dict(found, 0).items()}
    expected = {"SSSSRRR": 0.25, "SSSRSRR": 0.125, "SSSRRSR": 0.125, "SSRSSRR": 0.25, "SSRSRSR": 0.25}
    assert {name: pytest.approx(math.exp(s)) for name, s in p.items()} == expected
    assert -(found.scores.exp() * found.scores).sum().item() == pytest.approx(1.559581, abs=1e-6)


def two_steps() -> Tensor:
    scores = torch.full((1, 27, 3), -torch.inf, dtype=torch.float64)
    # Tokens are 0, 1 and 2; token 0, the end, has no probability in the first step.
    scores[0, 0] = torch.tensor([0.0, 0.55, 0.45]).log()
    scores[0, 2] = torch.tensor([0.4, 0.3, 0.3]).log()
    scores[0, 3] = torch.tensor([0.9, 0.1, 0.0]).log()
    return scores


def test_greedy_and_beam_of_two():
    greedy = si.decode_greedy(Table(2), two_steps())
    assert greedy.actions.tolist() == [[1, 0]]
    assert greedy.scores.exp().item() == pytest.approx(0.22)
    beam = si.decode_beam(Table(2), two_steps(), 2)
    assert beam.actions[:, 0].tolist() == [[2, 0], [1, 0]]
    torch.testing.assert_close(beam.scores[:, 0].exp(), torch.tensor([0.405, 0.22]).double(), rtol=1e-6, atol=0)


def within(counts: Tensor, p: Tensor, draws: int) -> bool:
    """Whether frequencies are within six standard errors of the probabilities."""
    return bool(((counts / draws - p).abs() <= 6 * (p * (1 - p) / draws).sqrt()).all())


def test_two_draws_without_replacement():
    draws = 20_000
    generator = torch.Generator().manual_seed(0)
    found = si.stochastic_beam(PlackettLuce(k=1), LOG_P.expand(draws, 4), 2, generator=generator)
    first, second = found.actions[..., 0]
    pairs = (first * 4 + second).bincount(minlength=16)
    p = LOG_P.exp()
    exact = (p[:, None] * p / (1 - p[:, None])).fill_diagonal_(0)
    assert within(pairs.view(4, 4), exact, draws)
    assert (exact + exact.T)[0, 1:3].tolist() == pytest.approx([0.514286, 0.238235], abs=1e-6)
    inclusion = torch.tensor([0.828837, 0.668731, 0.372180, 0.130252], dtype=torch.float64)
    assert within((found.actions[..., 0, None] == torch.arange(4)).sum((0, 1)), inclusion, draws)
    # Σ p / inclusion f is unbiased: here for f = (1, 2, 0, 4).
    values = (found.scores.exp() / found.inclusion * torch.tensor([1.0, 2, 0, 4])[found.actions[..., 0]]).sum(0)
    assert abs(values.mean() - 1.3) < 6 * values.std() / draws**0.5


# ------------------------------------------------------------------------------- random systems


@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_enumeration_and_wide_beams(forbidden):
    scores = table(4, 3, 3, forbidden=forbidden)
    every = enumerate_sequences(Table(3), scores)
    beam = si.decode_beam(Table(3), scores, 30)
    assert beam.scores.shape == (30, 4)
    for b in range(4):
        expected = listed(scores[b], 3)
        assert as_dict(every, b) == as_dict(beam, b) == pytest.approx(expected)
        assert list(as_dict(beam, b)) == sorted(expected, key=lambda a: -expected[a])
    assert (beam.structures.masked_fill(~beam.valid[..., None], -1) == beam.actions).all()
    assert not beam.structures[~beam.valid].any()


def search_one_by_one(scores: Tensor, longest: int, k: int, penalty: float) -> list[tuple[tuple[int, ...], float]]:
    """Return the beam of one instance, by lists."""
    base = scores.shape[1] + 1

    def key(item: tuple[tuple[int, ...], float]) -> float:
        return item[1] / ((5 + len(item[0])) / 6) ** penalty

    def is_done(a: tuple[int, ...]) -> bool:
        return len(a) == longest or (len(a) > 0 and a[-1] == 0)

    beam: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while not all(is_done(a) for a, _ in beam):
        children = []
        for a, total in beam:
            if is_done(a):
                children.append((a, total))
                continue
            number = 0
            for token in a:
                number = number * base + token + 1
            log_p = scores[number] - scores[number].logsumexp(0)
            children.extend(((*a, token), total + s) for token, s in enumerate(log_p.tolist()) if s > -math.inf)
        beam = sorted(children, key=key, reverse=True)[:k]
    return beam


@pytest.mark.parametrize(("k", "penalty"), [(1, 0.0), (2, 0.0), (3, 0.7), (4, 3.0)])
@pytest.mark.parametrize(("actions", "longest"), [(4, 4), (37, 2)])
def test_beams_against_lists(k, penalty, actions, longest):
    scores = table(5, actions, longest, seed=1, forbidden=0.2)
    beam = si.decode_beam(Table(longest), scores, k, length_penalty=penalty)
    for b in range(5):
        expected = search_one_by_one(scores[b], longest, k, penalty)
        assert list(as_dict(beam, b).items()) == [(a, pytest.approx(s)) for a, s in expected]
    if k == 1:
        torch.testing.assert_close(si.decode_greedy(Table(longest), scores).scores, beam.scores[0])


def test_sums_of_scores():
    theta = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0))
    beam = si.decode_beam(ShiftReduce(), theta, 6, normalize=False)
    best = si.topk(theta, "binary_tree", 6)
    torch.testing.assert_close(beam.scores.float(), best.scores)
    torch.testing.assert_close(beam.structures, best.structures)
    assert beam.valid.sum(0).tolist() == [5] * 5


def test_samples():
    draws, scores = 10_000, table(2, 3, 3, forbidden=0.3)
    generator = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        found = si.sample_ancestral(Table(3), scores, draws, temperature=temperature, generator=generator)
        log_p = si.sequence_log_prob(Table(3), scores, found.actions, temperature=temperature)
        torch.testing.assert_close(torch.where(found.valid, log_p, -torch.inf), found.scores)
        for b in range(2):
            expected = listed(scores[b] / temperature, 3)
            counts = dict.fromkeys(expected, 0)
            for a in found.actions[found.valid[:, b], b].tolist():
                counts[tuple(x for x in a if x >= 0)] += 1
            p = torch.tensor([math.exp(expected[a]) for a in expected])
            assert within(torch.tensor([counts[a] for a in expected]), p, draws)


def test_stochastic_beams_of_sequences():
    """The set of two sequences has its exact probability, also with forbidden actions and beside finished sequences."""
    draws, scores = 10_000, table(1, 3, 3, seed=3, forbidden=0.3)
    expected = {a: math.exp(s) for a, s in listed(scores[0], 3).items()}
    total = sum(expected.values())
    assert total == pytest.approx(1.0)
    generator = torch.Generator().manual_seed(0)
    found = si.stochastic_beam(Table(3), scores.expand(draws, -1, -1), 2, generator=generator)
    pairs = dict.fromkeys(itertools.permutations(expected, 2), 0)
    for one, two in found.actions.transpose(0, 1).tolist():
        pairs[tuple(x for x in one if x >= 0), tuple(x for x in two if x >= 0)] += 1
    p = torch.tensor([expected[a] * expected[b] / (1 - expected[a]) for a, b in pairs])
    assert within(torch.tensor(list(pairs.values())), p, draws)
    assert (found.keys[0] >= found.keys[1]).all()
    assert (found.keys[1] > found.threshold).all()


@pytest.mark.parametrize("actions", [128, 150])
def test_blocks_of_actions_leave_out_no_sequence(monkeypatch, actions):
    """With many actions, a search looks only at the children in blocks above a bound."""
    scores = 3 * table(3, actions, 2, seed=2, forbidden=0.3).float()
    scores[0, 0] = -torch.inf
    scores[1, 0] = torch.randint(3, (actions,), generator=torch.Generator().manual_seed(0)).float()
    scores[2] *= 1000
    found = []
    for blocks in (number_of_blocks(actions), actions, 7, 1):
        monkeypatch.setattr("structinf.transitions.action_blocks.number_of_blocks", lambda _, n=blocks: n)
        beam = si.decode_beam(Table(2), scores, 20, length_penalty=0.5)
        found.append((beam.actions, beam.scores, beam.valid))
        sample = si.stochastic_beam(Table(2), scores, 20, generator=torch.Generator().manual_seed(0))
        assert torch.equal(sample.valid, beam.valid)
        assert (sample.keys[:-1] >= sample.keys[1:]).all()
        listed = si.sequence_log_prob(Table(2), scores, sample.actions)[sample.valid]
        torch.testing.assert_close(sample.scores[sample.valid].float(), listed, rtol=1e-5, atol=1e-4)
    for actions_found, log_p, valid in found[1:]:
        assert torch.equal(actions_found, found[0][0])
        assert torch.equal(valid, found[0][2])
        torch.testing.assert_close(log_p, found[0][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["moderate", "large", "low", "forbidden", "several chunks"])
def test_summaries_of_blocks(monkeypatch, kind, dtype):
    scores = torch.randn(6, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if kind == "large":
        scores = 1000 * scores
    if kind == "low":
        scores = scores - 70
    if kind == "forbidden":
        scores[0], scores[1, 3:], scores[2, ::5] = -torch.inf, -torch.inf, -torch.inf
        scores[3, ::64] = -torch.inf
    if kind == "several chunks":
        monkeypatch.setattr("structinf.transitions.action_blocks._CHUNK", 300)
        scores[3], scores[4] = scores[3] - 1000, scores[4] * 30
    scores = scores.to(dtype)
    blocks = ActionBlocks.of(scores, sums=True)
    padded = torch.nn.functional.pad(scores, (0, 20), value=-torch.inf).double().view(6, 5, 64)
    assert torch.equal(blocks.best.double(), padded.amax(1))
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 1e-12}
    torch.testing.assert_close(blocks.log_sums(), padded.logsumexp(1), **tolerance)
    torch.testing.assert_close(blocks.log_sums_of_rows(), scores.double().logsumexp(1), **tolerance)
    rows, block = torch.tensor([0, 1, 1, 4]), torch.tensor([0, 43, 44, 63])
    assert torch.equal(blocks.children(rows, block).double(), padded[rows, :, block])


def test_stochastic_beams_with_blocks_of_actions():
    """The first draw has its exact probability, and the pair of draws too, with 200 actions in blocks of several."""
    draws, k = 20_000, 2
    scores = 2 * torch.randn(200, generator=torch.Generator().manual_seed(5))
    scores[::7] = -torch.inf
    found = si.stochastic_beam(
        LongSequences(scores[None]), torch.zeros(draws, 1), k, generator=torch.Generator().manual_seed(0)
    )
    p = scores.double().softmax(0)
    first, second = found.actions[..., 0]
    assert within(first.bincount(minlength=200), p, draws)
    assert within(second.bincount(minlength=200), p * ((p / (1 - p)).sum() - p / (1 - p)), draws)
    # The inclusion probability given the threshold makes sums unbiased: that of all probabilities is 1.
    estimates = (p[found.actions[..., 0]] / found.inclusion).sum(0)
    assert abs(estimates.mean().item() - 1) < 6 * estimates.std().item() / draws**0.5


class LongSequences(si.TransitionSystem):
    """Sequences of one action for each row of a table (T, A), with scores that do not depend on the prefix."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def start(self, inputs: Any) -> Tensor:
        return torch.zeros(len(inputs), dtype=torch.int64)

    def actions(self, state: Tensor) -> Tensor:
        return self.scores[state]

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        return state + 1

    def done(self, state: Tensor) -> Tensor:
        return state == len(self.scores)

    def structure(self, state: Tensor) -> Tensor:
        return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_sequences_keep_all_slots(dtype):
    """The rounding errors of large totals leave all k sequences in the beam."""
    scores = torch.randn(100, 40, dtype=dtype, generator=torch.Generator().manual_seed(0))
    system = LongSequences(scores)
    for k, penalty in itertools.product((1, 3), (0.0, 1.0)):
        found = si.decode_beam(system, scores[:2], k, length_penalty=penalty)
        assert found.valid.all()
        torch.testing.assert_close(found.scores[0, 0], scores.double().log_softmax(1).amax(1).sum(), rtol=1e-6, atol=0)
        assert si.stochastic_beam(system, scores[:2], k).valid.all()


# ------------------------------------------------------------------------------- edges


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


# ------------------------------------------------------------------------------- built-in systems


def test_shift_reduce_builds_gold_trees():
    generator = torch.Generator().manual_seed(0)
    for labels, shape in ((None, (5, 5)), (3, (5, 5, 3))):
        theta = torch.randn(6, *shape, generator=generator)
        lengths = torch.tensor([5, 5, 4, 3, 2, 1])
        oracle = si.get_oracle("binary_tree", labelled=labels is not None)
        tree = si.topk(theta, oracle, 1, lengths=lengths)
        spans = si.decode(tree.structures[0], oracle, lengths=lengths)
        system = ShiftReduce(labels=labels)
        mixed = spans[:, torch.randperm(9, generator=generator)]
        actions = system.gold_actions(mixed)
        score = si.sequence_log_prob(system, (theta, lengths), actions, normalize=False)
        torch.testing.assert_close(score, tree.scores[0])
        beam = si.decode_beam(system, (theta, lengths), 100, normalize=False)
        torch.testing.assert_close(beam.structures[0], tree.structures[0])
        with pytest.raises(si.InvalidInputError, match=r"spans must have shape \(B, 2n − 1, "):
            ShiftReduce(labels=None if labels else 3).gold_actions(spans)
    with pytest.raises(TypeError, match="spans must be an int64 tensor"):
        ShiftReduce().gold_actions(torch.zeros(1, 3, 2))


def test_bits_are_those_of_the_oracle():
    theta = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 3, 1])
    found = enumerate_sequences(BitsInOrder(), (theta, lengths))
    assert found.valid.sum(0).tolist() == [16, 8, 2]
    expected = si.log_prob(theta, found.structures, "bits", lengths=lengths)
    torch.testing.assert_close(found.scores[found.valid], expected[found.valid])


def test_plackett_luce_against_its_steps():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    for k in (None, 1, 3):
        system = PlackettLuce(k)
        found = enumerate_sequences(system, theta)
        closed = system.log_prob(theta, found.actions)
        torch.testing.assert_close(closed, found.scores)
        steps = si.sequence_log_prob(system, theta, found.actions)
        weight = torch.randn(len(closed), 1, dtype=torch.float64, generator=generator)
        gradients = [torch.autograd.grad((log_p * weight).sum(), theta)[0] for log_p in (closed, steps)]
        torch.testing.assert_close(*gradients)
        draws = 10_000
        orders = system.sample(theta, draws, generator=generator)
        assert orders.shape == (draws, 3, k or 5)
        index = (orders[:, :, None] == found.actions.transpose(0, 1)).all(-1)
        assert (index.sum(-1) == 1).all()
        assert within(index.sum(0), found.scores.T.exp(), draws)


def test_rankings_are_those_of_the_oracle():
    theta = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([5, 5, 3, 1])
    found = si.decode_greedy(PlackettLuce(), (theta, lengths))
    torch.testing.assert_close(found.structures, best(theta, lengths))
    top = si.decode_greedy(PlackettLuce(2), theta)
    assert (top.structures == torch.where(best(theta, None) >= 4, best(theta, None), 0)).all()


def best(theta: Tensor, lengths: Tensor | None) -> Tensor:
    found = si.relax(theta, "ranking", "map", lengths=lengths)
    assert isinstance(found, Tensor)
    return found


def test_plackett_luce_of_extreme_scores():
    theta = torch.tensor([[0.5, -torch.inf, 1000, -1000.0]], requires_grad=True)
    log_p = PlackettLuce(k=2).log_prob(theta, torch.tensor([[0, 2]]))
    log_p.sum().backward()
    assert log_p.item() == pytest.approx(-999.5)
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, torch.tensor([[1.0, 0, -1, 0]]))
    with pytest.raises(si.InvalidInputError, match="at most once"):
        PlackettLuce().log_prob(theta, torch.tensor([[0, 0]]))
    with pytest.raises(si.InvalidInputError, match="elements from 0 to 3"):
        PlackettLuce().log_prob(theta, torch.tensor([[0, 4]]))
    assert PlackettLuce().log_prob(theta, torch.tensor([[0, 2, 3, 1]])).item() == -torch.inf
    (gradient,) = torch.autograd.grad(PlackettLuce().log_prob(theta, torch.tensor([[0, 2, 3]])).sum(), theta)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0
    with pytest.raises(si.InfeasibleError, match="order of 4 elements"):
        PlackettLuce().sample(theta)
    for wrong, error in ((torch.full((1, 4), torch.nan), "NaN"), (torch.zeros(2, 0), "n at least 1")):
        with pytest.raises(si.InvalidInputError, match=error):
            PlackettLuce().sample(wrong)
    order = torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3]])
    finite = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: PlackettLuce().log_prob(t, order), finite)
    with pytest.raises(TypeError, match="theta"):
        PlackettLuce().log_prob(torch.tensor([1, 2]), torch.tensor([0]))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2)],  # crossing
        [(0, 0), (1, 1), (2, 2), (0, 2), (0, 2)],
        [(0, 0), (0, 0), (2, 2), (0, 1), (0, 2)],
        [(0, 0), (1, 1), (2, 2), (0, 1), (-1, -1)],  # no span of all words
        [(0, 0), (2, 2), (3, 3), (2, 3), (0, 3)],  # a word is missing
        [(1, 1), (2, 2), (3, 3), (1, 2), (1, 3)],
        [(-1, -1)] * 5,
    ],
)
def test_gold_spans_must_form_a_tree(spans):
    good = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2)]
    with pytest.raises(si.InvalidInputError, match=r"spans must form a binary tree.* at batch index 1"):
        ShiftReduce().gold_actions(torch.tensor([good, spans, good]))


def test_gold_spans_in_any_order_and_with_padding():
    spans = torch.tensor(
        [
            [(0, 2), (1, 1), (0, 0), (1, 2), (2, 2)],
            [(-1, -1), (0, 1), (-1, -1), (1, 1), (0, 0)],
            [(0, 0)] + [(-1, -1)] * 4,
        ]
    )
    expected = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, -1, -1], [0, -1, -1, -1, -1]])
    torch.testing.assert_close(ShiftReduce().gold_actions(spans), expected)
    assert ShiftReduce().gold_actions(spans[:0]).shape == (0, 5)
    labelled = torch.cat([spans, torch.where(spans[..., :1] < 0, -1, 2)], 2)
    with pytest.raises(si.InvalidInputError, match="labels between 0 and 1, got 2 at batch index 0"):
        ShiftReduce(labels=2).gold_actions(labelled)


def test_scores_that_are_no_tensors():
    for system, inputs in (
        (ShiftReduce(lambda state: None), torch.zeros(1, 3, 3)),
        (BitsInOrder(lambda state: None), torch.zeros(1, 3)),
    ):
        with pytest.raises(TypeError, match=r"score must return a tensor \(1, 2\), got NoneType"):
            si.decode_greedy(system, inputs)
