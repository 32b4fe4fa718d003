"""Several pictures side by side in one figure: of different solutions, or of the structures of one support."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..errors import InvalidInputError
from ..parts import pack_like
from .mixture import Mixture, PlotInput, find_heaviest
from .style import BLUE, ORANGE, add_part, as_percent, draw_into_parts, make_figure, size_of

__all__ = ["comparison", "support"]

# Inches: the longest line of more than two pictures, and the height at the foot of each that a legend would take.
LINE, FOOT = 11.0, 0.3


def comparison(
    solutions: Mapping[Any, PlotInput],
    picture: Callable[..., Figure],
    *args: Any,
    title: str = "",
    **options: Any,
) -> Figure:
    """Several solutions, as of different relaxations or temperatures, side by side, each under its name.

    Parameters
    ----------
    solutions : mapping to Solution or SparseDistribution
        By name, or by number, each of one instance.
    picture : callable
        A function of this module that takes a solution first.
    *args, **options
        Of the ``picture``, the same for all.
    title : str
        The title of the figure; none if empty.

    Returns
    -------
    Figure
        Of as many pictures as there are solutions.

    Raises
    ------
    InvalidInputError
        If there are no solutions, and as the ``picture`` says.

    Examples
    --------
    >>> import torch, structinf as si, structinf.plot
    >>> theta = torch.tensor([1.0, 0.8, 0.5, -1.0])
    >>> solutions = {
    ...     name: si.infer(theta, "subset", name, k=2)
    ...     for name in ("map", "sparsemap", "marginals")
    ... }
    >>> figure = comparison(solutions, si.plot.selection, title="Two of four")
    """
    if not isinstance(solutions, Mapping):
        raise TypeError(f"solutions must be a dict from names to solutions, got a {type(solutions).__name__}")
    if not solutions:
        raise InvalidInputError("solutions must hold at least one solution, got an empty dict")
    return draw_side_by_side(
        [partial(picture, solution, *args, title=str(name), **options) for name, solution in solutions.items()], title
    )


def support(
    solution: PlotInput,
    picture: Callable[..., Figure],
    *args: Any,
    title: str = "",
    max_structures: int = 6,
    **options: Any,
) -> Figure:
    """The structures of a solution's support, the heaviest first, with their weights, each over the mean.

    Of ``picture``s that draw the heaviest structure alone: ``alignment``, ``lattice``, ``network`` and ``route``. The
    others draw all structures themselves; for them, this is ``picture(solution, max_structures=max_structures)``.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        Of one instance, in a form that the ``picture`` takes. Equal structures, as of samples, are one.
    picture : callable
        A function of this module.
    *args, **options
        Of the ``picture``, such as words, names and positions.
    title : str
        The title of the figure; none if empty.
    max_structures : int
        Draw no more structures than these.

    Returns
    -------
    Figure
        Above each structure stands its weight.

    Raises
    ------
    InvalidInputError
        If the solution has no support, or is that of a batch, and as the ``picture`` says.

    Examples
    --------
    >>> import torch, structinf as si, structinf.plot
    >>> g = torch.Generator().manual_seed(0)
    >>> solution = si.infer(
    ...     torch.zeros(4, 5), "dtw", "perturbed", samples=20, generator=g
    ... )
    >>> figure = support(
    ...     solution,
    ...     si.plot.alignment,
    ...     title="Sampled alignments",
    ...     max_structures=4,
    ... )
    """
    mixture = Mixture.of(solution)
    if mixture.support is None or mixture.weights is None:
        raise InvalidInputError(
            "solution has no support to draw; pass the result of infer with the relaxation 'sparsemap', 'perturbed' or "
            "'map'"
        )
    if "max_structures" in inspect.signature(picture).parameters:
        return picture(mixture, *args, title=title, max_structures=max_structures, **options)
    if mixture.weights.ndim != 1:
        raise InvalidInputError(
            "solution must be the solution of one instance, with weights of shape (K,), got weights of shape "
            f"{tuple(mixture.weights.shape)}; for instance b of a batch, pass infer(theta[b], ...)"
        )
    structures, weights, rest = find_heaviest(mixture.support, mixture.weights, max_structures)
    draws = []
    for k, weight in enumerate(weights.tolist()):
        one = pack_like(tuple(t[k : k + 1] for t in structures), mixture.mean)
        alone = Mixture(mixture.mean, one, weights[k : k + 1])
        draws.append(partial(picture, alone, *args, title=as_percent(weight), **options))
    return draw_side_by_side(draws, title, [("mean", BLUE), ("structure", ORANGE)], rest)


def draw_side_by_side(
    draws: Sequence[Callable[[], Figure]], title: str, legend: Sequence[tuple[str, str]] = (), *notes: str
) -> Figure:
    """One figure of what the ``draws`` make; with a ``legend`` of all, or else each with its own."""
    with_own_legends = not legend
    # Once to learn the sizes, and once where these fit.
    with draw_into_parts(lambda width, height: Figure((width, height), dpi=150), legends=with_own_legends):
        sizes = [size_of(draw()) for draw in draws]
    corners, (width, height) = lay_out(sizes, 0.0 if with_own_legends else FOOT)
    top = 0.55 if title else 0.1
    figure = make_figure(width, top + height, title, legend, *notes)
    for draw, (left, down) in zip(draws, corners, strict=True):
        with draw_into_parts(partial(add_part, figure, left, top + down), legends=with_own_legends):
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
