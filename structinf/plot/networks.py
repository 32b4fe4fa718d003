"""Pictures of graphs with weighted edges: nodes as named boxes, and edges as thick as their means."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from torch import Tensor

from ..dp.graph import Graph
from ..errors import InvalidInputError
from .mixture import PlotData, PlotInput, read_solution
from .style import BLUE, GREY, INK, ORANGE, add_axes, as_decimal, as_percent, colors_of, make_figure, size_of
from .text import check_count, names_or_numbers, prepare_text, text_width

__all__ = ["draw_graph", "network", "place_nodes"]

Point: TypeAlias = tuple[float, float]
Waypoints: TypeAlias = Sequence[
    np.ndarray
]  # for each edge, points (2 k + 2, 2): lines join points 0 and 1, 2 and 3, ...

# Inches: the largest size of given positions, the distance of parallel edges between two nodes, and the heights of
# loops and boxes.
MAX_WIDTH, MAX_HEIGHT, NODE_SPACING, LOOP, BOX_HEIGHT = 5.0, 3.6, 0.3, 0.4, 0.3
MAX_LINE_WIDTH = 4.0  # points: the width of the edge with the largest mean
# Long edges may cross other edges in the middle, so their texts are at this fraction of the length.
LONG_EDGE, LABEL_OFFSET = 1.2, 0.25


def network(
    solution: PlotInput,
    edges: Any = None,
    *,
    nodes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    positions: Any = None,
    directed: bool | None = None,
    title: str = "",
) -> Figure:
    """Draw the edges of a graph, as thick as their probability or amount in the mean, and the heaviest structure.

    Supported structures: ``spanning_tree``, ``matching``, ``path``, ``flow`` and ``tour``.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean is (E,), or (n, n) for pairs of nodes without ``edges``.
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx Graph or DiGraph, optional
        The edges of the oracle, in a form accepted by the oracle. The ``str`` of a node is its name.
    nodes : sequence of str, optional
        Names of the n nodes without ``edges``. By default, numbers from 1.
    names : sequence of str, optional
        Names of the E edges. By default, edges have no names.
    positions : mapping from nodes, or (n, 2) array in their order, optional
        The position of each node, x to the right and y upwards, in any unit. By default, the nodes are on a circle. The
        order of an array is 0, 1, and so on for integer nodes, and the order of appearance in ``edges`` for other
        nodes.
    directed : bool, optional
        Whether edges are arrows. By default, a networkx graph decides, and other ``edges`` are directed. Without
        ``edges``, the edges are directed if the mean has an entry other than 0 on or below the diagonal.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        Edges show their means, if not 0. If the relaxation keeps a support, the edges of the heaviest structure are
        orange. Pairs of nodes with a mean of 0 have no edge.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or negative amounts, or its mean has another shape, or if the number of edges,
        nodes, names or positions does not match the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> edges = [("a", "b"), ("a", "c"), ("b", "c")]
    >>> solution = si.infer(
    ...     torch.tensor([0.0, 0.2, 0.5]),
    ...     "spanning_tree",
    ...     "marginals",
    ...     edges=edges,
    ... )
    >>> figure = network(solution, edges, directed=False)
    """
    data = read_solution(solution, "n n" if edges is None else "E", max_structures=1)
    mean = data.mean[0]
    if bool((mean < 0).any()):
        raise InvalidInputError(f"solution must have amounts of at least 0 on all edges, got {mean.min().item():g}")
    if edges is None:
        keys = tuple(range(len(mean)))
        labels = names_or_numbers("nodes", nodes, len(mean), "nodes")
        ends = (
            torch.cartesian_prod(torch.arange(len(mean), device="cpu"), torch.arange(len(mean), device="cpu"))
            .reshape(-1, 2)
            .numpy()
        )
        directed = bool(mean.tril().any()) if directed is None else directed
    else:
        graph = Graph.of(edges, directed)
        check_count("edges", len(graph.ends), len(mean), "edges")
        keys, ends, labels, directed = graph.nodes, graph.ends, [str(node) for node in graph.nodes], graph.directed
    shown = [e for e, amount in enumerate(mean.flatten().tolist()) if amount > 0 or edges is not None]
    meanings = "used", "not used", "the heaviest"
    return draw_graph(
        *(data, labels, ends, names, title),
        lambda boxes, _: (place_nodes(keys, positions, boxes), ()),
        shown=shown,
        directed=directed,
        meanings=meanings,
    )


def draw_graph(
    data: PlotData,
    labels: Sequence[str],
    ends: np.ndarray,
    names: Sequence[str] | None,
    title: str,
    place: Callable[[Sequence[float], float], tuple[np.ndarray, Waypoints]],
    *,
    shown: Sequence[int],
    directed: bool,
    meanings: tuple[str, str, str],
) -> Figure:
    """Draw the nodes and the edges ``shown``, with the ``meanings`` of blue, grey and orange edges in the legend.

    ``place`` takes the widths of the boxes and of the widest text on an edge. It returns the centres of the nodes
    (n, 2), and the waypoints of edges drawn through layers. All lengths are in inches.
    """
    amounts = data.mean[0].flatten().tolist()
    texts = [""] * len(amounts) if names is None else names_or_numbers("names", names, len(amounts), "edges")
    texts = [" ".join(filter(None, [text, as_decimal(amount)])) for text, amount in zip(texts, amounts, strict=True)]
    labels, font, glyph_note = prepare_text(labels)
    texts, small, other_glyph_note = prepare_text(texts, 8)
    boxes = [text_width(label, font) + 0.24 for label in labels]
    widest = max((text_width(texts[e], small) for e in shown), default=0.0)
    places, ways = place(boxes, widest)

    bends = _bends(ends, shown)
    points = np.concatenate([places, *ways]) if len(places) else np.zeros((1, 2))
    low, high = points.min(0), points.max(0)
    # The extent beyond the centres of the nodes: boxes, arcs with texts, and loops.
    arc = max(map(abs, bends.values()), default=0.0)
    side = 0.25 + max(*boxes, 0.0 if ways else 2 * arc + widest, 0.0) / 2
    above = max(BOX_HEIGHT, arc + 0.1, LOOP + BOX_HEIGHT if any(start == end for start, end in ends[shown]) else 0.0)
    top, bottom = (0.65 if title else 0.15) + above, 0.4 + above
    heaviest = set(data.structures[0].sum(0).flatten().nonzero()[:, 0].tolist())
    colors = {e: ORANGE if e in heaviest else BLUE if amounts[e] > 0 else GREY for e in shown}
    used, unused, best = meanings
    texts_of_colors = {used: BLUE, unused: GREY}
    texts_of_colors |= {f"{best}, {as_percent(weight)}": ORANGE for weight in data.weights.tolist()}
    legend = colors_of(texts_of_colors, colors.values())
    width, height = high[0] - low[0] + 2 * side, top + high[1] - low[1] + bottom
    figure = make_figure(width, height, title, legend, data.rest, glyph_note, other_glyph_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    left, down = low[0] - side, low[1] - bottom
    axes.set(xlim=(left, left + size_of(figure)[0]), ylim=(down, down + height))  # in inches
    axes.set_axis_off()

    patches = [
        _draw_node(axes, x, y, box, label, font) for (x, y), box, label in zip(places, boxes, labels, strict=True)
    ]
    largest = max([1.0, *amounts])
    for e, bend in bends.items():
        thick = 0.8 + MAX_LINE_WIDTH * amounts[e] / largest
        start, end = ends[e].tolist()
        style = _style(thick, colors[e], directed)
        if ways:
            middle = _draw_way(axes, ways[e], bend, style)
        elif start == end:
            middle = _draw_loop(axes, places[start], places.mean(0), style)
        else:
            middle = _draw_edge(axes, (patches[start], patches[end]), places[[start, end]], bend, style)
        _write_over(axes, middle, texts[e], small, INK if amounts[e] > 0 else GREY)
    return figure


def _draw_node(axes: Axes, x: float, y: float, width: float, name: str, font: FontProperties) -> FancyBboxPatch:
    """Draw a box around a position, on axes in inches."""
    box = FancyBboxPatch(
        (x - width / 2, y - BOX_HEIGHT / 2), width, BOX_HEIGHT, boxstyle="round,pad=0,rounding_size=0.08"
    )
    box.set(facecolor="white", edgecolor=GREY, lw=1.0, zorder=3)
    axes.add_patch(box)
    axes.text(x, y, name, ha="center", va="center_baseline", color=INK, fontproperties=font, zorder=4)
    return box


def _write_over(axes: Axes, place: tuple[float, float], text: str, font: FontProperties, color: str) -> None:
    """Write a text, if not empty, over a line, with a white background."""
    if text:
        written = axes.text(*place, text, ha="center", va="center", fontproperties=font, color=color, zorder=4)
        written.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0})


def place_nodes(keys: Sequence[Hashable], positions: Any, boxes: Sequence[float]) -> np.ndarray:
    """Return the centres of the nodes in inches, (n, 2): on a circle clockwise from the top, or at ``positions``."""
    if positions is None:
        radius = max(1.1, len(keys) * (0.4 + 0.6 * max(boxes, default=0.0)) / (2 * math.pi)) * (len(keys) > 1)
        angle = 2 * math.pi * np.arange(len(keys)) / max(len(keys), 1)
        return radius * np.stack([np.sin(angle), np.cos(angle)], 1)
    if isinstance(positions, Mapping):
        missing = [key for key in keys if key not in positions]
        if missing:
            raise InvalidInputError(f"positions must have an entry for each node, got none for {missing[0]!r}")
        positions = [positions[key] for key in keys]
    needed = f"positions must be finite numbers of shape ({len(keys)}, 2) for {len(keys)} nodes, got"
    try:
        points = np.asarray(positions.detach().cpu() if isinstance(positions, Tensor) else positions, np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{needed} {positions!r}") from None
    if points.shape != (len(keys), 2):
        raise InvalidInputError(f"{needed} {tuple(points.shape)}")
    if not np.isfinite(points).all():
        raise InvalidInputError(f"{needed} {points.tolist()}")
    points = points - points.min(axis=0, initial=math.inf)
    span = points.max(axis=0, initial=0.0)
    return points * min(
        (room / size for room, size in zip((MAX_WIDTH, MAX_HEIGHT), span, strict=True) if size), default=1.0
    )


def _bends(ends: np.ndarray, shown: Sequence[int]) -> dict[int, float]:
    """Return the distance in inches by which the middle of each edge bends to the left. Edges between the same two
    nodes are apart.
    """
    edges_between: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for e in shown:
        edges_between[tuple(sorted(ends[e].tolist()))].append(e)
    bends = {}
    for pair, edges in edges_between.items():
        for k, e in enumerate(edges):
            bends[e] = NODE_SPACING * (k - (len(edges) - 1) / 2) * (1 if ends[e, 0] == pair[0] else -1)
    return dict(sorted(bends.items()))


def _draw_edge(
    axes: Axes, nodes: tuple[FancyBboxPatch, FancyBboxPatch], ends: np.ndarray, bend: float, style: dict[str, Any]
) -> Point:
    """Draw an arc or an arrow between two boxes; return the position of the text."""
    start, end = ends
    length = max(float(np.hypot(*(end - start))), 1e-9)
    # The control point of the arc is twice as far off as the middle, and ``rad`` is relative to the length, to the
    # right.
    arrow = FancyArrowPatch(
        tuple(start),
        tuple(end),
        connectionstyle=f"arc3,rad={-2 * bend / length}",
        patchA=nodes[0],
        patchB=nodes[1],
        **style,
    )
    axes.add_patch(arrow)
    left = np.array([start[1] - end[1], end[0] - start[0]]) / length
    # The fractions of the length inside the first box and inside the second box.
    after, before = (min([0.5, *_shares(box, end - start)]) for box in nodes)
    visible = 1 - before - after
    t = after + (LABEL_OFFSET if visible * length > LONG_EDGE else 0.5) * visible
    x, y = (1 - t) * start + t * end + 4 * t * (1 - t) * bend * left
    return float(x), float(y)


def _shares(box: FancyBboxPatch, way: np.ndarray) -> list[float]:
    """Return the fractions of a way from the centre of a box at which the way reaches the sides and the top."""
    reach = np.array([box.get_width(), box.get_height()]) / 2
    return [float(r / abs(w)) for r, w in zip(reach, way, strict=True) if w]


def _draw_loop(axes: Axes, place: np.ndarray, centre: np.ndarray, style: dict[str, Any]) -> Point:
    """Draw an edge from a node to itself, on the side away from ``centre``; return the position of the text."""
    above = 1.0 if place[1] >= centre[1] else -1.0
    x, y = place[0], place[1] + above * BOX_HEIGHT / 2
    points = [(x - 0.08, y), (x - 0.35, y + LOOP * above), (x + 0.35, y + LOOP * above), (x + 0.08, y)]
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    axes.add_patch(FancyArrowPatch(path=path, **style))
    return float(x), float(y + 0.75 * LOOP * above)


def _draw_way(axes: Axes, points: np.ndarray, bend: float, style: dict[str, Any]) -> Point:
    """Draw an edge that curves between layers and is horizontal inside layers; return the position of the text."""
    control = (
        4 / 3 * bend if len(points) == 4 else 0.0
    )  # edges across several layers cross the layers at different heights
    path, codes, middles = [points[0]], [Path.MOVETO], []
    for (left, before), (right, after) in zip(points[1:-1:2], points[2:-1:2], strict=True):
        x = (left + right) / 2
        path += [(left, before), (x, before + control), (x, after + control), (right, after)]
        codes += [Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        middles.append((float(x), float((before + after) / 2 + 3 / 4 * control)))
    if points[-1, 0] > points[-2, 0] + 1e-6:  # a line of length 0 would turn the head of the arrow
        path.append(points[-1])
        codes.append(Path.LINETO)
    axes.add_patch(FancyArrowPatch(path=Path(path, codes), **style))
    return middles[len(middles) // 2]


def _style(thick: float, color: str, directed: bool) -> dict[str, Any]:
    style = {"arrowstyle": "-|>" if directed else "-", "mutation_scale": 7 + 1.5 * thick, "lw": thick, "color": color}
    return {**style, "shrinkA": 0, "shrinkB": 2 * directed, "zorder": 2 if color == ORANGE else 1, "capstyle": "butt"}
