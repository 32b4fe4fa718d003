"""Exact answers for factor graphs: argmax, sums over structures, and the list of structures."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InfeasibleError, UnsupportedError
from ..kernels.logsumexp import logsumexp
from ..oracle import Enumerable, GibbsOracle
from ..parts import Parts, as_tuple, batch_size
from ..validation import check_feasible
from .group import Factor, check_values
from .structures import MOST_STRUCTURES, components, join, list_structures

__all__ = ["ExactFactorGraph"]

_BEYOND_ARGMAX = "use the relaxation lp_map or lp_sparsemap, which need no argmax of the graph"


class ExactFactorGraph(GibbsOracle, Enumerable):
    """The exact methods of a factor graph, for each connected component of its factors.

    A component with a single factor takes a call of the factor's oracle. Other components list their structures.

    Parameters
    ----------
    shape : torch.Size
        The shape of the tensor of variables.
    """

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
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
        tensors, size = as_tuple(theta), batch_size(theta)
        scores = tensors[0].expand(size, *self.shape).flatten(1)
        y = [t.new_zeros(size, *t.shape[1:]) for t in tensors]
        values = y[0].flatten(1)
        values.copy_((scores > 0) & (self.degree == 0).to(scores.device))
        for numbers in self._components if size else ():
            factor = self._factors[numbers[0]]
            if len(numbers) == 1 and self._is_plain(factor, scores):
                self._maximise_factor(factor, scores, tensors, y)
            else:
                self._maximise_list(numbers, scores, tensors, y)
        return tuple(y) if isinstance(theta, tuple) else y[0]

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
        with _name_factor(factor):
            best = as_tuple(factor.oracle.argmax(_own_scores(factor, scores, tensors)))
        index, flips = factor.variables.flatten().to(scores.device), factor.negated.flatten().to(scores.device)
        found = best[0].flatten(1)
        check_values(found, factor.name)
        y[0].flatten(1)[:, index] = torch.where(flips, 1 - found, found)
        for i, part in enumerate(best[1:], factor.first):
            y[i].copy_(part)

    def _maximise_list(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        variables, values, others = self._joint_structures(tuple(numbers), len(scores))
        best = self._list_scores(numbers, scores, tensors).max(1)
        self._check_feasible(numbers, best.values)
        y[0].flatten(1)[:, variables.to(scores.device)] = values.to(scores)[best.indices]
        for i, listed in others.items():
            y[i].copy_(listed.to(scores)[best.indices].view_as(y[i]))

    def _check_feasible(self, numbers: list[int], value: Tensor) -> None:
        together = " together" if len(numbers) > 1 else ""
        check_feasible(value, f"structure of {' and '.join(f'factor {k}' for k in numbers)}{together}")

    def _list_scores(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        """Return the scores of the joint structures of a component, (B, N)."""
        size = len(scores)
        variables, values, others = self._joint_structures(tuple(numbers), size)
        pieces = [(scores[:, variables.to(scores.device)], values.to(scores))]
        pieces += [(tensors[i].expand(size, *tensors[i].shape[1:]).flatten(1), o.to(scores)) for i, o in others.items()]
        rows = []
        for b in range(size):  # row by row, so that the result of an instance does not depend on the batch
            total = scores.new_zeros(len(values))
            for t, listed in pieces:
                forbidden = t[b].isneginf()
                total = total + listed @ t[b].masked_fill(forbidden, 0)
                if bool(forbidden.any()):
                    total = total.masked_fill((listed[:, forbidden] != 0).any(1), -torch.inf)
            rows.append(total)
        return torch.stack(rows) if rows else scores.new_zeros(0, len(values))

    def _joint_structures(self, numbers: tuple[int, ...], size: int = 1) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Return the variables (V,) of a component, their values (N, V), and the additional parts by position.

        The ``size`` of the batch tells an InfeasibleError its instances.
        """
        known = self._lists
        if numbers not in known:
            try:
                joint = join(self._factors, numbers)
            except UnsupportedError as error:
                several = len(numbers) > 1
                what = f"joint structures of {len(numbers)} factors that share variables" if several else "structures"
                raise UnsupportedError(
                    f"factor_graph: this exact method lists the {what}, at most {MOST_STRUCTURES}, but {error}; "
                    f"{_BEYOND_ARGMAX}"
                ) from None
            except InfeasibleError as error:  # of all instances
                raise InfeasibleError(error.args[0], 0, range(size)) from None
            others = {}
            for k, rows in joint.rows.items():
                listed = list_structures(self._factors[k])[1:]
                for i, part in enumerate(listed, self._factors[k].first):
                    others[i] = part.flatten(1)[torch.from_numpy(rows)]
            known[numbers] = torch.from_numpy(joint.variables), torch.from_numpy(joint.values), others
        return known[numbers]

    @functools.cached_property
    def _lists(self) -> dict[tuple[int, ...], tuple[Tensor, Tensor, dict[int, Tensor]]]:
        return {}

    def log_partition(self, theta: Parts) -> Tensor:
        self.freeze()
        tensors, size = as_tuple(theta), batch_size(theta)
        scores = tensors[0].expand(size, *self.shape).flatten(1)
        alone = scores[:, (self.degree == 0).to(scores.device)]
        both = torch.stack([torch.zeros_like(alone), alone], 2)
        total = logsumexp(both, 2).sum(1)
        if size == 0:  # a sum over no instances, as a function of all scores
            return total + sum(t.flatten(1).sum(1).expand(0) for t in tensors)
        for numbers in self._components:
            factor = self._factors[numbers[0]]
            if len(numbers) == 1 and isinstance(factor.oracle, GibbsOracle) and self._is_plain(factor, scores):
                # A negated variable scores θ x = θ − θ (1 − x).
                negated = factor.variables.flatten()[factor.negated.flatten()].to(scores.device)
                with _name_factor(factor):
                    value = factor.oracle.log_partition(_own_scores(factor, scores, tensors))
                total = total + scores[:, negated].sum(1) + value
            else:
                value = logsumexp(self._list_scores(numbers, scores, tensors), 1)
                self._check_feasible(numbers, value.detach())
                total = total + value
        return total

    def enumerate(self, event_shape: Any) -> Parts:
        shapes = self.event_shapes()
        free = (self.degree == 0).nonzero()[:, 0].tolist()
        blocks: list[dict[Any, Tensor]] = [
            {("variable", v): torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu")} for v in free
        ]
        for numbers in self._components:
            variables, values, others = self._joint_structures(tuple(numbers))
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


def _own_scores(factor: Factor, scores: Tensor, tensors: tuple[Tensor, ...]) -> Parts:
    """Return the scores of the factor's oracle, for the ``scores`` (B, n) of variables and all ``tensors`` of θ."""
    flips = factor.negated.flatten().to(scores.device)
    own = scores[:, factor.variables.flatten().to(scores.device)]
    own = torch.where(flips, -own, own).reshape(-1, *factor.variables.shape).contiguous()
    others = tensors[factor.first : factor.first + len(factor.additional)]
    return (own, *others) if others else own


class _name_factor:
    """Add the name of a factor to InfeasibleErrors of its oracle."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, InfeasibleError):
            message = f"{self.factor.name}: {error}"
            raise InfeasibleError(message, error.batch_index, error.batch_indices) from None
