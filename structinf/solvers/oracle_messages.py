r"""Belief propagation between the oracles of a factor graph: beliefs and the Bethe value, with their derivatives.

The messages of `structinf.solvers.factor_messages` are the logarithms of odds, with

    o_ki = logit p_ki,   p_k = ∇ log Z_k(n_k, a_k / ρ_k),

where log Z_k is the log-partition function of the factor's oracle, and a_k are its additional scores. At a fixed point
p_ki = sigmoid(M_i), and the beliefs are stationary for the value

    Σ_k ρ_k log Z_k + Σ_i (1 − Σ_{k ∋ i} ρ_k) log(1 + exp M_i),

whose gradient they are (Wainwright & Jordan 2008, sections 4.1 and 7.2). Smith & Eisner (2008) pass messages from
factors of many variables by their marginals in this way. The derivative of the beliefs solves the linear equations of
the derivatives of the messages, by the same iteration.

A sum over structures with a given part is subtracted from log Z where the marginal is too near 0 or 1 for its odds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..oracle import GibbsOracle
from ..parts import Parts, map_parts, scale_per_instance
from .convergence import check_differentiable
from .factor_beliefs import Beliefs, believe, covariances, unit_direction
from .factor_messages import FactorMessages, deciding_score, flat, largest, variable_parts
from .factor_projections import GroupScores
from .fixed_point import FixedPoint, find_fixed_point, rounding_limit
from .local_polytope_scores import LocalPolytope

__all__ = ["OracleMessages"]

_NEAR_1 = 1e-3
"""Distances of a marginal to 1 below this number are computed from two log-partition functions."""

_NEAR_0 = 1e-290
"""Marginals below this number may have lost digits, so that they are computed in the same way."""

_DECIDED = 1e-13
"""The derivative of a message is taken as 0 where the variance p (1 − p) is below this number."""


class _Found(NamedTuple):
    problem: LocalPolytope
    messages: list[Tensor]
    sums: Tensor
    beliefs: list[Beliefs]
    status: FixedPoint


@dataclass(kw_only=True)
class OracleMessages(FactorMessages):
    """The value of belief propagation in a factor graph as a function of θ / temperature, solved once for one θ.

    The factors have the ability GibbsOracle, and the tolerance is the largest difference between the probability of a
    variable in a factor and its belief.

    Attributes
    ----------
    log_partition_function : callable
        Maps an oracle to log Z with its derivatives, a ConvexFunction.

    References
    ----------
    D. Smith & J. Eisner, Dependency parsing by belief propagation, EMNLP 2008, section 4.
    """

    log_partition_function: Callable[[Any], Any]
    _found: _Found | None = field(default=None, repr=False)

    def value(self, theta: Parts) -> Tensor:
        """Return the value, (B,)."""
        found = self._solve(theta)
        problem, used = found.problem, torch.zeros_like(found.problem.degree)
        total = found.sums.new_zeros(len(found.sums))
        for g, belief in zip(problem.groups, found.beliefs, strict=True):
            rho = self.rho(g)
            total += (belief.value * rho).sum(1)
            used.index_add_(0, g.index.flatten(), rho.repeat_interleave(g.index.shape[1]))
        total += (-torch.nn.functional.logsigmoid(-found.sums) * (1 - used)).sum(1)
        return total.to(problem.dtype)

    def gradient(self, theta: Parts) -> Parts:
        """Return the beliefs of the variables, and the means of the additional parts, in the form of θ."""
        found = self._solve(theta)
        return found.problem.as_parts(found.sums.sigmoid(), [b.additional for b in found.beliefs])

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        """Return the derivative of the beliefs in the direction ``v``.

        Raises ConvergenceError if the beliefs of an instance, or their derivative, have not converged.
        """
        found = self._solve(theta)
        problem, size = found.problem, len(found.sums)
        if not size:
            return map_parts(torch.zeros_like, v)
        direction = unit_direction(problem, v)
        options = f"max_iter (now {self.max_iter}), the damping or the temperature"
        refuse = functools.partial(check_differentiable, label=self.label, options=options)
        refuse(~found.status.converged & ~direction.is_zero, reason="the messages have not converged")
        variance = found.sums.sigmoid() * (-found.sums).sigmoid()

        spreads = [b.mean * (1 - b.mean) for b in found.beliefs]

        def propagate(messages: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            """Return the derivatives of M, of the messages to the factors, and of all beliefs of the factors."""
            sums, received = self.receive(problem, direction.variables, self.shaped(problem, messages))
            changes = [
                covariances(self.log_partition_function, g, belief.theta, n, a / self.rho(g)[:, None])
                for g, belief, n, a in zip(problem.groups, found.beliefs, received, direction.additional, strict=True)
            ]
            return sums, received, changes

        def step(messages: list[Tensor]) -> list[Tensor]:
            _, received, changes = propagate(messages)
            new = []
            for spread, n, change in zip(spreads, received, changes, strict=True):
                undecided = spread > _DECIDED
                odds = change[..., : n.shape[2]] / spread.where(undecided, 1.0)
                new.append(torch.where(undecided, odds - n, 0.0))
            return flat(new)

        def disagreement(messages: list[Tensor], new: list[Tensor]) -> Tensor:
            sums, received = self.receive(problem, direction.variables, self.shaped(problem, messages))
            changed = zip(problem.groups, spreads, received, self.shaped(problem, new), strict=True)
            return largest([s * (n + m - sums[:, g.index]) for g, s, n, m in changed], size, sums.device)

        status = find_fixed_point(
            step,
            flat([torch.zeros_like(m) for m in found.messages]),
            size,
            found.sums.device,
            lambda _: rounding_limit(self.tolerance, found.sums.abs().masked_fill(problem.forbidden, 0).amax(1)),
            self.max_iter,
            self.damping,
            len(self.factors.names),
            disagreement,
        )
        refuse(~status.converged & ~direction.is_zero, reason="the iteration for the gradient has not converged")
        sums, _, changes = propagate(status.x)
        others = [c[..., g.index.shape[1] :] for g, c in zip(problem.groups, changes, strict=True)]
        return scale_per_instance(problem.as_parts(variance * sums, others), direction.length)

    # -- messages ----------------------------------------------------------------------------

    def _solve(self, theta: Parts) -> _Found:
        if self._found is None:
            with torch.no_grad():
                self._found = self._run(theta)
                self.report(self._found.status)
        return self._found

    def _run(self, theta: Parts) -> _Found:
        problem = LocalPolytope(self.factors, map_parts(Tensor.detach, theta), False)

        def measure(received: Tensor, last: Tensor, new: Tensor) -> Tensor:
            return (received + new).sigmoid() - (received + last).sigmoid()

        messages, sums, received, status = self.iterate(
            problem, lambda g, n: self._odds(g, self._believe(g, n), n), measure
        )
        beliefs = [self._believe(g, n) for g, n in zip(problem.groups, received, strict=True)]
        return _Found(problem, messages, sums, beliefs, status)

    def _believe(self, scores: GroupScores, received: Tensor) -> Beliefs:
        """Return the beliefs of factors for the messages (B, F, m) to them."""
        return believe(self.log_partition_function, scores, received, 1 / self.rho(scores)[..., None])

    def _odds(self, scores: GroupScores, belief: Beliefs, received: Tensor) -> Tensor:
        """Return the logarithm of the odds of each variable in its factor, (B, F, m)."""
        p = scores.to_coordinates(belief.mean)  # of the parts
        odds = p.log() - torch.log1p(-p)
        vectors = scores.group.as_vectors(belief.theta)
        is_part = variable_parts(scores, belief.theta)
        likelihood, odds = p.flatten(0, 1), odds.flatten(0, 1)
        odds = torch.where(is_part, odds, -torch.inf)
        place = ((likelihood > 1 - _NEAR_1) | ((likelihood < _NEAR_0) & is_part)).nonzero()
        if len(place):
            row, part = place.unbind(1)
            bound = deciding_score(vectors)
            is_likely = likelihood[row, part] > 0.5
            changed = vectors[row]
            changed[torch.arange(len(row), device=row.device), part] = torch.where(is_likely, -bound[row], bound[row])
            oracle = cast(GibbsOracle, scores.oracle[row] if scores.oracle.bound else scores.oracle)
            other = oracle.log_partition(scores.group.as_parts(changed))
            value = (belief.value - (received * scores.offset).sum(2)).flatten()[row]
            # A likely part has a score so low that only the structures without it are left.
            likely = _log_expm1((value - other).clamp(min=0))
            # An unlikely part has a score so high that only the structures with it are left.
            unlikely = other - bound[row] + vectors[row, part] - value
            new = torch.where(is_likely, likely, unlikely)
            half = bound[row] / 2
            new = torch.where(new > half, torch.inf, torch.where(new < -half, -torch.inf, new))
            odds[row, part] = new
        return scores.sign * odds.view_as(p)


def _log_expm1(x: Tensor) -> Tensor:
    """Return log(exp(x) − 1) for x ≥ 0."""
    return x + torch.log(-torch.expm1(-x))
