"""Exact answers for small instances by going over all structures, in float64.

The checks compare them with what the oracle's algorithm finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, inner_product, map_parts

__all__ = ["Enumeration", "flatten_parts", "nearest_point", "nearest_point_of_hull", "row_group_ids", "to_float64_cpu"]


def to_float64_cpu(parts: Parts) -> Parts:
    """``parts`` in float64 on the CPU, without a gradient."""
    return map_parts(lambda t: t.detach().to("cpu", torch.float64), parts)


def flatten_parts(y: Parts) -> Tensor:
    """Structures (N, *event), a tensor or a tuple of them, as float64 rows (N, d)."""
    return torch.cat([t.flatten(1) for t in as_tuple(to_float64_cpu(y))], 1)


def row_group_ids(rows: Tensor) -> Tensor:
    """A number 0, 1, ... for each row (N, P), the same for equal rows."""
    # With a column of zeros, since unique takes no rows of length 0.
    return torch.nn.functional.pad(rows, (0, 1)).unique(dim=0, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All structures of one instance.

    Parameters
    ----------
    structures : (N, *event) Parts
        In float64 on the CPU, as :meth:`structinf.Enumerable.enumerate` lists them.

    Notes
    -----
    ``theta`` is always the potentials of one instance, (1, *event). Results about
    parts have that form too. Parts of −inf are forbidden.

    Examples
    --------
    >>> pairs = Enumeration(torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.float64))
    >>> pairs.marginals(torch.zeros(1, 3))
    tensor([[0.6667, 0.6667, 0.6667]], dtype=torch.float64)
    """

    structures: Parts

    def __len__(self) -> int:
        return len(as_tuple(self.structures)[0])

    def scores(self, theta: Parts) -> Tensor:
        """⟨θ, y⟩ of each structure, (N,)."""
        return inner_product(to_float64_cpu(theta), self.structures)

    def magnitude(self, theta: Parts) -> Tensor:
        """The largest Σ |θ_i y_i| of a structure that is allowed: rounding errors are relative to it."""
        sizes = inner_product(map_parts(torch.abs, to_float64_cpu(theta)), map_parts(torch.abs, self.structures))
        return sizes.where(self.allowed(theta), 0.0).max()

    def allowed(self, theta: Parts) -> Tensor:
        """Which structures have a finite score, (N,) bool."""
        return self.scores(theta) > -torch.inf

    def max_score(self, theta: Parts) -> Tensor:
        """max ⟨θ, y⟩, a scalar; −inf if no structure is allowed."""
        return self.scores(theta).max()

    def log_partition(self, theta: Parts) -> Tensor:
        """log Σ exp⟨θ, y⟩, a scalar."""
        return self.scores(theta).logsumexp(0)

    def probabilities(self, theta: Parts) -> Tensor:
        """exp⟨θ, y⟩ / Z of each structure, (N,)."""
        return self.scores(theta).softmax(0)

    def mean(self, weights: Tensor) -> Parts:
        """Σ_k weights_k y_k, (1, *event)."""
        return map_parts(lambda t: torch.tensordot(weights, t, 1)[None], self.structures)

    def marginals(self, theta: Parts) -> Parts:
        """E[Y], (1, *event)."""
        return self.mean(self.probabilities(theta))

    def covariance_product(self, theta: Parts, v: Parts) -> Parts:
        """Cov[Y] v, (1, *event)."""
        p, scores = self.probabilities(theta), inner_product(to_float64_cpu(v), self.structures)
        return self.mean(p * (scores - p @ scores))

    def position(self, y: Parts) -> int | None:
        """Index of the structure y, (1, *event), in the list; None if the list lacks it."""
        found = (flatten_parts(self.structures) == flatten_parts(y)).all(1).nonzero()
        return int(found[0, 0]) if len(found) else None

    def project(self, theta: Parts) -> Parts:
        """argmin ‖θ − μ‖² over the allowed part of conv(Y), (1, *event); forbidden parts do not count."""
        rows = flatten_parts(self.structures)[self.allowed(theta)]
        target = flatten_parts(theta)[0]
        target = target.where(target > -torch.inf, 0.0)
        point = nearest_point_of_hull(rows, target)
        pieces = iter(point.split([t[0].numel() for t in as_tuple(self.structures)]))
        return map_parts(lambda t: next(pieces).reshape(1, *t.shape[1:]), self.structures)


def nearest_point(best: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """The point of a polytope nearest to ``target``, by Wolfe's algorithm.

    Parameters
    ----------
    best : callable
        From a direction (d,) to a vertex (d,) of the polytope that goes furthest along it.
    target : (d,) Tensor
        In float64.

    Returns
    -------
    (d,) Tensor
        In float64.

    References
    ----------
    Wolfe 1976, Finding the nearest point in a polytope, Mathematical Programming 11, p. 136.

    Examples
    --------
    The vertex of a square that goes furthest along a direction has the direction's signs:

    >>> nearest_point(lambda direction: direction.sign(), torch.tensor([3.0, 0.5], dtype=torch.float64))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    active, weights = best(target)[None], target.new_ones(1)
    for _ in range(1000):
        point = weights @ active
        residual = target - point
        vertex = best(residual)
        if residual @ (vertex - point) <= 1e-12 * (1 + residual @ residual + vertex @ vertex):
            break
        if bool((active == vertex).all(1).any()):
            break  # rounding alone says that it would help
        active, weights = torch.cat([active, vertex[None]]), torch.cat([weights, weights.new_zeros(1)])
        active, weights = _nearest_in_active_set(active, weights, target)
    return weights @ active


def nearest_point_of_hull(rows: Tensor, target: Tensor) -> Tensor:
    """The point nearest to ``target`` (d,) of the convex hull of ``rows`` (N, d), in float64."""
    return nearest_point(lambda direction: rows[(rows @ direction).argmax()], target)


def _nearest_in_active_set(active: Tensor, weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the point nearest to ``target`` in the affine hull of a part of ``active`` that has it inside."""
    while True:
        affine = _affine_weights(active, target)
        if bool((affine > 0).all()):
            return active, affine
        steps = torch.where(affine <= 0, weights / (weights - affine).where(affine <= 0, 1.0), torch.inf)
        weights = weights + steps.min().clamp(max=1.0) * (affine - weights)
        keep = (weights > 1e-14) & (steps > steps.min())
        active, weights = active[keep], weights[keep] / weights[keep].sum()


def _affine_weights(active: Tensor, target: Tensor) -> Tensor:
    """argmin ‖Σ w_k a_k − target‖² subject to Σ w_k = 1."""
    origin, edges = active[0], active[1:] - active[0]
    if not len(edges):
        return target.new_ones(1)
    solution = torch.linalg.lstsq(edges.T, (target - origin)[:, None], driver="gelsd").solution[:, 0]
    return torch.cat([1 - solution.sum()[None], solution])
