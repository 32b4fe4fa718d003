"""Pictures of a support: each structure by the picture of its kind, with its weight; equal samples are one."""

from __future__ import annotations

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from figure_contents import colours, cut_off, percentages, render, shown_percentages, texts, words_of
from structinf import plot
from structinf.plot.mixture import find_heaviest
from structinf.plot.style import ORANGE, as_percent

pytestmark = pytest.mark.slow

EDGES = [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]


def edge_scores() -> torch.Tensor:
    return torch.tensor([0.1, 0.0, 0.2, 0.0, 0.1])


def solve(name: str):
    """A solution with several structures, its picture, and what else that takes."""
    torch.manual_seed(0)
    if name == "chain":
        return si.infer((torch.randn(4, 3), torch.randn(3, 3)), name, "sparsemap"), plot.lattice, ()
    if name == "dag_path":
        return si.infer(edge_scores(), name, "sparsemap", graph=EDGES), plot.route, (EDGES,)
    if name == "spanning_tree":
        return si.infer(torch.randn(4, 4), name, "sparsemap"), plot.network, ()
    return si.infer(torch.randn(5, 6), name, "sparsemap"), plot.alignment, ()


@pytest.mark.parametrize("name", ["chain", "dag_path", "dtw", "spanning_tree"])
def test_each_structure_has_a_picture_with_its_weight(name):
    solution, picture, args = solve(name)
    figure = plot.support(solution, picture, *args, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert len(percentages(solution)) > 1
    assert [word for word in words_of(figure) if word.endswith("%")] == percentages(solution)
    assert {"a title", "mean", "structure"} <= set(words_of(figure))


def test_each_picture_draws_its_own_structure():
    solution, picture, _ = solve("dtw")
    figure = plot.support(solution, picture, max_structures=100)
    structures = solution.support[solution.weights.argsort(descending=True)]
    for axes, structure in zip(figure.axes, structures, strict=False):
        (line,) = [line for line in axes.lines if colours([line]) == [ORANGE]]
        cells = torch.as_tensor(line.get_xydata()).flip(1).long()
        assert torch.equal(cells, structure.nonzero())


def test_pictures_are_as_large_as_alone():
    solution, picture, args = solve("dag_path")
    alone = picture(solution, *args, title="alone")
    parts = plot.support(solution, picture, *args).subfigs
    for part in parts:
        assert part.bbox.height / part.dpi == pytest.approx(alone.get_figheight())
        assert part.bbox.width / part.dpi <= alone.get_figwidth() + 1e-9  # as it has no legend


def test_structures_beyond_the_most_are_counted():
    solution, picture, _ = solve("dtw")
    figure = plot.support(solution, picture, max_structures=1)
    weights = solution.weights[solution.weights > 0].sort(descending=True).values
    assert len(figure.subfigs) == 1
    assert f"and {len(weights) - 1} more of {as_percent(weights[1:].sum().item())} together" in words_of(figure)


def test_pictures_of_all_structures_are_themselves():
    solution = si.infer(torch.randn(3, 3), "assignment", "sparsemap")
    figure = plot.support(solution, plot.assignment, title="a title", max_structures=2, columns=list("xyz"))
    assert not figure.subfigs
    assert shown_percentages(figure) == percentages(solution)[:2]
    assert {"a title", "x", "y", "z"} <= set(texts(figure))


def test_a_picture_afterwards_has_its_legend():
    solution, picture, args = solve("dag_path")
    plot.support(solution, picture, *args)
    assert "probable" in texts(picture(solution, *args))
    with pytest.raises(si.InvalidInputError):
        plot.support(solution, picture, EDGES[:-1])
    assert "probable" in texts(picture(solution, *args))


def test_equal_samples_are_one():
    g = torch.Generator().manual_seed(0)
    solution = si.infer(torch.zeros(3), "categorical", "perturbed", samples=50, generator=g)
    counts = solution.support.sum(0).sort(descending=True).values
    figure = plot.selection(solution, names="abc")
    assert shown_percentages(figure) == [f"{count / 50:.0%}" for count in counts.tolist()]


def test_equal_structures_add_their_weights_in_the_order_of_the_first():
    support = (torch.tensor([[1.0, 0], [0, 1], [1, 0], [1, 1], [0, 1]]), torch.tensor([[0.0], [1], [0], [1], [1]]))
    weights = torch.tensor([0.2, 0.3, 0.1, 0.0, 0.4])
    structures, merged, rest = find_heaviest(support, weights)
    assert torch.equal(structures[0], torch.tensor([[0.0, 1], [1, 0]]))
    assert torch.equal(structures[1], torch.tensor([[1.0], [0]]))
    torch.testing.assert_close(merged, torch.tensor([0.7, 0.3]))
    assert rest == ""
    (ties,), _, rest = find_heaviest(torch.eye(3)[[2, 0, 1]], torch.full((3,), 1 / 3), max_structures=2)
    assert torch.equal(ties, torch.eye(3)[[2, 0]])
    assert rest == "and 1 more of 33% together"


def test_what_has_no_support_is_refused():
    with pytest.raises(si.InvalidInputError, match="no support to draw"):
        plot.support(si.infer(torch.randn(3, 4), "dtw", "marginals"), plot.alignment)
    with pytest.raises(si.InvalidInputError, match="of one instance"):
        plot.support(si.infer(torch.randn(2, 3, 4), "dtw", "sparsemap"), plot.alignment)
