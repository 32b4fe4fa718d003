"""Cheap necessary conditions for a point of conv(Y): the range of parts, and the sums of transport plans."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import Oracle, TransportPolytope
from ..parts import Parts, as_tuple
from ..relaxation import missing_ability_reason

__all__ = ["check_means"]


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
    if oracle.has_binary_parts(means):
        outside = [((t < -tolerance) | (t > 1 + tolerance)).flatten(1).any(1) for t in as_tuple(means)]
        _reject(torch.stack(outside).any(0), oracle, what, "its parts must lie between 0 and 1")
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


def _violates(excess: Tensor, is_bound: Tensor, slack: Tensor) -> Tensor:
    """Return which instances have a sum that is too large, or, where sums are not upper bounds, a wrong sum."""
    distance = torch.where(is_bound, excess, excess.abs())
    return (distance > slack.unsqueeze(1)).any(1)


def _reject(wrong: Tensor, oracle: Oracle, what: str, why: str) -> None:
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(f"{what} is not a mean of structures of {oracle.label()} at batch index {index}: {why}")
