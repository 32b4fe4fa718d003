"""The active set method's programs in batched linear algebra, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.active_set.tolerances import DEPENDENT, ROUNDING, VANISHING
from ..oracle import Oracle
from ..parts import Parts
from .active_set import Outcome, Programs
from .coordinates import Objective

__all__ = ["TorchQuadraticPrograms"]

_RUNNING, _CONVERGED, _EXHAUSTED = 0, 1, 2


class TorchQuadraticPrograms(Programs):
    """Programs that all take each step together, those that have no use for it masked out.

    Vertices stay in their slots. Over the slots in use ``inverse`` is A⁻¹, where A = R Rᵀ + 1 1ᵀ; its
    other rows and columns are 0. A vertex that enters or leaves changes it by a matrix of rank one,
    and one step of Newton's iteration X ← 2X − XAX every few rounds keeps rounding from piling up
    (G. Schulz 1933, Iterative Berechnung der reziproken Matrix).
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        batch, width, room, nonzeros = objective.batch, len(objective.coordinates), 16, 0
        device = objective.coordinates.device
        real = {"dtype": torch.float64, "device": device}
        self.rows = torch.arange(batch, device=device)
        self.used = torch.zeros(batch, room, dtype=torch.bool, device=device)
        self.weight = torch.zeros(batch, room, **real)
        self.score = torch.zeros(batch, room, **real)
        self.matrix = torch.zeros(batch, room, room, **real)
        self.inverse = torch.zeros(batch, room, room, **real)
        self.index = torch.zeros(batch, room, nonzeros, dtype=torch.int64, device=device)
        self.value = torch.zeros(batch, room, nonzeros, **real)
        self.mean = torch.zeros(batch, width, **real)
        self.scale = torch.zeros(batch, **real)
        self.gap = torch.full((batch,), torch.inf, **real)
        self.best = torch.zeros(batch, **real)
        self.iterations = torch.zeros(batch, dtype=torch.int64, device=device)
        self.status = torch.zeros(batch, dtype=torch.int64, device=device)
        self.stalled = torch.zeros(batch, dtype=torch.bool, device=device)
        coordinates = objective.coordinates
        self.theta = coordinates.join(coordinates.like([t.expand(batch, *t.shape[1:]) for t in objective.theta]))
        self.penalised = objective.penalised.to(torch.float64)
        self._all, self._width = self.rows, width
        self._rounds = 0
        self._spare = room  # vertices that each instance may take in before the room is looked at

    # -- rounds ----------------------------------------------------------------------------

    def direction(self, oracle: Oracle) -> Parts:
        objective, coordinates = self.objective, self.objective.coordinates
        if coordinates.extra:
            read = self.mean[self.rows, : coordinates.offset[coordinates.extra]]
            return objective.direction(read, self.rows, oracle)
        parts = coordinates.parts((self.theta - self.penalised * self.mean)[self.rows])
        kept = [t.shape[0] == 1 and not moved for t, moved in zip(objective.theta, objective.moved, strict=True)]
        return coordinates.like([t if keep else p for t, p, keep in zip(objective.theta, parts, kept, strict=True)])

    def collect(self, structure: list[Tensor]) -> None:
        vertex, slot, score, square, scale = self._load(structure)
        gram, _ = self._products(vertex)
        column, remainder = self._column(gram, vertex)
        apt = score.isfinite() & (vertex != 0).any(1) & (remainder > DEPENDENT * (square + 1))
        self._append(apt, slot, gram, square, column, remainder, torch.ones_like(score))
        self.scale = torch.where(apt, self.scale.maximum(scale), self.scale)

    def settle(self) -> None:
        self.weight /= self.used.sum(1, keepdim=True).clamp(min=1)
        self._write()
        _, gradient = self._products(torch.zeros_like(self.mean))
        self._solve(self.used.any(1), torch.zeros_like(self.used), gradient)
        self._write()

    def advance(self, structure: list[Tensor], tolerance: float, last: bool) -> None:
        vertex, slot, score, square, scale = self._load(structure)
        running = self.status == _RUNNING
        invalid = running & ~score.isfinite()
        if bool(invalid.any()):
            raise self.objective.invalid_vertex_error(int(invalid.nonzero()[0]))
        self.scale = torch.where(running, self.scale.maximum(scale), self.scale)
        slope = score - (vertex * self.penalised * self.mean).sum(1)
        gram, gradient = self._products(vertex)
        average = (self.weight * gradient).sum(1)
        first = running & ~self.used.any(1)
        priced = running & ~first
        self.gap = torch.where(priced, (slope - average).clamp(min=0), self.gap)
        self.best = torch.where(priced, ((self.weight * self.score).sum(1) + average) / 2, self.best)
        converged = priced & (self.gap <= max(tolerance, ROUNDING) * self.scale)
        self.status[converged] = _CONVERGED
        moving = priced & ~converged
        if last:
            self.status[moving] = _EXHAUSTED
            moving = torch.zeros_like(moving)

        self.iterations += moving
        entered = self._enter(first | moving, slot, vertex, gram, gradient, slope, square, first.to(torch.float64))
        newest = torch.zeros_like(self.used).scatter(1, slot[:, None], entered[:, None])
        self._solve(moving, newest, gradient)
        self._rounds += 1
        if self._rounds % 8 == 0:
            self._polish()
        self._write()
        # Without a vertex that helps, the gap can only come from an inexact solution, which _solve
        # has corrected just now; if that did not help either, nothing will.
        idle = moving & ~(newest & self.used).any(1)
        self.status[idle & self.stalled] = _EXHAUSTED
        self.stalled = torch.where(moving, idle, self.stalled)
        self.rows = (self.status == _RUNNING).nonzero().squeeze(1)

    # -- vertices --------------------------------------------------------------------------

    def _load(self, structure: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Put a vertex of each unfinished instance into a free slot.

        Returns
        -------
        vertex : (B, coordinates) Tensor
        slot, score, square, scale : (B,) Tensor
            ``score`` is ⟨θ, y⟩, ``square`` ‖r‖², ``scale`` the size of the numbers summed in both.
        """
        vertex = torch.zeros_like(self.mean)
        vertex[self.rows] = torch.cat(structure, 1)
        row, coordinate = vertex.nonzero(as_tuple=True)
        count = (vertex != 0).sum(1)
        self._make_room(int(count.max()))
        slot = (~self.used).to(torch.int8).argmax(1)
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        self.index[self._all, slot] = 0
        self.value[self._all, slot] = 0.0
        self.index[row, slot[row], place] = coordinate
        self.value[row, slot[row], place] = vertex[row, coordinate]
        terms = torch.where(vertex == 0, 0.0, self.theta * vertex)
        score = terms.sum(1)
        self.score[self._all, slot] = score
        square = (vertex * vertex * self.penalised).sum(1)
        return vertex, slot, score, square, terms.abs().sum(1) + square

    def _make_room(self, nonzeros: int) -> None:
        room, held = self.index.shape[1:]
        if nonzeros > held:
            more = max(nonzeros, min(3 * held // 2, self.mean.shape[1])) - held
            self.index, self.value = pad(self.index, (0, more)), pad(self.value, (0, more))
        if self._spare == 0:
            self._spare = room - int(self.used.sum(1).max())
        if self._spare == 0:
            self._spare = room
            self.used, self.weight, self.score = (pad(t, (0, room)) for t in (self.used, self.weight, self.score))
            self.matrix, self.inverse = (pad(t, (0, room, 0, room)) for t in (self.matrix, self.inverse))
            self.index, self.value = (pad(t, (0, 0, 0, room)) for t in (self.index, self.value))
        self._spare -= 1

    def _gather(self, vectors: Tensor) -> Tensor:
        """⟨y_k, vector⟩ for each slot, (B, room), where the slot is in use."""
        terms = vectors.gather(1, self.index.flatten(1)).view_as(self.value) * self.value
        return torch.where(self.used, terms.sum(2), 0.0)

    def _scatter(self, weights: Tensor) -> Tensor:
        """Σ_k weight_k y_k, (B, coordinates)."""
        terms = (weights[:, :, None] * self.value).flatten(1)
        return terms.new_zeros(len(weights), self._width).scatter_add(1, self.index.flatten(1), terms)

    def _products(self, vertex: Tensor) -> tuple[Tensor, Tensor]:
        """⟨r_k, r⟩ + 1, and the gradient with respect to p_k; 0 for slots not in use."""
        gram = torch.where(self.used, self._gather(vertex * self.penalised) + 1, 0.0)
        gradient = torch.where(self.used, self.score - self._gather(self.mean * self.penalised), 0.0)
        return gram, gradient

    def _write(self) -> None:
        self.mean = self._scatter(self.weight)

    # -- the inverse -----------------------------------------------------------------------

    def _column(self, gram: Tensor, vertex: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the vertex's projection onto the support's affine hull, and its squared distance from it.

        The distance is summed from what the combination leaves of the vertex: the difference of squares
        ‖r‖² + 1 − gᵀ A⁻¹ g would keep the rounding of ‖r‖², in which a dependent vertex passes for an independent one.
        """
        column = torch.einsum("bij,bj->bi", self.inverse, gram)
        rest = (vertex - self._scatter(torch.where(self.used, column, 0.0))) * self.penalised
        return column, (rest * rest).sum(1) + (1 - column.sum(1)).square()

    def _balanced(self, right: Tensor) -> Tensor:
        """q (B, room) with A q = right − λ 1 and Σ q = 0, for some λ: A⁻¹ right − A⁻¹ 1 (1ᵀ A⁻¹ right) / (1ᵀ A⁻¹ 1)."""
        both = self.inverse @ torch.stack([right, self.used.to(torch.float64)], 2)
        total = both.sum(1, keepdim=True)
        return both[:, :, 0] - total[:, :, 0] / total[:, :, 1] * both[:, :, 1]

    def _polish(self) -> None:
        self.inverse = 2 * self.inverse - self.inverse @ self.matrix @ self.inverse

    def _append(
        self, apt: Tensor, slot: Tensor, gram: Tensor, square: Tensor, column: Tensor, remainder: Tensor, weight: Tensor
    ) -> None:
        """Take in the loaded vertices of the instances ``apt``."""
        vector = torch.where(apt[:, None], column.scatter(1, slot[:, None], -1.0), 0.0)
        scaled = vector / torch.where(apt, remainder, 1.0)[:, None]
        self.inverse.baddbmm_(vector[:, :, None], scaled[:, None, :])
        row = gram.scatter(1, slot[:, None], square[:, None] + 1)
        places, which = self._all, apt[:, None]
        self.matrix[places, slot] = torch.where(which, row, self.matrix[places, slot])
        self.matrix[places, :, slot] = torch.where(which, row, self.matrix[places, :, slot])
        self.used[places, slot] |= apt
        self.weight[places, slot] = torch.where(apt, weight, self.weight[places, slot])

    def _delete(self, which: Tensor, slot: Tensor) -> None:
        """Drop the vertices in ``slot`` of the instances ``which``."""
        column = torch.where(which[:, None], self.inverse[self._all, :, slot], 0.0)
        pivot = torch.where(which, column.gather(1, slot[:, None]).squeeze(1), 1.0)
        self.inverse.baddbmm_(column[:, :, None], (column / pivot[:, None])[:, None, :], alpha=-1)
        places, keep = self._all, (~which)[:, None]
        for matrix in (self.inverse, self.matrix):
            matrix[places, slot] = torch.where(keep, matrix[places, slot], 0.0)
            matrix[places, :, slot] = torch.where(keep, matrix[places, :, slot], 0.0)
        self.weight[places, slot] = torch.where(which, 0.0, self.weight[places, slot])
        self.used[places, slot] &= ~which

    # -- the programs ----------------------------------------------------------------------

    def _enter(
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
        """Take in the loaded vertices of the instances ``open``; False where that cannot raise the objective.

        ``gradient`` is brought up to date.
        """
        entered = torch.zeros_like(open)
        while True:
            column, remainder = self._column(gram, vertex)
            apt = open & (remainder > DEPENDENT * (square + 1))
            self._append(apt, slot, gram, square, column, remainder, weight)
            # Not where a vertex has entered in an earlier pass: its entry is up to date.
            gradient[self._all, slot] = torch.where(apt, slope, gradient[self._all, slot])
            entered |= apt
            rise = slope - (column * gradient).sum(1)
            open = open & ~apt & ((rise > ROUNDING * self.scale) | (weight > 0))
            if not bool(open.any()):
                return entered
            # The new vertex is the affine combination r = Σ c_k r_k. Weight that moves from the
            # combination to the vertex leaves the penalty as it is, hence moves until a weight is spent.
            falling = self.used & (column > 1e-9 * column.amax(1, keepdim=True)) & open[:, None]
            step, spent = torch.where(falling, self.weight / column, torch.inf).min(1)
            step = torch.where(open, step, 0.0)
            self.weight = (self.weight - step[:, None] * column).clamp(min=0)
            weight = weight + step
            self._delete(open, spent)
            gram = torch.where(self.used, gram, 0.0)

    def _solve(self, open: Tensor, newest: Tensor, gradient: Tensor) -> None:
        """Move the weights of the instances ``open`` to their programs' solutions.

        From weights p with gradient g, the solution over all p with Σ p = 1 is p + q, where
        A q = g − λ 1 and Σ q = 0. Along q the gradient is (1 − t) g, up to a constant.
        """
        while bool(open.any()):
            average = (self.weight * gradient).sum(1, keepdim=True)
            gradient = torch.where(self.used, gradient - average, 0.0)
            move = torch.where(open[:, None], self._balanced(gradient), 0.0)
            falling = (move < 0) & (self.weight + move <= VANISHING)
            step, spent = torch.where(falling, -self.weight / move, 1.0).clamp(max=1).min(1)
            blocked = falling.any(1, keepdim=True)
            spent = torch.where(falling, -self.weight / move, torch.inf).argmin(1)
            step = torch.where(open, step, 0.0)
            self.weight = self.weight + step[:, None] * move
            gradient = (1 - step[:, None]) * gradient
            # The newest vertex's weight may still be tiny when another's is spent.
            drop = self.used & blocked & (self.weight <= VANISHING) & ~newest
            drop = drop | (blocked & torch.zeros_like(drop).scatter(1, spent[:, None], True))
            while bool((which := drop.any(1)).any()):
                slot = drop.to(torch.int8).argmax(1)
                self._delete(which, slot)
                drop = drop.scatter(1, slot[:, None], False)
            open = open & (step < 1)
        self.weight = self.weight / torch.where(self.used.any(1), self.weight.sum(1), 1.0)[:, None]

    # -- results ---------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        self._polish()
        outcome = Outcome(
            mean=self.mean,
            value=self.best,
            weights=self.weight,
            gap=self.gap,
            converged=self.status == _CONVERGED,
            iterations=self.iterations,
        )
        del self.objective, self.best, self.matrix, self.theta, self.mean  # the support alone is needed from now on
        return outcome

    def structures(self, rank: Tensor) -> Tensor:
        out = torch.zeros(*rank.shape, self._width, dtype=torch.float64, device=rank.device)
        places = rank[:, :, None].expand(-1, -1, self.index.shape[2])
        value = torch.where(self.used[:, :, None], self.value, 0.0).transpose(0, 1).gather(0, places)
        return out.scatter_add(2, self.index.transpose(0, 1).gather(0, places), value)

    def vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        cotangent = self._gather(mean_cotangent) + torch.where(self.used, weights_cotangent, 0.0)
        return self._scatter(self._balanced(cotangent))
