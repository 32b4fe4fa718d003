"""Structured mean field: a product of the distributions of disjoint oracles and of single variables.

Let the oracles of a factor graph share no variable, and let each table of scores join variables of different oracles.
The product q of a Gibbs distribution q_k of each oracle, and of a distribution of each variable of no oracle, bounds
log Z from below:

    V(q) = ⟨θ, μ⟩ + Σ_tables Σ_x T(x) Π_{i ∈ T} q_i(x_i) + Σ_k (⟨a_k, w_k⟩ + H(q_k)) + Σ_i H(q_i),

where q_i is the marginal distribution of variable i, whose probability of 1 is μ_i, and a_k and w_k are the additional
scores of an oracle and the means of its additional parts. The expected table is linear in μ_i, as the variables of a
table are independent. So the best q_k given all other distributions is the Gibbs distribution of the oracle with the
scores η_i = θ_i + ∂/∂μ_i Σ_tables Σ_x T(x) Π_{j ∈ T} q_j(x_j), and

    H(q_k) = log Z_k(η, a_k) − ⟨η, μ⟩ − ⟨a_k, w_k⟩

(Saul & Jordan 1996; Wainwright & Jordan 2008, section 5.5). Blocks without a common table change at once, so that V
never falls. At a maximum, the means are the gradient of V, and their derivative in a direction solves the linear
equations of the derivatives of the sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import renumber_instances
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts, scale_per_instance
from .argmax import checked_argmax
from .coordinate_ascent import CoordinateAscent
from .expected_tables import ExpectedTables
from .factor_beliefs import Direction, believe, covariances, unit_direction
from .factor_projections import GroupScores
from .fixed_point import FixedPoint, find_fixed_point, rounding_limit
from .graph_factors import GraphFactors
from .local_polytope_scores import LocalPolytope
from .mean_field_blocks import Blocks

__all__ = ["OracleMeanField"]

_STARTS = 3
"""The number of different starts."""


class _Model(NamedTuple):
    """The scores of a batch.

    Attributes
    ----------
    problem : LocalPolytope
        The scores of variables and oracles.
    tables : dict of ExpectedTables
        The tables, by group, with 0 instead of −inf.
    steps : list of _Step
        The blocks, in the order of the coordinate ascent.
    value : (B, n) Tensor
        The value of each variable that has no choice.
    decided : (B, n) bool Tensor
        Whether a variable has no choice.
    scale, bound : (B,) Tensor
        The sum of all |scores|, and a score that decides a variable.
    """

    problem: LocalPolytope
    tables: dict[int, ExpectedTables]
    steps: list[_Step]
    value: Tensor
    decided: Tensor
    scale: Tensor
    bound: Tensor


class _Step(NamedTuple):
    """Blocks that change at once: the variables (n,) bool, the variables of no oracle, and the oracles' instances."""

    variables: Tensor
    alone: Tensor
    oracles: list[GroupScores]


class _Found(NamedTuple):
    """The probabilities and the scores η of the variables, (B, n), the means of additional parts, and the bound."""

    model: _Model
    mean: Tensor
    eta: Tensor
    additional: list[Tensor]
    bound: Tensor
    status: FixedPoint


@dataclass(kw_only=True)
class OracleMeanField(CoordinateAscent):
    """The bound of structured mean field in a factor graph as a function of θ / temperature, solved once for one θ.

    Attributes
    ----------
    factors : GraphFactors
        The factors, with the ability GibbsOracle.
    blocks : Blocks
        The blocks of the distribution.
    graph : Oracle
        The graph, whose argmax gives values to variables of tables with entries of −inf.
    log_partition_function : callable
        Maps an oracle to log Z with its derivatives, a ConvexFunction.

    References
    ----------
    L. Saul & M. Jordan, Exploiting tractable substructures in intractable networks, NIPS 1996.
    """

    factors: GraphFactors
    blocks: Blocks
    graph: Oracle
    log_partition_function: Callable[[Any], Any]
    _found: _Found | None = field(default=None, repr=False)

    def value(self, theta: Parts) -> Tensor:
        """Return the bound, (B,)."""
        found = self._solve(theta)
        return found.bound.to(found.model.problem.dtype)

    def gradient(self, theta: Parts) -> Parts:
        """Return the means in the form of θ."""
        found = self._solve(theta)
        return found.model.problem.as_parts(found.mean, found.additional)

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        """Return the derivative of the means in the direction ``v``.

        Raises ConvergenceError if the distributions of an instance, or their derivative, have not converged.
        """
        found = self._solve(theta)
        model, size = found.model, len(found.mean)
        if not size:
            return map_parts(torch.zeros_like, v)
        direction = unit_direction(model.problem, v)
        self.refuse(~found.status.converged & ~direction.is_zero, "the distributions have not converged")
        slope, status = self._tangents(found, direction)
        self.refuse(~status.converged & ~direction.is_zero, "the iteration for the gradient has not converged")
        change = found.eta.sigmoid() * (-found.eta).sigmoid() * slope
        additional = []
        for number, g in enumerate(model.problem.groups):
            if number in model.tables:
                additional.append(torch.zeros_like(g.additional))
                continue
            theta = g.as_scores(torch.arange(size, device=slope.device), g.sign * found.eta[:, g.index])
            own = slope[:, g.index], direction.additional[number]
            both = covariances(self.log_partition_function, g, theta, *own)
            m = g.index.shape[1]
            change[:, g.index] = both[..., :m]
            additional.append(both[..., m:])
        change = change.masked_fill(model.decided, 0)
        for number, table in model.tables.items():
            given = table.product_changes(found.mean, change)
            additional[number] = table.flat(given)
        return scale_per_instance(model.problem.as_parts(change, additional), direction.length)

    def _tangents(self, found: _Found, direction: Direction) -> tuple[Tensor, FixedPoint]:
        """Return the derivatives of η, (B, n)."""
        model, mean = found.model, found.mean
        given = direction.variables.clone()
        for number, table in model.tables.items():
            table.add_slopes(given, table.shaped(direction.additional[number]), mean)
        variance = found.eta.sigmoid() * (-found.eta).sigmoid()
        prepared = []
        for step in model.steps:
            for one in step.oracles:
                rows, group = _rows(one), one.group
                number = next(i for i, g in enumerate(model.problem.groups) if g.group is group)
                own = direction.additional[number].flatten(0, 1)[one.origin][:, None]
                everything = torch.arange(len(rows), device=rows.device)
                prepared.append((one, one.as_scores(everything, one.sign * _gather(found.eta, one)), own))

        def sweep(x: list[Tensor]) -> list[Tensor]:
            change, slope = x[0][0].clone(), x[1][0]
            oracles = iter(prepared)
            for step in model.steps:
                total = given.clone()
                for table in model.tables.values():
                    table.add_slope_changes(total, table.entries, mean, change)
                slope = torch.where(step.variables, total, slope)
                change = torch.where(step.alone, variance * total, change)
                for _ in step.oracles:
                    one, theta, own = next(oracles)
                    new = covariances(self.log_partition_function, one, theta, _gather(total, one), own)
                    _scatter(change, one, new[..., : one.index.shape[-1]])
                change = change.masked_fill(model.decided, 0)
            return [change[None], slope[None]]

        zeros = torch.zeros_like(mean)[None]
        limit = lambda x: rounding_limit(self.tolerance, x[0][0].abs().amax(1))  # noqa: E731
        status = self._repeat(sweep, [zeros, zeros], limit)
        return status.x[1][0], status

    # -- coordinate ascent -------------------------------------------------------------------

    def _solve(self, theta: Parts) -> _Found:
        if self._found is None:
            with torch.no_grad():
                model = self._prepare(map_parts(Tensor.detach, theta))
                self._found = found = self._best(model)
                self.report(found.status)
        return self._found

    def _best(self, model: _Model) -> _Found:
        """Return the start with the highest bound."""
        limit = rounding_limit(self.tolerance, model.scale)
        found: _Found | None = None
        for number in range(min(self.starts, _STARTS)):
            start = [self._start(model, number)[None], torch.zeros_like(model.value)[None]]
            status = self._repeat(lambda x: self._sweep(model, x, model.tables), start, lambda _: limit)
            new = self._evaluate(model, status)
            if found is None:
                found = new
                continue
            better = new.bound > found.bound + limit
            rows = better[:, None]
            found = _Found(
                model,
                torch.where(rows, new.mean, found.mean),
                torch.where(rows, new.eta, found.eta),
                [torch.where(rows[..., None], b, a) for a, b in zip(found.additional, new.additional, strict=True)],
                torch.where(better, new.bound, found.bound),
                found.status.replace(better, new.status),
            )
        assert found is not None
        return found

    def _repeat(
        self, sweep: Callable[[list[Tensor]], list[Tensor]], x: list[Tensor], limit: Callable[[list[Tensor]], Tensor]
    ) -> FixedPoint:
        change = lambda last, new: (new[0] - last[0])[0].abs().amax(1)  # noqa: E731
        return find_fixed_point(sweep, x, x[0].shape[1], x[0].device, limit, self.max_iter, damping=0.0, measure=change)

    def _start(self, model: _Model, number: int) -> Tensor:
        """Return probabilities (B, n): without tables for 0, all variables 0 for 1, and all variables 1 for 2."""
        if number == 0:
            zeros = torch.zeros_like(model.value)[None]
            return self._sweep(model, [zeros, zeros], {})[0][0]
        return torch.where(model.decided, model.value, float(number - 1))

    def _sweep(self, model: _Model, x: list[Tensor], tables: dict[int, ExpectedTables]) -> list[Tensor]:
        """Return the probabilities and η, (1, B, n), after a change of every block."""
        mean, eta = x[0][0].clone(), x[1][0]
        forced = (2 * model.value - 1) * model.bound[:, None]
        for step in model.steps:
            total = model.problem.theta.clone()
            for table in tables.values():
                table.add_slopes(total, table.entries, mean)
            eta = torch.where(step.variables, torch.where(model.decided, forced, total), eta)
            mean = torch.where(step.alone, eta.sigmoid(), mean)
            for one in step.oracles:
                _scatter(mean, one, believe(self.log_partition_function, one, _gather(eta, one)).mean)
            mean = torch.where(model.decided, model.value, mean)
        return [mean[None], eta[None]]

    def _evaluate(self, model: _Model, status: FixedPoint) -> _Found:
        """Return the distributions with the scores η of the last sweep, and their bound."""
        problem, (mean, eta) = model.problem, (t[0].clone() for t in status.x)
        alone = self.blocks.alone.to(eta.device)
        bound = (-torch.nn.functional.logsigmoid(-eta)).masked_fill(~alone, 0).sum(1)
        additional = []
        for number, g in enumerate(problem.groups):
            if number in model.tables:
                additional.append(g.additional)
                continue
            belief = believe(self.log_partition_function, g, eta[:, g.index])
            mean[:, g.index] = belief.mean
            bound = bound + belief.value.sum(1)
            additional.append(belief.additional)
        mean = torch.where(model.decided, model.value, mean)
        bound = bound - ((eta - problem.theta) * mean).sum(1)
        for number, table in model.tables.items():
            products = table.products(mean)
            bound = bound + (table.entries * products).flatten(1).sum(1)
            additional[number] = table.flat(products)
        return _Found(model, mean, eta, additional, bound, status)

    # -- scores ------------------------------------------------------------------------------

    def _prepare(self, theta: Parts) -> _Model:
        problem = LocalPolytope(self.factors, theta, False)
        size, device = len(problem.theta), problem.theta.device
        scale = problem.theta.abs().sum(1)
        for g in problem.groups:
            scale = scale + g.additional.nan_to_num(neginf=0.0).abs().sum((1, 2))
        is_table = self.blocks.tables
        tables = {i: ExpectedTables(g) for i, g in enumerate(problem.groups) if is_table[i]}
        decided, value = problem.forbidden.clone(), torch.zeros_like(problem.theta)
        self._decide(theta, tables, decided, value)
        steps = []
        for variables, factors in self.blocks.steps:
            oracles = []
            for number, places in factors:
                rows = torch.arange(size, device=device).repeat_interleave(len(places))
                oracles.append(problem.groups[number].select(rows, places.to(device).repeat(size)))
            steps.append(_Step(variables.to(device), (variables & self.blocks.alone).to(device), oracles))
        # The sigmoid of the bound is exactly 1.
        bound = 4 * scale + 4 * problem.theta.shape[1] + 1600
        return _Model(problem, tables, steps, value, decided, scale, bound)

    def _decide(self, theta: Parts, tables: dict[int, ExpectedTables], decided: Tensor, value: Tensor) -> None:
        """Decide variables, until no table has an entry of −inf for the values left, and set such entries to 0.

        The values are the values of a structure of finite score, the best one. So the oracles have structures left.
        """
        holes = {number: table.entries.isneginf() for number, table in tables.items()}
        is_open = torch.zeros_like(decided[:, 0])
        for number, table in tables.items():
            is_open |= (holes[number] & table.reachable(decided, value)).flatten(1).any(1)
            table.entries = table.entries.masked_fill(holes[number], 0.0)
        rows = is_open.nonzero()[:, 0]
        if not len(rows):
            return
        graph = self.graph[rows] if self.graph.bound else self.graph
        with renumber_instances(rows):
            y = checked_argmax(graph, map_parts(lambda t: t[rows] if len(t) > 1 else t, theta))
        best = torch.zeros_like(value)
        best[rows] = as_tuple(y)[0].flatten(1).to(best)
        for number, table in tables.items():
            for s, index in enumerate(table.index.T):
                entries = (holes[number] & table.reachable(decided, value)).movedim(2 + s, 2)
                given = entries.flatten(2).unflatten(2, (2, -1)).any(3)
                own = best[:, index]
                collides = torch.where(own == 0, given[..., 1], given[..., 0])
                count = torch.zeros_like(value).index_add_(1, index, collides.double())
                new = (count > 0) & ~decided
                value.copy_(torch.where(new, best, value))
                decided |= new


def _rows(one: GroupScores) -> Tensor:
    """Return the instance of each selected factor, (R,)."""
    assert one.origin is not None
    return one.origin // len(one.group)


def _gather(values: Tensor, one: GroupScores) -> Tensor:
    """Return ``values`` (B, n) of the variables of selected factors, (R, 1, m)."""
    return values[_rows(one)[:, None, None], one.index]


def _scatter(values: Tensor, one: GroupScores, own: Tensor) -> None:
    """Set ``values`` (B, n) of the variables of selected factors to ``own`` (R, 1, m)."""
    values[_rows(one)[:, None, None], one.index] = own
