"""Segmentations, against enumeration, counts, and chains."""

from __future__ import annotations

import math

import pytest
import torch

import enumerators_subsets as plain
import structinf as si
from hypergraph_program_assertions import Program, every_query
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.parts import as_tuple
from structinf.regularizers import SquaredL2
from structinf_oracles.chain import Chain
from structinf_oracles.common import segment_boundaries
from structinf_oracles.semi_markov import SemiMarkov

pytestmark = pytest.mark.slow

INF = math.inf

FORMS = ["segments", "transition", "pairwise", "boundaries", "boundaries, transition"]


def program(steps, durations, labels, form):
    segments = steps, durations, labels
    counts = (steps, labels), (steps, 2, labels), (durations, labels)
    shapes = {
        "segments": segments,
        "transition": (segments, (labels, labels)),
        "pairwise": (*segments, labels),
        "boundaries": counts,
        "boundaries, transition": (*counts, (labels, labels)),
    }
    return Program(
        SemiMarkov(pairwise=form == "pairwise"),
        shapes[form],
        lambda length: list(plain.semi_markov(*segments, form, length)),
        lambda length: plain.semi_markov_grammar(*segments, form, length),
        lengths=list(range(1, steps + 1)),
    )


PROGRAMS = [
    program(3, 2, 2, "segments"),
    program(3, 2, 2, "transition"),
    program(3, 2, 2, "pairwise"),
    program(4, 3, 1, "segments"),
    program(2, 3, 2, "pairwise"),
    program(1, 1, 2, "segments"),
    program(1, 2, 2, "transition"),
    program(3, 2, 2, "boundaries"),
    program(3, 2, 2, "boundaries, transition"),
    program(1, 2, 2, "boundaries, transition"),
]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)


# ----------------------------------------------------------------------------- known values


def scores_with_boundaries(steps, durations, labels, batch=1, transition=True, seed=0):
    """Scores of steps, boundaries, durations and transitions, and the same scores by segments and transitions."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, steps, labels), (batch, steps, 2, labels), (1, durations, labels), (1, labels, labels)]
    theta = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return theta if transition else theta[:3]


def by_segments(theta):
    steps, boundaries, durations, *transition = theta
    segments = SemiMarkov.segment_scores(steps, durations, boundaries)
    return (segments, *transition) if transition else segments


def potentials(form, steps, durations, labels, batch=1):
    if form.startswith("boundaries"):
        return scores_with_boundaries(steps, durations, labels, batch, "transition" in form)
    segments = torch.randn(batch, steps, durations, labels, dtype=torch.float64)
    transition = torch.randn(1, labels, labels, dtype=torch.float64)
    if form == "segments":
        return segments
    return (segments, transition) if form == "transition" else segments.unsqueeze(3) + transition.unsqueeze(1)


@pytest.mark.parametrize("form", ["segments", "transition", "pairwise"])
def test_counts(form):
    oracle = SemiMarkov(pairwise=form == "pairwise")
    theta = potentials(form, 4, 2, 2, batch=4)
    assert oracle.bind(lengths=torch.tensor([1, 2, 3, 4])).count(theta) == [2, 6, 16, 44]
    # Segments of any size: each step but the first begins a segment, of S labels, or goes on.
    assert oracle.count(potentials(form, 7, 7, 3)) == [3 * 4**6]
    assert oracle.count(potentials(form, 400, 400, 1)) == [2**399]


def test_segments_of_one_step_are_a_chain():
    unary, transition = torch.randn(3, 6, 4, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    lengths = torch.tensor([6, 1, 4])
    chain = Chain().bind(lengths=lengths)
    segments = SemiMarkov().bind(lengths=lengths)
    theta = (unary.unsqueeze(2), transition)
    torch.testing.assert_close(segments.log_partition(theta), chain.log_partition((unary, transition)))
    for ask in ("marginals", "argmax"):
        y, expected = getattr(segments, ask)(theta), getattr(chain, ask)((unary, transition))
        torch.testing.assert_close(y[0].squeeze(2), expected[0])
        torch.testing.assert_close(y[1], expected[1])


def test_pairwise_scores_are_segments_with_transitions():
    """But for the first segment, which reads the row of label 0."""
    segments, transition = potentials("transition", 5, 3, 3, batch=2)
    edges = segments.unsqueeze(3) + transition.unsqueeze(1).unsqueeze(1)
    first = torch.arange(3)
    edges[:, first, first, 0] = segments[:, first, first]
    pairwise, plain_segments = SemiMarkov(pairwise=True), SemiMarkov()
    theta = (segments, transition)
    torch.testing.assert_close(pairwise.log_partition(edges), plain_segments.log_partition(theta))
    mean, expected = pairwise.marginals(edges), plain_segments.marginals(theta)
    torch.testing.assert_close(mean.sum(3), expected[0])
    later = mean.clone()
    later[:, first, first] = 0
    torch.testing.assert_close(later.sum((1, 2)), expected[1])
    smooth = [o.smoothed_value(t, SquaredL2()) for o, t in ((pairwise, edges), (plain_segments, theta))]
    assert (smooth[0] - smooth[1]).abs().max() < 2  # different recursions of the same sums


def test_expected_labels_of_steps_add_up():
    theta = potentials("segments", 9, 4, 3, batch=5)
    lengths = torch.tensor([9, 1, 5, 4, 8])
    mean = SemiMarkov().bind(lengths=lengths).marginals(theta)
    # Each step in use lies in exactly one segment.
    covered = torch.zeros(5, 9, dtype=torch.float64)
    for t in range(9):
        for d in range(min(4, t + 1)):
            covered[:, t - d : t + 1] += mean[:, t, d].sum(1, keepdim=True)
    torch.testing.assert_close(covered, (torch.arange(9) < lengths[:, None]).double())


def test_long_sequences():
    theta = (torch.zeros(2, 1000, 8, 3), torch.zeros(1, 3, 3))
    value = SemiMarkov().bind(lengths=torch.tensor([1000, 7])).log_partition(theta)
    count = [1]
    for i in range(1, 1001):
        count.append(3 * sum(count[max(0, i - 8) : i]))
    assert value.tolist() == pytest.approx([math.log(count[1000]), math.log(count[7])], rel=1e-6)


# ----------------------------------------------------------------------------- ties and padding


def test_ties_go_to_short_segments_and_low_labels():
    for form in FORMS:
        oracle = SemiMarkov(pairwise=form == "pairwise")
        theta = potentials(form, 3, 3, 2)
        zeros = tuple(torch.zeros_like(t) for t in theta) if isinstance(theta, tuple) else torch.zeros_like(theta)
        assert oracle.decode(oracle.argmax(zeros)).tolist() == [[[0, 1, 0], [1, 1, 0], [2, 1, 0]]]


@pytest.mark.parametrize("form", ["segments", "transition", "pairwise"])
def test_parts_that_no_segmentation_uses_are_never_read(form):
    theta = potentials(form, 5, 3, 2, batch=2)
    segments = theta[0] if isinstance(theta, tuple) else theta
    oracle = SemiMarkov(pairwise=form == "pairwise").bind(lengths=torch.tensor([5, 2]))
    expected = oracle.log_partition(theta)
    mask = oracle.valid_parts(theta)
    mask = mask[0] if isinstance(theta, tuple) else mask
    segments.masked_fill_(~mask, math.nan)
    assert not mask[:, 0, 1].any()
    assert not mask[1, 2:].any()
    torch.testing.assert_close(oracle.log_partition(theta), expected)


# ----------------------------------------------------------------------------- labels and costs


def test_labels():
    oracle = SemiMarkov()
    names = torch.tensor([[[0, 2, 1], [2, 1, 1], [3, 3, 0], *[[-1] * 3] * 4], [[0, 1, 0], *[[-1] * 3] * 6]])
    oracle = oracle.bind(lengths=torch.tensor([6, 1]))
    segments, transition = oracle.encode(names, (torch.zeros(2, 7, 3, 2), torch.zeros(1, 2, 2)))
    assert segments.nonzero().tolist() == [[0, 1, 1, 1], [0, 2, 0, 1], [0, 5, 2, 0], [1, 0, 0, 0]]
    assert transition.tolist() == [[[0, 0], [1, 1]], [[0, 0], [0, 0]]]
    assert torch.equal(oracle.decode((segments, transition)), names)
    assert oracle.labels_of_steps(segments).tolist() == [[1, 1, 1, 0, 0, 0, -1], [0, -1, -1, -1, -1, -1, -1]]
    edges = SemiMarkov(pairwise=True).bind(lengths=torch.tensor([6, 1])).encode(names, torch.zeros(2, 7, 3, 2, 2))
    assert edges.nonzero().tolist() == [[0, 1, 1, 0, 1], [0, 2, 0, 1, 1], [0, 5, 2, 1, 0], [1, 0, 0, 0, 0]]


PAD = [-1, -1, -1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([[0, 2, 0], PAD, PAD], "do not end with the last step"),
        ([[0, 3, 0], PAD, PAD], r"between 1 and D = 2 steps, but segment 0 at batch index 1 is \[0, 3, 0\]"),
        ([[0, 1, 0], [1, 0, 0], PAD], r"between 1 and D = 2 steps, but segment 1 at batch index 1 is \[1, 0, 0\]"),
        ([[0, 2, 2], [2, 1, 0], PAD], "label of a segment .* must lie between 0 and 1, but segment 0"),
        ([[1, 2, 0], PAD, PAD], "must start where the segment before ends, but segment 0"),
        ([[0, 1, 0], [2, 1, 0], PAD], "must start where the segment before ends, but segment 1"),
        ([[0, 1, 0], PAD, [1, 2, 0]], "follows the padding"),
        ([PAD, PAD, PAD], "do not end"),
        ([[0, 2, 0], [2, 2, 0], PAD], "do not end"),
    ],
)
def test_labels_that_name_no_segmentation(names, message):
    right = [[0, 1, 0], [1, 2, 1], PAD]
    with pytest.raises(InvalidInputError, match=message) as caught:
        SemiMarkov().encode(torch.tensor([right, names]), torch.zeros(2, 3, 2, 2))
    assert "batch index 1" in str(caught.value)


def test_labels_of_a_wrong_shape():
    with pytest.raises(InvalidInputError, match=r"\(..., 3, 3\).* got \(1, 3\)"):
        SemiMarkov().encode(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, 2, 2))
    with pytest.raises(
        InvalidInputError, match=r"are segments \[first step, number of steps, label\], .*got shape \(1, 3\)"
    ):
        si.encode(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, 2, 2), "semi_markov")


@pytest.mark.parametrize("form", FORMS)
def test_hamming_distances_count_steps(form):
    oracle = SemiMarkov(pairwise=form == "pairwise")
    like = potentials(form, 4, 3, 2)
    structures = [tuple(torch.from_numpy(t)[None] for t in y) for y in plain.semi_markov(4, 3, 2, form)]
    structures = [y if isinstance(like, tuple) else y[0] for y in structures]
    gold = structures[17]
    steps = oracle.labels_of_steps(gold)
    cost = oracle.hamming_cost(gold)
    assert oracle.score(cost, gold).item() == 0
    for y in structures:
        assert oracle.score(cost, y).item() == (oracle.labels_of_steps(y) != steps).sum().item()
    assert isinstance(cost, tuple) == isinstance(like, tuple)


# ----------------------------------------------------------------------------- refusals


def test_shapes_that_do_not_fit():
    segments = torch.zeros(2, 3, 2, 4)
    for theta in (
        (segments, torch.zeros(2, 3, 3)),
        torch.zeros(2, 3, 0, 4),
        torch.zeros(2, 0, 2, 4),
        torch.zeros(2, 3, 2, 4, 4)[..., :3],
    ):
        with pytest.raises(InvalidInputError, match=r"takes segments .* after the batch dimensions"):
            SemiMarkov(pairwise=isinstance(theta, torch.Tensor) and theta.ndim == 5).validate(theta)
    with pytest.raises(InvalidInputError, match="got a tuple of 2 tensors with pairwise=True"):
        SemiMarkov(pairwise=True).resolve_event_ndim((segments, torch.zeros(4, 4)))
    with pytest.raises(InvalidInputError, match="got a tuple of 5 tensors"):
        SemiMarkov().resolve_event_ndim((segments,) * 5)
    with pytest.raises(InvalidInputError, match=r"lengths must lie between 1 and 3 .*index 1"):
        SemiMarkov().bind(lengths=torch.tensor([3, 0])).validate(segments)
    with pytest.raises(InvalidInputError, match="pairwise must be True or False, got 'yes'"):
        SemiMarkov(pairwise="yes")


def test_scores_of_steps_and_durations():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    steps[0, 2, 1] = -INF
    durations = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    segments = SemiMarkov.segment_scores(steps, durations)
    assert segments.shape == (2, 5, 4, 3)
    for t in range(5):
        for d in range(min(t + 1, 4)):
            expected = steps[:, t - d : t + 1].sum(1) + durations[d]
            torch.testing.assert_close(segments[:, t, d], expected)
    assert not segments.isnan().any()
    torch.testing.assert_close(SemiMarkov.segment_scores(steps, durations.expand(2, 4, 3)), segments)
    leaves = steps.nan_to_num(neginf=0.0).requires_grad_(), durations.requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: SemiMarkov.segment_scores(*t).sin(), leaves)
    with pytest.raises(InvalidInputError, match="with the same labels"):
        SemiMarkov.segment_scores(steps, durations[:, :2])


# ----------------------------------------------------------------------------- boundaries


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


def test_the_hypergraph_grows_with_the_scores():
    """With a transition, no table grows with T D S²."""
    steps, durations, labels = 12, 6, 5
    theta = torch.zeros(1, steps, durations, labels), torch.zeros(1, labels, labels)
    graph = SemiMarkov().hypergraph(theta)
    assert graph.nodes <= 3 * steps * (labels + 1)
    assert graph.edges <= steps * labels * (durations + labels + 2)
