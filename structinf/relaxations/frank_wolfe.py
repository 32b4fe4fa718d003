"""frank_wolfe: the mean under any smooth convex regularizer, by a Frank-Wolfe method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from .. import autograd
from ..errors import UnsupportedError
from ..oracle import EntropyProjectable, Oracle, Projectable
from ..parts import Parts, as_tuple, map_parts, multiply_by_temperature
from ..regularizers import check_temperature
from ..shapes import Float
from ..solution import Solution
from ..solvers.active_set import active_set
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.flattening import Flattening
from ..solvers.frank_wolfe import Variant, frank_wolfe
from ..solvers.mean_regularizers import RegularizerName, make_regularizer
from ..solvers.weighted_mean import WeightedMeanResult
from ..validation import check_choice, check_flag
from .weighted_mean import WeightedMeanRelaxation

__all__ = ["FrankWolfe"]


@dataclass(frozen=True, kw_only=True)
class FrankWolfe(WeightedMeanRelaxation):
    """argmax ⟨θ, μ⟩ − temperature · Ω(μ) over μ ∈ conv(Y), for a smooth convex Ω.

    ================  ====================================  =======================================================
    regularizer       Ω(μ)                                  mean
    ================  ====================================  =======================================================
    "squared_l2"      ½ ‖μ‖²                                sparse: the mean of ``sparsemap``
    "entropy"         Σ μ log μ                             dense: every part used by a structure is above 0
    "binary_entropy"  Σ μ log μ + (1 − μ) log (1 − μ)       dense, and below 1 for parts absent from some structure
    a function        your own                              dense if the function has infinite slopes, else sparse
    ================  ====================================  =======================================================

    These entropies sum over the parts of the mean. ``marginals`` uses the entropy of a distribution over
    structures.

    =====================  ============================================================================
    backward               derivative, and when to use it
    =====================  ============================================================================
    "implicit"             The exact derivative of the optimum, from its face and ∇²Ω. It is the default
                           and costs least.
    "unrolled"             The derivative of the steps of the "vanilla" variant, with constant
                           structures. It is also right for a solver stopped early. The last step of the
                           fully corrective variant has the implicit derivative.
    "central_differences"  (μ(θ + εv) − μ(θ − εv)) / 2ε for the cotangent v, since the Jacobian is
                           symmetric. It takes two more solutions. Use it for an Ω whose second
                           derivatives are missing or expensive. The weights have no gradient.
    =====================  ============================================================================

    Parameters
    ----------
    regularizer : "squared_l2", "entropy", "binary_entropy", or callable
        A name from the table, or a function. A function maps means in θ's form, (B, *event) in float64, to (B,),
        each instance independently. It must be strictly convex, with finite gradients in the relative interior of
        conv(Y). Autograd must be able to differentiate it twice; once suffices for central differences with the
        vanilla variant. Tensors captured by the function, such as a matrix, get no gradient.
    temperature : float or Tensor
        Positive factor of Ω. A lower temperature gives a mean closer to the argmax. A tensor with one number receives
        a gradient.
    variant : "fully_corrective" or "vanilla"
        The change of weights after each oracle call. "fully_corrective" finds the best weights of all structures
        found so far; "vanilla" makes one step towards the new structure. The vanilla variant reaches a tolerance
        near 1e-12 slowly or not at all. Its support, and hence its implicit derivative, is right only close to the
        optimum.
    tolerance : float
        The solver stops once the duality gap is below ``tolerance`` times the scale of the scores.
    max_iter : int
        Maximal number of rounds with one oracle call each, at least 1. The calls for starting structures do not
        count.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.
    backward : "implicit", "unrolled" or "central_differences"
        The derivative in the backward pass, as in the table.
    closed_form : bool
        Whether to use a closed form of the oracle, if it has one: ``project`` for the squared norm,
        ``project_entropy`` for the entropies. A closed form of an entropy gives no support.

    References
    ----------
    Blondel, Martins & Niculae 2020, Learning with Fenchel-Young Losses.
    Paulus et al. 2020, Gradient Estimation with Stochastic Softmax Tricks (which Ω for which structure).
    Domke 2010, Implicit Differentiation by Perturbation (central differences).

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([1.0, 0.0, 0.5])
    >>> relaxation = FrankWolfe(regularizer="binary_entropy")
    >>> si.relax(theta, "subset", relaxation, k=1).sum()
    tensor(1.)
    """

    regularizer: RegularizerName | Callable[[Any], Tensor] = "squared_l2"
    temperature: float | Tensor = 1.0
    variant: Variant = "fully_corrective"
    tolerance: float = 1e-12
    max_iter: int = 1000
    on_failure: OnFailure = "warn"
    backward: Literal["implicit", "unrolled", "central_differences"] = "implicit"
    closed_form: bool = True

    name = "frank_wolfe"
    search_terms = ("conditional_gradient", "regularized")

    def __post_init__(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)
        if isinstance(self.regularizer, str) or not callable(self.regularizer):
            check_choice("regularizer", self.regularizer, get_args(RegularizerName), "a function of the mean")
        check_choice("variant", self.variant, get_args(Variant))
        check_choice("backward", self.backward, ("implicit", "unrolled", "central_differences"))
        check_flag("closed_form", self.closed_form)
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if not oracle.requires_nonpositive_theta or self._closed_form(oracle) is not None:
            return super().unsupported_reason(oracle)
        why = f"{oracle.label()} takes scores of at most 0, and "
        if self.regularizer != "squared_l2":
            return f'{why}the gradient of this Ω can make them positive; use regularizer="squared_l2"'
        if self.backward == "central_differences":
            return f'{why}central differences can make them positive; use backward="implicit"'
        return super().unsupported_reason(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        if self.regularizer == "squared_l2" or self._closed_form(oracle) is None:
            return super().solve(oracle, theta, warm_start)
        self.refuse_warm_start(warm_start)
        value = self.conjugate(oracle, theta)
        return Solution(
            mean=self.mean(oracle, theta),
            value=value,
            gap=torch.zeros_like(value),
            converged=torch.ones_like(value, dtype=torch.bool),
        )

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return temperature · Ω(y), (B,)."""
        flattening = Flattening(y)
        regularizer = make_regularizer(self.regularizer, flattening)
        value = regularizer.value(regularizer.lift(flattening.flatten(y)))
        return multiply_by_temperature(value, self.temperature).to(flattening.dtype)

    def _closed_form(self, oracle: Oracle) -> Callable[[Parts], Parts] | None:
        name = self.regularizer
        if self.closed_form and name == "squared_l2" and isinstance(oracle, Projectable):
            return oracle.project
        if self.closed_form and name in ("entropy", "binary_entropy") and isinstance(oracle, EntropyProjectable):
            return partial(oracle.project_entropy, binary=name == "binary_entropy")
        return None

    def _attach_gradient(self, result: autograd.WeightedMean, oracle: Oracle, scaled: Parts) -> tuple[Parts, Tensor]:
        if self.backward == "central_differences":
            support = cast(WeightedMeanResult, result).support

            def nearby(theta: Parts) -> Parts:
                return self._result(oracle, theta, support()).mean

            result = _CentralDifferences(result.mean, result.weights, scaled, nearby, self.tolerance)
        return super()._attach_gradient(result, oracle, scaled)

    def _run_solver(self, oracle: Oracle, scaled: Parts, options: dict[str, Any]) -> WeightedMeanResult:
        if self.regularizer == "squared_l2" and self.variant == "fully_corrective":
            return active_set(oracle, scaled, **options)  # the same method, compiled
        unroll = self.backward == "unrolled"
        return frank_wolfe(oracle, scaled, self.regularizer, variant=self.variant, unroll=unroll, **options)


@dataclass
class _CentralDifferences:
    """A mean with (μ(θ + εv) − μ(θ − εv)) / 2ε as the product of its Jacobian with v.

    Both means are computed in float64. The length of ε v is the fourth root of the tolerance, and at least 1e-4. In
    units of θ / temperature, this length is below 1, the length over which the Jacobian changes. It is above the
    precision of a mean, the square root of the gap.
    """

    mean: Parts
    weights: Tensor
    theta: Parts
    nearby: Callable[[Parts], Parts]
    tolerance: float

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        if weights_cotangent is not None or mean_cotangent is None:
            raise UnsupportedError(
                'backward="central_differences" has no gradient of the weights; use backward="implicit"'
            )
        flattening = Flattening(self.theta)
        v = flattening.flatten(map_parts(Tensor.detach, mean_cotangent))
        finite = v.isfinite().all(1, keepdim=True)
        v = torch.where(finite, v, 0.0)
        largest = v.abs().amax(1, keepdim=True)
        length = max(1e-4, self.tolerance**0.25)
        move = v * torch.where(largest > 0, length / largest, 0.0)
        tensors = [t.detach().expand(len(v), *t.shape[1:]) for t in as_tuple(self.theta)]
        here = flattening.flatten(flattening.as_parts(tensors))
        ahead, behind = (
            flattening.flatten(self.nearby(flattening.as_parts(flattening.split(here + sign * move))))
            for sign in (1, -1)
        )
        return flattening.unflatten(torch.where(finite, (ahead - behind) * (largest / (2 * length)), torch.nan))
