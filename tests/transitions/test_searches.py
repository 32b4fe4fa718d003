"""Greedy decoding, beams, samples with and without replacement, and log-probabilities, against enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.transitions import PlackettLuce, ShiftReduce, enumerate_sequences
from structinf.transitions.action_blocks import ActionBlocks, number_of_blocks
from transition_tables import LongSequences, Table, as_dict, listed, table, within

LOG_P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()


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
