"""Segmentations scored by their steps, boundaries and durations, against scores of segments and enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import structinf as si
from segmentation_scores import by_segments, scores_with_boundaries
from structinf.dp import HypergraphBuilder
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import as_tuple
from structinf_oracles.chain import Chain
from structinf_oracles.common import segment_boundaries
from structinf_oracles.semi_markov import SemiMarkov

pytestmark = pytest.mark.slow

INF = math.inf


@pytest.mark.parametrize("transition", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_boundaries_score_segments(transition, scale):
    """Values, marginals, Hessian products and the best structure equal those of the same scores by segments."""
    theta = tuple(t * scale for t in scores_with_boundaries(25, 19, 3, 3, transition))
    theta[0][0, 4, 1] = theta[0][1, 10, :2] = theta[1][2, 3, 0, 0] = theta[2][0, 2, 2] = -INF
    if transition:
        theta[3][0, 1, 0] = -INF
    lengths = torch.tensor([25, 12, 1])
    oracle = SemiMarkov().bind(lengths=lengths)
    leaves = tuple(t.clone().requires_grad_() for t in theta)
    expected = oracle.log_partition(by_segments(leaves))
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    gradient = torch.autograd.grad(expected @ weight, leaves, create_graph=True)
    value, mean = oracle.log_partition_and_marginals(theta)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-10)
    room = {"rtol": 1e-9, "atol": 1e-12 * scale}
    for actual, one in zip(oracle.log_partition_vjp(theta, weight), gradient, strict=True):
        torch.testing.assert_close(actual, one.detach(), **room)
    assert all(bool((t >= 0).all()) for t in mean)
    torch.testing.assert_close(mean[0].sum(2), (torch.arange(25) < lengths[:, None]).double(), rtol=0, atol=1e-10)
    if scale == 1:
        v = scores_with_boundaries(25, 19, 3, 3, transition, seed=1)
        along = sum((g * d).sum() for g, d in zip(gradient, v, strict=True))
        products = torch.autograd.grad(along, leaves)
        actual = oracle.covariance_product(theta, v)
        for one, product in zip(actual, products, strict=True):
            weighted = one * weight.view(-1, *[1] * (one.ndim - 1))
            weighted = weighted.sum(0, keepdim=True) if len(product) == 1 else weighted
            torch.testing.assert_close(weighted, product, rtol=1e-9, atol=1e-10)
    assert torch.equal(oracle.decode(oracle.argmax(theta)), oracle.decode(oracle.argmax(by_segments(theta))))


def test_segments_of_one_step_with_boundaries_are_a_chain():
    steps, boundaries, durations, transition = scores_with_boundaries(3000, 1, 4)
    unary = steps + boundaries.sum(2) + durations
    value, mean = SemiMarkov().log_partition_and_marginals((steps, boundaries, durations, transition))
    expected, (tags, moves) = Chain().log_partition_and_marginals((unary, transition))
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(mean[0], tags, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(mean[3], moves, rtol=1e-9, atol=1e-11)


def test_long_series_need_no_graph(monkeypatch):
    monkeypatch.setattr(segment_boundaries, "build", None)
    theta = tuple(t.float()[:1].requires_grad_() for t in scores_with_boundaries(1500, 100, 2))
    (y,) = si.relax(theta, "semi_markov", "map")[:1]
    assert y.sum() == 1500
    loss = si.FenchelYoungLoss("semi_markov", "marginals")
    labels = si.decode(si.relax(theta, "semi_markov", "map"), "semi_markov")
    loss(theta, labels).backward()
    assert all(t.grad is not None and bool(t.grad.isfinite().all()) for t in theta)
    assert theta[0].grad.abs().max() > 1e-4
    sparse = si.relax(theta, "semi_markov", "sparsemap")
    torch.testing.assert_close(sparse[0].sum(-1), torch.ones(1, 1500))
    sparse[1].square().sum().backward()
    generator = torch.Generator().manual_seed(0)
    samples = si.sample(theta, "semi_markov", 3, generator=generator)
    assert torch.equal(samples[0].sum(-1), torch.ones(3, 1, 1500))
    assert SemiMarkov().decode(tuple(t[0] for t in samples)).shape == (1, 1500, 3)
    fixed = tuple(t.detach() for t in theta)
    log_probs = si.log_prob(fixed, samples, "semi_markov")
    assert si.entropy(fixed, "semi_markov").item() == pytest.approx(-log_probs.mean().item(), rel=0.1)


@pytest.mark.parametrize("mask", [torch.finfo(torch.float64).min, torch.finfo(torch.float32).min, -1e12, -1e6])
@pytest.mark.parametrize("transition", [False, True])
def test_masks_leave_other_scores_their_digits(mask, transition):
    theta = scores_with_boundaries(15, 6, 3, 2, transition)
    is_masked = torch.rand(2, 15, 3, generator=torch.Generator().manual_seed(0)) < 0.3
    is_masked[:, :, 0] &= ~is_masked.all(2)
    masked, forbidden = ((theta[0].masked_fill(is_masked, number), *theta[1:]) for number in (mask, -INF))
    oracle, v = SemiMarkov(), scores_with_boundaries(15, 6, 3, 2, transition, seed=1)
    if transition:
        masked[3][0, 0, 1] = mask
        forbidden = (*forbidden[:3], forbidden[3].masked_fill(forbidden[3] == mask, -INF))
    value, mean = oracle.log_partition_and_marginals(masked)
    expected, expected_mean = oracle.log_partition_and_marginals(by_segments(forbidden))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    steps = torch.stack([mean[0], SemiMarkov().marginals(forbidden)[0]])
    torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=1e-8)
    segments = as_tuple(expected_mean)[0]
    torch.testing.assert_close(mean[2], segments.sum(1), rtol=0, atol=1e-8)
    products = oracle.covariance_product(masked, v), oracle.covariance_product(forbidden, v)
    for found, other in zip(*products, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-6)
    assert torch.equal(oracle.argmax(masked)[0], oracle.argmax(forbidden)[0])


def test_graphs_that_are_too_large():
    theta = tuple(t[:1] for t in scores_with_boundaries(20_000, 300, 2))
    with pytest.raises(
        UnsupportedError, match=r"20000 steps, 300 durations and 2 labels, .* graph of 24,000,000 nodes"
    ):
        si.topk(theta, "semi_markov", 2)


def test_sparsemap_with_and_without_the_graph_agree(monkeypatch):
    theta = scores_with_boundaries(12, 4, 2, 2)
    expected = si.relax(theta, "semi_markov", "sparsemap", tolerance=1e-6)
    monkeypatch.setattr(SemiMarkov, "has_faster_argmax", lambda *_: True)
    for found, other in zip(si.relax(theta, "semi_markov", "sparsemap", tolerance=1e-6), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-5)


def test_samples_with_boundaries_have_the_marginals():
    for transition in (False, True):
        theta = scores_with_boundaries(6, 3, 2, 2, transition)
        oracle = SemiMarkov().bind(lengths=torch.tensor([6, 4]))
        samples = oracle.sample(theta, 4000, torch.Generator().manual_seed(0))
        for drawn, mean in zip(samples, oracle.marginals(theta), strict=True):
            torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.06)


def test_boundaries_without_structures():
    steps, boundaries, durations = scores_with_boundaries(4, 2, 2, 2, transition=False)
    steps[1, 2] = -INF
    for ask in (SemiMarkov().argmax, SemiMarkov().log_partition, SemiMarkov().marginals):
        with pytest.raises(InfeasibleError, match="batch index 1"):
            ask((steps, boundaries, durations))
    durations[0, 0] = -INF
    with pytest.raises(InfeasibleError, match="batch index 0"):
        SemiMarkov().bind(lengths=torch.tensor([3, 2])).argmax((steps, boundaries, durations))
    empty = tuple(t[:0] for t in scores_with_boundaries(4, 2, 2, transition=False))
    assert SemiMarkov().log_partition(empty).shape == (0,)


def test_probabilities_need_structures():
    theta = scores_with_boundaries(4, 2, 2)
    names = torch.tensor([[[0, 2, 1], [2, 1, 1], [3, 1, 0], [-1, -1, -1]]])
    oracle = SemiMarkov()
    y = oracle.encode(names, theta)
    assert oracle.log_prob(theta, y).isfinite()
    for tensor, index in ((0, (0, 0, 0)), (1, (0, 1, 0, 1)), (2, (0, 1, 0)), (3, (0, 1, 1))):
        changed = tuple(t.clone() for t in y)
        changed[tensor][index] += 1
        with pytest.raises(InvalidInputError, match=r"not a structure .* at batch index 0"):
            oracle.log_prob(theta, changed)
    with pytest.raises(InvalidInputError, match=r"not a structure .* at batch index 0"):
        oracle.bind(lengths=torch.tensor([3])).log_prob(theta, y)
    long = SemiMarkov().encode(
        torch.tensor([[[0, 3, 1], [3, 1, 1], [-1] * 3, [-1] * 3]]), scores_with_boundaries(4, 3, 2)
    )
    with pytest.raises(InvalidInputError, match=r"not a structure .* at batch index 0"):
        oracle.log_prob(theta, (*long[:2], long[2][:, 1:], long[3]))


def test_boundaries_of_wrong_shapes():
    steps, boundaries, durations, transition = scores_with_boundaries(4, 2, 3)
    for theta in (
        (steps, boundaries[:, :3], durations),
        (steps, boundaries[:, :, :1], durations),
        (steps, boundaries, durations[..., :2]),
        (steps, boundaries, durations[:, :0]),
        (steps, boundaries, durations, transition[:, :2]),
    ):
        with pytest.raises(InvalidInputError, match=r"takes segments .* after the batch dimensions"):
            SemiMarkov().validate(theta)
    with pytest.raises(InvalidInputError, match=r"boundaries must have shape \(..., T, 2, S\)"):
        SemiMarkov.segment_scores(steps, durations, boundaries[:, :3])


class Pairs(SemiMarkov):
    """Segmentations into segments of two steps, from scores of steps, boundaries and durations."""

    def build(self, event_shape):
        graph = HypergraphBuilder(event_shape)
        steps, boundaries, durations = graph.parts
        done = graph.nodes(len(steps) + 1)
        opened, inside, labelled, closed = graph.nodes(4, *steps.shape)
        graph.add(done[0])
        graph.add(opened[:-1], done[:-2, None], part=boundaries[:-1, 0])
        graph.add(inside[:-1], opened[:-1], part=steps[:-1])
        graph.add(labelled[1:], inside[:-1], part=steps[1:])
        graph.add(closed[1:], labelled[1:], part=boundaries[1:, 1])
        graph.add(done[2:, None], closed[1:], part=durations[1])
        return graph.build(done[-1], prune=True)


def test_another_recursion_of_boundaries_takes_effect():
    theta = scores_with_boundaries(6, 3, 2, batch=2, transition=False)
    labels = list(itertools.product((0, 1), repeat=3))
    segments = [[[2 * i, 2, label] for i, label in enumerate(each)] + [[-1] * 3] * 3 for each in labels]
    like = tuple(t[:1].expand(8, *t.shape[1:]) for t in theta)
    y = SemiMarkov().encode(torch.tensor(segments), like)
    flat = torch.cat([t.flatten(1) for t in y], 1)
    totals = torch.cat([t.expand(2, *t.shape[1:]).flatten(1) for t in theta], 1) @ flat.T
    pairs = Pairs()
    assert pairs.count(theta) == [8, 8]
    torch.testing.assert_close(pairs.log_partition(theta), totals.logsumexp(1))
    torch.testing.assert_close(pairs.entropy(theta), torch.distributions.Categorical(logits=totals).entropy())
    torch.testing.assert_close(pairs.log_prob(like, y), totals[0].log_softmax(0))
    for relaxation, expected in (("map", flat[totals.argmax(1)]), ("marginals", totals.softmax(1) @ flat)):
        mean = si.relax(theta, pairs, relaxation)
        torch.testing.assert_close(torch.cat([t.flatten(1) for t in mean], 1), expected)
    drawn = si.decode(si.sample(theta, pairs, 5, generator=torch.Generator().manual_seed(0)), pairs)
    assert (drawn[:, :, :3, 1] == 2).all()
