"""Factors over binary variables: logic constraints, budgets, and tables of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.logsumexp import logsumexp
from ..linear_constraints import LinearConstraints, LinearlyConstrained
from ..oracle import Enumerable, GibbsOracle, Oracle, Projectable
from ..registry import ORACLES
from ..shapes import Float
from ..validation import check_enumerable, check_feasible

__all__ = ["LOGIC_FACTORS", "AtLeastOne", "LogicFactor", "OrWithOutput", "Table"]


@dataclass(frozen=True)
class AtLeastOne(GibbsOracle, Projectable, Enumerable, LinearlyConstrained):
    """Vectors of d bits with at least one 1: the factor ``or``. Scores and structures have shape (..., d)."""

    name: ClassVar[str] = "or"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        best = theta.argmax(1, keepdim=True)
        check_feasible(theta.gather(1, best)[:, 0] > -torch.inf, "structure of or")
        return (theta > 0).to(theta.dtype).scatter_(1, best, 1.0)

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        check_feasible(theta.detach().amax(1) > -torch.inf, "structure of or")
        return _log_sum_of_some(theta)

    def sum_bounds(self) -> tuple[float, float]:
        return 1, math.inf

    def project(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        """Return the projection onto 0 ≤ μ ≤ 1 with Σ μ ≥ 1: the clipped scores, or the sparsemax if their sum is less.

        A. Martins, M. Figueiredo, P. Aguiar, N. Smith & E. Xing, AD3, JMLR 16, 2015, §5.1.
        """
        check_feasible(theta.detach().amax(1) > -torch.inf, "structure of or")
        clipped = theta.clamp(0, 1)
        return torch.where(clipped.sum(1, keepdim=True) < 1, _project_onto_simplex(theta), clipped)

    def enumerate(self, event_shape: Any) -> Tensor:
        return _all_bits(event_shape[0])[1:]

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        d = event_shape[0]
        return LinearConstraints.of(([0] * d, range(d), [1] * d), d, [1], [d])


@dataclass(frozen=True)
class OrWithOutput(GibbsOracle, Projectable, Enumerable, LinearlyConstrained):
    """Vectors of d bits whose last bit is the disjunction of the others: the factor ``or_out``.

    Scores and structures have shape (..., d), with d at least 2.
    """

    name: ClassVar[str] = "or_out"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1] < 2:
            raise InvalidInputError(
                f"theta: or_out takes scores of at least one input and of the output, got {theta.shape[1]} in total"
            )

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        inputs, output = theta[:, :-1], theta[:, -1]
        best = inputs.argmax(1, keepdim=True)
        # The best structure with output 1 is all inputs of positive score, at least the best one.
        value = inputs.clamp(min=0).sum(1) + inputs.gather(1, best)[:, 0].clamp(max=0) + output
        chosen = torch.cat([(inputs > 0).to(theta.dtype).scatter_(1, best, 1.0), torch.ones_like(output)[:, None]], 1)
        return chosen * (value > 0).to(theta.dtype)[:, None]

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        some = _log_sum_of_some(theta[:, :-1]) + theta[:, -1]
        return logsumexp(torch.stack([torch.zeros_like(some), some], 1), 1)

    def project(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        """Return the projection onto x ≤ z ≤ min(1, Σ x) with x ≥ 0, for inputs x and the output z.

        It is the projection onto 0 ≤ x ≤ z ≤ 1, unless it has z > Σ x. Else z = Σ x, with Σ x = 1 or less than 1. The
        last two projections are clip(a − τ, 0) for the input scores a. A. Martins, M. Figueiredo, P. Aguiar, N. Smith &
        E. Xing, AD3, JMLR 16, 2015, §5.1.
        """
        inputs, output = theta[:, :-1], theta[:, -1:]
        finite, b = (t.masked_fill(t.isneginf(), 0.0) for t in (inputs, output))
        order = inputs.detach().sort(1, descending=True)
        place = order.indices.argsort(1)
        count = torch.arange(1, inputs.shape[1] + 1, device=theta.device).to(theta)
        total = order.values.cumsum(1)

        # Onto x ≤ z: if k inputs are above z, then z is (b + their sum) / (1 + k).
        k = (order.values > (output.detach() + total) / (1 + count)).sum(1, keepdim=True)
        top = (b + torch.where(place < k, finite, 0.0).sum(1, keepdim=True)) / (1 + k)
        top = torch.where(output.isneginf(), 0.0, top).clamp(0, 1)
        below = torch.minimum(inputs.clamp(min=0), top)

        # Onto z = Σ x: if k inputs are above τ, then τ is (their sum − b) / (1 + k).
        k = (order.values > (total - b.detach()) / (1 + count)).sum(1, keepdim=True)
        tau = (torch.where(place < k, finite, 0.0).sum(1, keepdim=True) - b) / (1 + k)
        free = (inputs - tau).clamp(min=0)
        exceeds = free.sum(1, keepdim=True) > 1
        one = _project_onto_simplex(torch.where(exceeds, inputs, 0.0))
        sums_to_output = torch.where(exceeds, one, free)

        is_below = below.sum(1, keepdim=True) >= top
        x = torch.where(is_below, below, sums_to_output)
        z = torch.where(is_below, top, torch.where(exceeds, 1.0, free.sum(1, keepdim=True)))
        return torch.cat([x, z], 1)

    def enumerate(self, event_shape: Any) -> Tensor:
        bits = _all_bits(event_shape[0] - 1)
        return torch.cat([bits, bits.amax(1, keepdim=True)], 1)

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        d = event_shape[0]
        inputs = np.arange(d - 1)
        # Each input is at most the output. The output is at most the sum of the inputs.
        row = np.concatenate([inputs, inputs, np.full(d, d - 1)])
        column = np.concatenate([inputs, np.full(d - 1, d - 1), inputs, [d - 1]])
        value = np.concatenate([np.ones(d - 1), -np.ones(d - 1), -np.ones(d - 1), [1]])
        return LinearConstraints.of((row, column, value), d, [-1] * (d - 1) + [1 - d], [0] * d)


@dataclass(frozen=True)
class Table(GibbsOracle, Enumerable, LinearlyConstrained):
    """Vectors of d bits, with a score of each bit and of each combination: the factors ``pair`` and ``table``.

    Scores are a tuple: the bits (..., d), and a table (..., 2, ..., 2) with d dimensions whose entry [x_1, ..., x_d]
    scores the combination. A structure holds the bits, and 1 at the entry in use.
    """

    name: ClassVar[str] = "table"

    variables: int

    def __post_init__(self) -> None:
        check_enumerable(2**self.variables, "entries of a table factor")

    @property
    def event_ndim(self) -> tuple[int, ...]:  # type: ignore[override]
        """1, and the number of variables."""
        return 1, self.variables

    def has_binary_parts(self, theta: tuple[Tensor, Tensor]) -> bool:
        return True

    def validate(self, theta: tuple[Tensor, Tensor]) -> None:
        if (tuple(theta[0].shape[1:]), tuple(theta[1].shape[1:])) != ((self.variables,), (2,) * self.variables):
            raise InvalidInputError(
                f"theta: a table factor of {self.variables} variables takes scores of shape ({self.variables},) and "
                f"{(2,) * self.variables}, got {tuple(theta[0].shape[1:])} and {tuple(theta[1].shape[1:])}"
            )

    def argmax(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        bits, total = self._score_combinations(theta)
        best = total.argmax(1, keepdim=True)
        check_feasible(total.gather(1, best)[:, 0] > -torch.inf, "structure of a table factor")
        entry = torch.zeros_like(total).scatter_(1, best, 1.0)
        return bits[best[:, 0]], entry.reshape(-1, *theta[1].shape[1:])

    def log_partition(self, theta: tuple[Tensor, Tensor]) -> Float[Tensor, " batch"]:
        _, total = self._score_combinations(theta)
        check_feasible(total.detach().amax(1) > -torch.inf, "structure of a table factor")
        return logsumexp(total, 1)

    def _score_combinations(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the combinations of bits, (2^d, d), and their scores, (B, 2^d)."""
        scores = theta[0]
        bits = _all_bits(self.variables).to(scores)
        forbidden = scores.detach().isneginf().to(scores) @ bits.T > 0
        total = (scores.masked_fill(scores.isneginf(), 0)[:, None, :] * bits).sum(2) + theta[1].flatten(1)
        return bits, total.masked_fill(forbidden, -torch.inf)

    def enumerate(self, event_shape: Any) -> tuple[Tensor, Tensor]:
        bits = _all_bits(self.variables)
        return bits, torch.eye(len(bits), dtype=torch.float64, device="cpu").reshape(-1, *(2,) * self.variables)

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        d, count = self.variables, 2**self.variables
        entry, bit = _all_bits(d).numpy().nonzero()
        # A bit is the sum of the entries with the bit. The sum of all entries is 1.
        row = np.concatenate([np.arange(d), bit, np.full(count, d)])
        column = np.concatenate([np.arange(d), d + entry, d + np.arange(count)])
        value = np.concatenate([np.ones(d), -np.ones(len(entry)), np.ones(count)])
        total = [0] * d + [1]
        return LinearConstraints.of((row, column, value), d + count, total, total)


def _log_sum_of_some(theta: Tensor) -> Float[Tensor, " batch"]:
    """Return log Σ exp⟨θ, y⟩ over all vectors of bits except 0, for scores (B, d); −inf if all scores are −inf."""
    # Σ_i exp θ_i Π_{j > i} (1 + exp θ_j) groups the vectors by their first 1. No term is subtracted, so that second
    # derivatives of tiny sums are exact.
    softplus = -torch.nn.functional.logsigmoid(-theta)
    following = torch.nn.functional.pad(softplus[:, 1:], (0, 1)).flip(1).cumsum(1).flip(1)
    return logsumexp(theta + following, 1)


def _project_onto_simplex(theta: Tensor) -> Float[Tensor, "batch d"]:
    """Return the projection of each row of scores onto the simplex, for rows with a score above −inf."""
    return cast(Projectable, _subset(theta.shape[1])).project(theta)  # type: ignore[return-value]


def _all_bits(d: int) -> Float[Tensor, "structures d"]:
    """Return all vectors of d bits in lexicographic order, (2^d, d) in float64."""
    check_enumerable(2**d, f"vectors of {d} bits")
    numbers = torch.arange(2**d, device="cpu")
    return (numbers[:, None] >> torch.arange(d - 1, -1, -1, device="cpu") & 1).double()


class LogicFactor(NamedTuple):
    """A factor by name: its oracle over d variables, and which of them it negates.

    Attributes
    ----------
    make : callable
        Maps d and the options to the oracle.
    negates : callable
        Maps d to the negated variables, a list of d bools.
    options : tuple of str
        The names of required options.
    table : bool
        Whether the factor has a table of additional scores.
    """

    make: Callable[..., Oracle]
    negates: Callable[[int], list[bool]] = lambda d: [False] * d
    options: tuple[str, ...] = ()
    table: bool = False


def _subset(d: int, k: int | None = 1, at_most: bool = False) -> Oracle:
    return ORACLES.get("subset", k=k, at_most=at_most)


def _budget(d: int, k: int | None = None) -> Oracle:
    return _subset(d, k, True)


def _pair(d: int) -> Oracle:
    if d != 2:
        raise InvalidInputError(f"variables: a pair has 2 variables, got {d}; use table for other numbers")
    return Table(d)


LOGIC_FACTORS: Mapping[str, LogicFactor] = {
    "xor": LogicFactor(_subset),
    "or": LogicFactor(lambda d: AtLeastOne()),
    "at_most_one": LogicFactor(lambda d: _subset(d, 1, True)),
    "imply": LogicFactor(lambda d: AtLeastOne(), lambda d: [True] * (d - 1) + [False]),
    "or_out": LogicFactor(lambda d: OrWithOutput()),
    "and_out": LogicFactor(lambda d: OrWithOutput(), lambda d: [True] * d),
    "budget": LogicFactor(_budget, options=("k",)),
    "pair": LogicFactor(_pair, table=True),
    "table": LogicFactor(Table, table=True),
}
"""Exactly one, at least one, at most one; the others imply the last; the last is the disjunction or conjunction of the
others; at most k; and tables of scores."""
