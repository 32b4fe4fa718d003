"""The k best structures of a factor graph, and its samples.

A structure of the graph is a structure of each connected component, and the values of the variables of no factor. The
k best structures are sums of the k best structures of the components. A component with a single factor takes the k best
structures of the factor's oracle, a listed component sorts its list, and other components split their set of structures
by bounds on the parts (:mod:`structinf.restriction`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UnsupportedError, renumber_instances
from ..kernels.logsumexp import logsumexp
from ..oracle import Enumerable, KBest, Samplable
from ..parts import (
    AnyParts,
    Parts,
    as_tuple,
    batch_size,
    inner_product,
    map_parts,
    parts_to_vectors,
    vectors_to_parts,
)
from ..restriction import Solved, in_order, ranked_search
from ..validation.options import check_k
from .exact import list_scores, name_factors, own_scores, with_batch, without_padding
from .logic import Table
from .restricted import Columns, RestrictedFactorGraph, are_within, as_form, from_factor
from .structures import list_structures

__all__ = ["RankedFactorGraph"]


class _Ranked(NamedTuple):
    """The best structures of a component, best first.

    Attributes
    ----------
    index : (d,) or (B, d) int64 Tensor
        The places of the parts among the parts of the graph.
    values : (m, B, d) Tensor
        The parts.
    scores : (m, B) float64 Tensor
        The scores; −inf beyond the last structure.
    """

    index: Tensor
    values: Tensor
    scores: Tensor


class RankedFactorGraph(RestrictedFactorGraph, Samplable):
    """The k best structures and samples of a factor graph. The parameters are the options of the graph."""

    # -- the k best structures ----------------------------------------------------------------

    def topk(self, theta: AnyParts, k: int) -> tuple[Parts, Tensor, Tensor]:
        check_k(k)
        self.freeze()
        tensors, size = with_batch(map_parts(lambda t: t.detach().double(), theta))
        ranked = self._rank_free_variables(tensors[0].flatten(1), k)
        ranked += [self._rank_component(numbers, tensors, k) for numbers in self._components if size]
        free = (self.degree == 0).nonzero()[:, 0].to(tensors[0].device)
        vectors = parts_to_vectors(tensors)
        total = vectors[:, free].clamp(min=0).sum(1)[None]
        chosen = torch.zeros(1, size, 0, dtype=torch.int64, device=vectors.device)
        for one in ranked:
            # The r-th of the sums has (i + 1) (j + 1) ≤ r. Among equal sums, later components change last, so that the
            # order is the same for every k.
            ranks = torch.arange(1, k + 1, device=vectors.device)
            i, j = ((ranks[: len(one.scores), None] * ranks[: len(total)]) <= k).nonzero().unbind(1)
            total, place = (one.scores[i] + total[j]).sort(dim=0, descending=True, stable=True)
            total, place = total[:k], place[:k]
            before = chosen.take_along_dim(j[place][..., None], 0)
            chosen = torch.cat([before, i[place][..., None]], 2)
        values = vectors.new_zeros(k, size, vectors.shape[1])
        scores = vectors.new_full((k, size), -torch.inf)
        scores[: len(total)] = total
        found = values[: len(total)]
        found[..., free] = (vectors[:, free] > 0).to(values)
        for c, one in enumerate(ranked):
            own = one.values.take_along_dim(chosen[..., c, None], 0)
            found.scatter_(2, one.index.expand(own.shape), own)
        values[scores.isneginf()] = 0
        return vectors_to_parts(values, theta), scores.to(as_tuple(theta)[0].dtype), ~scores.isneginf()

    def _rank_free_variables(self, scores: Tensor, k: int) -> list[_Ranked]:
        """Return the two values of each of the k − 1 variables of no factor whose change costs least."""
        free = (self.degree == 0).nonzero()[:, 0].to(scores.device)
        cost, order = scores[:, free].abs().sort(dim=1, stable=True)
        index = free[order[:, : k - 1]]
        best = (scores.gather(1, index) > 0).to(scores)
        return [
            _Ranked(
                index[:, [j]],
                torch.stack([best[:, [j]], 1 - best[:, [j]]]),
                torch.stack([torch.zeros_like(cost[:, j]), -cost[:, j]]),
            )
            for j in range(index.shape[1])
        ]

    def _rank_component(self, numbers: list[int], tensors: tuple[Tensor, ...], k: int) -> _Ranked:
        columns = self._columns(numbers, tensors[0].device)
        scores, factor = tensors[0].flatten(1), self._factors[numbers[0]]
        oracle: Any = factor.bind(self.bound)
        if len(numbers) == 1 and _lists_best(oracle) and self._is_plain(factor, scores):
            with name_factors([factor]):
                found, _, valid = oracle.topk(own_scores(factor, oracle, scores, tensors), k)
            values = from_factor(factor, map_parts(lambda t: t.flatten(0, 1), found)).unflatten(0, valid.shape)
        elif self.solver == "list":
            return self._rank_list(numbers, columns, tensors, k)
        else:
            values, valid = self._rank_by_search(numbers, columns, tensors, k)
        own = parts_to_vectors(tensors)[:, columns.index]
        total = torch.stack([inner_product(own, y) for y in values])
        return _Ranked(columns.index, *in_order(values, torch.where(valid, total, -torch.inf)))

    def _rank_list(self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], k: int) -> _Ranked:
        device, found = tensors[0].device, []
        for rows, joint in self._joint_structures(numbers, len(tensors[0])):
            total = list_scores(rows, joint, tensors[0].flatten(1), tensors)
            with renumber_instances(rows):
                self._check_feasible(numbers, total.amax(1))
            total, place = (t[:, :k].T for t in total.sort(dim=1, descending=True, stable=True))
            found.append((rows.to(device), self._listed(numbers, joint).to(device)[place], total))
        most = max(len(total) for *_, total in found)
        values = tensors[0].new_zeros(most, len(tensors[0]), len(columns.index))
        scores = values.new_full(values.shape[:2], -torch.inf)
        for rows, listed, total in found:
            values[: len(total), rows], scores[: len(total), rows] = listed, total
        return _Ranked(columns.index, values, scores)

    def _rank_by_search(
        self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], k: int
    ) -> tuple[Tensor, Tensor]:
        """Return the k best structures (k, B, d) of a component, and which exist, (k, B)."""
        y = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in tensors]
        self._maximise(numbers, tensors[0].flatten(1), tensors, y)
        root, own = (parts_to_vectors(parts)[:, columns.index] for parts in (tuple(y), tensors))
        bounds = self.part_bounds(as_form(tensors))
        low, high = (parts_to_vectors(end).expand(len(own), -1)[:, columns.index] for end in bounds)
        high = torch.where(own.isneginf(), 0.0, high)

        def search(width: int, nested: bool) -> tuple[Tensor, Tensor]:
            """Return the first ``width`` parts of the k best structures, which differ in these parts."""

            def solve(rows: Tensor, lower: Tensor, upper: Tensor, _: Tensor | None) -> Solved:
                lower, upper = (torch.cat([t, all_[rows, width:]], 1) for t, all_ in ((lower, low), (upper, high)))
                values, found = self[rows]._solve_within(
                    numbers, columns, tuple(t[rows] for t in tensors), lower, upper
                )
                if bool((values[found, :width] != values[found, :width].round()).any()):
                    raise UnsupportedError(
                        "factor_graph: the k best structures need additional parts that are integers if a factor has "
                        f'several structures with the same variables; build the graph with solver="list", not '
                        f'"{self.solver}"'
                    )
                total = inner_product(own[rows], values)
                return Solved(values[:, :width], torch.where(found & ~total.isnan(), total, -torch.inf))

            start = Solved(root[:, :width], inner_product(own, root))
            ranked = ranked_search(solve, start, low[:, :width], high[:, :width], k, nested=nested)
            return ranked.values, ~ranked.scores.isneginf()

        if self.solver == "milp":
            values, valid = self._rank_by_cuts(numbers, columns, tensors, tuple(y), k)
        else:
            values, valid = search(columns.variables, self._has_nested_variables(numbers))
        if columns.variables == len(columns.index):
            return values, valid
        rows = valid.flatten().nonzero()[:, 0]
        parts, is_unique = self.repeat(k)[rows]._additional_parts(numbers, columns, values.flatten(0, 1)[rows])
        if is_unique:
            whole = values.new_zeros(k * len(own), len(columns.index))
            whole[rows] = torch.cat([values.flatten(0, 1)[rows], *parts], 1)
            return whole.unflatten(0, valid.shape), valid
        if self.solver == "branch_and_bound":
            raise UnsupportedError(
                'factor_graph: solver="branch_and_bound" has no k best structures if a factor may have several '
                'structures with the same variables; build the graph with solver="list" or "milp"'
            )
        return search(len(columns.index), True)

    def _rank_by_cuts(
        self, numbers: list[int], columns: Columns, tensors: tuple[Tensor, ...], best: tuple[Tensor, ...], k: int
    ) -> tuple[Tensor, Tensor]:
        """Return the variables of the k best structures (k, B, v) of a component, and which exist, (k, B)."""
        scores, variables = tensors[0].flatten(1), best[0].flatten(1)
        values = variables.new_zeros(k, len(scores), columns.variables)
        valid = torch.zeros(k, len(scores), dtype=torch.bool, device=scores.device)
        for index, program in self._programs_of(numbers, scores):
            own = self._program_scores(program, index, scores, tensors)
            start = torch.zeros_like(own)
            start[:, : columns.variables] = variables[index][:, program.variables.to(own.device)]
            milp: Any = program.oracle
            found, valid[:, index] = milp.rank_by_cuts(own, start, k, columns.variables)
            values[:, index] = found[..., : columns.variables].to(values)
        return values, valid

    def _additional_parts(self, numbers: list[int], columns: Columns, values: Tensor) -> tuple[list[Tensor], bool]:
        """Return the additional parts of the structures with these variables (B, v), and whether they are unique.

        The structures of a factor with the variables x of 0 and 1 are its best ones for the scores 2x − 1.
        """
        found, is_unique = [], True
        for number in numbers:
            factor = self._factors[number]
            if not factor.additional:
                continue
            oracle: Any = factor.bind(self.bound)
            device = values.device
            place = torch.searchsorted(columns.index[: columns.variables], factor.variables.flatten().to(device))
            parts = torch.where(factor.negated.flatten().to(device), 1 - values[:, place], values[:, place])
            zeros = [values.new_zeros(len(values), *shape) for shape in factor.additional]
            form = ((2 * parts - 1).reshape(-1, *factor.variables.shape), *zeros)
            form = without_padding(oracle, form)
            if _lists_best(oracle):
                best, scores, valid = oracle.topk(form, 2)
                best = map_parts(lambda t: t[0], best)
                is_unique &= not bool((valid[1] & (scores[1] == scores[0])).any())
            else:
                best = oracle.argmax(form)
                is_unique &= isinstance(oracle, Table) or self._lists_distinct_variables(number, len(values))
            found += [t.flatten(1) for t in as_tuple(best)[1:]]
        return found, is_unique

    def _lists_distinct_variables(self, number: int, size: int) -> bool:
        factor = self._factors[number]
        if not isinstance(factor.oracle, Enumerable):
            return False
        try:
            lists = [list_structures(factor, data)[0].flatten(1) for *_, data in self._rows_by_data([number], size)]
        except UnsupportedError:
            return False
        return all(len(listed.unique(dim=0)) == len(listed) for listed in lists)

    def _has_nested_variables(self, numbers: list[int]) -> bool:
        """Return whether the ones of a structure may include the ones of another structure.

        They cannot if the structures of a factor have the same number of ones, for factors with all variables.
        """
        covered = []
        for number in numbers:
            factor = self._factors[number]
            oracle = factor.bind(self.bound)
            size = len(next(iter(oracle.bound.values()))) if oracle.bound else 1
            # A negated variable is 1 minus its part.
            sign = torch.where(factor.negated, -1.0, 1.0).double()
            zeros = [sign.new_zeros(size, *shape) for shape in factor.additional]
            counts = []
            for direction in (1, -1):
                scores = (direction * sign).expand(size, *sign.shape).contiguous()
                form = without_padding(oracle, (scores, *zeros) if zeros else scores)
                counts.append((as_tuple(oracle.argmax(form))[0] * sign).flatten(1).sum(1))
            if oracle.is_exact and torch.equal(*counts):
                covered.append(factor.variables.flatten())
        variables = torch.cat([self._factors[number].variables.flatten() for number in numbers]).unique()
        return not covered or len(torch.cat(covered).unique()) < len(variables)

    # -- samples --------------------------------------------------------------------------------

    def sample(self, theta: AnyParts, n: int, generator: torch.Generator | None = None) -> Parts:
        self.freeze()
        tensors, size = with_batch(map_parts(Tensor.detach, theta))
        scores, vectors = tensors[0].flatten(1), parts_to_vectors(tensors)
        values = vectors.new_zeros(n, size, vectors.shape[1])
        free = (self.degree == 0).nonzero()[:, 0].to(vectors.device)
        uniform = torch.rand(n, size, len(free), dtype=torch.float64, device=vectors.device, generator=generator)
        values[..., free] = (uniform < scores[:, free].double().sigmoid()).to(values)
        for numbers in self._components if size else ():
            index = self._columns(numbers, vectors.device).index
            factor = self._factors[numbers[0]]
            oracle: Any = factor.bind(self.bound)
            is_samplable = isinstance(oracle, Samplable) and "Samplable" not in oracle.unsupported
            if len(numbers) == 1 and is_samplable and self._is_plain(factor, scores):
                with name_factors([factor]):
                    drawn = oracle.sample(own_scores(factor, oracle, scores, tensors), n, generator)
                flat = from_factor(factor, map_parts(lambda t: t.flatten(0, 1), drawn))
                values[..., index] = flat.unflatten(0, (n, size))
                continue
            for rows, joint in self._joint_structures(numbers, size):
                total = list_scores(rows, joint, scores, tensors).double()
                with renumber_instances(rows):
                    self._check_feasible(numbers, total.amax(1))
                place = torch.multinomial(total.softmax(1), n, replacement=True, generator=generator).T
                listed = self._listed(numbers, joint).to(values)
                values[:, rows.to(index.device)[:, None], index] = listed[place]
        return vectors_to_parts(values, theta)

    def can_restrict_sums(self, theta: AnyParts) -> bool:
        self.freeze()
        try:
            for numbers in self._components:
                for _ in self._joint_structures(numbers, batch_size(theta)):
                    pass
        except UnsupportedError:
            return False
        return True

    def sample_within(
        self, theta: AnyParts, low: AnyParts, high: AnyParts, generator: torch.Generator | None = None
    ) -> tuple[Parts, Tensor]:
        tensors, size = with_batch(theta)
        vectors, lower, upper = (parts_to_vectors(parts) for parts in (theta, low, high))
        values, free = torch.zeros_like(vectors), (self.degree == 0).nonzero()[:, 0].to(vectors.device)
        own = torch.stack([torch.zeros_like(vectors[:, free]), vectors[:, free]])
        own[0, lower[:, free] > 0], own[1, upper[:, free] < 1] = -torch.inf, -torch.inf
        log_weights = logsumexp(own, 0).sum(1)
        odds = (own[1] - own[0]).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        uniform = torch.rand(odds.shape, dtype=odds.dtype, device=odds.device, generator=generator)
        values[:, free] = (uniform < odds.sigmoid()).to(values)
        for numbers in self._components if size else ():
            index = self._columns(numbers, vectors.device).index
            for rows, joint in self._joint_structures(numbers, size):
                total = list_scores(rows, joint, tensors[0].flatten(1), tensors)
                listed, places = self._listed(numbers, joint).to(values), (rows.to(index.device)[:, None], index)
                total = total.masked_fill(~are_within(listed, lower[places], upper[places]), -torch.inf)
                weights = logsumexp(total, 1)
                log_weights[rows] += weights
                # Any structure for an instance without a structure.
                exists = ~weights.isneginf()
                p = torch.where(exists[:, None], total.softmax(1), 1.0)
                values[places] = listed[torch.multinomial(p, 1, generator=generator)[:, 0]]
        return vectors_to_parts(values, theta), log_weights


def _lists_best(oracle: object) -> bool:
    return isinstance(oracle, KBest) and "KBest" not in oracle.unsupported
