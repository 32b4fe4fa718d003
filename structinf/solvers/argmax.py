"""Calls of an oracle's argmax, with checks of the result's shape, dtype and device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import PluginError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts
from ..shapes import Float
from ..validation import check_feasible

__all__ = ["best_score", "best_structure"]


def best_structure(oracle: Oracle, theta: Parts) -> Parts:
    """Return argmax ⟨θ, y⟩, (B, *event), without a gradient; raise PluginError if the result violates the protocol."""
    detached = map_parts(torch.Tensor.detach, theta)
    versions = [t._version for t in as_tuple(detached)]
    with torch.no_grad():
        y = oracle.argmax(detached)
    wrong = _wrong_form(y, detached)
    if wrong is None and versions != [t._version for t in as_tuple(detached)]:
        wrong = "it changed theta in place"
    if wrong is not None:
        raise PluginError(
            f"argmax of {oracle.label()} violates its protocol: {wrong}; run structinf.testing.check_oracle to test "
            "the oracle"
        )
    return y


def best_score(oracle: Oracle, theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
    """Return ⟨θ, y⟩, (B,), for the best structures ``y``; raise InfeasibleError if a best score is −inf."""
    value = oracle.score(theta, y)
    check_feasible(value.detach(), f"structure of {oracle.label()}")
    return value


def _describe(parts: Any) -> str:
    return f"a tuple of {len(parts)} tensors" if isinstance(parts, tuple) else f"a {type(parts).__name__}"


def _wrong_form(y: Any, theta: Parts) -> str | None:
    """Return how the form of ``y`` violates the protocol, as a clause, or None."""
    if isinstance(y, tuple) != isinstance(theta, tuple) or len(as_tuple(y)) != len(as_tuple(theta)):
        return f"it returned {_describe(y)}, but theta is {_describe(theta)}"
    size = batch_size(theta)
    for z, t in zip(as_tuple(y), as_tuple(theta), strict=True):
        received = (tuple(z.shape), z.dtype, z.device) if isinstance(z, Tensor) else type(z).__name__
        wanted = ((size, *t.shape[1:]), t.dtype, t.device)
        if received != wanted:
            return f"it returned {received}, but shape, dtype and device must be {wanted}"
    return None
