"""Metrics of structures: values by hand, and values that seqeval 1.2.2 and scikit-learn 1.9.1 returned."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from structinf import InvalidInputError
from structinf.metrics import alignment_error_rate, attachment_scores, bracket_f1, matching_accuracy, span_f1

NAMES = si.TagScheme(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
STEPS = 12


def grid(function, rows, columns=STEPS):
    return torch.tensor([[function(b, i) for i in range(columns)] for b in range(rows)])


def tags():
    """Predicted and gold tags, of which many break the encoding."""

    def gold(b, i):
        return (3 * i * i + 5 * b * i + b) % 7 % 5

    return grid(lambda b, i: gold(b, i) if (i + 2 * b) % 4 else (i + b) % 5, 5), grid(gold, 5)


LENGTHS = [12, 9, 5, 0, 7]


# ----------------------------------------------------------------------------- spans


def test_span_f1_equals_seqeval():
    predicted, gold = tags()
    micro = span_f1(predicted, gold, NAMES, lengths=LENGTHS)
    assert tuple(micro) == pytest.approx((0.8260869565217391,) * 3)
    macro = span_f1(predicted, gold, NAMES, lengths=LENGTHS, average="macro")
    assert tuple(macro) == pytest.approx((0.7976190476190477, 0.8348214285714286, 0.8083333333333333))

    def of_bioes(b, i):
        return (i * i + 2 * b * i + b) % 11 % 9

    scheme = si.TagScheme(["O", *(f"{p}-{kind}" for kind in "AB" for p in "BIES")], "BIOES")
    gold = grid(of_bioes, 4)
    predicted = grid(lambda b, i: of_bioes(b, i) if (i + b) % 3 else (i * 2 + b) % 9, 4)
    micro = span_f1(predicted, gold, scheme)
    assert tuple(micro) == pytest.approx((0.6944444444444444, 0.7352941176470589, 0.7142857142857144))
    macro = span_f1(predicted, gold, scheme, average="macro")
    assert tuple(macro) == pytest.approx((0.6438127090301003, 0.6958333333333333, 0.6651248843663276))


def test_span_f1_finds_the_lengths_by_the_padding():
    predicted, gold = tags()
    padded = gold.clone()
    for row, length in zip(padded, LENGTHS, strict=True):
        row[length:] = -1
    assert span_f1(predicted, padded, NAMES) == span_f1(predicted, gold, NAMES, lengths=LENGTHS)
    assert span_f1(predicted[:, None], padded[:, None], NAMES) == span_f1(predicted, padded, NAMES)


def test_span_f1_without_spans():
    none, some = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    for predicted, gold in ((none, none), (none, some), (some, none), (none[:0], none[:0]), (none[:, :0], none[:, :0])):
        for average in ("micro", "macro"):
            assert span_f1(predicted, gold, NAMES, average=average) == (0, 0, 0)
    assert span_f1(some, some, NAMES) == (1, 1, 1)


# ----------------------------------------------------------------------------- brackets


def test_bracket_f1_equals_scikit_learn():
    """Of 15 brackets of 3 sentences 8 agree, or of 12 without the span of all words 5."""
    oracle = si.get_oracle("binary_tree")
    scores = [
        torch.tensor([[[float(f(i, j, b) % 7) for j in range(6)] for i in range(6)] for b in range(3)])
        for f in (lambda i, j, b: i * 5 + j * 3 + b, lambda i, j, b: i * 2 + j * 5 + b * b)
    ]
    predicted, gold = (oracle.decode(oracle.argmax(theta)) for theta in scores)
    assert bracket_f1(predicted, gold).f1 == pytest.approx(0.5333333333333333)
    assert bracket_f1(predicted, gold, lengths=[6] * 3).f1 == pytest.approx(0.4166666666666667)
    assert bracket_f1(predicted, gold, min_length=1).precision == pytest.approx((8 + 18) / 33)


def test_bracket_f1_by_hand():
    gold = torch.tensor([[[0, 3, 1], [0, 1, 2], [2, 3, 2], [0, 0, 0]], [[0, 1, 1], [0, 0, 0], [1, 1, 0], [-1, -1, -1]]])
    other = torch.tensor([[[0, 3, 1], [0, 1, 1]], [[0, 1, 1], [0, 1, 1]]])
    # right: (0, 3, 1) and one of the two brackets (0, 1, 1); wrong: the label of (0, 1)
    precision, recall, f1 = bracket_f1(other, gold)
    assert (precision, recall) == (2 / 4, 2 / 4)
    assert f1 == 0.5
    assert bracket_f1(other[..., :2], gold[..., :2]) == pytest.approx((3 / 4, 3 / 4, 3 / 4))
    precision, recall, _ = bracket_f1(other, gold, lengths=[4, 2])
    assert (precision, recall) == (0, 0)
    assert bracket_f1(gold, gold) == (1, 1, 1)
    assert bracket_f1(gold[:0], gold[:0]) == (0, 0, 0)


# ----------------------------------------------------------------------------- heads


def test_attachment_scores_by_hand():
    heads = torch.tensor([[2, 0, 2, 3], [0, 1, 7, 7]])
    gold = torch.tensor([[2, 0, 4, 3], [0, 1, -1, -1]])
    labels, gold_labels = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 0], [1, 0, 0, 0]])
    assert attachment_scores(heads, gold, labels, gold_labels) == (5 / 6, 3 / 6, 6)
    assert attachment_scores(heads, heads, labels, gold_labels, lengths=[3, 1]) == (1, 1, 4)
    without_second = torch.ones(2, 4, dtype=torch.bool)
    without_second[:, 1] = False
    assert attachment_scores(heads, gold, labels, gold_labels, mask=without_second) == (3 / 4, 2 / 4, 4)
    unlabelled, labelled, words = attachment_scores(heads, gold)
    assert (unlabelled, words) == (5 / 6, 6)
    assert math.isnan(labelled)
    nothing = attachment_scores(heads[:0], gold[:0])
    assert math.isnan(nothing.unlabelled)
    assert nothing.words == 0


# ----------------------------------------------------------------------------- matchings and alignments


def test_matching_accuracy_by_hand():
    predicted = torch.tensor([[0, 1, 2], [1, 0, 2], [2, 1, 0]])
    gold = torch.tensor([[0, 1, 2], [1, 2, -1], [-1, -1, -1]])
    assert matching_accuracy(predicted, gold) == (4 / 5, 1 / 2)
    assert matching_accuracy(predicted, gold, lengths=[3, 1, 0]) == (1, 1)
    assert matching_accuracy(predicted, gold, mask=torch.tensor([[False, True, True]] * 3)) == (2 / 3, 1 / 2)
    assert all(math.isnan(share) for share in matching_accuracy(predicted[:, :0], gold[:, :0]))
    theta = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0))
    labels = si.decode(si.relax(theta, "assignment", "map"), "assignment")
    assert matching_accuracy(labels, labels) == (1, 1)


def test_alignment_error_rate_by_hand():
    predicted = torch.tensor([[1, 0, 0], [0, 1, 1]])
    sure = torch.tensor([[1, 0, 0], [0, 1, 0]])
    possible = torch.tensor([[0, 1, 0], [0, 0, 1]])
    assert alignment_error_rate(predicted, sure) == pytest.approx(1 - 4 / 5)
    # sure links are possible too
    assert alignment_error_rate(predicted, sure, possible) == 0
    assert alignment_error_rate(possible, sure, possible) == pytest.approx(1 - 2 / 4)
    assert alignment_error_rate(predicted, sure, mask=torch.tensor([[True, True, False]] * 2)) == 0
    assert alignment_error_rate(torch.zeros(2, 3, 3), torch.zeros(2, 3, 3)) == 0
    both = torch.stack([predicted, sure]), torch.stack([sure, sure])
    assert alignment_error_rate(*both) == pytest.approx(1 - 8 / 9)
    matrix = si.relax(torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)), "dtw", "map")
    assert alignment_error_rate(matrix, matrix) == 0
    assert alignment_error_rate(matrix.mT, matrix.mT) == 0


# ----------------------------------------------------------------------------- wrong input

LABELS = torch.zeros(2, 3, dtype=torch.long)
SPANS = torch.zeros(2, 3, 2, dtype=torch.long)
LINKS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: span_f1(LABELS, LABELS[:1], NAMES), InvalidInputError, "predicted and gold must have the same shape"),
        (lambda: span_f1(LABELS.float(), LABELS, NAMES), TypeError, "predicted must be a tensor of integers"),
        (lambda: span_f1([0], LABELS, NAMES), TypeError, "predicted must be a tensor of integers.*got list"),
        (lambda: span_f1(LABELS, LABELS, ["O"]), TypeError, "scheme must be a TagScheme, got list"),
        (lambda: span_f1(LABELS, LABELS + 9, NAMES), InvalidInputError, "gold must lie between 0 and 4"),
        (lambda: span_f1(LABELS, LABELS, NAMES, lengths=[4, 3]), InvalidInputError, "lengths"),
        (lambda: span_f1(LABELS, LABELS, NAMES, average="weighted"), InvalidInputError, "average must be"),
        (lambda: bracket_f1(LABELS, LABELS[:, :2]), InvalidInputError, "same batch shape"),
        (lambda: bracket_f1(SPANS, SPANS[:1]), InvalidInputError, "same batch shape"),
        (lambda: bracket_f1(SPANS, SPANS[..., :1]), InvalidInputError, r"gold must hold spans \(first, last\)"),
        (
            lambda: bracket_f1(SPANS, SPANS, lengths=[3]),
            InvalidInputError,
            "lengths must be integers of the batch shape",
        ),
        (lambda: bracket_f1(SPANS, SPANS, min_length=0), InvalidInputError, "min_length must be"),
        (lambda: attachment_scores(LABELS, LABELS, LABELS), TypeError, "labels and gold_labels belong together"),
        (
            lambda: attachment_scores(LABELS, LABELS, LABELS[:, :2], LABELS[:, :2]),
            InvalidInputError,
            "labels must have the shape of heads",
        ),
        (
            lambda: attachment_scores(LABELS, LABELS, lengths=[3, 4]),
            InvalidInputError,
            "lengths must lie between 0 and 3",
        ),
        (lambda: attachment_scores(LABELS, LABELS, mask=LABELS), InvalidInputError, "mask must be a bool tensor"),
        (
            lambda: matching_accuracy(LABELS, LABELS, mask=LABELS[:1].bool()),
            InvalidInputError,
            "mask must be a bool tensor",
        ),
        (lambda: matching_accuracy(LABELS[0, 0], LABELS[0, 0]), InvalidInputError, "same shape"),
        (lambda: alignment_error_rate(LINKS, LINKS[:1]), InvalidInputError, "sure must be a tensor of links"),
        (lambda: alignment_error_rate(LINKS * math.nan, LINKS), InvalidInputError, "predicted holds NaN"),
        (lambda: alignment_error_rate(LINKS, [1]), InvalidInputError, "must be a tensor of links"),
    ],
)
def test_wrong_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_span_f1_names_the_argument_with_a_wrong_tag():
    gold = torch.zeros(1, 2, dtype=torch.int64)
    for name, arguments in (("predicted", (gold - 1, gold)), ("gold", (gold, gold + 99))):
        with pytest.raises(InvalidInputError, match=f"{name} must lie between 0 and"):
            span_f1(*arguments, NAMES, lengths=[2])
