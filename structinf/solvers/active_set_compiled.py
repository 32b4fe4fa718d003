"""The active set method's programs in compiled CPU loops."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..kernels import active_set as kernels
from ..kernels import active_set_vertices as vertices
from ..kernels import parallel_rows
from ..oracle import Oracle, Potentials
from .active_set import Outcome, Programs
from .coordinates import Problem

__all__ = ["CompiledPrograms"]


class CompiledPrograms(Programs):
    """Programs whose state lies in arrays, with room for so many vertices and non-zeros, that grow.

    The direction's tensors hold the unfinished instances in their first places, so that the oracle
    sees contiguous views; as instances finish, others move up. The arrays stay in batch order.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        batch, width, room, nonzeros = problem.batch, len(problem.coordinates), 16, 8
        self.rows = torch.arange(batch)
        self.support = vertices.Support(
            count=np.zeros(batch, np.int64),
            order=np.tile(np.arange(room), (batch, 1)),
            weight=np.zeros((batch, room)),
            ones=np.zeros((batch, room)),
            factor=np.zeros((batch, room, room)),
            index=np.zeros((batch, room, nonzeros), np.int32),
            value=np.zeros((batch, room, nonzeros)),
            size=np.zeros((batch, room, 2), np.int64),
            score=np.zeros((batch, room)),
        )
        self.search = vertices.Search(
            mean=np.zeros((batch, width)),
            touched=np.zeros((batch, width), np.bool_),
            trace=np.zeros((batch, width), np.int32),
            traced=np.zeros(batch, np.int64),
            scale=np.zeros(batch),
            gap=np.full(batch, np.inf),
            objective=np.zeros(batch),
            iterations=np.zeros(batch, np.int64),
            stalled=np.zeros(batch, np.bool_),
            status=np.zeros(batch, np.int64),
        )
        self._need = np.zeros(batch, np.int64)
        self._spare = room - 2  # vertices that each instance may take in before the room is looked at
        self._lay_out()

    def _lay_out(self) -> None:
        """Copy θ into flat arrays, once to keep and once, by place, to turn into the direction."""
        problem, coordinates = self.problem, self.problem.coordinates
        extra = coordinates.extra
        blank = torch.zeros(coordinates.offset[extra], dtype=torch.float64)
        theta_start, theta_step = list(coordinates.offset[:extra]), [0] * extra
        direction_start, copies = [-1] * extra, []
        place, length = blank.numel(), 0
        for theta, width, moved in zip(problem.theta, coordinates.widths[extra:], problem.moved, strict=True):
            shared = theta.shape[0] == 1
            theta_start.append(place)
            theta_step.append(0 if shared else width)
            place += theta.numel()
            moves = moved and not extra
            direction_start.append(length if moves else -1)
            if moves or not (shared or extra):
                copies.append(theta.expand(problem.batch, *theta.shape[1:]))
                length += problem.batch * width
            else:
                copies.append(None)
        flat = torch.cat([blank, *(t.reshape(-1) for t in problem.theta)])
        own = [c for c in copies if c is not None]
        direction = torch.cat([blank.new_zeros(0), *(c.reshape(-1) for c in own)])
        self._moving = [
            piece.view(c.shape) for piece, c in zip(direction.split([c.numel() for c in own]), own, strict=True)
        ]
        moving = iter(self._moving)
        # By place where instances differ; else θ itself, shared by all.
        self._directions = [t if c is None else next(moving) for t, c in zip(problem.theta, copies, strict=True)]
        self.layout = vertices.Layout(
            offset=np.array(coordinates.offset),
            theta=flat.numpy(),
            theta_start=np.array(theta_start),
            theta_step=np.array(theta_step),
            direction=direction.numpy(),
            direction_start=np.array(direction_start),
            penalised=problem.penalised.numpy(),
        )

    # -- rounds ----------------------------------------------------------------------------

    def direction(self, oracle: Oracle) -> Potentials:
        coordinates, n = self.problem.coordinates, len(self.rows)
        if coordinates.extra:
            read = torch.from_numpy(self.search.mean[self.rows.numpy(), : coordinates.offset[coordinates.extra]])
            return self.problem.direction(read, self.rows, oracle)
        return coordinates.like([d if d.shape[0] == 1 else d[:n] for d in self._directions])

    def collect(self, structure: list[Tensor]) -> None:
        self._load(structure)
        self._run(kernels.collect, self.layout, self.support, self.search)

    def settle(self) -> None:
        self._run(kernels.settle, self.layout, self.support, self.search)

    def advance(self, structure: list[Tensor], tolerance: float, last: bool) -> None:
        self._load(structure)
        self._run(kernels.advance, tolerance, last, self.layout, self.support, self.search)
        status = self.search.status[self.rows.numpy()]
        if status.any():
            self._retire(status)

    def _run(self, kernel, *args) -> None:
        """One kernel over the unfinished instances."""
        room, nonzeros = self.support.index.shape[1:]
        work = len(self.rows) * (room - self._spare) * (2 * nonzeros + room - self._spare)
        parallel_rows(kernel, len(self.rows), self.rows.numpy(), *args, work=work)

    def _load(self, structure: list[Tensor]) -> None:
        if self._spare == 0:
            self._make_room()
        self._spare -= 1
        n, rows, dense = len(self.rows), self.rows.numpy(), tuple(s.numpy() for s in structure)
        work = n * len(self.problem.coordinates)
        parallel_rows(vertices.load, n, rows, dense, self.layout, self.support, self._need, work=work)
        most = int(self._need[:n].max())
        if most > self.support.index.shape[2]:
            self._widen(most)
            parallel_rows(vertices.load, n, rows, dense, self.layout, self.support, self._need, work=work)

    def _retire(self, status: np.ndarray) -> None:
        """Let finished instances go: unfinished ones from the end take their places."""
        rows = self.rows.numpy()
        if (status == kernels.INVALID).any():
            raise self.problem.reject(int(rows[status == kernels.INVALID].min()))
        staying = np.flatnonzero(status == kernels.RUNNING)
        n = len(staying)
        free, movers = np.flatnonzero(status[:n] != kernels.RUNNING), staying[staying >= n]
        rows = rows.copy()
        rows[free] = rows[movers]
        for tensor in self._moving:
            tensor[torch.from_numpy(free)] = tensor[torch.from_numpy(movers)]
        self.rows = torch.from_numpy(rows[:n])

    # -- room ------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Look how many vertices fit now; if none, double the room."""
        old, room = self.support, self.support.weight.shape[1]
        self._spare = room - 2 - int(old.count[self.rows.numpy()].max())
        if self._spare:
            return
        self._spare += room
        pads = {"order": [room], "weight": [room], "ones": [room], "factor": [room, room], "score": [room]}
        pads |= {"index": [room, 0], "value": [room, 0], "size": [room, 0]}
        new = {
            name: np.pad(getattr(old, name), [(0, 0), *((0, pad) for pad in widths)]) for name, widths in pads.items()
        }
        new["order"][:, room:] = np.arange(room, 2 * room)
        self.support = old._replace(**new)

    def _widen(self, nonzeros: int) -> None:
        """Hold vertices of more non-zeros: those at the back of a slot stay at its back."""
        old = self.support.index.shape[2]
        nonzeros = max(nonzeros, min(3 * old // 2, len(self.problem.coordinates)))
        back = np.arange(old) >= old - self.support.size[..., 1:]
        index, value = (
            np.zeros((*back.shape[:2], nonzeros), a.dtype) for a in (self.support.index, self.support.value)
        )
        for new, array in ((index, self.support.index), (value, self.support.value)):
            new[..., :old] = array
            new[..., nonzeros - old :][back] = array[back]
        self.support = self.support._replace(index=index, value=value)

    # -- results ---------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        support, search = self.support, self.search
        parallel_rows(vertices.finish, self.problem.batch, support, search)
        most = int(support.count.max(initial=0))
        used = np.arange(most) < support.count[:, None]
        outcome = Outcome(
            mean=torch.from_numpy(search.mean),
            value=torch.from_numpy(search.objective),
            weights=torch.from_numpy(np.where(used, support.weight[:, :most], 0.0)),
            gap=torch.from_numpy(search.gap),
            converged=torch.from_numpy(search.status == kernels.CONVERGED),
            iterations=torch.from_numpy(search.iterations),
        )
        del self.search, self.layout, self._directions, self._moving  # the support alone is needed from now on
        return outcome

    def structures(self, rank: Tensor) -> Tensor:
        out = torch.zeros(*rank.shape, len(self.problem.coordinates), dtype=torch.float64)
        parallel_rows(vertices.densify, self.problem.batch, rank.numpy(), self.support, out.numpy(), work=out.numel())
        return out

    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        out = torch.zeros_like(mean_cotangent)
        arrays = mean_cotangent.contiguous().numpy(), weights_cotangent.contiguous().numpy()
        parallel_rows(kernels.vjp, self.problem.batch, *arrays, self.support, out.numpy())
        return out
