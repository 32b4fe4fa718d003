"""Transport plans: whole units from rows to columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.oracle import Enumerable, TransportPolytope
from structinf.shapes import Float

from .common.labels import reject_labels
from .common.min_cost_flow import Network, Solver, check_amounts, check_solver

__all__ = ["Transportation"]


@dataclass(frozen=True)
class Transportation(TransportPolytope, Enumerable):
    """Transport of whole units from n rows, which have so many each, to m columns, which take so many each.

    θ is (..., n, m), the score of a unit from row i to column j, any sign, and y the integer matrix of units, y ≥ 0.
    With supplies r and demands c of the same sum, y 1 = r and yᵀ 1 = c. Of the side with the larger sum some stays
    behind: its sums are then at most those given. −inf forbids a pair. A constant added to θ does not change which is
    best. Labels are y in integers, (..., n, m).

    Parameters
    ----------
    supplies : sequence of n integers
        At least 0, what each row has.
    demands : sequence of m integers
        At least 0, what each column takes.
    solver : {"simplex", "ortools"}
        As for :class:`~structinf_oracles.flow.Flow`.

    Notes
    -----
    With supplies and demands of 1 these are assignments, which the oracle of that name finds sooner. y is a vertex of
    the transport polytope, whose vertices are whole; Sinkhorn's relaxation takes the same margins. The argmax is the
    network simplex method's, on CPU threads; CUDA tensors are copied once a batch. Ties go the same way every time.

    References
    ----------
    F. L. Hitchcock, The distribution of a product from several sources to numerous localities (Journal of Mathematics
    and Physics 20, 1941). M. Dyer, R. Kannan & J. Mount, Sampling contingency tables (Random Structures & Algorithms
    10, 1997), for the hardness of counting plans.

    Examples
    --------
    >>> oracle = Transportation(supplies=[3, 1], demands=[2, 1, 1])
    >>> oracle.argmax(torch.tensor([[[1.0, 2.0, 0.0], [3.0, 0.0, 1.0]]]))
    tensor([[[1., 1., 1.],
             [1., 0., 0.]]])
    """

    name: ClassVar[str] = "transportation"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    label_ndim: ClassVar[int] = 2
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "to count the plans of given sums is #P-complete, even for two rows (Dyer, Kannan & Mount "
            "1997)",
            "Samplable": "exact samples are as hard as to count plans, which is #P-complete",
            "Smoothable": "a best plan is no recursion of maxima",
            "KBest": "the k best plans take another algorithm, which is not here; assignment lists the best where all "
            "sums are 1",
        }
    )

    supplies: tuple[int, ...]
    demands: tuple[int, ...]
    solver: Solver = field(default="simplex", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("supplies", "demands"):
            given = getattr(self, name)
            amounts = check_amounts(name, given.tolist() if hasattr(given, "tolist") else given)
            object.__setattr__(self, name, amounts)
        check_solver(self.solver)

    @cached_property
    def _network(self) -> Network:
        """Rows, columns, and a last node for what stays behind or is missing; an edge for each pair, then for these."""
        n, m = len(self.supplies), len(self.demands)
        rows, columns, surplus = np.arange(n), n + np.arange(m), sum(self.supplies) - sum(self.demands)
        tails, heads = rows.repeat(m), np.tile(columns, n)
        most = np.minimum.outer(self.supplies, self.demands).ravel()
        if surplus:
            side, amounts = (rows, self.supplies) if surplus > 0 else (columns, self.demands)
            last = np.full(len(side), n + m)
            tails = np.append(tails, side if surplus > 0 else last)
            heads = np.append(heads, last if surplus > 0 else side)
            most = np.append(most, amounts)
        supplies = np.array([*self.supplies, *(-amount for amount in self.demands), -surplus], np.int64)
        return Network(tails, heads, most.astype(np.float64), supplies, free=len(tails) - n * m, what="transport plan")

    def validate(self, theta: Tensor) -> None:
        expected = len(self.supplies), len(self.demands)
        if theta.shape[1:] != expected:
            raise InvalidInputError(
                f"theta: {expected[0]} supplies and {expected[1]} demands take scores {expected}, got "
                f"{tuple(theta.shape[1:])} after the batch dimensions"
            )

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, None]:
        """The supplies (1, n) and the demands (1, m), in float64, which has all of them."""
        rows, columns = (theta.new_tensor([side], dtype=torch.float64) for side in (self.supplies, self.demands))
        return rows, columns, None

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n m"]:
        return self._network.best(theta.flatten(1), self.solver).reshape(theta.shape)

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Half a unit for each to a column that gets none from the row in ``y``, or missing where it gets all it can.

        A lower bound on the number of units that go wrong, and that number where no pair can have more than 1.
        """
        return self._network.hamming_cost(y.flatten(1)).reshape(y.shape)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels: plans are units from each row to each column, (..., {like.shape[1]}, {like.shape[2]}); got "
                f"{tuple(labels.shape)} with the batch flat"
            )
        self._network.check_labels(labels.flatten(1))
        surplus = sum(self.supplies) - sum(self.demands)
        for side, given, dim, bound in (
            ("row", self.supplies, 2, surplus > 0),
            ("column", self.demands, 1, surplus < 0),
        ):
            excess = labels.sum(dim) - labels.new_tensor(given)
            expected = "at most the" if bound else "the"
            wrong = excess > 0 if bound else excess != 0
            reject_labels(wrong, labels, f"each {side} must sum to {expected} given {given}")
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """All plans, (|Y|, n, m) in float64, by their entries in order; at most a million."""
        return torch.from_numpy(self._network.all()).unflatten(1, (len(self.supplies), len(self.demands)))
