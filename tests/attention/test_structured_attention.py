"""StructuredAttention: weights against formulas and enumeration, masks and padding, precision, gradients."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import structinf as si
from attention_kinds import KINDS, SMOOTH, draw, every_kind, make, segmentation
from structinf.attention import (
    DependencyWeights,
    GridWeights,
    RowWeights,
    SegmentationWeights,
    SimplexWeights,
    StructuredAttention,
)
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.simplex import Entmax, Fusedmax, fusedmax

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- what the weights are


def test_softmax_of_scaled_products():
    query, key, value = draw(2, 3, 4), draw(2, 5, 4, seed=1), draw(2, 5, 6, seed=2)
    context, weights = StructuredAttention()(query, key, value)
    torch.testing.assert_close(weights, torch.softmax(query @ key.mT / 2, -1))
    torch.testing.assert_close(context, nn.functional.scaled_dot_product_attention(query, key, value))
    assert StructuredAttention()(query, key, value, need_weights=False)[1] is None


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("smax", ["negentropy", "squared_l2"])
@pytest.mark.parametrize("keys", [1, 2, 5])
def test_segmentations_are_those_of_enumeration(smax, normalized, keys):
    weights = SegmentationWeights("smoothed", regularizer=smax, normalized=normalized).double()
    nn.init.normal_(weights.transition, generator=torch.Generator().manual_seed(1))
    scores = 2 * draw(3, 4, keys)
    found = weights(scores)
    for b, query in itertools.product(range(3), range(4)):
        expected = segmentation(scores[b, query], weights.transition.detach(), smax, normalized)
        torch.testing.assert_close(found[b, query], expected, rtol=1e-10, atol=1e-12)


def test_marginals_are_the_smoothed_recursion_of_the_negative_entropy():
    scores = draw(3, 4, 6)
    one, other = SegmentationWeights(), SegmentationWeights("smoothed", regularizer="negentropy")
    torch.testing.assert_close(one.double()(scores), other.double()(scores))


def test_nothing_selected_is_no_division_by_zero():
    weights = SegmentationWeights("smoothed", regularizer="squared_l2")
    scores = torch.full((1, 3), -9.0, requires_grad=True)
    assert torch.equal(weights(scores), torch.zeros(1, 3))
    weights(scores).sum().backward()
    assert torch.equal(scores.grad, torch.zeros(1, 3))


@pytest.mark.parametrize("single_root", [True, False])
def test_heads_are_those_of_enumeration(single_root):
    """All maps of three words to heads, itself for none, that have no cycle of two words or more."""
    scores = draw(3, 3)
    total, expected = 0.0, torch.zeros(3, 3, dtype=torch.float64)
    for heads in itertools.product(range(3), repeat=3):
        roots = [i for i in range(3) if heads[i] == i]
        if any(heads[heads[heads[i]]] not in roots for i in range(3)) or (single_root and len(roots) != 1):
            continue
        p = math.exp(sum(scores[i, heads[i]].item() for i in range(3)))
        total += p
        for i in range(3):
            expected[i, heads[i]] += p
    torch.testing.assert_close(DependencyWeights(single_root=single_root)(scores), expected / total)


def test_matchings_and_alignments_are_the_oracles():
    scores = draw(2, 3, 4)
    assert torch.equal(GridWeights("dtw", "marginals")(scores), si.relax(scores, "dtw", "marginals"))
    picked = si.relax(scores.mT, "monotonic_alignment", "marginals").mT
    torch.testing.assert_close(make("monotonic").weights(scores), picked)
    torch.testing.assert_close(picked.sum(-1), torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("SparseMAP")])
def test_weights_sum_to_one(kind):
    torch.testing.assert_close(make(kind).weights(draw(2, 4, 4)).sum(-1), torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("softmax", SimplexWeights),
        ("torch's softmax", SimplexWeights),
        ("subset", RowWeights),
        ("segmentation", SegmentationWeights),
        ("matching", GridWeights),
        ("monotonic", GridWeights),
        ("heads", DependencyWeights),
        ("heads, projective", DependencyWeights),
    ],
)
def test_what_is_made_of_a_name(kind, made):
    assert type(make(kind).weights) is made
    given = make(kind).weights
    assert StructuredAttention(given).weights is given


def test_an_oracle_as_an_object():
    attention = StructuredAttention(oracle=si.get_oracle("dtw", band=1), relaxation=si.get_relaxation("marginals"))
    assert attention.weights(torch.zeros(3, 3))[0, 2] == 0
    assert StructuredAttention(oracle="grid_path", relaxation="map").weights(torch.zeros(2, 2)).shape == (2, 2)


def test_an_entmax_that_learns():
    attention = StructuredAttention(Entmax(1.5, learnable=True), score=nn.Bilinear(1, 1, 1))
    assert len(list(attention.parameters())) == 3
    attention.weights(torch.tensor([[1.0, 0.5, 0.0]])).square().sum().backward()
    assert attention.weights.function.beta.grad != 0


# ----------------------------------------------------------------------------- masks


@every_kind
@pytest.mark.parametrize("where", ["end", "begin", "middle"])
def test_padding_is_as_if_it_were_not_there(kind, where):
    attention = make(kind)
    kept = {"end": [0, 1, 2], "begin": [2, 3, 4], "middle": [0, 2, 4]}[where]
    padding = torch.ones(5, dtype=torch.bool)
    padding[kept] = False
    scores, value = draw(2, 5, 5), draw(2, 5, 3, seed=1)
    spoilt = scores.masked_fill(padding | padding[:, None], math.nan) if kind != "torch's softmax" else scores
    context, weights = attention.attend(spoilt, value, padding, query_padding_mask=padding)
    short, expected = attention.attend(scores[:, kept][:, :, kept], value[:, kept])
    torch.testing.assert_close(weights[:, kept][:, :, kept], expected)
    torch.testing.assert_close(context[:, kept], short)
    assert weights[:, padding].eq(0).all()
    assert weights[..., padding].eq(0).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("heads")])
def test_padding_of_one_side_alone(kind):
    weights, scores = make(kind).weights, draw(2, 3, 5)
    keys, queries = torch.tensor([False, True, False, False, False]), torch.tensor([True, False, False])
    torch.testing.assert_close(weights(scores, keys)[..., ~keys], weights(scores[..., ~keys]))
    torch.testing.assert_close(weights(scores, None, queries)[:, ~queries], weights(scores[:, ~queries]))
    found = weights(scores, keys, queries)
    torch.testing.assert_close(found[:, ~queries][..., ~keys], weights(scores[:, ~queries][..., ~keys]))
    assert found[:, queries].eq(0).all()
    assert found[..., keys].eq(0).all()


@every_kind
def test_each_instance_has_its_own_padding(kind):
    attention = make(kind)
    scores, lengths = draw(3, 4, 4), [4, 2, 0]
    padding = torch.arange(4) >= torch.tensor(lengths)[:, None]
    weights = attention.weights(scores, padding, padding)
    for b, length in enumerate(lengths):
        if length:
            torch.testing.assert_close(weights[b, :length, :length], attention.weights(scores[b, :length, :length]))
        assert weights[b, :, length:].eq(0).all()
        assert weights[b, length:].eq(0).all()


@every_kind
def test_padding_has_no_gradient(kind):
    scores = draw(2, 4, 4).requires_grad_()
    padding = torch.tensor([[False, False, True, False], [False, True, True, True]])
    weights = make(kind).weights(scores, padding, padding)
    (weights * draw(2, 4, 4, seed=1)).sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.masked_select(padding[:, None] | padding[:, :, None]).eq(0).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "alignment" not in kind and kind != "monotonic"])
def test_forbidden_pairs(kind):
    scores = draw(2, 4, 4).requires_grad_()
    forbidden = torch.zeros(4, 4, dtype=torch.bool)
    forbidden[[0, 1, 3], [1, 3, 0]] = True
    attention = make(kind)
    _, weights = attention.attend(scores, draw(2, 4, 3), attn_mask=forbidden)
    assert weights[:, forbidden].eq(0).all()
    added = torch.zeros(4, 4).masked_fill(forbidden, -math.inf)
    assert torch.equal(attention.attend(scores, draw(2, 4, 3), attn_mask=added)[1], weights)
    weights.square().sum().backward()
    assert scores.grad[:, forbidden].eq(0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(("s", "e", "t", "f", "bits"))])
def test_a_query_without_keys_has_a_context_of_zero(kind):
    scores = draw(2, 3, 4).requires_grad_()
    forbidden = torch.zeros(3, 4, dtype=torch.bool)
    forbidden[1] = True
    context, weights = make(kind).attend(scores, draw(2, 4, 5), attn_mask=forbidden)
    assert weights[:, 1].eq(0).all()
    assert context[:, 1].eq(0).all()
    assert weights[:, 0].ne(0).any()
    context.sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad[:, 1].eq(0).all()


@pytest.mark.parametrize(
    "weights",
    [
        DependencyWeights(),
        DependencyWeights("projective_tree", "smoothed", regularizer="squared_l2"),
        GridWeights("spanning_tree", "marginals"),
        GridWeights("matching", "map", perfect=False),
    ],
    ids=lambda weights: weights.layer.oracle.name,
)
def test_padding_of_one_sequence_may_be_said_of_either_side(weights):
    scores = draw(2, 5, 5)
    padding = torch.tensor([[False, True, False, False, True], [False] * 5])
    expected = weights(scores, padding, padding)
    kept = ~padding[0]
    torch.testing.assert_close(expected[0, kept][:, kept], weights(scores[0, kept][:, kept]))
    assert torch.equal(weights(scores, padding), expected)
    assert torch.equal(weights(scores, None, padding), expected)
    first, last = padding.clone(), padding.clone()
    first[:, 4], last[:, 1] = False, False
    assert torch.equal(weights(scores, first, last), expected)
    with pytest.raises(InvalidInputError, match="is a structure over one sequence"):
        weights(scores[:, :3])


@pytest.mark.parametrize("function", [Fusedmax(0.3), functools.partial(fusedmax, weight=0.3)])
def test_neighbours_beside_padding_meet(function):
    scores, padding = draw(3, 5), torch.tensor([False, True, False, True, False])
    expected = SimplexWeights("fusedmax", weight=0.3)(scores[:, ~padding])
    torch.testing.assert_close(SimplexWeights(function)(scores, padding)[:, ~padding], expected)


@pytest.mark.parametrize("relaxation", ["sparsemap", "marginals", "map"])
def test_subsets_of_an_instance_that_is_all_padding(relaxation):
    scores = draw(2, 3, 4).requires_grad_()
    weights = RowWeights("subset", relaxation, k=2)
    padding = torch.tensor([[True] * 4, [False, True, False, False]])
    found = weights(scores, padding)
    assert found[0].eq(0).all()
    torch.testing.assert_close(found[1][:, [0, 2, 3]], weights(scores[1][:, [0, 2, 3]]))
    with pytest.raises(InfeasibleError):
        weights(scores, torch.tensor([[True, True, True, False], [False] * 4]))


def test_no_structure_is_left():
    forbidden = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(InfeasibleError):
        make("heads").attend(draw(3, 3), draw(3, 2), attn_mask=forbidden)


def test_masks_in_floating_point_are_added():
    scores, value = draw(2, 3, 4), draw(2, 4, 5)
    added = draw(2, 4, seed=3)
    added[:, 2] = -math.inf
    _, weights = StructuredAttention().attend(scores, value, added)
    torch.testing.assert_close(weights, torch.softmax(scores + added[:, None], -1))
    padding = added.isneginf()
    alone = make("segmentation")
    expected = alone.attend(scores + added.masked_fill(padding, 0)[:, None], value, padding)[1]
    torch.testing.assert_close(alone.attend(scores, value, added)[1], expected)


# ----------------------------------------------------------------------------- shapes, precision, gradients


@every_kind
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
def test_any_batch(kind, batch):
    attention = make(kind)
    query, key, value = draw(*batch, 3, 4), draw(*batch, 3, 4, seed=1), draw(*batch, 3, 5, seed=2)
    context, weights = attention(query, key, value)
    assert context.shape == (*batch, 3, 5)
    assert weights.shape == (*batch, 3, 3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("heads")])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (2, 5)])
def test_fewer_queries_than_keys(kind, sizes):
    n, m = sizes
    assert make(kind)(draw(2, n, 3), draw(2, m, 3), draw(2, m, 4))[0].shape == (2, n, 4)


@every_kind
@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_attend_to(kind, sizes):
    n, m = sizes
    query = draw(2, n, 3).requires_grad_()
    context, weights = make(kind)(query, draw(2, m, 3), draw(2, m, 4))
    assert weights.shape == (2, n, m)
    assert context.shape == (2, n, 4)
    assert not context.any()
    context.sum().backward()
    assert query.grad is not None
    assert not query.grad.any()


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(kind, dtype):
    attention = make(kind).float()
    scores = draw(2, 4, 4).to(dtype)
    weights = attention.weights(scores)
    assert weights.dtype == dtype
    if kind != "torch's softmax":
        torch.testing.assert_close(weights, attention.weights(scores.float()).to(dtype))


@every_kind
def test_autocast(kind):
    attention = make(kind).float()
    states = draw(2, 4, 8, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        context, _ = attention(states, states, states)
    assert context.dtype == torch.bfloat16
    context.sum().backward()
    assert states.grad.isfinite().all()


@pytest.mark.parametrize("kind", SMOOTH)
def test_gradients(kind):
    attention = make(kind)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    parameters = tuple(attention.parameters())
    tensors = (draw(2, 3, 2), draw(2, 3, 2, seed=1), draw(2, 3, 2, seed=2))

    def run(query, key, value, *_):
        return attention(query, key, value, padding, need_weights=False)[0]

    assert gradcheck(run, (*(t.requires_grad_() for t in tensors), *parameters))


@every_kind
def test_vmap_over_padding(kind):
    attention, padding = make(kind), torch.tensor([[False, True, False], [False, False, True], [False] * 3])
    tensors = draw(3, 3, 4), draw(3, 3, 4, seed=1), draw(3, 3, 2, seed=2)

    def attend(query, key, value, padding):
        return attention(query, key, value, padding, query_padding_mask=padding)

    torch.testing.assert_close(torch.func.vmap(attend)(*tensors, padding), attend(*tensors, padding))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("knapsack", {"weights": (5, 1, 1, 1), "capacity": 5}, [0.0, 1.0, 1.0, 1.0]),
        ("milp", {"A": ((5, 1, 1, 1),), "upper": (5,)}, [0.0, 1.0, 1.0, 1.0]),
        ("dag_path", {"graph": ((0, 1), (0, 2), (1, 3), (2, 3))}, [0.0, 1.0, 0.0, 1.0]),
    ],
)
def test_padding_of_parts_that_options_describe(name, options, expected):
    """Keys that are left keep their weights and edges, wherever the padding is."""
    attention = StructuredAttention(oracle=si.get_oracle(name, **options), relaxation="map")
    assert attention.weights(torch.ones(1, 4), torch.tensor([True, False, False, False])).tolist() == [expected]


@every_kind
def test_no_input_is_written_to(kind):
    scores = draw(4, 2, 4).transpose(0, 1)  # not contiguous
    padding, before = torch.tensor([True, False, False, False]), scores.clone()
    make(kind).attend(scores, draw(2, 4, 3), padding, attn_mask=draw(4, 4, seed=2))
    assert torch.equal(scores, before)
    assert padding.tolist() == [True, False, False, False]
