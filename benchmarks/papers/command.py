"""Command lines of the experiments: options, and a report printed and written to a file."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["Report", "run"]


class Report:
    """Markdown, printed line by line as results come in, and optionally written to a file.

    Parameters
    ----------
    path : Path, optional
        The file. Each line rewrites the file, so an interrupted run keeps its results.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines: list[str] = []
        self._widths: list[int] = []

    def line(self, text: str = "") -> None:
        """Add lines of text."""
        print(text, flush=True)
        self._lines.append(text)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("\n".join(self._lines) + "\n", "utf-8")

    def columns(self, widths: Mapping[str, int]) -> None:
        """Begin a table: titles with the widths of the cells."""
        self._widths = [max(width, len(title)) for title, width in widths.items()]
        self.row(*widths)
        self.line("|".join(["", "-" * (self._widths[0] + 2), *("-" * (w + 1) + ":" for w in self._widths[1:]), ""]))

    def row(self, *cells: object) -> None:
        """Add a row to the table. Numbers of several runs are shown as mean and standard deviation."""
        first, *rest = (_shown(cell) for cell in cells)
        aligned = [first.ljust(self._widths[0]), *(c.rjust(w) for c, w in zip(rest, self._widths[1:], strict=True))]
        self.line(f"| {' | '.join(aligned)} |")


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.2f}"
    if isinstance(cell, list):
        return f"{statistics.fmean(cell):.2f}" + (f" ± {statistics.stdev(cell):.2f}" if len(cell) > 1 else "")
    return str(cell)


def run(
    experiment: Callable[..., object],
    sizes: Callable[[bool], Any],
    about: str | None,
    arguments: Sequence[str] | None,
    seeds: int,
    reads: bool | None = True,
) -> int:
    """Parse a command line, call ``experiment(folder, sizes, seeds, report)``, and return the exit status.

    Parameters
    ----------
    experiment : callable
        Takes no folder if ``reads`` is False, and None for an omitted optional folder.
    sizes : callable
        Returns the sizes of the experiment; tiny sizes if its argument is true.
    about : str
        The docstring of the module.
    arguments : sequence of str, optional
        The command line; by default ``sys.argv``.
    seeds : int
        Default number of seeds.
    reads : bool or None
        Whether the experiment reads files in the folder given as first argument. None: the folder is optional.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if reads is not False:
        how_many, about_it = None if reads else "?", "with the files that the README names"
        parser.add_argument("folder", metavar="DATA_FOLDER", type=Path, nargs=how_many, help=about_it)
    parser.add_argument("--quick", action="store_true", help="small sizes and one seed: a trial, in half a minute")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"runs of each method, with seeds 0 to N - 1 ({seeds})")
    parser.add_argument("--threads", type=int, metavar="N", help="of torch and of the compiled loops")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there too, as Markdown")
    options = parser.parse_args(arguments)
    if min(1 if n is None else n for n in (options.seeds, options.threads)) < 1:
        parser.error("--seeds and --threads are numbers of at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    report, start = Report(options.out), time.perf_counter()
    folder = [] if reads is False else [options.folder]
    try:
        experiment(*folder, sizes(options.quick), range(options.seeds or (1 if options.quick else seeds)), report)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.perf_counter() - start
    report.line(f"\n{seconds:.0f} s with {torch.get_num_threads()} threads, torch {torch.__version__}")
    return 0
