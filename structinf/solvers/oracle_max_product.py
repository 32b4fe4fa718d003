"""Max-product belief propagation between the oracles of a factor graph, by their argmax alone.

In the messages of `structinf.solvers.factor_messages`, o_ki is the best score of the factor's structures with value 1
of variable i, minus the best score with value 0. The argmax gives one of both. The other is the argmax with a score for
this variable that outweighs all others. Without cycles, the messages lead to a structure of the highest score
(Wainwright & Jordan 2008, section 8.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..parts import Parts, inner_product, map_parts
from .argmax import checked_argmax
from .factor_messages import FactorMessages, deciding_score, variable_parts
from .factor_projections import GroupScores
from .fixed_point import FixedPoint
from .graph_factors import GraphFactors, check_values
from .local_polytope_scores import LocalPolytope

__all__ = ["OracleMaxProduct"]

_MOST_ENTRIES = 2**22
"""The largest number of scores in one call of an oracle for other structures."""


class _Found(NamedTuple):
    """The structures (B, *event), which instances have none, (B,) bool, and the status of the messages."""

    structures: Parts
    failed: Tensor
    status: FixedPoint


@dataclass(kw_only=True)
class OracleMaxProduct(FactorMessages):
    """The score of a structure of a factor graph by max-product messages, solved once for one θ.

    The tolerance is the largest change of a message.

    Attributes
    ----------
    report_failed : callable
        Called with which instances have no structure of finite score, (B,) bool.
    """

    report_failed: Callable[[Tensor], None]
    _found: _Found | None = field(default=None, repr=False)

    def value(self, theta: Parts) -> Tensor:
        """Return the score of the structure, (B,); −inf if the messages lead to none."""
        found = self._solve(theta)
        score = inner_product(map_parts(Tensor.detach, theta), found.structures)
        return score.masked_fill(found.failed, -torch.inf)

    def gradient(self, theta: Parts) -> Parts:
        """Return the structure, in the form of θ."""
        return self._solve(theta).structures

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        return map_parts(torch.zeros_like, self._solve(theta).structures)

    def _solve(self, theta: Parts) -> _Found:
        if self._found is None:
            with torch.no_grad():
                self._found = found = self._run(LocalPolytope(self.factors, map_parts(Tensor.detach, theta), False))
                self.report(found.status)
                if bool(found.failed.any()):
                    found.status.converged.logical_and_(~found.failed)
                    self.report_failed(found.failed)
        return self._found

    def _run(self, problem: LocalPolytope) -> _Found:
        _, sums, received, status = self.iterate(problem, self._differences, lambda _, last, new: new - last)
        return _Found(*self._decode(problem, sums, received), status)

    def _scores(self, scores: GroupScores, received: Tensor) -> Parts:
        """Return the scores of the group's oracle for the messages (B, F, m) to the factors."""
        rows = torch.arange(len(received), device=received.device)
        return scores.as_scores(rows, scores.sign * received, 1 / self.rho(scores)[..., None])

    def _differences(self, scores: GroupScores, received: Tensor) -> Tensor:
        """Return the best score with value 1 minus the best score with value 0 of each variable, (B, F, m)."""
        theta, m = self._scores(scores, received), received.shape[2]
        rows = torch.arange(len(received), device=received.device)
        with scores.named(rows):
            best = scores.group.as_vectors(checked_argmax(scores.oracle, theta))
        check_values(best[:, :m], scores.names[scores.group.numbers[0]])
        vectors = scores.group.as_vectors(theta)
        value, bound = _score(vectors, best), deciding_score(vectors)
        row, part = variable_parts(scores, theta).nonzero().unbind(1)
        is_chosen = best[row, part] == 1
        other = torch.full_like(bound[row], -torch.inf)
        step = max(1, _MOST_ENTRIES // max(1, vectors.shape[1]))
        for start in range(0, len(row), step):
            own, i = row[start : start + step], part[start : start + step]
            changed, places = vectors[own], torch.arange(len(own), device=own.device)
            changed[places, i] = torch.where(is_chosen[start : start + step], -bound[own], bound[own])
            oracle = scores.oracle[own] if scores.oracle.bound else scores.oracle
            found = scores.group.as_vectors(oracle.argmax(scores.group.as_parts(changed)))
            is_other = found[places, i] != best[own, i]
            other[start : start + step] = torch.where(is_other, _score(vectors[own], found), -torch.inf)
        # A variable that is no part has the value 0.
        out = torch.full_like(vectors[:, :m], -torch.inf)
        out[row, part] = torch.where(is_chosen, value[row] - other, other - value[row])
        return scores.sign * out.view_as(received)

    def _decode(self, problem: LocalPolytope, sums: Tensor, received: list[Tensor]) -> tuple[Parts, Tensor]:
        """Return the structures, and which instances have contradicting factors.

        A factor takes its best structure given the variables of the factors before it, breadth first. On a tree, the
        result is optimal also on ties, since the messages hold the best scores of everything beyond a variable.
        """
        values = (sums > 0).to(sums.dtype)  # for variables without a factor
        known = torch.zeros(sums.shape[1], dtype=torch.bool, device=sums.device)
        failed = torch.zeros(len(sums), dtype=torch.bool, device=sums.device)
        vectors = [
            g.group.as_vectors(self._scores(g, n)).unflatten(0, n.shape[:2])
            for g, n in zip(problem.groups, received, strict=True)
        ]
        additional = [torch.zeros_like(v[..., n.shape[2] :]) for v, n in zip(vectors, received, strict=True)]
        for number, f in _breadth_first(self.factors):
            g = problem.groups[number]
            index, scores = g.index[f], vectors[number][:, f].clone()
            m, bound, fixed = len(index), deciding_score(scores)[:, None], known[index]
            part = (g.sign[f] * (values[:, index] - g.offset[f]))[:, fixed]
            own = scores[:, :m][:, fixed]
            decided = torch.where(part == 1, bound, -bound)
            scores[:, torch.nonzero(fixed)[:, 0]] = torch.where(own.isneginf(), own, decided)
            rows = torch.arange(len(sums), device=sums.device)
            oracle = g.oracle[rows * len(g) + f] if g.oracle.bound else g.oracle
            best = g.group.as_vectors(oracle.argmax(g.group.as_parts(scores)))
            found = g.sign[f] * best[:, :m] + g.offset[f]
            values[:, index[~fixed]] = found[:, ~fixed]
            known[index] = True
            failed |= (found != values[:, index]).any(1)
            additional[number][:, f] = best[:, m:]
        return problem.as_parts(values, additional), failed


def _score(vectors: Tensor, structures: Tensor) -> Tensor:
    """Return the scores (N,) of structures (N, d), which have no part of score −inf."""
    return (vectors.masked_fill(vectors.isneginf(), 0) * structures).sum(1)


def _breadth_first(factors: GraphFactors) -> list[tuple[int, int]]:
    """Return each factor, as its group and its number in the group, after a factor that it shares a variable with."""
    variables = {
        (number, f): set(v.tolist()) for number, g in enumerate(factors.groups) for f, v in enumerate(g.variables)
    }
    of_variable: dict[int, list[tuple[int, int]]] = {}
    for factor, used in variables.items():
        for i in used:
            of_variable.setdefault(i, []).append(factor)
    order, seen = [], set()
    for root in variables:
        queue = deque([root] if root not in seen else [])
        seen.add(root)
        while queue:
            factor = queue.popleft()
            order.append(factor)
            for other in (k for i in variables[factor] for k in of_variable[i]):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
    return order
