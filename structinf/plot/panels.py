"""Pictures as parts of one figure, side by side in lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from .style import add_part, draw_into_parts, make_figure, size_of

__all__ = ["draw_side_by_side"]

# Inches: of more than two pictures side by side at most, and at the foot of each, where its legend would be.
LINE, FOOT = 11.0, 0.3


def draw_side_by_side(
    draws: Sequence[Callable[[], Figure]], title: str, legend: Sequence[tuple[str, str]] = (), *notes: str
) -> Figure:
    """One figure of what the ``draws`` make; with a ``legend`` of all, or else each with its own."""
    apart = not legend
    # Once to learn the sizes, and once where these fit.
    with draw_into_parts(lambda width, height: Figure((width, height), dpi=150), legends=apart):
        sizes = [size_of(draw()) for draw in draws]
    corners, (width, height) = lay_out(sizes, 0.0 if apart else FOOT)
    top = 0.55 if title else 0.1
    figure = make_figure(width, top + height, title, legend, *notes)
    for draw, (left, down) in zip(draws, corners, strict=True):
        with draw_into_parts(partial(add_part, figure, left, top + down), legends=apart):
            draw()
    return figure


def lay_out(sizes: Sequence[tuple[float, float]], foot: float) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Upper left corners of pictures in lines, which share each ``foot``, and the size of all together, in inches."""
    lines = break_lines([width for width, _ in sizes])
    corners, widest, down = [], 0.0, 0.0
    for line in range(max(lines, default=-1) + 1):
        left, deepest = 0.0, 0.0
        for width, height in (size for size, number in zip(sizes, lines, strict=True) if number == line):
            corners.append((left, down))
            left, deepest = left + width, max(deepest, height)
        widest, down = max(widest, left), down + deepest - foot
    return corners, (widest, down + foot)


def break_lines(widths: Sequence[float]) -> list[int]:
    """The line of each picture: as few lines as there must be, the longest of which is as short as can be."""

    def fill(most: float) -> list[int]:
        lines, room = [0], most
        for width in widths:
            fits = width <= room + 1e-9
            lines.append(lines[-1] + (not fits))
            room = (room if fits else most) - width
        return lines[1:]

    needed = fill(max([LINE, *(2 * width for width in widths)]))
    lengths = sorted(sum(widths[i:j]) for j in range(len(widths) + 1) for i in range(j))
    shorter = (fill(length) for length in lengths if length >= max(widths))
    return next((lines for lines in shorter if lines[-1:] == needed[-1:]), needed)
