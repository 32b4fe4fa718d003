"""Small oracles for the tests to register, check and break: right by listing all structures, with no care for speed."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structinf import Enumerable, GibbsOracle, InvalidInputError, KBest, Oracle, Parts, Projectable, Samplable
from structinf.kernels.logsumexp import logsumexp
from structinf.parts import as_tuple, batch_size, map_parts
from structinf.validation import check_feasible, check_lengths


@dataclass(frozen=True)
class Knapsack(Oracle):
    """Items of weight 1, 2, 3, ... within a capacity: argmax and nothing else, in a dozen lines."""

    capacity: int
    name: ClassVar[str] = "toy_knapsack"
    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        choices = torch.tensor(list(itertools.product([0.0, 1.0], repeat=theta.shape[1])), dtype=theta.dtype)
        weights = torch.arange(1.0, theta.shape[1] + 1, dtype=theta.dtype)
        fitting = choices[choices @ weights <= self.capacity].to(theta.device)
        scores = torch.where(fitting == 0, 0.0, theta[:, None] * fitting).sum(2)
        return fitting[scores.argmax(1)]


class Listing(GibbsOracle, Samplable, KBest, Enumerable):
    """Sums, samples and the k best, from a list of all structures of each instance."""

    def listed(self, theta: Parts) -> Parts:
        """(B, N, *event), the same N for all instances: shorter lists repeat no structure but a forbidden one."""
        raise NotImplementedError

    def table(self, theta: Parts) -> tuple[Parts, Tensor]:
        """Structures (B, N, *event) and their scores (B, N)."""
        structures, real = self.listed(theta)  # type: ignore[misc]
        size = batch_size(theta)
        scores = torch.zeros(size, real.shape[1], dtype=as_tuple(theta)[0].dtype)
        for t, y in zip(as_tuple(theta), as_tuple(structures), strict=True):
            scores = scores + torch.where(y == 0, 0.0, t[:, None] * y).flatten(2).sum(2)
        return structures, scores.masked_fill(~real, -torch.inf)

    def pick(self, structures: Parts, index: Tensor) -> Parts:
        """(..., B) indices to (..., B, *event)."""
        return map_parts(lambda y: y[torch.arange(len(y)), index], structures)

    def argmax(self, theta: Parts) -> Parts:
        structures, scores = self.table(theta)
        best, index = scores.max(1) if scores.shape[1] else (scores.sum(1), scores.sum(1).long())
        check_feasible(best, "structure")
        return self.pick(structures, index)

    def log_partition(self, theta: Parts) -> Tensor:
        value = logsumexp(self.table(theta)[1], 1)
        check_feasible(value.detach(), "structure")
        return value

    def sample(self, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
        structures, scores = self.table(theta)
        check_feasible(scores.amax(1), "structure")
        if not len(scores):
            return map_parts(lambda y: y.new_zeros(n, 0, *y.shape[2:]), structures)
        drawn = torch.multinomial(scores.double().softmax(1), n, replacement=True, generator=generator).T
        return self.pick(structures, drawn)

    def topk(self, theta: Parts, k: int) -> tuple[Parts, Tensor, Tensor]:
        structures, scores = self.table(theta)
        missing = max(k - scores.shape[1], 0)
        scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
        best, index = scores.sort(dim=1, descending=True, stable=True)
        best, index = best[:, :k].T, index[:, :k].T
        valid = best > -torch.inf
        found = self.pick(structures, index.where(valid, 0))
        return map_parts(lambda y: y * valid.view(*valid.shape, *[1] * (y.ndim - 2)), found), best, valid


@dataclass(frozen=True)
class Cube(Projectable, Enumerable):
    """Any subset of the parts."""

    name: ClassVar[str] = "toy_cube"
    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        return (theta > 0).to(theta)

    def project(self, theta: Tensor) -> Tensor:
        return theta.clamp(0, 1)

    def enumerate(self, event_shape: Any) -> Tensor:
        return torch.tensor(list(itertools.product([0.0, 1.0], repeat=event_shape[0])), dtype=torch.float64)


@dataclass(frozen=True)
class Explicit(Listing):
    """Structures given one by one, as rows of numbers."""

    rows: tuple[tuple[float, ...], ...] = ((1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1))
    name: ClassVar[str] = "toy_explicit"
    event_ndim = 1

    def listed(self, theta: Tensor) -> Any:
        rows = torch.tensor(self.rows, dtype=theta.dtype)
        return rows.expand(len(theta), *rows.shape), torch.ones(len(theta), len(rows), dtype=torch.bool)

    def enumerate(self, event_shape: Any) -> Tensor:
        return torch.tensor(self.rows, dtype=torch.float64)


@dataclass(frozen=True)
class Walk(Listing):
    """Paths through T steps of S states: unary (T, S) and a transition (S, S); lengths; tags as labels."""

    name: ClassVar[str] = "toy_walk"
    event_ndim = (2, 2)
    instance_ndim: ClassVar = {"lengths": 0}

    def validate(self, theta: Parts) -> None:
        unary, transition = theta
        if transition.shape[1:] != (unary.shape[2], unary.shape[2]):
            raise InvalidInputError(f"transition must be (S, S), got {tuple(transition.shape[1:])}")
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], 1, unary.shape[1], f"T = {unary.shape[1]} steps")

    def lengths(self, size: int, steps: int) -> list[int]:
        return self.bound["lengths"].tolist() if "lengths" in self.bound else [steps] * size

    def valid_parts(self, theta: Parts) -> Parts | None:
        if "lengths" not in self.bound:
            return None
        unary, transition = theta
        lengths = self.bound["lengths"]
        steps = torch.arange(unary.shape[1]) < lengths[:, None]
        used = torch.ones(len(lengths), *transition.shape[1:], dtype=torch.bool)
        return steps[:, :, None].expand(-1, -1, unary.shape[2]), used

    @staticmethod
    @functools.cache
    def paths(length: int, steps: int, states: int) -> tuple[Tensor, Tensor]:
        every = list(itertools.product(range(states), repeat=length))
        unary = torch.zeros(len(every), steps, states, dtype=torch.float64)
        transition = torch.zeros(len(every), states, states, dtype=torch.float64)
        for row, path in enumerate(every):
            for t, state in enumerate(path):
                unary[row, t, state] = 1
            for a, b in itertools.pairwise(path):
                transition[row, a, b] += 1
        return unary, transition

    def listed(self, theta: Parts) -> Any:
        unary, _ = theta
        steps, states = unary.shape[1:]
        size = batch_size(theta)
        most = states**steps
        tables = (unary.new_zeros(size, most, steps, states), unary.new_zeros(size, most, states, states))
        real = torch.zeros(size, most, dtype=torch.bool)
        for b, length in enumerate(self.lengths(size, steps)):
            for table, found in zip(tables, self.paths(length, steps, states), strict=True):
                table[b, : len(found)] = found.to(table)
                real[b, : len(found)] = True
        return tables, real

    def enumerate(self, event_shape: Any) -> Parts:
        (steps, states), _ = event_shape
        return self.paths(self.lengths(1, steps)[0], steps, states)

    def readout(self, y: Parts) -> Parts:
        return y[0]

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        unary, _ = like
        steps, states = unary.shape[1:]
        y = [unary.new_zeros(len(labels), steps, states), unary.new_zeros(len(labels), states, states)]
        for b, length in enumerate(self.lengths(len(labels), steps)):
            if not bool(((labels[b, :length] >= 0) & (labels[b, :length] < states)).all()):
                raise InvalidInputError(f"tags must lie between 0 and {states - 1} at batch index {b}")
            tags = labels[b, :length].tolist()
            for t, tag in enumerate(tags):
                y[0][b, t, tag] = 1
            for a, c in itertools.pairwise(tags):
                y[1][b, a, c] += 1
        return tuple(y)

    def decode(self, y: Parts) -> Tensor:
        used = y[0].any(2)
        return torch.where(used, y[0].argmax(2), -1)


SHAPES: dict[type[Oracle], Any] = {Knapsack: (4,), Cube: (3,), Explicit: (4,), Walk: ((3, 2), (2, 2))}
"""Event shapes to check each on."""


def walk(*batch: int, transition: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Potentials of a Walk of 3 steps and 2 states."""
    return torch.randn(*batch, 3, 2, dtype=dtype), torch.randn(*transition, 2, 2, dtype=dtype)
