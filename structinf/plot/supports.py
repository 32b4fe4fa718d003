"""The structures of a support side by side, each as its picture draws it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..errors import InvalidInputError
from ..parts import pack_like
from .mixture import Mixture, PlotInput, find_heaviest
from .panels import draw_side_by_side
from .style import BLUE, ORANGE, as_percent

__all__ = ["support"]


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
    >>> solution = si.infer(torch.zeros(4, 5), "dtw", "perturbed", samples=20, generator=g)
    >>> figure = support(solution, si.plot.alignment, title="Sampled alignments", max_structures=4)
    """
    mixture = Mixture.of(solution)
    if mixture.support is None or mixture.weights is None:
        raise InvalidInputError(
            "solution: it has no support to draw; take one of infer(..., 'sparsemap'), 'perturbed' or 'map'"
        )
    if "max_structures" in inspect.signature(picture).parameters:
        return picture(mixture, *args, title=title, max_structures=max_structures, **options)
    if mixture.weights.ndim != 1:
        raise InvalidInputError(
            "solution: one instance without batch dimensions is needed; got one with weights of shape "
            f"{tuple(mixture.weights.shape)}; of a batch, infer(theta[b], ...) is that of one"
        )
    structures, weights, rest = find_heaviest(mixture.support, mixture.weights, max_structures)
    draws = []
    for k, weight in enumerate(weights.tolist()):
        one = pack_like(tuple(t[k : k + 1] for t in structures), mixture.mean)
        alone = Mixture(mixture.mean, one, weights[k : k + 1])
        draws.append(partial(picture, alone, *args, title=as_percent(weight), **options))
    return draw_side_by_side(draws, title, [("mean", BLUE), ("structure", ORANGE)], rest)
