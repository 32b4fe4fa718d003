"""StructuredMultiheadAttention: torch.nn.MultiheadAttention for softmax, and its forms with all other weights."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from attention_kinds import KINDS, SMOOTH
from structinf.attention import StructuredMultiheadAttention
from structinf.errors import InvalidInputError

pytestmark = pytest.mark.slow

every_kind = pytest.mark.parametrize("kind", KINDS)

SIZES = {"plain": {}, "no bias": {"bias": False}, "other sizes": {"kdim": 6, "vdim": 10}}


def pair(**options) -> tuple[nn.MultiheadAttention, StructuredMultiheadAttention]:
    """torch's, and ours with its parameters."""
    theirs = nn.MultiheadAttention(8, 2, dtype=torch.float64, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = StructuredMultiheadAttention(8, 2, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def make(kind: str, **more) -> StructuredMultiheadAttention:
    return StructuredMultiheadAttention(8, 2, batch_first=True, **KINDS[kind], **more)


def inputs(queries: int = 3, keys: int = 5, kdim: int = 8, vdim: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """With the batch, of 4, in the second dimension."""
    sizes = ((queries, 8), (keys, kdim), (keys, vdim))
    return tuple(torch.randn(length, 4, size, dtype=torch.float64) for length, size in sizes)


# ----------------------------------------------------------------------------- equal to torch's


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_softmax_is_torchs(size, batch_first, average):
    theirs, ours = pair(batch_first=batch_first, **SIZES[size])
    own = {key: value for key, value in SIZES[size].items() if key != "bias"}
    tensors = [t.transpose(0, 1) if batch_first else t for t in inputs(**own)]
    padding = torch.arange(5) >= torch.tensor([5, 1, 3, 4])[:, None]
    forbidden = torch.zeros(3, 5, dtype=torch.bool)
    forbidden[[0, 1], [3, 4]] = True
    for masks in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": forbidden},
        {"attn_mask": torch.randn(3, 5, dtype=torch.float64)},
        {"attn_mask": torch.randn(8, 3, 5, dtype=torch.float64), "need_weights": False},
        {"key_padding_mask": padding.double().masked_fill(padding, -math.inf), "need_weights": False},
        {"key_padding_mask": padding, "attn_mask": forbidden},
    ):
        expected = theirs(*tensors, average_attn_weights=average, **masks)
        found = ours(*tensors, average_attn_weights=average, **masks)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_softmax_of_tensors_that_are_the_same_in_part():
    theirs, ours = pair()
    one, other, _ = inputs(5)
    for tensors in ((one, one, other), (one, other, other), (one, other, one)):
        torch.testing.assert_close(ours(*tensors), theirs(*tensors), rtol=1e-12, atol=1e-12)


def test_softmax_of_self_attention_is_torchs_for_padding_too():
    theirs, ours = pair()
    states, _, _ = inputs(5)
    padding = torch.arange(5) >= torch.tensor([5, 1, 3, 4])[:, None]
    expected = theirs(states, states, states, key_padding_mask=padding)
    torch.testing.assert_close(ours(states, states, states, key_padding_mask=padding), expected, rtol=1e-12, atol=1e-12)


def test_softmax_without_a_batch():
    theirs, ours = pair()
    query, key, value = (t[:, 0] for t in inputs())
    for average in (True, False):
        for masks in ({}, {"key_padding_mask": torch.arange(5) > 2}, {"attn_mask": torch.randn(2, 3, 5).double()}):
            expected = theirs(query, key, value, average_attn_weights=average, **masks)
            torch.testing.assert_close(ours(query, key, value, average_attn_weights=average, **masks), expected)


def test_self_attention_and_its_gradients():
    theirs, ours = pair(batch_first=True)
    states = torch.randn(4, 6, 8, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    for module in (theirs, ours):
        context, weights = module(states, states, states, attn_mask=causal, is_causal=True)
        (context.square().sum() + weights.square().sum()).backward()
    assert weights.triu(1).eq(0).all()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad)


def test_one_seed_one_start():
    modules = []
    for make_one in (nn.MultiheadAttention, StructuredMultiheadAttention):
        torch.manual_seed(0)
        modules.append(make_one(8, 2, kdim=6))
    theirs, ours = (module.state_dict() for module in modules)
    assert list(theirs) == list(ours)
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


@pytest.mark.parametrize("kind", ["softmax", "sparsemax", "segmentation"])
def test_inside_torchs_encoder(kind):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    expected = copy.deepcopy(layer).eval()
    attention = make(kind)
    attention.load_state_dict(layer.self_attn.state_dict(), strict=kind != "segmentation")
    layer.self_attn = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of nested tensors, which are not used
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    states, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([5, 2, 3])[:, None]
    trained = encoder(states, src_key_padding_mask=padding)
    with torch.no_grad():  # where torch's own attention has a fused path
        evaluated = encoder.eval()(states, src_key_padding_mask=padding)
        torch.testing.assert_close(evaluated, trained)
        same = torch.allclose(encoder.layers[0](states), expected(states), atol=1e-5)
    assert same == (kind == "softmax")


@every_kind
def test_padding_of_a_batch_changes_nothing_in_torchs_encoder(kind):
    """Which passes the keys' padding alone; structures over all queries must have it too."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    layer.self_attn = make(kind, dtype=torch.float64)
    states = torch.randn(1, 7, 8, dtype=torch.float64)
    padding = torch.arange(7)[None] >= 4
    for mask in (padding, torch.zeros(1, 7, dtype=torch.float64).masked_fill(padding, -math.inf)):
        found = layer(states, src_key_padding_mask=mask)
        torch.testing.assert_close(found[:, :4], layer(states[:, :4]))


# ----------------------------------------------------------------------------- with weights of all kinds


@every_kind
def test_heads_have_structures_of_their_own(kind):
    attention = make(kind, dtype=torch.float64)
    states = torch.randn(3, 4, 8, dtype=torch.float64)
    padding = torch.arange(4) >= torch.tensor([4, 2, 3])[:, None]
    masks = {"key_padding_mask": padding, "query_padding_mask": padding}
    context, weights = attention(states, states, states, **masks, average_attn_weights=False)
    q, k, v = nn.functional.linear(states, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    found = []
    for head in (slice(0, 4), slice(4, 8)):
        alone = attention.attention.weights(q[..., head] @ k[..., head].mT / 2, padding, padding)
        torch.testing.assert_close(weights[:, head.start // 4], alone)
        found.append(alone @ v[..., head])
    torch.testing.assert_close(context, attention.out_proj(torch.cat(found, -1)))
    torch.testing.assert_close(attention(states, states, states, **masks)[1], weights.mean(1))
    assert weights[1, :, :, 2:].eq(0).all()


@every_kind
def test_without_a_batch_is_a_batch_of_one(kind):
    attention, states = make(kind), torch.randn(4, 8)
    context, weights = attention(states, states, states)
    expected, expected_weights = attention(states[None], states[None], states[None])
    torch.testing.assert_close(context, expected[0])
    torch.testing.assert_close(weights, expected_weights[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", SMOOTH)
def test_gradients(kind):
    attention = StructuredMultiheadAttention(4, 2, batch_first=True, dtype=torch.float64, **KINDS[kind])
    states = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    padding = torch.tensor([[False, True, False], [False, False, False]])

    def run(states: Tensor, *_: Tensor) -> Tensor:
        return attention(states, states, states, padding)[0]

    assert gradcheck(run, (states, *attention.parameters()))


@pytest.mark.sampled(4)
@every_kind
def test_autocast_and_half_precision(kind):
    states = torch.randn(2, 4, 8, requires_grad=True)
    attention = make(kind)
    with torch.autocast("cpu", torch.bfloat16):
        context, _ = attention(states, states, states)
    context.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())
    half = attention.bfloat16()(*[states.detach().bfloat16()] * 3)[0]
    assert half.dtype == torch.bfloat16


@every_kind
@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_and_pickles(kind, how):
    attention, states = make(kind), torch.randn(2, 4, 8)
    torch.testing.assert_close(how(attention)(states, states, states), attention(states, states, states))


def test_the_heads_share_a_transition():
    attention = make("segmentation")
    assert attention.attention.weights.transition.shape == (2, 2)
    assert "attention.weights.transition" in attention.state_dict()
    other = make("segmentation")
    other.load_state_dict(attention.state_dict())
    states = torch.randn(2, 4, 8)
    torch.testing.assert_close(other(states, states, states), attention(states, states, states))


@pytest.mark.parametrize("average", [True, False])
def test_samples_are_in_front(average):
    attention = make("matching, SparseMAP", relaxation="stochastic", base_relaxation="map", samples=3, reduction="none")
    for batch in ((), (2,)):
        states = torch.randn(*batch, 4, 8)
        context, weights = attention(states, states, states, average_attn_weights=average)
        assert context.shape == (3, *batch, 4, 8)
        assert weights.shape == (3, *batch, *([] if average else [2]), 4, 4)


def test_noise_comes_from_the_generator():
    attention, states = make("matching, SparseMAP", relaxation="perturbed", samples=2), torch.randn(2, 4, 8)
    one, other, third = (
        attention(states, states, states, generator=torch.Generator().manual_seed(seed))[1] for seed in (0, 0, 1)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


# ----------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 3), "embed_dim must be a multiple of num_heads, got 8 and 3"),
        ((8, 0), "num_heads must be an integer of at least 1, got 0"),
        ((8.0, 2), "embed_dim must be an integer of at least 1, got 8.0"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        StructuredMultiheadAttention(*sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "pass the causal mask as attn_mask"),
        ({"key": torch.randn(5, 8)}, "3 dimensions"),
        ({"query": torch.randn(2, 3, 6)}, r"query must have shape \(\.\.\., 8\), got \(2, 3, 6\)"),
        ({"value": torch.randn(2, 5, 9)}, r"value must have shape \(\.\.\., 8\), got \(2, 5, 9\)"),
        ({"key_padding_mask": torch.zeros(5, 2, dtype=torch.bool)}, r"key_padding_mask must have shape \(2, 5\)"),
        ({"attn_mask": torch.zeros(5, 3)}, r"attn_mask must have shape \(2, 2, 3, 5\)"),
        ({"attn_mask": torch.zeros(3, 3, 5)}, "with B · heads = 4"),
    ],
)
def test_what_cannot_be_attended(arguments, message):
    states = {"query": torch.randn(2, 3, 8), "key": torch.randn(2, 5, 8), "value": torch.randn(2, 5, 8)}
    with pytest.raises(InvalidInputError, match=message):
        make("softmax")(**{**states, **arguments})
