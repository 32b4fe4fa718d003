"""Parsers of actions: what the experiment is made of, and a small run where the treebank is at hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers import transition_parsing
from benchmarks.papers.transition_parsing import METHODS, Corpus, is_projective, one_hot, sizes
from paper_reports import folder, number, tables


def test_crossing_arcs():
    assert is_projective([2, 0, 2, 3])
    assert not is_projective([3, 4, 0, 3])


def test_gold_arcs():
    heads, lengths = torch.tensor([[2, 0], [0, -1]]), torch.tensor([2, 1])
    arcs = one_hot(heads, lengths, torch.zeros(2, 3, 3)).nonzero().tolist()
    assert arcs == [[0, 0, 2], [0, 2, 1], [1, 0, 1]]


def test_a_folder_without_the_data(tmp_path, capsys):
    assert transition_parsing.main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds no " in capsys.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_losses_have_a_gradient(method):
    corpus = Corpus(folder("ud_telugu_mtg"), sizes(True))
    kind, losses = METHODS[method]
    model = kind(corpus, 8)
    batch = corpus.batch(corpus.train[:4])
    losses[1](model, batch).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert sum(p.grad is not None and bool(p.grad.any()) for p in model.parameters()) > 5


@pytest.mark.full
def test_small_run(tmp_path):
    report = tmp_path / "report.md"
    arguments = [str(folder("ud_vietnamese_vtb")), "--quick", "--out", str(report)]
    assert transition_parsing.main(arguments) == 0
    (rows,) = tables(report)
    assert [row[0] for row in rows] == list(METHODS)
    assert all(number(row[1]) > 10 for row in rows)
