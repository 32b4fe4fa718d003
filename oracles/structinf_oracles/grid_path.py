"""Paths through a grid of cells, by moves that never lead back (:class:`GridPath`) or by any moves."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.deferred_checks import check_data_later, skips_checks
from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError

from .common.grids import (
    cell_indicators,
    cells_in_use,
    cells_within,
    check_cells,
    check_grid,
    check_moves,
    nonzero_cells,
    sizes_in_use,
)
from .common.labels import reject_labels
from .common.shortest_paths import Arcs, ShortestPath

__all__ = ["GridPath", "grid_path"]

_NAMED = {"down-right": ((1, 0), (0, 1)), "with-diagonal": ((1, 1), (1, 0), (0, 1))}
_STRAIGHT = ((1, 0), (0, 1), (0, -1), (-1, 0))
_NEIGHBOURS: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {"4-neighbours": _STRAIGHT, "8-neighbours": ((1, 1), *_STRAIGHT, (1, -1), (-1, 1), (-1, -1))}
)


@dataclass(frozen=True)
class GridPath(HypergraphProgram):
    """Paths from cell (0, 0) to cell (h − 1, w − 1) of a grid, by moves down and to the right.

    - Scores θ, shape (..., h, w), any sign: the score of each cell. −inf forbids a cell.
    - Structure y, shape (..., h, w): 1 for each cell on the path, including both ends.
    - Labels, shape (..., h + w − 1, 2): the row and the column of each cell on the path, in order, padded with −1.
    - Instance data ``lengths``, shape (..., 2): the numbers of rows and of columns in use, integers in [1, h] and [1,
      w]. Default: h and w. The path ends in the last cell in use, and all parts of y outside are 0.

    Parameters
    ----------
    moves : {"down-right", "with-diagonal"} or tuple of (di, dj), default "down-right"
        The allowed moves, as numbers of rows and columns, at least 0 and not both 0. Cells skipped by a longer move
        are not on the path. Ties go to the first of the moves in this order, decided from the last cell backwards.
        "down-right" is ((1, 0), (0, 1)), and "with-diagonal" is ((1, 1), (1, 0), (0, 1)).

    Notes
    -----
    The number of paths is C(h + w − 2, h − 1) for "down-right" and the Delannoy number for "with-diagonal".

    Examples
    --------
    >>> import torch
    >>> theta = torch.tensor([[[0.0, 3.0, 0.0], [1.0, 0.0, 2.0]]])
    >>> GridPath().argmax(theta)
    tensor([[[1., 1., 1.],
             [0., 0., 1.]]])
    >>> GridPath(moves="with-diagonal").count(theta)
    [5]
    """

    name: ClassVar[str] = "grid_path"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 2

    moves: str | Sequence[tuple[int, int]] = field(default="down-right", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.moves, str):
            object.__setattr__(self, "moves", check_moves(self.moves, back=False))
        elif self.moves not in _NAMED:
            raise InvalidInputError(
                f"moves must be {' or '.join(map(repr, _NAMED))}, or pairs (di, dj), got {self.moves!r}"
            )

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int, int]) -> Hypergraph:
        graph, (h, w) = HypergraphBuilder(event_shape), event_shape
        cell, reached = graph.nodes(h, w), np.zeros((h, w), np.bool_)
        graph.add(cell[0, 0], part=graph.parts[0, 0])
        reached[0, 0] = True
        for down, right in self._moves:
            if down < h and right < w:
                graph.add(cell[down:, right:], cell[: h - down, : w - right], part=graph.parts[down:, right:])
            # The order of moves does not affect which cells can be reached. So add any number of moves of this kind
            # after all moves of earlier kinds, doubling the step each time.
            while down < h and right < w:
                reached[down:, right:] |= reached[: h - down, : w - right]
                down, right = 2 * down, 2 * right
        goals = np.full((h + 1, w + 1), -1)
        goals[1:, 1:] = np.where(reached, cell, -1)
        return graph.build(goals, prune=True)

    @property
    def _moves(self) -> Sequence[tuple[int, int]]:
        return _NAMED[self.moves] if isinstance(self.moves, str) else self.moves

    def validate(self, theta: Tensor) -> None:
        lengths = self.bound.get("lengths")
        check_grid(self.label(), theta, lengths)
        graph = self.hypergraph(theta)
        if (graph.goals[1:, 1:] >= 0).all():  # the moves lead to every cell
            return
        if lengths is not None and check_data_later(
            (graph.goal_on(lengths.device, lengths, len(theta)) < 0).any(), operator.not_
        ):
            return
        unreached = graph.goal(lengths, len(theta)) < 0
        if unreached.any():
            index = int(np.flatnonzero(unreached)[0])
            h, w = sizes_in_use(self.bound, theta.shape[1:], theta)[index].tolist()
            raise InvalidInputError(
                f"moves: {self._moves} do not lead from cell (0, 0) to the last cell in use, ({h - 1}, {w - 1}), at "
                f"batch index {index}; add moves or change the grid"
            )

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return cells_within(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        sizes = sizes_in_use(self.bound, like.shape[1:], labels)
        used = check_cells(labels, sizes, sum(like.shape[1:]) - 1)
        if skips_checks(labels):
            return cell_indicators(labels, used, like)
        # Comparisons with numbers, since a tensor of the moves would be a copy to the device.
        down, right = labels.diff(dim=1).unbind(2)
        is_move = functools.reduce(operator.or_, ((down == i) & (right == j) for i, j in self._moves))
        for wrong, why in (
            (labels[:, 0] != 0, "the path must start in cell (0, 0)"),
            (used[:, 1:] & ~is_move, f"each move of the path must be one of {self._moves}"),
            (labels.amax(1) != sizes - 1, "the path must end in the last cell in use"),
        ):
            reject_labels(wrong, labels, why, defers=True)
        return cell_indicators(labels, used, like)

    def decode(self, y: Tensor) -> Tensor:
        return nonzero_cells(y, sum(y.shape[1:]) - 1)


@dataclass(frozen=True)
class GridShortestPath(ShortestPath):
    """Simple paths from cell (0, 0) to cell (h − 1, w − 1) of a grid, by moves in any direction.

    The registered name ``grid_path`` creates this oracle if ``moves`` leads up or to the left; see :func:`grid_path`.

    - Scores θ, shape (..., h, w), at most 0: minus the cost of each cell. −inf forbids a cell.
    - Structure y, shape (..., h, w): 1 for each cell on the path, including both ends.
    - Labels, shape (..., L, 2) for any L: the row and the column of each cell on the path, in order, padded with −1.
      Decoded labels have L = h w.
    - Instance data ``lengths``, shape (..., 2): the numbers of rows and of columns in use, integers in [1, h] and [1,
      w]. Default: h and w. The path ends in the last cell in use, and all parts of y outside are 0.

    Parameters
    ----------
    moves : {"4-neighbours", "8-neighbours"} or tuple of (di, dj)
        The allowed moves, as numbers of rows and columns, not both 0. Negative numbers lead up or to the left. Cells
        skipped by a longer move are not on the path.

    Notes
    -----
    ``argmax`` is Dijkstra's algorithm with a binary heap, O(h w log h w), in float64 on CPU threads. CUDA tensors are
    copied once per batch. Ties are broken deterministically, and cycles of cost 0 are never on a path.

    A positive score raises InvalidInputError, as Dijkstra's algorithm requires costs of at least 0, and longest paths
    are NP-hard. Pass, for example, ``-softplus(scores)``. The scores θ − μ of relaxations such as SparseMAP are at
    most 0 as well. For the same reason ``hamming_cost`` counts only the cells of the gold path missing from another
    path.

    The cells of a path do not determine their order: different paths through the same cells are one structure.
    ``decode`` searches for one of these paths by backtracking if cells on the path touch cells other than their
    neighbours on the path.

    References
    ----------
    E. W. Dijkstra, A note on two problems in connexion with graphs (Numerische Mathematik 1, 1959). M. Vlastelica, A.
    Paulus, V. Musil, G. Martius & M. Rolínek, Differentiation of blackbox combinatorial solvers (ICLR 2020), section
    4.1: paths by moves to eight neighbours on maps with cell costs.

    Examples
    --------
    >>> theta = -torch.tensor([[
    ...     [1.0, 9.0, 1.0, 1.0],
    ...     [1.0, 9.0, 1.0, 9.0],
    ...     [1.0, 1.0, 1.0, 1.0],
    ... ]])
    >>> GridShortestPath(moves="4-neighbours").argmax(theta)
    tensor([[[1., 0., 0., 0.],
             [1., 0., 0., 0.],
             [1., 1., 1., 1.]]])
    """

    name: ClassVar[str] = "grid_path"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 2
    alternative_for_any_sign: ClassVar[str] = 'grid_path with moves="down-right" or "with-diagonal"'

    moves: str | Sequence[tuple[int, int]] = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.moves, str):
            object.__setattr__(self, "moves", check_moves(self.moves, back=True))
        elif self.moves not in _NEIGHBOURS:
            raise InvalidInputError(
                f"moves must be {' or '.join(map(repr, _NEIGHBOURS))}, or pairs (di, dj), got {self.moves!r}"
            )

    # -- the graph -----------------------------------------------------------------------------

    @property
    def parts_are_nodes(self) -> bool:
        return True

    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        moves = _NEIGHBOURS[self.moves] if isinstance(self.moves, str) else self.moves
        return _moves_on_grid(*event_shape, moves)

    def ends(self, like: Tensor) -> Tensor:
        rows, columns = sizes_in_use(self.bound, like.shape[1:], like).unbind(1)
        last = (rows - 1) * like.shape[2] + columns - 1
        return torch.stack([torch.zeros_like(last), last], 1)

    def without_missing_parts(self, theta: Tensor) -> Tensor:
        if self.valid_parts(theta) is None:
            return theta
        return theta.masked_fill(~cells_in_use(self.bound["lengths"], theta.shape[1:]), -torch.inf)

    def validate(self, theta: Tensor) -> None:
        check_grid(self.label(), theta, self.bound.get("lengths"))

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return cells_within(self.bound.get("lengths"), theta)

    # -- labels --------------------------------------------------------------------------------

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        _, h, w = like.shape
        used = check_cells(labels, sizes_in_use(self.bound, (h, w), labels), min(max(labels.shape[1], 1), h * w))
        cells = torch.where(used, labels[:, :, 0] * w + labels[:, :, 1], -1)
        return self.from_nodes(cells, used, labels, like)

    def decode(self, y: Tensor) -> Tensor:
        w = y.shape[2]
        cells = self.parts_in_order(y, y.flatten(1).shape[1]).unsqueeze(2)
        return torch.cat([cells.div(w, rounding_mode="floor"), torch.where(cells < 0, -1, cells % w)], 2)


@functools.lru_cache(maxsize=16)
def _moves_on_grid(rows: int, columns: int, moves: tuple[tuple[int, int], ...]) -> Arcs:
    """Return the arcs of all moves from each cell that stay inside the grid."""
    cell = np.arange(rows * columns)
    ahead = np.stack(np.divmod(cell, columns), 1)[:, None] + np.array(moves)
    tail, move = ((ahead >= 0) & (ahead < [rows, columns])).all(2).nonzero()
    head = ahead[tail, move] @ [columns, 1]
    return Arcs.of(tail, head, head, rows * columns)


def grid_path(*, moves: str | Sequence[tuple[int, int]] = "down-right") -> GridPath | GridShortestPath:
    """Return a :class:`GridPath`, or a :class:`GridShortestPath` if a move leads back.

    Parameters
    ----------
    moves : {"down-right", "with-diagonal", "4-neighbours", "8-neighbours"} or tuple of (di, dj), default "down-right"
        The allowed moves, as numbers of rows and columns. With the first two names, or with pairs of numbers of at
        least 0, scores may have any sign. With the other names, or with a negative number in a pair, scores must be
        at most 0: minus the costs of the cells.

    Examples
    --------
    >>> grid_path(moves="with-diagonal")
    GridPath(moves='with-diagonal')
    >>> grid_path(moves="8-neighbours")
    GridShortestPath(moves='8-neighbours')
    """
    if isinstance(moves, str):
        kinds = {**dict.fromkeys(_NAMED, GridPath), **dict.fromkeys(_NEIGHBOURS, GridShortestPath)}
        if moves not in kinds:
            raise InvalidInputError(f"moves must be {' or '.join(map(repr, kinds))}, or pairs (di, dj), got {moves!r}")
        return kinds[moves](moves=moves)
    pairs = check_moves(moves, back=True)
    return (GridShortestPath if min(map(min, pairs)) < 0 else GridPath)(moves=pairs)


grid_path.search_terms = ("grid", "warcraft")  # pyright: ignore[reportFunctionMemberAccess]
