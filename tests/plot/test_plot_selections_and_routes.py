"""Pictures of selections, constituents and routes, and the layout of graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from matplotlib.patches import FancyBboxPatch

from figure_contents import (
    arrows,
    colours,
    cut_off,
    decimals,
    percentages,
    render,
    shown_decimals,
    shown_percentages,
    texts,
)
from structinf import plot
from structinf.dp.paths import DAG
from structinf.plot.brackets import find_parts, place_spans
from structinf.plot.layered_layout import lay_out
from structinf.plot.style import BLUE, GREY, LIGHT_GREY, ORANGE

# ----------------------------------------------------------------------------- selections


@pytest.mark.parametrize(
    ("name", "options"),
    [("categorical", {}), ("subset", {"k": 2}), ("knapsack", {"weights": [1, 2, 3, 1, 2], "capacity": 5})],
)
def test_selection_shows_the_mean_and_every_selection(name, options):
    solution = si.infer(torch.randn(5), name, "sparsemap", **options)
    names = [f"item{i}" for i in range(5)]
    figure = plot.selection(solution, names=names, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert [text for text in texts(figure) if text.startswith("item")] == names
    assert shown_percentages(figure) == percentages(solution)
    assert shown_decimals(figure) == decimals(solution.mean)
    structures = solution.support[solution.weights > 0]
    bars = int((solution.mean > 0).sum())
    drawn = colours(figure.axes[0].patches)[bars:]  # a cell for each element of each selection
    assert len(drawn) == structures.numel()
    shared = structures.all(0)
    assert drawn.count(LIGHT_GREY) == int((structures == 0).sum())
    assert drawn.count(BLUE) == int((structures[:, shared] > 0).sum())
    assert drawn.count(ORANGE) == int((structures[:, ~shared] > 0).sum())


def test_neighbours_selected_together_are_joined():
    theta = (torch.tensor([1.0, 0.9, 0.8, 0.0]), torch.tensor([0.0, 0.3, 0.0]))
    solution = si.infer(theta, "correlated_subset", "sparsemap", k=2)
    figure = plot.selection(solution)
    render(figure)
    pairs = solution.support[1][solution.weights > 0]
    drawn = colours(figure.axes[0].patches)
    assert drawn.count(GREY) == int((solution.mean[1] > 0).sum()) + int(pairs.sum())
    assert "both neighbours" in texts(figure)


def test_selections_beyond_the_most_are_counted():
    solution = si.infer(torch.zeros(6), "categorical", "sparsemap")
    figure = plot.selection(solution, max_structures=2)
    assert shown_percentages(figure) == ["17%", "17%"]
    assert "and 4 more of 67% together" in texts(figure)


@pytest.mark.parametrize("relaxation", ["marginals", "smoothed"])
def test_without_a_support_the_bars_are_all(relaxation):
    solution = si.infer(torch.randn(4), "subset", relaxation, k=2)
    figure = plot.selection(solution, names="abcd")
    render(figure)
    assert colours(figure.axes[0].patches) == [BLUE] * 4
    assert shown_percentages(figure) == []
    assert shown_decimals(figure) == decimals(solution.mean)


def test_long_names_are_turned():
    solution = si.infer(torch.randn(3), "categorical", "sparsemap")
    figure = plot.selection(solution, names=["a", "b", "a name of considerable length"])
    assert not cut_off(figure)
    assert {text.get_rotation() for text in figure.axes[0].texts if text.get_text() in ("a", "b")} == {40}


def test_wrong_names_are_refused():
    solution = si.infer(torch.randn(3), "categorical", "sparsemap")
    with pytest.raises(
        si.InvalidInputError, match=r"names must have 3 entries, one for each of the elements .*, got 2$"
    ):
        plot.selection(solution, names=["a", "b"])
    with pytest.raises(si.InvalidInputError, match=r"of shape \(d,\) or \(d,\) and \(d-1,\); got \(2, 3\)"):
        plot.selection(si.infer(torch.randn(2, 3), "categorical", "sparsemap"))


# ----------------------------------------------------------------------------- constituents


@pytest.mark.parametrize("n", [1, 2, 6])
def test_constituents_show_every_word_and_bracket(n):
    solution = si.infer(torch.randn(n, n), "binary_tree", "sparsemap")
    words = [f"word{i}" for i in range(n)]
    figure = plot.constituents(solution, words, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    trees = percentages(solution)
    assert shown_percentages(figure) == trees
    assert [text for text in texts(figure) if text.startswith("word")] == words * len(trees)
    assert all(len(axes.lines) == n - 1 for axes in figure.axes)


def test_labels_stand_at_the_spans():
    theta = torch.full((3, 3, 2), -9.0)
    theta[0, 1, 0] = theta[1, 2, 0] = 1.0
    theta[0, 2, 1] = theta[0, 0, 0] = theta[1, 1, 0] = theta[2, 2, 0] = 1.0
    solution = si.infer(theta, "binary_tree", "sparsemap", labelled=True)
    assert percentages(solution) == ["50%", "50%"]
    figure = plot.constituents(solution, ["old", "wise", "owls"], labels=["part", "whole"])
    render(figure)
    shown = texts(figure)
    assert shown.count("part") == 2 * 4
    assert shown.count("whole") == 2
    for axes in figure.axes:
        assert sorted(colours(axes.lines)) == sorted([GREY, BLUE])


def test_a_span_is_above_its_parts_and_between_them():
    spans = [(0, 0), (1, 1), (2, 2), (3, 3), (1, 2), (1, 3), (0, 3)]
    assert find_parts((0, 3), spans) == [(0, 0), (1, 3)]
    assert find_parts((2, 2), spans) == []
    places = place_spans(spans, [0.0, 1.0, 2.0, 3.0], foot=0.2)
    assert places[1, 2][0] == 1.5
    assert places[1, 3][0] == 2.25
    assert places[2, 2][1] == pytest.approx(0.2)
    assert places[2, 2][1] < places[1, 2][1] < places[1, 3][1] < places[0, 3][1]


def test_wrong_words_are_refused():
    solution = si.infer(torch.randn(3, 3), "binary_tree", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"words must have 3 entries, .*, got 2; cut the padding"):
        plot.constituents(solution, ["a", "b"])
    with pytest.raises(si.InvalidInputError, match="no support"):
        plot.constituents(si.infer(torch.randn(3, 3), "binary_tree", "marginals"), "abc")
    labelled = si.infer(torch.randn(3, 3, 2), "binary_tree", "sparsemap", labelled=True)
    with pytest.raises(si.InvalidInputError, match=r"^labels must have 2 entries, .* the labels .*, got 3"):
        plot.constituents(labelled, "abc", labels="xyz")


# ----------------------------------------------------------------------------- routes

EDGES = [("home", "bus"), ("home", "train"), ("train", "bus"), ("bus", "work"), ("train", "work"), ("home", "work")]


@pytest.mark.parametrize("form", ["pairs", "array", "networkx"])
def test_route_shows_the_nodes_and_the_edges(form):
    nodes = ["home", "bus", "train", "work"]
    edges = {
        "pairs": EDGES,
        "array": np.array([[nodes.index(node) for node in edge] for edge in EDGES]),
        "networkx": nx.DiGraph(EDGES),
    }[form]
    mean_order = list(edges.edges) if form == "networkx" else list(EDGES)
    solution = si.infer(0.5 * torch.randn(len(EDGES)), "dag_path", "sparsemap", graph=edges)
    figure = plot.route(solution, edges, title="a title")
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert set(map(str, range(4)) if form == "array" else nodes) <= set(texts(figure))
    assert sum(isinstance(patch, FancyBboxPatch) for patch in figure.axes[0].patches) == 4
    drawn = arrows(figure)
    assert len(drawn) == len(mean_order)
    assert [(a.get_linewidth() - 0.8) / 4 for a in drawn] == pytest.approx(solution.mean.tolist(), abs=1e-6)
    heaviest = solution.support[solution.weights.argmax()]
    assert [color == ORANGE for color in colours(drawn)] == (heaviest > 0).tolist()
    assert f"the heaviest path, {percentages(solution)[0]}" in texts(figure)


def test_edges_are_named():
    solution = si.infer(torch.tensor([1.0, 0.0]), "dag_path", "map", graph=[(0, 1), (0, 1)])
    shown = texts(plot.route(solution, [(0, 1), (0, 1)], names=["road", "river"]))
    assert {"road 1", "river"} <= set(shown)


def test_parallel_edges_lie_apart():
    edges = [("a", "b")] * 3
    solution = si.infer(torch.zeros(3), "dag_path", "marginals", graph=edges)
    figure = plot.route(solution, edges)
    render(figure)
    middles = {arrow._path_original.vertices[2][1] for arrow in arrows(figure)}
    assert len(middles) == 3
    assert set(colours(arrows(figure))) == {BLUE}


def test_wrong_edges_are_refused():
    solution = si.infer(torch.zeros(len(EDGES)), "dag_path", "sparsemap", graph=EDGES)
    with pytest.raises(si.InvalidInputError, match=r"edges must have 6 entries, .*, got 5$"):
        plot.route(solution, EDGES[:-1])
    with pytest.raises(si.InvalidInputError, match=r"^names must have 6 entries, .* the edges .*, got 1"):
        plot.route(solution, EDGES, names=["a"])
    with pytest.raises(si.InvalidInputError, match="cycle"):
        plot.route(solution, [*EDGES[:-1], ("work", "home")])


def test_layers_are_longest_paths():
    layout = lay_out(DAG.of(EDGES))
    assert layout.layer.tolist() == [0, 2, 1, 3]  # home, bus, train, work
    assert [len(heights) for heights in layout.passes] == [1, 0, 0, 0, 1, 2]


def test_what_shares_a_layer_lies_apart():
    generator = np.random.default_rng(0)
    edges = [(i, j) for i in range(12) for j in range(i + 1, 12) if generator.random() < 0.3 or j == i + 1]
    dag = DAG.of(edges)
    layout = lay_out(dag)
    places = [[] for _ in range(layout.layer.max() + 1)]
    for layer, height in zip(layout.layer, layout.height, strict=True):
        places[layer].append(height)
    for (start, _), heights in zip(dag.ends.tolist(), layout.passes, strict=True):
        for k, height in enumerate(heights, layout.layer[start] + 1):
            places[k].append(height)
    for heights in places:
        assert (np.diff(np.sort(heights)) > 1 - 1e-9).all()


def test_two_chains_do_not_cross():
    dag = DAG.of([("s", "a"), ("s", "b"), ("b", "d"), ("a", "c"), ("c", "t"), ("d", "t")])
    height = dict(zip(dag.nodes, lay_out(dag).height, strict=True))
    assert (height["a"] - height["b"]) * (height["c"] - height["d"]) > 0
    assert height["a"] == pytest.approx(height["c"])
