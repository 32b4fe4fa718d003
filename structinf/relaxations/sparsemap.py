"""sparsemap: the quadratically regularised mean, a few structures with their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..oracle import Oracle, Projectable
from ..parts import Parts, as_tuple
from ..regularizers import check_temperature
from ..shapes import Float
from ..solvers.active_set import active_set
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.weighted_mean import WeightedMeanResult
from ..validation import check_choice
from .weighted_mean import WeightedMeanRelaxation

__all__ = ["SparseMAP"]


@dataclass(frozen=True, kw_only=True)
class SparseMAP(WeightedMeanRelaxation):
    """argmax ⟨θ, μ⟩ − ½ temperature ‖μ‖² over μ ∈ conv(Y), by the active-set method.

    The mean is a weighted sum of a few structures. Its gradient, and that of the weights, is the
    generalised Jacobian on these structures, exact wherever the support is locally constant.

    Parameters
    ----------
    penalty : "all" or "readout"
        Penalise all parts (the Euclidean projection of θ / temperature onto conv(Y)), or only
        those that ``oracle.readout`` keeps, as first published (a chain's unary parts).
    temperature : float
        Above 0; smaller is closer to the argmax.
    tolerance : float
        The solver stops on a duality gap below this, relative to the scores' scale.
    max_iter : int
        Most calls of the oracle after the first; at least 1.
    on_failure : "warn", "raise" or "ignore"
        What to do about instances that did not meet the tolerance.

    References
    ----------
    Niculae, Martins, Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, §3.

    Examples
    --------
    >>> import structinf as si
    >>> solution = si.infer(torch.tensor([[0.9, 0.5], [0.2, 0.5]]), "assignment", SparseMAP())
    >>> solution.mean, solution.weights
    (tensor([[0.6750, 0.3250],
            [0.3250, 0.6750]]), tensor([0.6750, 0.3250]))
    """

    penalty: Literal["all", "readout"] = "all"
    temperature: float = 1.0
    tolerance: float = 1e-12
    max_iter: int = 1000
    on_failure: OnFailure = "warn"

    name = "sparsemap"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_choice("penalty", self.penalty, ("all", "readout"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """½ temperature ‖y‖² over the penalised parts, (B,)."""
        penalised = oracle.readout(y) if self.penalty == "readout" else y
        squares = [t.square().flatten(1).sum(1) for t in as_tuple(penalised)]
        return 0.5 * self.temperature * torch.stack(squares).sum(0)

    def _closed_form(self, oracle: Oracle) -> Callable[[Parts], Parts] | None:
        penalises_all = self.penalty == "all" or type(oracle).readout is Oracle.readout
        return oracle.project if penalises_all and isinstance(oracle, Projectable) else None

    def _run_solver(self, oracle: Oracle, scaled: Parts, options: dict[str, Any]) -> WeightedMeanResult:
        return active_set(oracle, scaled, readout=self.penalty == "readout", **options)
