"""Pictures of assignments and dependency trees: they render, show the solution, and refuse what they cannot draw."""

from __future__ import annotations

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from figure_contents import colours, cut_off, percentages, render, texts
from structinf import plot
from structinf.plot.dependencies import find_ends, find_levels
from structinf.plot.style import BLUE, GREY, as_percent

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- assignments


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5), (5, 3), (8, 8)])
def test_assignment_shows_the_mean_and_every_structure(shape):
    solution = si.infer(torch.randn(shape), "assignment", "sparsemap")
    figure = plot.assignment(solution, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    shown = texts(figure)
    assert "a title" in shown
    assert [text for text in shown if text.endswith("%")] == percentages(solution)
    entries = [text for text in shown if text.startswith(".")]
    edges_between = solution.mean[(solution.mean > 0.005) & (solution.mean <= 0.995)]
    assert sorted(entries) == sorted(f"{v:.2f}".removeprefix("0") for v in edges_between.tolist())


def test_assignment_names_rows_and_columns():
    solution = si.infer(torch.eye(2), "assignment", "sparsemap")
    shown = texts(plot.assignment(solution, rows=["cat", "dog"], columns=["left", "right"]))
    assert {"cat", "dog", "left", "right"} <= set(shown)


def test_assignment_draws_images_beside_the_rows():
    solution = si.infer(torch.eye(2), "assignment", "sparsemap")
    images = [torch.rand(8, 8), torch.rand(8, 8).numpy()]
    with_images, without = plot.assignment(solution, rows=images), plot.assignment(solution)
    assert len(with_images.axes) == len(without.axes) + 2
    render(with_images)


def test_structures_beyond_the_most_are_counted():
    solution = si.infer(torch.zeros(4, 4) + 0.1 * torch.rand(4, 4), "assignment", "sparsemap")
    count = int((solution.weights > 0).sum())
    assert count > 2
    shown = texts(plot.assignment(solution, max_structures=2))
    assert [text for text in shown if text.endswith("%")] == percentages(solution)[:2]
    left = solution.weights.sort(descending=True).values[2:].sum()
    assert f"and {count - 2} more of {as_percent(left.item())} together" in shown


def test_one_assignment_of_map():
    figure = plot.assignment(si.infer(torch.eye(3), "assignment", "map"))
    assert "100%" in texts(figure)
    render(figure)


# ----------------------------------------------------------------------------- trees


@pytest.mark.parametrize("n", [1, 2, 6, 15])
def test_trees_show_every_word_in_every_tree(n):
    solution = si.infer(torch.randn(n + 1, n + 1), "arborescence", "sparsemap")
    words = [f"word{i}" for i in range(n)]
    figure = plot.trees(solution, words, title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    trees = percentages(solution)
    assert [text for text in texts(figure) if text.endswith("%")] == trees
    assert [text for text in texts(figure) if text.startswith("word")] == words * len(trees)
    assert all(len(axes.patches) == n for axes in figure.axes)  # an arc a word


def test_colours_tell_shared_ambiguous_and_wrong_arcs_apart():
    theta = torch.full((5, 5), -9.0)
    theta[0, 2] = theta[2, 1] = theta[2, 4] = 9.0  # 2 is the root, with 1 and 4 below it
    theta[1, 3] = theta[2, 3] = 0.0  # 3 hangs on 1 or on 2
    solution = si.infer(theta, "arborescence", "sparsemap")
    assert percentages(solution) == ["50%", "50%"]
    gold = torch.tensor([2, 0, 2, 3])  # 4 is wrong in both, 3 in one
    drawn = [patch.get_edgecolor() for axes in plot.trees(solution, "abcd", gold=gold).axes for patch in axes.patches]
    assert sorted(drawn.count(colour) for colour in set(drawn)) == [1, 1, 2, 4]
    drawn = [patch.get_edgecolor() for axes in plot.trees(solution, "abcd").axes for patch in axes.patches]
    assert sorted(drawn.count(colour) for colour in set(drawn)) == [2, 6]


def test_arcs_over_the_same_words_have_different_heights():
    levels = find_levels([(0, 1), (1, 4), (4, 2), (2, 3), (3, 5)])
    assert levels[2, 3] < levels[4, 2] < levels[1, 4]
    assert levels[3, 5] not in (levels[4, 2], levels[1, 4])  # they cross
    assert (0, 1) not in levels


def test_arcs_of_a_word_start_and_end_side_by_side():
    ends = find_ends([(0, 2), (2, 1), (2, 3), (2, 4)], [0.0, 1.0, 2.0, 3.0])
    assert ends[0, 2][0] is None
    feet = [ends[2, 1][0], ends[0, 2][1], ends[2, 4][0], ends[2, 3][0]]
    assert feet == sorted(set(feet))
    assert sum(feet) / 4 == pytest.approx(1.0)


def test_the_arcs_of_a_word_are_nearer_to_it_than_to_others_however_many_they_are():
    centres = [0.6 * m for m in range(13)]
    starts = [start for start, _ in find_ends([(0, 7), *((7, m) for m in range(1, 14) if m != 7)], centres).values()]
    places = [start - centres[6] for start in starts if start is not None]
    assert len(set(places)) == 12
    assert all(abs(place) < 0.3 for place in places)


def test_letters_without_a_font_are_replaced():
    solution = si.infer(torch.randn(4, 4), "arborescence", "map")
    figure = plot.trees(solution, ["đường", "\ue000x", "日本語"])  # the second starts with a private letter
    shown = texts(figure)
    assert "đường" in shown
    assert "▯x" in shown
    assert "▯ no font for this letter" in shown
    render(figure)
    assert "▯" not in "".join(texts(plot.trees(solution, ["đường", "x", "y"])))


def test_dollars_are_letters():
    solution = si.infer(torch.randn(3, 3), "arborescence", "map")
    figure = plot.trees(solution, ["$x_$", "5$"])
    render(figure)
    assert r"\$x_\$" in texts(figure)


def test_labels_of_arcs_are_written_beside_them():
    theta = torch.full((3, 3, 2), -9.0)
    theta[0, 1, 0], theta[1, 2, 0], theta[1, 2, 1] = 1.0, 0.5, 0.5
    solution = si.infer(theta, "projective_tree", "sparsemap", labelled=True)
    figure = plot.trees(solution, ["he", "runs"], labels=["subject", "object"])
    render(figure)
    assert sorted(text for text in texts(figure) if text.endswith("ject")) == ["object", *["subject"] * 3]
    # The arc that all trees have, but not with the same label, is not one of all.
    assert sorted(colours(patch for axes in figure.axes for patch in axes.patches)) == sorted([GREY, BLUE] * 2)


@pytest.mark.parametrize("title", ["", "short", "a title that is much longer than a tree over two words"])
def test_nothing_is_cut_off(title):
    solution = si.infer(torch.randn(3, 3), "arborescence", "sparsemap")
    assert not cut_off(plot.trees(solution, ["$a$", "extraordinarily"], title=title))
    assert not cut_off(plot.assignment(si.infer(torch.eye(2), "assignment", "sparsemap"), title=title))


# ----------------------------------------------------------------------------- refusals


def test_a_batch_is_refused():
    with pytest.raises(si.InvalidInputError, match=r"of one instance.*\(2, 3, 3\)"):
        plot.assignment(si.infer(torch.randn(2, 3, 3), "assignment", "sparsemap"))


def test_a_solution_without_support_is_refused():
    with pytest.raises(si.InvalidInputError, match="no support"):
        plot.trees(si.infer(torch.randn(3, 3), "arborescence", "marginals"), ["a", "b"])


def test_another_number_of_words_is_refused():
    with pytest.raises(si.InvalidInputError, match="words must have 3 entries"):
        plot.trees(si.infer(torch.randn(4, 4), "arborescence", "sparsemap"), ["a", "b"])


def test_another_number_of_rows_or_columns_is_refused():
    solution = si.infer(torch.randn(2, 3), "assignment", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"^rows must have 2 entries, .* the rows .*, got 3"):
        plot.assignment(solution, rows=["a", "b", "c"])
    with pytest.raises(si.InvalidInputError, match=r"^columns must have 3 entries, .* the columns .*, got 1"):
        plot.assignment(solution, columns=["a"])


def test_another_form_is_refused():
    chain = si.infer((torch.randn(3, 2), torch.randn(2, 2)), "chain", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"with a mean of shape \(n, m\); got \(3, 2\) and \(2, 2\)"):
        plot.assignment(chain)
    with pytest.raises(si.InvalidInputError, match=r"\(n\+1, n\+1\) or \(n\+1, n\+1, L\); got \(2, 3\)"):
        plot.trees(si.infer(torch.randn(2, 3), "assignment", "sparsemap"), ["a"])


def test_gradients_do_not_stand_in_the_way():
    theta = torch.randn(3, 3, requires_grad=True)
    render(plot.assignment(si.infer(theta, "assignment", "sparsemap")))
