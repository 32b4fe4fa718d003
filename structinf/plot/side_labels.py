"""Labels along a side of a picture: words, or a series of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from .style import INK
from .text import check_count, prepare_text, text_width

__all__ = ["Items", "SideLabels", "draw_series"]

Items: TypeAlias = Sequence[str] | Sequence[float] | Tensor


class SideLabels(NamedTuple):
    """Names with their font and the width of the widest name in inches, or a series (n,) or (n, d), or neither."""

    names: list[str]
    font: FontProperties
    glyph_note: str
    widest: float
    series: Tensor | None

    @classmethod
    def of(cls, argument: str, items: Items | None, count: int, what: str) -> SideLabels:
        """Read ``items``; raise InvalidInputError unless there are ``count`` items, or None."""
        words = [] if items is None else [item for item in items if isinstance(item, str)]
        names, font, glyph_note = prepare_text(words, 9)
        widest = max((text_width(name, font) for name in names), default=0.0)
        if items is None:
            return cls(names, font, glyph_note, widest, None)
        check_count(argument, len(items), count, what, padded=True)
        series = None if words else as_tensor(items).detach().cpu()
        if series is not None and series.ndim not in (1, 2):
            raise InvalidInputError(f"{argument} must have shape ({count},) or ({count}, d), got {tuple(series.shape)}")
        return cls(names, font, glyph_note, widest, series)


def draw_series(axes: Axes, series: Tensor, *, down: bool = False) -> None:
    """Draw a series above a picture, or along the left side with large values far from the picture."""
    n = len(series)
    if down:
        axes.plot((-series).numpy(), range(n), color=INK, lw=1)
        axes.set_ylim(n - 0.5, -0.5)
    else:
        axes.plot(range(n), series.numpy(), color=INK, lw=1)
        axes.set_xlim(-0.5, n - 0.5)
    axes.set_axis_off()
