"""Pictures of assignments and transport plans: matrices of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..kernels.arrays import as_tensor
from .mixture import PlotInput, read_solution
from .style import (
    BLUE,
    INK,
    ORANGE,
    READABLE,
    SHADES,
    add_axes,
    as_decimal,
    as_percent,
    colors_of,
    draw_cell_lines,
    make_figure,
)
from .text import check_count, names_or_numbers

__all__ = ["assignment"]


def assignment(
    solution: PlotInput,
    *,
    rows: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    max_structures: int = 6,
) -> Figure:
    """Draw the mean of an assignment as a matrix, and beside the mean the assignments of the support.

    Supported structures: ``assignment``, ``transportation``, and a ``constraint_model`` of a matrix of variables.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean is (n, m), and the support, if kept, (K, n, m).
    rows : sequence of str or of (h, w) images, optional
        Names of the rows. By default, numbers from 1.
    columns : sequence of str, optional
        Names of the columns. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of structures to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        Orange cells are not in all structures. Cells with an amount above 1 show the amount.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of rows or columns does not match
        the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> solution = si.infer(
    ...     torch.tensor([[1.0, 0.8], [0.5, 0.4]]), "assignment", "sparsemap"
    ... )
    >>> figure = assignment(
    ...     solution, rows=["Ada", "Ben"], columns=["Monday", "Tuesday"]
    ... )
    """
    data = read_solution(solution, "n m", max_structures=max_structures)
    (mean,), (structures,), weights = data.mean, data.structures, data.weights
    n, m = mean.shape
    columns = names_or_numbers("columns", columns, m, "columns")
    if rows is not None:
        check_count("rows", len(rows), n, "rows")
    largest = max(1.0, mean.max().item()) if mean.numel() else 1.0
    in_all = (structures == structures[:1]).all(0)
    what = "plans" if bool((structures > 1).any()) else "assignments"
    # In inches: a cell of the mean, a cell of a structure, and the gap between panels.
    big, small, gap = min(0.55, 4.0 / max(n, m)), min(0.25, 1.75 / max(n, m)), 0.5
    lines = 1 if len(weights) <= 2 else 2
    each_line = -(-len(weights) // lines)
    left, top = 0.85, 1.2 if title else 0.8
    right = left + m * big + gap
    width = right + each_line * (m * small + gap)
    height = top + max(n * big, lines * (n * small + gap) - gap) + 0.55
    used = {BLUE if alike else ORANGE for alike in in_all[(structures > 0).any(0)].tolist()}
    legend = colors_of({f"in all {what}": BLUE, "in some": ORANGE}, used) if len(weights) else [("mean", BLUE)]
    figure = make_figure(width, height, title, legend, data.rest)

    main = add_axes(figure, left, top, m * big, n * big)
    main.imshow(mean.numpy(), cmap=SHADES, vmin=0, vmax=largest, aspect="auto", interpolation="nearest")
    size = min(9, 22 * big)
    for i, j in (mean > 0.005).nonzero().tolist():
        value = mean[i, j].item()
        color = "white" if value > READABLE * largest else INK
        main.text(j, i, as_decimal(value), ha="center", va="center", fontsize=size, color=color)
    main.set_title("mean", fontsize=10, color=INK, pad=8)
    main.set_xticks(range(m), columns)
    main.xaxis.tick_top()
    if rows is None or isinstance(rows[0], str):
        main.set_yticks(range(n), [str(i + 1) for i in range(n)] if rows is None else rows)
    else:
        main.set_yticks([])
        for i, image in enumerate(rows):
            side = 0.84 * big
            thumbnail = add_axes(figure, left - side - 0.1, top + i * big + 0.08 * big, side, side)
            thumbnail.imshow(as_tensor(image).cpu().numpy(), cmap="gray_r")
            thumbnail.set_axis_off()
    draw_cell_lines(main, n, m)
    for k, (structure, weight) in enumerate(zip(structures, weights.tolist(), strict=True)):
        line, column = divmod(k, each_line)
        place = right + column * (m * small + gap), top + line * (n * small + gap)
        panel = add_axes(figure, *place, m * small, n * small)
        for i, j in (structure > 0).nonzero().tolist():
            panel.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, color=BLUE if in_all[i, j] else ORANGE, lw=0))
            if what == "plans":
                amount = as_decimal(structure[i, j].item())
                panel.text(j, i, amount, ha="center", va="center", fontsize=min(8, 32 * small), color="white")
        panel.set(xlim=(-0.5, m - 0.5), ylim=(n - 0.5, -0.5), xticks=[], yticks=[])
        panel.set_title(as_percent(weight), fontsize=11, color=INK, pad=4, weight="bold")
        draw_cell_lines(panel, n, m)
    return figure
