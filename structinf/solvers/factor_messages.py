"""Messages between the factors of a factor graph and its binary variables.

A message is one number: the logarithm of the odds of the value 1, or for max-product the difference of the best scores
with the values 1 and 0. With the message λ_ki of factor k to variable i, and a weight ρ_k of each factor (1 for belief
propagation),

    M_i = θ_i + Σ_k ρ_k λ_ki,   n_ik = M_i − λ_ki,   λ_ki = o_ki − n_ik,

where o_ki is the number of variable i in factor k alone, with the scores n_k of its variables (Wainwright & Jordan
2008, sections 4.1, 7.2 and 8.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..parts import Parts, map_parts
from .belief_propagation import Schedule
from .factor_projections import GroupScores
from .fixed_point import FixedPoint, find_fixed_point, rounding_limit
from .graph_factors import GraphFactors
from .local_polytope_scores import LocalPolytope
from .oracle_residual_schedule import residual_messages
from .stationary_value import StationaryValue

__all__ = ["FactorMessages", "deciding_score", "flat", "largest", "variable_parts"]


@dataclass(kw_only=True)
class FactorMessages(StationaryValue):
    """The base class of message passing between oracles, solved once for one θ.

    Attributes
    ----------
    factors : GraphFactors
        The factors.
    label : str
        The name of the relaxation and the graph in messages.
    weights : sequence of float, optional
        ρ_k of each factor; 1 by default.
    tolerance : float
        The accepted change.
    max_iter : int
        The number of computations of all messages.
    damping : float or None
        As in :func:`structinf.solvers.fixed_point.find_fixed_point`.
    schedule : "parallel" or "residual"
        Whether all factors send messages at once, or the factor whose messages change most comes first.
    report : callable
        Receives the status of the solution once.
    """

    factors: GraphFactors
    label: str
    weights: Sequence[float] | None
    schedule: Schedule
    tolerance: float
    max_iter: int
    damping: float | None
    report: Callable[[FixedPoint], None]

    def iterate(
        self,
        problem: LocalPolytope,
        odds: Callable[[GroupScores, Tensor], Tensor],
        measure: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> tuple[list[Tensor], Tensor, list[Tensor], FixedPoint]:
        """Pass messages until they agree.

        A message of a variable that a factor leaves no choice is a large number instead of infinity.

        Parameters
        ----------
        problem : LocalPolytope
            The scores.
        odds : callable
            Returns o_k (B, F, m) for a group of factors and the messages n_k (B, F, m) to them.
        measure : callable
            Returns the change (B, F, m) of each message of a group, for the messages to its factors, and the last and
            the new messages from them.

        Returns
        -------
        messages : list of (B, F, m) Tensor
            The messages λ of each group.
        sums : (B, n) Tensor
            M.
        received : list of (B, F, m) Tensor
            The messages to the factors of each group.
        status : FixedPoint
            The change and the convergence of each instance.
        """
        size, device = len(problem.theta), problem.theta.device
        scale = problem.theta.abs().sum(1)
        for g in problem.groups:
            scale = scale + g.additional.nan_to_num(neginf=0.0).abs().sum((1, 2))
        # The sigmoid of the bound is exactly 1.
        bound = 4 * scale + 4 * problem.theta.shape[1] + 1600
        start = [torch.zeros(size, *g.index.shape, dtype=torch.float64, device=device) for g in problem.groups]
        theta = torch.where(problem.forbidden, -bound[:, None], problem.theta)

        def answer(g: GroupScores, n: Tensor, rows: Tensor) -> Tensor:
            """Return the messages (R, F, m) of the factors of the instances ``rows`` for the messages ``n`` to them."""
            limit = bound[rows, None, None]
            return (odds(g, n) - n).clamp(-limit, limit).masked_fill(g.forbidden, 0)

        def step(messages: list[Tensor]) -> list[Tensor]:
            _, received = self.receive(problem, theta, self.shaped(problem, messages))
            everything = torch.arange(size, device=device)
            return flat([answer(g, n, everything) for g, n in zip(problem.groups, received, strict=True)])

        def joint_change(received: list[Tensor], last: list[Tensor], new: list[Tensor]) -> Tensor:
            """Return the change (B,) if all new messages are sent, divided by the number of messages of a variable.

            Messages that change no probability alone can change it together: at a score of −1500, two messages of 1000
            decide a variable.
            """
            sums, _ = self.receive(problem, theta, new)
            groups = zip(problem.groups, received, last, strict=True)
            return largest(
                [measure(n, m, sums[:, g.index] - n) / problem.degree[g.index] for g, n, m in groups], size, device
            )

        def change(last: list[Tensor], new: list[Tensor]) -> Tensor:
            before, after = self.shaped(problem, last), self.shaped(problem, new)
            _, received = self.receive(problem, theta, before)
            alone = largest([measure(*m) for m in zip(received, before, after, strict=True)], size, device)
            return torch.maximum(alone, joint_change(received, before, after))

        limit = rounding_limit(self.tolerance, scale)
        if self.schedule == "residual" and size and start:
            status = residual_messages(
                problem.groups,
                self._neighbours(problem),
                lambda messages: self.receive(problem, theta, messages)[1],
                answer,
                measure,
                joint_change,
                start,
                limit,
                self.max_iter,
                self.damping,
            )
        else:
            status = find_fixed_point(
                step,
                flat(start),
                size,
                device,
                lambda _: limit,
                self.max_iter,
                self.damping,
                len(self.factors.names),
                change,
            )
        messages = self.shaped(problem, status.x)
        return messages, *self.receive(problem, theta, messages), status

    def _neighbours(self, problem: LocalPolytope) -> Tensor:
        """Return which factors' messages depend on the messages of each factor, (K, K) bool, in the order of groups.

        With a weight other than 1, the messages of a factor depend on its own last messages.
        """
        weights = torch.cat([self.rho(g) for g in problem.groups])
        uses = weights.new_zeros(len(weights), problem.theta.shape[1])
        factor = torch.arange(len(weights), device=uses.device).split([len(g) for g in problem.groups])
        for numbers, g in zip(factor, problem.groups, strict=True):
            uses.index_put_((numbers[:, None].expand_as(g.index), g.index), torch.ones_like(g.sign), accumulate=True)
        depends = (uses @ uses.T > 0).fill_diagonal_(False)
        return depends | (((weights != 1) | (uses > 1).any(1)).diag())

    def rho(self, scores: GroupScores) -> Tensor:
        """Return the weights of a group, (F,), or of the factors that were selected, (R, 1)."""
        numbers = scores.group.numbers
        weights = [1.0] * len(numbers) if self.weights is None else [self.weights[k] for k in numbers]
        found = torch.tensor(weights, dtype=torch.float64, device=scores.index.device)
        return found if scores.origin is None else found[scores.origin % len(numbers), None]

    def shaped(self, problem: LocalPolytope, messages: list[Tensor]) -> list[Tensor]:
        """Return the messages (1, B, F · m) of all groups as (B, F, m)."""
        return [t[0].view(t.shape[1], *g.index.shape) for g, t in zip(problem.groups, messages, strict=True)]

    def receive(self, problem: LocalPolytope, theta: Tensor, messages: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return M, (B, n), and the messages n (B, F, m) to each group of factors."""
        sums = theta.clone()
        for g, m in zip(problem.groups, messages, strict=True):
            sums.index_add_(1, g.index.flatten(), (m * self.rho(g)[:, None]).flatten(1))
        return sums, [sums[:, g.index] - m for g, m in zip(problem.groups, messages, strict=True)]


def flat(messages: list[Tensor]) -> list[Tensor]:
    """Return messages (B, F, m) of all groups as (1, B, F · m)."""
    return [m.flatten(1)[None] for m in messages]


def largest(differences: list[Tensor], size: int, device: torch.device) -> Tensor:
    """Return the largest absolute value of each instance, (B,)."""
    kept = [d.abs().flatten(1).amax(1) for d in differences if d.shape[1:].numel()]
    return torch.stack(kept).amax(0) if kept else torch.zeros(size, dtype=torch.float64, device=device)


def variable_parts(scores: GroupScores, theta: Parts) -> Tensor:
    """Return which variables (N, m) of the oracle's instances are parts of structures of finite score.

    Other variables have the score −inf in ``theta``, or are padding.
    """
    m = scores.index.shape[-1]
    is_part = scores.group.as_vectors(theta)[:, :m].isfinite()
    valid = scores.oracle.valid_parts(theta) if scores.oracle.bound else None
    if valid is not None:
        is_part &= scores.group.as_vectors(map_parts(lambda mask, t: mask.expand_as(t), valid, theta))[:, :m]
    return is_part


def deciding_score(vectors: Tensor) -> Tensor:
    """Return a score (N,) that outweighs all others of the ``vectors`` (N, d), for a part that must or must not be."""
    return 4 * vectors.masked_fill(vectors.isinf(), 0).abs().sum(1) + 4 * vectors.shape[1] + 100
