"""The scores of a factor graph in the coordinates of its local polytope."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, batch_size
from .factor_projections import GroupScores
from .graph_factors import GraphFactors

__all__ = ["LocalPolytope"]


class LocalPolytope:
    """The scores of a factor graph in coordinates: the variables, and additional parts if they are penalised.

    Parameters
    ----------
    factors : GraphFactors
        The factors.
    theta : (B | 1, *event) Tensor, or tuple of them
        The scores.
    additional_parts : bool
        Whether additional parts are coordinates too.

    Attributes
    ----------
    theta : (B, n) Tensor
        The scores of the coordinates, with 0 instead of −inf.
    forbidden : (B, n) bool Tensor
        Whether the score is −inf.
    degree : (n,) Tensor
        The number of factor parts of each coordinate.
    groups : list of GroupScores
        The factors.
    """

    def __init__(self, factors: GraphFactors, theta: Parts, additional_parts: bool) -> None:
        self.factors, self.form, self.additional_parts = factors, theta, additional_parts
        tensors, size = as_tuple(theta), batch_size(theta)
        self.dtype = tensors[0].dtype
        chosen = tensors if additional_parts else tensors[:1]
        scores = torch.cat([t.double().expand(size, *t.shape[1:]).flatten(1) for t in chosen], 1)
        self.forbidden = scores.isneginf()
        self.theta = scores.masked_fill(self.forbidden, 0.0)
        starts = [0]
        for t in tensors:
            starts.append(starts[-1] + math.prod(t.shape[1:]))
        device = scores.device
        self.groups = []
        for group in factors.groups:
            index, additional = group.variables.to(device), group.additional_scores(theta, size).double()
            count = len(group.shapes) - 1
            if additional_parts and count:
                own = [torch.arange(starts[k], starts[k + count], device=device) for k in group.first]
                index, additional = torch.cat([index, torch.stack(own)], 1), additional[..., :0]
            self.groups.append(GroupScores(factors, group, index, additional, self.forbidden))
        none = torch.zeros(0, dtype=torch.int64, device=device)
        flat = torch.cat([none, *(g.index.flatten() for g in self.groups)])
        self.degree = torch.bincount(flat, minlength=scores.shape[1]).double()

    def raise_scores(self) -> Tensor:
        """Multiply the scores of each instance by a power of 2, so that the largest is at least 1; return the powers.

        An instance with a score of at least 1, or with scores of 0 alone, keeps its scores.
        """
        largest = torch.cat([self.theta, *(g.additional.flatten(1) for g in self.groups)], 1)
        largest = largest.masked_fill(largest.isneginf(), 0.0).abs().amax(1)
        exponent = torch.where((largest > 0) & (largest < 1), 1 - largest.frexp().exponent, 0)
        factor = torch.ldexp(torch.ones_like(largest), exponent.clamp(max=1000))
        self.theta = self.theta * factor[:, None]
        for g in self.groups:
            g.additional = g.additional * factor[:, None, None]
        return factor

    def collect(self, copies: list[Tensor]) -> Tensor:
        """Return the sum over the parts (R, F, m) of each coordinate, (R, n)."""
        total = copies[0].new_zeros(len(copies[0]), self.theta.shape[1])
        for group, t in zip(self.groups, copies, strict=True):
            total.index_add_(1, group.index.flatten(), t.flatten(1))
        return total

    def as_parts(self, coordinates: Tensor, additional: list[Tensor]) -> Parts:
        """Return coordinates (B, n) and additional parts (B, F, a) in the form of θ."""
        tensors = as_tuple(self.form)
        size = len(coordinates)
        if self.additional_parts:
            pieces = list(coordinates.split([math.prod(t.shape[1:]) for t in tensors], 1))
        else:
            pieces = [coordinates, *[coordinates[:, :0]] * (len(tensors) - 1)]
            for scores, vectors in zip(self.groups, additional, strict=True):
                shapes = scores.group.shapes[1:]
                for f, first in enumerate(scores.group.first):
                    parts = vectors[:, f].split([math.prod(shape) for shape in shapes], 1)
                    pieces[first : first + len(shapes)] = parts
        out = [p.reshape(size, *t.shape[1:]).to(t.dtype) for p, t in zip(pieces, tensors, strict=True)]
        return tuple(out) if isinstance(self.form, tuple) else out[0]

    def from_parts(self, parts: Parts) -> tuple[Tensor, list[Tensor]]:
        """Return the coordinates (B, n) and the additional parts (B, F, a) of ``parts``, the reverse of the above."""
        tensors = as_tuple(parts)
        size = len(tensors[0])
        chosen = tensors if self.additional_parts else tensors[:1]
        coordinates = torch.cat([t.double().flatten(1) for t in chosen], 1)
        if self.additional_parts:
            return coordinates, [coordinates.new_zeros(size, len(g), 0) for g in self.groups]
        return coordinates, [g.group.additional_scores(parts, size).double() for g in self.groups]
