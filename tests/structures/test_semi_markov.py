"""Segmentations, against enumeration, counts, and chains."""

from __future__ import annotations

import math

import pytest
import torch

import enumerators_subsets as plain
import structinf as si
from hypergraph_program_assertions import Program, every_query
from segmentation_scores import scores_with_boundaries
from structinf.errors import InvalidInputError
from structinf.regularizers import SquaredL2
from structinf_oracles.chain import Chain
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
        InvalidInputError, match=r"are segments \[first step, number of steps \(1 to D\), label\], .*got shape \(1, 3\)"
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


def test_the_hypergraph_grows_with_the_scores():
    """With a transition, no table grows with T D S²."""
    steps, durations, labels = 12, 6, 5
    theta = torch.zeros(1, steps, durations, labels), torch.zeros(1, labels, labels)
    graph = SemiMarkov().hypergraph(theta)
    assert graph.nodes <= 3 * steps * (labels + 1)
    assert graph.edges <= steps * labels * (durations + labels + 2)
