"""What the demos print: a result table, row by row, and their progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["Table", "percent", "progress"]

T = TypeVar("T")


class Table:
    """Prints a header, and then each added row. The first column is aligned left, all other columns right.

    ``columns`` maps titles to the width of the cells; a title is never cut.

    Examples
    --------
    >>> table = Table({"loss": 10, "accuracy": 0})
    loss        accuracy
    ----------  --------
    >>> table.add("perceptron", percent(0.975))
    perceptron    97.5 %
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        self.widths = [max(width, len(title)) for title, width in columns.items()]
        self.add(*columns)
        self.add(*("-" * width for width in self.widths))

    def add(self, *cells: object) -> None:
        """Print one row."""
        first, *rest = (str(cell) for cell in cells)
        aligned = [first.ljust(self.widths[0]), *(c.rjust(w) for c, w in zip(rest, self.widths[1:], strict=True))]
        print("  ".join(aligned).rstrip(), flush=True)


def percent(share: float) -> str:
    """Format ``share``, between 0 and 1, as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def progress(items: Iterable[T], description: str, unit: str = "it") -> tqdm[T]:
    """Iterate over ``items`` with a bar on a terminal. Elsewhere, as in a log, a line appears every 3 seconds."""
    from tqdm import tqdm

    if sys.stderr.isatty():
        return tqdm(items, description, leave=False, unit=unit)
    lines = "{desc}: {n_fmt} of {total_fmt} in {elapsed}{postfix}\n"
    return tqdm(items, description, leave=False, unit=unit, mininterval=3, delay=3, bar_format=lines)
