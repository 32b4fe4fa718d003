"""Several pictures side by side in one figure: different solutions, or the structures of one support."""

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

# Inches: the longest line of more than two pictures, and the height of a legend at the foot of a picture.
LINE, FOOT = 11.0, 0.3


def comparison(
    solutions: Mapping[Any, PlotInput],
    picture: Callable[..., Figure],
    *args: Any,
    title: str = "",
    **options: Any,
) -> Figure:
    """Draw several solutions side by side, for example of different relaxations or temperatures, each under a name.

    Parameters
    ----------
    solutions : mapping to Solution or SparseDistribution
        Solutions of one instance each. The keys are names or numbers.
    picture : callable
        A function of this module that takes a solution first.
    *args, **options
        Other arguments of ``picture``, the same for all solutions.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        A figure with one picture per solution.

    Raises
    ------
    InvalidInputError
        If ``solutions`` is empty, or if ``picture`` raises the error.

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
    """Draw each structure of a solution's support over the mean, in order of decreasing weight.

    The pictures ``alignment``, ``lattice``, ``network`` and ``route`` draw only the heaviest structure. All other
    pictures draw all structures; for them, the result is ``picture(solution, max_structures=max_structures)``.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance, in a form accepted by ``picture``. Equal structures, for example samples, are
        merged.
    picture : callable
        A function of this module.
    *args, **options
        Other arguments of ``picture``, such as words, names and positions.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of structures to draw.

    Returns
    -------
    Figure
        A figure with one picture per structure, titled with the weight of the structure.

    Raises
    ------
    InvalidInputError
        If ``solution`` has no support or holds a batch, or if ``picture`` raises the error.

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
    """Return one figure with the pictures of all ``draws``: with a common ``legend``, or each picture with its own
    legend.
    """
    with_own_legends = not legend
    # Draw once to learn the sizes, and again at the final positions.
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
    """Return the upper left corners of pictures placed in lines, and the total size, in inches.

    Neighbouring lines overlap by ``foot``.
    """
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
    """Return the line number of each picture. The number of lines is minimal, and then the longest line as short as
    possible.
    """

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
