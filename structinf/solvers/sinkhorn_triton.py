"""Entropic optimal transport on a GPU, for more columns than one program handles: one launch for each step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.transport import triton_steps
from ..kernels.transport.tolerances import MAX_STEP
from .sinkhorn_torch import SinkhornState

__all__ = ["TritonState"]


class TritonState(SinkhornState):
    """A :class:`SinkhornState` of at most `kernels.transport.triton_steps.MAX_COLUMNS` columns, in Triton kernels.

    An update takes three launches, a sweep none beside it, and a Newton step three.
    """

    def __init__(self, scores: Tensor, rows: Tensor, columns: Tensor, largest: Tensor, spread: Tensor) -> None:
        super().__init__(scores.contiguous(), rows.contiguous(), columns.contiguous(), largest, spread)
        self._stored: Tensor | None = None

    def update(self, g: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        self._g, self._t, self._stored = g.contiguous(), t, None
        self._row_sums = triton_steps.row_sums(self._scores, self._g, t)
        self._pass = self._column_pass(self._g, t, self._row_sums)
        self.sums = self._pass.sums
        return triton_steps.residuals(self._pass, self._columns, self._largest, self._spread, t)

    def plan(self) -> Tensor:
        if self._stored is None:
            self._stored = torch.empty_like(self._scores)
            self._column_pass(self._g, self._t, self._row_sums, self._stored)
        return self._stored

    def row_potentials(self) -> Tensor:
        used = torch.where(self._rows > 0, self._row_sums, 0.0)
        return self._t[:, None] * (self._rows.log() - used)

    def swept(self) -> Tensor:
        return self._pass.ahead

    def direction(self) -> Tensor:
        right, size = self._columns - self.sums, self._columns + self.sums
        return triton_steps.laplacian_solution(self.plan(), right, size, MAX_STEP)

    def sums_of(self, g: Tensor, t: Tensor) -> Tensor:
        g = g.contiguous()
        return self._column_pass(g, t, triton_steps.row_sums(self._scores, g, t)).sums

    def _column_pass(
        self, g: Tensor, t: Tensor, row_sums: Tensor, plan: Tensor | None = None
    ) -> triton_steps.ColumnPass:
        margins = self._rows, self._columns
        return triton_steps.column_pass(self._scores, g, t, row_sums, *margins, self._largest, plan)
