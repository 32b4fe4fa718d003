"""Grids of cells: the cells in use, and lists of cells as labels, (..., L, 2), padded with −1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from structinf.deferred_checks import skips_checks
from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths, check_lengths_later

from .labels import indicators, nonzero_positions, reject_labels

__all__ = [
    "cell_indicators",
    "cells_in_use",
    "cells_within",
    "check_cells",
    "check_grid",
    "check_grid_shape",
    "check_moves",
    "check_sizes",
    "nonzero_cells",
    "outside",
    "sizes_in_use",
]


def check_grid(name: str, theta: Tensor, lengths: Tensor | None) -> None:
    """Raise InvalidInputError unless θ (B, n, m) has cells, and ``lengths`` are (B, 2), in [1, n] and [1, m]."""
    check_grid_shape(name, theta, lengths)
    if lengths is None or skips_checks(lengths):
        return
    if not check_lengths_later(lengths, 1, *theta.shape[1:]) and bool(outside(lengths, theta.shape[1:]).any()):
        check_sizes(lengths, theta.shape[1:])


def check_grid_shape(name: str, theta: Tensor, lengths: Tensor | None) -> None:
    """Raise InvalidInputError unless θ (B, n, m) has cells, and ``lengths`` are (B, 2)."""
    _, rows, columns = theta.shape
    if rows < 1 or columns < 1:
        raise InvalidInputError(
            f"theta: {name} needs a grid of at least one row and one column, got shape ({rows}, {columns})"
        )
    if lengths is not None and lengths.shape[1:] != (2,):
        raise InvalidInputError(
            f"lengths of {name} must have shape (..., 2), the numbers of rows and of columns in use, got "
            f"{tuple(lengths.shape)} with the batch dimensions flattened"
        )


def outside(lengths: Tensor, shape: Sequence[int]) -> Bool[Tensor, " batch"]:
    """Return which of the ``lengths`` (B, 2) do not lie in [1, n] and [1, m], for a grid of ``shape`` (n, m)."""
    rows, columns = lengths.unbind(1)
    return (rows < 1) | (columns < 1) | (rows > shape[0]) | (columns > shape[1])


def check_sizes(lengths: Tensor, shape: Sequence[int]) -> None:
    """Raise InvalidInputError unless ``lengths`` (B, 2) lie in [1, n] and [1, m], for a grid of ``shape`` (n, m)."""
    check_lengths(lengths[:, 0], 1, shape[0], f"n = {shape[0]} rows", _OF_EMPTY)
    check_lengths(lengths[:, 1], 1, shape[1], f"m = {shape[1]} columns", _OF_EMPTY)


_OF_EMPTY = (
    "a path through a grid has at least one cell, and of the alignments only an alignment of two empty series, with "
    "lengths (0, 0), has no cell"
)


def check_moves(moves: Any, *, back: bool) -> tuple[tuple[int, int], ...]:
    """Return the moves as pairs of int; InvalidInputError unless they are distinct pairs (di, dj) of integers.

    No pair may be (0, 0). Without ``back``, no number may be negative.
    """
    try:
        pairs = tuple((down, right) for down, right in moves)
    except (TypeError, ValueError):
        raise InvalidInputError(f"moves must be pairs (di, dj) of integers, got {moves!r}") from None
    for pair in pairs:
        if not all(isinstance(step, Integral) and not isinstance(step, bool) for step in pair):
            raise InvalidInputError(f"moves must be pairs (di, dj) of integers, got {pair!r}")
        if pair == (0, 0) or (min(pair) < 0 and not back):
            raise InvalidInputError(
                f"moves: {pair} stays in its cell; di or dj must differ from 0"
                if back
                else f"moves: {pair} leads back or stays in its cell; di and dj must be at least 0, and not both 0"
            )
    if not pairs or len(set(pairs)) < len(pairs):
        raise InvalidInputError(f"moves must hold at least one pair, and each pair only once, got {moves!r}")
    return tuple((int(down), int(right)) for down, right in pairs)


def sizes_in_use(bound: Mapping[str, Any], shape: Sequence[int], like: Tensor) -> Int[Tensor, "batch 2"]:
    """Return the rows and columns in use of each instance of ``like``: bound ``lengths``, or else ``shape``."""
    if "lengths" in bound:
        lengths = bound["lengths"]
        check_instances("lengths", lengths, len(like))
        return lengths
    if like.device.type == "cpu":
        return torch.tensor(tuple(shape), device="cpu").expand(len(like), 2)
    # A copy from the CPU would wait for the device.
    return torch.stack([torch.full((len(like),), size, device=like.device) for size in shape], 1)


def cells_within(lengths: Tensor | None, theta: Tensor) -> Bool[Tensor, "rows n m"] | None:
    """Mask the cells of θ (B | 1, n, m) within ``lengths`` (B, 2); None if all cells are, known without a wait.

    If the batch shares θ, a cell counts if any instance uses it.
    """
    if lengths is None or (lengths.is_cpu and bool((lengths == lengths.new_tensor(theta.shape[1:])).all())):
        return None
    cells = cells_in_use(lengths, theta.shape[1:])
    return cells.any(0, keepdim=True) if len(theta) == 1 else cells


def cells_in_use(lengths: Tensor, shape: Sequence[int]) -> Bool[Tensor, "batch n m"]:
    """Mask the cells of a grid of that ``shape`` within each of the ``lengths`` (B, 2)."""
    if uses_triton(lengths):
        from structinf.kernels.padding import triton_masks

        return triton_masks.mask(shape, lengths.device, lengths, 0, 1)
    row, column = (torch.arange(size, device=lengths.device) for size in shape)
    return (row < lengths[:, :1]).unsqueeze(2) & (column < lengths[:, 1:]).unsqueeze(1)


def nonzero_cells(y: Float[Tensor, "batch n m"], most: int) -> Int[Tensor, "batch most 2"]:
    """Return the nonzero cells of ``y``, row by row; InvalidInputError if there are more than ``most``."""
    columns = y.shape[2]
    positions = nonzero_positions(y.flatten(1), most)
    cells = torch.stack([positions.div(columns, rounding_mode="floor"), positions % columns], 2)
    return torch.where(positions.unsqueeze(2) < 0, -1, cells)


def check_cells(cells: Tensor, sizes: Tensor, most: int) -> Bool[Tensor, "batch most"]:
    """Return which of the labels ``cells`` (B, most, 2) are not padding.

    Raises InvalidInputError for cells outside ``sizes``.
    """
    if cells.shape[1:] != (most, 2):
        raise InvalidInputError(
            f"labels must be a list of cells, shape (..., {most}, 2), padded with −1; got {tuple(cells.shape)} "
            "with the batch dimensions flattened"
        )
    used = (cells != -1).any(2)
    reject_labels(
        used & ((cells < 0) | (cells >= sizes.unsqueeze(1))).any(2),
        cells,
        "a cell lies outside the grid in use",
        defers=True,
    )
    reject_labels(used[:, 1:] & ~used[:, :-1], cells, "a cell follows the padding", defers=True)
    return used


def cell_indicators(cells: Tensor, used: Tensor, like: Tensor) -> Float[Tensor, "batch n m"]:
    """Return y with a 1 at each of the used ``cells`` (B, L, 2), in the dtype of ``like`` (B | 1, n, m)."""
    _, n, m = like.shape
    return indicators(cells[..., 0] * m + cells[..., 1], used, n * m, like).reshape(len(cells), n, m)
