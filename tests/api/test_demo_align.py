"""The demo of alignments: its data, its picture, and a short run from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import structinf as si
from structinf.command_line.main import main

pytest.importorskip("matplotlib")
pytest.importorskip("pyts")
from structinf.demos import align
from structinf.demos.align import Average, Pair, draw


def rows(out: str) -> dict[str, list[float]]:
    """The numbers of the table, by method."""
    names = [method.name for method in align.make_methods(1)]
    lines = {name: next(line for line in out.splitlines() if line.startswith(name + " ")) for name in names}
    return {name: [float(n) for n in re.findall(r"[\d.]+", line[len(name) :])[-4:]] for name, line in lines.items()}


def test_from_the_command_line(capsys, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert main(["demo", "align", "--quick", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    table = rows(out)
    cells = {name: numbers[2] for name, numbers in table.items()}
    assert cells["hard DTW"] < cells["soft-DTW, squared l2"] < cells["soft-DTW, negentropy"] <= 30 * 30
    assert all(numbers[0] < table["mean"][0] for name, numbers in table.items() if name != "mean")
    assert all(0 <= numbers[1] <= 100 for numbers in table.values())
    path = Path(re.search(r"^picture: (.*)$", out, re.MULTILINE)[1])
    assert path == folder / "structinf-align.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_temperature_below_zero_is_refused(capsys, tmp_path):
    assert main(["demo", "align", "--quick", "--temperature", "-1", "--out", str(tmp_path)]) == 2
    assert "temperature must be a finite number of at least 0" in capsys.readouterr().err


def test_recordings():
    train, test = align.load_recordings()
    assert train.series.shape == (50, 150, 1)
    assert test.series.shape == (150, 150, 1)
    assert train.classes.bincount().tolist() == [24, 26]
    assert test.classes.unique().tolist() == [0, 1]
    torch.testing.assert_close(train.series.mean(1), torch.zeros(50, 1, dtype=torch.float64), atol=1e-5, rtol=0)


def test_evaluation_of_averages_that_are_known():
    series = torch.tensor([[0.0, 0, 1], [0, 1, 1], [5, 5, 6]]).unsqueeze(2)
    averages = torch.tensor([[0.0, 1, 1], [5, 5, 5]]).unsqueeze(2)
    method = align.Method("", lambda s: s.mean(0), 0, "none")
    result = align.evaluate(method, averages, align.Recordings(series, torch.tensor([0, 0, 1])))
    assert result.cost == pytest.approx(1 / 3)
    assert result.accuracy == 1
    wrong = align.evaluate(method, averages, align.Recordings(series, torch.tensor([0, 1, 1])))
    assert wrong.accuracy == pytest.approx(2 / 3)


def test_the_pair_that_is_drawn_is_the_least_alike_in_time():
    steps = torch.arange(12)
    series = torch.stack([(steps >= start).double() for start in (3, 4, 9)]).unsqueeze(2)
    pair = align.find_pair(series, 0.1)
    assert {int(pair.x.sum()), int(pair.y.sum())} == {9, 3}
    assert pair.path[0].tolist() == [0, 0]
    assert pair.path[-1].tolist() == [11, 11]
    dense, sparse = pair.matrices.values()
    assert (sparse > 0).sum() < (dense > 0).sum()


def test_the_picture_shows_both_alignments_and_every_average():
    x, y = torch.rand(6), torch.rand(8)
    cost = si.pairwise_cost(x, y)
    matrices = {name: si.alignment_matrix(cost, regularizer=name) for name in ("negentropy", "squared_l2")}
    pair = Pair(x, y, matrices, torch.tensor([[0, 0], [5, 7]]))
    figure = draw(pair, torch.rand(3, 6), [Average("one", x), Average("two", x)])
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    share = (matrices["squared_l2"] > 0).float().mean().item()
    assert titles == [
        "negentropy: 100% of the cells above 0 in float32",
        f"squared_l2: {share:.0%} of the cells above 0 in float32",
        "one",
        "two",
    ]
