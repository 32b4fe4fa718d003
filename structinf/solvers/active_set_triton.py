"""The active-set method on a GPU: one Triton launch for the programs of a round, and one read of the device."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..deferred_checks import checks_for
from ..errors import renumber_instances
from ..kernels.active_set.tolerances import DEPENDENT, ROUNDING, VANISHING
from ..kernels.gpu import launch
from ..oracle import Oracle
from ..parts import Parts
from .active_set_torch import TorchBackend
from .argmax import best_structure_of_any_score, check_finite_structures
from .mean_problem import MeanProblem

__all__ = ["TritonBackend"]

_LARGEST_TILE = 2048
"""Numbers of a block of a matrix in the registers of a program."""


class TritonBackend(TorchBackend):
    """The programs of :class:`TorchBackend`, with dense vertices, solved by `kernels.active_set.triton_iteration`.

    A round makes one read of the device: the status and the number of slots in use of each instance, with the checks of
    the oracle. Finished instances stay in the batch of the oracle until half of it is finished.

    Parameters
    ----------
    problem : MeanProblem
        The oracle with the scores.
    """

    def __init__(self, problem: MeanProblem) -> None:
        super().__init__(problem)
        batch, capacity = self.used.shape
        self.vertices = self.mean.new_zeros(batch, capacity, self._width)
        self._limits = self.mean.new_zeros(2)
        self._tolerances: tuple[float, float] | None = None
        # The gradient of the objective at μ, for the unfinished instances; None before it is computed.
        self._direction: Tensor | None = None
        self._checks = checks_for(self.theta)
        self._answer: tuple[Oracle, Parts] | None = None

    def best_structures(self, oracle: Oracle) -> Parts:
        # The checks of the oracle wait for the read of the round, which also finds structures that are not finite.
        with contextlib.nullcontext() if self._checks is None else self._checks.collecting():
            y = best_structure_of_any_score(oracle, self.objective_gradient(oracle))
        self._answer = oracle, y
        return y

    def objective_gradient(self, oracle: Oracle) -> Parts:
        if self.problem.flattening.extra or self._direction is None:
            return super().objective_gradient(oracle)
        return self._as_gradient(self._direction)

    def add_and_solve(self, structure: list[Tensor], tolerance: float, accuracy: float, last: bool) -> None:
        from ..kernels.active_set.triton_iteration import INVALID, REPORTED, RUNNING, add_and_solve

        if self._tolerances != (tolerance, accuracy):
            self._tolerances = tolerance, accuracy
            self._limits[0].fill_(max(tolerance, ROUNDING))
            self._limits[1].fill_(0.5 * accuracy**2)
        if self._spare == 0:
            self._double_capacity()
        self._spare -= 1
        slots = self.used.shape[1]
        rows = max(1, min(slots, _LARGEST_TILE // slots))
        penalised = self.penalised.contiguous()
        used, stalled = self.used.view(torch.uint8), self.stalled.view(torch.uint8)
        scratch = torch.empty_like(self.weight)
        fresh = structure[0].contiguous() if len(structure) == 1 else torch.cat(structure, 1)
        direction, report = torch.empty_like(fresh), fresh.new_empty(len(fresh))
        arrays = (
            self.unfinished, fresh, self.theta, penalised, self.mean, self.vertices, used,
            self.weight, self.score, self.matrix, self.inverse, self.scale, self.size, self.gap, self.objective,
            self.iterations, self.status, stalled, scratch, direction, report,
        )  # fmt: skip
        launch(
            add_and_solve, (len(self.unfinished),), *arrays, self._width, 0 if len(penalised) == 1 else self._width,
            self._limits, self._limits[1:], warps=4, LAST=last, SLOTS=slots, ROWS=rows,
            WIDTH=max(1, _LARGEST_TILE // slots), DEPENDENT=DEPENDENT, ROUNDING=ROUNDING, VANISHING=VANISHING,
        )  # fmt: skip
        self._rounds += 1
        if self._rounds % 8 == 0:
            self._refine_inverse()
        status, held = np.divmod(self._read(report), REPORTED)
        if (status == INVALID).any():
            if self._answer is not None:
                check_finite_structures(*self._answer)
            raise self.problem.infinite_score_error(int((self.status == INVALID).nonzero()[0]))
        if self._spare == 0:
            self._spare = slots - int(held.max())
        running = int((status == RUNNING).sum())
        self._direction = direction
        if running == 0:
            self.unfinished = self.unfinished[:0]
        elif 2 * running <= len(self.unfinished):
            # nonzero would wait for the device; the number of running instances is known.
            rows = (self.status[self.unfinished] != RUNNING).argsort(stable=True)[:running]
            self.unfinished, self._direction = self.unfinished[rows], direction[rows]

    def _read(self, report: Tensor) -> np.ndarray:
        """Return the ``report`` of a round, after the checks of the oracle."""
        if self._checks is None:
            return np.asarray(report.tolist())
        with renumber_instances(self.unfinished):
            return np.asarray(self._checks.finish(report))

    def solve_starting_structures(self) -> None:
        super().solve_starting_structures()
        self._direction = None

    def _double_capacity(self) -> None:
        capacity = self.used.shape[1]
        self._spare = capacity
        self.used, self.weight, self.score = (pad(t, (0, capacity)) for t in (self.used, self.weight, self.score))
        self.matrix, self.inverse = (pad(t, (0, capacity, 0, capacity)) for t in (self.matrix, self.inverse))
        self.vertices = pad(self.vertices, (0, 0, 0, capacity))

    def _load_vertices(self, structure: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Put a starting structure of each instance into a free slot, with the results of :class:`TorchBackend`."""
        vertex = torch.cat(structure, 1)
        if self._spare == 0:
            self._double_capacity()
        self._spare -= 1
        slot = (~self.used).to(torch.int8).argmax(1)
        self.vertices[self._batch_index, slot] = vertex
        terms = torch.where(vertex == 0, 0.0, self.theta * vertex)
        score = terms.sum(1)
        self.score[self._batch_index, slot] = score
        square = (vertex * vertex * self.penalised).sum(1)
        return vertex, slot, score, square, terms.abs().sum(1) + square

    def _gather(self, vectors: Tensor) -> Tensor:
        return torch.where(self.used, torch.einsum("bkw,bw->bk", self.vertices, vectors), 0.0)

    def _scatter(self, weights: Tensor) -> Tensor:
        return torch.einsum("bkw,bk->bw", self.vertices, weights)

    def structures(self, slots: Tensor) -> Tensor:
        vertices = torch.where(self.used[:, :, None], self.vertices, 0.0).transpose(0, 1)
        return vertices.gather(0, slots[:, :, None].expand(-1, -1, self._width))
