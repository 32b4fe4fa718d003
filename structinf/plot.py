"""Pictures of a solution: its mean, and the few structures of its support with their weights.

Needs the extra: ``pip install 'structinf[plot]'``. Each function takes the solution of one instance,
without batch dimensions, and returns a :class:`matplotlib.figure.Figure` to save or show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import InvalidInputError
from .solution import Solution

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties, fontManager, get_font
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "structinf.plot needs matplotlib: pip install 'structinf[plot]'", name="matplotlib"
    ) from error

__all__ = ["assignment", "trees"]

INK, SOFT, FAINT = "#1f2933", "#8795a1", "#e4e9ee"
BLUE, ORANGE, PALE = "#2368a2", "#d1621b", "#e9b48f"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#bcd6ec", "#5b9bd0", BLUE])


# ----------------------------------------------------------------------------- assignments


def assignment(
    solution: Solution,
    *,
    rows: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    most: int = 6,
) -> Figure:
    """The mean of an assignment as a matrix, and beside it the assignments that it is made of.

    Parameters
    ----------
    solution : Solution
        Of one instance: the mean is (n, m), the support (K, n, m).
    rows : sequence of str or of (h, w) images, optional
        What the rows stand for; numbers by default.
    columns : sequence of str, optional
    title : str
    most : int
        Draw no more structures than these, the heaviest first.

    Returns
    -------
    Figure
        Cells that not all structures share are orange.
    """
    mean, structures, weights, rest = _heaviest(solution, most, event_ndim=2)
    n, m = mean.shape
    shared = (structures > 0).all(0)
    big, small, gap = (
        4.0 / max(n, m),
        1.75 / max(n, m),
        0.5,
    )  # inches: a cell of the mean, of a structure; between panels
    lines = 1 if len(weights) <= 2 else 2
    each_line = -(-len(weights) // lines)
    left, top = 0.85, 1.2 if title else 0.8
    right = left + m * big + gap
    width = max(right + each_line * (m * small + gap), 6.0)
    height = top + max(n * big, lines * (n * small + gap) - gap) + 0.55
    figure = _figure(width, height, title)

    main = _axes(figure, left, top, m * big, n * big)
    main.imshow(mean.numpy(), cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    for i, j in (mean > 0.005).nonzero().tolist():
        value = mean[i, j].item()
        text = "1" if value > 0.995 else f"{value:.2f}".removeprefix("0")
        main.text(
            j, i, text, ha="center", va="center", fontsize=min(9, 22 * big), color="white" if value > 0.5 else INK
        )
    main.set_title("mean", fontsize=10, color=INK, pad=8)
    main.set_xticks(range(m), [str(j + 1) for j in range(m)] if columns is None else columns)
    main.xaxis.tick_top()
    if rows is None or isinstance(rows[0], str):
        main.set_yticks(range(n), [str(i + 1) for i in range(n)] if rows is None else rows)
    else:
        main.set_yticks([])
        for i, image in enumerate(rows):
            side = 0.84 * big
            thumbnail = _axes(figure, left - side - 0.1, top + i * big + 0.08 * big, side, side)
            thumbnail.imshow(torch.as_tensor(image).cpu().numpy(), cmap="gray_r")
            thumbnail.set_axis_off()
    _frame(main, n, m)
    for k, (structure, weight) in enumerate(zip(structures, weights, strict=True)):
        line, column = divmod(k, each_line)
        panel = _axes(figure, right + column * (m * small + gap), top + line * (n * small + gap), m * small, n * small)
        for i, j in (structure > 0).nonzero().tolist():
            panel.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, color=BLUE if shared[i, j] else ORANGE, lw=0))
        panel.set(xlim=(-0.5, m - 0.5), ylim=(n - 0.5, -0.5), xticks=[], yticks=[])
        panel.set_title(f"{weight.item():.0%}", fontsize=11, color=INK, pad=4, weight="bold")
        _frame(panel, n, m)
    _legend(figure, [("in all assignments", BLUE), ("in some", ORANGE)], rest)
    return figure


def _frame(axes: Axes, n: int, m: int) -> None:
    """Thin lines between the cells."""
    axes.set_xticks([j - 0.5 for j in range(m + 1)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(n + 1)], minor=True)
    axes.grid(which="minor", color=FAINT, lw=0.6)
    axes.tick_params(which="both", length=0, labelsize=9, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_color(SOFT)
        spine.set_linewidth(0.6)


# ----------------------------------------------------------------------------- trees


def trees(
    solution: Solution, words: Sequence[str], *, gold: Tensor | None = None, title: str = "", most: int = 4
) -> Figure:
    """The dependency trees that a mean is made of, one above the other, over the words of a sentence.

    Parameters
    ----------
    solution : Solution
        Of one sentence: the mean is (n + 1, n + 1), node 0 being the root, the support (K, n + 1, n + 1).
    words : sequence of str
        The n words.
    gold : (n,) integer Tensor, optional
        The right heads, 0 for the root.
    title : str
    most : int
        Draw no more trees than these, the heaviest first.

    Returns
    -------
    Figure
        Arcs of all trees are grey, those of some blue; where ``gold`` says that they are wrong, pale and full orange.
    """
    mean, structures, weights, rest = _heaviest(solution, most, event_ndim=2)
    n = len(words)
    if mean.shape != (n + 1, n + 1):
        raise InvalidInputError(
            f"words: a mean of shape {tuple(mean.shape)} is that of {len(mean) - 1} words, got {n}; "
            "cut the padding off before inferring"
        )
    words, font, unknown = _typeset(words)
    centres, right = _word_places(words, font)
    drawings = [[(int(h), int(m)) for h, m in structure.nonzero().tolist()] for structure in structures]
    shared = set(drawings[0]).intersection(*drawings)
    levels = [_levels(arcs) for arcs in drawings]
    heights = [0.9 + 0.3 * max(level.values(), default=0) for level in levels]
    margin, top, bottom = 0.75, 0.7 if title else 0.15, 0.4
    width, height = max(margin + right + 0.2, 6.0), top + sum(heights) + bottom
    figure = _figure(width, height, title)
    done = top
    for arcs, level, weight, size in zip(drawings, levels, weights, heights, strict=True):
        axes = _axes(figure, 0, done, width, size)
        axes.set(xlim=(-margin, width - margin), ylim=(-0.25, size - 0.25))  # in inches, words at height 0
        axes.set_axis_off()
        axes.text(0.2 - margin, -0.05, f"{weight.item():.0%}", fontsize=11, color=INK, weight="bold")
        for word, x in zip(words, centres, strict=True):
            axes.text(x, -0.05, word, ha="center", color=INK, fontproperties=font)
        for arc, ends in _ends(arcs, centres).items():
            wrong = gold is not None and int(gold[arc[1] - 1]) != arc[0]
            color = (PALE if wrong else SOFT) if arc in shared else (ORANGE if wrong else BLUE)
            _draw_arc(axes, ends, 0.3 * level.get(arc, max(level.values(), default=0) + 1), color)
        done += size
    legend = [("in all trees", SOFT), ("in some trees", BLUE)]
    if gold is not None:
        legend += [("wrong, in all", PALE), ("wrong, in some", ORANGE)]
    _legend(figure, legend, "; ".join(filter(None, [rest, "▯ no font for this letter" if unknown else ""])))
    return figure


Arc = tuple[int, int]  # head and dependent; word m stands at centres[m - 1], the root nowhere


def _levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """How high to draw each arc between words: above all shorter ones that share some of its span."""
    levels: dict[Arc, int] = {}
    for arc in sorted((a for a in arcs if a[0] != 0), key=lambda a: (abs(a[0] - a[1]), a)):
        low, high = sorted(arc)
        under = [level for other, level in levels.items() if min(other) < high and max(other) > low]
        levels[arc] = 1 + max(under, default=0)
    return levels


def _ends(arcs: Sequence[Arc], centres: Sequence[float]) -> dict[Arc, tuple[float | None, float]]:
    """Where each arc starts (None for the root) and ends: those of a word side by side, so that none cross there."""
    places: dict[tuple[Arc, int], float] = {}
    for word, centre in enumerate(centres, 1):
        here = [a for a in arcs if word in a]
        # From left to right: leftward arcs, the shortest first; the root's; rightward ones, the longest first.
        here.sort(key=lambda a: 0 if 0 in a else 1 / (a[0] + a[1] - 2 * word))
        for k, arc in enumerate(here):
            places[arc, word] = centre + 0.11 * (k - (len(here) - 1) / 2)
    return {a: (places.get((a, a[0])), places[a, a[1]]) for a in arcs}


def _draw_arc(axes: Axes, ends: tuple[float | None, float], y: float, color: str) -> None:
    """A rounded arc from the head up to height ``y`` and down to the dependent; for the root, an arrow from above."""
    start, end = ends
    foot = 0.2
    if start is None:
        points, codes = [(end, y + foot), (end, foot)], [Path.MOVETO, Path.LINETO]
    else:
        bend = min(0.25, abs(end - start) / 2) * (1 if end > start else -1)
        top = y + foot
        points = [(start, foot), (start, top - 0.15), (start, top), (start + bend, top)]
        points += [(end - bend, top), (end, top), (end, top - 0.15), (end, foot)]
        codes = [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO]
    arrow = FancyArrowPatch(path=Path(points, codes), arrowstyle="-|>", mutation_scale=7, shrinkA=0, shrinkB=0)
    arrow.set(color=color, lw=1.2)
    axes.add_patch(arrow)


def _word_places(words: Sequence[str], font: FontProperties) -> tuple[list[float], float]:
    """Centre of each word, and the right end of the last one, in inches."""
    centres, right = [], 0.0
    for word in words:
        extent = TextPath((0, 0), word, prop=font).get_extents()
        size = max(extent.width / 72, 0.35)
        centres.append(right + size / 2)
        right += size + 0.22
    return centres, right


def _typeset(words: Sequence[str]) -> tuple[list[str], FontProperties, bool]:
    """The words as text rather than mathematics, a font for them, and whether it lacks letters, replaced by ▯.

    The font is matplotlib's default, or else one of this machine's that has all the letters.
    """
    letters = {ord(letter) for word in words for letter in word}
    default = fontManager.findfont(FontProperties())
    regular = (font for font in fontManager.ttflist if font.weight == 400 and font.style == "normal")
    # "Last Resort" has a placeholder for every letter there is.
    files = [default, *(font.fname for font in regular if not font.name.startswith("Last Resort"))]
    covering = (file for file in files if letters <= get_font(file).get_charmap().keys())
    file = next(covering, default)
    unknown = letters - get_font(file).get_charmap().keys()
    escapes = {ord("$"): r"\$", **dict.fromkeys(unknown, "▯")}
    return [word.translate(escapes) for word in words], FontProperties(fname=file, size=10), bool(unknown)


# ----------------------------------------------------------------------------- shared


def _heaviest(solution: Solution, most: int, event_ndim: int) -> tuple[Tensor, Tensor, Tensor, str]:
    """The mean, the ``most`` structures of largest weight with their weights, and a note on those left out."""
    mean, support, weights = solution.mean, solution.support, solution.weights
    if support is None or weights is None:
        raise InvalidInputError("solution: it has no support to draw; take one of infer(..., 'sparsemap') or 'map'")
    if not isinstance(mean, Tensor) or not isinstance(support, Tensor) or mean.ndim != event_ndim:
        shape = tuple(mean.shape) if isinstance(mean, Tensor) else "of several tensors"
        raise InvalidInputError(f"solution: one instance without batch dimensions is needed, got a mean {shape}")
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] > 0]
    drawn, left = order[:most], order[most:]
    total = weights[left].sum().item()
    rest = f"and {len(left)} more of {total:.0%} together" if len(left) else ""
    return mean.detach().cpu(), support[drawn].detach().cpu(), weights[drawn].detach().cpu(), rest


def _figure(width: float, height: float, title: str) -> Figure:
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    figure.text(0.2 / width, 1 - 0.35 / height, title, fontsize=12, color=INK, va="center", weight="bold")
    return figure


def _axes(figure: Figure, left: float, down: float, width: float, height: float) -> Axes:
    """Axes placed in inches from the figure's upper left corner."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (down + height) / h, width / w, height / h))


def _legend(figure: Figure, entries: Sequence[tuple[str, str]], rest: str) -> None:
    """What the colours mean, lower left; a note, lower right."""
    w, h = figure.get_size_inches()
    left = 0.2
    for text, color in entries:
        figure.text(left / w, 0.15 / h, "■", fontsize=8, color=color)
        figure.text((left + 0.13) / w, 0.15 / h, text, fontsize=8, color=INK)
        left += 0.35 + 0.065 * len(text)
    # Smaller where the window of the note is narrow.
    size = min(8.0, max(5.0, 8 * (w - left - 0.4) / (0.065 * max(len(rest), 1))))
    figure.text(1 - 0.2 / w, 0.15 / h, rest, fontsize=size, color=SOFT, ha="right")
