"""Cheap checks of points of conv(Y): the bounds of parts, the sums of transport plans, and closed-form projections."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from ..dp import HypergraphProgram
from ..errors import InvalidInputError
from ..oracle import Oracle, Projectable, TransportPolytope
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import missing_ability_reason
from ..restriction import Restrictable
from ..solvers.direct_mean import describes_argmax

__all__ = ["check_means", "part_bounds"]


def part_bounds(oracle: Oracle, like: Parts) -> tuple[Parts, Parts] | None:
    """Return a lower and an upper bound of each part of all structures, (B | 1, *event); None if none is known.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    like : (B, *event) Parts
        Numbers in the form of θ.
    """
    if isinstance(oracle, Restrictable) and missing_ability_reason(oracle, Restrictable) is None:
        return oracle.part_bounds(like)
    if oracle.has_binary_parts(like):
        return map_parts(torch.zeros_like, like), map_parts(torch.ones_like, like)
    if isinstance(oracle, HypergraphProgram):  # its parts count hyperedges
        return map_parts(torch.zeros_like, like), map_parts(lambda t: torch.full_like(t, torch.inf), like)
    return None


def check_means(oracle: Oracle, means: Parts, what: str) -> None:
    """Raise InvalidInputError if an instance of ``means`` (B, *event) is outside conv(Y), as far as known.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    means : (B, *event) Parts
        Means of structures.
    what : str
        The name of the argument, for the message.
    """
    tolerance = torch.finfo(as_tuple(means)[0].dtype).eps ** 0.5
    bounds = part_bounds(oracle, means)
    if bounds is not None:
        for t, low, high in zip(as_tuple(means), *map(as_tuple, bounds), strict=True):
            if not bool(((t < low) | (t > high)).any()):
                continue
            slack = tolerance * (1 + t.abs())
            outside = (t < low - slack) | (t > high + slack)
            if bool(outside.any()):
                place = tuple(outside.nonzero()[0].tolist())
                ends = (end.expand_as(t)[place].item() for end in (low, high))
                why = "a part must lie between {:g} and {:g}, got {:g}".format(*ends, t[place].item())
                _reject(outside.flatten(1).any(1), oracle, what, why)
    if oracle.known_set == "one_of_n" and isinstance(means, Tensor):
        _reject((means.sum(1) - 1).abs() > 2 * tolerance, oracle, what, "its parts must have the sum 1")
    # The bounds of free bits are all conditions.
    elif oracle.known_set != "all_bits" and _has_projection(oracle):
        with torch.no_grad():
            projections = as_tuple(oracle.project(means))
        moves = [(p - t).abs() > tolerance * (1 + t.abs()) for p, t in zip(projections, as_tuple(means), strict=True)]
        far = torch.stack([move.flatten(1).any(1) for move in moves]).any(0)
        _reject(far, oracle, what, "it is outside of the convex hull of the structures")
    has_margins = missing_ability_reason(oracle, TransportPolytope) is None
    if has_margins and isinstance(oracle, TransportPolytope) and isinstance(means, Tensor):
        rows, columns, _ = oracle.margins(means)
        slack = tolerance * (1 + rows.sum(1))
        more = (rows.sum(1) - columns.sum(1)).unsqueeze(1)
        # The sums of the side with the larger total are upper bounds.
        wrong = [
            _violates(means.sum(2) - rows, more > slack.unsqueeze(1), slack),
            _violates(means.sum(1) - columns, more < -slack.unsqueeze(1), slack),
            (means < -tolerance).flatten(1).any(1),
        ]
        if not getattr(oracle, "allow_unmatched", False):
            _reject(torch.stack(wrong).any(0), oracle, what, "its rows or columns have wrong sums")


def _has_projection(oracle: Oracle) -> TypeGuard[Projectable]:
    return isinstance(oracle, Projectable) and describes_argmax(type(oracle), "project")


def _violates(excess: Tensor, is_bound: Tensor, slack: Tensor) -> Tensor:
    """Return which instances have a sum that is too large, or, where sums are not upper bounds, a wrong sum."""
    distance = torch.where(is_bound, excess, excess.abs())
    return (distance > slack.unsqueeze(1)).any(1)


def _reject(wrong: Tensor, oracle: Oracle, what: str, why: str) -> None:
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"{what} is not a mean of structures of {oracle.label()} at batch index {index}: {why}; pass labels, "
            "structures or means, not scores or costs"
        )
