"""Exact answers for factor graphs: argmax, sums over structures, and the list of structures."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InfeasibleError, UnsupportedError, renumber_instances
from ..kernels.logsumexp import logsumexp
from ..oracle import Enumerable, GibbsOracle, Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts
from ..solvers.branch_and_bound import OnLimit, best_joint_structure
from ..solvers.graph_factors import Factor, GraphFactors, OracleGroup, check_values
from ..validation import check_feasible
from .integer_program import IntegerProgram
from .structures import MOST_STRUCTURES, components, join, list_structures

__all__ = [
    "ExactFactorGraph",
    "JointList",
    "Solver",
    "list_scores",
    "name_factors",
    "own_scores",
    "with_batch",
    "without_padding",
]

Solver = Literal["list", "milp", "branch_and_bound"]

JointList = tuple[Tensor, Tensor, dict[int, Tensor]]
"""The variables (V,) of a component, their values (N, V), and the additional parts by position."""

T = TypeVar("T")

_MOST_KEPT = 10_000_000
"""The largest total size of the lists, or programs, that a graph keeps for different instance data."""

_ENTRY = 10_000
"""The size that an entry counts in addition to its numbers, so that at most 1,000 entries are kept."""

_BEYOND_LISTS = (
    'build the graph with solver="milp" or "branch_and_bound" for an exact argmax, or use the relaxation lp_map or '
    "lp_sparsemap"
)

_WITHOUT_LISTS = "use belief_propagation, lp_map, lp_sparsemap, or a relaxation of the best structure such as perturbed"


class ExactFactorGraph(GibbsOracle, Enumerable):
    """The exact methods of a factor graph, for each connected component of its factors.

    A component with a single factor takes a call of the factor's oracle. Other components list their structures, or
    call a solver for the best structure.

    Parameters
    ----------
    shape : torch.Size
        The shape of the tensor of variables.
    solver, time_limit, node_limit, on_limit
        As for :class:`structinf.FactorGraph`.
    """

    def __init__(
        self, shape: torch.Size, solver: Solver, time_limit: float | None, node_limit: int, on_limit: OnLimit
    ) -> None:
        self.shape, self.solver, self.time_limit, self.node_limit = shape, solver, time_limit, node_limit
        self.on_limit: OnLimit = on_limit
        self._factors: list[Factor] = []
        self._is_frozen = False

    @property
    def variables(self) -> Tensor:
        """The flat index of each variable, an int64 tensor of the shape of the variables."""
        return torch.arange(math.prod(self.shape), device="cpu").reshape(self.shape)

    def freeze(self) -> None:
        """Refuse further factors from now on."""
        self._is_frozen = True

    @functools.cached_property
    def degree(self) -> Tensor:
        """The number of factor parts of each variable, (n,) int64."""
        self.freeze()
        indices = [f.variables.flatten() for f in self._factors]
        return torch.bincount(torch.cat([*indices, self.variables.flatten()[:0]]), minlength=math.prod(self.shape))

    def event_shapes(self) -> tuple[torch.Size, ...]:
        """Return the shapes of the variables and of each additional tensor."""
        return (self.shape, *(shape for f in self._factors for shape in f.additional))

    def argmax(self, theta: Parts) -> Parts:
        self.freeze()
        tensors, size = with_batch(theta)
        scores = tensors[0].flatten(1)
        y = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in tensors]
        values = y[0].flatten(1)
        values.copy_((scores > 0) & (self.degree == 0).to(scores.device))
        for numbers in self._components if size else ():
            self._maximise(numbers, scores, tensors, y)
        return tuple(y) if isinstance(theta, tuple) else y[0]

    def _maximise(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        """Write the best structure of a component into ``y``, in the form of ``tensors``."""
        factor = self._factors[numbers[0]]
        if len(numbers) == 1 and self._is_plain(factor, scores):
            self._maximise_factor(factor, scores, tensors, y)
        elif self.solver == "list":
            self._maximise_list(numbers, scores, tensors, y)
        elif self.solver == "milp":
            self._maximise_program(numbers, scores, tensors, y)
        else:
            self._maximise_by_search(numbers, scores, tensors, y)

    @functools.cached_property
    def _components(self) -> list[list[int]]:
        return components(self._factors, math.prod(self.shape))

    def _is_plain(self, factor: Factor, scores: Tensor) -> bool:
        """Return whether the factor's argmax is that of its oracle: each variable occurs once, and no −inf negated."""
        index = factor.variables.flatten()
        if len(index.unique()) < len(index):
            return False
        negated = index[factor.negated.flatten()]
        return not bool(scores[:, negated.to(scores.device)].isneginf().any())

    def _maximise_factor(self, factor: Factor, scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        oracle = factor.bind(self.bound)
        with name_factors([factor]):
            best = as_tuple(oracle.argmax(own_scores(factor, oracle, scores, tensors)))
        index, flips = factor.variables.flatten().to(scores.device), factor.negated.flatten().to(scores.device)
        found = best[0].flatten(1)
        check_values(found, factor.name)
        y[0].flatten(1)[:, index] = torch.where(flips, 1 - found, found)
        for i, part in enumerate(best[1:], factor.first):
            y[i].copy_(part)

    def _maximise_list(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        for rows, (variables, values, others) in self._joint_structures(numbers, len(scores)):
            found = list_scores(rows, (variables, values, others), scores, tensors).max(1)
            with renumber_instances(rows):
                self._check_feasible(numbers, found.values)
            places = rows[:, None].to(scores.device), variables[None].to(scores.device)
            y[0].flatten(1)[places] = values.to(scores)[found.indices]
            for i, listed in others.items():
                y[i][rows] = listed.to(scores)[found.indices].view(-1, *y[i].shape[1:])

    def _maximise_program(
        self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]
    ) -> None:
        for index, program in self._programs_of(numbers, scores):
            own = self._program_scores(program, index, scores, tensors)
            with renumber_instances(index), name_factors(self._factors[k] for k in numbers):
                best = program.oracle.argmax(own)
            assert isinstance(best, Tensor)
            places = index[:, None], program.variables[None].to(scores.device)
            y[0].flatten(1)[places] = best[:, : len(program.variables)]
            for i, (first, count) in self._places(program):
                y[i][index] = best[:, first : first + count].view(-1, *y[i].shape[1:])

    def _programs_of(self, numbers: list[int], scores: Tensor) -> Iterator[tuple[Tensor, IntegerProgram]]:
        """Yield the integer program of a component, for all instances with the same data: their indices (R,)."""
        for key, rows, data in self._rows_by_data(numbers, len(scores)):
            program = self._programs.get(key)
            if program is None:
                options = {"time_limit": self.time_limit, "on_limit": self.on_limit}
                program = IntegerProgram.of(self._factors, numbers, data, options)
                _keep(self._programs, key, program, lambda own: own.columns)
            yield torch.tensor(rows, dtype=torch.int64, device=scores.device), program

    def _program_scores(
        self, program: IntegerProgram, index: Tensor, scores: Tensor, tensors: tuple[Tensor, ...]
    ) -> Tensor:
        """Return the scores of the program's columns, for the instances ``index`` (R,)."""
        own = scores.new_zeros(len(index), program.columns)
        own[:, : len(program.variables)] = scores[index[:, None], program.variables[None].to(scores.device)]
        for i, (first, count) in self._places(program):
            own[:, first : first + count] = tensors[i][index].flatten(1)
        return own

    def _places(self, program: IntegerProgram) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the additional tensors of a program: position, and first column and number of its parts."""
        for k, first in program.additional:
            for i, shape in zip(self._additional(k), self._factors[k].additional, strict=True):
                yield i, (first, shape.numel())
                first += shape.numel()

    def _maximise_by_search(
        self,
        numbers: list[int],
        scores: Tensor,
        tensors: tuple[Tensor, ...],
        y: list[Tensor],
        fixed: Tensor | None = None,
    ) -> Tensor:
        """Write the best structure of a component with the ``fixed`` values; return which instances have one, (B,)."""
        factors, first = [], 1
        for k in numbers:
            factors.append(replace(self._factors[k], first=first))
            first += len(factors[-1].additional)
        index = torch.cat([f.variables.flatten() for f in factors]).unique().to(scores.device)
        own = torch.zeros_like(scores)
        own[:, index] = scores[:, index]
        used = [i for k in numbers for i in self._additional(k)]
        grouped = GraphFactors(OracleGroup.of(factors, self.bound.keys()), tuple(f.name for f in factors), self.bound)
        best, found = best_joint_structure(
            grouped,
            (own, *(tensors[i] for i in used)),
            node_limit=self.node_limit,
            on_limit=self.on_limit,
            label="factor_graph",
            fixed=fixed,
        )
        y[0].flatten(1)[:, index] = best[0][:, index]
        for i, part in zip(used, best[1:], strict=True):
            y[i].copy_(part)
        return found

    def _additional(self, number: int) -> range:
        """Return the positions of the additional tensors of a factor."""
        factor = self._factors[number]
        return range(factor.first, factor.first + len(factor.additional))

    def _check_feasible(self, numbers: list[int], value: Tensor) -> None:
        together = " together" if len(numbers) > 1 else ""
        check_feasible(value, f"structure of {' and '.join(f'factor {k}' for k in numbers)}{together}")

    def _joint_structures(self, numbers: list[int], size: int) -> Iterator[tuple[Tensor, JointList]]:
        """Yield the list of joint structures of a component, for all instances with the same data."""
        for key, rows, data in self._rows_by_data(numbers, size):
            found = self._lists.get(key)
            if found is None:
                found = self._list(numbers, data, rows)
                _keep(self._lists, key, found, lambda own: own[1].numel())
            yield torch.tensor(rows, dtype=torch.int64, device="cpu"), found

    def _rows_by_data(
        self, numbers: list[int], size: int
    ) -> Iterator[tuple[tuple[Any, ...], list[int], dict[str, Tensor]]]:
        """Yield the instances with the same data for a component: a key for caches, the rows, the data of one row."""
        used = {keyword for k in numbers for keyword in self._factors[k].data.values()}
        data = {keyword: self.bound[keyword] for keyword in sorted(used) if keyword in self.bound}
        found: dict[tuple[Any, ...], list[int]] = {}
        if data:
            columns = [map(tuple, t.detach()[:, None].flatten(1).tolist()) for t in data.values()]
            for b, key in enumerate(zip(*columns, strict=True)):
                found.setdefault(key, []).append(b)
        else:
            found[()] = list(range(size))
        for key, rows in found.items():
            yield (tuple(numbers), tuple(data), key), rows, {keyword: t[rows[:1]] for keyword, t in data.items()}

    def _list(self, numbers: list[int], data: dict[str, Tensor], rows: list[int]) -> JointList:
        """Return the joint structures for the ``data`` of one instance; ``rows`` has this data."""
        try:
            joint = join(self._factors, numbers, data)
        except UnsupportedError as error:
            several = len(numbers) > 1
            what = f"joint structures of {len(numbers)} factors that share variables" if several else "structures"
            raise UnsupportedError(
                f"factor_graph: this exact method lists the {what}, at most {MOST_STRUCTURES}, but {error}; "
                f"{_BEYOND_LISTS if self.solver == 'list' else _WITHOUT_LISTS}"
            ) from None
        except InfeasibleError as error:  # of all these instances
            raise InfeasibleError(error.args[0], rows[0], rows) from None
        others = {}
        for k, own in joint.rows.items():
            listed = list_structures(self._factors[k], data)[1:]
            for i, part in zip(self._additional(k), listed, strict=True):
                others[i] = part.flatten(1)[torch.from_numpy(own)]
        return torch.from_numpy(joint.variables), torch.from_numpy(joint.values), others

    @functools.cached_property
    def _lists(self) -> dict[Hashable, JointList]:
        return {}

    @functools.cached_property
    def _programs(self) -> dict[Hashable, IntegerProgram]:
        return {}

    def log_partition(self, theta: Parts) -> Tensor:
        self.freeze()
        tensors, size = with_batch(theta)
        scores = tensors[0].flatten(1)
        alone = scores[:, (self.degree == 0).to(scores.device)]
        both = torch.stack([torch.zeros_like(alone), alone], 2)
        total = logsumexp(both, 2).sum(1)
        if size == 0:  # a sum over no instances, as a function of all scores
            return total + sum(t.flatten(1).sum(1) for t in tensors)
        for numbers in self._components:
            factor = self._factors[numbers[0]]
            oracle = factor.bind(self.bound)
            if len(numbers) == 1 and isinstance(oracle, GibbsOracle) and self._is_plain(factor, scores):
                # A negated variable scores θ x = θ − θ (1 − x).
                negated = factor.variables.flatten()[factor.negated.flatten()].to(scores.device)
                with name_factors([factor]):
                    value = oracle.log_partition(own_scores(factor, oracle, scores, tensors))
                total = total + scores[:, negated].sum(1) + value
            else:
                total = total + self._log_sum_of_list(numbers, scores, tensors)
        return total

    def _log_sum_of_list(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        order, values = [], []
        for rows, joint in self._joint_structures(numbers, len(scores)):
            value = logsumexp(list_scores(rows, joint, scores, tensors), 1)
            with renumber_instances(rows):
                self._check_feasible(numbers, value.detach())
            order.append(rows)
            values.append(value)
        return torch.cat(values)[torch.cat(order).argsort().to(scores.device)]

    def enumerate(self, event_shape: Any) -> Parts:
        shapes = self.event_shapes()
        free = (self.degree == 0).nonzero()[:, 0].tolist()
        blocks: list[dict[Any, Tensor]] = [
            {("variable", v): torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu")} for v in free
        ]
        for numbers in self._components:
            ((_, (variables, values, others)),) = self._joint_structures(numbers, 1)
            columns = {("variable", int(v)): values[:, [j]] for j, v in enumerate(variables)}
            blocks.append({**columns, **{("tensor", i): part.double() for i, part in others.items()}})
        counts = [len(next(iter(block.values()))) for block in blocks]
        if math.prod(counts) > MOST_STRUCTURES:
            raise UnsupportedError(f"factor_graph lists at most {MOST_STRUCTURES} structures, got {math.prod(counts)}")
        rows = np.array(list(itertools.product(*map(range, counts))), np.int64).reshape(math.prod(counts), len(counts))
        listed = [torch.zeros(len(rows), math.prod(shape), dtype=torch.float64, device="cpu") for shape in shapes]
        for j, block in enumerate(blocks):
            for (kind, i), part in block.items():
                chosen = part[torch.from_numpy(rows[:, j])]
                if kind == "variable":
                    listed[0][:, i] = chosen[:, 0]
                else:
                    listed[i] = chosen
        shaped = [t.reshape(-1, *shape) for t, shape in zip(listed, shapes, strict=True)]
        return tuple(shaped) if len(shapes) > 1 else shaped[0]


def with_batch(theta: Parts) -> tuple[tuple[Tensor, ...], int]:
    """Return the tensors of θ with the full batch, and the size of the batch."""
    size = batch_size(theta)
    return tuple(t.expand(size, *t.shape[1:]) for t in as_tuple(theta)), size


def own_scores(factor: Factor, oracle: Oracle, scores: Tensor, tensors: tuple[Tensor, ...]) -> Parts:
    """Return the scores of the factor's ``oracle``, for the ``scores`` (B, n) of variables and all ``tensors`` of θ."""
    flips = factor.negated.flatten().to(scores.device)
    own = scores[:, factor.variables.flatten().to(scores.device)]
    own = torch.where(flips, -own, own).reshape(-1, *factor.variables.shape).contiguous()
    others = tensors[factor.first : factor.first + len(factor.additional)]
    return without_padding(oracle, (own, *others) if others else own)


def without_padding(oracle: Oracle, scores: Parts) -> Parts:
    """Return ``scores`` with 0 in the padding of the oracle's instance data."""
    valid = oracle.valid_parts(scores) if oracle.bound else None
    return scores if valid is None else map_parts(lambda t, mask: torch.where(mask, t, 0.0), scores, valid)


def list_scores(rows: Tensor, joint: JointList, scores: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    """Return the scores (R, N) of joint structures, for the instances ``rows``."""
    variables, values, others = joint
    pieces = [(scores[:, variables.to(scores.device)], values.to(scores))]
    pieces += [(tensors[i].flatten(1), part.to(scores)) for i, part in others.items()]
    found = []
    for b in rows.tolist():  # row by row, so that the result of an instance does not depend on the batch
        total = scores.new_zeros(len(values))
        for t, listed in pieces:
            forbidden = t[b].isneginf()
            total = total + listed @ t[b].masked_fill(forbidden, 0)
            if bool(forbidden.any()):
                total = total.masked_fill((listed[:, forbidden] != 0).any(1), -torch.inf)
        found.append(total)
    return torch.stack(found) if found else scores.new_zeros(0, len(values))


def _keep(kept: dict[Hashable, T], key: Hashable, new: T, size: Callable[[T], int]) -> None:
    """Add ``new`` to ``kept``, and remove the oldest entries while the total size is above the limit."""
    oldest = list(kept.items())  # a copy, as another thread may add an entry
    total = sum(size(entry) + _ENTRY for entry in (new, *(entry for _, entry in oldest)))
    for old, entry in oldest:
        if total <= _MOST_KEPT:
            break
        kept.pop(old, None)
        total -= size(entry) + _ENTRY
    kept[key] = new


@contextlib.contextmanager
def name_factors(factors: Iterable[Factor]) -> Iterator[None]:
    """Add the names of factors to InfeasibleErrors of an oracle."""
    try:
        yield
    except InfeasibleError as error:
        names = " and ".join(factor.name.rstrip(",") for factor in factors)
        raise InfeasibleError(f"{names}: {error}", error.batch_index, error.batch_indices) from None
