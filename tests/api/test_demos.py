"""The demos: their data, and short runs of them from the command line."""

from __future__ import annotations

import lzma
import os
import re
from pathlib import Path

import pytest
import torch

import structinf as si
from structinf.calls.resolution import works_with
from structinf.command_line.main import LOSSES, SORT_METHODS, main
from structinf.demos import parse, sort
from structinf.demos.parse import Encoder, Sentence, length_buckets, read_treebank
from structinf.demos.report import Table, percent
from structinf.demos.sort import list_methods, make_method

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def vietnamese() -> Path:
    data = Path(os.environ.get("STRUCTINF_DATA", ROOT.parent / "shared" / "data"))
    folder = data / "ud_vietnamese_vtb"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}; set STRUCTINF_DATA to the folder that holds ud_vietnamese_vtb")
    return folder


def picture(out: str) -> Path:
    """The picture whose path was printed."""
    path = Path(re.search(r"^picture: (.*)$", out, re.MULTILINE)[1])
    assert path.read_bytes().startswith(b"\x89PNG")
    return path


# ----------------------------------------------------------------------------- sort


def sorted_by(out: str) -> dict[str, tuple[float, float, float | None]]:
    """Rightly ranked images and sets in percent, and the support, for each method in the table."""
    rows = re.findall(r"^(\S+) +([\d.]+) % +([\d.]+) % +([\d.]+|-) +[\d.]+$", out, re.MULTILINE)
    return {name: (float(i), float(s), None if support == "-" else float(support)) for name, i, s, support in rows}


def test_sort_from_the_command_line(capsys, tmp_path):
    assert main(["demo", "sort", "--quick", "--out", str(tmp_path / "new" / "folder")]) == 0
    out = capsys.readouterr().out
    assert picture(out) == tmp_path / "new" / "folder" / "structinf-sort.png"
    assert tuple(sorted_by(out)) == SORT_METHODS
    ((images, sets, support),) = sorted_by(out).values()
    assert 0 <= sets <= images <= 100
    assert support > 1


@pytest.mark.full
def test_sort_by_methods_of_choice(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sort, "list_methods", lambda: ["map-loss", "straight-through-layer", "sinkhorn-layer"])
    argv = ["--methods", "straight-through-layer", "all", "--quick", "--seed", "3", "--out", str(tmp_path)]
    assert main(["demo", "sort", *argv]) == 0
    out = capsys.readouterr().out
    assert picture(out) == tmp_path / "structinf-sort.png"
    first = sorted_by(out)
    assert list(first) == ["straight-through-layer", "map-loss", "sinkhorn-layer"]
    assert first["sinkhorn-layer"][2] is None
    assert main(["demo", "sort", *argv]) == 0
    assert sorted_by(capsys.readouterr().out) == first  # the seed decides everything


def test_sort_has_every_relaxation_of_assignments():
    methods = [make_method(name) for name in list_methods()]
    assert {m.relaxation.name for m in methods} == set(works_with(si.get_oracle("assignment")))
    assert set(SORT_METHODS) < {m.name for m in methods}
    losses = {m.relaxation.name for m in methods if m.name.endswith("-loss")}
    assert losses == {m.relaxation.name for m in methods if isinstance(m.relaxation, si.RegularizedRelaxation)}
    layers = {m.relaxation.name for m in methods if m.name.endswith("-layer")}
    assert layers == {m.relaxation.name for m in methods if not m.relaxation.piecewise_constant}


@pytest.mark.parametrize("name", list_methods())
def test_every_method_of_sort_trains(name):
    method = make_method(name)
    train, test = sort.load_images(0)
    model = sort.train(method, train, epochs=1, steps=1, seed=0)
    weights = [p for p in model.parameters() if p.requires_grad]
    assert all(p.isfinite().all() and p.grad is not None for p in weights)
    assert any(p.grad.any() for p in weights)
    result = sort.evaluate(model, sort.draw_sets(test, 20, torch.Generator().manual_seed(1)), method.relaxation)
    assert 0 <= result.sets <= result.images <= 1
    assert result.support is None or result.support >= 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["perturbed-loss", "sparsemap-loss", "straight-through-layer"])
def test_methods_of_sort_learn(name):
    method = make_method(name)
    train, test = sort.load_images(0)
    sets = sort.draw_sets(test, 200, torch.Generator().manual_seed(1))
    before = sort.evaluate(sort.Ranker(method.standardise).eval(), sets, method.relaxation)
    after = sort.evaluate(sort.train(method, train, epochs=1, steps=60, seed=0), sets, method.relaxation)
    assert before.images < 0.4
    assert after.images > 0.7


def test_what_is_drawn_twice_counts_once():
    theta = torch.tensor([[[9.0, 0], [0, 9]], [[0, 0], [0, 0]]])
    generator = torch.Generator().manual_seed(0)
    solution = si.infer(theta, "assignment", "perturbed", samples=50, sigma=0.1, generator=generator)
    assert sort.count_orders(solution) == 1.5


def test_images_to_test_on_are_others():
    train, test = sort.load_images(0)
    assert len(train.digits) + len(test.digits) == 1797
    together = torch.cat([train.pixels, test.pixels]).flatten(1)
    assert len(together.unique(dim=0)) == len(together)
    assert together.min() == 0
    assert together.max() == 1


def test_sets_hold_different_digits_and_their_ranks():
    images, _ = sort.load_images(0)
    # Each image shows its digit, so that the ranks can be read off.
    labelled = sort.Images(images.digits[:, None, None].expand(-1, 8, 8).float(), images.digits)
    sets = sort.draw_sets(labelled, 300, torch.Generator().manual_seed(0))
    digits = sets.pixels[:, :, 0, 0]
    assert digits.shape == sets.ranks.shape == (300, 8)
    assert all(len(set(row.tolist())) == 8 for row in digits)
    for row, ranks in zip(digits.tolist(), sets.ranks.tolist(), strict=True):
        assert ranks == [sorted(row).index(digit) for digit in row]
    assert len(digits.unique()) == 10


# ----------------------------------------------------------------------------- treebanks

CONLLU = """\
# text = I don't run
1\tI\ti\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\trun\trun\tVERB\t_\t_\t0\troot\t_\t_
4.1\trun\trun\tVERB\t_\t_\t_\t_\t_\t_

1\tRun\trun\t_\t_\t_\t0\troot\t_\t_

"""


def write_treebank(folder: Path, text: str = CONLLU) -> Path:
    for part in ("train", "dev", "test"):
        (folder / f"xx_yy-ud-{part}.conllu").write_text(text, "utf-8")
    return folder


def test_contractions_and_elided_words_are_left_out(tmp_path):
    sentences = read_treebank(write_treebank(tmp_path))["train"]
    assert sentences == [
        Sentence(["I", "do", "n't", "run"], ["PRON", "AUX", "PART", "VERB"], [4, 4, 4, 0]),
        Sentence(["Run"], ["_"], [0]),
    ]


def test_compressed_and_several_files(tmp_path):
    write_treebank(tmp_path)
    with lzma.open(tmp_path / "xx_yy-ud-train-b.conllu.xz", "wt", encoding="utf-8") as file:
        file.write(CONLLU)
    treebank = read_treebank(tmp_path)
    assert {part: len(sentences) for part, sentences in treebank.items()} == {"train": 4, "dev": 2, "test": 2}
    assert [len(sentences) for sentences in read_treebank(tmp_path, max_sentences=3).values()] == [3, 2, 2]


def test_a_missing_file_is_named(tmp_path):
    write_treebank(tmp_path)
    (tmp_path / "xx_yy-ud-dev.conllu").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no \*dev\*\.conllu"):
        read_treebank(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONLLU.replace("\t0\troot", "\t1\tdep"), r"sentence 1 of .*train.conllu has no tree with one root"),
        (CONLLU.replace("\t4\tnsubj", "\t0\troot"), "sentence 1 of .* has no tree with one root"),
        (CONLLU.replace("\t4\tnsubj", "\t_\tnsubj"), "sentence 1 of .* has no tree with one root"),
        ("once upon a time\n\n", "train.conllu is not in CoNLL-U"),
    ],
)
def test_files_without_trees_are_refused(tmp_path, text, said):
    with pytest.raises(si.InvalidInputError, match=said):
        read_treebank(write_treebank(tmp_path, text))


def test_batches_are_padded_and_unknown_words_shared():
    encoder = Encoder([Sentence(["a", "A", "b"], ["X", "X", "Y"], [0, 1, 1])])
    batch = encoder([Sentence(["b", "a"], ["Y", "Z"], [2, 0]), Sentence(["c"], ["X"], [0])])
    assert encoder.word_count == 3  # the root, unknown words ("b" was seen once) and "a"
    assert batch.words.tolist() == [[0, 1, 2], [0, 1, 0]]
    assert batch.tags.tolist() == [[0, 3, 1], [0, 2, 0]]
    assert batch.heads.tolist() == [[2, 0], [0, 0]]
    assert batch.lengths.tolist() == [2, 1]


def test_buckets_hold_every_sentence_once_and_similar_lengths():
    sentences = [Sentence([str(i)] * (i % 7 + 1), [], []) for i in range(50)]
    for generator in (None, torch.Generator().manual_seed(0)):
        buckets = length_buckets(sentences, 8, generator)
        assert sorted(s.words for b in buckets for s in b) == sorted(s.words for s in sentences)
        assert all(
            max(map(len, lengths)) - min(map(len, lengths)) <= 2 for lengths in [[s.words for s in b] for b in buckets]
        )
    again = length_buckets(sentences, 8, torch.Generator().manual_seed(0))
    assert again == buckets
    assert length_buckets(sentences, 8, torch.Generator().manual_seed(1)) != buckets


# ----------------------------------------------------------------------------- parse


def test_the_losses_are_those_of_the_command_line():
    assert tuple(parse.LOSSES) == LOSSES


def attachment(out: str) -> list[float]:
    """Share of right heads after each epoch."""
    return [float(share) for share in re.findall(r"^\d+ +[\d.]+ +([\d.]+) %", out, re.MULTILINE)]


@pytest.mark.full
def test_a_parser_learns_vietnamese(capsys, tmp_path, vietnamese):
    argv = ["--max-sentences", "400", "--max-length", "20", "--epochs", "5", "--out", str(tmp_path)]
    assert main(["demo", "parse", "--treebank", str(vietnamese), *argv]) == 0
    out = capsys.readouterr().out
    shares = attachment(out)
    assert len(shares) == 5
    assert shares[-1] > 35, out  # a random tree has a tenth of the heads
    assert re.search(r"^test: [\d.]+ % of the heads", out, re.MULTILINE)
    assert picture(out) == tmp_path / "structinf-parse-sparsemap.png"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(capsys, tmp_path, loss):
    folder = write_treebank(tmp_path, CONLLU * 10)
    argv = ["demo", "parse", "--treebank", str(folder), "--loss", loss, "--epochs", "4", "--out", str(tmp_path)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert attachment(out)[-1] > 90, out
    assert "no picture: the development set has no sentence of 5 to 12 words" in out
    assert main(argv) == 0
    assert attachment(capsys.readouterr().out) == attachment(out)  # the seed decides everything


def test_no_sentence_short_enough(tmp_path):
    text = CONLLU.split("\n\n")[0] + "\n\n"
    with pytest.raises(si.InvalidInputError, match="no training sentence has 3 words or fewer"):
        parse.run(write_treebank(tmp_path, text), max_length=3)


# ----------------------------------------------------------------------------- tables


def test_table_aligns_its_cells(capsys):
    table = Table({"name": 6, "share": 0})
    table.add("a", percent(0.5))
    table.add("longer", percent(1))
    assert capsys.readouterr().out.splitlines() == [
        "name    share",
        "------  -----",
        "a       50.0 %",
        "longer  100.0 %",
    ]
