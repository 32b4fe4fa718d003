"""Pictures of alignments and paths through grids: shaded cells, with the aligned items along the sides."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from .mixture import PlotInput, read_solution
from .shading import explain_shades, shade
from .side_labels import Items, SideLabels, draw_series
from .style import INK, ORANGE, add_axes, as_percent, draw_cell_lines, make_figure

__all__ = ["alignment"]


def alignment(solution: PlotInput, *, x: Items | None = None, y: Items | None = None, title: str = "") -> Figure:
    """Draw the mean of an alignment or grid path as shaded cells, and the heaviest structure over the cells.

    Supported structures: ``dtw``, ``grid_path`` with any moves, ``monotonic_alignment`` and ``needleman_wunsch``.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean is (n, m), or a tuple of matches (n, m) and numbers of gaps (2,) or (2,
        2).
    x, y : sequence of str, (n,) or (n, d) numbers, optional
        The items of the n rows and of the m columns: words or letters, or a series of d features.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        White cells have probability 0. If the relaxation keeps a support, the heaviest structure is a line. For paths
        that go back and forth, lines join neighbouring cells. For matches, the cells have outlines.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of items does not match the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> x, y = torch.linspace(0, 6, 20).sin(), torch.linspace(0, 7, 25).sin()
    >>> figure = alignment(
    ...     si.infer(-si.pairwise_cost(x, y), "dtw", "sparsemap"), x=x, y=y
    ... )
    """
    data = read_solution(solution, "n m", "n m, 2", "n m, 2 2", max_structures=1)
    mean = data.mean[0]
    n, m = mean.shape
    rows, columns = SideLabels.of("x", x, n, "rows"), SideLabels.of("y", y, m, "columns")
    height, width = (min(0.4 * size, 4.2) for size in (n, m))
    if 0.5 <= n / m <= 2:  # square cells
        height, width = (min(height / n, width / m) * size for size in (n, m))
    is_rotated = columns.widest > 0.9 * width / m
    above = 0.8 if columns.series is not None else columns.widest + 0.1 if is_rotated else 0.3 if columns.names else 0.0
    left = 0.25 + (0.8 if rows.series is not None else rows.widest + 0.1)
    top = (0.65 if title else 0.15) + above
    legend = explain_shades() + [(f"heaviest, {as_percent(weight)}", ORANGE) for weight in data.weights.tolist()]
    glyph_note = rows.glyph_note or columns.glyph_note
    figure = make_figure(left + width + 0.25, top + height + 0.65, title, legend, data.rest, glyph_note)

    axes = add_axes(figure, left, top, width, height)
    shade(axes, mean)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xticks(range(len(columns.names)), columns.names, font=columns.font, rotation=90 if is_rotated else 0)
    axes.set_yticks(range(len(rows.names)), rows.names, font=rows.font)
    if max(n, m) <= 20:
        draw_cell_lines(axes, n, m)
    if rows.series is not None:
        draw_series(add_axes(figure, left - 0.75, top, 0.7, height), rows.series, down=True)
    if columns.series is not None:
        draw_series(add_axes(figure, left, top - 0.75, width, 0.7), columns.series)
    for cells, *gaps in zip(*data.structures, strict=True):
        _draw_cells(axes, cells.nonzero(), outlined=bool(gaps))
    return figure


def _draw_cells(axes: Axes, cells: Tensor, *, outlined: bool) -> None:
    """Draw the cells (steps, 2) of a structure, given row by row."""
    forward = bool((cells.diff(dim=0) >= 0).all())
    links = None if forward or outlined else _find_links(cells)
    if forward and not outlined:
        axes.plot(*cells.T.flip(0).numpy(), color=ORANGE, lw=1.4, zorder=3, marker="o" if len(cells) == 1 else "")
    elif links is not None:
        axes.plot(*cells[links.T].permute(2, 0, 1).flip(0).numpy(), color=ORANGE, lw=1.4, zorder=3)
    else:
        for i, j in cells.tolist():
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, color=ORANGE, lw=2, zorder=3))


def _find_links(cells: Tensor) -> Tensor | None:
    """Return pairs (links, 2) of neighbouring cells: by sides if these pairs connect all cells, else by sides and
    corners, else no pairs.
    """
    apart = (cells[:, None] - cells).abs()
    for near in (apart.sum(2) == 1, apart.amax(2) == 1):
        pieces, _ = connected_components(near.numpy(), directed=False)
        if pieces == 1:
            return near.triu().nonzero()
    return None
