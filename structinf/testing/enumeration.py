"""Exact results for small instances, by enumeration of all structures, in float64.

The checks compare the results of oracles with these results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, inner_product, map_parts, parts_to_vectors

__all__ = ["Enumeration", "nearest_point", "nearest_point_of_hull", "row_group_ids", "rows_of_parts", "to_float64_cpu"]


def to_float64_cpu(parts: Parts) -> Parts:
    """Return ``parts`` detached, in float64 on the CPU."""
    return map_parts(lambda t: t.detach().to("cpu", torch.float64), parts)


def rows_of_parts(y: Parts) -> Tensor:
    """Return structures (N, *event), a tensor or a tuple of tensors, as float64 rows (N, d)."""
    return parts_to_vectors(to_float64_cpu(y))


def row_group_ids(rows: Tensor) -> Tensor:
    """Return a number from 0 for each row of (N, P), the same for equal rows."""
    # A column of zeros is added, since torch.unique does not take rows of length 0.
    return torch.nn.functional.pad(rows, (0, 1)).unique(dim=0, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All structures of one instance.

    Parameters
    ----------
    structures : (N, *event) Parts
        The structures, in float64 on the CPU, as :meth:`structinf.Enumerable.enumerate` returns them.

    Notes
    -----
    In all methods, ``theta`` holds the scores of one instance, (1, *event). Results of the form of θ have the same
    shapes. Parts with score −inf are forbidden.

    Examples
    --------
    >>> pairs = Enumeration(
    ...     torch.tensor(
    ...         [[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.float64
    ...     )
    ... )
    >>> pairs.marginals(torch.zeros(1, 3))
    tensor([[0.6667, 0.6667, 0.6667]], dtype=torch.float64)
    """

    structures: Parts

    def __len__(self) -> int:
        return len(as_tuple(self.structures)[0])

    def scores(self, theta: Parts) -> Tensor:
        """Return ⟨θ, y⟩ of each structure, (N,)."""
        return inner_product(to_float64_cpu(theta), self.structures)

    def magnitude(self, theta: Parts) -> Tensor:
        """Return the largest Σ |θ_i y_i| of an allowed structure, the size of numbers for bounds on rounding errors."""
        sizes = inner_product(map_parts(torch.abs, to_float64_cpu(theta)), map_parts(torch.abs, self.structures))
        return sizes.where(self.allowed(theta), 0.0).max()

    def allowed(self, theta: Parts) -> Tensor:
        """Return whether each structure has a finite score, (N,) bool."""
        return self.scores(theta) > -torch.inf

    def max_score(self, theta: Parts) -> Tensor:
        """Return max ⟨θ, y⟩, a scalar; −inf if no structure is allowed."""
        return self.scores(theta).max()

    def log_partition(self, theta: Parts) -> Tensor:
        """Return log Σ exp⟨θ, y⟩, a scalar."""
        return self.scores(theta).logsumexp(0)

    def probabilities(self, theta: Parts) -> Tensor:
        """Return exp⟨θ, y⟩ / Z of each structure, (N,)."""
        return self.scores(theta).softmax(0)

    def mean(self, weights: Tensor) -> Parts:
        """Return Σ_k weights_k y_k, (1, *event), for ``weights`` (N,).

        Parameters
        ----------
        weights : (N,) Tensor
            The weight of each structure.
        """
        return map_parts(lambda t: torch.tensordot(weights, t, 1)[None], self.structures)

    def marginals(self, theta: Parts) -> Parts:
        """Return E[Y], (1, *event)."""
        return self.mean(self.probabilities(theta))

    def covariance_product(self, theta: Parts, v: Parts) -> Parts:
        """Return Cov[Y] v, (1, *event), for a direction ``v`` (1, *event).

        Parameters
        ----------
        theta : (1, *event) Tensor, or tuple of them
            The scores of the parts.
        v : (1, *event) Tensor, or tuple of them
            The vector to multiply.
        """
        p, scores = self.probabilities(theta), inner_product(to_float64_cpu(v), self.structures)
        return self.mean(p * (scores - p @ scores))

    def position(self, y: Parts) -> int | None:
        """Return the index of the structure ``y``, (1, *event); None if ``y`` is not one of the structures.

        Parameters
        ----------
        y : (1, *event) Tensor, or tuple of them
            A structure.
        """
        found = (rows_of_parts(self.structures) == rows_of_parts(y)).all(1).nonzero()
        return int(found[0, 0]) if len(found) else None

    def project(self, theta: Parts) -> Parts:
        """Return argmin ‖θ − μ‖² over the convex hull of the allowed structures, (1, *event).

        Forbidden parts do not count in the norm.
        """
        rows = rows_of_parts(self.structures)[self.allowed(theta)]
        target = rows_of_parts(theta)[0]
        target = target.where(target > -torch.inf, 0.0)
        point = nearest_point_of_hull(rows, target)
        pieces = iter(point.split([t[0].numel() for t in as_tuple(self.structures)]))
        return map_parts(lambda t: next(pieces).reshape(1, *t.shape[1:]), self.structures)


def nearest_point(best: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Return the point of a polytope nearest to ``target``, by Wolfe's algorithm.

    Parameters
    ----------
    best : callable
        A function of a direction (d,) that returns a vertex (d,) of the polytope with the largest inner product with
        the direction.
    target : (d,) Tensor
        A point in float64.

    Returns
    -------
    (d,) Tensor
        The nearest point, in float64.

    References
    ----------
    Wolfe 1976, Finding the nearest point in a polytope, Mathematical Programming 11, p. 136.

    Examples
    --------
    The best vertex of the square [−1, 1]² has the signs of the direction:

    >>> nearest_point(
    ...     lambda direction: direction.sign(),
    ...     torch.tensor([3.0, 0.5], dtype=torch.float64),
    ... )
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
            break  # the vertex is already active, so the improvement is a rounding error
        active, weights = torch.cat([active, vertex[None]]), torch.cat([weights, weights.new_zeros(1)])
        active, weights = _nearest_in_active_set(active, weights, target)
    return weights @ active


def nearest_point_of_hull(rows: Tensor, target: Tensor) -> Tensor:
    """Return the point of the convex hull of ``rows`` (N, d) nearest to ``target`` (d,), in float64."""
    return nearest_point(lambda direction: rows[(rows @ direction).argmax()], target)


def _nearest_in_active_set(active: Tensor, weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Remove points from ``active`` until the point of its affine hull nearest to ``target`` is inside its convex hull.

    Return the remaining points, and the weights of the nearest point.
    """
    while True:
        affine = _affine_weights(active, target)
        if bool((affine > 0).all()):
            return active, affine
        steps = torch.where(affine <= 0, weights / (weights - affine).where(affine <= 0, 1.0), torch.inf)
        weights = weights + steps.min().clamp(max=1.0) * (affine - weights)
        keep = (weights > 1e-14) & (steps > steps.min())
        active, weights = active[keep], weights[keep] / weights[keep].sum()


def _affine_weights(active: Tensor, target: Tensor) -> Tensor:
    """Return argmin ‖Σ w_k a_k − target‖² subject to Σ w_k = 1."""
    origin, edges = active[0], active[1:] - active[0]
    if not len(edges):
        return target.new_ones(1)
    solution = torch.linalg.lstsq(edges.T, (target - origin)[:, None], driver="gelsd").solution[:, 0]
    return torch.cat([1 - solution.sum()[None], solution])
