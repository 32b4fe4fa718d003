"""Pictures of graphs with weighted edges, of rankings, of transport plans, and of paths that lead back and forth."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from matplotlib.patches import FancyBboxPatch, Rectangle

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
from structinf.plot.style import BLUE, GREY, ORANGE

pytestmark = pytest.mark.slow

EDGES = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "b")]


def boxes(figure) -> list[FancyBboxPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def amounts(values) -> list[str]:
    """As they are shown, sorted."""
    return sorted(f"{v:.2f}".rstrip("0").rstrip(".") if v > 0.995 else decimals(torch.tensor(v))[0] for v in values)


# ----------------------------------------------------------------------------- graphs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["spanning_tree", "tour", "matching"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_pairs_of_nodes_that_are_used_are_drawn(name, n):
    solution = si.infer(torch.randn(n, n), name, "sparsemap")
    names = [f"node{i}" for i in range(n)]
    figure = plot.network(solution, nodes=names, title="a title")
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert [text for text in texts(figure) if text.startswith("node")] == names
    assert {"a title", f"the heaviest, {percentages(solution)[0]}"} <= set(texts(figure))
    drawn, used = arrows(figure), solution.mean > 0
    assert len(drawn) == used.sum()
    assert [(edge.get_linewidth() - 0.8) / 4 for edge in drawn] == pytest.approx(solution.mean[used].tolist(), abs=1e-6)
    heaviest = solution.support[solution.weights.argmax()]
    assert [color == ORANGE for color in colours(drawn)] == (heaviest[used] > 0).tolist()
    assert shown_decimals(figure) == decimals(solution.mean)
    # The arcs of tours have directions, the edges of the others have none.
    assert {type(edge.get_arrowstyle()).__name__ for edge in drawn} == {"CurveFilledB" if name == "tour" else "Curve"}


@pytest.mark.parametrize("form", ["pairs", "array", "networkx", "oracle"])
def test_listed_edges_are_all_drawn(form):
    theta = torch.tensor([2.0, 1.5, 1.6, 0.0, -9.0])
    edges = {"pairs": EDGES, "array": np.array([["abcd".index(node) for node in edge] for edge in EDGES])}
    edges["networkx"] = nx.Graph(EDGES)
    given = edges.get(form, EDGES)
    oracle = si.get_oracle("spanning_tree", edges=given)
    solution = si.infer(theta, oracle, "sparsemap")
    figure = plot.network(solution, oracle.edges if form == "oracle" else given, directed=False, names="vwxyz")
    render(figure)
    assert not cut_off(figure)
    assert set("0123" if form == "array" else "abcd") <= set(texts(figure))
    assert len(arrows(figure)) == len(EDGES)
    drawn = [BLUE if p > 0 else GREY for p in solution.mean]
    heaviest = solution.support[solution.weights.argmax()]
    drawn = [ORANGE if chosen else color for chosen, color in zip(heaviest, drawn, strict=True)]
    assert colours(arrows(figure)) == drawn
    assert GREY in drawn
    assert {"not used", "z"} <= set(texts(figure))


def test_without_a_support_no_edge_is_the_heaviest():
    solution = si.infer(torch.randn(5, 5), "spanning_tree", "marginals")
    figure = plot.network(solution)
    render(figure)
    assert set(colours(arrows(figure))) == {BLUE}
    assert len(arrows(figure)) == 10
    assert not any("heaviest" in text for text in texts(figure))


def test_amounts_are_written_and_the_largest_is_thickest():
    costs = torch.tensor([1.0, 1.0, 1.5, 1.2])
    edges = [("s", "a"), ("a", "t"), ("s", "t"), ("s", "t")]
    solution = si.infer(-costs, "flow", "sparsemap", graph=edges, supplies={"s": 6, "t": -6}, capacities=[2, 2, 6, 6])
    figure = plot.network(solution, edges)
    render(figure)
    written = [text.get_text() for text in figure.axes[0].texts if text.get_text() not in "sat"]
    assert sorted(written) == amounts(v for v in solution.mean.tolist() if v > 0.005)
    widths = [edge.get_linewidth() for edge in arrows(figure)]
    assert max(widths) == pytest.approx(4.8)
    assert widths.index(max(widths)) == int(solution.mean.argmax())
    assert {type(edge.get_arrowstyle()).__name__ for edge in arrows(figure)} == {"CurveFilledB"}


def test_a_direction_is_that_of_the_graph():
    solution = si.infer(-torch.rand(5), "path", "map", graph=EDGES, source="a", target="d")
    for edges, options, style in [
        (EDGES, {}, "CurveFilledB"),
        (EDGES, {"directed": False}, "Curve"),
        (nx.Graph(EDGES), {}, "Curve"),
        (nx.DiGraph(EDGES), {}, "CurveFilledB"),
    ]:
        drawn = arrows(plot.network(solution, edges, **options))
        assert {type(edge.get_arrowstyle()).__name__ for edge in drawn} == {style}


def test_edges_of_the_same_nodes_and_loops_lie_apart():
    edges = [("a", "b"), ("a", "b"), ("b", "a"), ("a", "a"), ("b", "b")]
    solution = si.infer(torch.ones(5), "flow", "map", graph=edges, supplies={"a": 1, "b": -1})
    figure = plot.network(solution, edges, names=["road", "river", "back", "round", "about"])
    render(figure)
    assert not cut_off(figure)
    middles = [edge.get_path().vertices.mean(0).round(2).tolist() for edge in arrows(figure)]
    assert len({tuple(middle) for middle in middles}) == 5


@pytest.mark.parametrize("form", ["mapping", "array", "tensor"])
def test_nodes_stand_where_they_are(form):
    solution = si.infer(torch.zeros(5), "spanning_tree", "map", edges=EDGES)
    points = np.array([[10.0, 50.0], [12, 50], [12, 51], [10, 51]])
    positions = {"mapping": dict(zip("abcd", points, strict=True)), "array": points, "tensor": torch.tensor(points)}
    figure = plot.network(solution, EDGES, positions=positions[form])
    centres = np.array([text.get_position() for text in figure.axes[0].texts if text.get_text() in "abcd"])
    assert centres - centres[0] == pytest.approx(2.5 * (points - points[0]))  # 5 inches wide
    assert not cut_off(figure)


@pytest.mark.parametrize("above", [0.0, 0.1, 1.0])
def test_amounts_stand_beside_the_boxes_of_their_nodes(above):
    positions = {"a long name": (0, 0), "another one": (1, above), "b": (3, 0)}
    edges = [("a long name", "another one"), ("another one", "b")]
    solution = si.infer(torch.zeros(2), "spanning_tree", "marginals", edges=edges)
    figure = plot.network(solution, edges, positions=positions)
    render(figure)
    amounts = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text() == "1"]
    places = [box.get_window_extent() for box in boxes(figure)]
    assert len(amounts) == 2
    assert not any(amount.overlaps(place) for amount in amounts for place in places)


def test_graphs_of_one_node_and_of_none():
    for n in (1, 0):
        solution = si.infer(torch.zeros(n, n), "tour", "map")
        figure = plot.network(solution)
        render(figure)
        assert len(boxes(figure)) == n
    assert not arrows(figure)
    alone = si.infer(torch.full((1,), -1.0), "matching", "map", edges=[("a", "b")], perfect=False)
    figure = plot.network(alone, [("a", "b")], positions=[[0, 0], [0, 0]])
    render(figure)
    assert colours(arrows(figure)) == [GREY]


def test_wrong_graphs_are_refused():
    tree = si.infer(torch.zeros(5), "spanning_tree", "map", edges=EDGES)
    pairs = si.infer(torch.zeros(4, 4), "spanning_tree", "map")
    with pytest.raises(si.InvalidInputError, match=r"^edges must have 5 entries, .* the edges .*, got 4$"):
        plot.network(tree, EDGES[:-1])
    with pytest.raises(si.InvalidInputError, match=r"of shape \(n, n\); got \(5,\)"):
        plot.network(tree)
    with pytest.raises(si.InvalidInputError, match=r"of shape \(E,\); got \(4, 4\)"):
        plot.network(pairs, EDGES)
    with pytest.raises(si.InvalidInputError, match=r"^names must have 5 entries, .* the edges .*, got 1"):
        plot.network(tree, EDGES, names=["x"])
    with pytest.raises(si.InvalidInputError, match=r"^nodes must have 4 entries, .* the nodes .*, got 2"):
        plot.network(pairs, nodes=["x", "y"])
    with pytest.raises(si.InvalidInputError, match="positions must have an entry for each node, got none for 'd'"):
        plot.network(tree, EDGES, positions=dict.fromkeys("abc", (0, 0)))
    with pytest.raises(
        si.InvalidInputError, match=r"positions must be finite numbers of shape \(4, 2\) for 4 nodes, got \(3, 2\)"
    ):
        plot.network(pairs, positions=torch.zeros(3, 2))
    with pytest.raises(si.InvalidInputError, match=r"finite numbers of shape \(4, 2\) .*, got 'north'"):
        plot.network(pairs, positions="north")
    with pytest.raises(si.InvalidInputError, match=r"finite numbers of shape \(4, 2\) .*, got \[\[nan"):
        plot.network(pairs, positions=torch.full((4, 2), math.nan))
    with pytest.raises(si.InvalidInputError, match="amounts of at least 0 on all edges, got -1"):
        plot.network(si.infer(torch.zeros(1), "milp", "map", A=[[1]], bounds=(-1, -1)), [("a", "b")])


# ----------------------------------------------------------------------------- rankings


@pytest.mark.parametrize("with_scores", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_ranking_shows_ranks_and_rankings(n, with_scores):
    theta = torch.randn(n)
    solution = si.infer(theta, "ranking", "sparsemap")
    names = [f"name{i}" for i in range(n)]
    figure = plot.ranking(solution, theta if with_scores else None, names=names, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert shown_percentages(figure) == percentages(solution)
    order = (theta if with_scores else solution.mean).argsort(stable=True).tolist()
    assert [text for text in texts(figure) if text.startswith("name")] == [names[i] for i in order]
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    kept = solution.weights > 0
    heaviest_first = solution.support[kept][solution.weights[kept].argsort(descending=True, stable=True)]
    columns = torch.cat([solution.mean[None], heaviest_first])
    drawn = [line.get_ydata()[int(with_scores) :] for line in lines]
    assert np.array(drawn).T.ravel() == pytest.approx(columns.flatten().numpy())
    same = (heaviest_first == heaviest_first[0]).all(0)
    assert [color == BLUE for color in colours(lines)] == same.tolist()
    if with_scores and n > 1:
        scaled = 1 + (theta - theta.min()) / (theta.max() - theta.min()) * (n - 1)
        assert [line.get_ydata()[0] for line in lines] == pytest.approx(scaled.tolist())


def test_rankings_beyond_the_most_are_counted():
    solution = si.infer(torch.tensor([0.1, 0.0, 0.2, 0.3]), "ranking", "sparsemap")
    figure = plot.ranking(solution, torch.zeros(4), max_structures=1)
    assert shown_percentages(figure) == percentages(solution)[:1]
    assert any(text.startswith("and ") for text in texts(figure))


def test_wrong_scores_are_refused():
    solution = si.infer(torch.randn(3), "ranking", "map")
    with pytest.raises(si.InvalidInputError, match=r"^scores must have 3 entries, .* the elements .*, got 2; cut"):
        plot.ranking(solution, [1.0, 2.0])
    with pytest.raises(si.InvalidInputError, match=r"scores must be 3 finite numbers, got a tensor of shape \(3, 1\)"):
        plot.ranking(solution, torch.zeros(3, 1))
    with pytest.raises(si.InvalidInputError, match=r"^names must have 3 entries, .* the elements .*, got 1"):
        plot.ranking(solution, names=["a"])


# ----------------------------------------------------------------------------- selections, plans, paths


@pytest.mark.parametrize(("name", "options"), [("bits", {}), ("milp", {"A": [[1, 2, 2, 1]], "upper": [3]})])
def test_selections(name, options):
    solution = si.infer(torch.randn(4), name, "sparsemap", **options)
    figure = plot.selection(solution, names="abcd", max_structures=100)
    render(figure)
    assert shown_percentages(figure) == percentages(solution)
    assert shown_decimals(figure) == decimals(solution.mean)


def test_only_selections_are_drawn_as_such():
    solution = si.infer(torch.ones(2), "milp", "map", A=[[1, 1]], upper=[9], bounds=(0, 5))
    with pytest.raises(si.InvalidInputError, match="must have means between 0 and 1, got"):
        plot.selection(solution)


def test_plans_show_amounts():
    theta = torch.tensor([[0.5, 0.0, 0.2], [0.1, 0.3, 0.0]])
    solution = si.infer(3 * theta, "transportation", "sparsemap", supplies=[3, 2], demands=[2, 2, 1])
    figure = plot.assignment(solution, max_structures=100)
    render(figure)
    main, *panels = figure.axes
    assert sorted(text.get_text() for text in main.texts) == amounts(
        v for v in solution.mean.flatten().tolist() if v > 0.005
    )
    plans = solution.support[solution.weights > 0]
    plans = plans[solution.weights[solution.weights > 0].argsort(descending=True, stable=True)]
    assert len(panels) == len(plans) > 1
    for panel, plan in zip(panels, plans, strict=True):
        assert [int(text.get_text()) for text in panel.texts] == plan[plan > 0].tolist()
        colors = colours(patch for patch in panel.patches if isinstance(patch, Rectangle))
        assert [color == BLUE for color in colors] == (plan == plans).all(0)[plan > 0].tolist()
    assert "in some" in texts(figure)


def test_a_plan_without_a_support():
    solution = si.infer(torch.randn(2, 3), "transportation", "sinkhorn", supplies=[3, 2], demands=[2, 2, 1])
    figure = plot.assignment(solution)
    render(figure)
    assert not cut_off(figure)
    (axes,) = figure.axes
    assert sorted(text.get_text() for text in axes.texts) == amounts(
        v for v in solution.mean.flatten().tolist() if v > 0.005
    )


@pytest.mark.parametrize("moves", ["4-neighbours", "8-neighbours"])
def test_paths_back_and_forth_join_neighbours(moves):
    wall = -0.01 * torch.ones(4, 5)
    wall[:3, 1] = wall[1:, 3] = -9.0
    solution = si.infer(wall, "grid_path", "map", moves=moves)
    figure = plot.alignment(solution)
    render(figure)
    lines = [tuple(map(tuple, line.get_xydata().tolist())) for line in figure.axes[0].lines]
    cells = solution.mean.nonzero().flip(1).tolist()
    assert {cell for line in lines for cell in line} == {tuple(map(float, cell)) for cell in cells}
    assert len(lines) == len(cells) - 1
    assert all(max(abs(x1 - x2), abs(y1 - y2)) == 1 for (x1, y1), (x2, y2) in lines)


def test_paths_by_jumps_that_lead_back_are_outlined():
    solution = si.infer(-torch.ones(4, 4), "grid_path", "map", moves=[(1, 2), (1, -1)])
    figure = plot.alignment(solution)
    render(figure)
    (axes,) = figure.axes
    assert not axes.lines
    corners = [(p.get_y() + 0.5, p.get_x() + 0.5) for p in axes.patches if isinstance(p, Rectangle)]
    assert corners == [(0, 0), (1, 2), (2, 1), (3, 3)]
