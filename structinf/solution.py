"""The record of one inference: the relaxed solution and what is known about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from .oracle import Oracle
from .parts import Parts, as_tuple

__all__ = ["Solution"]


_MOST_SHOWN = 100_000
"""The largest number of entries of a support that is built to be printed."""


@dataclass(frozen=True, repr=False)
class Solution:
    """What :func:`structinf.infer` returns. ``...`` stands for the batch dimensions of θ.

    Attributes
    ----------
    mean : (..., *event) Parts
        μ, in the form of θ; differentiable as the relaxation says. Where a relaxation keeps samples apart, they stand
        in front of the batch, here and in all the fields.
    value : (...) Tensor
        max ⟨θ, μ⟩ − Ω(μ): the best score (map), log-partition (marginals) or objective (sparsemap).
    weights : (K, ...) Tensor or None
        Probabilities of the support's structures, 0 beyond an instance's own; differentiable where the mean is.
        They may differ between machines, as :attr:`support` says.
    gap : (...) Tensor or None
        Upper bound on how far ``value`` is from the optimum, for iterative solvers.
    residual : (...) Tensor or None
        How far the mean is from the constraints, for solvers that approach them (sinkhorn).
    converged : (...) bool Tensor or None
        Whether the solver met its tolerance.
    oracle_calls : int or None
        Batched calls of the argmax oracle.
    make_support : callable or None
        Builds ``support``.
    oracle : Oracle or None
        With the instance data that the solution is for.
    """

    mean: Parts
    value: Tensor
    weights: Tensor | None = None
    gap: Tensor | None = None
    residual: Tensor | None = None
    converged: Tensor | None = None
    oracle_calls: int | None = None
    make_support: Callable[[], Parts] | None = field(default=None, repr=False)
    oracle: Oracle | None = field(default=None, repr=False)

    @cached_property
    def support(self) -> Parts | None:
        """(K, ..., *event): the structures with μ = Σ_k weights[k] · support[k]; None if the relaxation keeps none.

        Built on first use, since it is much larger than the mean.

        The mean is the same on every machine to rounding. Weights and support are the same where the smallest face of
        conv(Y) that contains the mean is a simplex. Elsewhere several supports have this mean, and rounding decides
        which of them the solver returns.
        """
        return self.make_support() if self.make_support is not None else None

    def __repr__(self) -> str:
        """Return the fields that are not None, with the support; "..." stands for a support of many entries."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.repr}
        if self.weights is not None and self.make_support is not None:
            size = len(self.weights) * sum(t.numel() for t in as_tuple(self.mean))
            fields["support"] = self.support if size <= _MOST_SHOWN else ...  # built on first use
        known = {name: value for name, value in fields.items() if value is not None}
        shown = [f"{name}={'...' if value is ... else repr(value)}" for name, value in known.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def with_batch_shape(
        self,
        restore: Callable[[Tensor, int], Tensor],
        restore_parts: Callable[[Parts, int], Parts],
        oracle: Oracle,
        sample_ndim: int = 0,
    ) -> Solution:
        """This record of a flat batch in the user's shapes; the functions take the place of the batch dimension.

        ``sample_ndim`` is the number of dimensions in front of it.

        Parameters
        ----------
        restore : callable
            Maps a tensor and its number of leading sample dimensions to the user's batch shape.
        restore_parts : callable
            Does the same for parts.
        oracle : Oracle
            The set Y of structures.
        sample_ndim : int
            The number of dimensions before the batch dimension.
        """

        def row(t: Tensor | None, dim: int = 0) -> Tensor | None:
            return None if t is None else restore(t, dim + sample_ndim)

        make = self.make_support
        return replace(
            self,
            mean=restore_parts(self.mean, sample_ndim),
            value=restore(self.value, sample_ndim),
            weights=row(self.weights, 1),
            gap=row(self.gap),
            residual=row(self.residual),
            converged=row(self.converged),
            make_support=None if make is None else (lambda: restore_parts(make(), 1 + sample_ndim)),
            oracle=oracle,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the support itself in place of the function that would build it."""
        state = {**self.__dict__, "support": self.support}
        return {**state, "make_support": None}
