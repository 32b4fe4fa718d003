"""Paths of a directed acyclic graph: nodes in layers, and edges as thick as they are probable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

from ..dp.paths import DAG
from .boxes import BOX_HEIGHT, draw_node, write_over
from .layered_layout import lay_out
from .mixture import PlotInput, read_solution
from .style import BLUE, GREY, INK, ORANGE, add_axes, as_decimal, as_percent, make_figure, size_of
from .text import check_count, names_or_numbers, prepare_text, text_width

__all__ = ["route"]

LINE = 0.7  # inches, from one place of a layer to the next


def route(solution: PlotInput, edges: Any, *, names: Sequence[str] | None = None, title: str = "") -> Figure:
    """The mean of a path through a directed acyclic graph, and the heaviest path.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        Of one instance: the mean is (E,).
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
        As ``dag_path`` takes them, its option ``graph``. Nodes are called by their ``str``.
    names : sequence of str, optional
        What the E edges stand for; nothing by default.
    title : str

    Returns
    -------
    Figure
        Edges are as thick as they are probable, with their probability if it is not 0. Those of the heaviest path are
        orange, if the relaxation keeps a support.

    Raises
    ------
    InvalidInputError
        If the solution is that of a batch or has another form, or there are not as many edges or names as in its
        mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> edges = [("home", "bus"), ("home", "train"), ("bus", "work"), ("train", "work")]
    >>> solution = si.infer(torch.tensor([0.5, 0.0, 0.0, 0.4]), "dag_path", "sparsemap", graph=edges)
    >>> figure = route(solution, edges, title="To work")
    """
    data = read_solution(solution, "E", max_structures=1)
    dag, mean = DAG.of(edges), data.mean[0].tolist()
    check_count("edges", len(dag.ends), len(mean), "edges")
    nodes, font, glyph_note = prepare_text([str(node) for node in dag.nodes])
    edge_names = [""] * len(mean) if names is None else names_or_numbers("names", names, len(mean), "edges")
    edge_names, small, other_glyph_note = prepare_text(edge_names, 8)
    texts = [" ".join(filter(None, [name, as_decimal(p)])) for name, p in zip(edge_names, mean, strict=True)]

    boxes = [text_width(node, font) + 0.24 for node in nodes]
    places = _RouteLayout.of(dag, np.array(boxes), 0.5 + max((text_width(text, small) for text in texts), default=0.0))
    left, top, bottom = 0.25, (0.65 if title else 0.15) + BOX_HEIGHT, 0.75
    legend = [("probable", BLUE), ("of probability 0", GREY)]
    legend += [(f"the heaviest path, {as_percent(weight)}", ORANGE) for weight in data.weights.tolist()]
    width, height = left + places.ends[-1] + 0.25, top + places.deepest + bottom
    figure = make_figure(width, height, title, legend, data.rest, glyph_note or other_glyph_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    axes.set(xlim=(-left, size_of(figure)[0] - left), ylim=(height - top, -top))  # in inches
    axes.set_axis_off()

    on_path = set(data.structures[0].sum(0).nonzero().flatten().tolist())
    seen: Counter[tuple[int, int]] = Counter()
    for e, (start, end) in enumerate(dag.ends.tolist()):
        # The first of parallel edges is straight, and the others pass it on both sides.
        turn = seen[start, end]
        bend = 0.35 * ((turn + 1) // 2) * (-1) ** turn
        seen[start, end] += 1
        color = ORANGE if e in on_path else BLUE if mean[e] > 0 else GREY
        gaps = places.gaps(e, start, end)
        _draw_edge(
            axes, (places.x[start] + boxes[start] / 2, places.x[end] - boxes[end] / 2), gaps, bend, mean[e], color
        )
        left_end, before, right_end, after = gaps[len(gaps) // 2]
        middle = (left_end + right_end) / 2, (before + after) / 2 + 0.75 * bend
        write_over(axes, middle, texts[e], small, INK if mean[e] > 0 else GREY)
    for node, x, y, box in zip(nodes, places.x, places.y, boxes, strict=True):
        draw_node(axes, x, y, box, node, font)
    return figure


Gap = tuple[float, float, float, float]  # between two layers: where an edge comes from, x and y, and where it goes


class _RouteLayout(NamedTuple):
    """Where things are, in inches: the layers' two sides, the nodes' centres, and where edges pass layers."""

    starts: list[float]
    ends: list[float]
    layer: list[int]
    x: list[float]
    y: list[float]
    passes: list[list[float]]
    deepest: float

    @classmethod
    def of(cls, dag: DAG, boxes: np.ndarray, gap: float) -> _RouteLayout:
        layer, height, passes = lay_out(dag)
        columns = np.zeros(layer.max() + 1)
        np.maximum.at(columns, layer, boxes)
        ends = np.cumsum(columns + gap) - gap
        starts = ends - columns
        heights = np.concatenate([height, *passes])
        highest = heights.min()
        return cls(
            starts.tolist(),
            ends.tolist(),
            layer.tolist(),
            (starts + columns / 2)[layer].tolist(),
            (LINE * (height - highest)).tolist(),
            [(LINE * (each - highest)).tolist() for each in passes],
            LINE * float(np.ptp(heights)),
        )

    def gaps(self, edge: int, start: int, end: int) -> list[Gap]:
        """What an edge goes through between the layers."""
        stops = [self.y[start], *self.passes[edge], self.y[end]]
        edges_between = range(self.layer[start], self.layer[end])
        return [(self.ends[k], stops[i], self.starts[k + 1], stops[i + 1]) for i, k in enumerate(edges_between)]


def _draw_edge(
    axes: Axes, ends: tuple[float, float], gaps: Sequence[Gap], bend: float, probability: float, color: str
) -> None:
    """An arrow that bends between the layers, and crosses them level."""
    points, codes = [(ends[0], gaps[0][1])], [Path.MOVETO]
    for left, before, right, after in gaps:
        middle = (left + right) / 2
        points += [(left, before), (middle, before + bend), (middle, after + bend), (right, after)]
        codes += [Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    if ends[1] > gaps[-1][2] + 1e-6:  # a line of no length would turn the arrow's head
        points.append((ends[1], gaps[-1][3]))
        codes.append(Path.LINETO)
    width = 0.8 + 4 * probability
    size = 7 + 1.5 * width
    arrow = FancyArrowPatch(path=Path(points, codes), arrowstyle="-|>", mutation_scale=size, shrinkA=0, shrinkB=0)
    arrow.set(color=color, lw=width, zorder=2 if color == ORANGE else 1, capstyle="butt")
    axes.add_patch(arrow)
