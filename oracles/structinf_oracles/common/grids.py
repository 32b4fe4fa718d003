"""Grids of cells: which of them an instance uses, and lists of cells as labels, (..., L, 2), padded with −1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths

from .labels import indicators, nonzero_positions, reject_labels

__all__ = [
    "cell_indicators",
    "cells_in_use",
    "cells_within",
    "check_cells",
    "check_grid",
    "check_moves",
    "nonzero_cells",
    "sizes_in_use",
]


def check_grid(name: str, theta: Tensor, lengths: Tensor | None) -> None:
    """InvalidInputError unless θ (B, n, m) has cells, and ``lengths`` are (B, 2), from 1 to n and m."""
    _, rows, columns = theta.shape
    if rows < 1 or columns < 1:
        raise InvalidInputError(f"theta: {name} takes grids of at least one row and one column, got {rows} × {columns}")
    if lengths is None:
        return
    if lengths.shape[1:] != (2,):
        raise InvalidInputError(
            f"lengths of {name} are (..., 2), the rows and the columns in use, got {tuple(lengths.shape)} "
            "with the batch flat"
        )
    _check_sizes(lengths, rows, columns)


def _check_sizes(lengths: Tensor, rows: int, columns: int) -> None:
    check_lengths(lengths[:, 0], 1, rows, f"n = {rows} rows")
    check_lengths(lengths[:, 1], 1, columns, f"m = {columns} columns")


def check_moves(moves: Any, *, back: bool) -> tuple[tuple[int, int], ...]:
    """Different pairs (di, dj), none of them (0, 0), nor one that leads upwards or to the left unless ``back``."""
    try:
        pairs = tuple((down, right) for down, right in moves)
    except (TypeError, ValueError):
        raise InvalidInputError(f"moves: pairs (di, dj) of integers are needed, got {moves!r}") from None
    for pair in pairs:
        if not all(isinstance(step, Integral) and not isinstance(step, bool) for step in pair):
            raise InvalidInputError(f"moves: pairs (di, dj) of integers are needed, got {pair!r}")
        if pair == (0, 0) or (min(pair) < 0 and not back):
            raise InvalidInputError(
                f"moves: {pair} leads nowhere; di or dj must be other than 0"
                if back
                else f"moves: {pair} leads back or nowhere; di and dj must be at least 0, and one of them above, so "
                "that no path comes round"
            )
    if not pairs or len(set(pairs)) < len(pairs):
        raise InvalidInputError(f"moves: one or more different ones are needed, got {moves!r}")
    return tuple((int(down), int(right)) for down, right in pairs)


def sizes_in_use(bound: Mapping[str, Any], shape: Sequence[int], like: Tensor) -> Int[Tensor, "batch 2"]:
    """Rows and columns in use, those bound as ``lengths`` or else ``shape``, for each instance of ``like`` (B, ...)."""
    if "lengths" in bound:
        lengths = bound["lengths"]
        check_instances("lengths", lengths, len(like))
        # Public calls have validated them. Methods that are called directly check: compiled loops index by lengths.
        if lengths.is_cpu and not getattr(bound, "is_validated", False):
            _check_sizes(lengths, *shape)
        return lengths
    return torch.tensor(tuple(shape), device=like.device).expand(len(like), 2)


def cells_within(lengths: Tensor | None, theta: Tensor) -> Bool[Tensor, "rows n m"] | None:
    """The cells of θ (B | 1, n, m) within ``lengths`` (B, 2), those of any instance if all share θ; None for all."""
    if lengths is None or bool((lengths == lengths.new_tensor(theta.shape[1:])).all()):
        return None
    cells = cells_in_use(lengths, theta.shape[1:])
    return cells.any(0, keepdim=True) if len(theta) == 1 else cells


def cells_in_use(lengths: Tensor, shape: Sequence[int]) -> Bool[Tensor, "batch n m"]:
    """The cells of a grid of that ``shape`` within each of the ``lengths`` (B, 2)."""
    row, column = (torch.arange(size, device=lengths.device) for size in shape)
    return (row < lengths[:, :1]).unsqueeze(2) & (column < lengths[:, 1:]).unsqueeze(1)


def nonzero_cells(y: Float[Tensor, "batch n m"], most: int) -> Int[Tensor, "batch most 2"]:
    """The cells of ``y`` that are not 0, row by row; InvalidInputError if there are more than ``most``."""
    columns = y.shape[2]
    positions = nonzero_positions(y.flatten(1), most)
    cells = torch.stack([positions.div(columns, rounding_mode="floor"), positions % columns], 2)
    return torch.where(positions.unsqueeze(2) < 0, -1, cells)


def check_cells(cells: Tensor, sizes: Tensor, most: int) -> Bool[Tensor, "batch most"]:
    """Which of the labels ``cells`` (B, most, 2) are no padding; InvalidInputError if some are outside ``sizes``."""
    if cells.shape[1:] != (most, 2):
        raise InvalidInputError(
            f"labels: a list of cells, (..., {most}, 2), padded with −1, is needed; got {tuple(cells.shape)} "
            "with the batch flat"
        )
    used = (cells != -1).any(2)
    reject_labels(
        used & ((cells < 0) | (cells >= sizes.unsqueeze(1))).any(2), cells, "a cell lies outside the grid in use"
    )
    reject_labels(used[:, 1:] & ~used[:, :-1], cells, "a cell comes after the padding")
    return used


def cell_indicators(cells: Tensor, used: Tensor, like: Tensor) -> Float[Tensor, "batch n m"]:
    """1 at each of the ``cells`` (B, L, 2) in ``used`` (B, L), in the dtype of ``like`` (B | 1, n, m)."""
    _, n, m = like.shape
    return indicators(cells[..., 0] * m + cells[..., 1], used, n * m, like).reshape(len(cells), n, m)
