"""Pictures of alignments, chains and segmentations."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, Rectangle

from figure_contents import colours, cut_off, decimals, percentages, render, shown_decimals, shown_percentages, texts
from structinf import plot
from structinf.plot.style import GREY, LABELS, ORANGE

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- alignments


@pytest.mark.parametrize("name", ["dtw", "grid_path", "monotonic_alignment"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 2), (30, 25)])
def test_the_heaviest_alignment_is_a_line_through_its_cells(name, shape):
    solution = si.infer(torch.randn(shape), name, "sparsemap")
    figure = plot.alignment(solution, title="a title")
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    (axes,) = figure.axes
    (line,) = axes.lines
    heaviest = solution.support[solution.weights.argmax()]
    assert sorted(zip(*line.get_data()[::-1], strict=True)) == [tuple(cell) for cell in heaviest.nonzero().tolist()]
    assert {"a title", f"heaviest, {percentages(solution)[0]}"} <= set(texts(figure))


@pytest.mark.parametrize(("relaxation", "options"), [("marginals", {}), ("smoothed", {"regularizer": "squared_l2"})])
def test_without_a_support_the_cells_are_all(relaxation, options):
    solution = si.infer(torch.randn(5, 4), "dtw", relaxation, **options)
    figure = plot.alignment(solution)
    render(figure)
    (axes,) = figure.axes
    assert not axes.lines
    assert not any("heaviest" in text for text in texts(figure))
    # Probability 0, and nothing else, is white.
    white = (axes.images[0].to_rgba(axes.images[0].get_array()) == 1).all(-1)
    assert (white == (solution.mean == 0).numpy()).all()


def test_matches_are_outlined():
    theta = (torch.eye(3, 4), torch.full((2,), -0.1))
    for affine in (False, True):
        gaps = theta[1] if not affine else theta[1].expand(2, 2)
        solution = si.infer((theta[0], gaps), "needleman_wunsch", "sparsemap", affine=affine)
        figure = plot.alignment(solution, x="GAT", y="GATA")
        render(figure)
        (axes,) = figure.axes
        outlines = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        heaviest = solution.support[0][solution.weights.argmax()]
        corners = sorted((int(p.get_y() + 0.5), int(p.get_x() + 0.5)) for p in outlines)
        assert corners == [tuple(cell) for cell in heaviest.nonzero().tolist()]
        assert [label.get_text() for label in axes.get_xticklabels()] == list("GATA")
        assert [label.get_text() for label in axes.get_yticklabels()] == list("GAT")


def test_an_alignment_without_matches():
    solution = si.infer((torch.full((2, 3), -1.0), -torch.ones(2)), "needleman_wunsch", "map", mode="local")
    (axes,) = plot.alignment(solution).axes
    assert not axes.patches


def test_series_stand_along_the_sides():
    x, y = torch.randn(4), torch.randn(6, 2)
    figure = plot.alignment(si.infer(torch.randn(4, 6), "dtw", "map"), x=x, y=y)
    _, left, above = figure.axes
    assert torch.equal(torch.as_tensor(left.lines[0].get_xdata()), -x)
    assert [torch.as_tensor(line.get_ydata()).tolist() for line in above.lines] == y.T.tolist()
    numbers = plot.alignment(si.infer(torch.randn(4, 6), "dtw", "map"), x=[1, 2.5, 0, 1])
    assert numbers.axes[1].lines[0].get_xdata().tolist() == [-1, -2.5, 0, -1]


def test_long_words_are_turned():
    solution = si.infer(torch.randn(2, 6), "grid_path", "map")
    words = [f"extraordinary{i}" for i in range(6)]
    figure = plot.alignment(solution, x=["上", "$x$"], y=words, title="t")
    assert not cut_off(figure)
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90}


def test_wrong_items_are_refused():
    solution = si.infer(torch.randn(4, 6), "dtw", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"^x must have 4 entries, .* the rows .*, got 3; cut the padding"):
        plot.alignment(solution, x=torch.randn(3))
    with pytest.raises(si.InvalidInputError, match=r"^y must have 6 entries, .* the columns .*, got 7$"):
        plot.alignment(solution, y="ABCDEFG")
    with pytest.raises(si.InvalidInputError, match=r"x must have shape \(4,\) or \(4, d\), got \(4, 1, 2\)"):
        plot.alignment(solution, x=torch.randn(4, 1, 2))
    with pytest.raises(si.InvalidInputError, match=r"of one instance.*got \(2, 4, 6\)"):
        plot.alignment(si.infer(torch.randn(2, 4, 6), "dtw", "sparsemap"))


# ----------------------------------------------------------------------------- chains


def chain(form: str, steps: int, states: int):
    theta = {
        "shared": (torch.randn(steps, states), torch.randn(states, states)),
        "own": (torch.randn(steps, states), torch.randn(steps - 1, states, states)),
        "edges": torch.randn(steps - 1, states, states),
    }
    return theta[form]


@pytest.mark.parametrize(
    ("form", "size"),
    [(form, size) for form in ("shared", "own") for size in ((1, 2), (2, 1), (5, 3))] + [("edges", (4, 3))],
)
def test_lattice_shows_the_tags_and_the_taggings(form, size):
    steps, states = size
    solution = si.infer(chain(form, *size), "chain", "sparsemap")
    words, tags = [f"word{t}" for t in range(steps)], [f"tag{s}" for s in range(states)]
    figure = plot.lattice(solution, words=words, tags=tags, title="a title")
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    shown = texts(figure)
    assert [text for text in shown if text.startswith("word")] == words
    assert [text for text in shown if text.startswith("tag") and text != "taggings"] == tags
    assert f"the heaviest, {percentages(solution)[0]}" in shown
    (axes,) = figure.axes
    assert sum(isinstance(patch, Circle) for patch in axes.patches) == steps * states
    if form != "edges":
        assert shown_decimals(figure) == decimals(solution.mean[0])
    # The line of the heaviest tagging goes through its states.
    (line,) = (line for line in axes.lines if line.get_color() == ORANGE)
    assert len(line.get_xdata()) == steps
    if form == "shared":
        heaviest = tuple(t[solution.weights.argmax()] for t in solution.support)
        assert [round(y / 0.55) for y in line.get_ydata()] == si.decode(heaviest, "chain").tolist()


def test_lines_are_as_thick_as_the_taggings_weigh():
    solution = si.infer(chain("shared", 4, 3), "chain", "sparsemap")
    (axes,) = plot.lattice(solution).axes
    grey = [line for line in axes.lines if line.get_color() == GREY]
    flow = {}
    for k, weight in enumerate(solution.weights.tolist()):
        tags = solution.support[0][k].argmax(1).tolist()
        for t, edge in enumerate(pairwise(tags)):
            flow[t, edge] = flow.get((t, edge), 0.0) + weight
    wanted = sorted(w for w in flow.values() if w > 0.005)
    assert sorted((line.get_linewidth() - 0.6) / 9 for line in grey) == pytest.approx(wanted)


def test_lattice_of_marginals():
    shared = si.infer(chain("shared", 3, 2), "chain", "marginals")
    assert not plot.lattice(shared).axes[0].lines
    own = si.infer(chain("own", 3, 2), "chain", "marginals")
    figure = plot.lattice(own, words="abc", tags="xy")
    render(figure)
    assert set(colours(figure.axes[0].lines)) == {GREY}
    assert shown_decimals(figure) == decimals(own.mean[0])


def test_a_padded_chain_is_drawn_as_far_as_it_goes():
    solution = si.infer(chain("shared", 5, 2), "chain", "sparsemap", lengths=3)
    (axes,) = plot.lattice(solution).axes
    (line,) = (line for line in axes.lines if line.get_color() == ORANGE)
    assert len(line.get_xdata()) == 3


def test_wrong_words_or_tags_are_refused():
    solution = si.infer(chain("shared", 3, 2), "chain", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"^words must have 3 entries, .* the steps .*, got 2; cut"):
        plot.lattice(solution, words=["a", "b"])
    with pytest.raises(si.InvalidInputError, match=r"^tags must have 2 entries, .* the states .*, got 3"):
        plot.lattice(solution, tags=["a", "b", "c"])
    with pytest.raises(si.InvalidInputError, match="one step with edge scores only"):
        plot.lattice(si.infer(torch.zeros(0, 2, 2), "chain", "map"))


# ----------------------------------------------------------------------------- segmentations


def segments(form: str, steps: int, longest: int, labels: int):
    theta = {
        "alone": torch.randn(steps, longest, labels),
        "transition": (torch.randn(steps, longest, labels), torch.randn(labels, labels)),
        "pairwise": torch.randn(steps, longest, labels, labels),
        "boundaries": (torch.randn(steps, labels), torch.randn(steps, 2, labels), torch.randn(longest, labels)),
    }
    return theta[form]


@pytest.mark.parametrize("form", ["alone", "transition", "pairwise", "boundaries"])
@pytest.mark.parametrize("size", [(1, 1, 1), (4, 2, 3), (8, 8, 2)])
def test_segments_show_every_segmentation(form, size):
    pairwise = {"pairwise": True} if form == "pairwise" else {}
    solution = si.infer(segments(form, *size), "semi_markov", "sparsemap", **pairwise)
    figure = plot.segments(solution, labels=[f"l{s}" for s in range(size[2])], title="a title", max_structures=100)
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    assert shown_percentages(figure) == percentages(solution)
    (axes,) = figure.axes
    bars = {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            label = LABELS.index(to_hex(patch.get_facecolor()))
            bars.setdefault(round(patch.get_y(), 3), []).append((patch.get_x() + 0.5, patch.get_width(), label))
    oracle = si.get_oracle("semi_markov", **pairwise)
    wanted = [
        [tuple(segment) for segment in si.decode(structure, oracle).tolist() if segment[0] >= 0]
        for structure in support_of(solution)
    ]
    assert [sorted(bars[y]) for y in sorted(bars)] == wanted


def support_of(solution):
    """The structures, the heaviest first."""
    order = solution.weights.argsort(descending=True, stable=True)[: int((solution.weights > 0).sum())]
    support = solution.support
    return [tuple(t[k] for t in support) if isinstance(support, tuple) else support[k] for k in order]


@pytest.mark.parametrize("relaxation", ["sparsemap", "marginals"])
def test_the_heights_above_are_the_labels_of_the_steps(relaxation):
    solution = si.infer(segments("alone", 5, 3, 2), "semi_markov", relaxation)
    figure = plot.segments(solution)
    render(figure)
    areas = [patch for patch in figure.axes[0].patches if not isinstance(patch, Rectangle)]
    heights = torch.stack([torch.as_tensor(a.get_data().baseline - a.get_data().values) / 0.9 for a in areas], 1)
    # A step has a label if a segment that has it ends there, or later and is long enough.
    wanted = torch.zeros(5, 2)
    for t, d in torch.cartesian_prod(torch.arange(5), torch.arange(3)).tolist():
        for step in range(max(t - d, 0), t + 1):
            wanted[step] += solution.mean[t, d]
    torch.testing.assert_close(heights.float(), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(heights.sum(1), torch.ones(5, dtype=torch.float64), atol=1e-5, rtol=0)


def test_words_or_a_series_stand_with_the_steps():
    solution = si.infer(segments("alone", 3, 2, 2), "semi_markov", "sparsemap")
    figure = plot.segments(solution, x=["to", "$New$", "Yorkshire"], labels=["place", "other"])
    assert not cut_off(figure)
    assert {"to", r"\$New\$", "Yorkshire", "place", "other"} <= set(texts(figure))
    series = torch.randn(3)
    above, _ = plot.segments(solution, x=series).axes
    assert torch.equal(torch.as_tensor(above.lines[0].get_ydata()), series)


def test_names_are_left_out_where_there_is_no_room():
    theta = torch.full((30, 30, 1), -9.0)
    theta[0, 0], theta[29, 28] = 9.0, 9.0
    solution = si.infer(theta, "semi_markov", "map")
    (axes,) = plot.segments(solution, labels=["movement"]).axes
    assert [text.get_text() for text in axes.texts].count("movement") == 1


def test_wrong_items_or_labels_are_refused():
    solution = si.infer(segments("alone", 3, 2, 2), "semi_markov", "sparsemap")
    with pytest.raises(si.InvalidInputError, match=r"^x must have 3 entries, .* the steps .*, got 4"):
        plot.segments(solution, x=torch.randn(4))
    with pytest.raises(si.InvalidInputError, match=r"^labels must have 2 entries, .* the labels .*, got 1"):
        plot.segments(solution, labels=["a"])
    with pytest.raises(si.InvalidInputError, match=r"\(T, D, S, S\) or .*; got \(4, 3\)"):
        plot.segments(si.infer(torch.randn(4, 3), "dtw", "sparsemap"))
