"""The best structure of a factor graph with bounds on the parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InfeasibleError, UnsupportedError
from ..parts import AnyParts, Parts, as_tuple, map_parts, parts_to_vectors, vectors_to_parts
from ..restriction import Restrictable
from ..solvers.graph_factors import Factor, check_values
from .exact import ExactFactorGraph, JointList, list_scores, own_scores, with_batch

__all__ = ["Columns", "RestrictedFactorGraph", "are_within", "as_form", "from_factor"]


class Columns(NamedTuple):
    """The parts of a component among the parts (D,) of the graph: its variables, ascending, then further parts.

    Attributes
    ----------
    index : (d,) int64 Tensor
        The places of the parts.
    variables : int
        The number of variables.
    """

    index: Tensor
    variables: int


class RestrictedFactorGraph(ExactFactorGraph, Restrictable):
    """A factor graph whose parts have bounds. The parameters are the options of the graph."""

    def part_bounds(self, theta: AnyParts) -> tuple[Parts, Parts]:
        low, high = super().part_bounds(theta)
        if self.has_binary_parts(theta):
            return low, high
        # The additional parts of a factor are any numbers.
        free: list[Parts] = []
        for ends, bound in ((low, -torch.inf), (high, torch.inf)):
            variables, *others = as_tuple(ends)
            free.append((variables, *(torch.full_like(t, bound) for t in others)))
        return free[0], free[1]

    def restricted_argmax(self, theta: AnyParts, low: AnyParts, high: AnyParts) -> tuple[Parts, Tensor]:
        self.freeze()
        tensors, size = with_batch(map_parts(Tensor.detach, theta))
        vectors, lower, upper = parts_to_vectors(tensors), parts_to_vectors(low), parts_to_vectors(high)
        free = torch.zeros(vectors.shape[1], dtype=torch.bool, device=vectors.device)
        free[: len(self.degree)] = self.degree == 0
        values = ((vectors > 0) & (upper >= 1)) | (lower > 0)
        values = (values & free).to(vectors)
        wrong = (values < lower) | (values > upper) | ((values > 0) & vectors.isneginf())
        found = ~(wrong & free).any(1)
        for numbers in self._components if size else ():
            columns = self._columns(numbers, vectors.device)
            rows = found.nonzero()[:, 0]
            while len(rows):
                places = rows[:, None], columns.index
                try:
                    own, exists = self[rows]._solve_within(
                        numbers, columns, tuple(t[rows] for t in tensors), lower[places], upper[places]
                    )
                except InfeasibleError as error:
                    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
                    kept[list(error.batch_indices)] = False
                    found[rows[~kept]] = False
                    rows = rows[kept]
                    continue
                values[places], found[rows] = own, exists
                break
        return vectors_to_parts(values, theta), found

    def _columns(self, numbers: list[int], device: torch.device) -> Columns:
        starts = [0]
        for shape in self.event_shapes():
            starts.append(starts[-1] + shape.numel())
        variables = torch.cat([self._factors[k].variables.flatten() for k in numbers]).unique()
        used = [torch.arange(starts[i], starts[i + 1], device="cpu") for k in numbers for i in self._additional(k)]
        return Columns(torch.cat([variables, *used]).to(device), len(variables))

    def _listed(self, numbers: list[int], joint: JointList) -> Tensor:
        """Return the joint structures of a component as vectors (N, d)."""
        variables, values, others = joint
        return torch.cat(
            [values[:, variables.argsort()], *(others[i].double() for k in numbers for i in self._additional(k))], 1
        )

    def _solve_within(
        self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the best structures (B, d) of a component within bounds (B, d), and which exist, (B,)."""
        scores = tensors[0].flatten(1)
        factor = self._factors[numbers[0]]
        oracle = factor.bind(self.bound)
        if len(numbers) == 1 and isinstance(oracle, Restrictable) and self._is_plain(factor, scores):
            flips, place = _order(factor, low.device)
            ends = []
            for one, other in ((low, high), (high, low)):
                variables, *others = self._split(factor, one)
                opposite = self._split(factor, other)[0]
                ends.append((torch.where(flips, 1 - opposite, variables)[:, place.argsort()], *others))
            form = own_scores(factor, oracle, scores, tensors)
            lower, upper = (vectors_to_parts(torch.cat([t.flatten(1) for t in end], 1), form) for end in ends)
            best, found = oracle.restricted_argmax(form, lower, upper)
            return from_factor(factor, best), found
        if self.solver == "list":
            return self._choose_within(numbers, tensors, low, high)
        if self.solver == "milp":
            return self._program_within(numbers, columns, tensors, low, high)
        return self._search_within(numbers, columns, tensors, low, high)

    def _choose_within(
        self, numbers: list[int], tensors: tuple[Tensor, ...], low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        values, found = torch.zeros_like(low), torch.zeros(len(low), dtype=torch.bool, device=low.device)
        for rows, joint in self._joint_structures(numbers, len(low)):
            listed, rows = self._listed(numbers, joint).to(low), rows.to(low.device)
            sums = list_scores(rows, joint, tensors[0].flatten(1), tensors)
            best = sums.masked_fill(~are_within(listed, low[rows], high[rows]), -torch.inf).max(1)
            values[rows], found[rows] = listed[best.indices], ~best.values.isneginf()
        return values, found

    def _program_within(
        self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = tensors[0].flatten(1)
        values, found = torch.zeros_like(low), torch.zeros(len(low), dtype=torch.bool, device=low.device)
        for index, program in self._programs_of(numbers, scores):
            own = self._program_scores(program, index, scores, tensors)
            parts = [torch.arange(columns.variables, device=own.device)]
            parts += [torch.arange(first, first + n, device=own.device) for _, (first, n) in self._places(program)]
            place = torch.cat(parts)
            lower, upper = torch.full_like(own, -torch.inf), torch.full_like(own, torch.inf)
            lower[:, place], upper[:, place] = low[index], high[index]
            milp: Any = program.oracle
            best, found[index] = milp.restricted_argmax(own, lower, upper)
            values[index] = best[:, place]
        return values, found

    def _search_within(
        self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        start, end = (parts_to_vectors(t)[:, columns.index] for t in self.part_bounds(as_form(tensors)))
        own, count = parts_to_vectors(tensors)[:, columns.index], columns.variables
        # A part of score −inf is 0 without bounds too.
        is_cut = (high < end) & ~((high == 0) & own.isneginf())
        if bool(((low > start) | is_cut)[:, count:].any()):
            raise UnsupportedError(
                'factor_graph: solver="branch_and_bound" has bounds of variables only; build the graph with '
                'solver="list" or "milp" for bounds of additional parts'
            )
        own = own[:, :count]
        fixed = (low[:, :count] > 0).double() - ((high[:, :count] < 1) & ~own.isneginf()).double()
        empty = ((low > high)[:, :count] | ((low[:, :count] > 0) & own.isneginf())).any(1)
        y = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in tensors]
        found = torch.zeros(len(low), dtype=torch.bool, device=low.device)
        rows = (~empty).nonzero()[:, 0]
        if len(rows):
            chosen = tuple(t[rows] for t in tensors)
            best = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in chosen]
            every = own.new_zeros(len(rows), len(self.degree), dtype=torch.float64)
            every[:, columns.index[:count]] = fixed[rows]
            found[rows] = self[rows]._maximise_by_search(numbers, chosen[0].flatten(1), chosen, best, every)
            for t, own_rows in zip(y, best, strict=True):
                t[rows] = own_rows
        return parts_to_vectors(tuple(y))[:, columns.index], found

    def _split(self, factor: Factor, values: Tensor) -> list[Tensor]:
        """Return vectors (B, d) of the columns of a single factor as its variables (B, m) and its additional parts."""
        return list(values.split([factor.variables.numel(), *(shape.numel() for shape in factor.additional)], 1))


def _order(factor: Factor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the flags of negated variables and the places of the parts of a factor, by ascending variable."""
    place = factor.variables.flatten().argsort()
    return factor.negated.flatten()[place].to(device), place.to(device)


def are_within(listed: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return which of the structures (N, d) are within the bounds (B, d) of each instance, (B, N)."""
    found = [((listed >= a) & (listed <= b)).all(1) for a, b in zip(low, high, strict=True)]
    return torch.stack(found) if found else listed.new_zeros(0, len(listed), dtype=torch.bool)


def as_form(tensors: tuple[Tensor, ...]) -> Parts:
    """Return a tensor for one tensor, and else the tuple: the form of the graph's scores."""
    return tensors[0] if len(tensors) == 1 else tensors


def from_factor(factor: Factor, parts: Parts) -> Tensor:
    """Return structures (M, *event) of a factor, each of whose variables occurs once, as vectors (M, d) of columns.

    Parameters
    ----------
    factor : Factor
        The factor.
    parts : (M, *event) Tensor, or tuple of them
        Structures of its oracle.
    """
    first, *others = as_tuple(parts)
    check_values(first, factor.name)
    flips, place = _order(factor, first.device)
    variables = first.flatten(1)[:, place]
    return torch.cat([torch.where(flips, 1 - variables, variables), *(t.flatten(1) for t in others)], 1)
