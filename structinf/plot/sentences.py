"""The words of a sentence in a row, below each tree over the words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from .style import INK, add_axes, size_of, write_weight
from .text import check_count, prepare_text, text_width

__all__ = ["MARGIN", "Sentence"]

MARGIN = 0.75  # inches, to the left of the first word


class Sentence(NamedTuple):
    """The words, the centre of each word, and the right end of the last word, in inches from the left of the first
    word.
    """

    words: list[str]
    font: FontProperties
    glyph_note: str
    centres: list[float]
    right: float

    @classmethod
    def of(cls, words: Sequence[str], count: int) -> Sentence:
        """Measure the words; raise InvalidInputError unless there are ``count`` words."""
        check_count("words", len(words), count, "words", padded=True)
        typed, font, glyph_note = prepare_text(words)
        centres, right = [], 0.0
        for word in typed:
            size = max(text_width(word, font), 0.35)
            centres.append(right + size / 2)
            right += size + 0.22
        return cls(typed, font, glyph_note, centres, right)

    def draw(self, figure: Figure, down: float, height: float, weight: float) -> Axes:
        """Draw the words at height 0 and the weight of a tree to their left; return the axes, in inches."""
        width = size_of(figure)[0]
        axes = add_axes(figure, 0, down, width, height)
        axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(-0.25, height - 0.25))
        axes.set_axis_off()
        write_weight(axes, 0.2 - MARGIN, -0.05, weight)
        for word, x in zip(self.words, self.centres, strict=True):
            axes.text(x, -0.05, word, ha="center", color=INK, fontproperties=self.font)
        return axes
