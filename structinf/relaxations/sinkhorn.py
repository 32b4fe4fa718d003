"""sinkhorn: the mean of most entropy over a transport polytope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from .. import autograd
from ..errors import InvalidInputError, PluginError
from ..oracle import Oracle, TransportPolytope
from ..parts import Parts
from ..regularizers import check_temperature
from ..relaxation import RegularizedRelaxation
from ..shapes import Float
from ..solution import Solution
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.sinkhorn import EntropicTransport, add_slack, forbid_unusable_cells
from ..solvers.sinkhorn_torch import finite_range, unrolled_plan
from ..validation import check_choice

__all__ = ["Sinkhorn"]

MAX_RESIDUAL = 1e-4  # the largest residual that rounding may excuse
TINY = torch.finfo(torch.float64).tiny  # whose inverse is finite


@dataclass(frozen=True, kw_only=True)
class Sinkhorn(RegularizedRelaxation):
    """argmax ⟨θ, μ⟩ − temperature Σ μ log μ over plans μ ≥ 0 with the given sums of rows and columns.

    Where one side's sums are bounds, the sum runs over what is left of them as well, so that Ω is 0 at every
    assignment. Nothing is sparse; entries of −inf, and those that no plan can use, are 0.

    Parameters
    ----------
    temperature : float
        Above 0; smaller is closer to the argmax.
    tolerance : float
        The solver stops where no sum of a row or column is off its margin by more than this times the largest margin.
        Values below what rounding of θ / temperature leaves (2e-15 times the range of those that matter) act as that,
        up to 1e-4.
    max_iter : int
        Most sweeps and Newton steps, together.
    initial_temperature : float, optional
        A higher temperature to begin at. (Where sweeps would converge slowly, Newton's method comes down from a higher
        temperature of its own choice anyhow.)
    backward : "implicit" or "unrolled"
        Differentiate the solution, by one linear system of the smaller side's size in O(n m) memory, to any accuracy
        and as often as wanted; or the sweeps as they were done, in O(n m) memory for each, which then are all that
        is done: for gradients of few sweeps (a small ``max_iter``, with ``on_failure="ignore"``).
    on_failure : "warn", "raise" or "ignore"
        What to do about instances that did not meet the tolerance.

    References
    ----------
    M. Cuturi, Sinkhorn distances: lightspeed computation of optimal transport, NIPS 2013. G. Mena, D. Belanger,
    S. Linderman & J. Snoek, Learning latent permutations with Gumbel-Sinkhorn networks, ICLR 2018. M. Eisenberger,
    A. Toker, L. Leal-Taixé, F. Bernard & D. Cremers, A unified framework for implicit Sinkhorn differentiation, CVPR
    2022.

    Examples
    --------
    >>> import structinf as si
    >>> si.relax(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "assignment", Sinkhorn(temperature=0.5))
    tensor([[0.8808, 0.1192],
            [0.1192, 0.8808]])
    """

    temperature: float = 1.0
    tolerance: float = 1e-12
    max_iter: int = 10_000
    initial_temperature: float | None = None
    backward: Literal["implicit", "unrolled"] = "implicit"
    on_failure: OnFailure = "warn"

    name = "sinkhorn"
    search_terms = ("entropic_transport", "optimal_transport")
    requires = TransportPolytope

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.initial_temperature is not None:
            check_temperature(self.initial_temperature)
        check_choice("backward", self.backward, ("implicit", "unrolled"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        plans = self._plans(oracle, theta)
        value, plan = plans.value_and_plan()
        return Solution(mean=plan, value=value, residual=plans.residual, converged=plans.converged)

    def mean(self, oracle: Oracle, theta: Parts) -> Tensor:
        return self._plans(oracle, theta).plan()

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """max ⟨θ, μ⟩ − temperature Σ μ log μ, (B,)."""
        return self.solve(oracle, theta).value

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """temperature Σ y log y, (B,), what is left of a bound among the terms."""
        assert isinstance(y, Tensor)
        rows, columns, _ = cast(TransportPolytope, oracle).margins(y)
        left = [(rows - y.sum(2)).clamp(min=0), (columns - y.sum(1)).clamp(min=0)]
        entropies = [torch.xlogy(t, t).flatten(1).sum(1).to(y.dtype) for t in (y, *left)]
        return self.temperature * torch.stack(entropies).sum(0)

    def _plans(self, oracle: Oracle, theta: Parts) -> EntropicPlans:
        assert isinstance(theta, Tensor)
        plans = EntropicPlans(self, theta, *_checked_margins(cast(TransportPolytope, oracle), theta))
        if self.on_failure != "ignore" and not bool(plans.converged.all()):
            self._report(oracle.label(), plans.residual, plans.converged)
        return plans

    def _report(self, what: str, residual: Tensor, converged: Tensor) -> None:
        worst = int(torch.where(converged, -1, residual).argmax())
        report_nonconvergence(
            f"{self.label()} of {what}: {int((~converged).sum())} of {len(converged)} instances stopped after "
            f"{self.max_iter} iterations, the worst at batch index {worst} with a residual of "
            f"{residual[worst].item():.2e} where tolerance is {self.tolerance:g}; allow more iterations (max_iter), or "
            f"a higher temperature than {self.temperature:g}",
            self.on_failure,
        )


def _checked_margins(oracle: TransportPolytope, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The oracle's margins; PluginError unless they fit θ (B, n, m), whose compiled loops go where they say."""
    rows, columns, total = margins = oracle.margins(theta)
    for name, sums, size in (("rows", rows, theta.shape[1]), ("columns", columns, theta.shape[2])):
        if not isinstance(sums, Tensor) or sums.ndim != 2 or sums.shape[1] != size or len(sums) not in (1, len(theta)):
            received = f"shape {tuple(sums.shape)}" if isinstance(sums, Tensor) else f"a {type(sums).__name__}"
            raise PluginError(
                f"margins of {oracle.label()}: sums of the {name} are a tensor ({len(theta)} or 1, {size}) for theta "
                f"of shape {tuple(theta.shape)}, got {received}"
            )
        wrong = ~(sums >= 0) | sums.isinf()
        if bool(wrong.any()):
            index, place = wrong.nonzero()[0].tolist()
            raise PluginError(
                f"margins of {oracle.label()}: sums of the {name} are 0 or more, got {sums[index, place].item():g} at "
                f"batch index {index}, place {place}"
            )
    if total is not None and total.shape != (len(theta),):
        raise PluginError(
            f"margins of {oracle.label()}: the total is one number for each of {len(theta)} instances, got shape "
            f"{tuple(total.shape)}"
        )
    return margins


class EntropicPlans:
    """Plans for θ (B, n, m) and margins (B | 1, n), (B | 1, m), differentiable in θ and the margins.

    A plan ships the total of the smaller margin, or ``total`` (B,). ``residual`` and ``converged`` are (B,).
    """

    def __init__(
        self, options: Sinkhorn, theta: Tensor, rows: Tensor, columns: Tensor, total: Tensor | None = None
    ) -> None:
        self._options, self._form, t = options, theta, options.temperature
        scores, rows, columns = add_slack(theta.double(), rows, columns, total)
        column_total = columns.sum(1, keepdim=True)
        factor = rows.sum(1, keepdim=True) / torch.where(column_total > 0, column_total, 1.0)
        columns = columns * torch.where(column_total > 0, factor, 1.0)  # rounding of sums
        low, high = finite_range(scores.detach())
        if not bool((torch.stack([high, low, high - low]) / t).isfinite().all()) or t < TINY:
            raise InvalidInputError(f"temperature {t!r} is too small: theta / temperature overflows")
        self._problem = forbid_unusable_cells(scores, rows, columns), rows, columns
        initial_temperature = options.initial_temperature or 0.0
        stopping = (options.tolerance, options.max_iter)
        if options.backward == "unrolled":
            found = self._unrolled = unrolled_plan(*self._problem, t, initial_temperature, *stopping)
        else:
            # Flipped by the shape alone, so that an instance does not depend on the slack of others.
            transpose = theta.shape[1] < theta.shape[2]
            transport = EntropicTransport(t, *stopping, initial_temperature, transpose)
            self._unrolled, found = None, transport.plan(self._problem)
            self._function = autograd.ConvexFunction(
                transport.value,
                transport.gradient,
                transport.value_and_gradient,
                transport.vjp,
                transport.hessian_product,
            )
        self.residual = found.residual.to(theta.dtype)
        self.converged = found.residual <= found.target_residual.clamp(max=max(options.tolerance, MAX_RESIDUAL))

    def plan(self) -> Float[Tensor, "batch rows columns"]:
        """The plans, in θ's dtype."""
        if self._unrolled is not None:
            return self._without_slack(self._unrolled.plan)
        return self._without_slack(autograd.gradient(self._function, self._problem)[0])

    def value_and_plan(self) -> tuple[Tensor, Tensor]:
        """max ⟨θ, P⟩ − temperature Σ P log P, (B,), and the plans."""
        if self._unrolled is None:
            value, (plan, _, _) = autograd.value_and_gradient(self._function, self._problem)
        else:
            plan, fixed = self._unrolled.plan, self._unrolled.plan.detach()
            terms = torch.where(fixed > 0, self._problem[0].detach(), 0.0) * fixed
            terms = terms - self._options.temperature * torch.xlogy(fixed, fixed)
            slopes = self._unrolled.gradient(self._options.temperature)
            value = autograd.attach_envelope_gradient(terms.flatten(1).sum(1), self._problem, slopes)
        return value.to(self._form.dtype), self._without_slack(plan)

    def _without_slack(self, plan: Tensor) -> Tensor:
        n, m = self._form.shape[1:]
        return plan[:, :n, :m].to(self._form.dtype)
