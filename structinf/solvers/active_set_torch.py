"""The active-set method in batched linear algebra of torch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.active_set.tolerances import DEPENDENT, ROUNDING, VANISHING
from ..oracle import Oracle
from ..parts import Parts
from .active_set_backend import ActiveSetBackend, BackendResult
from .mean_problem import MeanProblem

__all__ = ["TorchBackend"]

_RUNNING, _CONVERGED, _STOPPED = 0, 1, 2


class TorchBackend(ActiveSetBackend):
    """Programs that take each step together, with masks for instances that do not need the step.

    A vertex stays in its slot. Over the slots in use, ``inverse`` is A⁻¹ with A = R Rᵀ + 1 1ᵀ; its other rows and
    columns are 0. Adding or removing a vertex is an update of rank one. Every 8 rounds, a step of Newton's
    iteration X ← 2X − XAX keeps rounding errors from accumulating (G. Schulz 1933, Iterative Berechnung der
    reziproken Matrix).

    Parameters
    ----------
    problem : MeanProblem
        The oracle with the scores.
    """

    def __init__(self, problem: MeanProblem) -> None:
        self.problem = problem
        batch, width, capacity, nonzeros = problem.batch, len(problem.flattening), 16, 0
        device = problem.flattening.device
        real = {"dtype": torch.float64, "device": device}
        self.unfinished = torch.arange(batch, device=device)
        self.used = torch.zeros(batch, capacity, dtype=torch.bool, device=device)
        self.weight = torch.zeros(batch, capacity, **real)
        self.score = torch.zeros(batch, capacity, **real)
        self.matrix = torch.zeros(batch, capacity, capacity, **real)
        self.inverse = torch.zeros(batch, capacity, capacity, **real)
        self.index = torch.zeros(batch, capacity, nonzeros, dtype=torch.int64, device=device)
        self.value = torch.zeros(batch, capacity, nonzeros, **real)
        self.mean = torch.zeros(batch, width, **real)
        self.scale = torch.zeros(batch, **real)
        self.size = torch.zeros(batch, **real)
        self.gap = torch.full((batch,), torch.inf, **real)
        self.objective = torch.zeros(batch, **real)
        self.iterations = torch.zeros(batch, dtype=torch.int64, device=device)
        self.status = torch.zeros(batch, dtype=torch.int64, device=device)
        self.stalled = torch.zeros(batch, dtype=torch.bool, device=device)
        flattening = problem.flattening
        self.theta = flattening.flatten(flattening.as_parts([t.expand(batch, *t.shape[1:]) for t in problem.theta]))
        self.penalised = problem.penalised.to(torch.float64)
        self._batch_index, self._width = self.unfinished, width
        self._rounds = 0
        self._spare = capacity  # vertices that each instance may add before the capacity is checked again

    # -- rounds ----------------------------------------------------------------------------

    def objective_gradient(self, oracle: Oracle) -> Parts:
        problem, flattening = self.problem, self.problem.flattening
        if flattening.extra:
            read = self.mean[self.unfinished, : flattening.offset[flattening.extra]]
            return problem.gradient_through_readout(read, self.unfinished, oracle)
        return self._as_gradient((self.theta - self.penalised * self.mean)[self.unfinished])

    def _as_gradient(self, vectors: Tensor) -> Parts:
        """Return the gradients (n, coordinates) in the form of θ."""
        problem, flattening = self.problem, self.problem.flattening
        parts = flattening.split(vectors)
        kept = [
            t.shape[0] == 1 and not penalised
            for t, penalised in zip(problem.theta, problem.tensor_is_penalised, strict=True)
        ]
        return flattening.as_parts([t if keep else p for t, p, keep in zip(problem.theta, parts, kept, strict=True)])

    def add_starting_structure(self, structure: list[Tensor]) -> None:
        vertex, slot, score, square, scale = self._load_vertices(structure)
        gram, _ = self._support_products(vertex)
        column, remainder = self._project_vertex(gram, vertex)
        apt = score.isfinite() & (vertex != 0).any(1) & (remainder > DEPENDENT * (square + 1))
        self._append_column(apt, slot, gram, square, column, remainder, torch.ones_like(score))
        self.scale = torch.where(apt, self.scale.maximum(scale), self.scale)
        self.size = torch.where(apt, self.size.maximum(square), self.size)

    def solve_starting_structures(self) -> None:
        self.weight /= self.used.sum(1, keepdim=True).clamp(min=1)
        self._update_mean()
        _, gradient = self._support_products(torch.zeros_like(self.mean))
        self._solve_weights(self.used.any(1), torch.zeros_like(self.used), gradient)
        self._update_mean()

    def add_and_solve(self, structure: list[Tensor], tolerance: float, accuracy: float, last: bool) -> None:
        vertex, slot, score, square, scale = self._load_vertices(structure)
        running = self.status == _RUNNING
        invalid = running & ~score.isfinite()
        if bool(invalid.any()):
            raise self.problem.infinite_score_error(int(invalid.nonzero()[0]))
        self.scale = torch.where(running, self.scale.maximum(scale), self.scale)
        self.size = torch.where(running, self.size.maximum(square), self.size)
        slope = score - (vertex * self.penalised * self.mean).sum(1)
        gram, gradient = self._support_products(vertex)
        average = (self.weight * gradient).sum(1)
        first = running & ~self.used.any(1)
        priced = running & ~first
        self.gap = torch.where(priced, (slope - average).clamp(min=0), self.gap)
        self.objective = torch.where(priced, ((self.weight * self.score).sum(1) + average) / 2, self.objective)
        limit = (max(tolerance, ROUNDING) * self.scale).maximum(0.5 * accuracy**2 * self.size)
        converged = priced & (self.gap <= limit)
        self.status[converged] = _CONVERGED
        moving = priced & ~converged
        if last:
            self.status[moving] = _STOPPED
            moving = torch.zeros_like(moving)

        self.iterations += moving
        entered = self._add_vertex(first | moving, slot, vertex, gram, gradient, slope, square, first.to(torch.float64))
        newest = torch.zeros_like(self.used).scatter(1, slot[:, None], entered[:, None])
        self._solve_weights(moving, newest, gradient)
        self._rounds += 1
        if self._rounds % 8 == 0:
            self._refine_inverse()
        self._update_mean()
        # If no vertex can enter, the gap comes from an inexact solution, and _solve_weights has just corrected it.
        # If no vertex can enter in the next round either, the instance stops.
        idle = moving & ~(newest & self.used).any(1)
        self.status[idle & self.stalled] = _STOPPED
        self.stalled = torch.where(moving, idle, self.stalled)
        self.unfinished = (self.status == _RUNNING).nonzero().squeeze(1)

    # -- vertices --------------------------------------------------------------------------

    def _load_vertices(self, structure: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Put a vertex of each unfinished instance into a free slot.

        Returns
        -------
        vertex : (B, coordinates) Tensor
            The vertices as flat vectors.
        slot : (B,) Tensor
            The slots of the vertices.
        score : (B,) Tensor
            ⟨θ, y⟩.
        square : (B,) Tensor
            ‖r‖² over the penalised coordinates r.
        scale : (B,) Tensor
            The sum of the absolute terms of ``score`` and ``square``.
        """
        vertex = torch.zeros_like(self.mean)
        vertex[self.unfinished] = torch.cat(structure, 1)
        row, coordinate = vertex.nonzero(as_tuple=True)
        count = (vertex != 0).sum(1)
        self._grow(int(count.max()))
        slot = (~self.used).to(torch.int8).argmax(1)
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        self.index[self._batch_index, slot] = 0
        self.value[self._batch_index, slot] = 0.0
        self.index[row, slot[row], place] = coordinate
        self.value[row, slot[row], place] = vertex[row, coordinate]
        terms = torch.where(vertex == 0, 0.0, self.theta * vertex)
        score = terms.sum(1)
        self.score[self._batch_index, slot] = score
        square = (vertex * vertex * self.penalised).sum(1)
        return vertex, slot, score, square, terms.abs().sum(1) + square

    def _grow(self, nonzeros: int) -> None:
        capacity, held = self.index.shape[1:]
        if nonzeros > held:
            more = max(nonzeros, min(3 * held // 2, self.mean.shape[1])) - held
            self.index, self.value = pad(self.index, (0, more)), pad(self.value, (0, more))
        if self._spare == 0:
            self._spare = capacity - int(self.used.sum(1).max())
        if self._spare == 0:
            self._spare = capacity
            self.used, self.weight, self.score = (pad(t, (0, capacity)) for t in (self.used, self.weight, self.score))
            self.matrix, self.inverse = (pad(t, (0, capacity, 0, capacity)) for t in (self.matrix, self.inverse))
            self.index, self.value = (pad(t, (0, 0, 0, capacity)) for t in (self.index, self.value))
        self._spare -= 1

    def _gather(self, vectors: Tensor) -> Tensor:
        """Return ⟨y_k, vector⟩ for each slot, (B, capacity), with 0 for unused slots."""
        terms = vectors.gather(1, self.index.flatten(1)).view_as(self.value) * self.value
        return torch.where(self.used, terms.sum(2), 0.0)

    def _scatter(self, weights: Tensor) -> Tensor:
        """Return Σ_k weight_k y_k, (B, coordinates)."""
        terms = (weights[:, :, None] * self.value).flatten(1)
        return terms.new_zeros(len(weights), self._width).scatter_add(1, self.index.flatten(1), terms)

    def _support_products(self, vertex: Tensor) -> tuple[Tensor, Tensor]:
        """Return ⟨r_k, r⟩ + 1, and the gradient with respect to p_k, (B, capacity) each, with 0 for unused slots."""
        gram = torch.where(self.used, self._gather(vertex * self.penalised) + 1, 0.0)
        gradient = torch.where(self.used, self.score - self._gather(self.mean * self.penalised), 0.0)
        return gram, gradient

    def _update_mean(self) -> None:
        self.mean = self._scatter(self.weight)

    # -- the inverse -----------------------------------------------------------------------

    def _project_vertex(self, gram: Tensor, vertex: Tensor) -> tuple[Tensor, Tensor]:
        """Project the vertex onto the support's affine hull; return the coefficients and the squared distance.

        The squared distance is computed from the residual vector. The difference ‖r‖² + 1 − gᵀ A⁻¹ g would keep the
        rounding error of ‖r‖², and a dependent vertex would appear independent.
        """
        column = torch.einsum("bij,bj->bi", self.inverse, gram)
        rest = (vertex - self._scatter(torch.where(self.used, column, 0.0))) * self.penalised
        return column, (rest * rest).sum(1) + (1 - column.sum(1)).square()

    def _solve_balanced(self, right: Tensor) -> Tensor:
        """Return q (B, slots) with A q = right − λ 1 and Σ q = 0.

        The solution is q = A⁻¹ right − A⁻¹ 1 (1ᵀ A⁻¹ right) / (1ᵀ A⁻¹ 1).
        """
        both = self.inverse @ torch.stack([right, self.used.to(torch.float64)], 2)
        total = both.sum(1, keepdim=True)
        return both[:, :, 0] - total[:, :, 0] / total[:, :, 1] * both[:, :, 1]

    def _refine_inverse(self) -> None:
        self.inverse = 2 * self.inverse - self.inverse @ self.matrix @ self.inverse

    def _append_column(
        self, apt: Tensor, slot: Tensor, gram: Tensor, square: Tensor, column: Tensor, remainder: Tensor, weight: Tensor
    ) -> None:
        """Add the loaded vertices to the supports of the instances ``apt``."""
        vector = torch.where(apt[:, None], column.scatter(1, slot[:, None], -1.0), 0.0)
        scaled = vector / torch.where(apt, remainder, 1.0)[:, None]
        self.inverse.baddbmm_(vector[:, :, None], scaled[:, None, :])
        row = gram.scatter(1, slot[:, None], square[:, None] + 1)
        places, which = self._batch_index, apt[:, None]
        self.matrix[places, slot] = torch.where(which, row, self.matrix[places, slot])
        self.matrix[places, :, slot] = torch.where(which, row, self.matrix[places, :, slot])
        self.used[places, slot] |= apt
        self.weight[places, slot] = torch.where(apt, weight, self.weight[places, slot])

    def _remove_vertex(self, which: Tensor, slot: Tensor) -> None:
        """Remove the vertices in ``slot`` from the supports of the instances ``which``."""
        column = torch.where(which[:, None], self.inverse[self._batch_index, :, slot], 0.0)
        pivot = torch.where(which, column.gather(1, slot[:, None]).squeeze(1), 1.0)
        self.inverse.baddbmm_(column[:, :, None], (column / pivot[:, None])[:, None, :], alpha=-1)
        places, keep = self._batch_index, (~which)[:, None]
        for matrix in (self.inverse, self.matrix):
            matrix[places, slot] = torch.where(keep, matrix[places, slot], 0.0)
            matrix[places, :, slot] = torch.where(keep, matrix[places, :, slot], 0.0)
        self.weight[places, slot] = torch.where(which, 0.0, self.weight[places, slot])
        self.used[places, slot] &= ~which

    # -- the programs ----------------------------------------------------------------------

    def _add_vertex(
        self,
        open: Tensor,
        slot: Tensor,
        vertex: Tensor,
        gram: Tensor,
        gradient: Tensor,
        slope: Tensor,
        square: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Add the loaded vertices to the supports of the instances ``open``, and update ``gradient`` in place.

        Return whether the vertex entered, (B,) bool; it does not enter if it cannot raise the objective.
        """
        entered = torch.zeros_like(open)
        while True:
            column, remainder = self._project_vertex(gram, vertex)
            apt = open & (remainder > DEPENDENT * (square + 1))
            self._append_column(apt, slot, gram, square, column, remainder, weight)
            # Keep the entries of vertices that entered in an earlier pass, because these entries are up to date.
            gradient[self._batch_index, slot] = torch.where(apt, slope, gradient[self._batch_index, slot])
            entered |= apt
            rise = slope - (column * gradient).sum(1)
            open = open & ~apt & ((rise > ROUNDING * self.scale) | (weight > 0))
            if not bool(open.any()):
                return entered
            # The new vertex is the affine combination r = Σ c_k r_k. Moving weight from the combination
            # to the vertex does not change the penalty, so weight moves until another weight is 0.
            falling = self.used & (column > 1e-9 * column.amax(1, keepdim=True)) & open[:, None]
            step, spent = torch.where(falling, self.weight / column, torch.inf).min(1)
            step = torch.where(open, step, 0.0)
            self.weight = (self.weight - step[:, None] * column).clamp(min=0)
            weight = weight + step
            self._remove_vertex(open, spent)
            gram = torch.where(self.used, gram, 0.0)

    def _solve_weights(self, open: Tensor, newest: Tensor, gradient: Tensor) -> None:
        """Move the weights of the instances ``open`` to the solutions of their programs.

        From weights p with gradient g, the solution over all p with Σ p = 1 is p + q, where A q = g − λ 1 and Σ q =
        0. At p + t q, the gradient is (1 − t) g, up to a constant.
        """
        while bool(open.any()):
            average = (self.weight * gradient).sum(1, keepdim=True)
            gradient = torch.where(self.used, gradient - average, 0.0)
            move = torch.where(open[:, None], self._solve_balanced(gradient), 0.0)
            falling = (move < 0) & (self.weight + move <= VANISHING)
            step, spent = torch.where(falling, -self.weight / move, 1.0).clamp(max=1).min(1)
            blocked = falling.any(1, keepdim=True)
            spent = torch.where(falling, -self.weight / move, torch.inf).argmin(1)
            step = torch.where(open, step, 0.0)
            self.weight = self.weight + step[:, None] * move
            gradient = (1 - step[:, None]) * gradient
            # Keep the newest vertex: its weight may be below VANISHING when the weight of another vertex is 0.
            drop = self.used & blocked & (self.weight <= VANISHING) & ~newest
            drop = drop | (blocked & torch.zeros_like(drop).scatter(1, spent[:, None], True))
            while bool((which := drop.any(1)).any()):
                slot = drop.to(torch.int8).argmax(1)
                self._remove_vertex(which, slot)
                drop = drop.scatter(1, slot[:, None], False)
            open = open & (step < 1)
        self.weight = self.weight / torch.where(self.used.any(1), self.weight.sum(1), 1.0)[:, None]

    # -- results ---------------------------------------------------------------------------

    def result(self) -> BackendResult:
        self._refine_inverse()
        result = BackendResult(
            mean=self.mean,
            value=self.objective,
            weights=self.weight,
            gap=self.gap,
            converged=self.status == _CONVERGED,
            iterations=self.iterations,
        )
        del self.problem, self.objective, self.matrix, self.theta, self.mean  # only the support is needed later
        return result

    def structures(self, slots: Tensor) -> Tensor:
        out = torch.zeros(*slots.shape, self._width, dtype=torch.float64, device=slots.device)
        places = slots[:, :, None].expand(-1, -1, self.index.shape[2])
        value = torch.where(self.used[:, :, None], self.value, 0.0).transpose(0, 1).gather(0, places)
        return out.scatter_add(2, self.index.transpose(0, 1).gather(0, places), value)

    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        cotangent = self._gather(mean_cotangent) + torch.where(self.used, weights_cotangent, 0.0)
        return self._scatter(self._solve_balanced(cotangent))
