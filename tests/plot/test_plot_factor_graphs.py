"""Pictures of graphical models: words, shades, the heaviest structure, and bad arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
import structinf as si
from structinf import plot
from structinf.errors import InvalidInputError
from structinf.plot.style import ORANGE, SHADES

FACTORS = [(0,), (0, 1), (2, 1, 0)]


def solve(relaxation: str = "marginals") -> si.Solution:
    generator = torch.Generator().manual_seed(0)
    theta = tuple(torch.randn(shape, generator=generator) for shape in ((2,), (2, 3), (2, 3, 2)))
    return si.infer(theta, "markov_field", relaxation, cardinalities=(2, 3, 2), factors=FACTORS)


def words(figure: Any) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_values_and_tables_show_their_means() -> None:
    solution = solve()
    figure = plot.factor_graph(solution, FACTORS, variables=["a", "b", "c"], title="Three variables")
    assert {"a", "b", "c", "0", "1", "2"} <= set(words(figure))
    assert f"{float(solution.mean[0][1]):.2f}".removeprefix("0") in words(figure)
    colors = [patch.get_facecolor() for patch in figure.axes[0].patches]
    for share in (*solution.mean[1].flatten(), *solution.mean[2].flatten()):
        assert any(color == pytest.approx(SHADES(float(share))) for color in colors)
    assert len(colors) == 2 * 3 + 2 * 3 * 2 + 3 + (2 + 3 + 2)


def test_the_values_of_the_heaviest_structure_have_a_frame() -> None:
    solution = solve("map")
    figure = plot.factor_graph(solution, FACTORS, values=[["x", "y"], ["p", "q", "r"], ["no", "yes"]])
    from matplotlib.colors import to_rgba

    framed = [patch for patch in figure.axes[0].patches if patch.get_edgecolor() == to_rgba(ORANGE)]
    assert len(framed) == 3
    assert any("heaviest" in text.get_text() for text in figure.texts)
    assert not [p for p in plot.factor_graph(solve(), FACTORS).axes[0].patches if p.get_edgecolor() == to_rgba(ORANGE)]


@pytest.mark.parametrize("relaxation", ["belief_propagation", "mean_field"])
def test_approximate_marginals_are_drawn(relaxation: str) -> None:
    assert words(plot.factor_graph(solve(relaxation), FACTORS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variables": ["a"]}, "variables must have 3 entries"),
        ({"values": ["no", "yes"]}, "values of variable 1 must have 3 entries"),
        ({"values": [["no", "yes"]]}, "values must have 3 entries"),
        ({"values": [["x", "y"], ["p"], ["no", "yes"]]}, r"values\[1\] must have 3 entries"),
        ({"positions": [(0, 0)]}, r"positions must be finite numbers of shape \(3, 2\)"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plot.factor_graph(solve(), FACTORS, **options)


def test_tables_of_other_factors() -> None:
    with pytest.raises(InvalidInputError, match="solution must be the solution of one instance"):
        plot.factor_graph(solve(), [(0,), (1, 0), (2, 1, 0)])
    single = si.infer((torch.zeros(2),), "markov_field", "marginals", cardinalities=(2,), factors=[(0,)])
    with pytest.raises(InvalidInputError, match=r"variable 0 belongs to no factor; give it a factor \(0,\)"):
        plot.factor_graph(single, [(1,)])


def test_a_graph_of_oracles_shows_means_and_sums() -> None:
    graph = si.FactorGraph((2, 2))
    graph.add("assignment", graph.variables)
    graph.add("at_most_one", [0, 3], negated=torch.tensor([True, False]))
    graph.add("pair", [0, 1])
    theta = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
    figure = plot.factor_graph(si.infer(theta, graph, "sparsemap"), graph, title="Two pairs")
    found = words(figure)
    assert {"1,1", "1,2", "2,1", "2,2", "assignment", "at_most_one", "pair", "sum 2", "sum 1"} <= set(found)
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert (len(figure.axes[0].lines), len(dashed)) == (4 + 2 + 2, 1)
    assert "a" in words(plot.factor_graph(si.infer(theta, graph, "lp_sparsemap"), graph, variables=list("abcd")))
    for options, message in (
        ({"variables": ["a"]}, "variables must have 4 entries"),
        ({"values": ["no", "yes"]}, "values and positions belong to pictures of a markov_field"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            plot.factor_graph(si.infer(theta, graph, "sparsemap"), graph, **options)
    batch = si.infer(tuple(t.expand(3, 2, 2) for t in theta), graph, "sparsemap")
    with pytest.raises(InvalidInputError, match=r"mean of shape \(2, 2\) and \(2, 2\); got \(3, 2, 2\) and"):
        plot.factor_graph(batch, graph)
