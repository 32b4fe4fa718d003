"""The record of one inference: the relaxed solution and what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from .oracle import Potentials, map_parts

__all__ = ["Solution"]


@dataclass(frozen=True)
class Solution:
    """What :func:`structinf.infer` returns. ``...`` stands for the batch dimensions of θ.

    Attributes
    ----------
    mean : (..., *event) Potentials
        μ, in the form of θ; differentiable as the relaxation says.
    value : (...) Tensor
        max ⟨θ, μ⟩ − Ω(μ): the best score (map), log-partition (marginals) or objective (sparsemap).
    weights : (K, ...) Tensor or None
        Probabilities of the support's structures, 0 beyond an instance's own; differentiable where the mean is.
    gap : (...) Tensor or None
        Upper bound on how far ``value`` is from the optimum, for iterative solvers.
    converged : (...) bool Tensor or None
        Whether the solver met its tolerance.
    oracle_calls : int or None
        Batched calls of the argmax oracle.
    """

    mean: Potentials
    value: Tensor
    weights: Tensor | None = None
    gap: Tensor | None = None
    converged: Tensor | None = None
    oracle_calls: int | None = None
    make_support: Callable[[], Potentials] | None = field(default=None, repr=False)

    @cached_property
    def support(self) -> Potentials | None:
        """(K, ..., *event): the structures with μ = Σ_k weights[k] · support[k]; None if the relaxation keeps none.

        Built on first use, since it is much larger than the mean.
        """
        return self.make_support() if self.make_support is not None else None

    def map(self, batch: Callable[[Tensor, int], Tensor]) -> Solution:
        """This record with every tensor t replaced by ``batch(t, n)``, its batch dimension being the n-th."""

        def row(t: Tensor | None, n: int = 0) -> Tensor | None:
            return None if t is None else batch(t, n)

        make = self.make_support
        return replace(
            self,
            mean=map_parts(lambda t: batch(t, 0), self.mean),
            value=batch(self.value, 0),
            weights=row(self.weights, 1),
            gap=row(self.gap),
            converged=row(self.converged),
            make_support=None if make is None else (lambda: map_parts(lambda t: batch(t, 1), make())),
        )
