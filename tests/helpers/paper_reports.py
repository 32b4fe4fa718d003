"""The data that the papers' experiments read, and what their reports say."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("STRUCTINF_DATA", Path(__file__).parent.parent.parent.parent / "shared" / "data"))


def folder(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"there is no {DATA / name}; set STRUCTINF_DATA to the folder that holds {name}")
    return DATA / name


def tables(path: Path) -> list[list[list[str]]]:
    """Rows of cells of each table in a report, without the titles."""
    blocks = itertools.groupby(path.read_text("utf-8").splitlines(), lambda line: line.startswith("|"))
    rows = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        for is_table, lines in blocks
        if is_table
    ]
    return [table[2:] for table in rows]


def number(cell: str) -> float:
    """The mean in a cell."""
    return float(cell.split(" ")[0])
