"""sinkhorn: the mean of maximal entropy over a transport polytope."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from .. import autograd
from ..errors import InvalidInputError, renumber_instances
from ..oracle import Oracle, TransportPolytope
from ..parts import Parts, divide_by_temperature, multiply_by_temperature
from ..regularizers import check_temperature
from ..relaxation import RegularizedRelaxation
from ..shapes import Float
from ..solution import Solution
from ..solvers.argmax import best_structure
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.margins import checked_margins
from ..solvers.sinkhorn import EntropicTransport, SinkhornResult, add_slack, equal_totals, forbid_unusable_cells
from ..solvers.sinkhorn_torch import finite_range, unrolled_plan
from ..validation import check_choice

__all__ = ["Sinkhorn"]

MAX_RESIDUAL = 1e-4  # the largest residual accepted as rounding
TINY = torch.finfo(torch.float64).tiny  # the smallest temperature; its inverse is finite


@dataclass(frozen=True, kw_only=True)
class Sinkhorn(RegularizedRelaxation):
    """argmax ⟨θ, μ⟩ − temperature Σ μ log μ over plans μ ≥ 0 with the given sums of rows and columns.

    If the sums of one side are bounds, the entropy also includes the unused rest of each bound, so that Ω is 0 at
    every assignment. The plan is dense: only entries of score −inf and entries unusable by every plan are 0.

    Parameters
    ----------
    temperature : float or Tensor
        Positive factor of Ω. A lower temperature gives a mean closer to the argmax. A tensor with one number receives
        a gradient. Below about 1e-13 times the
        range of the scores, rounding hides the entropy. Instances without a solution in floating point then get the
        plan of highest score, with gradient 0.
    tolerance : float
        The solver stops once each sum of a row or column differs from its margin by at most ``tolerance`` times the
        largest margin. The tolerance is at least the rounding error, 2e-15 times the range of the relevant scores
        over the temperature, up to 1e-4.
    max_iter : int
        Maximal number of sweeps and Newton steps together.
    initial_temperature : float, optional
        A higher temperature to start at; by default none. If the sweeps converge slowly, Newton's method starts at
        a higher temperature chosen by the solver, with or without this option.
    backward : "implicit" or "unrolled"
        "implicit" differentiates the solution by a linear system of the smaller side's size, in O(n m) memory, to
        any accuracy and order. "unrolled" differentiates the sweeps, in O(n m) memory for each sweep, and solves by
        sweeps alone. Use it for the gradient of a limited number of sweeps (``max_iter`` with
        ``on_failure="ignore"``).
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.

    References
    ----------
    M. Cuturi, Sinkhorn distances: lightspeed computation of optimal transport, NIPS 2013.
    G. Mena, D. Belanger, S. Linderman & J. Snoek, Learning latent permutations with Gumbel-Sinkhorn networks, ICLR
    2018.
    M. Eisenberger, A. Toker, L. Leal-Taixé, F. Bernard & D. Cremers, A unified framework for implicit Sinkhorn
    differentiation, CVPR 2022.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> si.relax(theta, "assignment", Sinkhorn(temperature=0.5))
    tensor([[0.8808, 0.1192],
            [0.1192, 0.8808]])
    """

    temperature: float | Tensor = 1.0
    tolerance: float = 1e-12
    max_iter: int = 10_000
    initial_temperature: float | None = None
    backward: Literal["implicit", "unrolled"] = "implicit"
    on_failure: OnFailure = "warn"

    name = "sinkhorn"
    search_terms = ("entropic_transport", "optimal_transport")
    requires = TransportPolytope

    def __post_init__(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)
        if self.initial_temperature is not None:
            check_temperature(self.initial_temperature, name="initial_temperature")
        check_choice("backward", self.backward, ("implicit", "unrolled"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        if isinstance(self.temperature, Tensor):
            found = self._at_temperature_1().solve(oracle, divide_by_temperature(theta, self.temperature))
            return replace(found, value=multiply_by_temperature(found.value, self.temperature))
        plans = self._plans(oracle, theta)
        value, plan = plans.value_and_plan()
        if plans.vertices is not None:
            best = oracle.score(theta, plans.vertices) - self.omega(oracle, plans.vertices)
            value = torch.where(plans.is_vertex, best, value)
        return Solution(mean=plan, value=value, residual=plans.residual, converged=plans.converged)

    def mean(self, oracle: Oracle, theta: Parts) -> Tensor:
        if isinstance(self.temperature, Tensor):
            return self._at_temperature_1().mean(oracle, divide_by_temperature(theta, self.temperature))
        return self._plans(oracle, theta).plan()

    def _at_temperature_1(self) -> Sinkhorn:
        """Return the relaxation of scores divided by the temperature."""
        return replace(self, temperature=1.0)

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return max ⟨θ, μ⟩ − temperature Σ μ log μ, (B,)."""
        return self.solve(oracle, theta).value

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return temperature Σ y log y, (B,), summed over the plan and the unused rests of bounds."""
        assert isinstance(y, Tensor)
        rows, columns, _ = cast(TransportPolytope, oracle).margins(y)
        left = [(rows - y.sum(2)).clamp(min=0), (columns - y.sum(1)).clamp(min=0)]
        entropies = [torch.xlogy(t, t).flatten(1).sum(1).to(y.dtype) for t in (y, *left)]
        return multiply_by_temperature(torch.stack(entropies).sum(0), self.temperature)

    def check_scale(self, dtype: torch.dtype) -> None:
        if not isinstance(self.temperature, Tensor) and self.temperature > 1:  # lower temperatures are exact in float64
            super().check_scale(dtype)

    def _plans(self, oracle: Oracle, theta: Parts) -> EntropicPlans:
        assert isinstance(theta, Tensor)
        self.check_scale(theta.dtype)
        plans = EntropicPlans(self, oracle, theta, *checked_margins(cast(TransportPolytope, oracle), theta))
        if self.on_failure != "ignore" and not bool(plans.converged.all()):
            self._report(oracle.label(), plans)
        return plans

    def _report(self, what: str, plans: EntropicPlans) -> None:
        missed = ~plans.converged
        worst = int(torch.where(missed, plans.residual, -1).argmax())
        iterations = int(plans.iterations[worst])
        if iterations >= self.max_iter:
            remedy = f"raise max_iter (now {self.max_iter}) or the temperature (now {self.temperature:g})"
        else:  # rounding errors ended the progress
            remedy = f"raise the tolerance or the temperature (now {self.temperature:g})"
        report_nonconvergence(
            f"{self.label()} of {what}: {int(missed.sum())} of {len(missed)} instances missed the tolerance "
            f"{self.tolerance:g}, the worst at batch index {worst} with a residual of "
            f"{plans.residual[worst].item():.2e} after {iterations} iterations; {remedy}",
            self.on_failure,
        )


class EntropicPlans:
    """The plans for scores and margins, differentiable in both.

    Parameters
    ----------
    options : Sinkhorn
        The options of the relaxation.
    oracle : Oracle
        The oracle with these margins, for plans without entropy.
    theta : (B, n, m) Tensor
        The scores.
    rows : (B | 1, n) Tensor
        The sums of the rows.
    columns : (B | 1, m) Tensor
        The sums of the columns.
    total : (B,) Tensor, optional
        The total of each plan; by default the smaller total of the two margins.

    Attributes
    ----------
    residual : (B,) Tensor
        The largest difference between a sum and its margin, relative to the largest margin.
    converged : (B,) bool Tensor
        Whether the residual is within the tolerance, or within the rounding error up to 1e-4.
    iterations : (B,) int64 Tensor
        The number of sweeps and Newton steps.
    is_vertex : (B,) bool Tensor
        Whether the plan is the best vertex, because scores over temperature leave no digits for the entropy.
    vertices : (B, n, m) Tensor or None
        The best vertices of these instances, and 0 elsewhere; None if there is no such instance.
    """

    vertices: Tensor | None = None

    def __init__(
        self,
        options: Sinkhorn,
        oracle: Oracle,
        theta: Tensor,
        rows: Tensor,
        columns: Tensor,
        total: Tensor | None = None,
    ) -> None:
        self._options, self._form = options, theta
        t = self._temperature = cast(float, options.temperature)
        scores, rows, columns = equal_totals(*add_slack(theta.double(), rows, columns, total))
        low, high = finite_range(scores.detach())
        if not bool((torch.stack([high, low, high - low]) / t).isfinite().all()) or t < TINY:
            raise InvalidInputError(f"temperature {t!r} is too small: theta / temperature overflows; raise temperature")
        self._problem = forbid_unusable_cells(scores, rows, columns), rows, columns
        found = self._solve()
        most = max(options.tolerance, MAX_RESIDUAL)
        self.converged = found.residual <= found.target_residual.clamp(max=most)
        self.residual, self.iterations = found.residual.to(theta.dtype), found.iterations
        self.is_vertex = ~self.converged & (found.target_residual > most)
        if bool(self.is_vertex.any()):
            self._take_vertices(oracle)

    def _solve(self) -> SinkhornResult:
        options, (_, n, m) = self._options, self._form.shape
        settings = self._temperature, options.tolerance, options.max_iter
        first_temperature = options.initial_temperature or 0.0
        if options.backward == "unrolled":
            self._unrolled = unrolled_plan(*self._problem, settings[0], first_temperature, *settings[1:])
            return self._unrolled
        # The shape alone decides, so that the result of an instance does not depend on the slack of others.
        transport = EntropicTransport(*settings, first_temperature, transpose=n < m)
        self._unrolled = None
        self._function = autograd.ConvexFunction(
            transport.value,
            transport.gradient,
            transport.value_and_gradient,
            transport.vjp,
            transport.hessian_product,
        )
        return transport.plan(self._problem)

    def _take_vertices(self, oracle: Oracle) -> None:
        """Replace the plans of the instances ``is_vertex`` by the plans of highest score, with gradient 0."""
        scores, rows, columns = self._problem
        if torch.is_grad_enabled() and (rows.requires_grad or columns.requires_grad):
            raise InvalidInputError(
                f"temperature {self._temperature!r} is too small for gradients of the margins: theta / "
                "temperature has no digits left for the entropy; raise temperature, or detach rows and columns"
            )
        index, theta = self.is_vertex.nonzero()[:, 0], self._form.detach()
        self.vertices = torch.zeros_like(theta)
        with renumber_instances(index):
            self.vertices[index] = cast(Tensor, best_structure(oracle[index], theta[index]))
        # Solve these instances with equal scores instead, so that all numbers behind the unused results are finite.
        without = torch.where(scores.isneginf(), -torch.inf, 0.0)
        self._problem = torch.where(self.is_vertex[:, None, None], without, scores), rows, columns
        self._solve()
        self.residual = torch.where(self.is_vertex, 0.0, self.residual)
        self.converged = self.converged | self.is_vertex

    def plan(self) -> Float[Tensor, "batch rows columns"]:
        """Return the plans, in θ's dtype."""
        if self._unrolled is not None:
            return self._without_slack(self._unrolled.plan)
        return self._without_slack(autograd.gradient(self._function, self._problem)[0])

    def value_and_plan(self) -> tuple[Tensor, Tensor]:
        """Return max ⟨θ, P⟩ − temperature Σ P log P, (B,), and the plans."""
        if self._unrolled is None:
            value, (plan, _, _) = autograd.value_and_gradient(self._function, self._problem)
        else:
            plan, fixed = self._unrolled.plan, self._unrolled.plan.detach()
            terms = torch.where(fixed > 0, self._problem[0].detach(), 0.0) * fixed
            terms = terms - self._temperature * torch.xlogy(fixed, fixed)
            slopes = self._unrolled.gradient(self._temperature)
            value = autograd.attach_envelope_gradient(terms.flatten(1).sum(1), self._problem, slopes)
        return value.to(self._form.dtype), self._without_slack(plan)

    def _without_slack(self, plan: Tensor) -> Tensor:
        n, m = self._form.shape[1:]
        plan = plan[:, :n, :m].to(self._form.dtype)
        return plan if self.vertices is None else torch.where(self.is_vertex[:, None, None], self.vertices, plan)
