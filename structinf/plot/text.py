"""Texts of pictures: checks of their number, fonts with the required letters, and widths."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import TextPath

from ..errors import InvalidInputError

__all__ = ["check_count", "names_or_numbers", "prepare_text", "text_width"]


def names_or_numbers(
    argument: str, given: Sequence[str] | None, count: int, what: str, *, padded: bool = False
) -> list[str]:
    """Return the given names, or numbers from 1; raise InvalidInputError unless there are ``count`` names."""
    if given is None:
        return [str(i + 1) for i in range(count)]
    check_count(argument, len(given), count, what, padded=padded)
    return [str(name) for name in given]


def check_count(
    argument: str, given: int, count: int, what: str, *, padded: bool = False, of: str = "mean of the solution"
) -> None:
    """Raise InvalidInputError if an argument has more or fewer entries than the mean. A ``padded`` mean adds a hint."""
    if given != count:
        raise InvalidInputError(
            f"{argument} must have {count} entries, one for each of the {what} in the {of}, got {given}"
            + ("; cut the padding off theta before the call of infer" if padded and given < count else "")
        )


def text_width(word: str, font: FontProperties) -> float:
    """Return the width of a word in inches."""
    return TextPath((0, 0), word, prop=font).get_extents().width / 72 if word.strip() else 0.0


def prepare_text(words: Sequence[str], size: float = 10) -> tuple[list[str], FontProperties, str]:
    """Return the words with ``$`` escaped, a font, and a note if the font lacks letters, which become ▯.

    The font is the default of matplotlib, or else an installed font with all letters.
    """
    letters = {ord(letter) for word in words for letter in word}
    default = fontManager.findfont(FontProperties())
    regular = (font for font in fontManager.ttflist if font.weight == 400 and font.style == "normal")
    # "Last Resort" has a placeholder for every letter there is.
    files = [default, *(font.fname for font in regular if not font.name.startswith("Last Resort"))]
    fonts_with_letters = (file for file in files if letters <= get_font(file).get_charmap().keys())
    file = next(fonts_with_letters, default)
    missing = letters - get_font(file).get_charmap().keys()
    escapes = {ord("$"): r"\$", **dict.fromkeys(missing, "▯")}
    note = "▯ no font for this letter" if missing else ""
    return [word.translate(escapes) for word in words], FontProperties(fname=file, size=size), note
