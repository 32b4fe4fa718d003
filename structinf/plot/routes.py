"""Pictures of paths in a directed acyclic graph: nodes in layers, and edges as thick as their probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..dp.paths import DAG
from .layered_layout import lay_out
from .mixture import PlotInput, read_solution
from .networks import draw_graph
from .text import check_count

__all__ = ["route"]

LINE = 0.7  # inches between neighbouring positions in a layer


def route(solution: PlotInput, edges: Any, *, names: Sequence[str] | None = None, title: str = "") -> Figure:
    """Draw the mean of paths through a directed acyclic graph, and the heaviest path.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean is (E,).
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
        The edges, in any form accepted by the option ``graph`` of ``dag_path``. The ``str`` of a node is its name.
    names : sequence of str, optional
        Names of the E edges. By default, edges have no names.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        Edges are as thick as their probability, and show the probability if not 0. If the relaxation keeps a support,
        the edges of the heaviest path are orange.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of edges or names does not match
        the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> edges = [
    ...     ("home", "bus"),
    ...     ("home", "train"),
    ...     ("bus", "work"),
    ...     ("train", "work"),
    ... ]
    >>> solution = si.infer(
    ...     torch.tensor([0.5, 0.0, 0.0, 0.4]),
    ...     "dag_path",
    ...     "sparsemap",
    ...     graph=edges,
    ... )
    >>> figure = route(solution, edges, title="To work")
    """
    data = read_solution(solution, "E", max_structures=1)
    dag = DAG.of(edges)
    check_count("edges", len(dag.ends), len(data.mean[0]), "edges")
    return draw_graph(
        *(data, [str(node) for node in dag.nodes], dag.ends, names, title),
        lambda boxes, widest: _place_in_layers(dag, boxes, 0.5 + widest),
        shown=range(len(dag.ends)),
        directed=True,
        meanings=("probable", "of probability 0", "the heaviest path"),
    )


def _place_in_layers(dag: DAG, boxes: Sequence[float], gap: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the centres of nodes (n, 2), and the points at which each edge leaves and enters layers, in inches."""
    layer, height, passes = lay_out(dag)
    columns = np.zeros(layer.max() + 1)
    np.maximum.at(columns, layer, boxes)
    right = np.cumsum(columns + gap) - gap
    left = right - columns
    places = np.stack([((left + right) / 2)[layer], -LINE * height], 1)
    ways = []
    for (start, end), between in zip(dag.ends.tolist(), passes, strict=True):
        crossed = slice(layer[start], layer[end] + 1)
        sides = np.stack([left[crossed], right[crossed]], 1)
        sides[0, 0], sides[-1, 1] = places[start, 0] + boxes[start] / 2, places[end, 0] - boxes[end] / 2
        heights = -LINE * np.array([height[start], *between, height[end]])
        ways.append(np.stack([sides.ravel(), heights.repeat(2)], 1))
    return places, ways
