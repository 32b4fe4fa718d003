"""Paths through a grid of cells by moves in all directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError

from .grid_form import cells_in_use, check_cells, check_grid, check_moves, inside, sizes_in_use
from .route_form import Arcs, ShortestPath

__all__ = ["NEIGHBOURS", "NeighbourPath"]

_STRAIGHT = ((1, 0), (0, 1), (0, -1), (-1, 0))
NEIGHBOURS: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {"4-neighbours": _STRAIGHT, "8-neighbours": ((1, 1), *_STRAIGHT, (1, -1), (-1, 1), (-1, -1))}
)


@dataclass(frozen=True)
class NeighbourPath(ShortestPath):
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
    >>> NeighbourPath(moves="4-neighbours").argmax(theta)
    tensor([[[1., 0., 0., 0.],
             [1., 0., 0., 0.],
             [1., 1., 1., 1.]]])
    """

    name: ClassVar[str] = "grid_path"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 2
    sign_advice: ClassVar[str] = 'moves="down-right" or "with-diagonal", which never lead back'

    moves: str | Sequence[tuple[int, int]] = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.moves, str):
            object.__setattr__(self, "moves", check_moves(self.moves, back=True))
        elif self.moves not in NEIGHBOURS:
            raise InvalidInputError(f"moves must be {' or '.join(map(repr, NEIGHBOURS))}, or pairs, got {self.moves!r}")

    # -- the graph -----------------------------------------------------------------------------

    @property
    def on_nodes(self) -> bool:
        return True

    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        moves = NEIGHBOURS[self.moves] if isinstance(self.moves, str) else self.moves
        return _grid(*event_shape, moves)

    def ends(self, like: Tensor) -> Tensor:
        rows, columns = sizes_in_use(self.bound, like.shape[1:], like).unbind(1)
        last = (rows - 1) * like.shape[2] + columns - 1
        return torch.stack([torch.zeros_like(last), last], 1)

    def allowed(self, theta: Tensor) -> Tensor:
        if self.valid_parts(theta) is None:
            return theta
        return theta.masked_fill(~cells_in_use(self.bound["lengths"], theta.shape[1:]), -torch.inf)

    def validate(self, theta: Tensor) -> None:
        check_grid(self.label(), theta, self.bound.get("lengths"))

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return inside(self.bound.get("lengths"), theta)

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
def _grid(rows: int, columns: int, moves: tuple[tuple[int, int], ...]) -> Arcs:
    """The moves from each cell that stay within the grid."""
    cell = np.arange(rows * columns)
    ahead = np.stack(np.divmod(cell, columns), 1)[:, None] + np.array(moves)
    tail, move = ((ahead >= 0) & (ahead < [rows, columns])).all(2).nonzero()
    head = ahead[tail, move] @ [columns, 1]
    return Arcs.of(tail, head, head, rows * columns)
