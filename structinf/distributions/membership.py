"""Checks that values are structures of an oracle, without a list of all structures."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..calls.gold import gold_structures
from ..calls.problem import Problem
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts
from ..solvers.argmax import best_structure

__all__ = ["are_members", "check_members"]


def check_members(problem: Problem, value: Any) -> Parts:
    """Return ``value`` as structures (B, *event) of the problem; raise InvalidInputError if an entry is no structure.

    The check decodes ``value`` to labels and encodes the labels again. Without labels, the oracle's ``contains`` or
    bounds of parts decide, and a binary structure y must be the argmax for the scores 2y − 1, since all other binary
    structures score less.
    """
    y = gold_structures(problem, value, "value")
    oracle = problem.oracle
    if type(oracle).decode is Oracle.decode and not oracle.requires_nonpositive_theta:
        best = best_structure(oracle, problem.without_padding(map_parts(lambda t: 2 * t - 1, y)))
        wrong = _is_binary(y) & _is_binary(best) & _any_part_of_instance(torch.ne, y, best)
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0, 0])
            raise InvalidInputError(f"value is not a structure of {oracle.label()} at batch index {index}")
    return y


def are_members(problem: Problem, value: Parts) -> Tensor:
    """Return a mask of the instances accepted by :func:`check_members`, (*batch) bool."""
    size = problem.batch_shape.numel()
    if size <= 1 or _passes(problem, value):
        found = [_passes(problem, value)] * size
    else:
        rows = map_parts(lambda t: t.reshape(size, *t.shape[len(problem.batch_shape) :]), value)
        found = [True] * size  # an empty instance has one structure, and the values in its padding have no effect
        for k, b in enumerate(range(size) if problem.solved is None else problem.solved.index.tolist()):
            found[b] = _passes(_row(problem, k), map_parts(lambda t, b=b: t[b], rows))
    return torch.tensor(found, dtype=torch.bool, device=as_tuple(problem.theta)[0].device).view(problem.batch_shape)


def _passes(problem: Problem, value: Any) -> bool:
    try:
        check_members(problem, value)
    except InvalidInputError:
        return False
    return True


def _row(problem: Problem, b: int) -> Problem:
    """Return the problem of instance ``b`` alone."""
    own = map_parts(lambda t: t if len(t) == 1 != batch_size(problem.theta) else t[b : b + 1], problem.theta)
    return dataclasses.replace(
        problem, oracle=problem.oracle[b : b + 1], theta=own, batch_shape=torch.Size(), solved=None
    )


def _is_binary(y: Parts) -> Tensor:
    """Return a mask of the instances whose parts are all 0 or 1, (B,) bool."""
    return ~_any_part_of_instance(lambda t, _: (t != 0) & (t != 1), y, y)


def _any_part_of_instance(holds: Any, y: Parts, z: Parts) -> Tensor:
    """Return a mask of the instances for which ``holds`` is true at any part of ``y`` and ``z``, (B,) bool."""
    each = [holds(s, t).flatten(1).any(1) for s, t in zip(as_tuple(y), as_tuple(z), strict=True)]
    return torch.stack(each).any(0)
