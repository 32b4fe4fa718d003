"""Span encodings: masks against regular expressions, spans against their definition, and chains under the masks."""

import itertools
import re

import pytest
import torch

import structinf as si

TAGS = {
    "BIO": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "BIOES": ["O", "B-X", "I-X", "E-X", "S-X", "S-Y", "B-Y", "E-Y", "I-Y"],
    "BILOU": ["I-X", "L-X", "O", "B-X", "U-X", "U-Y"],
}
# A whole sequence, every tag followed by a space.
GRAMMAR = {
    "BIO": r"(O |B-X (I-X )*|B-Y (I-Y )*)*",
    "BIOES": r"(O |S-X |B-X (I-X )*E-X |S-Y |B-Y (I-Y )*E-Y )*",
    "BILOU": r"(O |U-X |B-X (I-X )*L-X |U-Y )*",
}


def sequences(encoding, most=3):
    for n in range(1, most + 1):
        yield from itertools.product(range(len(TAGS[encoding])), repeat=n)


def words(encoding, labels):
    return "".join(TAGS[encoding][label] + " " for label in labels)


@pytest.mark.parametrize("encoding", TAGS)
def test_masks_allow_the_sequences_of_the_grammar(encoding):
    scheme = si.TagScheme(TAGS[encoding], encoding)
    for labels in sequences(encoding, 4 if encoding == "BIO" else 3):
        valid = re.fullmatch(GRAMMAR[encoding], words(encoding, labels)) is not None
        assert valid == (not scheme.violations(torch.tensor(labels)).any()), words(encoding, labels)
        theta = scheme.constrain(
            torch.zeros(len(labels), len(scheme.tags)), torch.zeros(len(scheme.tags), 1).expand(-1, len(scheme.tags))
        )
        score = theta[0][range(len(labels)), labels].sum() + sum(theta[1][a, b] for a, b in itertools.pairwise(labels))
        assert valid == (score == 0)


@pytest.mark.parametrize("encoding", TAGS)
def test_spans_and_tags_convert_into_each_other(encoding):
    scheme = si.TagScheme(TAGS[encoding], encoding)
    for labels in sequences(encoding):
        row = torch.tensor(labels)
        (spans,) = scheme.spans(row)
        covered = [t for span in spans for t in range(span.start, span.stop)]
        assert covered == [t for t, label in enumerate(labels) if TAGS[encoding][label] != "O"]
        assert all(
            TAGS[encoding][labels[t]].endswith(span.type) for span in spans for t in range(span.start, span.stop)
        )
        if not scheme.violations(row).any():
            assert torch.equal(scheme.encode(spans, len(labels)), row)
            assert torch.equal(scheme.repair(row), row)
        elif encoding != "BILOU":  # which lacks the tags of longer spans of Y
            repaired = scheme.repair(row)
            assert not scheme.violations(repaired).any()
            assert scheme.spans(repaired) == [spans]


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("BIO", "O I-X I-X O", [(1, 3, "X")]),  # I after O starts a span
        ("BIO", "B-X I-Y", [(0, 1, "X"), (1, 2, "Y")]),  # a change of type starts one
        ("BIO", "B-X B-X I-X", [(0, 1, "X"), (1, 3, "X")]),
        ("BIOES", "B-X O S-Y", [(0, 1, "X"), (2, 3, "Y")]),  # a span without its end
        ("BIOES", "E-X E-X I-X E-X", [(0, 1, "X"), (1, 2, "X"), (2, 4, "X")]),
        ("BIOES", "B-X I-X B-X E-X", [(0, 2, "X"), (2, 4, "X")]),
    ],
)
def test_spans_of_sequences_that_break_the_encoding(encoding, text, expected):
    scheme = si.TagScheme(TAGS[encoding], encoding)
    labels = torch.tensor([TAGS[encoding].index(tag) for tag in text.split()])
    assert scheme.spans(labels) == [expected]


@pytest.mark.parametrize("encoding", TAGS)
@pytest.mark.parametrize("per_step", [False, True])
def test_constrained_chains_decode_and_sum_over_allowed_sequences(encoding, per_step):
    torch.manual_seed(0)
    scheme = si.TagScheme(TAGS[encoding], encoding)
    size, lengths = len(scheme.tags), [3, 1, 2]
    unary = torch.randn(3, 3, size, dtype=torch.float64)
    transition = torch.randn(*((1, 2) if per_step else ()), size, size, dtype=torch.float64)
    start, end = torch.randn(2, size, dtype=torch.float64)
    theta = scheme.constrain(unary, transition, lengths, start=start, end=end)
    log_z = si.log_partition(theta, "chain", lengths=lengths)
    best = si.decode(si.relax(theta, "chain", "map", lengths=lengths), "chain", lengths=lengths)
    for b, n in enumerate(lengths):
        scores = {}
        for labels in itertools.product(range(size), repeat=n):
            if re.fullmatch(GRAMMAR[encoding], words(encoding, labels)):
                pairs = enumerate(itertools.pairwise(labels))
                steps = sum((transition[0, t] if per_step else transition)[i, j] for t, (i, j) in pairs)
                scores[labels] = unary[b, range(n), labels].sum() + start[labels[0]] + end[labels[-1]] + steps
        torch.testing.assert_close(log_z[b], torch.stack(list(scores.values())).logsumexp(0))
        assert tuple(best[b, :n].tolist()) == max(scores, key=scores.get)
    assert not scheme.violations(best, lengths).any()
    assert not scheme.violations(best).any()  # decoded labels are −1 in the padding


def test_constrain_differentiates_scores_of_starts_and_ends():
    scheme = si.TagScheme(TAGS["BIOES"], "BIOES")
    tensors = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 9), (9, 9), (9,), (9,))
    ]

    def log_z(unary, transition, start, end):
        theta = scheme.constrain(unary, transition, [3, 2], start=start, end=end)
        return si.log_partition(theta, "chain", lengths=[3, 2])

    assert torch.autograd.gradcheck(log_z, tensors)


def test_padding_and_batches():
    scheme = si.TagScheme(["O", "B", "I"])
    labels = torch.tensor([[[0, 2, -1, -1], [2, 1, 2, 0]], [[1, 2, 2, 2], [-1, -1, -1, -1]]])
    expected = [[[0, 1, 0, 0], [1, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]]
    assert scheme.violations(labels).int().tolist() == expected
    assert scheme.spans(labels) == [[(1, 2, "")], [(0, 1, ""), (1, 3, "")], [(0, 4, "")], []]
    assert scheme.spans(labels[..., :2].clamp(min=0), [[1, 2], [2, 0]])[0] == []
    repaired = scheme.repair(labels.transpose(0, 1)).transpose(0, 1)  # not contiguous
    assert repaired.tolist() == [[[0, 1, -1, -1], [1, 1, 2, 0]], [[1, 2, 2, 2], [-1, -1, -1, -1]]]
    assert scheme.violations(labels[:0]).shape == (0, 2, 4)
    assert scheme.spans(labels[:0]) == []
    assert scheme.repair(labels[..., :0]).shape == (2, 2, 0)
    theta = scheme.constrain(torch.zeros(0, 4, 3), torch.zeros(3, 3))
    assert theta[0].shape == (0, 4, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: si.TagScheme(["O", "B"], "IOB1"), "encoding must be one of BIO, BIOES, BILOU"),
        (lambda _: si.TagScheme(["O", "B-X", "PAD"]), "tag 'PAD' is not a tag of the encoding BIO.*lengths"),
        (lambda _: si.TagScheme(["O", "S-X"]), "tag 'S-X'"),
        (lambda _: si.TagScheme(["O-X"]), "tag 'O-X'"),
        (lambda _: si.TagScheme([]), "at least one tag"),
        (lambda _: si.TagScheme(["O", "B", "O"]), "'O' twice"),
        (lambda s: s.violations(torch.tensor([0.0])), "labels must be integers"),
        (
            lambda s: s.violations(torch.tensor([[0, 1], [1, 3]])),
            r"between 0 and 2, got 3 at batch index \(1,\), token 1",
        ),
        (lambda s: s.spans(torch.tensor([0, 1]), 3), "lengths must be integers between 0 and T = 2"),
        (lambda s: s.spans(torch.tensor([[0, 1]]), [1, 1]), r"lengths must have the batch shape \(1,\)"),
        (lambda s: s.encode([(0, 2, ""), (1, 3, "")], 4), r"must not overlap.*\(1, 3, ''\)"),
        (lambda s: s.encode([(3, 5, "")], 4), "must lie within the 4 tokens"),
        (lambda s: s.encode([(0, 1, "X")], 4), "tags has no 'B-X'"),
        (lambda s: s.constrain(torch.zeros(2, 4), torch.zeros(4, 4)), "must have S = 3 states"),
        (lambda s: s.constrain(torch.zeros(2, 3), torch.zeros(3, 3), [3]), "lengths must be integers"),
    ],
)
def test_wrong_arguments_raise_a_sentence(call, message):
    with pytest.raises(si.InvalidInputError, match=message):
        call(si.TagScheme(["O", "B", "I"]))


@pytest.mark.parametrize(
    ("tags", "encoding", "lonely", "missing"),
    [
        (["O", "I"], "BIO", "I", "B"),
        (["O", "B-LOC", "I-LOC", "I-PER"], "BIO", "I-PER", "B-PER"),
        (["O", "B-LOC", "I-PER"], "BIO", "I-PER", "B-PER"),
        (["O", "S-LOC", "E-LOC"], "BIOES", "E-LOC", "B-LOC"),
        (["O", "B-LOC", "S-LOC"], "BIOES", "B-LOC", "E-LOC"),
        (["O", "B-LOC", "I-LOC"], "BILOU", "B-LOC", "L-LOC"),
        (["O", "I-LOC", "L-LOC"], "BILOU", "I-LOC", "B-LOC"),
    ],
)
def test_a_tag_that_no_span_can_contain(tags, encoding, lonely, missing):
    message = (
        f"^tags has {lonely!r} without {missing!r}, so no valid sequence contains {lonely!r}; add {missing!r} at the"
    )
    with pytest.raises(si.InvalidInputError, match=message):
        si.TagScheme(tags, encoding)
    assert si.TagScheme([*tags, missing], encoding).transition.shape == (len(tags) + 1,) * 2


@pytest.mark.parametrize(
    ("tags", "encoding"),
    [(["O", "B-LOC"], "BIO"), (["O", "S-LOC"], "BIOES"), (["O", "B-LOC", "E-LOC"], "BIOES"), (["O"], "BILOU")],
)
def test_tags_of_short_spans_alone(tags, encoding):
    assert si.TagScheme(tags, encoding).end.all() == (len(tags) < 3)


@pytest.mark.parametrize(
    "unary", [None, [[0.0, 1.0]], torch.zeros(3, 2).long(), torch.zeros(3, 2).to(torch.float8_e5m2)]
)
def test_scores_of_a_wrong_kind(unary):
    scheme = si.TagScheme(["O", "B"])
    with pytest.raises(TypeError, match=r"^unary must be a tensor in floating point, got "):
        scheme.constrain(unary, torch.zeros(2, 2))
    with pytest.raises(TypeError, match=r"^transition must be a tensor in floating point, got "):
        scheme.constrain(torch.zeros(3, 2), unary)
    with pytest.raises(si.InvalidInputError, match=r"must have shapes .*, got \(2,\) and \(2, 2\)"):
        scheme.constrain(torch.zeros(2), torch.zeros(2, 2))


def test_tags_as_strings_raise_a_sentence():
    with pytest.raises(TypeError, match=r"indices of tags, got list; for tags of one sequence as strings"):
        si.TagScheme(["O", "B", "I"]).spans(["O", "B"])
