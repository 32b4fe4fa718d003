"""Projections onto the cone of the scores for which a structure is best, by rounds of the argmax."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import renumber_instances
from ..kernels import parallel_rows
from ..kernels.active_set.nonnegative_program import add_directions
from ..oracle import Oracle
from ..parts import Parts, parts_to_vectors, vectors_to_parts
from .argmax import best_structure

__all__ = ["NormalConeProjection"]


class NormalConeProjection:
    """P(v) for each instance: the projection of v onto N(y) = {t : ⟨t, y⟩ ≥ ⟨t, s⟩ for all s ∈ Y}.

    By Moreau's decomposition, P(v) = v − p for the projection p of v onto the cone of the directions s − y. Each round
    calls the oracle for v − p, and projects v onto the cone of all directions found. The projection is exact once no
    structure is better than y for v − p, which takes finitely many rounds. Before, it is the projection onto the scores
    for which y is best among the found structures.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    v : (B, D) Tensor
        The vectors in float64, 0 at forbidden parts.
    y : (B, *event) Parts
        The structures y in float64.
    forbidden : (B, D) bool Tensor, or None
        The parts of score −inf.
    rounds : int or None
        The largest number of rounds; None for the exact projection.

    Attributes
    ----------
    value : (B, D) Tensor
        P(v).
    """

    def __init__(self, oracle: Oracle, v: Tensor, y: Parts, forbidden: Tensor | None, rounds: int | None) -> None:
        (size, width), capacity = v.shape, 8 if rounds is None else min(rounds, 8)
        self._arrays = [
            np.zeros((size, capacity, width)),  # the directions, their inner products, and those with v
            np.empty((size, capacity, capacity)),
            np.empty((size, capacity)),
            np.zeros((size, capacity)),  # the weights, and the factor and the order of the positive weights
            np.empty((size, capacity, capacity)),
            np.empty((size, capacity), np.int64),
        ]
        fixed, gold = (np.ascontiguousarray(t.detach().cpu().numpy()) for t in (v, parts_to_vectors(y)))
        residual, count, rows, done = fixed.copy(), np.zeros((size, 3), np.int64), np.arange(size), 0
        while len(rows) and done != rounds:
            if done == self._arrays[2].shape[1]:
                self._double_capacity()
            scores = torch.from_numpy(residual).to(v.device)
            if forbidden is not None:
                scores = scores.masked_fill(forbidden, -torch.inf)
            if len(rows) == size:
                best = best_structure(oracle, vectors_to_parts(scores, y))
            else:
                index = torch.from_numpy(rows).to(v.device)
                with renumber_instances(rows):
                    best = best_structure(oracle[index], vectors_to_parts(scores[index], y))
            fresh = np.ascontiguousarray(parts_to_vectors(best).cpu().numpy())
            done += 1
            work = len(rows) * done * (width + done * done)
            parallel_rows(
                add_directions, len(rows), rows, fresh, gold, fixed, *self._arrays, count, residual, work=work
            )
            rows = rows[count[rows, 2] != 0]
        self.value = torch.from_numpy(residual).to(v.device)

    def _double_capacity(self) -> None:
        for i, array in enumerate(self._arrays):
            doubled = range(1, 3) if array.ndim == 3 and array.shape[1] == array.shape[2] and i else range(1, 2)
            self._arrays[i] = np.pad(array, [(0, n if axis in doubled else 0) for axis, n in enumerate(array.shape)])

    def project_onto_face(self, v: Tensor) -> Tensor:
        """Return P(v), (B, D), for vectors near those of the solution, as a linear function of v.

        It is the projection onto the face of the solution, where y ties with the structures of positive weight.
        """
        directions, weights = (torch.from_numpy(self._arrays[i]).to(v.device) for i in (0, 3))
        active = directions * (weights > 0)[:, :, None]
        return v - torch.einsum("bkd,bke,be->bd", torch.linalg.pinv(active).mT, active, v)
