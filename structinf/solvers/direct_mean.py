"""The result of solvers that compute a regularized mean without a support."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, PartsT, as_tuple, map_parts, pack_like
from .weighted_mean import WeightedMeanResult

__all__ = ["DirectMean", "DirectlySolvable", "complete", "describes_argmax"]


@dataclass(frozen=True)
class DirectMean:
    """The means μ of a batch, computed from the inequalities of conv(Y) instead of from its vertices.

    Attributes
    ----------
    mean : Parts
        μ, (B, *event), of θ's dtype and device.
    value : (B,) Tensor
        The objective ⟨θ, μ⟩ − Ω(μ).
    gap : (B,) Tensor
        Upper bound of the difference between the maximum and the value.
    converged : (B,) bool Tensor
        Whether the error of the mean is within the solver's tolerance.
    vjp : callable
        Maps a cotangent of the mean, (B, *event), to its product with the Jacobian of μ with respect to θ, (B, *event).
    oracle_calls : int
        The number of calls of the oracle's argmax.
    all_converged : bool
        Whether all instances are known to have converged, so that nobody reads ``converged`` from a GPU again.
    """

    mean: Parts
    value: Tensor
    gap: Tensor
    converged: Tensor
    vjp: Callable[[Parts], Parts]
    oracle_calls: int = 0
    all_converged: bool = False

    def without_support(self) -> _WithoutSupport:
        """Return the result in the form of results with weights, for gradients."""
        return _WithoutSupport(self.mean, self.value.new_zeros(0, len(self.value)), self.vjp)


@dataclass(frozen=True)
class _WithoutSupport:
    mean: Parts
    weights: Tensor
    mean_vjp: Callable[[Parts], Parts]

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        return self.mean_vjp(map_parts(torch.zeros_like, self.mean) if mean_cotangent is None else mean_cotangent)


@runtime_checkable
class DirectlySolvable(Protocol):
    """An oracle with its own solver of max ⟨θ, μ⟩ − ½ ‖μ‖² over conv(Y)."""

    def solve_quadratic(self, theta: Any, tolerance: float, max_iter: int) -> DirectMean:
        """Return the means for ``theta``, already divided by the temperature.

        Parameters
        ----------
        theta : (B | 1, *event) tensor, or a tuple of them
            The scores, finite or −inf.
        tolerance : float
            Bound of ‖μ − μ*‖ relative to the largest ‖y‖. The solver may be more exact.
        max_iter : int
            Maximal number of iterations for each instance.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score.
        """
        ...


def complete(direct: DirectMean, solve: Callable[[Tensor], WeightedMeanResult]) -> DirectMean:
    """Replace the instances of ``direct`` that did not converge by the results of another solver.

    Parameters
    ----------
    direct : DirectMean
        The result for the batch.
    solve : callable
        Maps the indices of instances, (n,) int64, to their result from the other solver.
    """
    rows = (~direct.converged).nonzero()[:, 0]
    if not len(rows):
        return direct
    rest = solve(rows)

    def vjp(cotangent: Parts) -> Parts:
        return put(direct.vjp(cotangent), rest.vjp(map_parts(lambda t: t[rows], cotangent), None))

    def put(all_instances: PartsT, some: PartsT) -> PartsT:
        pairs = zip(as_tuple(all_instances), as_tuple(some), strict=True)
        return cast(PartsT, pack_like([t.index_copy(0, rows, s.to(t.dtype)) for t, s in pairs], all_instances))

    return DirectMean(
        mean=put(direct.mean, rest.mean),
        value=put(direct.value, rest.value),
        gap=put(direct.gap, rest.gap),
        converged=put(direct.converged, rest.converged),
        vjp=vjp,
        oracle_calls=rest.oracle_calls,
    )


@functools.cache
def describes_argmax(kind: type[Oracle], method: str) -> bool:
    """Whether ``method`` describes the structures that ``argmax`` finds: no subclass has replaced ``argmax`` alone."""
    owners = [c.__dict__ for c in kind.__mro__]
    return any(method in o for o in owners) and (
        next(i for i, o in enumerate(owners) if method in o) <= next(i for i, o in enumerate(owners) if "argmax" in o)
    )
