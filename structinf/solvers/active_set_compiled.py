"""The active set method's programs in compiled CPU loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels import parallel_rows
from ..kernels.active_set import iteration as kernels
from ..kernels.active_set import sparse_vertices as vertices
from ..oracle import Oracle
from ..parts import Parts
from .active_set import Outcome, Programs
from .coordinates import Objective

__all__ = ["CompiledPrograms"]


class CompiledPrograms(Programs):
    """Programs whose state lies in arrays, with room for so many vertices and non-zeros, that grow.

    The direction's tensors hold the unfinished instances in their first places, so that the oracle
    sees contiguous views; as instances finish, others move up. All other arrays stay in batch order.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        batch, width, room = objective.batch, len(objective.coordinates), 16
        self.support = vertices.Support(
            count=np.zeros(batch, np.int64),
            order=np.tile(np.arange(room), (batch, 1)),
            weight=np.zeros((batch, room)),
            ones=np.empty((batch, room)),
            factor=np.empty((batch, room, room)),
            index=np.empty((batch, room, 0), np.uint32),
            value=np.empty((batch, room, 0)),
            size=np.zeros((batch, room, 2), np.int64),
            score=np.empty((batch, room)),
        )
        self.search = vertices.Search(
            mean=np.zeros((batch, width)),
            touched=np.zeros((batch, width), np.bool_),
            trace=np.empty((batch, width), np.uint32),
            traced=np.zeros(batch, np.int64),
            scale=np.zeros(batch),
            gap=np.full(batch, np.inf),
            objective=np.zeros(batch),
            iterations=np.zeros(batch, np.int64),
            stalled=np.zeros(batch, np.bool_),
            status=np.full(batch, kernels.RUNNING),
        )
        self._need = np.zeros(batch, np.int64)
        self._spare = room - 2  # vertices that each instance may take in before the room is looked at
        self._lay_out()
        self._set_rows(np.arange(batch))

    def _lay_out(self) -> None:
        """Copy θ into one array to keep and, where instances differ, into one to turn into the direction."""
        objective, coordinates, extra = self.objective, self.objective.coordinates, self.objective.coordinates.extra
        tensors = [torch.zeros(1, width, dtype=torch.float64) for width in coordinates.widths[:extra]]
        tensors += [
            t.reshape(t.shape[0], width) for t, width in zip(objective.theta, coordinates.widths[extra:], strict=True)
        ]
        moved = np.array([False] * extra + [m and not extra for m in objective.moved])
        own = [
            t.expand(objective.batch, -1) if m or t.shape[0] > 1 else t[:0] for t, m in zip(tensors, moved, strict=True)
        ]
        theta, theta_start = _pack(tensors)
        direction, direction_start = _pack(own)
        self.layout = vertices.Layout(
            offset=np.array(coordinates.offset),
            theta=theta.numpy(),
            theta_start=theta_start,
            theta_step=np.array([0 if t.shape[0] == 1 else t.shape[1] for t in tensors]),
            direction=direction.numpy(),
            direction_start=np.where(moved, direction_start, -1),
            penalised=objective.penalised.numpy(),
        )
        pieces = zip(direction.split([t.numel() for t in own])[extra:], objective.theta, strict=True)
        self._directions = [p.view(-1, *t.shape[1:]) if p.numel() else t for p, t in pieces]

    # -- rounds ----------------------------------------------------------------------------

    def direction(self, oracle: Oracle) -> Parts:
        if extra := self.objective.coordinates.extra:
            read = self.search.mean[self._rows, : self.objective.coordinates.offset[extra]]
            return self.objective.direction(torch.from_numpy(read), self.rows, oracle)
        return self._direction

    def collect(self, structure: list[Tensor]) -> None:
        self._load(structure)
        self._run(kernels.collect, self.layout, self.support, self.search)

    def settle(self) -> None:
        self._run(kernels.settle, self.layout, self.support, self.search)

    def advance(self, structure: list[Tensor], tolerance: float, last: bool) -> None:
        self._load(structure)
        self._run(kernels.advance, tolerance, last, self.layout, self.support, self.search)
        status = self.search.status[self._rows]
        if status.any():
            self._retire(status)

    def _run(self, kernel: Any, *args: Any) -> None:
        """One kernel over the unfinished instances."""
        room, nonzeros = self.support.index.shape[1:]
        most = room - self._spare
        parallel_rows(kernel, len(self._rows), self._rows, *args, work=len(self._rows) * most * (most + 2 * nonzeros))

    def _load(self, structure: list[Tensor]) -> None:
        if self._spare == 0:
            self._make_room()
        self._spare -= 1
        n, dense = len(self._rows), tuple(s.numpy() for s in structure)
        while True:
            args = dense, self.layout, self.support, self._need
            parallel_rows(vertices.load, n, self._rows, *args, work=n * len(self.objective.coordinates))
            most = int(self._need[:n].max())
            if most <= self.support.index.shape[2]:
                break
            self._widen(most)

    def _retire(self, status: np.ndarray) -> None:
        """Let finished instances go: unfinished ones from the end take their places."""
        if (status == kernels.INVALID).any():
            raise self.objective.invalid_vertex_error(int(self._rows[status == kernels.INVALID].min()))
        staying = np.flatnonzero(status == kernels.RUNNING)
        n = len(staying)
        free, movers = np.flatnonzero(status[:n] != kernels.RUNNING), staying[staying >= n]
        rows = self._rows.copy()
        rows[free] = rows[movers]
        for tensor, theta in zip(self._directions, self.objective.theta, strict=True):
            if tensor is not theta:
                array = tensor.numpy()
                array[free] = array[movers]
        self._set_rows(rows[:n])

    def _set_rows(self, rows: np.ndarray) -> None:
        self._rows, self.rows = rows, torch.from_numpy(rows)
        pairs = zip(self._directions, self.objective.theta, strict=True)
        self._direction = self.objective.coordinates.like([d if d is t else d[: len(rows)] for d, t in pairs])

    # -- room ------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Look how many vertices fit now; if none, double the room."""
        old, room = self.support, self.support.weight.shape[1]
        self._spare = room - 2 - int(old.count[self._rows].max())
        if self._spare:
            return
        self._spare = room
        larger = {}
        for name, array in old._asdict().items():
            if name != "count":
                doubled = (1, 2) if name == "factor" else (1,)
                shape = [n * (1 + (axis in doubled)) for axis, n in enumerate(array.shape)]
                larger[name] = _enlarge(array, shape)
        larger["order"][:, room:] = np.arange(room, 2 * room)
        larger["weight"][:, room:] = 0.0
        self.support = old._replace(**larger)

    def _widen(self, nonzeros: int) -> None:
        """Hold vertices of more non-zeros: those at the back of a slot stay at its back."""
        batch, room, old = self.support.index.shape
        nonzeros = max(nonzeros, min(5 * old // 4, len(self.objective.coordinates)))
        back = np.arange(old) >= old - self.support.size[..., 1:]
        wider = {}
        for name in ("index", "value"):
            array = getattr(self.support, name)
            wider[name] = _enlarge(array, (batch, room, nonzeros))
            wider[name][..., nonzeros - old :][back] = array[back]
        self.support = self.support._replace(**wider)

    # -- results ---------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        support, search = self.support, self.search
        parallel_rows(vertices.finish, len(support.count), support, search, work=search.mean.size + support.weight.size)
        outcome = Outcome(
            mean=torch.from_numpy(search.mean),
            value=torch.from_numpy(search.objective),
            weights=torch.from_numpy(support.weight),
            gap=torch.from_numpy(search.gap),
            converged=torch.from_numpy(search.status == kernels.CONVERGED),
            iterations=torch.from_numpy(search.iterations),
        )
        self._width = search.mean.shape[1]
        del self.objective, self.search, self.layout, self._directions, self._direction
        return outcome

    def structures(self, rank: Tensor) -> Tensor:
        out = torch.zeros(*rank.shape, self._width, dtype=torch.float64)
        parallel_rows(vertices.densify, rank.shape[1], rank.numpy(), self.support, out.numpy(), work=out.numel())
        return out

    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        out = torch.zeros_like(mean_cotangent)
        arrays = mean_cotangent.contiguous().numpy(), weights_cotangent.contiguous().numpy()
        parallel_rows(
            kernels.vjp, len(out), *arrays, self.support, out.numpy(), work=out.numel() * self.support.weight.shape[1]
        )
        return out


def _pack(tensors: Sequence[Tensor]) -> tuple[Tensor, np.ndarray]:
    """All elements, tensor after tensor, and where each tensor starts."""
    return torch.cat([t.reshape(-1) for t in tensors]), np.cumsum([0, *(t.numel() for t in tensors)])[:-1]


def _enlarge(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """``array`` at the start of a larger one, otherwise not initialised."""
    new = np.empty(shape, array.dtype)
    new[tuple(map(slice, array.shape))] = array
    return new
