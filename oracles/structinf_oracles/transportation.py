"""Transport plans: integer amounts moved from rows to columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError, renumber_instances
from structinf.oracle import Enumerable, TransportPolytope, computed_on_cpu
from structinf.parts import Parts, as_tuple
from structinf.restriction import Restrictable
from structinf.shapes import Float
from structinf.validation import check_instances

from .common.distinct_rows import check_integer_amounts, distinct_rows, number_of_dimensions
from .common.labels import reject_labels
from .common.min_cost_flow import Network, Solver, as_sequence, check_amounts, check_solver

__all__ = ["Transportation"]


@dataclass(frozen=True)
class Transportation(TransportPolytope, Restrictable, Enumerable):
    """Transport plans of integer units from n rows with supplies to m columns with demands.

    With supplies r and demands c of equal sum, y 1 = r and yᵀ 1 = c. Otherwise the supplies or demands with the
    larger sum are only upper bounds. A constant added to θ does not change the best plan.

    - Scores θ, shape (..., n, m), any sign: the score of a unit from row i to column j. −inf forbids a pair.
    - Structure y, shape (..., n, m): the number of units from each row to each column, at least 0.
    - Labels, shape (..., n, m): y as integers.
    - Instance data ``supplies``, shape (..., n), and ``demands``, shape (..., m): the supplies and demands of each
      instance, integers of at least 0. Default: the options. In a call, a value with one dimension is the option.

    Parameters
    ----------
    supplies : sequence of n integers, optional
        The units available in each row, at least 0. Needed without instance data ``supplies``.
    demands : sequence of m integers, optional
        The units required by each column, at least 0. Needed without instance data ``demands``.
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
    has_labels_on_cpu: ClassVar[bool] = True
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"supplies": 1, "demands": 1})
    label_ndim: ClassVar[int] = 2
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "counting the plans of given sums is #P-complete, even for two rows (Dyer, Kannan & Mount "
            "1997)",
            "Samplable": "exact sampling is as hard as counting plans, which is #P-complete",
            "Smoothable": "the network simplex method is not a dynamic program (a recursion of maxima)",
        }
    )

    supplies: tuple[int, ...] | None = None
    demands: tuple[int, ...] | None = None
    solver: Solver = field(default="simplex", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("supplies", "demands"):
            if getattr(self, name) is None:
                continue
            given = as_sequence(name, getattr(self, name), "a sequence of integers")
            object.__setattr__(self, name, check_amounts(name, given))
        check_solver(self.solver)

    @classmethod
    def reads_as_option(cls, name: str, value: Any) -> bool:
        """Return whether ``value`` has one dimension: the supplies or demands of all instances.

        Parameters
        ----------
        name : str
            "supplies" or "demands".
        value : object
            The value of a call's keyword.
        """
        return number_of_dimensions(value) == 1

    @cached_property
    def _sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The supplies and demands of all instances."""
        if self.supplies is None or self.demands is None:
            _raise_missing("supplies" if self.supplies is None else "demands")
        return self.supplies, self.demands

    def _alone(self) -> list[tuple[Tensor, Transportation]]:
        """Return an oracle for each pair of supplies and demands in the batch, with the rows of its instances.

        An empty batch has an oracle without rows.
        """
        batch = len(next(iter(self.bound.values())))
        options = {"supplies": self.supplies, "demands": self.demands}
        for name, values in self.bound.items():
            options[name] = values.cpu()
        whole = [torch.as_tensor(options[name], device="cpu").expand(batch, -1) for name in ("supplies", "demands")]
        n, found = whole[0].shape[1], []
        table = torch.cat(whole, 1)
        for rows, (values,) in distinct_rows(table) or [
            (torch.arange(0, device="cpu"), (table.new_zeros(table.shape[1]),))
        ]:
            numbers = values.tolist()
            found.append((rows, Transportation(tuple(numbers[:n]), tuple(numbers[n:]), solver=self.solver)))
        return found

    def _each(self, method: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the results of ``method`` for each pair of supplies and demands, in the order of the batch.

        Parameters
        ----------
        method : callable
            A method of this class that returns a tensor or a tuple of tensors, with a row for each instance.
        *tensors : (B | 1, ...) Tensor
            The arguments of the method.
        """
        batch = len(next(iter(self.bound.values())))
        tensors = tuple(t.expand(batch, *t.shape[1:]) for t in tensors)
        results: list[Tensor] = []
        for rows, oracle in self._alone():
            rows = rows.to(tensors[0].device)
            with renumber_instances(rows):
                parts = as_tuple(method(oracle, *(t[rows] for t in tensors)))
            results = results or [p.new_zeros(batch, *p.shape[1:]) for p in parts]
            for result, part in zip(results, parts, strict=True):
                result[rows] = part
        return tuple(results)

    @cached_property
    def _network(self) -> Network:
        """The network: a node for each row and column, and a last node for surplus or missing units.

        The edges are the n m pairs, and then the edges from or to the last node.
        """
        supplies, demands = self._sides
        n, m = len(supplies), len(demands)
        rows, columns, surplus = np.arange(n), n + np.arange(m), sum(supplies) - sum(demands)
        tails, heads = rows.repeat(m), np.tile(columns, n)
        most = np.minimum.outer(supplies, demands).ravel()
        if surplus:
            side, amounts = (rows, supplies) if surplus > 0 else (columns, demands)
            last = np.full(len(side), n + m)
            tails = np.append(tails, side if surplus > 0 else last)
            heads = np.append(heads, last if surplus > 0 else side)
            most = np.append(most, amounts)
        outflow = np.array([*supplies, *(-amount for amount in demands), -surplus], np.int64)
        most = most.astype(np.float64)[None]
        network = (tails[None], heads[None], np.zeros_like(most), most, outflow.astype(np.float64)[None])
        return Network(*network, free=len(tails) - n * m, what="transport plan")

    def validate(self, theta: Tensor) -> None:
        given = [self.bound.get(name, getattr(self, name)) for name in ("supplies", "demands")]
        if given[0] is None or given[1] is None:
            _raise_missing("supplies" if given[0] is None else "demands")
        for name, amounts in self.bound.items():
            check_instances(name, amounts, len(theta))
            check_integer_amounts(name, amounts)
        expected = tuple(side.shape[1] if isinstance(side, Tensor) else len(side) for side in given)
        if theta.shape[1:] != expected:
            raise InvalidInputError(
                f"theta must have shape {expected} after the batch dimensions for {expected[0]} supplies and "
                f"{expected[1]} demands, got {tuple(theta.shape[1:])}"
            )

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the supplies (B | 1, n) and the demands (B | 1, m), in float64, which represents them exactly."""
        sides = (self.bound.get(name, getattr(self, name)) for name in ("supplies", "demands"))
        rows, columns = (
            side.to(theta.device, torch.float64)
            if isinstance(side, Tensor)
            else theta.new_tensor([side], dtype=torch.float64)
            for side in sides
        )
        return rows, columns, None

    @computed_on_cpu
    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n m"]:
        if self.bound:
            return self._each(Transportation.argmax, theta)[0]
        return self._network.best(theta.flatten(1), self.solver).reshape(theta.shape)

    topk = computed_on_cpu(Restrictable.topk)

    @property
    def has_nested_structures(self) -> bool:
        return False

    def part_bounds(self, theta: Tensor) -> tuple[Parts, Parts]:
        supplies, demands, _ = self.margins(theta)
        most = torch.minimum(supplies.unsqueeze(2), demands.unsqueeze(1)).to(theta.dtype)
        return torch.zeros_like(most), most

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        if self.bound:
            y, found = self._each(Transportation.restricted_argmax, theta, low, high)
            return y, found
        y, found = self._network.best_within(theta.flatten(1), low.flatten(1), high.flatten(1))
        return y.reshape(theta.shape), found

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs of half a unit, for units on pairs empty in ``y`` and units missing on pairs full in ``y``.

        The sum is a lower bound on the number of wrong units, and equals their number if no pair can have more than 1
        unit.
        """
        if self.bound:
            return self._each(Transportation.hamming_cost, y)[0]
        return self._network.hamming_cost(y.flatten(1)).reshape(y.shape)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels must be the units from each row to each column, shape (..., {like.shape[1]}, "
                f"{like.shape[2]}); got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        if self.bound:
            return self._encode_each(labels, like)
        labels = labels.long()
        supplies, demands = self._sides
        self._network.check_labels(labels.flatten(1))
        surplus = sum(supplies) - sum(demands)
        for side, given, dim, bound in (
            ("row", supplies, 2, surplus > 0),
            ("column", demands, 1, surplus < 0),
        ):
            excess = labels.sum(dim) - labels.new_tensor(given)
            expected = "at most " if bound else ""
            wrong = excess > 0 if bound else excess != 0
            reject_labels(wrong, labels, f"the {side} sums must be {expected}{given}")
        return labels.to(like.dtype)

    def _encode_each(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the structures of ``labels`` for the supplies and demands of each instance."""
        y = torch.zeros(labels.shape, dtype=like.dtype, device=like.device)
        for rows, oracle in self._alone():
            for b in rows.tolist():
                try:
                    y[b] = oracle.encode(labels[b : b + 1], like[:1])[0]
                except InvalidInputError as error:
                    raise InvalidInputError(str(error).replace("batch index 0", f"batch index {b}")) from None
        return y

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all plans, (|Y|, n, m) in float64, sorted by their entries; at most a million."""
        if self.bound:
            return self._alone()[0][1].enumerate(event_shape)
        supplies, demands = self._sides
        return torch.from_numpy(self._network.all()).unflatten(1, (len(supplies), len(demands)))


def _raise_missing(name: str) -> NoReturn:
    size = "n" if name == "supplies" else "m"
    raise InvalidInputError(
        f"transportation needs {name}, as an option or with the scores as instance data of shape (..., {size})"
    )
