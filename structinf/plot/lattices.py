"""Pictures of chains: the tags of each step as nodes, and the tag sequences as lines between steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from ..errors import InvalidInputError
from .mixture import PlotData, PlotInput, read_solution
from .style import GREY, INK, ORANGE, READABLE, SHADES, add_axes, as_decimal, as_percent, make_figure, size_of
from .text import names_or_numbers, prepare_text, text_width

__all__ = ["lattice"]

RADIUS = 0.18  # inches
THICK = 9.0  # points: a line of weight 1


def lattice(
    solution: PlotInput, *, words: Sequence[str] | None = None, tags: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Draw the mean of a chain: the tags of each step as shaded nodes, and tag sequences as lines between the nodes.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance, in any form of ``chain``: (T, S) with transitions, or edges (T − 1, S, S).
    words : sequence of str, optional
        Names of the T steps. By default, numbers from 1.
    tags : sequence of str, optional
        Names of the S states. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        The thickness of a line is the total weight of the tag sequences with this transition. The heaviest sequence is
        orange. Without a support, the lines are the transitions of the mean, if the mean has transitions of each step.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of words or tags does not match
        the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = (torch.tensor([[1.0, 0.0], [0.4, 0.6]]), torch.zeros(2, 2))
    >>> figure = lattice(
    ...     si.infer(theta, "chain", "sparsemap"),
    ...     words=["time", "flies"],
    ...     tags=["noun", "verb"],
    ... )
    """
    data = read_solution(solution, "T S, S S", "T S, T-1 S S", "T-1 S S")
    mean = _tags(data.mean)
    steps, states = mean.shape
    if steps == 0:
        raise InvalidInputError(
            "solution must have at least one tag to draw, got a chain of one step with edge scores only"
        )
    words, font, glyph_note = prepare_text(names_or_numbers("words", words, steps, "steps", padded=True))
    tags, tag_font, other_glyph_note = prepare_text(names_or_numbers("tags", tags, states, "states"))
    step = max(0.85, 0.2 + max(text_width(word, font) for word in words))  # inches
    line = 0.55
    left = 0.35 + max(text_width(tag, tag_font) for tag in tags) + RADIUS
    top, bottom = (0.75 if title else 0.3) + RADIUS, 0.75 + RADIUS
    width, height = left + step * (steps - 1) + 0.5, top + line * (states - 1) + bottom
    count, heaviest = len(data.weights), data.weights[:1].tolist()
    flow = _flow(data)
    legend = [("taggings", GREY)] if flow.any() and count != 1 else []
    legend += [(f"the heaviest, {as_percent(weight)}", ORANGE) for weight in heaviest]
    note = f"{count} taggings" if count > 1 else ""
    figure = make_figure(width, height, title, legend, note, glyph_note, other_glyph_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    axes.set(xlim=(-left, size_of(figure)[0] - left), ylim=(height - top, -top))  # in inches from the first node
    axes.set_axis_off()

    for t, i, j in flow.gt(0.005).nonzero().tolist():
        _draw_line(axes, [t * step, (t + 1) * step], [i * line, j * line], flow[t, i, j].item(), GREY)
    for weight in heaviest:
        path = _tags(tuple(s[0] for s in data.structures))
        used = path.any(1).nonzero()[:, 0].tolist()
        _draw_line(axes, [t * step for t in used], [int(path[t].argmax()) * line for t in used], weight, ORANGE)
    for t, s in torch.cartesian_prod(torch.arange(steps, device="cpu"), torch.arange(states, device="cpu")).tolist():
        p = mean[t, s].item()
        node = Circle((t * step, s * line), RADIUS, facecolor=SHADES(p), edgecolor=GREY, lw=0.6, zorder=3)
        axes.add_patch(node)
        text = axes.text(t * step, s * line, as_decimal(p), ha="center", va="center_baseline", zorder=4)
        text.set(fontsize=8, color="white" if p > READABLE else INK)
    for t, word in enumerate(words):
        axes.text(t * step, line * (states - 1) + RADIUS + 0.25, word, ha="center", color=INK, fontproperties=font)
    for s, tag in enumerate(tags):
        axes.text(-RADIUS - 0.12, s * line, tag, ha="right", va="center_baseline", color=INK, fontproperties=tag_font)
    return figure


def _tags(y: tuple[Tensor, ...]) -> Tensor:
    """Return the tags of the steps, (..., T, S), of structures or of a mean in any form."""
    if len(y) == 2:
        return y[0]
    (edges,) = y
    return torch.cat([edges[..., :1, :, :].sum(-1), edges.sum(-2)], -2)


def _flow(data: PlotData) -> Tensor:
    """Return the weight of each transition, (T − 1, S, S); 0 if unknown."""
    if len(data.weights):
        tags = _tags(data.structures)
        return torch.einsum("k,kti,ktj->tij", data.weights.to(tags), tags[:, :-1], tags[:, 1:])
    transitions = data.mean[-1]
    steps, states = _tags(data.mean).shape
    # A mean of shape (S, S) counts the transitions over all steps.
    return transitions if transitions.ndim == 3 else transitions.new_zeros(steps - 1, states, states)


def _draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], weight: float, color: str) -> None:
    axes.plot(x, y, color=color, lw=0.6 + THICK * weight, solid_capstyle="round", solid_joinstyle="round")
