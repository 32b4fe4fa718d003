"""Scores of gold structures, which must be finite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from torch import Tensor

from ..deferred_checks import check_number, skips_checks
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..shapes import Float

__all__ = ["check_least", "gold_scores"]


def gold_scores(oracle: Oracle, theta: Parts, gold: Parts) -> Float[Tensor, " batch"]:
    """Return ⟨θ, y⟩, (B,), for gold structures y.

    Raises InvalidInputError if a gold structure uses a part of score −inf; on a device, at the end of the call.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the structures.
    theta : (B | 1, *event) Parts
        The scores.
    gold : (B, *event) Parts
        The gold structures.
    """
    scores = oracle.score(theta, gold)
    check_least(scores, _is_above_minus_infinity, functools.partial(_check, oracle, theta, gold, scores))
    return scores


def check_least(values: Tensor, passes: Callable[[float], bool], check: Callable[[], None]) -> None:
    """Run ``check`` unless the least of the ``values`` (B,) passes: on a device, at the end of the call."""
    if values.is_cpu:
        check()
    elif values.numel() and not skips_checks(values):
        check_number(values.detach().amin(), passes, check)


def _is_above_minus_infinity(number: float) -> bool:
    return number > -math.inf


def _check(oracle: Oracle, theta: Parts, gold: Parts, scores: Tensor) -> None:
    if math.isfinite(scores.detach().sum().item()):
        return
    if bool(scores.isneginf().any()):
        index = int(scores.isneginf().nonzero()[0, 0])
        part = _forbidden_part(oracle, theta, gold, index)
        raise InvalidInputError(
            f"y: the gold structure at batch index {index} uses a part of score −inf, {part}, so its loss is "
            'infinite; give this part a finite score in theta, correct y, or set on_infeasible to "zero" if the '
            "instance has no structure of finite score"
        )


def _forbidden_part(oracle: Oracle, theta: Parts, gold: Parts, index: int) -> str:
    """Return the words for the first part of score −inf in the gold structure of the instance ``index``."""
    y = map_parts(lambda t: t[index : index + 1], gold)
    for tensor, (scores, parts) in enumerate(zip(as_tuple(theta), as_tuple(y), strict=True)):
        own = scores[index] if scores.shape[0] != 1 else scores[0]
        places = (own.isneginf() & (parts[0] != 0)).nonzero().tolist()
        if places:
            return oracle[index : index + 1].describe_part(y, tensor, tuple(places[0]))
    return "after the addition of its cost"
