"""The structures of a support side by side, each as its picture draws it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from ..errors import InvalidInputError
from ..parts import like_potentials
from ..solution import Solution
from .drawn import find_heaviest
from .style import BLUE, ORANGE, add_part, drawn_into, make_figure, size_of

__all__ = ["support"]

# Inches: of more than two pictures side by side at most, and at the foot of each, where its legend would be.
LINE, FOOT = 10.0, 0.3


def support(
    solution: Solution,
    picture: Callable[..., Figure],
    *args: Any,
    title: str = "",
    most: int = 6,
    **options: Any,
) -> Figure:
    """The structures of a solution's support, the heaviest first, with their weights, each over the mean.

    Of ``picture``s that draw the heaviest structure alone: ``alignment``, ``lattice``, ``network`` and ``route``. The
    others draw all structures themselves; for them, this is ``picture(solution, most=most)``.

    Parameters
    ----------
    solution : Solution
        Of one instance, in a form that the ``picture`` takes. Equal structures, as of samples, are one.
    picture : callable
        A function of this module.
    *args, **options
        Of the ``picture``, such as words, names and positions.
    title : str
    most : int
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
    >>> solution = si.infer(torch.zeros(4, 5), "dtw", "perturbed", samples=20, generator=g)
    >>> figure = support(solution, si.plot.alignment, title="Sampled alignments", most=4)
    """
    if solution.support is None or solution.weights is None:
        raise InvalidInputError(
            "solution: it has no support to draw; take one of infer(..., 'sparsemap'), 'perturbed' or 'map'"
        )
    if "most" in inspect.signature(picture).parameters:
        return picture(solution, *args, title=title, most=most, **options)
    if solution.weights.ndim != 1:
        raise InvalidInputError(
            "solution: one instance without batch dimensions is needed; "
            f"got one with weights of shape {tuple(solution.weights.shape)}"
        )
    structures, weights, rest = find_heaviest(solution.support, solution.weights, most)
    draws = [
        partial(picture, _of_one(solution, structures, weights, k), *args, title=f"{weight:.0%}", **options)
        for k, weight in enumerate(weights.tolist())
    ]
    # Once to learn the sizes, and once where these fit.
    with drawn_into(lambda width, height: Figure((width, height), dpi=150)):
        sizes = [size_of(draw()) for draw in draws]
    corners, (width, height) = _lay_out(sizes)
    top = 0.55 if title else 0.1
    figure = make_figure(width, top + height, title, [("mean", BLUE), ("structure", ORANGE)], rest)
    for draw, (left, down) in zip(draws, corners, strict=True):
        with drawn_into(partial(add_part, figure, left, top + down)):
            draw()
    return figure


def _of_one(solution: Solution, structures: tuple[Tensor, ...], weights: Tensor, k: int) -> Solution:
    """The same mean, and of the support one structure."""
    one = tuple(t[k : k + 1] for t in structures)
    support = like_potentials(one, solution.mean)
    return replace(solution, weights=weights[k : k + 1], make_support=lambda: support)


def _lay_out(sizes: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Upper left corners of pictures in lines, and the size of all together, in inches."""
    most = max([LINE, *(2 * width for width, _ in sizes)])
    corners, left, down, widest, deepest = [], 0.0, 0.0, 0.0, 0.0
    for width, height in sizes:
        if left > 0 and left + width > most:
            left, down, deepest = 0.0, down + deepest - FOOT, 0.0
        corners.append((left, down))
        left, deepest = left + width, max(deepest, height)
        widest = max(widest, left)
    return corners, (widest, down + deepest)
