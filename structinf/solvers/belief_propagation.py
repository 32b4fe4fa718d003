r"""Belief propagation: beliefs and the Bethe value of a discrete model, with their derivatives.

The messages of factor k to a variable i are m_ki, and of the variable to the factor n_ik. With a weight ρ_k of each
factor (1 for belief propagation, the probability of an edge in a random spanning tree for tree-reweighting),

    m_ki(x_i) = log Σ_{x_k \ x_i} exp(θ_k(x_k) / ρ_k + Σ_{j ≠ i} n_jk(x_j)),   M_i = θ_i + Σ_k ρ_k m_ki,
    n_ik = M_i − m_ki,   b_i ∝ exp M_i,   b_k ∝ exp(θ_k / ρ_k + Σ_i n_ik),

where the sums run over factors of several variables, and θ_i is the sum of the scores of the factors of i alone. At a
fixed point, the beliefs b are consistent, and stationary for the value

    ⟨θ, b⟩ + Σ_k ρ_k (H(b_k) − Σ_{i ∈ k} H(b_i)) + Σ_i H(b_i) = Σ_k ρ_k log Z_k + Σ_i (1 − Σ_{k ∋ i} ρ_k) log Z_i,

with the normalisers Z of the beliefs (Wainwright & Jordan 2008, sections 4.1 and 7.2). Hence the beliefs are the
gradient of the value. Their derivative in a direction solves the linear equations of the derivatives of the messages,
by the same iteration (Welling & Teh 2004). Factors of several variables are processed in groups of equal shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..parts import Parts, as_tuple, inner_product, map_parts
from .convergence import check_differentiable
from .factor_groups import FactorTables, Layout, along, is_compiled, reduce_to
from .fixed_point import FixedPoint, find_fixed_point, rounding_limit
from .max_product_decoding import decode
from .stationary_value import StationaryValue

__all__ = ["BeliefPropagation", "Schedule", "Semiring", "spanning_tree_weights"]

Semiring = Literal["sum_product", "max_product"]
Schedule = Literal["parallel", "residual"]

Messages = list[list[Tensor]]
"""For each group of factors with several variables, a message (c, B, F) to each variable."""


class _Found(NamedTuple):
    model: FactorTables
    messages: Messages
    sums: dict[int, Tensor]
    status: FixedPoint


@dataclass
class BeliefPropagation(StationaryValue):
    """The value of belief propagation as a function of θ / temperature, solved once for one θ.

    Attributes
    ----------
    layout : Layout
        The groups of the model's factors.
    label : str
        The name of the relaxation and the model in messages.
    kind : "sum_product" or "max_product"
        Whether messages sum or maximise.
    weights : sequence of float, optional
        ρ_k of each factor; 1 by default.
    schedule : "parallel" or "residual"
        Whether all messages change at once, or the message that changes most comes first.
    tolerance : float
        The largest change of a message.
    max_iter : int
        The number of changes of each message.
    damping : float or None
        As in :func:`structinf.solvers.fixed_point.find_fixed_point`.
    report : callable
        Receives the status of the solution once.
    report_failed : callable
        Called with which instances have no structure of finite score by max-product, (B,) bool.
    """

    layout: Layout
    label: str
    kind: Semiring
    weights: Sequence[float] | None
    schedule: Schedule
    tolerance: float
    max_iter: int
    damping: float | None
    report: Callable[[FixedPoint], None]
    report_failed: Callable[[Tensor], None]
    _found: _Found | None = field(default=None, repr=False)
    _structure: tuple[Tensor, ...] | None = field(default=None, repr=False)

    # -- the function and its derivatives ----------------------------------------------------

    def value(self, theta: Parts) -> Tensor:
        """Return the value, (B,): of the beliefs, or for max-product the score of the structure."""
        if self.kind == "max_product":
            return inner_product(map_parts(Tensor.detach, theta), self.gradient(theta))
        found = self._solve(theta)
        model = found.model
        total = torch.zeros(model.size, dtype=torch.float64, device=model.device)
        used = {
            c: torch.ones(len(v), dtype=torch.float64, device=model.device) for c, v in self.layout.variables.items()
        }
        for (_, group, _, index), scores in zip(model.joint(), self._joint_scores(found), strict=True):
            rho = self._rho(group.factors, model.device)
            total += (_log_sum(scores, tuple(range(len(group.shape)))).flatten(0, -3)[0] * rho).sum(1)
            for c, i in zip(group.shape, index, strict=True):
                used[c].index_add_(0, i, -rho)
        for c, sums in found.sums.items():
            total += (sums.logsumexp(0) * used[c]).sum(1)
        return total.to(model.theta[0].dtype)

    def gradient(self, theta: Parts) -> Parts:
        """Return the beliefs, or the structure of max-product, in the form of θ."""
        found = self._solve(theta)
        if self.kind == "max_product":
            if self._structure is None:
                tables, failed = decode(found.model, found.messages, found.sums, self._rhos(found.model.device))
                self._structure = found.model.ungroup(tables)
                if bool(failed.any()):
                    found.status.converged.logical_and_(~failed)
                    self.report_failed(failed)
            return self._structure
        return found.model.ungroup(self._beliefs(found))

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        """Return the derivative of the beliefs in the direction ``v``.

        Raises ConvergenceError if the beliefs of an instance, or their derivative, have not converged.
        """
        found = self._solve(theta)
        model = found.model
        if self.kind == "max_product":
            return model.ungroup([torch.zeros_like(t) for t in model.tables])
        direction = [t.double().expand(*t.shape[:-2], model.size, -1) for t in model.group(as_tuple(v))]
        size = torch.stack([t.abs().amax((*range(t.ndim - 2), -1)) for t in direction]).amax(0)
        self._refuse(~found.status.converged & (size != 0), "the messages have not converged")
        length = torch.where((size > 0) & size.isfinite(), size, 1.0)
        direction = [t / length[:, None] for t in direction]
        tangents, sums, status = self._tangents(found, direction)
        self._refuse(~status.converged & (size != 0), "the iteration for the gradient has not converged")
        products = [
            _centred(belief, tangent) * length[:, None]
            for belief, tangent in zip(
                self._beliefs(found), self._tangent_scores(found, direction, tangents, sums), strict=True
            )
        ]
        return model.ungroup(products)

    def _refuse(self, failed: Tensor, reason: str) -> None:
        check_differentiable(
            failed, self.label, reason, f"max_iter (now {self.max_iter}), the damping or the temperature"
        )

    # -- messages ----------------------------------------------------------------------------

    def _solve(self, theta: Parts) -> _Found:
        if self._found is None:
            with torch.no_grad():
                self._found = self._run(FactorTables(self.layout, theta, self.label))
                self.report(self._found.status)
        return self._found

    def _run(self, model: FactorTables) -> _Found:
        limit = rounding_limit(self.tolerance, model.scale())
        tables = [t / self._rho(group.factors, model.device) for _, group, t, _ in model.joint()]
        model.tables[self.layout.first_joint :] = tables
        forbidden = self._forbidden(model)
        start = [
            torch.zeros(c, model.size, len(group.factors), dtype=torch.float64, device=model.device)
            for _, group, _, _ in model.joint()
            for c in group.shape
        ]
        maximise, patience = self.kind == "max_product", len(self.layout.cardinalities)
        if self.schedule == "residual" and start and model.size:
            from .residual_schedule import residual_messages

            status = residual_messages(
                model, self._rhos(model.device), maximise, limit, self.max_iter, self.damping or 0.0
            )
        elif is_compiled(model) and start and model.size:
            from .parallel_schedule import parallel_messages

            status = parallel_messages(
                model, self._rhos(model.device), maximise, limit, self.max_iter, self.damping, patience
            )
        else:
            status = find_fixed_point(
                lambda x: self._step(model, x, forbidden),
                start,
                model.size,
                model.device,
                lambda _: limit,
                self.max_iter,
                self.damping,
                patience,
            )
        messages = self._nest(status.x)
        return _Found(model, messages, self._sums(model, messages), status)

    def _forbidden(self, model: FactorTables) -> list[Tensor] | None:
        """Return whether each entry of the messages belongs to a value that is not allowed."""
        if model.allowed is None:
            return None
        return [
            ~model.allowed[c][:, :, i]
            for _, group, _, index in model.joint()
            for c, i in zip(group.shape, index, strict=True)
        ]

    def _nest(self, flat: Sequence[Tensor]) -> Messages:
        remaining = iter(flat)
        return [[next(remaining) for _ in g.shape] for g in self.layout.groups[self.layout.first_joint :]]

    def _rho(self, factors: Sequence[int], device: torch.device) -> Tensor:
        weights = [1.0] * len(factors) if self.weights is None else [self.weights[k] for k in factors]
        return torch.tensor(weights, dtype=torch.float64, device=device)

    def _rhos(self, device: torch.device) -> list[Tensor]:
        """Return ρ_k, (F,), of each group with several variables."""
        return [self._rho(group.factors, device) for group in self.layout.groups[self.layout.first_joint :]]

    def _sums(
        self, model: FactorTables, messages: Messages, base: dict[int, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """Return M_i = θ_i + Σ_k ρ_k m_ki, (c, B, n) for the variables of each cardinality."""
        first = self.layout.first_joint
        if self.weights is not None:
            groups = self.layout.groups[first:]
            messages = [
                [m * self._rho(g.factors, model.device) for m in sent] for g, sent in zip(groups, messages, strict=True)
            ]
        return model.add_up(model.base if base is None else base, range(first, len(model.tables)), messages)

    def _step(self, model: FactorTables, flat: list[Tensor], forbidden: list[Tensor] | None) -> list[Tensor]:
        """Return all messages of the factors, from all messages of the variables."""
        messages, new = self._nest(flat), []
        sums = self._sums(model, messages)
        reduce = torch.amax if self.kind == "max_product" else _log_sum
        for (_, group, table, index), sent in zip(model.joint(), messages, strict=True):
            arity = len(group.shape)
            received = [sums[c][:, :, i] - m for c, i, m in zip(group.shape, index, sent, strict=True)]
            for s in range(arity):
                scores = table
                for t in reduce_to(s, arity):
                    scores = scores + along(received[t], t, arity)
                m = reduce(scores, reduce_to(s, arity))
                if forbidden is None:
                    new.append(m.sub_(m.amax(0)))
                    continue
                outside = forbidden[len(new)]
                m = m.masked_fill_(outside, -torch.inf)
                new.append(m.sub_(m.amax(0)).masked_fill_(outside, 0.0))
        return new

    def _joint_scores(self, found: _Found) -> list[Tensor]:
        """Return θ_k / ρ_k + Σ_i n_ik of each group with several variables."""
        scores = []
        for (_, group, table, index), sent in zip(found.model.joint(), found.messages, strict=True):
            for s, (c, i, m) in enumerate(zip(group.shape, index, sent, strict=True)):
                table = table + along(found.sums[c][:, :, i] - m, s, len(group.shape))
            scores.append(table)
        return scores

    def _beliefs(self, found: _Found) -> list[Tensor]:
        """Return the beliefs of all groups."""
        model = found.model
        single = [
            found.sums[group.shape[0]][:, :, index[0]]
            for group, index in zip(self.layout.groups[: self.layout.first_joint], model.index, strict=False)
        ]
        beliefs = []
        for scores in (*single, *self._joint_scores(found)):
            axes = tuple(range(scores.ndim - 2))
            weights = (scores - scores.amax(axes, keepdim=True)).exp_()
            beliefs.append(weights / weights.sum(axes, keepdim=True))
        return beliefs

    # -- derivatives -------------------------------------------------------------------------

    def _tangents(self, found: _Found, direction: list[Tensor]) -> tuple[Messages, dict[int, Tensor], FixedPoint]:
        """Return the derivatives of the messages and of M in the ``direction``, of entries up to 1."""
        model, forbidden = found.model, self._forbidden(found.model)
        first = self.layout.first_joint
        base = model.add_up({}, range(first), [[t] for t in direction[:first]])
        share = [
            v / self._rho(group.factors, model.device)
            for (_, group, _, _), v in zip(model.joint(), direction[first:], strict=True)
        ]
        given = self._conditionals(found, forbidden)

        def step(flat: list[Tensor]) -> list[Tensor]:
            messages, new = self._nest(flat), []
            sums = self._sums(model, messages, base)
            for (_, group, _, index), v, sent, conditional in zip(model.joint(), share, messages, given, strict=True):
                arity = len(group.shape)
                received = [sums[c][:, :, i] - m for c, i, m in zip(group.shape, index, sent, strict=True)]
                for s in range(arity):
                    change = v
                    for t in reduce_to(s, arity):
                        change = change + along(received[t], t, arity)
                    m = (conditional[s] * change).sum(reduce_to(s, arity))
                    if forbidden is None:
                        new.append(m - m.mean(0))
                        continue
                    # A constant in a message changes no belief, so its mean over the allowed values is set to 0.
                    inside = ~forbidden[len(new)]
                    new.append((m - m.sum(0) / inside.sum(0)) * inside)
            return new

        start = [torch.zeros_like(m) for sent in found.messages for m in sent]
        status = find_fixed_point(
            step,
            start,
            model.size,
            model.device,
            lambda x: rounding_limit(self.tolerance, torch.stack([m.abs().amax((0, 2)) for m in x]).amax(0)),
            self.max_iter,
            self.damping,
            patience=len(self.layout.cardinalities),
        )
        messages = self._nest(status.x)
        return messages, self._sums(model, messages, base), status

    def _conditionals(self, found: _Found, forbidden: list[Tensor] | None) -> Messages:
        """Return the probabilities of the entries of each table given the value of a variable, for each variable."""
        given, number = [], 0
        for (_, group, _, _), scores in zip(found.model.joint(), self._joint_scores(found), strict=True):
            each = []
            for s in range(len(group.shape)):
                axes = reduce_to(s, len(group.shape))
                weights = (scores - scores.amax(axes, keepdim=True)).exp_()
                weights = weights / weights.sum(axes, keepdim=True)
                if forbidden is not None:
                    weights = weights.masked_fill(along(forbidden[number], s, len(group.shape)), 0.0)
                each.append(weights)
                number += 1
            given.append(each)
        return given

    def _tangent_scores(
        self, found: _Found, direction: list[Tensor], tangents: Messages, sums: dict[int, Tensor]
    ) -> list[Tensor]:
        """Return the derivatives of the logarithms of the beliefs, up to a constant for each belief."""
        model, first = found.model, self.layout.first_joint
        changes = [
            sums[group.shape[0]][:, :, index[0]]
            for group, index in zip(self.layout.groups[:first], model.index, strict=False)
        ]
        for (_, group, _, index), v, sent in zip(model.joint(), direction[first:], tangents, strict=True):
            change = v / self._rho(group.factors, model.device)
            for s, (c, i, m) in enumerate(zip(group.shape, index, sent, strict=True)):
                change = change + along(sums[c][:, :, i] - m, s, len(group.shape))
            changes.append(change)
        return changes


def _log_sum(scores: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return log Σ exp of ``scores`` over ``axes``; NaN where all scores are −inf."""
    top = scores.amax(axes, keepdim=True)
    total = (scores - top).exp_().sum(axes, keepdim=True).log_().add_(top)
    return total.squeeze(axes) if len(axes) < scores.ndim - 2 else total


def _centred(belief: Tensor, change: Tensor) -> Tensor:
    """Return belief · (change − E[change]), where the sums run over the values."""
    weighted = belief * change
    return weighted - belief * weighted.sum(tuple(range(belief.ndim - 2)), keepdim=True)


@functools.lru_cache(maxsize=64)
def spanning_tree_weights(layout: Layout, label: str) -> tuple[float, ...]:
    """Return the probability of each edge in a uniformly drawn spanning tree; 1 for factors of one variable.

    The probability of an edge is its effective resistance in the network of edges of resistance 1 (Kirchhoff).
    """
    n = len(layout.cardinalities)
    laplacian = np.zeros((n, n))
    for k, factor in enumerate(layout.factors):
        if len(factor) > 2:
            raise InvalidInputError(
                f'{label}: weights="spanning_tree" takes factors of one or two variables, but factor {k} has '
                f"{len(factor)}; pass a weight for each factor"
            )
        if len(factor) == 2:
            i, j = factor
            laplacian[[i, j], [i, j]] += 1
            laplacian[[i, j], [j, i]] -= 1
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    weights = [
        1.0 if len(f) == 1 else float(inverse[f[0], f[0]] + inverse[f[1], f[1]] - 2 * inverse[f[0], f[1]])
        for f in layout.factors
    ]
    return tuple(min(1.0, w) for w in weights)
