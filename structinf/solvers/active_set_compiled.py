"""The active-set method in compiled CPU loops."""

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
from .active_set_backend import ActiveSetBackend, BackendResult
from .mean_problem import MeanProblem
from .sparse_vectors import SparseVectors

__all__ = ["CompiledBackend"]


class CompiledBackend(ActiveSetBackend):
    """Programs in preallocated arrays, enlarged when vertices or non-zeros no longer fit.

    The tensors of the objective's gradient hold the unfinished instances in their first rows, so that the oracle
    gets contiguous views. When instances finish, other unfinished instances move into their rows. All other arrays
    stay in batch order.

    Parameters
    ----------
    problem : MeanProblem
        The oracle with the scores.
    support : Support, optional
        The supports of solutions for other scores to start from, which the backend takes over.
    """

    def __init__(self, problem: MeanProblem, support: vertices.Support | None = None) -> None:
        self.problem = problem
        batch, width, capacity = problem.batch, len(problem.flattening), 32
        self._width = width
        self.support = support or vertices.Support(
            count=np.zeros(batch, np.int64),
            order=np.tile(np.arange(capacity), (batch, 1)),
            weight=np.zeros((batch, capacity)),
            ones=np.empty((batch, capacity)),
            factor=np.empty((batch, capacity, capacity)),
            index=np.empty((batch, capacity, 0), np.uint32),
            value=np.empty((batch, capacity, 0)),
            size=np.zeros((batch, capacity, 2), np.int64),
            score=np.empty((batch, capacity)),
        )
        self.state = vertices.SearchState(
            mean=np.zeros((batch, width)),
            seen=np.zeros((batch, width), np.bool_),
            seen_coordinates=np.empty((batch, width), np.uint32),
            seen_count=np.zeros(batch, np.int64),
            scale=np.zeros(batch),
            size=np.zeros(batch),
            gap=np.full(batch, np.inf),
            objective=np.zeros(batch),
            iterations=np.zeros(batch, np.int64),
            stalled=np.zeros(batch, np.bool_),
            status=np.full(batch, kernels.RUNNING),
        )
        self._need = np.zeros(batch, np.int64)
        self._copy_theta()
        self._start(has_solution=support is not None)

    def _start(self, has_solution: bool) -> None:
        """Make all instances unfinished; supports that they have are of a solution for other scores."""
        # the vertices that each instance may add before the capacity is checked again
        self._spare = self.support.weight.shape[1] - 2 - int(self.support.count.max(initial=0))
        self._set_unfinished(np.arange(self.problem.batch))
        if has_solution:
            self._run(kernels.solve_starting_vertices, True, self.layout, self.support, self.state)

    def restart(self, theta: Sequence[Tensor]) -> None:
        """Replace the scores by others of the same shapes, and start from the supports."""
        for k, (old, new) in enumerate(zip(self.problem.theta, theta, strict=True)):
            self._scores[k].copy_(new)
            if self._directions[k] is old:
                self._directions[k] = new
            else:
                self._directions[k].copy_(new)
        self.problem.theta = tuple(theta)
        state = self.state
        state.scale.fill(0.0)
        state.size.fill(0.0)
        state.gap.fill(np.inf)
        state.stalled.fill(False)
        state.status.fill(kernels.RUNNING)
        self._start(has_solution=True)

    def _copy_theta(self) -> None:
        """Copy θ into a constant array, and penalised or unshared tensors also into an array for the gradient."""
        problem, flattening, extra = self.problem, self.problem.flattening, self.problem.flattening.extra
        tensors = [torch.zeros(1, width, dtype=torch.float64, device="cpu") for width in flattening.widths[:extra]]
        tensors += [
            t.reshape(t.shape[0], width) for t, width in zip(problem.theta, flattening.widths[extra:], strict=True)
        ]
        penalised = np.array([False] * extra + [p and not extra for p in problem.tensor_is_penalised])
        changing = [
            t.expand(problem.batch, -1) if p or t.shape[0] > 1 else t[:0]
            for t, p in zip(tensors, penalised, strict=True)
        ]
        theta, theta_start = _pack(tensors)
        direction, direction_start = _pack(changing)
        self.layout = vertices.Layout(
            offset=np.array(flattening.offset),
            theta=theta.numpy(),
            theta_start=theta_start,
            theta_step=np.array([0 if t.shape[0] == 1 else t.shape[1] for t in tensors]),
            direction=direction.numpy(),
            direction_start=np.where(penalised, direction_start, -1),
            penalised=problem.penalised.numpy(),
        )
        pieces = direction.split([t.numel() for t in changing])
        # A tensor that changes may have no coordinates, such as the transitions of sequences of length 1.
        self._directions = [
            p.view(len(c), *t.shape[1:]) if len(c) else t
            for p, c, t in zip(pieces[extra:], changing[extra:], problem.theta, strict=True)
        ]
        own = zip(theta.split([t.numel() for t in tensors])[extra:], problem.theta, strict=True)
        self._scores = [p.view(t.shape) for p, t in own]

    # -- rounds ----------------------------------------------------------------------------

    def objective_gradient(self, oracle: Oracle) -> Parts:
        if extra := self.problem.flattening.extra:
            read = self.state.mean[self._unfinished, : self.problem.flattening.offset[extra]]
            return self.problem.gradient_through_readout(torch.from_numpy(read), self.unfinished, oracle)
        return self._direction

    def add_starting_structure(self, structure: list[Tensor]) -> None:
        self._load(structure)
        self._run(kernels.add_starting_vertex, self.layout, self.support, self.state)

    def solve_starting_structures(self) -> None:
        self._run(kernels.solve_starting_vertices, False, self.layout, self.support, self.state)

    def add_and_solve(self, structure: list[Tensor], tolerance: float, accuracy: float, last: bool) -> None:
        self._load(structure)
        limits = float(tolerance), float(accuracy)
        self._run(kernels.add_and_solve, *limits, last, self.layout, self.support, self.state)
        status = self.state.status[self._unfinished]
        if status.any():
            self._remove_finished(status)

    def _run(self, kernel: Any, *args: Any) -> None:
        """Run a kernel over the unfinished instances."""
        capacity, nonzeros = self.support.index.shape[1:]
        most, n = capacity - self._spare, len(self._unfinished)
        parallel_rows(kernel, n, self._unfinished, *args, work=n * most * (most + 2 * nonzeros))

    def _load(self, structure: list[Tensor]) -> None:
        if self._spare == 0:
            self._grow_capacity()
        self._spare -= 1
        n, dense = len(self._unfinished), tuple(s.numpy() for s in structure)
        while True:
            args = dense, self.layout, self.support, self._need
            parallel_rows(vertices.load_vertices, n, self._unfinished, *args, work=n * len(self.problem.flattening))
            most = int(self._need[:n].max())
            if most <= self.support.index.shape[2]:
                break
            self._grow_nonzeros(most)

    def _remove_finished(self, status: np.ndarray) -> None:
        """Remove finished instances, and move the last unfinished instances into their rows."""
        if (status == kernels.INVALID).any():
            raise self.problem.infinite_score_error(int(self._unfinished[status == kernels.INVALID].min()))
        staying = np.flatnonzero(status == kernels.RUNNING)
        n = len(staying)
        vacated, movers = np.flatnonzero(status[:n] != kernels.RUNNING), staying[staying >= n]
        rows = self._unfinished.copy()
        rows[vacated] = rows[movers]
        for tensor, theta in zip(self._directions, self.problem.theta, strict=True):
            if tensor is not theta:
                array = tensor.numpy()
                array[vacated] = array[movers]
        self._set_unfinished(rows[:n])

    def _set_unfinished(self, rows: np.ndarray) -> None:
        self._unfinished, self.unfinished = rows, torch.from_numpy(rows)
        pairs = zip(self._directions, self.problem.theta, strict=True)
        self._direction = self.problem.flattening.as_parts([d if d is t else d[: len(rows)] for d, t in pairs])

    # -- capacity ------------------------------------------------------------------------------

    def _grow_capacity(self) -> None:
        """Compute how many more vertices fit; if none, double the capacity."""
        old, capacity = self.support, self.support.weight.shape[1]
        self._spare = capacity - 2 - int(old.count[self._unfinished].max())
        if self._spare:
            return
        self._spare = capacity
        larger = {}
        for name, array in old._asdict().items():
            if name != "count":
                doubled = (1, 2) if name == "factor" else (1,)
                shape = [n * (1 + (axis in doubled)) for axis, n in enumerate(array.shape)]
                larger[name] = _enlarge(array, shape)
        larger["order"][:, capacity:] = np.arange(capacity, 2 * capacity)
        larger["weight"][:, capacity:] = 0.0
        self.support = old._replace(**larger)

    def _grow_nonzeros(self, nonzeros: int) -> None:
        """Make room for vertices with ``nonzeros`` non-zeros; entries at the end of a slot stay at its end."""
        batch, capacity, old = self.support.index.shape
        nonzeros = max(nonzeros, min(5 * old // 4, len(self.problem.flattening)))
        back = np.arange(old) >= old - self.support.size[..., 1:]
        wider = {}
        for name in ("index", "value"):
            array = getattr(self.support, name)
            wider[name] = _enlarge(array, (batch, capacity, nonzeros))
            wider[name][..., nonzeros - old :][back] = array[back]
        self.support = self.support._replace(**wider)

    # -- results ---------------------------------------------------------------------------

    def result(self) -> BackendResult:
        support, state = self.support, self.state
        if not self.layout.penalised.all():
            work = state.mean.size + support.weight.size
            parallel_rows(vertices.add_unpenalised, len(support.count), support, state, work=work)
        result = BackendResult(
            mean=torch.from_numpy(state.mean),
            value=torch.from_numpy(state.objective),
            weights=torch.from_numpy(support.weight),
            gap=torch.from_numpy(state.gap),
            converged=torch.from_numpy(state.status == kernels.CONVERGED),
            iterations=torch.from_numpy(state.iterations),
        )
        del self.problem, self.state, self.layout, self._directions, self._direction, self._scores
        return result

    def take_support(self, instances: Tensor) -> vertices.Support:
        """Return the supports of ``instances``; the backend is invalid afterwards."""
        rows = instances.numpy()
        if np.array_equal(rows, np.arange(len(self.support.count))):
            return self.support
        return vertices.Support(*(array[rows] for array in self.support))

    def current_mean(self) -> Tensor:
        """Return the penalised coordinates of the means between rounds, with 0 for the others, (B, coordinates)."""
        return torch.from_numpy(self.state.mean)

    def current_support(self, instances: Tensor, width: int) -> tuple[Tensor, Tensor, SparseVectors]:
        """Return the supports of R ``instances`` between rounds, structures in descending order of weight.

        The first ``width`` coordinates must be the penalised ones.

        Returns
        -------
        weights : (R, K) Tensor
            The weights, 0 beyond the support.
        penalised : (R, K, width) Tensor
            The penalised coordinates of the structures.
        others : SparseVectors (R, K, coordinates − width)
            The other coordinates.
        """
        support = self.support
        weights, slots = torch.from_numpy(support.weight)[instances].sort(dim=1, descending=True, stable=True)
        used = int((weights > 0).sum(1).max()) if len(weights) else 0
        weights, slots, rows = weights[:, :used], slots[:, :used], instances[:, None]
        index, value, size = (
            torch.from_numpy(t)[rows, slots] for t in (support.index.view(np.int32), support.value, support.size)
        )
        size = size * (weights > 0)[..., None]
        front, back = (int(n) for n in size.amax((0, 1))) if size.numel() else (0, 0)
        held = index.shape[2]
        place = torch.arange(held, device="cpu")
        first = torch.where(place[:front] < size[..., :1], value[..., :front], 0.0)
        penalised = torch.zeros(*weights.shape, width, dtype=torch.float64, device="cpu")
        penalised.scatter_add_(2, index[..., :front].long() * (first != 0), first)
        last = torch.where(place[held - back :] >= held - size[..., 1:], value[..., held - back :], 0.0)
        index = (index[..., held - back :].long() - width) * (last != 0)
        return weights, penalised, SparseVectors(index, last, self._width - width)

    def structures(self, slots: Tensor) -> Tensor:
        out = torch.zeros(*slots.shape, self._width, dtype=torch.float64, device="cpu")
        parallel_rows(vertices.write_dense, slots.shape[1], slots.numpy(), self.support, out.numpy(), work=out.numel())
        return out

    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        out = torch.zeros_like(mean_cotangent)
        arrays = mean_cotangent.contiguous().numpy(), weights_cotangent.contiguous().numpy()
        parallel_rows(
            kernels.vjp, len(out), *arrays, self.support, out.numpy(), work=out.numel() * self.support.weight.shape[1]
        )
        return out


def _pack(tensors: Sequence[Tensor]) -> tuple[Tensor, np.ndarray]:
    """Return all elements as one vector, tensor after tensor, and the start of each tensor."""
    return torch.cat([t.reshape(-1) for t in tensors]), np.cumsum([0, *(t.numel() for t in tensors)])[:-1]


def _enlarge(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Copy ``array`` to the start of a larger array whose other entries are uninitialised."""
    new = np.empty(shape, array.dtype)
    new[tuple(map(slice, array.shape))] = array
    return new
