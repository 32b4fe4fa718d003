"""Naive mean field: a product of distributions that approximates a discrete model, with derivatives.

The bound of log Z for independent variables with distributions q_i is

    V(q) = Σ_k Σ_{x_k} θ_k(x_k) Π_i q_i(x_i) + Σ_i H(q_i),

and q_i ∝ exp E_i maximises V in q_i, where E_i(x_i) is the expected score of the factors of i given x_i
(Wainwright & Jordan 2008, section 5.3). Variables without a common factor change at once, so that V never falls.
At a maximum, the products Π q_i are the gradient of V. Their derivative in a direction solves the linear equations of
the derivatives of q, by the same sweeps: the Gauss-Seidel method, which converges at a strict maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import SolverLimitError
from ..parts import Parts, as_tuple
from .coordinate_ascent import CoordinateAscent
from .factor_groups import FactorTables, Layout, along, is_compiled, reduce_to
from .fixed_point import FixedPoint, rounding_limit

__all__ = ["MeanField"]

Values = dict[int, Tensor]
"""Numbers (c, B, n) for each value of the variables, by their cardinality."""


class _Use(NamedTuple):
    """Factors of a group that join a variable of a step, at one position of their variables."""

    group: int
    position: int
    factors: Tensor
    targets: Tensor
    others: dict[int, Tensor]


class _Step(NamedTuple):
    """Variables of one cardinality that change at once."""

    cardinality: int
    variables: Tensor
    uses: list[_Use]


class _Found(NamedTuple):
    model: FactorTables
    q: Values
    bound: Tensor
    status: FixedPoint


@dataclass(kw_only=True)
class MeanField(CoordinateAscent):
    """The bound of mean field as a function of θ / temperature, solved once for one θ.

    Attributes
    ----------
    layout : Layout
        The groups of the model's factors.
    """

    layout: Layout
    _found: _Found | None = field(default=None, repr=False)

    # -- the function and its derivatives ----------------------------------------------------

    def value(self, theta: Parts) -> Tensor:
        """Return the bound, (B,)."""
        found = self._solve(theta)
        return found.bound.to(found.model.theta[0].dtype)

    def gradient(self, theta: Parts) -> Parts:
        """Return the products of the distributions, in the form of θ."""
        found = self._solve(theta)
        return found.model.ungroup(self._products(found.model, found.q))

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        """Return the derivative of the products in the direction ``v``.

        Raises ConvergenceError if the distributions of an instance, or their derivative, have not converged.
        """
        found = self._solve(theta)
        model, q = found.model, found.q
        direction = [t.double() for t in model.group(as_tuple(v))]
        size = torch.stack([t.abs().amax((*range(t.ndim - 2), -1)).expand(model.size) for t in direction]).amax(0)
        self.refuse(~found.status.converged & (size != 0), "the distributions have not converged")
        length = torch.where((size > 0) & size.isfinite(), size, 1.0)
        direction = [t / length[:, None] for t in direction]
        steps = self._steps(model)
        first = self.layout.first_joint
        base = model.add_up({}, range(first), [[t] for t in direction[:first]])
        given = self._expected(model, steps, direction, q, base)
        tangent, status = self._tangents(found, steps, given)
        self.refuse(~status.converged & (size != 0), "the iteration for the gradient has not converged")
        products = []
        for group, index in zip(self.layout.groups, model.index, strict=True):
            arity = len(group.shape)
            total = torch.zeros((), dtype=torch.float64, device=model.device)
            for s in range(arity):
                table = torch.ones((), dtype=torch.float64, device=model.device)
                for t, (c, i) in enumerate(zip(group.shape, index, strict=True)):
                    table = table * along((tangent if t == s else q)[c][:, :, i], t, arity)
                total = total + table
            products.append(total * length[:, None])
        return model.ungroup(products)

    def _tangents(self, found: _Found, steps: list[_Step], given: list[Tensor]) -> tuple[Values, FixedPoint]:
        """Return the derivatives of q if the expected scores of each step change by ``given`` at a fixed q."""
        model, q = found.model, found.q
        if is_compiled(model) and model.size:
            from .mean_field_compiled import tangents

            by_variable = model.zeros()
            for step, change in zip(steps, given, strict=True):
                by_variable[step.cardinality].index_copy_(2, step.variables, change)
            return tangents(model, q, by_variable, self.tolerance, self.max_iter)
        tables = [torch.where(t.isneginf(), 0.0, t) for t in model.tables]

        def sweep(change: Values) -> Values:
            change = dict(change)
            for step, base in zip(steps, given, strict=True):
                c, total = step.cardinality, base.clone()
                for use in step.uses:
                    entries = tables[use.group][..., use.factors]
                    for t in use.others:
                        received = _contract(entries, use, lambda u, t=t: change if u == t else q, self.layout)
                        total.index_add_(2, use.targets, received.expand(-1, model.size, -1))
                old = q[c][:, :, step.variables]
                weighted = old * total
                change[c] = change[c].index_copy(2, step.variables, weighted - old * weighted.sum(0))
            return change

        return self._repeat(model, sweep, model.zeros(), None)

    # -- coordinate ascent -------------------------------------------------------------------

    def _solve(self, theta: Parts) -> _Found:
        if self._found is None:
            with torch.no_grad():
                model = FactorTables(self.layout, theta, self.label)
                self._found = found = self._best(model)
                self.report(found.status)
        return self._found

    def _best(self, model: FactorTables) -> _Found:
        steps = self._steps(model)
        scale = model.scale()
        found: _Found | None = None
        for start in range(self.starts):
            q, status = self._ascend(model, steps, self._start(model, start), scale)
            bound = self._bound(model, q)
            if found is None:
                found = _Found(model, q, bound, status)
                continue
            better = bound > found.bound + rounding_limit(self.tolerance, scale)
            rows = better[:, None]
            found = _Found(
                model,
                {c: torch.where(rows, t, found.q[c]) for c, t in q.items()},
                torch.where(better, bound, found.bound),
                found.status.replace(better, status),
            )
        assert found is not None
        return found

    def _ascend(self, model: FactorTables, steps: list[_Step], q: Values, scale: Tensor) -> tuple[Values, FixedPoint]:
        if is_compiled(model) and model.size:
            from .mean_field_compiled import ascend

            return ascend(model, q, rounding_limit(self.tolerance, scale), self.max_iter)
        return self._repeat(model, lambda q: self._sweep(model, steps, q), q, scale)

    def _repeat(
        self, model: FactorTables, sweep: Callable[[Values], Values], q: Values, scale: Tensor | None
    ) -> tuple[Values, FixedPoint]:
        """Repeat ``sweep``; an instance keeps its values once it has converged."""
        residual = torch.zeros(model.size, dtype=torch.float64, device=model.device)
        done = torch.zeros(model.size, dtype=torch.bool, device=model.device)
        if not model.size:
            return q, FixedPoint([], residual, ~done)
        for _ in range(self.max_iter):
            new = sweep(q)
            change = torch.stack([(new[c] - t).abs_().amax((0, 2)) for c, t in q.items()]).amax(0)
            residual = torch.where(done, residual, change)
            size = scale if scale is not None else torch.stack([t.abs().amax((0, 2)) for t in new.values()]).amax(0)
            q = {c: torch.where(done[:, None], q[c], t) for c, t in new.items()} if bool(done.any()) else new
            done = done | (change <= rounding_limit(self.tolerance, size))
            if bool(done.all()):
                break
        return q, FixedPoint([], residual, done)

    def _sweep(self, model: FactorTables, steps: list[_Step], q: Values) -> Values:
        """Return the distributions after a change of every variable."""
        q = dict(q)
        for step in steps:
            c = step.cardinality
            (scores,) = self._expected(model, [step], model.tables, q, model.base)
            q[c] = q[c].index_copy(2, step.variables, scores.softmax(0))
        return q

    def _expected(
        self, model: FactorTables, steps: list[_Step], tables: list[Tensor], q: Values, base: Values
    ) -> list[Tensor]:
        """Return the expected scores given each value, (c, B, n), for the variables of each step."""
        found = []
        for step in steps:
            total = base[step.cardinality][:, :, step.variables]
            outside = None if model.allowed is None else torch.zeros_like(total)
            for use in step.uses:
                entries = tables[use.group][..., use.factors]
                if outside is not None:
                    forbidden = entries.isneginf()
                    entries = torch.where(forbidden, 0.0, entries)
                    support = {c: (t > 0).double() for c, t in q.items()}
                    hit = _contract(forbidden.double(), use, lambda _, support=support: support, self.layout)
                    outside.index_add_(2, use.targets, hit.expand(-1, model.size, -1))
                received = _contract(entries, use, lambda _: q, self.layout)
                total.index_add_(2, use.targets, received.expand(-1, model.size, -1))
            found.append(total if outside is None else total.masked_fill(outside > 0, -torch.inf))
        return found

    def _steps(self, model: FactorTables) -> list[_Step]:
        layout, device = self.layout, model.device

        def as_index(numbers: list[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        steps = []
        for colour in layout.colours:
            for c in sorted({layout.cardinalities[v] for v in colour}):
                variables = [v for v in colour if layout.cardinalities[v] == c]
                target, uses = {v: i for i, v in enumerate(variables)}, []
                for g, group, _, index in model.joint():
                    for s in range(len(group.shape)):
                        used = [f for f, k in enumerate(group.factors) if layout.factors[k][s] in target]
                        if used:
                            rows = as_index(used)
                            targets = as_index([target[layout.factors[group.factors[f]][s]] for f in used])
                            others = {t: index[t][rows] for t in reduce_to(s, len(group.shape))}
                            uses.append(_Use(g, s, rows, targets, others))
                steps.append(_Step(c, as_index([layout.places[v] for v in variables]), uses))
        return steps

    def _products(self, model: FactorTables, q: Values) -> list[Tensor]:
        products = []
        for group, index in zip(self.layout.groups, model.index, strict=True):
            table = torch.ones((), dtype=torch.float64, device=model.device)
            for s, (c, i) in enumerate(zip(group.shape, index, strict=True)):
                table = table * along(q[c][:, :, i], s, len(group.shape))
            products.append(table)
        return products

    def _bound(self, model: FactorTables, q: Values) -> Tensor:
        total = torch.zeros(model.size, dtype=torch.float64, device=model.device)
        for table, product in zip(model.tables, self._products(model, q), strict=True):
            scores = torch.where(product == 0, 0.0, table) * product
            total += _sum_per_instance(scores, scores.ndim - 2)
        for t in q.values():
            total -= _sum_per_instance(torch.xlogy(t, t), 1)
        return total

    # -- starts ------------------------------------------------------------------------------

    def _start(self, model: FactorTables, number: int) -> Values:
        """Return the start ``number``: the softmax of θ_i for 0, else all variables at the value ``number`` − 1.

        Entries of −inf fix further variables, until all values left to the variables have a finite score together.
        """
        if number == 0 and model.allowed is None:
            return {c: t.softmax(0) for c, t in model.base.items()}
        value = None if number == 0 else number - 1
        if model.allowed is None:
            return {
                c: torch.nn.functional.one_hot(torch.tensor((value or 0) % c, device=model.device), c)
                .double()[:, None, None]
                .expand(t.shape)
                .contiguous()
                for c, t in model.base.items()
            }
        allowed = self._fix(model, value)
        return {c: t.masked_fill(~allowed[c], -torch.inf).softmax(0) for c, t in model.base.items()}

    def _fix(self, model: FactorTables, value: int | None) -> Values:
        """Return the values left to the variables, one after the other fixed where the values left may collide.

        With a ``value``, every variable is fixed, at this value if it is left.
        """
        assert model.allowed is not None
        allowed = dict(model.allowed)
        for v, c in enumerate(self.layout.cardinalities):
            place = self.layout.places[v]
            while True:
                open_values = allowed[c][:, :, place]
                collides = value is not None or self._collides(model, allowed, v)
                several = collides & (open_values.sum(0) > 1)
                if not bool(several.any()):
                    break
                scores = model.base[c][:, :, place].masked_fill(~open_values, -torch.inf)
                if value is not None:
                    scores[value % c] = torch.where(open_values[value % c], torch.inf, -torch.inf)
                one = torch.nn.functional.one_hot(scores.argmax(0), c).T.bool()
                fixed, dead = self._keep(model, allowed, v, one | ~several)
                if bool(dead.any()):  # this value leaves none to another variable: take it out instead
                    without, stuck = self._keep(model, allowed, v, ~(one & several))
                    self._refuse_start(dead & stuck)
                    fixed = {k: torch.where(dead[:, None], without[k], t) for k, t in fixed.items()}
                allowed = fixed
        return allowed

    def _keep(self, model: FactorTables, allowed: Values, v: int, kept: Tensor) -> tuple[Values, Tensor]:
        """Return the values left if variable ``v`` keeps ``kept`` (c, B), and whether a variable has none, (B,)."""
        c, narrowed = self.layout.cardinalities[v], {k: t.clone() for k, t in allowed.items()}
        narrowed[c][:, :, self.layout.places[v]] &= kept
        found, _ = model.propagate(narrowed)
        return found, torch.stack([~t.any(0).all(1) for t in found.values()]).any(0)

    def _refuse_start(self, stuck: Tensor) -> None:
        if bool(stuck.any()):
            raise SolverLimitError(
                f"{self.label}: no start of finite score was found, because the entries of −inf leave no value to a "
                "variable after others are fixed; use belief_propagation, or an exact relaxation",
                int(stuck.nonzero()[0, 0]),
            )

    def _collides(self, model: FactorTables, allowed: Values, v: int) -> Tensor:
        """Return whether a factor of variable ``v`` has an entry of −inf among the values left, (B,)."""
        found = torch.zeros(model.size, dtype=torch.bool, device=model.device)
        for _, group, table, index in model.joint():
            rows = [f for f, k in enumerate(group.factors) if v in self.layout.factors[k]]
            if rows:
                inside = table[..., rows].isneginf()
                for s, (c, i) in enumerate(zip(group.shape, index, strict=True)):
                    inside = inside & along(allowed[c][:, :, i[rows]], s, len(group.shape))
                found |= inside.any(-1).flatten(0, -2).any(0)
        return found


def _contract(entries: Tensor, use: _Use, factor_of: Callable[[int], Values], layout: Layout) -> Tensor:
    """Return Σ entries · Π_t q_t over the values of all variables except the variable of ``use``, (c, B, F)."""
    arity, shape = entries.ndim - 2, layout.groups[use.group].shape
    for t, index in use.others.items():
        entries = (entries * along(factor_of(t)[shape[t]][:, :, index], t, arity)).sum(t, keepdim=True)
    return entries.flatten(0, -3)


def _sum_per_instance(t: Tensor, dim: int) -> Tensor:
    """Return the sums over all dimensions but ``dim``, in an order that does not depend on the number of instances."""
    return t.movedim(dim, 0).flatten(1).contiguous().sum(1)
