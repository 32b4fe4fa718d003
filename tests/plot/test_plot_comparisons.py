"""Several solutions side by side, and distributions over few structures, which are drawn as solutions are."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from figure_contents import cut_off, decimals, percentages, render, shown_decimals, shown_percentages, texts, words_of
from structinf import plot
from structinf.plot.comparisons import break_lines

SCORES = torch.tensor([1.0, 0.8, 0.5, -1.0])
CHAIN = torch.tensor([[1.0, 0.4], [0.2, 0.6], [0.9, 0.7]]), torch.tensor([[0.3, 0.0], [0.1, 0.2]]).expand(2, 2, 2)


def names_of(figure) -> list[str]:
    """The titles of its parts."""
    return [part.texts[0].get_text() for part in figure.subfigs]


def test_each_solution_has_a_picture_with_its_name_and_its_legend():
    solutions = {name: si.infer(SCORES, "subset", name, k=2) for name in ("map", "sparsemap", "marginals")}
    figure = plot.comparison(solutions, plot.selection, title="Two of four", names=["tea", "soup", "milk", "rain"])
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert names_of(figure) == list(solutions)
    assert words_of(figure)[0] == "Two of four"
    assert shown_percentages(figure) == ["100%", *percentages(solutions["sparsemap"])]
    assert texts(figure).count("soup") == 3
    legends = [[text.get_text() for text in part.texts[2::2]] for part in figure.subfigs]
    assert legends == [["in all"], ["in some"], ["mean"]]


def test_parts_are_as_large_as_alone():
    solution = si.infer(CHAIN, "chain", "smoothed", regularizer="squared_l2")
    alone = plot.lattice(solution, title="one")
    figure = plot.comparison({"one": solution, "two": solution, "three": solution}, plot.lattice)
    for part in figure.subfigs:
        assert part.bbox.width / part.dpi == pytest.approx(alone.get_figwidth())
        assert part.bbox.height / part.dpi == pytest.approx(alone.get_figheight())
    boxes = [part.bbox for part in figure.subfigs]
    assert all(a.x1 <= b.x0 + 1 or a.y0 >= b.y1 - 1 for a, b in pairwise(boxes))


def test_lines_do_not_overlap():
    solution = si.infer(torch.randn(4, 9), "dtw", "sparsemap")
    figure = plot.comparison(
        dict.fromkeys("abcd", solution), plot.alignment, y=["wide", "words", "over", "columns"] * 2 + ["x"]
    )
    first, *_, last = (part.bbox for part in figure.subfigs)
    assert last.y1 <= first.y0 + 1


@pytest.mark.parametrize(
    ("widths", "lines"),
    [
        ([], []),
        ([12.0], [0]),
        ([3.6] * 3, [0, 0, 0]),
        ([3.3] * 4, [0, 0, 1, 1]),
        ([4.0] * 5, [0, 0, 1, 1, 2]),
        ([9.0, 1.0, 1.0, 9.0], [0, 0, 1, 1]),
    ],
)
def test_lines_are_few_and_alike(widths, lines):
    assert break_lines(widths) == lines


def test_nothing_to_compare_is_refused():
    with pytest.raises(si.InvalidInputError, match="at least one"):
        plot.comparison({}, plot.selection)
    with pytest.raises(si.InvalidInputError, match="solution of one instance"):
        plot.comparison({"a": si.infer(SCORES[None], "subset", "map", k=2)}, plot.selection)


# ----------------------------------------------------------------------------- distributions


def test_samples_are_drawn_as_a_distribution():
    p = si.Gibbs(SCORES, "subset", k=2)
    torch.manual_seed(0)
    samples = p.sample((40,))
    figure = plot.selection(si.SparseDistribution(samples, torch.full((40,), 1 / 40)), names="abcd")
    counts = torch.unique(samples, dim=0, return_counts=True)[1].sort(descending=True).values
    assert shown_percentages(figure) == [f"{count / 40:.0%}" for count in counts.tolist()][:6]
    assert shown_decimals(figure) == decimals(samples.mean(0))


def test_a_distribution_of_a_solution_is_drawn_as_the_solution():
    solution = si.infer(CHAIN, "chain", "sparsemap", temperature=0.9)
    distribution = si.SparseDistribution.from_solution(solution)
    assert texts(plot.lattice(distribution)) == texts(plot.lattice(solution))


def test_the_structures_of_a_distribution_have_a_picture_each():
    structures, weights = si.enumerate_support(CHAIN, "chain", regularizer="squared_l2")
    p = si.SparseDistribution(structures, weights)
    figure = plot.support(p, plot.lattice, max_structures=20)
    assert [word for word in words_of(figure) if word.endswith("%")] == [f"{w:.0%}" for w in weights.tolist() if w > 0]


def test_a_batch_of_distributions_is_refused():
    p = si.SparseDistribution.of(SCORES.expand(3, 4), "subset", k=2)
    with pytest.raises(si.InvalidInputError, match=r"solution of one instance, with a mean.*got \(3, 4\)"):
        plot.selection(p)


# ----------------------------------------------------------------------------- what else is passed


def test_numbers_are_names():
    found = si.infer(SCORES, "subset", "sparsemap", k=2)
    assert {"0.5", "2"} <= set(texts(plot.comparison({0.5: found, 2: found}, plot.selection)))
    assert {"10", "20"} <= set(texts(plot.selection(found, names=[10, 20, 30, 40])))


def test_what_is_no_solution_is_refused():
    found = si.infer(SCORES, "subset", "sparsemap", k=2)
    with pytest.raises(TypeError, match="or a SparseDistribution, got a Tensor"):
        plot.selection(found.mean)
    with pytest.raises(TypeError, match="got a Gibbs"):
        plot.support(si.Gibbs(SCORES, "subset", k=2), plot.selection)
    with pytest.raises(TypeError, match="must be a dict from names to solutions, got a list"):
        plot.comparison([found], plot.selection)


@pytest.mark.parametrize("max_structures", [-1, 2.0, "all"])
def test_wrong_numbers_of_structures_are_refused(max_structures):
    with pytest.raises(si.InvalidInputError, match="max_structures must be an integer of at least 0"):
        plot.selection(si.infer(SCORES, "subset", "sparsemap", k=2), max_structures=max_structures)
