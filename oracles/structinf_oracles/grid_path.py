"""Paths through a grid of cells, by moves that never lead back or by any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
    """Paths from cell (0, 0) to cell (h − 1, w − 1), by moves downwards or to the right.

    θ is (..., h, w), the score of each cell, any sign, and y the 0/1 matrix of the cells on the path, both ends among
    them. −inf forbids a cell.

    Instance data: ``lengths`` (..., 2), integers, the rows and the columns in use: the path ends in the last cell in
    use, and all parts outside are 0. Labels are the path's cells in order, (..., h + w − 1, 2), each a row and a
    column, padded with −1.

    Parameters
    ----------
    moves : {"down-right", "with-diagonal"} or tuple of (di, dj)
        By how many rows and columns a move leads on, none of them negative, and not both 0; cells that it passes over
        are not on the path. Ties go to the move named first, from the last cell backwards.

    Notes
    -----
    The number of paths is that of lattice paths: C(h + w − 2, h − 1) for "down-right", Delannoy's for "with-diagonal".

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
            raise InvalidInputError(f"moves must be {' or '.join(map(repr, _NAMED))}, or pairs, got {self.moves!r}")

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
            # Moves can be reordered, so that those of one kind may follow the others: 0, 1, 2 ... of them, by doubling.
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
        unreached = self.hypergraph(theta).goal(lengths, len(theta)) < 0
        if unreached.any():
            index = int(np.flatnonzero(unreached)[0])
            h, w = sizes_in_use(self.bound, theta.shape[1:], theta)[index].tolist()
            raise InvalidInputError(
                f"moves: {self._moves} do not lead from cell (0, 0) to the last one in use, ({h - 1}, {w - 1}), at "
                f"batch index {index}"
            )

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return cells_within(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        sizes = sizes_in_use(self.bound, like.shape[1:], labels)
        used = check_cells(labels, sizes, sum(like.shape[1:]) - 1)
        steps, moves = labels.diff(dim=1), labels.new_tensor(self._moves)
        without_missing_parts = (steps.unsqueeze(2) == moves).all(3).any(2)
        reject_labels(labels[:, 0] != 0, labels, "the path must start in cell (0, 0)")
        reject_labels(used[:, 1:] & ~without_missing_parts, labels, f"the path must go on by one of {self._moves}")
        reject_labels(labels.amax(1) != sizes - 1, labels, "the path must end in the last cell in use")
        return cell_indicators(labels, used, like)

    def decode(self, y: Tensor) -> Tensor:
        return nonzero_cells(y, sum(y.shape[1:]) - 1)


@dataclass(frozen=True)
class GridShortestPath(ShortestPath):
    """Simple paths from cell (0, 0) to cell (h − 1, w − 1), by moves from cell to cell that may lead back.

    θ is (..., h, w), the score of each cell, 0 or less: minus its cost. y is the 0/1 matrix of the cells on the path,
    both ends among them. −inf forbids a cell. By its registered name, ``grid_path``, it is made with such ``moves``.

    Instance data: ``lengths`` (..., 2), integers, the rows and the columns in use: the path ends in the last cell in
    use, and all parts outside are 0. Labels are the path's cells in order, (..., L, 2) for any L, each a row and a
    column, padded with −1; decoded ones are of h w cells.

    Parameters
    ----------
    moves : {"4-neighbours", "8-neighbours"} or tuple of (di, dj)
        By how many rows and columns a move leads on, negative ones upwards and to the left, not both 0; cells that it
        passes over are not on the path.

    Notes
    -----
    The argmax is Dijkstra's algorithm with a binary heap, O(h w log h w), in float64, on CPU threads; CUDA tensors are
    copied once a batch. Ties are broken the same way every time, and cycles of cost 0 are never on a path.

    A positive potential is an InvalidInputError, as a longest path would have to be found, which is NP-hard; take
    ``-softplus(scores)``, say. Relaxations ask about θ − μ, which is 0 or less as well, and ``hamming_cost`` counts
    the cells of the right path that another one misses, for the same reason.

    Cells alone do not say in which order they are passed: different paths through the same cells are one structure,
    and its labels are one of these paths, which is searched for by trial where cells touch others.

    References
    ----------
    E. W. Dijkstra, A note on two problems in connexion with graphs (Numerische Mathematik 1, 1959). M. Vlastelica, A.
    Paulus, V. Musil, G. Martius & M. Rolínek, Differentiation of blackbox combinatorial solvers (ICLR 2020), section
    4.1: paths by eight neighbours over maps whose cells have costs.

    Examples
    --------
    >>> theta = -torch.tensor([[[1.0, 9.0, 1.0, 1.0], [1.0, 9.0, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0]]])
    >>> GridShortestPath(moves="4-neighbours").argmax(theta)
    tensor([[[1., 0., 0., 0.],
             [1., 0., 0., 0.],
             [1., 1., 1., 1.]]])
    """

    name: ClassVar[str] = "grid_path"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 2
    alternative_for_any_sign: ClassVar[str] = 'moves="down-right" or "with-diagonal", which never lead back'

    moves: str | Sequence[tuple[int, int]] = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.moves, str):
            object.__setattr__(self, "moves", check_moves(self.moves, back=True))
        elif self.moves not in _NEIGHBOURS:
            raise InvalidInputError(
                f"moves must be {' or '.join(map(repr, _NEIGHBOURS))}, or pairs, got {self.moves!r}"
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


@lru_cache(maxsize=16)
def _moves_on_grid(rows: int, columns: int, moves: tuple[tuple[int, int], ...]) -> Arcs:
    """The moves from each cell that stay within the grid."""
    cell = np.arange(rows * columns)
    ahead = np.stack(np.divmod(cell, columns), 1)[:, None] + np.array(moves)
    tail, move = ((ahead >= 0) & (ahead < [rows, columns])).all(2).nonzero()
    head = ahead[tail, move] @ [columns, 1]
    return Arcs.of(tail, head, head, rows * columns)


def grid_path(*, moves: str | Sequence[tuple[int, int]] = "down-right") -> GridPath | GridShortestPath:
    """The oracle of paths through a grid by these ``moves``: a :class:`GridPath`, or a :class:`GridShortestPath`.

    Parameters
    ----------
    moves : {"down-right", "with-diagonal", "4-neighbours", "8-neighbours"} or tuple of (di, dj)
        The first two, and pairs without a negative number, never lead back, and cells have scores of any sign. With
        the others, and pairs that lead upwards or to the left, they have costs: scores of 0 or less.

    Examples
    --------
    >>> grid_path(moves="with-diagonal"), grid_path(moves="8-neighbours")
    (GridPath(moves='with-diagonal'), GridShortestPath(moves='8-neighbours'))
    """
    if isinstance(moves, str):
        kinds = {**dict.fromkeys(_NAMED, GridPath), **dict.fromkeys(_NEIGHBOURS, GridShortestPath)}
        if moves not in kinds:
            raise InvalidInputError(f"moves must be {' or '.join(map(repr, kinds))}, or pairs, got {moves!r}")
        return kinds[moves](moves=moves)
    pairs = check_moves(moves, back=True)
    return (GridShortestPath if min(map(min, pairs)) < 0 else GridPath)(moves=pairs)
