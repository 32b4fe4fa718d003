"""Errors of queries for oracles without the needed ability."""

from __future__ import annotations

from typing import Any

from ..dp import HypergraphProgram
from ..errors import UnsupportedError
from ..oracle import GibbsOracle, KBest, Oracle, Samplable
from ..regularizers import Regularizer
from ..relaxation import missing_ability_reason
from ..smoothing import Smoothable

__all__ = ["require_ability", "require_gibbs", "require_hypergraph", "unsupported"]


def require_ability(oracle: Oracle, ability: type[Oracle]) -> Any:
    """Return the oracle, or raise UnsupportedError, which names alternatives."""
    if missing := missing_ability_reason(oracle, ability):
        alternative = ""
        if ability is KBest and ability.__name__ not in oracle.unsupported:
            alternative = "; an oracle of your own may have restricted_argmax instead (structinf.Restrictable)"
        elif ability is Samplable and not oracle.requires_nonpositive_theta:
            alternative = (
                '; structinf.infer with "perturbed" needs only the argmax: it draws the best structures of noisy scores'
            )
        raise UnsupportedError(missing + alternative)
    return oracle


def require_hypergraph(oracle: Oracle) -> HypergraphProgram:
    """Return the oracle, or raise UnsupportedError if it has no hypergraph."""
    if not isinstance(oracle, HypergraphProgram):
        raise unsupported(oracle, "no hypergraph of its structures; use an oracle that is a HypergraphProgram")
    return oracle


def require_gibbs(oracle: Oracle, omega: Regularizer) -> GibbsOracle:
    """Return the oracle, or raise UnsupportedError if it has no sums, or if ``omega`` is not the negative entropy."""
    if omega.alpha != 1:
        require_ability(oracle, Smoothable)
        raise unsupported(oracle, f'no random walk for {omega!r}; use regularizer="negentropy"')
    return require_ability(oracle, GibbsOracle)


def unsupported(oracle: Oracle, lack: str) -> UnsupportedError:
    """Return the error of an oracle that has the ``lack``."""
    return UnsupportedError(f"{oracle.label()} has {lack}")
