"""belief_propagation: approximate marginals of a graphical model by message passing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import InvalidInputError, SolverLimitError
from ..factor_graphs import FactorGraph
from ..oracle import Oracle
from ..regularizers import check_temperature
from ..smoothing import log_partition_function
from ..solvers.belief_propagation import BeliefPropagation as MessagePassing
from ..solvers.belief_propagation import Schedule, Semiring, spanning_tree_weights
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.factor_groups import Layout
from ..solvers.oracle_max_product import OracleMaxProduct
from ..solvers.oracle_messages import OracleMessages
from ..solvers.stationary_value import StationaryValue
from ..validation import check_choice, check_fraction, check_positive
from .variational import VariationalRelaxation

__all__ = ["BeliefPropagation"]


@dataclass(frozen=True, kw_only=True)
class BeliefPropagation(VariationalRelaxation):
    """Beliefs of loopy belief propagation: approximate marginals of a graphical model or a factor graph.

    The beliefs are a stationary point of ⟨θ, μ⟩ + temperature · H(μ) over the local polytope: tables of
    probabilities that agree on shared variables. H(μ) = Σ_k ρ_k (H(μ_k) − Σ_{i ∈ k} H(μ_i)) + Σ_i H(μ_i) is the Bethe
    entropy, with ρ_k = 1. On a model without cycles, the beliefs are the marginals, and the value is
    temperature · log Z.

    On a model with cycles, the Bethe value is no bound of log Z: it may lie above or below. The mean may lie outside
    conv(Y), and a Fenchel-Young loss may be negative. With ``weights`` of random spanning trees (tree-reweighting),
    H is concave, the value is an upper bound of temperature · log Z, and losses are at least 0.

    In a ``FactorGraph``, the factors are oracles with ``log_partition``, such as trees, chains and logic factors. The
    beliefs are the probability of each variable, and the means of the additional parts. A message takes the marginals
    of an oracle, which count all of its structures. Without cycles, the beliefs are the exact marginals. Two factors
    that share several variables form a cycle, and so does a factor that has a variable twice. "max_product" needs only
    the argmax of each oracle, which it calls once for each variable of a factor in every iteration.

    Entries of −inf on a cycle can let messages grow without end. Such an instance does not converge.

    The gradient of the value is the mean. The gradient of the mean solves the linear equations of the derivatives of
    the messages; it raises ConvergenceError for an instance whose messages have not converged.

    Parameters
    ----------
    temperature : float
        Positive factor of H.
    kind : "sum_product" or "max_product"
        "max_product" returns a structure, whose gradient is 0, and its score: the best structure if the model has no
        cycles, else an approximation. In a ``FactorGraph`` with cycles, the messages may lead to no structure.
    weights : sequence of float, or "spanning_tree", optional
        The weight ρ_k of each factor, above 0; by default 1. The value is an upper bound if the weights are the
        probabilities of the edges in a random spanning tree. "spanning_tree" takes a uniformly drawn spanning tree of a
        model with factors of one and two variables.
    schedule : "parallel" or "residual"
        "parallel" computes all messages from the last ones. "residual" computes one message after the other, the one
        that changes most first; in a ``FactorGraph``, all messages of one factor. It often converges where parallel
        messages oscillate. Models of tables need the CPU. A graph of K factors makes about K updates of one factor for
        each parallel iteration.
    damping : float, optional
        The share of the old message in a new one, at least 0 and below 1. By default 0, and larger for instances that
        do not converge, except for the residual schedule of models of tables.
    tolerance : float
        The solver stops once no logarithm of a message changes by more than ``tolerance``, or the rounding error of
        the scores. In a ``FactorGraph``, it stops once the probabilities of each variable in its factors differ by no
        more from its belief.
    max_iter : int
        Maximal number of computations of each message, on average in the residual schedule.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing. If
        max-product leads to no structure of finite score, "warn" and "raise" raise SolverLimitError.
        "ignore" returns a structure with the value −inf, and ``converged`` is False.

    References
    ----------
    J. Yedidia, W. Freeman & Y. Weiss, Constructing free-energy approximations and generalized belief propagation
    algorithms, IEEE Trans. Inf. Theory 2005.
    M. Wainwright, T. Jaakkola & A. Willsky, A new class of upper bounds on the log partition function, IEEE Trans. Inf.
    Theory 2005.
    G. Elidan, I. McGraw & D. Koller, Residual belief propagation, UAI 2006.
    M. Welling & Y. W. Teh, Linear response algorithms for approximate inference in graphical models, Neural
    Computation 2004.

    Examples
    --------
    A cycle of three binary variables that prefer different values:

    >>> import structinf as si
    >>> factors = [(0,), (0, 1), (1, 2), (2, 0)]
    >>> sizes = (2, 2, 2)
    >>> field = si.get_oracle(
    ...     "markov_field", cardinalities=sizes, factors=factors
    ... )
    >>> theta = (torch.tensor([0.0, 0.5]), *[-torch.eye(2)] * 3)
    >>> value = si.infer(theta, field, BeliefPropagation()).value
    >>> value, si.log_partition(theta, field)
    (tensor(1.2153), tensor(1.1168))
    """

    temperature: float = 1.0
    kind: Semiring = "sum_product"
    weights: Sequence[float] | Literal["spanning_tree"] | None = None
    schedule: Schedule = "parallel"
    damping: float | None = None
    tolerance: float = 1e-10
    max_iter: int = 2_000
    on_failure: OnFailure = "warn"

    name = "belief_propagation"
    search_terms = (
        "sum_product",
        "max_product",
        "loopy_bp",
        "bethe",
        "message_passing",
        "tree_reweighted",
        "trw",
        "trbp",
    )

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_choice("kind", self.kind, get_args(Semiring))
        check_choice("schedule", self.schedule, get_args(Schedule))
        if self.damping is not None:
            check_fraction("damping", self.damping)
        check_stopping(self.max_iter, self.tolerance, self.on_failure)
        if isinstance(self.weights, str):
            check_choice("weights", self.weights, ("spanning_tree",), "a weight for each factor")
        elif self.weights is not None:
            object.__setattr__(self, "weights", _check_weights(self.weights))

    @property
    def piecewise_constant(self) -> bool:
        return self.kind == "max_product"

    @property
    def mean_may_leave_hull(self) -> bool:
        return self.kind == "sum_product"

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if not isinstance(oracle, FactorGraph):
            return super().unsupported_reason(oracle)
        if self.kind == "max_product":
            return None
        return self.missing_sums(oracle.grouped_factors)

    def _solver(self, oracle: Oracle) -> StationaryValue:
        if not isinstance(oracle, FactorGraph):
            return super()._solver(oracle)
        label = f"{self.label()} of {oracle.label()}"
        if self.weights == "spanning_tree":
            raise InvalidInputError(f'{label}: weights="spanning_tree" takes a markov_field; pass a weight per factor')
        options = self._options(oracle, self.weights, len(oracle.factors), "lp_sparsemap")
        if self.kind == "max_product":
            return OracleMaxProduct(
                factors=oracle.grouped_factors,
                report_failed=lambda failed: self._report_failed(label, failed, "lp_map"),
                **options,
            )
        return OracleMessages(factors=oracle.grouped_factors, log_partition_function=log_partition_function, **options)

    def solver(self, oracle: Oracle, layout: Layout) -> MessagePassing:
        weights, label = self.weights, f"{self.label()} of {oracle.label()}"
        if weights == "spanning_tree":
            weights = spanning_tree_weights(layout, label)
        return MessagePassing(
            layout,
            kind=self.kind,
            report_failed=lambda failed: self._report_failed(label, failed, 'kind="sum_product"'),
            **self._options(oracle, weights, len(layout.factors), 'weights="spanning_tree"'),
        )

    def _options(
        self, oracle: Oracle, weights: Sequence[float] | None, factors: int, alternative: str
    ) -> dict[str, Any]:
        """Return the options of both solvers. Messages of failure suggest an ``alternative``."""
        if weights is not None and len(weights) != factors:
            raise InvalidInputError(
                f"weights must have one weight for each of the {factors} factors, got {len(weights)}"
            )
        remedy = (
            f"raise max_iter, damping (now {self.damping}) or the temperature (now {self.temperature:g}), or use "
            f"{alternative}"
        )
        return {
            "label": f"{self.label()} of {oracle.label()}",
            "weights": weights,
            "tolerance": self.tolerance,
            "max_iter": self.max_iter,
            "damping": self.damping,
            "schedule": self.schedule,
            "report": lambda status: self.report(oracle, status, remedy),
        }

    def _report_failed(self, label: str, failed: Tensor, alternative: str) -> None:
        """Raise SolverLimitError for instances without a structure of finite score, unless to be ignored.

        The message suggests an ``alternative``.
        """
        if self.on_failure != "ignore":
            rows = failed.nonzero()[:, 0].tolist()
            raise SolverLimitError(
                f"{label}: the messages lead to no structure of finite score, although one may exist; use "
                f"{alternative}, or an exact relaxation such as map",
                rows[0],
                rows,
            )

    def exact(self) -> BeliefPropagation:
        return dataclasses.replace(self, tolerance=0.0)


def _check_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Return ``weights`` as a tuple of numbers above 0."""
    values = weights.tolist() if isinstance(weights, torch.Tensor) else weights
    if not isinstance(values, Sequence):
        raise InvalidInputError(f'weights must be a weight for each factor or "spanning_tree", got {weights!r}')
    for k, weight in enumerate(values):
        check_positive(f"weights[{k}]", weight)
    return tuple(float(weight) for weight in values)
