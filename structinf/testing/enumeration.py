"""Exact answers for small instances by going over all structures, in float64.

What an oracle computes cleverly is computed here plainly; the checks compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, inner_product, map_parts

__all__ = ["Enumeration", "exact", "flat_parts", "nearest_point", "numbered"]


def exact(parts: Parts) -> Parts:
    """``parts`` in float64 on the CPU, without a gradient."""
    return map_parts(lambda t: t.detach().to("cpu", torch.float64), parts)


def flat_parts(y: Parts) -> Tensor:
    """Structures (N, *event), in however many tensors, as float64 rows (N, d)."""
    return torch.cat([t.flatten(1) for t in as_tuple(exact(y))], 1)


def numbered(rows: Tensor) -> Tensor:
    """A number 0, 1, ... for each row (N, P), the same for equal ones."""
    # With a column of zeros, since unique takes no rows of length 0.
    return torch.nn.functional.pad(rows, (0, 1)).unique(dim=0, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All structures of one instance.

    Parameters
    ----------
    structures : (N, *event) Potentials
        In float64 on the CPU, as :meth:`structinf.Enumerable.enumerate` lists them.

    Notes
    -----
    ``theta`` is everywhere the potentials of the one instance, (1, *event). Results about
    parts have that form too; forbidden parts are those of −inf.

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
        return inner_product(exact(theta), self.structures)

    def magnitude(self, theta: Parts) -> Tensor:
        """The largest Σ |θ_i y_i| of a structure that is allowed: what rounding errors are relative to."""
        sizes = inner_product(map_parts(torch.abs, exact(theta)), map_parts(torch.abs, self.structures))
        return sizes.where(self.allowed(theta), 0.0).max()

    def allowed(self, theta: Parts) -> Tensor:
        """Which structures have a finite score, (N,) bool."""
        return self.scores(theta) > -torch.inf

    def best(self, theta: Parts) -> Tensor:
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
        p, along = self.probabilities(theta), inner_product(exact(v), self.structures)
        return self.mean(p * (along - p @ along))

    def position(self, y: Parts) -> int | None:
        """Where the structure y, (1, *event), stands in the list; None if it is none of them."""
        found = (flat_parts(self.structures) == flat_parts(y)).all(1).nonzero()
        return int(found[0, 0]) if len(found) else None

    def project(self, theta: Parts) -> Parts:
        """argmin ‖θ − μ‖² over the allowed part of conv(Y), (1, *event); forbidden parts count nothing."""
        rows = flat_parts(self.structures)[self.allowed(theta)]
        target = flat_parts(theta)[0]
        target = target.where(target > -torch.inf, 0.0)
        point = nearest_point(lambda direction: rows[(rows @ direction).argmax()], target)
        sizes = [t[0].numel() for t in as_tuple(self.structures)]
        pieces = iter(point.split(sizes))
        return map_parts(lambda t: next(pieces).reshape(1, *t.shape[1:]), self.structures)


def nearest_point(
    best: Callable[[Tensor], Tensor], target: Tensor, *, tolerance: float = 1e-12, max_iter: int = 1000
) -> Tensor:
    """The point of a polytope nearest to ``target``, by Wolfe's algorithm.

    Parameters
    ----------
    best : callable
        From a direction (d,) to a vertex (d,) of the polytope that goes furthest along it.
    target : (d,) Tensor
        In float64.
    tolerance : float
        Stops once no vertex is nearer than this along the remaining difference, relative to squared sizes.
    max_iter : int
        Most calls of ``best`` after the first.

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
    corral = best(target)[None]
    weights = target.new_ones(1)
    for _ in range(max_iter):
        point = weights @ corral
        rest = target - point
        vertex = best(rest)
        if rest @ (vertex - point) <= tolerance * (1 + rest @ rest + vertex @ vertex):
            break
        if bool((corral == vertex).all(1).any()):
            break  # rounding alone says that it would help
        corral, weights = torch.cat([corral, vertex[None]]), torch.cat([weights, weights.new_zeros(1)])
        corral, weights = _nearest_in_corral(corral, weights, target)
    return weights @ corral


def _nearest_in_corral(corral: Tensor, weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the point nearest to ``target`` in the affine hull of a part of ``corral`` that has it inside."""
    while True:
        affine = _affine_weights(corral, target)
        if bool((affine > 0).all()):
            return corral, affine
        falling = affine <= 0
        steps = torch.where(falling, weights / (weights - affine).where(falling, 1.0), torch.inf)
        weights = weights + steps.min().clamp(max=1.0) * (affine - weights)
        keep = (weights > 1e-14) & (steps > steps.min())
        corral, weights = corral[keep], weights[keep] / weights[keep].sum()


def _affine_weights(corral: Tensor, target: Tensor) -> Tensor:
    """argmin ‖Σ w_k c_k − target‖² subject to Σ w_k = 1."""
    origin, edges = corral[0], corral[1:] - corral[0]
    if not len(edges):
        return target.new_ones(1)
    solution = torch.linalg.lstsq(edges.T, (target - origin)[:, None], driver="gelsd").solution[:, 0]
    return torch.cat([1 - solution.sum()[None], solution])
