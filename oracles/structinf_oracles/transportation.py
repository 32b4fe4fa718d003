"""Transport plans: integer amounts moved from rows to columns."""

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
from .common.min_cost_flow import Network, Solver, as_sequence, check_amounts, check_solver

__all__ = ["Transportation"]


@dataclass(frozen=True)
class Transportation(TransportPolytope, Enumerable):
    """Transport plans of integer units from n rows with supplies to m columns with demands.

    With supplies r and demands c of equal sum, y 1 = r and yᵀ 1 = c. Otherwise the supplies or demands with the
    larger sum are only upper bounds. A constant added to θ does not change the best plan.

    - Scores θ, shape (..., n, m), any sign: the score of a unit from row i to column j. −inf forbids a pair.
    - Structure y, shape (..., n, m): the number of units from each row to each column, at least 0.
    - Labels, shape (..., n, m): y as integers.

    Parameters
    ----------
    supplies : sequence of n integers
        The units available in each row, at least 0.
    demands : sequence of m integers
        The units required by each column, at least 0.
    solver : {"simplex", "ortools"}, default "simplex"
        The algorithm for the best plan; see :class:`~structinf_oracles.flow.Flow`. Ctrl-C stops "ortools" only
        between two instances.

    Notes
    -----
    If all supplies and demands are 1, the plans are assignments, and the oracle ``assignment`` is faster. y is a
    vertex of the transport polytope, and all vertices are integers. Sinkhorn's relaxation uses the same margins.
    ``argmax`` is the network simplex method on CPU threads. CUDA tensors are copied once per batch. Ties are broken
    deterministically.

    References
    ----------
    F. L. Hitchcock, The distribution of a product from several sources to numerous localities (Journal of Mathematics
    and Physics 20, 1941). M. Dyer, R. Kannan & J. Mount, Sampling contingency tables (Random Structures & Algorithms
    10, 1997), on the complexity of counting plans.

    Examples
    --------
    >>> oracle = Transportation(supplies=[3, 1], demands=[2, 1, 1])
    >>> oracle.argmax(torch.tensor([[[1.0, 2.0, 0.0], [3.0, 0.0, 1.0]]]))
    tensor([[[1., 1., 1.],
             [1., 0., 0.]]])
    """

    name: ClassVar[str] = "transportation"
    search_terms: ClassVar[tuple[str, ...]] = ("optimal_transport", "earth_mover", "emd", "wasserstein")
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    label_ndim: ClassVar[int] = 2
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "counting the plans of given sums is #P-complete, even for two rows (Dyer, Kannan & Mount "
            "1997)",
            "Samplable": "exact sampling is as hard as counting plans, which is #P-complete",
            "Smoothable": "the network simplex method is not a dynamic program (a recursion of maxima)",
            "KBest": "the k best plans are not implemented; assignment lists the k best if all sums are 1",
        }
    )

    supplies: tuple[int, ...]
    demands: tuple[int, ...]
    solver: Solver = field(default="simplex", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("supplies", "demands"):
            given = as_sequence(name, getattr(self, name), "a sequence of integers")
            object.__setattr__(self, name, check_amounts(name, given))
        check_solver(self.solver)

    @cached_property
    def _network(self) -> Network:
        """The network: a node for each row and column, and a last node for surplus or missing units.

        The edges are the n m pairs, and then the edges from or to the last node.
        """
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
                f"theta must have shape {expected} after the batch dimensions for {expected[0]} supplies and "
                f"{expected[1]} demands, got {tuple(theta.shape[1:])}"
            )

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the supplies (1, n) and the demands (1, m), in float64, which represents all of them exactly."""
        rows, columns = (theta.new_tensor([side], dtype=torch.float64) for side in (self.supplies, self.demands))
        return rows, columns, None

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n m"]:
        return self._network.best(theta.flatten(1), self.solver).reshape(theta.shape)

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs of half a unit, for units on pairs empty in ``y`` and units missing on pairs full in ``y``.

        The sum is a lower bound on the number of wrong units, and equals their number if no pair can have more than 1
        unit.
        """
        return self._network.hamming_cost(y.flatten(1)).reshape(y.shape)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels must be the units from each row to each column, shape (..., {like.shape[1]}, "
                f"{like.shape[2]}); got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        labels = labels.long()
        self._network.check_labels(labels.flatten(1))
        surplus = sum(self.supplies) - sum(self.demands)
        for side, given, dim, bound in (
            ("row", self.supplies, 2, surplus > 0),
            ("column", self.demands, 1, surplus < 0),
        ):
            excess = labels.sum(dim) - labels.new_tensor(given)
            expected = "at most " if bound else ""
            wrong = excess > 0 if bound else excess != 0
            reject_labels(wrong, labels, f"the {side} sums must be {expected}{given}")
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all plans, (|Y|, n, m) in float64, sorted by their entries; at most a million."""
        return torch.from_numpy(self._network.all()).unflatten(1, (len(self.supplies), len(self.demands)))
