"""sparsemap: the quadratically regularized mean, a sparse weighted sum of structures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor
from typing_extensions import Self

from ..oracle import Oracle, Projectable, TransportPolytope
from ..parts import Parts, as_tuple, multiply_by_temperature
from ..regularizers import check_temperature
from ..relaxation import missing_ability_reason
from ..shapes import Float
from ..solvers.active_set import active_set
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.direct_mean import DirectlySolvable, DirectMean, describes_argmax
from ..solvers.flow_projection import project_flow
from ..solvers.transport_projection import project_transport
from ..solvers.weighted_mean import WeightedMeanResult
from ..validation import check_choice
from .weighted_mean import WeightedMeanRelaxation

__all__ = ["SparseMAP"]

_DIRECT_ITERATIONS = 50
"""Newton steps of direct solvers before the active set takes over."""

_FLOW_TOLERANCE = 1e-5
"""The largest tolerance of flows. After the last step, the face of the mean is usually known, and the mean on the face
is exact. These steps are cheap: compared with 0.05, they take at most 30 % more time."""

_EXACT_FLOW_TOLERANCE = 1e-6
"""Below this tolerance, the active-set method solves the instances whose face is not known."""


@dataclass(frozen=True, kw_only=True)
class SparseMAP(WeightedMeanRelaxation):
    """argmax ⟨θ, μ⟩ − ½ temperature ‖μ‖² over μ ∈ conv(Y), by a direct solver or the active-set method.

    The mean is a sparse weighted sum: its support has at most one structure more than there are parts. Direct solvers
    compute the mean of oracles with margins, of arborescences, and of many recursions on the CPU. The active-set method
    solves all other problems, and finds the support and the weights for ``infer``.

    The gradient of the mean is the generalised Jacobian of the projection. Direct solvers give it up to rounding, or to
    about 1e-9 for recursions. The active-set method gives the Jacobian on its support, which is exact where the support
    spans the face of the mean. After an early stop at the default tolerance, the support often does not.

    Parameters
    ----------
    penalty : "auto", "all" or "readout"
        The penalised parts. "all" penalises all parts, so that the mean is the Euclidean projection of θ /
        temperature onto conv(Y). "readout" penalises only the parts kept by ``oracle.readout``, such as a chain's
        unary parts, as in the original paper. "auto" penalises the readout if a structure may use a part several
        times (``oracle.has_binary_parts`` returns False), such as a chain's transition shared by all steps, and all
        parts otherwise.
    temperature : float or Tensor
        Positive factor of the penalty. A lower temperature gives a mean closer to the argmax. A tensor with one number
        receives a gradient.
    tolerance : float
        Bound of the error ‖μ − μ*‖ over the penalised parts, relative to the largest ‖y‖. The solver stops once the
        duality gap guarantees the bound; with normal scores, the error is about a tenth of it. 0 solves to rounding
        errors.
    max_iter : int
        Maximal number of oracle calls of the active-set method after the first; at least 1.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.

    References
    ----------
    Niculae, Martins, Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, §3.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[0.9, 0.5], [0.2, 0.5]])
    >>> solution = si.infer(theta, "assignment", SparseMAP())
    >>> solution.mean, solution.weights
    (tensor([[0.6750, 0.3250],
            [0.3250, 0.6750]]), tensor([0.6750, 0.3250]))
    """

    penalty: Literal["auto", "all", "readout"] = "auto"
    temperature: float | Tensor = 1.0
    tolerance: float = 0.05
    max_iter: int = 1000
    on_failure: OnFailure = "warn"

    name = "sparsemap"
    search_terms = ("active_set", "sparsemax")

    def __post_init__(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)
        check_choice("penalty", self.penalty, ("auto", "all", "readout"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def exact(self) -> Self:
        return replace(self, tolerance=0.0)

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return ½ temperature ‖y‖² over the penalised parts, (B,)."""
        penalised = oracle.readout(y) if self.penalises_readout(oracle, y) else y
        squares = [t.square().flatten(1).sum(1) for t in as_tuple(penalised)]
        return 0.5 * multiply_by_temperature(torch.stack(squares).sum(0), self.temperature)

    def penalises_readout(self, oracle: Oracle, parts: Parts) -> bool:
        """Return whether the penalty counts the readout of ``oracle`` alone.

        Parameters
        ----------
        oracle : Oracle
            The set Y of structures.
        parts : (B | 1, *event) Tensor, or tuple of them
            Scores or structures; their form may decide whether parts are used several times.
        """
        if self.penalty == "all" or not oracle.has_readout:
            return False
        return self.penalty == "readout" or not oracle.has_binary_parts(parts)

    def _closed_form(self, oracle: Oracle) -> Callable[[Parts], Parts] | None:
        penalises_all = self.penalty == "all" or not oracle.has_readout
        has_projection = isinstance(oracle, Projectable) and describes_argmax(type(oracle), "project")
        return cast(Projectable, oracle).project if penalises_all and has_projection else None

    def _estimate_maximum(self, value: Tensor, gap: Tensor) -> Tensor:
        """Return the upper bound, which keeps losses at least 0 up to rounding."""
        return value + gap

    def _run_direct_solver(self, oracle: Oracle, scaled: Parts) -> DirectMean | None:
        options: Any = {"tolerance": self.tolerance, "max_iter": _DIRECT_ITERATIONS}
        readout = self.penalises_readout(oracle, scaled)
        has_margins = missing_ability_reason(oracle, TransportPolytope) is None
        if has_margins and not readout and describes_argmax(type(oracle), "margins"):
            return project_transport(cast(TransportPolytope, oracle), cast(Tensor, scaled), **options)
        if isinstance(oracle, DirectlySolvable) and not readout and describes_argmax(type(oracle), "solve_quadratic"):
            return oracle.solve_quadratic(scaled, **options)
        exact = self.tolerance < _EXACT_FLOW_TOLERANCE
        options["tolerance"] = _FLOW_TOLERANCE if exact else min(self.tolerance, _FLOW_TOLERANCE)
        return project_flow(oracle, scaled, readout=readout, accepted=self.tolerance, exact=exact, **options)

    def _run_solver(self, oracle: Oracle, scaled: Parts, options: dict[str, Any]) -> WeightedMeanResult:
        readout = self.penalises_readout(oracle, scaled)
        return active_set(oracle, scaled, readout=readout, accuracy=options.pop("tolerance"), **options)
