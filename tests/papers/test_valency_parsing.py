"""Trees with limits on dependents: what the experiment is made of, and a small run where the treebank is at hand."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from benchmarks.papers import valency_parsing
from benchmarks.papers.valency_parsing import limited_trees, limits_by_tag, limits_of, make_batch
from paper_reports import folder, number, tables
from structinf.demos.parse import Sentence

SENTENCES = [Sentence(["a", "b", "c"], ["X", "Y", "X"], [2, 0, 2]), Sentence(["b", "c"], ["Y", "X"], [0, 1])]


def test_limits_are_the_most_dependents_of_a_tag():
    batch = make_batch(SENTENCES, {"X": 2, "Y": 3}, 3)
    assert batch.tags.tolist() == [[0, 2, 3, 2], [0, 3, 2, 1]]
    limits = limits_by_tag(batch, 5, 0.0)
    assert limits.tolist() == [3, 3, 1, 2, 3]
    assert limits_by_tag(batch, 5, 0.5)[3] == 1
    data = limits_of(batch, limits)
    assert data["dependents_1"].tolist() == [1, 2]
    theta = torch.zeros(2, 4, 4)
    theta[:, 1] = 1.0
    tree = si.relax(theta, limited_trees(3, solver="milp"), "map", lengths=batch.lengths, **data)
    assert tree[0, 1].sum() == 1
    assert tree.sum((1, 2)).tolist() == [3, 2]


def test_a_folder_without_the_data(tmp_path, capsys):
    assert valency_parsing.main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds no " in capsys.readouterr().err


@pytest.mark.full
def test_small_run(tmp_path):
    report = tmp_path / "report.md"
    assert valency_parsing.main([str(folder("ud_telugu_mtg")), "--quick", "--out", str(report)]) == 0
    (rows,) = tables(report)
    assert [row[1] for row in rows] == ["no limits, map", "limits, lp_map", "limits, exact by milp"]
    assert all(number(row[2]) > 80 for row in rows)
