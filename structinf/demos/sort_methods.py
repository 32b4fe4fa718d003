"""The ways to train on right orders: each relaxation of assignments by its own loss, and through its layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

import structinf as si

from ..calls.resolution import works_with
from ..errors import UnknownNameError
from ..registry import did_you_mean

__all__ = ["Method", "list_methods", "make_method"]


class Method(NamedTuple):
    """A loss of scores (B, images, ranks) and right ranks (B, images), and the relaxation that it comes from."""

    name: str
    relaxation: si.Relaxation
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def standardise(self) -> bool:
        """Whether the best order alone counts, and not the scores' scale.

        Equal scores have no perceptron loss either, and its gradient, like those of surrogates, leads there; scores
        that are standardised cannot all be equal.
        """
        smooth = isinstance(self.relaxation, si.RegularizedRelaxation) and not self.relaxation.piecewise_constant
        return not (smooth or self.relaxation.is_stochastic)


def list_methods() -> list[str]:
    """Names of all methods: RELAXATION-layer and RELAXATION-loss, with hyphens, for each relaxation of assignments."""
    methods = []
    for name in works_with(si.get_oracle("assignment")):
        relaxation, stem = si.get_relaxation(name), name.replace("_", "-")
        if not relaxation.piecewise_constant:
            methods.append(f"{stem}-layer")
        if isinstance(relaxation, si.RegularizedRelaxation):
            methods.append(f"{stem}-loss")
    return methods


def make_method(name: str) -> Method:
    """The method called ``name``: a Fenchel-Young loss, or the squared error of a layer.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists close and known ones.

    Examples
    --------
    >>> make_method("sparsemap-loss").standardise, make_method("spigot-layer").standardise
    (False, True)
    """
    known = list_methods()
    if name not in known:
        close = did_you_mean(name, known) or "."
        raise UnknownNameError(f"no method is called {name!r}{close} Known: {', '.join(known)}")
    stem, _, kind = name.rpartition("-")
    relaxation = si.get_relaxation(stem.replace("-", "_"))
    layer = si.Layer("assignment", relaxation)

    def squared_error(scores: Tensor, ranks: Tensor) -> Tensor:
        gold = si.encode(ranks, scores, "assignment")
        return (layer(scores) - gold).square().sum((1, 2)).mean()

    loss = si.FenchelYoungLoss("assignment", relaxation) if kind == "loss" else squared_error
    return Method(name, relaxation, loss)
