"""StructuredAttention: copies, state, noise, weights of one's own, and errors."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from attention_kinds import draw, every_kind, make
from structinf.attention import (
    AttentionWeights,
    GridWeights,
    StructuredAttention,
    StructuredMultiheadAttention,
)
from structinf.errors import InvalidInputError, UnknownNameError, UnsupportedError
from structinf.simplex import Entmax

# ----------------------------------------------------------------------------- state, noise


@pytest.mark.matrix
@every_kind
@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_and_pickles(kind, how):
    attention = make(kind)
    states = draw(2, 4, 3)
    torch.testing.assert_close(how(attention)(states, states, states), attention(states, states, states))


def test_the_state_is_what_is_learned():
    assert not make("matching").state_dict()
    one, other = make("segmentation"), StructuredAttention(oracle="chain").double()
    assert list(one.state_dict()) == ["weights.transition"]
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.weights(draw(3, 4)), one.weights(draw(3, 4)))


@pytest.mark.parametrize("oracle", ["chain", "assignment", "bits", "arborescence"])
def test_noise_comes_from_the_generator(oracle):
    attention = StructuredAttention(oracle=oracle, relaxation="perturbed", samples=3)
    states = draw(2, 3, 4, dtype=torch.float32)

    def run(seed: int) -> torch.Tensor:
        return attention(states, states, states, generator=torch.Generator().manual_seed(seed))[1]

    before = torch.get_rng_state()
    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_are_kept_apart():
    attention = StructuredAttention(
        oracle="chain", relaxation="stochastic", base_relaxation="marginals", samples=7, reduction="none"
    )
    padding = torch.tensor([[True, False, False]])
    context, weights = attention(torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5), padding)
    assert weights.shape == (7, 2, 3, 3)
    assert context.shape == (7, 2, 3, 5)
    assert weights[..., 0].eq(0).all()


def test_dropout_is_of_the_weights():
    attention, states = StructuredAttention(dropout=0.5), torch.randn(2, 8, 4)
    _, weights = attention(states, states, states)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 8))  # before it
    trained, evaluated = attention(states, states, states)[0], attention.eval()(states, states, states)[0]
    assert not torch.equal(trained, evaluated)
    torch.testing.assert_close(evaluated, weights @ states)


# ----------------------------------------------------------------------------- your own, and errors


class Uniform(AttentionWeights):
    def forward(self, scores, key_padding_mask=None, query_padding_mask=None, generator=None):
        return torch.full_like(scores, 1 / scores.shape[-1])


class Recording(GridWeights):
    def mean(self, scores, queries, keys, generator):
        self.seen = scores.dtype, queries, keys
        return super().mean(scores, queries, keys, generator)


def test_structures_of_your_own_see_full_precision_and_lengths():
    weights, padding = Recording("dtw", "marginals"), torch.tensor([[False, True, False], [True] * 3])
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert weights(draw(2, 2, 3).to(dtype), padding).dtype == dtype
        assert weights.seen[:2] == (wide, None)
        assert weights.seen[2].tolist() == [2, 0]


def test_a_transition_is_reset():
    attention = StructuredMultiheadAttention(8, 2, oracle="chain", device="meta").to_empty(device="cpu")
    transition = attention.attention.weights.transition
    torch.nn.init.normal_(transition)
    for module in attention.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    assert not transition.any()


def test_weights_of_your_own():
    value = torch.randn(4, 3)
    context, _ = StructuredAttention(Uniform())(torch.randn(2, 5), torch.randn(4, 5), value)
    torch.testing.assert_close(context, value.mean(0).expand(2, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weights": "sofmax"}, UnknownNameError, "did you mean.*'softmax'"),
        (
            {"weights": "chain"},
            UnknownNameError,
            "a structure: pass oracle='chain'.*Known: budget, entmax, entmax15, fusedmax",
        ),
        ({"weights": "entmax", "learnable": True}, TypeError, r"weights=Entmax\(1.5, learnable=True\)"),
        ({"weights": "softmax", "dropout": "softmax"}, TypeError, "dropout must be a number, got 'softmax'"),
        ({"weights": "sparsemax", "alpha": 2}, TypeError, "sparsemax: .*alpha"),
        ({"weights": "topk_sparsemax"}, TypeError, "topk_sparsemax: .*'k'"),
        ({"weights": Entmax}, TypeError, "call it first"),
        ({"weights": torch.softmax, "alpha": 2}, TypeError, "accepted only with a name"),
        ({"weights": Uniform(), "alpha": 2}, TypeError, "accepted only with a name"),
        ({"weights": "softmax", "oracle": "dtw"}, TypeError, "exclude each other.*get_oracle"),
        ({"relaxation": "marginals"}, TypeError, "needs an oracle"),
        ({"oracle": "dwt"}, UnknownNameError, "'dtw'"),
        ({"oracle": "assignment", "relaxation": "marginals"}, UnsupportedError, "#P-complete"),
        ({"oracle": "needleman_wunsch"}, UnsupportedError, "subclass of StructuredWeights"),
        ({"oracle": "projective_tree", "labelled": True}, UnsupportedError, "3 dimensions"),
        ({"oracle": "dtw", "width": 3}, TypeError, "width"),
        ({"oracle": "chain", "normalized": 1}, InvalidInputError, "normalized must be True or False"),
    ],
)
def test_what_cannot_be_made(arguments, error, message):
    with pytest.raises(error, match=message):
        StructuredAttention(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        ("softmax", {"key": torch.randn(2, 4, 7)}, InvalidInputError, "the same d"),
        ("softmax", {"value": torch.randn(2, 3, 5)}, InvalidInputError, "one value for each key"),
        ("softmax", {"key_padding_mask": torch.zeros(2, 3, dtype=torch.bool)}, InvalidInputError, r"shape \(2, 4\)"),
        ("softmax", {"key_padding_mask": torch.zeros(2, 4, dtype=torch.int64)}, TypeError, "boolean .* floating-point"),
        (
            "softmax",
            {"query_padding_mask": torch.zeros(2, 3)},
            TypeError,
            "got a tensor of torch.float",
        ),
        ("segmentation", {"attn_mask": torch.zeros(2, 4, dtype=torch.bool)}, InvalidInputError, r"\(2, 3, 4\)"),
        ("matching", {"query_padding_mask": torch.zeros(4, dtype=torch.bool)}, InvalidInputError, r"\(2, 3\)"),
        ("heads", {}, InvalidInputError, "self-attention"),
        ("segmentation", {"query": torch.full((2, 3, 5), math.nan)}, InvalidInputError, "NaN"),
    ],
)
def test_what_cannot_be_attended(kind, arguments, error, message):
    inputs = {"query": torch.randn(2, 3, 5), "key": torch.randn(2, 4, 5), "value": torch.randn(2, 4, 6)}
    with pytest.raises(error, match=message):
        make(kind).float()(**{**inputs, **arguments})


@pytest.mark.parametrize("kind", ["softmax", "fusedmax, sparse", "segmentation", "matching"])
@pytest.mark.parametrize("name", ["key_padding_mask", "query_padding_mask"])
def test_weights_take_padding_as_flags(kind, name):
    """Only attention adds masks in floating point to its scores."""
    with pytest.raises(TypeError, match=f"{name} must be a boolean tensor"):
        make(kind).float().weights(torch.randn(2, 4, 4), **{name: torch.zeros(2, 4)})


def test_padding_needs_lengths():
    attention = StructuredAttention(oracle="transportation", supplies=[1, 1], demands=[1, 1])
    states = torch.randn(2, 3)
    with pytest.raises(UnsupportedError, match="takes no lengths"):
        attention(states, states, states, torch.tensor([False, True]))


def test_it_says_what_it_is():
    shown = repr(StructuredAttention(oracle="chain", relaxation="smoothed", regularizer="squared_l2"))
    assert "SegmentationWeights" in shown
    assert "SquaredL2" in shown
    assert "entmax, alpha=1.3" in repr(make("entmax"))
