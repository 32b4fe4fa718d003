"""Several solutions side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..errors import InvalidInputError
from .mixture import PlotInput
from .panels import draw_side_by_side

__all__ = ["comparison"]


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
    >>> solutions = {name: si.infer(theta, "subset", name, k=2) for name in ("map", "sparsemap", "marginals")}
    >>> figure = comparison(solutions, si.plot.selection, title="Two of four")
    """
    if not isinstance(solutions, Mapping):
        raise TypeError(f"solutions: a dict of them by name is needed, got a {type(solutions).__name__}")
    if not solutions:
        raise InvalidInputError("solutions: at least one is needed, by its name")
    return draw_side_by_side(
        [partial(picture, solution, *args, title=str(name), **options) for name, solution in solutions.items()], title
    )
