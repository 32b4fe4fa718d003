"""Expected scores of tables over independent binary variables, with their derivatives in the probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .factor_projections import GroupScores

__all__ = ["ExpectedTables"]


class ExpectedTables:
    """The tables of a group of factors over d variables each, as functions of the variables' probabilities.

    The expected score Σ_x T(x) Π_s q_s(x_s) is linear in each probability, with q_s = (1 − μ_s, μ_s).

    Parameters
    ----------
    scores : GroupScores
        The factors, whose oracle has the tables as additional scores, (2, ..., 2).

    Attributes
    ----------
    entries : (B, F, 2, ..., 2) Tensor
        The scores of the values of the variables.
    """

    def __init__(self, scores: GroupScores) -> None:
        self.index = scores.index
        self.arity = scores.index.shape[1]
        weights = 2 ** torch.arange(self.arity - 1, -1, -1, device=self.index.device)
        negated = (scores.offset.long() * weights).sum(1)
        # The entry of the parts at each entry of the variables: the bits of negated variables are flipped.
        self._order = torch.arange(2**self.arity, device=self.index.device) ^ negated[:, None]
        self.entries = self.shaped(scores.additional)

    def shaped(self, additional: Tensor) -> Tensor:
        """Return tables (B, F, 2^d) of the parts as tables (B, F, 2, ..., 2) of the variables."""
        return additional.gather(2, self._order.expand_as(additional)).unflatten(2, [2] * self.arity)

    def flat(self, entries: Tensor) -> Tensor:
        """Return the inverse of :meth:`shaped`."""
        flat = entries.flatten(2)
        return flat.gather(2, self._order.expand_as(flat))

    def products(self, mean: Tensor) -> Tensor:
        """Return the probability of each entry, (B, F, 2, ..., 2), for the probabilities (B, n) of the variables."""
        return self._product(self._marginals(mean))

    def product_changes(self, mean: Tensor, change: Tensor) -> Tensor:
        """Return the derivatives of :meth:`products` for a ``change`` (B, n) of the probabilities."""
        marginals, changes = self._marginals(mean), self._changes(change)
        swapped = [[*marginals[:s], changes[s], *marginals[s + 1 :]] for s in range(self.arity)]
        return torch.stack([self._product(q) for q in swapped]).sum(0)

    def add_slopes(self, total: Tensor, entries: Tensor, mean: Tensor) -> None:
        """Add the derivative of the expected score of ``entries`` in each probability to ``total`` (B, n)."""
        marginals = self._marginals(mean)
        for s in range(self.arity):
            self._add(total, s, self._contract(entries, marginals, s))

    def add_slope_changes(self, total: Tensor, entries: Tensor, mean: Tensor, change: Tensor) -> None:
        """Add the derivatives of :meth:`add_slopes` for a ``change`` (B, n) of the probabilities to ``total``."""
        marginals, changes = self._marginals(mean), self._changes(change)
        for s in range(self.arity):
            for t in range(self.arity):
                if t != s:
                    swapped = [*marginals[:t], changes[t], *marginals[t + 1 :]]
                    self._add(total, s, self._contract(entries, swapped, s))

    def reachable(self, decided: Tensor, value: Tensor) -> Tensor:
        """Return the entries (B, F, 2, ..., 2) left if the ``decided`` variables (B, n) have their ``value``, as bools.

        All other variables have both values.
        """
        own, is_open = value[:, self.index], ~decided[:, self.index]
        allowed = torch.stack([is_open | (own == 0), is_open | (own == 1)], -1)
        return self._product(allowed.double().unbind(2)) > 0

    def _add(self, total: Tensor, s: int, given: Tensor) -> None:
        total.index_add_(1, self.index[:, s], given[..., 1] - given[..., 0])

    def _marginals(self, mean: Tensor) -> list[Tensor]:
        """Return q_s (B, F, 2) for each place s of a table."""
        p = mean[:, self.index]
        return list(torch.stack([1 - p, p], -1).unbind(2))

    def _changes(self, change: Tensor) -> list[Tensor]:
        v = change[:, self.index]
        return list(torch.stack([-v, v], -1).unbind(2))

    def _product(self, q: Sequence[Tensor]) -> Tensor:
        product = q[0]
        for s, t in enumerate(q[1:], 1):
            product = product[..., None] * t.view(*t.shape[:2], *[1] * s, 2)
        return product

    def _contract(self, entries: Tensor, q: Sequence[Tensor], s: int) -> Tensor:
        """Return the expected score given the value of the variable at place ``s``, (B, F, 2)."""
        for t in range(self.arity - 1, -1, -1):
            if t != s:
                shape = [*[1] * t, 2, *[1] * (t < s)]
                entries = (entries * q[t].view(*q[t].shape[:2], *shape)).sum(2 + t)
        return entries
