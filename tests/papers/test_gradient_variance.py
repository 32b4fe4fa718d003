"""The table of variances of gradient estimates, from few draws."""

from __future__ import annotations

from benchmarks.papers.command import Report
from benchmarks.papers.gradient_variance import METHODS, STRUCTURES, Sizes, experiment
from paper_reports import number, tables


def test_table(tmp_path):
    experiment(None, Sizes(40), range(1), Report(tmp_path / "report.md"))
    (rows,) = tables(tmp_path / "report.md")
    assert {row[0] for row in rows} == set(STRUCTURES)
    assert {row[1] for row in rows} == set(METHODS)
    variances = {row[1]: number(row[2]) for row in rows if row[0] == "8 choices"}
    assert variances["unordered set"] < variances["score function"]
