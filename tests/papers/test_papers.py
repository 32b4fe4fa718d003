"""The papers' experiments: what they are made of, and small runs of them where the real data is at hand."""

from __future__ import annotations

import lzma

import pytest
import torch

from benchmarks.papers import (
    alignment,
    attention_classification,
    energy_knapsack,
    ner,
    parsing,
    rationale_subsets,
    snli_alignment,
)
from benchmarks.papers.command import Report
from benchmarks.papers.text import Encoder, Lexicon, buckets, lines_of
from paper_reports import folder, number, tables

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- what all share


def test_a_report_is_printed_and_written(tmp_path, capsys):
    report = Report(tmp_path / "new" / "report.md")
    report.line("a\n")
    report.columns({"name": 6, "score": 0})
    report.row("one", 0.5)
    report.row("three", [1.0, 2.0, 3.0])
    report.row("none", "")
    assert (tmp_path / "new" / "report.md").read_text("utf-8") == capsys.readouterr().out
    assert tables(tmp_path / "new" / "report.md") == [[["one", "0.50"], ["three", "2.00 ± 1.00"], ["none", ""]]]


def test_compressed_files_and_missing_ones(tmp_path):
    with lzma.open(tmp_path / "a.txt.xz", "wt", encoding="utf-8") as file:
        file.write("å\n\nb\n")
    assert list(lines_of(tmp_path, "a.txt")) == ["å", "", "b"]
    (tmp_path / "a.txt").write_text("plain", "utf-8")
    assert list(lines_of(tmp_path, "a.txt")) == ["plain"]
    with pytest.raises(FileNotFoundError, match=r"holds no b\.txt and no b\.txt\.xz"):
        list(lines_of(tmp_path, "b.txt"))


@pytest.mark.parametrize(
    "experiment",
    [alignment, attention_classification, energy_knapsack, ner, parsing, rationale_subsets, snli_alignment],
)
def test_a_folder_without_the_data(experiment, tmp_path, capsys):
    assert experiment.main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds no " in capsys.readouterr().err


def test_numbers_of_runs_are_checked(capsys):
    with pytest.raises(SystemExit):
        ner.main(["folder", "--seeds", "0"])
    assert "--seeds and --threads are numbers of at least 1" in capsys.readouterr().err


def test_states_do_not_depend_on_the_padding():
    sentences = [ner.Sentence(["Ib", "bor", "i", "Ry", "i", "dag"], []), ner.Sentence(["Ib", "bor"], [])]
    lexicon = Lexicon([sentences[0]], [ner.Sentence(["Aage"], [])])
    assert lexicon.known_count == 3  # padding, unknown words and "i"
    encoder = Encoder(lexicon, hidden=4).eval()
    together, alone = encoder(*lexicon(sentences)), encoder(*lexicon(sentences[1:]))
    torch.testing.assert_close(together[1, :2], alone[0])
    assert together.shape == (2, 6, 8)
    assert not together[1, 2:].any()


def test_buckets_hold_every_sentence_once():
    sentences = [ner.Sentence([str(i)] * (i % 7 + 1), []) for i in range(50)]
    for generator in (None, torch.Generator().manual_seed(0)):
        batches = buckets(sentences, 8, generator)
        assert sorted(s.words for b in batches for s in b) == sorted(s.words for s in sentences)
        assert all(max(len(s.words) for s in b) - min(len(s.words) for s in b) <= 2 for b in batches)


# ----------------------------------------------------------------------------- named entities


def test_tags_say_where_entities_end():
    given = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-ORG", "I-ORG", "I-ORG", "O", "B-PER", "I-LOC"]
    tags = ner.to_iobes(given)
    assert tags == ["B-PER", "E-PER", "O", "S-LOC", "S-LOC", "B-ORG", "I-ORG", "E-ORG", "O", "S-PER", "S-LOC"]
    assert ner.entities(tags) == {
        ("PER", 0, 1), ("LOC", 3, 3), ("LOC", 4, 4), ("ORG", 5, 7), ("PER", 9, 9), ("LOC", 10, 10)
    }  # fmt: skip


@pytest.mark.parametrize(
    "tags", ["E-A", "I-A E-A", "B-A", "B-A I-A", "B-A E-B", "B-A O E-A", "B-A I-B E-A", "B-A I-B E-B"]
)
def test_ill_formed_entities_do_not_count(tags):
    assert ner.entities([*tags.split(), "O"]) == set()
    assert ner.entities([*tags.split(), "S-A"]) == {("A", len(tags.split()), len(tags.split()))}


def test_names_seen_are_looked_up_the_longest_first():
    train = [ner.Sentence(["New", "York", "Times"], ["B-ORG", "I-ORG", "E-ORG"]), ner.Sentence(["York"], ["S-LOC"])]
    found = ner.look_up(train, [ner.Sentence(["York", "New", "York", "Times", "Times"], ["O"] * 5)])
    assert found == [{("LOC", 0, 0), ("ORG", 1, 3)}]
    assert ner.f1([{("LOC", 0, 0), ("PER", 4, 4)}], found) == 50


@pytest.mark.slow
@pytest.mark.full
def test_losses_of_named_entities(tmp_path, capsys, monkeypatch):
    every = ner.schedules(6)
    assert len(every) == 8
    # Each Ω, and each kind of loss.
    some = [("negentropy", "surrogate"), ("squared l2", "surrogate"), ("entmax 1.5", "relaxed"), *list(every)[-2:]]
    monkeypatch.setattr(ner, "schedules", lambda epochs: {key: every[key] for key in some})
    assert ner.main([str(folder("uner_danish_ddt")), "--quick", "--out", str(tmp_path / "ner.md")]) == 0
    ((baseline, *rows),) = tables(tmp_path / "ner.md")
    scores = {(omega, kind): number(score) for omega, kind, score, *_ in rows}
    assert list(scores) == some
    assert all(number(row[5]) < 0.8 * number(row[4]) for row in rows), rows  # losses fall
    with_regularizer = [score for (omega, _), score in scores.items() if omega != "none"]
    assert min(with_regularizer) > scores["none", "surrogate"]  # the perceptron is far behind, as in the paper
    assert max(with_regularizer) > number(baseline[2]) + 10
    assert ", right" in capsys.readouterr().out  # candidates are listed


def test_candidates_are_all_that_is_possible():
    corpus = ner.Corpus(folder("uner_danish_ddt"), 60)
    torch.manual_seed(0)
    model = ner.Tagger(corpus, 8).eval()
    with torch.no_grad():
        model.tag.weight.mul_(20.0)
    found = ner.candidates(model, corpus, corpus.test)
    assert len(found) > 5
    for c in found:
        assert sum(c.probabilities) == pytest.approx(1, abs=1e-4)
        assert c.probabilities == sorted(c.probabilities, reverse=True)
        assert len({tuple(tags) for tags in c.tags}) == len(c.tags)


# ----------------------------------------------------------------------------- constituency parsing

BRACKETS = "( (S (NP-SBJ-1 (DT The) (NN cat)) (VP (VBD sat) (S (NP (-NONE- *)) (VP (VBG purring)))) (. .)) )"


def test_trees_are_read(tmp_path):
    (tmp_path / "train.mrg").write_text(f"{BRACKETS}\n( (NP (-LRB- -LRB-) (NN a\u2009b)) )\n", "utf-8")
    first, second = parsing.read(tmp_path, "train")
    assert first.words == ["The", "cat", "sat", "purring", "."]
    assert first.tags == ["DT", "NN", "VBD", "VBG", "."]
    assert first.constituents == [("S", 0, 4), ("NP", 0, 1), ("VP", 2, 3), ("S", 3, 3), ("VP", 3, 3)]
    assert second == (["-LRB-", "a\u2009b"], ["-LRB-", "NN"], [("NP", 0, 1)])


def test_trees_become_binary_and_back(tmp_path):
    (tmp_path / "train.mrg").write_text(BRACKETS, "utf-8")
    (sentence,) = parsing.read(tmp_path, "train")
    spans = parsing.to_binary(sentence)
    assert spans == [
        (0, 4, "S"), (0, 1, "NP"), (0, 0, ""), (1, 1, ""),
        (2, 4, ""), (2, 3, "VP"), (2, 2, ""), (3, 3, "S+VP"), (4, 4, ""),
    ]  # fmt: skip
    assert parsing.from_binary(spans) == sentence.constituents


def test_all_real_trees_become_binary_and_back():
    sentences = list(parsing.read(folder("craft_treebank"), "dev"))
    assert len(sentences) == 2243
    for sentence in sentences:
        spans = parsing.to_binary(sentence)
        assert len(spans) == 2 * len(sentence.words) - 1
        assert parsing.from_binary(spans) == sentence.constituents
    assert parsing.f1(sentences, [s.constituents for s in sentences]) == (100, 100)


def test_f1_of_constituents():
    sentence = parsing.Sentence(["a", "b", "c"], [], [("S", 0, 2), ("NP", 0, 1), ("X", 0, 1), ("NP", 2, 2)])
    labelled, unlabelled = parsing.f1([sentence], [[("S", 0, 2), ("VP", 0, 1)]])
    assert labelled == pytest.approx(200 * 1 / 6)
    assert unlabelled == 100


@pytest.mark.slow
@pytest.mark.full
def test_losses_of_parsers(tmp_path):
    assert parsing.main([str(folder("craft_treebank")), "--quick", "--out", str(tmp_path / "parsing.md")]) == 0
    (((_, *baseline), *rows),) = tables(tmp_path / "parsing.md")
    assert [row[0] for row in rows] == ["hinge", "CRF", "SparseMAP"]
    for _, labelled, unlabelled, _, first, last, _ in rows:
        assert number(labelled) > number(baseline[0]) + 10
        assert number(unlabelled) > number(baseline[1]) + 5
        assert number(last) < 0.75 * number(first)


# ----------------------------------------------------------------------------- alignment

MATCH = """\
info(midiClockUnits,480).
info(midiClockRate,500000).
snote(n1,[E,b],4,1:1,0,1/4,0.0,1.0,[])-note(n2,[E,b],4,990,1400,1440,60).
snote(n2,[C,n],4,1:1,0,1/4,0.0,1.0,[s])-note(n0,[C,n],4,960,1400,1440,60).
snote(n3,[F,#],5,1:2,0,1/4,1.0,2.0,[])-deletion.
snote(n4,[B,n],3,1:3,0,1/4,2.0,3.0,[])-note(n3,[B,n],3,1440,1600,1600,80).
snote(n4,[B,n],3,1:3,0,1/4,2.0,3.0,[])-note(n3,[B,n],3,1440,1600,1600,80).
insertion-note(n4,[A,n],4,1500,1600,1600,70).
sustain(1500,127).
"""


def test_match_files_are_read(tmp_path):
    (tmp_path / "a.match").write_text(MATCH, "utf-8")
    notes = alignment.read(tmp_path, "a.match")
    assert [(n.score, n.key, n.velocity) for n in notes] == [
        (0.0, 60, 60),
        (0.0, 63, 60),
        (2.0, 59, 80),
        (None, 69, 70),
    ]
    assert [n.onset for n in notes] == pytest.approx([1.0, 1.03125, 1.5, 1.5625])
    assert notes[0].end == pytest.approx(1.5)
    (segment,) = alignment.segments(notes, 1, {59: 0, 60: 1, 63: 2, 69: 3})
    assert segment.events.tolist() == [[0, 0.5, 0.5, 0], [1, 0, 0, 0]]
    assert segment.begins.tolist() == [0, int(1.5 / alignment.HOP) - int(1 / alignment.HOP)]
    path = segment.path()
    assert (path.sum(1) == 1).all()
    assert path.argmax(0).tolist() == segment.begins.tolist()


def test_real_performances_are_cut_into_paths():
    data = folder("piano_alignment")
    for name, count in alignment.PIECES.items():
        notes = alignment.read(data, name)
        keys = {key: i for i, key in enumerate(sorted({n.key for n in notes}))}
        parts = alignment.segments(notes, count, keys)
        sizes = [len(part.events) for part in parts]
        assert len(parts) == count
        assert sum(sizes) == len({n.score for n in notes} - {None})
        assert max(sizes) - min(sizes) <= 1
        batch = alignment.collate(parts)
        right = alignment.deviation(1000 * (batch.path - 1), batch, 1.0)
        assert right == pytest.approx((0, 0, 0), abs=1e-9)  # the right paths are paths, and the best for these scores


@pytest.mark.full
def test_alignments_trained_end_to_end(tmp_path):
    assert alignment.main([str(folder("piano_alignment")), "--quick", "--out", str(tmp_path / "alignment.md")]) == 0
    found, *pieces = tables(tmp_path / "alignment.md")
    assert len(pieces) == 2
    train = {row[0]: number(row[1]) for row in found}
    test = {row[0]: number(row[2]) for row in found}
    expected = {row[0]: number(row[5]) for row in found}
    assert train["end to end, γ = 0.3"] < 0.7 * train["pretrained"] < 0.3 * train["random θ"]
    assert test["end to end, γ = 0.3"] < test["random θ"]
    assert expected["end to end, γ = 1"] < 0.7 * expected["pretrained"]
