"""Whether a solution's support and weights are the only ones, so that they are the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from structinf.calls.resolution import prepare
from structinf.parts import Parts, as_tuple, map_parts, pack_like
from structinf.relaxation import RELAXATIONS

MARGIN = 1e-4


def find_rivals(theta: Parts, oracle: Any, relaxation: Any = "sparsemap", **options: Any) -> list[np.ndarray]:
    """Structures outside the support that could have weight too, for θ of one instance; none if the weights are unique.

    All structures that can have weight in μ maximise g = θ − ∇Ω(μ). The weights are unique if the face of conv(Y) on
    which g is largest is the simplex of the support. Linear programs over this face tell:

    - Take a random linear function that is constant on the support. If it is constant on the face, the face lies in
      the affine hull of the support.
    - Take the barycentric coordinates with respect to the support. If none is negative on the face, the face is the
      simplex.

    The oracle solves each program, at g plus ``MARGIN`` times the linear function. Structures that miss the face by
    less than about ``MARGIN`` are rivals too.
    """
    theta = map_parts(lambda t: t.detach().double(), theta)
    found, problem = prepare(RELAXATIONS, theta, oracle, relaxation, options)
    solution = found.exact().solve(problem.oracle, problem.theta)
    mean = map_parts(lambda t: t.detach().requires_grad_(), solution.mean)
    g = _vector(problem.theta) - _slope(found.omega(problem.oracle, mean).sum(), mean)
    count = len(solution.weights)
    support = np.stack([_vector(map_parts(lambda t, k=k: t[k], solution.support)) for k in range(count)])

    rivals = []
    for function in _functions(support[:, np.isfinite(g)]):
        near = g.copy()
        near[np.isfinite(g)] += MARGIN * function
        y = _vector(problem.oracle.argmax(_like(near, mean)))
        if not (np.abs(support - y).max(1) < 1e-9).any():
            rivals.append(y)
    return rivals


def _functions(support: np.ndarray) -> list[np.ndarray]:
    """What to maximise, as vectors: ± a function that is constant on the support, and minus each coordinate."""
    edges = support[1:] - support[0]
    constant = np.random.default_rng(0).standard_normal(support.shape[1])
    constant -= np.linalg.pinv(edges) @ (edges @ constant)
    coordinates = np.linalg.pinv(np.column_stack([support, np.ones(len(support))]))[:-1].T
    largest = [(f, np.abs(f).max()) for f in (constant, -constant, *-coordinates)]
    return [f / scale for f, scale in largest if scale > 1e-9]


def _slope(omega: torch.Tensor, mean: Parts) -> np.ndarray:
    """∇Ω(μ)."""
    if not omega.requires_grad:  # Ω = 0
        return np.zeros_like(_vector(mean))
    gradients = torch.autograd.grad(omega, as_tuple(mean), materialize_grads=True)
    return _vector(pack_like(gradients, mean))


def _vector(parts: Parts) -> np.ndarray:
    """The tensors of one instance as one vector."""
    return torch.cat([t.detach().flatten() for t in as_tuple(parts)]).numpy()


def _like(vector: np.ndarray, form: Parts) -> Parts:
    """The inverse of :func:`_vector`."""
    tensors = as_tuple(form)
    pieces = torch.from_numpy(vector).split([t.numel() for t in tensors])
    return pack_like([p.view_as(t) for p, t in zip(pieces, tensors, strict=True)], form)
