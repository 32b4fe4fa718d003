"""The record of one inference: the relaxed solution and what is known about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .oracle import Oracle
from .parts import Parts, as_tuple

__all__ = [
    "CONVERGED",
    "LOG_VALUE",
    "PADDING",
    "RANKED_STRUCTURES",
    "RANKED_VALUES",
    "WEIGHTS",
    "ZERO",
    "Fill",
    "Solution",
]


class Fill(NamedTuple):
    """The result of an instance that has no structure, or only the structure without parts.

    Attributes
    ----------
    infeasible : float
        The result of an instance without a structure of finite score.
    empty : float
        The result of an empty instance.
    later : float or None
        For results in ranks, with the dimension of ranks in front: the result of an empty instance in all ranks but
        the first. There is at least one rank. None for results without ranks.
    """

    infeasible: float
    empty: float
    later: float | None = None


ZERO = Fill(0.0, 0.0)
"""Parts, losses and entropies."""

LOG_VALUE = Fill(-math.inf, 0.0)
"""Values, log-partition functions and log-probabilities: the maximum, or the logarithm of the sum, of no numbers."""

PADDING = Fill(-1.0, -1.0)
"""Integer labels."""

CONVERGED = Fill(1.0, 1.0)
"""Whether a solver met its tolerance."""

WEIGHTS = Fill(0.0, 1.0, 0.0)
"""Weights of ranked structures, and whether a rank is valid."""

RANKED_VALUES = Fill(-math.inf, 0.0, -math.inf)
"""Scores of ranked structures."""

RANKED_STRUCTURES = Fill(0.0, 0.0, 0.0)
"""The parts of ranked structures."""


class _Restore(Protocol):
    """A function that puts the user's batch dimensions in the place of the flat batch dimension ``dim``."""

    def __call__(self, t: Any, dim: int, fill: Fill, /) -> Any: ...


_MOST_SHOWN = 30
"""The largest number of entries of a tensor that is printed. Larger tensors are shown by their shape."""


def _shown(value: Any) -> str:
    """Return the text of a field for ``repr``."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, Tensor) and value.numel() > _MOST_SHOWN:
        return f"<tensor of shape {tuple(value.shape)}, {value.dtype}>"
    return repr(value)


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
        How far the mean is from the constraints, for solvers that approach them (sinkhorn, lp_map, lp_sparsemap). The
        largest change of a probability in the last iteration, for belief_propagation and mean_field.
    converged : (...) bool Tensor or None
        Whether the solver met its tolerance.
    integral : (...) bool Tensor or None
        Whether the mean is a structure, for relaxations whose mean may lie outside conv(Y) (lp_map).
    oracle_calls : int or None
        Batched calls of the argmax oracle.
    make_support : callable or None
        Builds ``support``.
    oracle : Oracle or None
        With the instance data that the solution is for.
    infeasible : (...) bool Tensor or None
        Which instances have no structure of finite score, with ``on_infeasible="zero"``: their mean is 0 and their
        value −inf. None with ``on_infeasible="raise"``.
    """

    mean: Parts
    value: Tensor
    weights: Tensor | None = None
    gap: Tensor | None = None
    residual: Tensor | None = None
    converged: Tensor | None = None
    integral: Tensor | None = None
    oracle_calls: int | None = None
    make_support: Callable[[], Parts] | None = field(default=None, repr=False)
    oracle: Oracle | None = field(default=None, repr=False)
    infeasible: Tensor | None = None

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
        shown = [f"{name}={'...' if value is ... else _shown(value)}" for name, value in known.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def with_batch_shape(
        self,
        restore: _Restore,
        restore_parts: _Restore,
        oracle: Oracle,
        sample_ndim: int = 0,
    ) -> Solution:
        """This record of a flat batch in the user's shapes; the functions take the place of the batch dimension.

        ``sample_ndim`` is the number of dimensions in front of it.

        Parameters
        ----------
        restore : callable
            Maps a tensor, its number of leading dimensions, and the :class:`Fill` of instances that the solution
            leaves out, to the user's batch shape.
        restore_parts : callable
            Does the same for parts.
        oracle : Oracle
            The set Y of structures.
        sample_ndim : int
            The number of dimensions before the batch dimension.
        """

        def row(t: Tensor | None, dim: int = 0, fill: Fill = ZERO) -> Tensor | None:
            return None if t is None else restore(t, dim + sample_ndim, fill)

        make = self.make_support
        return replace(
            self,
            mean=restore_parts(self.mean, sample_ndim, ZERO),
            value=restore(self.value, sample_ndim, LOG_VALUE),
            weights=row(self.weights, 1, WEIGHTS),
            gap=row(self.gap),
            residual=row(self.residual),
            converged=row(self.converged, 0, CONVERGED),
            integral=row(self.integral, 0, CONVERGED),
            make_support=None if make is None else (lambda: restore_parts(make(), 1 + sample_ndim, RANKED_STRUCTURES)),
            oracle=oracle,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the support itself in place of the function that would build it."""
        state = {**self.__dict__, "support": self.support}
        return {**state, "make_support": None}
