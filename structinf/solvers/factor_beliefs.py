"""The Gibbs distribution of each factor of a graph, for given scores of its variables: sums, means and covariances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, map_parts, scale_per_instance
from .factor_projections import GroupScores
from .local_polytope_scores import LocalPolytope

__all__ = ["Beliefs", "Direction", "believe", "covariances", "unit_direction"]


class Beliefs(NamedTuple):
    """The Gibbs distributions of the factors of a group.

    Attributes
    ----------
    theta : Parts
        The scores of the oracle, R · F instances.
    value : (R, F) Tensor
        log Z of the values of the variables, with the additional scores.
    mean : (R, F, m) Tensor
        The probability of each variable.
    additional : (R, F, a) Tensor
        The means of the additional parts.
    """

    theta: Parts
    value: Tensor
    mean: Tensor
    additional: Tensor


def believe(
    log_partition_function: Callable[[Any], Any], scores: GroupScores, variables: Tensor, factor: Tensor | float = 1.0
) -> Beliefs:
    """Return the Gibbs distributions for scores (R, F, m) of the variables, and ``factor`` · additional scores.

    Parameters
    ----------
    log_partition_function : callable
        Maps an oracle to log Z with its derivatives, a ConvexFunction.
    scores : GroupScores
        The factors.
    variables : (R, F, m) Tensor
        The scores of the variables.
    factor : (F, 1) Tensor, or float
        The factor of the additional scores.
    """
    rows, shape = torch.arange(len(variables), device=variables.device), variables.shape[:2]
    theta = scores.as_scores(rows, scores.sign * variables, factor)
    with scores.named(rows):
        value, mean = log_partition_function(scores.oracle).value_and_gradient(theta)
    vectors = scores.group.as_vectors(mean)
    vectors = vectors.view(*shape, vectors.shape[-1])
    m = variables.shape[2]
    # In the values of variables, a part that is 1 minus its variable scores the variable's score less.
    value = value.view(shape) + (variables * scores.offset).sum(2)
    return Beliefs(theta, value, scores.to_coordinates(vectors[..., :m]), vectors[..., m:])


def covariances(
    log_partition_function: Callable[[Any], Any], scores: GroupScores, theta: Parts, change: Tensor, additional: Tensor
) -> Tensor:
    """Return the derivatives of variables and additional parts (R, F, m + a) for changes of their scores.

    The scores of the distributions are ``theta``, R · F instances of the oracle, as in :class:`Beliefs`.
    """
    m = change.shape[2]
    vectors = torch.cat([scores.sign * change, additional], 2).flatten(0, 1)
    vectors = vectors.masked_fill(scores.group.as_vectors(theta).isneginf(), 0)
    product = log_partition_function(scores.oracle).hessian_product(theta, scores.group.as_parts(vectors))
    found = scores.group.as_vectors(product).view(*change.shape[:2], vectors.shape[-1])
    return torch.cat([scores.sign * found[..., :m], found[..., m:]], 2)


class Direction(NamedTuple):
    """A direction of scores, divided by its length.

    Attributes
    ----------
    length : (B,) Tensor
        The divisor: the largest |entry| of each instance, or 1 if this is 0 or infinite.
    is_zero : (B,) bool Tensor
        Whether all entries are 0.
    variables : (B, n) Tensor
        The direction of the variables' scores, 0 for scores of −inf.
    additional : list of (B, F, a) Tensor
        The direction of each group's additional scores.
    """

    length: Tensor
    is_zero: Tensor
    variables: Tensor
    additional: list[Tensor]


def unit_direction(problem: LocalPolytope, v: Parts) -> Direction:
    """Return the direction ``v`` (B | 1, *event) in the coordinates of ``problem``, for at least one instance."""
    size = len(problem.theta)
    v = map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), v)
    largest = torch.stack([t.double().abs().flatten(1).amax(1) for t in as_tuple(v) if t[0:1].numel()]).amax(0)
    length = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    variables, additional = problem.from_parts(map_parts(Tensor.double, scale_per_instance(v, 1 / length)))
    return Direction(length, largest == 0, variables.masked_fill(problem.forbidden, 0), additional)
