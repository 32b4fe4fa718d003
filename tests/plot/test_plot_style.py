"""What all pictures share: legends say what there is to see, and stand apart from notes."""

from __future__ import annotations

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg

from figure_contents import texts
from structinf import plot

RANKS = torch.tensor([3.0, 1.0, 1.1])
PLANS = {"supplies": [3, 2], "demands": [2, 2, 1]}


@pytest.mark.parametrize(
    ("draw", "theta", "oracle", "options", "in_all", "in_some"),
    [
        (plot.selection, torch.tensor([2.0, 0.1, 0.0]), "subset", {"k": 2}, "in all", "in some"),
        (plot.ranking, RANKS, "ranking", {}, "the same in all", "not the same"),
        (plot.assignment, 0.2 * torch.eye(3), "assignment", {}, "in all assignments", "in some"),
        (plot.assignment, torch.eye(3)[:2], "transportation", PLANS, "in all plans", "in some"),
        (plot.trees, 0.3 * torch.eye(3).roll(1, 1), "arborescence", {}, "in all trees", "in some trees"),
        (plot.constituents, 0.1 * torch.ones(3, 3).triu(), "binary_tree", {}, "in all trees", "in some trees"),
    ],
    ids=["selection", "ranking", "assignment", "plans", "trees", "constituents"],
)
def test_a_legend_has_the_colours_of_the_picture_alone(draw, theta, oracle, options, in_all, in_some):
    words = {"words": [*"abc"][: len(theta) - (oracle == "arborescence")]} if in_all == "in all trees" else {}
    one = texts(draw(si.infer(theta, oracle, "map", **options), **words))
    assert in_all in one
    assert in_some not in one
    several = si.infer(theta, oracle, "sparsemap", **options)
    assert (several.weights > 0).sum() > 1
    assert in_some in texts(draw(several, **words))


def test_one_structure_alone_has_no_others_beside_it():
    edges = [("a", "b"), ("a", "c"), ("b", "c")]
    chain, path = (torch.tensor([[1.0, 0.9], [0.2, 0.3]]), torch.zeros(2, 2)), -torch.tensor([0.5, 1.0, 0.4])
    for relaxation, others in (("map", 0), ("sparsemap", 1)):
        network = plot.network(si.infer(path, "path", relaxation, graph=edges, source="a", target="c"), edges)
        assert texts(network).count("used") == others
        assert texts(plot.lattice(si.infer(chain, "chain", relaxation))).count("taggings") == others


def test_nothing_in_common_is_not_explained():
    shown = texts(plot.selection(si.infer(torch.zeros(2), "categorical", "sparsemap")))
    assert "in some" in shown
    assert "in all" not in shown


def test_what_is_left_out_is_not_explained():
    structures = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 1], [1, 0, 0]]])
    left_out = torch.tensor([[[0.0, 0, 1], [1, 0, 0], [0, 1, 0]]])
    solution = si.SparseDistribution(torch.cat([structures, left_out]), torch.tensor([0.4, 0.35, 0.25]))
    shown = texts(plot.assignment(solution, max_structures=2))
    assert "in some" in shown
    assert "in all assignments" not in shown


def test_wrong_arcs_are_explained_where_there_are_some():
    theta = torch.zeros(4, 4)
    theta[0, 2], theta[2, 1], theta[2, 3] = 5.0, 5.0, 5.0
    solution = si.infer(theta, "arborescence", "map")
    assert not [text for text in texts(plot.trees(solution, "abc", gold=torch.tensor([2, 0, 2]))) if "wrong" in text]
    shown = texts(plot.trees(solution, "abc", gold=torch.tensor([2, 0, 1])))
    assert [text for text in shown if "wrong" in text] == ["wrong, in all"]


def test_a_note_does_not_touch_the_legend():
    figure = plot.alignment(si.infer(torch.zeros(5, 5), "dtw", "sparsemap"))
    figure.set_dpi(80)  # letters are widest, for their size, where there are few pixels
    FigureCanvasAgg(figure).draw()
    foot = [text for text in figure.texts if text.get_text() and text.get_position()[1] < 0.2]
    *_, last, note = (text.get_window_extent() for text in foot)
    assert foot[-1].get_text().startswith("and ")
    assert note.x0 - last.x1 > 0.1 * figure.dpi


def test_small_weights_are_not_zero():
    p = torch.tensor([0.994, 0.004, 0.002])
    solution = si.SparseDistribution(torch.eye(3), p)
    assert {"99%", "<1%"} <= set(texts(plot.support(solution, plot.selection)))
    assert "and 2 more of 1% together" in texts(plot.selection(solution, max_structures=1))
