"""The active-set method on a GPU: one Triton launch for the programs of a round, and one read of the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.active_set.tolerances import DEPENDENT, ROUNDING, VANISHING
from ..kernels.gpu import launch
from .active_set_torch import TorchBackend
from .mean_problem import MeanProblem

__all__ = ["TritonBackend"]

_LARGEST_TILE = 2048
"""Numbers of a block of a matrix in the registers of a program."""


class TritonBackend(TorchBackend):
    """The programs of :class:`TorchBackend`, with dense vertices, solved by `kernels.active_set.triton_iteration`.

    A round reads three numbers from the device: how many instances are unfinished, how many slots are in use, and
    whether a structure is invalid. Finished instances stay in the batch of the oracle until half of it is finished.

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

    def add_and_solve(self, structure: list[Tensor], tolerance: float, accuracy: float, last: bool) -> None:
        from ..kernels.active_set.triton_iteration import INVALID, RUNNING, add_and_solve

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
        arrays = (
            self.unfinished, torch.cat(structure, 1), self.theta, penalised, self.mean, self.vertices, used,
            self.weight, self.score, self.matrix, self.inverse, self.scale, self.size, self.gap, self.objective,
            self.iterations, self.status, stalled, scratch,
        )  # fmt: skip
        launch(
            add_and_solve, (len(self.unfinished),), *arrays, self._width, 0 if len(penalised) == 1 else self._width,
            self._limits, self._limits[1:], warps=4, LAST=last, SLOTS=slots, ROWS=rows,
            WIDTH=max(1, _LARGEST_TILE // slots), DEPENDENT=DEPENDENT, ROUNDING=ROUNDING, VANISHING=VANISHING,
        )  # fmt: skip
        self._rounds += 1
        if self._rounds % 8 == 0:
            self._refine_inverse()
        is_running = self.status == RUNNING
        counts = torch.stack([is_running.sum(), self.used.sum(1).max(), (self.status == INVALID).sum()])
        running, most, invalid = counts.tolist()
        if invalid:
            raise self.problem.infinite_score_error(int((self.status == INVALID).nonzero()[0]))
        if self._spare == 0:
            self._spare = slots - most
        if running == 0:
            self.unfinished = self.unfinished[:0]
        elif 2 * running <= len(self.unfinished):
            self.unfinished = is_running.nonzero().squeeze(1)

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
