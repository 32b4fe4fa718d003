"""Attention with arguments of a wrong kind: the error names the argument, what came and what to do."""

from __future__ import annotations

import re

import pytest
import torch

from structinf.attention import StructuredAttention, StructuredMultiheadAttention
from structinf.errors import InvalidInputError

Q = torch.randn(2, 3, 4)
OTHER_BATCH = torch.randn(3, 3, 4)

SINGLE = [StructuredAttention("sparsemax"), StructuredAttention(oracle="assignment", relaxation="sinkhorn")]
MULTI = StructuredMultiheadAttention(4, 2, batch_first=True)


@pytest.mark.parametrize("attention", [*SINGLE, MULTI], ids=["rows", "grid", "multihead"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrong", [None, 3, "key", Q.long(), Q.bool(), Q.tolist(), Q.numpy(), Q.to(torch.float8_e5m2)])
def test_arguments_are_floating_point_tensors(attention, place, wrong):
    arguments = [Q, Q, Q]
    arguments[place] = wrong
    name = ("query", "key", "value")[place]
    with pytest.raises(TypeError, match=rf"^{name} must be a tensor in floating point, got "):
        attention(*arguments)


@pytest.mark.parametrize("attention", SINGLE, ids=["rows", "grid"])
@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            (Q, OTHER_BATCH, OTHER_BATCH),
            InvalidInputError,
            "query and key must have batch dimensions that broadcast, .*",
        ),
        (
            (Q, Q, OTHER_BATCH),
            InvalidInputError,
            r"scores and value .* got shapes \(2, 3, 3\) and \(3, 3, 4\); pass the",
        ),
        ((Q, Q.double(), Q), TypeError, "query and key must have the same dtype, got torch.float32 and torch.float64"),
        (
            (Q, Q, Q.double()),
            TypeError,
            "scores and value must have the same dtype, got torch.float32 and torch.float64",
        ),
        ((Q, Q, Q, 3), TypeError, "key_padding_mask must be a boolean tensor"),
    ],
)
def test_arguments_that_do_not_fit_together(attention, arguments, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        attention(*arguments)


def test_multihead_arguments_that_do_not_fit_together():
    time_first = StructuredMultiheadAttention(4, 2)
    for keys, values in ((OTHER_BATCH, OTHER_BATCH), (Q, OTHER_BATCH)):
        sizes = f"2, {len(keys)}, {len(values)}"
        with pytest.raises(
            InvalidInputError, match=rf"the same batch size, got {sizes} in dimension 0; batch_first=True"
        ):
            MULTI(Q, keys, values)
        with pytest.raises(
            InvalidInputError, match=rf"the same batch size, got {sizes} in dimension 1; batch_first=Fal"
        ):
            time_first(*(t.transpose(0, 1) for t in (Q, keys, values)))
    with pytest.raises(
        TypeError, match=r"^query must have the dtype of the parameters, torch.float32, got torch.float64"
    ):
        MULTI(Q.double(), Q, Q)
    with torch.autocast("cpu", torch.bfloat16):
        assert MULTI(Q.bfloat16(), Q, Q)[0].shape == Q.shape
    one = torch.randn(1, 3, 4)
    assert MULTI(Q, one, one)[0].shape == Q.shape


def test_a_batch_of_one_is_shared():
    for attention in SINGLE:
        assert attention(Q, Q[:1], Q[:1])[0].shape == Q.shape


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"dropout": 2}, InvalidInputError, "dropout must be a probability between 0 and 1, got 2"),
        ({"dropout": float("nan")}, InvalidInputError, "dropout must be a probability between 0 and 1, got nan"),
        ({"dropout": True}, TypeError, "dropout must be a number, got True"),
        ({"score": 3}, TypeError, "score must be a function of query and key, or None, got 3"),
        ({"weights": 3}, TypeError, "weights must be a name, a function or a module, got 3"),
    ],
)
def test_options_of_a_wrong_kind(options, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        StructuredAttention(**options)


@pytest.mark.parametrize("option", ["kdim", "vdim"])
@pytest.mark.parametrize("size", [0, -1, "4", 1.5])
def test_sizes_of_a_wrong_kind(option, size):
    with pytest.raises(
        InvalidInputError, match=rf"^{option} must be an integer of at least 1, got {re.escape(repr(size))}"
    ):
        StructuredMultiheadAttention(4, 2, **{option: size})


@pytest.mark.parametrize("result", [None, 3, torch.zeros(2, 5), [1.0]])
def test_functions_of_a_wrong_result(result):
    with pytest.raises(
        TypeError, match=r"^weights: the map must return a tensor of the shape of the scores, \(2, 3, 3\)"
    ):
        StructuredAttention(lambda scores, dim: result)(Q, Q, Q)
    with pytest.raises((TypeError, InvalidInputError), match=r"^(scores must be a tensor|scores and values must have)"):
        StructuredAttention(score=lambda query, key: result)(Q, Q, Q)
    with pytest.raises(TypeError, match=r"^generator must be a torch.Generator or None, got int"):
        StructuredAttention()(Q, Q, Q, generator=3)
