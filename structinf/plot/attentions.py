"""Pictures of attention maps: shaded cells of queries and keys, for one head or several heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..errors import InvalidInputError
from .shading import explain_shades, is_dark, shade
from .style import INK, ORANGE, add_axes, as_decimal, draw_cell_lines, make_figure
from .text import check_count, prepare_text, text_width

__all__ = ["attention"]

# Inches: largest cell, largest head, longest line of heads, and the gap between heads.
CELL, HEAD, LINE, GAP = 0.42, 4.2, 9.0, 0.3
LEGIBLE = 0.3  # the size in inches of the smallest cell that shows its weight


def attention(
    weights: Tensor,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    heads: Sequence[str] | None = None,
    runs: bool = False,
    title: str = "",
) -> Figure:
    """Draw attention weights as shaded cells: queries as rows, keys as columns, heads side by side.

    Parameters
    ----------
    weights : (n, m) or (H, n, m) Tensor
        The weights of one instance, as returned by :mod:`structinf.attention` or ``torch.nn.MultiheadAttention``.
    queries, keys : sequence of str, optional
        Names of the n rows and of the m columns, such as words.
    heads : sequence of str, optional
        Names of the H heads, or of the compared maps. By default numbers, if H > 1.
    runs : bool
        Whether to outline runs of neighbouring keys with weights above 0. Queries without a weight of 0 get no outline.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        White cells have weight 0. Cells of at least 0.3 inches show their weights. If the heads have a single query,
        the heads are the rows of one matrix.

    Raises
    ------
    InvalidInputError
        If ``weights`` holds a batch, is empty, negative or not finite, or if the number of names does not match
        ``weights``.

    Examples
    --------
    >>> import torch, structinf as si
    >>> scores = torch.tensor([[2.0, 1.5, -1.0], [0.0, 1.0, 1.2]])
    >>> maps = torch.stack([scores.softmax(-1), si.simplex.sparsemax(scores)])
    >>> figure = attention(
    ...     maps,
    ...     queries=["le", "chat"],
    ...     keys=["the", "cat", "sat"],
    ...     heads=["softmax", "sparsemax"],
    ... )
    """
    maps, rows, names = _read(weights, queries, heads)
    count, n, m = maps.shape
    if keys is not None:
        check_count("keys", len(keys), m, "keys", of="weights")
    cell = _size_cells(count, n, m)
    size = min(9, 65 * cell)  # font size of names, in points: at most the height of a cell
    rows, font, glyph_note = prepare_text(rows, size)
    columns, key_font, other_glyph_note = prepare_text(keys or [], size)
    names, name_font, name_glyph_note = prepare_text(names, 10)

    width, height = m * cell, n * cell
    widest = max((text_width(word, key_font) for word in columns), default=0.0)
    is_rotated = widest > 0.95 * cell
    above = (widest + 0.12 if is_rotated else 0.25) if columns else 0.1  # inches above a head
    above += 0.25 if names else 0.0
    left = 0.25 + max((text_width(word, font) + 0.1 for word in rows), default=0.0)
    step = max(width, max((text_width(name, name_font) for name in names), default=0.0)) + GAP
    each_line = max(1, min(count, int((LINE + GAP) / step)))
    lines = -(-count // each_line)
    each_line = -(-count // lines)  # the same number in each line
    top = 0.65 if title else 0.15
    legend = explain_shades() + ([("run of keys", ORANGE)] if runs else [])
    down = top + lines * (above + height + GAP) - GAP + 0.5
    notes = glyph_note, other_glyph_note, name_glyph_note
    figure = make_figure(left + each_line * step - GAP + 0.25, down, title, legend, *notes)

    for h, head in enumerate(maps):
        line, place = divmod(h, each_line)
        axes = add_axes(figure, left + place * step, top + above + line * (above + height + GAP), width, height)
        shade(axes, head)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), columns, font=key_font, rotation=90 if is_rotated else 0)
        axes.set_yticks(*((range(n), rows) if rows and place == 0 else ([], [])), font=font)
        if max(n, m) <= 40:
            draw_cell_lines(axes, n, m)
        axes.tick_params(length=0, labelcolor=INK)
        if names:
            axes.text(-0.5, -0.5 - (above - 0.15) / cell, names[h], color=INK, fontproperties=name_font)
        if cell >= LEGIBLE:
            _write_weights(axes, head, 20 * cell)
        if runs:
            _draw_runs(axes, head)
    return figure


def _read(
    weights: Tensor, queries: Sequence[str] | None, heads: Sequence[str] | None
) -> tuple[Tensor, list[str], list[str]]:
    """Return the maps (H, n, m), the names of the rows, and the names of the maps."""
    if weights.ndim not in (2, 3) or weights.numel() == 0:
        raise InvalidInputError(
            f"weights must have shape (n, m) or (H, n, m), not empty, got {tuple(weights.shape)}"
            + ("; pass the weights of one instance of the batch, weights[b]" if weights.ndim > 3 else "")
        )
    maps = weights.detach().float().cpu()
    if not bool(((maps >= 0) & maps.isfinite()).all()):
        raise InvalidInputError(f"weights must be finite and at least 0, got a minimum of {maps.min().item():g}")
    maps = maps if maps.ndim == 3 else maps[None]
    if queries is not None:
        check_count("queries", len(queries), maps.shape[1], "queries", of="weights")
    if heads is not None:
        check_count("heads", len(heads), len(maps), "heads", of="weights")
    else:
        heads = [f"head {h + 1}" for h in range(len(maps))] if len(maps) > 1 else []
    if maps.shape[1] == 1 and len(maps) > 1:
        return maps.transpose(0, 1), list(heads), list(queries or [])
    return maps, list(queries or []), list(heads)


def _size_cells(count: int, n: int, m: int) -> float:
    """Return the size of a cell in inches: four heads fit side by side if the cells stay legible, else two heads."""
    four, two = (((LINE + GAP) / min(count, across) - GAP) / m for across in (4, 2))
    return min(CELL, HEAD / n, max(four, min(two, LEGIBLE)))


def _write_weights(axes: Axes, matrix: Tensor, size: float) -> None:
    for i, j in (matrix > 0.005).nonzero().tolist():
        weight = matrix[i, j].item()
        text = axes.text(j, i, as_decimal(weight), ha="center", va="center_baseline", fontsize=min(8, size))
        text.set_color("white" if is_dark(weight) else INK)


def _draw_runs(axes: Axes, matrix: Tensor) -> None:
    """Draw an outline around each run of neighbouring keys of weight above 0."""
    for i, row in enumerate((matrix > 0).int()):
        if row.all():
            continue
        edges = torch.nn.functional.pad(row, (1, 1)).diff()
        for start, end in zip((edges > 0).nonzero().tolist(), (edges < 0).nonzero().tolist(), strict=True):
            box = Rectangle((start[0] - 0.5, i - 0.5), end[0] - start[0], 1, fill=False, color=ORANGE, lw=1.6, zorder=3)
            axes.add_patch(box).set_clip_on(False)
