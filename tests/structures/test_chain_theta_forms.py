"""The forms of potentials of chains, their labels and lengths, and what does not fit."""

from __future__ import annotations

import math

import pytest
import torch

from chain_enumeration import (
    CHAIN,
    FORMS,
    NEG,
    B,
    S,
    T,
    assert_equal_parts,
    bound,
    copies,
    indicators,
    potentials,
    sequences,
)
from structinf.errors import InvalidInputError
from structinf.parts import as_tuple, inner_product, map_parts


@pytest.mark.parametrize("form", ["shared", "own", "steps", "edges"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_labels_round_trip_over_all_sequences(form, length):
    theta = potentials(form, torch.float32, shape=(1, 4, 3))
    shapes = tuple(t.shape[1:] for t in as_tuple(theta))
    chain = bound([length])
    every = chain.enumerate(shapes if isinstance(theta, tuple) else shapes[0])
    count = len(as_tuple(every)[0])
    wanted = list(sequences(theta, [length])[0])
    assert count == len(wanted)
    assert all(t.dtype == torch.float64 for t in as_tuple(every))
    for y, tags in zip(zip(*as_tuple(every), strict=True), wanted, strict=True):
        assert_equal_parts(y, tuple(t[0] for t in as_tuple(indicators(theta, tags))))
    decoded = chain.repeat(count).decode(every)
    assert decoded.tolist() == [[*tags, *[-1] * (4 - length)] for tags in wanted]
    padded = torch.where(decoded < 0, -100, decoded)
    encoded = chain.repeat(count).encode(padded.int(), theta)
    assert all(t.dtype == torch.float32 for t in as_tuple(encoded))
    assert_equal_parts(map_parts(lambda t: t.double(), encoded), every)
    total = inner_product(map_parts(lambda t: t.double(), theta), every).logsumexp(0)
    torch.testing.assert_close(chain.log_partition(theta)[0].double(), total, atol=1e-5, rtol=0)


def test_too_many_sequences_to_list():
    with pytest.raises(InvalidInputError, match="there are 1048576 tag sequences of 20 tokens and 2 states, too many"):
        CHAIN.enumerate(((20, 2), (2, 2)))
    with pytest.raises(InvalidInputError, match=r"there are about 10\^5000 tag sequences"):
        CHAIN.enumerate((4999, 10, 10))
    assert len(bound([3]).enumerate((19, 2, 2))) == 8


def test_a_single_token_by_edges_alone():
    """It has one structure, which is empty, next to longer neighbours or alone."""
    mixed, alone = potentials("edges"), potentials("edges", shape=(B, 1, S))
    for chain, theta in ((bound([1, 3, 1]), mixed), (CHAIN, alone)):
        short = [0, 2]
        assert not bool(chain.log_partition(theta)[short].any())
        leaf = copies(theta)
        recorded = chain.log_partition(leaf)
        assert not bool(recorded[short].any())
        (gradient,) = torch.autograd.grad(recorded[short].sum(), leaf)
        assert not bool(gradient.any())
        structures, scores, valid = chain.topk(theta, 2)
        assert valid[:, short].tolist() == [[True] * 2, [False] * 2]
        assert scores[:, short].tolist() == [[0.0] * 2, [NEG] * 2]
        for y in (structures[0], chain.argmax(theta), chain.marginals(theta), chain.sample(theta, 1)[0]):
            assert not bool(y[short].any())
        assert chain.decode(chain.argmax(theta))[short, 0].tolist() == [0, 0]


def test_wrong_labels():
    theta = potentials("shared")
    with pytest.raises(InvalidInputError, match="between 0 and 2, got 3 at batch index 2, position 1"):
        bound().encode(torch.tensor([[0, 0, 0, 0], [0, 9, 9, 9], [0, 3, 0, 9]]), theta)
    with pytest.raises(InvalidInputError, match="got -1 at batch index 0, position 3"):
        CHAIN.encode(torch.tensor([[0, 0, 0, -1]]), theta)
    with pytest.raises(InvalidInputError, match=r"shape \(B, 4\), got shape \(3, 3\)"):
        CHAIN.encode(torch.zeros(3, 3, dtype=torch.int64), theta)


@pytest.mark.parametrize("form", ["shared", "own", "steps", "edges"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_hamming_cost_counts_wrong_tags(form, length):
    theta = potentials(form, shape=(1, 4, 2))
    shapes = tuple(t.shape[1:] for t in as_tuple(theta))
    chain = bound([length])
    every = chain.enumerate(shapes if isinstance(theta, tuple) else shapes[0])
    labels = chain.repeat(len(as_tuple(every)[0])).decode(every)
    for row, y in enumerate(zip(*as_tuple(every), strict=True)):
        gold = tuple(t[None] for t in y) if isinstance(theta, tuple) else y[0][None]
        cost = chain.hamming_cost(gold)
        assert all(t.shape == g.shape for t, g in zip(as_tuple(cost), as_tuple(gold), strict=True))
        distance = inner_product(cost, every) - inner_product(cost, gold)
        assert torch.equal(distance, (labels != labels[row]).sum(1).double())
        padding = as_tuple(cost)[0][:, length - (form == "edges") :]
        assert not bool(padding.any())
    # A transition that all instances share stays one matrix when its cost is added.
    costs = chain.hamming_cost(every)
    assert form == "edges" or len(costs[1]) == 1


def test_readout_is_what_the_tags_say():
    theta = potentials("shared")
    y = CHAIN.argmax(theta)
    assert CHAIN.readout(y) is y[0]
    r = torch.randn(B, T, S).double()
    assert_equal_parts(CHAIN.readout_transpose(r, theta), (r, torch.zeros(B, S, S).double()))
    edges = potentials("edges")
    assert CHAIN.readout(edges) is edges


@pytest.mark.parametrize("form", FORMS)
def test_padding_is_marked_and_never_used(form):
    theta = potentials(form, torch.float32)
    chain = bound([2, 1, 3])
    masks = chain.valid_parts(theta)
    for mask, t in zip(as_tuple(masks), as_tuple(theta), strict=True):
        assert mask.shape == t.shape
        assert mask.dtype == torch.bool
    used = map_parts(lambda m, t: torch.where(m, t, 0.0), masks, theta)
    poisoned = map_parts(lambda m, t: torch.where(m, t, math.nan), masks, theta)
    weight = torch.ones(B)
    calls = {
        "argmax": chain.argmax,
        "marginals": chain.marginals,
        "log_partition": chain.log_partition,
        "vjp": lambda t: chain.log_partition_vjp(t, weight),
        "covariance": lambda t: chain.covariance_product(t, used),
        "topk": lambda t: chain.topk(t, 3)[0],
        "sample": lambda t: chain.sample(t, 2, torch.Generator().manual_seed(0)),
    }
    for call in calls.values():
        assert_equal_parts(call(poisoned), call(used))
    mean, everywhere = chain.marginals(used), map_parts(lambda m: m.expand(B, *m.shape[1:]), masks)
    if form not in ("shared steps", "shared unary"):
        assert all(not bool(p[~m].any()) for p, m in zip(as_tuple(mean), as_tuple(everywhere), strict=True))
    assert CHAIN.valid_parts(theta) is None
    assert bound([T] * B).valid_parts(theta) is None


# ----------------------------------------------------------------------------- shapes


def test_event_dimensions_of_each_form():
    def ndims(*shapes):
        tensors = tuple(torch.zeros(shape) for shape in shapes)
        return CHAIN.resolve_event_ndim(tensors if len(tensors) > 1 else tensors[0])

    assert ndims((4, 2, 2)) == ndims((7, 4, 2, 2)) == (3,)
    assert ndims((5, 2), (2, 2)) == ndims((7, 5, 2), (2, 2)) == ndims((6, 7, 5, 2), (2, 2)) == (2, 2)
    assert ndims((7, 5, 2), (7, 2, 2)) == ndims((7, 5, 2), (1, 2, 2)) == ndims((6, 7, 5, 2), (6, 7, 2, 2)) == (2, 2)
    assert ndims((5, 2), (4, 2, 2)) == ndims((7, 5, 2), (1, 4, 2, 2)) == (2, 3)
    with pytest.raises(InvalidInputError, match=r"unary \(6, 7, 5, 2\) and transition \(7, 2, 2\)"):
        ndims((6, 7, 5, 2), (7, 2, 2))
    shared = r"shared by the batch have shape \(1, T - 1, S, S\)"
    with pytest.raises(InvalidInputError, match=rf"got unary \(6, 7, 5, 2\) and transition \(4, 2, 2\).*{shared}"):
        ndims((6, 7, 5, 2), (4, 2, 2))
    for steps in ((4, 2, 2), (6, 4, 2, 2)):
        with pytest.raises(InvalidInputError, match=rf"unary \(7, 5, 2\) and transition .* must broadcast; .*{shared}"):
            ndims((7, 5, 2), steps)
    with pytest.raises(InvalidInputError, match=r"unary \(5,\) and transition \(2, 2\)"):
        ndims((5,), (2, 2))
    with pytest.raises(InvalidInputError, match="got 3 tensors"):
        ndims((5, 2), (2, 2), (2,))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 5, 3), (1, 2, 2)), "unary has S = 3 tags in the last dimension, and transition has 2 x 2"),
        (((2, 5, 3), (1, 3, 2)), "unary has S = 3 tags in the last dimension, and transition has 3 x 2"),
        (((2, 5, 3), (1, 2, 3)), "per-step transitions"),
        (((2, 5, 3), (1, 5, 3, 3)), r"\(5, 3, 3\) after the batch dimension$"),
        (((2, 5, 0), (1, 0, 0)), "per-step transitions"),
        (((2, 0, 3), (1, 3, 3)), "per-step transitions"),
        (((2, 5, 3, 2),), r"unary scores need a tuple \(unary, transition\)"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    theta = tuple(torch.zeros(shape) for shape in shapes)
    with pytest.raises(InvalidInputError, match=r"got \(.*" + message):
        CHAIN.validate(theta if len(theta) > 1 else theta[0])


def test_unary_scores_without_transition_as_scores_of_a_loss():
    with pytest.raises(InvalidInputError, match=r"\(B, 8\), got shape \(1, 7\); edge scores .* need a tuple"):
        CHAIN.encode(torch.zeros(1, 7, dtype=torch.int64), torch.zeros(1, 7, 5, 5))


@pytest.mark.parametrize("lengths", [[4, 0, 3], [4, 1, 5], [4, 1, -2]])
def test_lengths_out_of_range(lengths):
    with pytest.raises(InvalidInputError, match=r"between [01] and 4 \(T = 4 tokens\)"):
        bound(lengths).validate(potentials("shared"))
