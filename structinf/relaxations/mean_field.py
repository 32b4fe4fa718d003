"""mean_field: independent variables, or structures, that approximate a graphical model or a factor graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

from ..factor_graphs import FactorGraph
from ..factor_graphs.logic import Table
from ..oracle import Oracle
from ..regularizers import check_temperature
from ..smoothing import log_partition_function
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.factor_groups import Layout
from ..solvers.mean_field import MeanField as NaiveMeanField
from ..solvers.mean_field_blocks import Blocks, find_blocks
from ..solvers.oracle_mean_field import OracleMeanField
from ..solvers.stationary_value import StationaryValue
from ..validation import check_natural
from .variational import VariationalRelaxation

__all__ = ["MeanField"]


@dataclass(frozen=True, kw_only=True)
class MeanField(VariationalRelaxation):
    """Means of the product distribution that is closest to a graphical model: naive mean field.

    The distribution maximises ⟨θ, μ⟩ + temperature · Σ_i H(q_i), where μ_k = Π_{i ∈ k} q_i is the table of factor k.
    The value is a lower bound of temperature · log Z, and the mean lies in conv(Y). The coordinate ascent changes one
    variable after the other, and each change raises the bound. Variables without a common factor change at once.

    In a ``FactorGraph``, the distribution is the product of a distribution of the structures of each oracle, and of a
    distribution of each variable that is in no oracle: structured mean field. A step changes the distribution of one
    oracle: the Gibbs distribution for the expected scores of the tables. The oracles need ``log_partition``. No two of
    them may share a variable. A factor "pair" or "table" may join variables of different oracles, but not two variables
    of one oracle, since these are not independent. If a table has entries of −inf, some of its variables keep the
    values of the best structure, which ``argmax`` of the graph finds. Without tables, the bound is exact.

    The maximum is local if the model has several. Then the value may be below the score of the gold structure, and a
    Fenchel-Young loss may be negative; at the global maximum it is at least 0. More ``starts`` may find a higher bound.

    The gradient of the value is the mean. The gradient of the mean solves the linear equations of the derivatives of
    q; it raises ConvergenceError for an instance that has not converged.

    Parameters
    ----------
    temperature : float
        Positive factor of the entropies.
    starts : int
        The number of starts, of which the highest bound counts, at least 1. The first start is the softmax of the
        scores of each variable alone, or the marginals of each oracle alone. Start r ≥ 2 is the assignment of the
        value r − 2 to all variables. A ``FactorGraph`` has three starts, and ignores further ones.
    tolerance : float
        The solver stops once no probability changes by more than ``tolerance`` in a sweep, or the rounding error of the
        scores.
    max_iter : int
        Maximal number of sweeps over all variables.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.

    References
    ----------
    L. Saul & M. Jordan, Exploiting tractable substructures in intractable networks, NIPS 1996.
    M. Wainwright & M. Jordan, Graphical Models, Exponential Families, and Variational Inference, 2008, sections 5.3
    and 5.5.

    Examples
    --------
    A cycle of three binary variables that prefer different values:

    >>> import torch, structinf as si
    >>> factors = [(0,), (0, 1), (1, 2), (2, 0)]
    >>> sizes = (2, 2, 2)
    >>> field = si.get_oracle(
    ...     "markov_field", cardinalities=sizes, factors=factors
    ... )
    >>> theta = (torch.tensor([0.0, 0.5]), *[-torch.eye(2)] * 3)
    >>> value = si.infer(theta, field, MeanField()).value
    >>> value, si.log_partition(theta, field)
    (tensor(0.8748), tensor(1.1168))
    """

    temperature: float = 1.0
    starts: int = 1
    tolerance: float = 1e-10
    max_iter: int = 2_000
    on_failure: OnFailure = "warn"

    name = "mean_field"
    search_terms = ("variational_inference", "naive_mean_field", "structured_mean_field", "elbo", "cavi")

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_natural("starts", self.starts)
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if not isinstance(oracle, FactorGraph):
            return super().unsupported_reason(oracle)
        if (reason := self.missing_sums(oracle.grouped_factors)) is not None:
            return reason
        blocks = _blocks(oracle)
        return blocks if isinstance(blocks, str) else None

    def _solver(self, oracle: Oracle) -> StationaryValue:
        if not isinstance(oracle, FactorGraph):
            return super()._solver(oracle)
        return OracleMeanField(
            factors=oracle.grouped_factors,
            blocks=cast(Blocks, _blocks(oracle)),
            graph=oracle,
            log_partition_function=log_partition_function,
            **self._options(oracle),
        )

    def solver(self, oracle: Oracle, layout: Layout) -> NaiveMeanField:
        return NaiveMeanField(layout=layout, **self._options(oracle))

    def _options(self, oracle: Oracle) -> dict[str, Any]:
        """Return the options of both solvers."""
        return {
            "label": f"{self.label()} of {oracle.label()}",
            "tolerance": self.tolerance,
            "max_iter": self.max_iter,
            "starts": self.starts,
            "report": lambda status: self.report(
                oracle, status, f"raise max_iter, tolerance or the temperature (now {self.temperature:g})"
            ),
        }

    def exact(self) -> MeanField:
        return dataclasses.replace(self, tolerance=0.0)


def _blocks(graph: FactorGraph) -> Blocks | str:
    """Return the blocks of the distribution, or the reason why there are none, as a clause."""
    factors = graph.grouped_factors
    tables = tuple(isinstance(group.oracle, Table) for group in factors.groups)
    return find_blocks(tuple(factors.groups), tables, factors.names, graph.variables.numel())
