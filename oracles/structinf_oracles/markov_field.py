"""Graphical models of discrete variables, exactly: elimination of the variables as a dynamic program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError, UnsupportedError
from structinf.oracle import Factorized
from structinf.parts import Parts, as_tuple

from .common.elimination_order import eliminate, min_fill_order
from .common.graphical_model_formats import GraphicalModel, read_networkx, read_pgmpy, read_uai
from .common.labels import reject_labels

__all__ = ["MarkovField"]

_MOST_HYPEREDGES = 2 * 10**7
"""The build of so many hyperedges takes about 2 GB."""


@dataclass(frozen=True)
class MarkovField(HypergraphProgram, Factorized):
    """Assignments of values to discrete variables, scored by factors: tables of scores over some of the variables.

    The score of an assignment is the sum of one entry of each table: ⟨θ, y⟩ = Σ_k θ_k[x_{k1}, x_{k2}, ...] for the
    variables k1, k2, ... of factor k. Each variable takes one of ``cardinalities`` values, numbered from 0.

    - Scores θ, a tuple with a table for each factor, in the order of ``factors``: shape (..., c1, c2, ...) with the
      cardinalities of the factor's variables, in the factor's order. A table without batch dimensions, or with batch
      dimensions of 1, is shared by the batch. −inf forbids an entry.
    - Structure y, a tuple of tables of the same shapes: 1 for the entry in use, 0 elsewhere.
    - Labels, shape (..., n): the value of each variable.

    Parameters
    ----------
    cardinalities : sequence of int
        The number of values of each variable, at least 1.
    factors : sequence of sequences of int
        The variables of each factor, numbered from 0. Each variable belongs to at least one factor.
    order : sequence of int, optional
        The order in which variables are eliminated, all of them once. Default: min-fill.

    Notes
    -----
    The elimination of a variable joins all tables with the variable. Time and memory are O(Σ_i Π_j c_j), where the
    product is over variable i and the variables that its elimination joins; ``width`` is the largest number of the
    latter. For models of large width, the first exact use raises UnsupportedError. The relaxations
    ``belief_propagation`` and ``mean_field`` need no elimination, and take models of any width.

    Results do not depend on the order of elimination, except for relaxations that smooth each maximum by a regularizer
    other than the negative entropy, and the choice among ties: the variable eliminated last takes the lowest value.

    SparseMAP with ``penalty="readout"`` penalises the indicators of the variables' values, each variable once.

    References
    ----------
    D. Koller & N. Friedman, Probabilistic Graphical Models, MIT Press 2009, §9 and §13.2.

    Examples
    --------
    Three binary variables in a cycle, with a score of 1 for each pair of equal neighbours:

    >>> factors = [(0,), (0, 1), (1, 2), (2, 0)]
    >>> field = MarkovField(cardinalities=(2, 2, 2), factors=factors)
    >>> equal = torch.eye(2).expand(1, 2, 2)
    >>> theta = (torch.tensor([[0.0, 0.5]]), equal, equal, equal)
    >>> field.decode(field.argmax(theta)), field.width
    (tensor([[1, 1, 1]]), 2)
    >>> field.log_partition(theta)
    tensor([4.3148])
    """

    name: ClassVar[str] = "markov_field"
    search_terms: ClassVar[tuple[str, ...]] = (
        "graphical_model",
        "markov_random_field",
        "mrf",
        "crf",
        "ising",
        "potts",
        "junction_tree",
        "variable_elimination",
        "bayesian_network",
    )
    label_ndim: ClassVar[int] = 1

    cardinalities: Sequence[int]
    factors: Sequence[Sequence[int]]
    order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "cardinalities", _integers("cardinalities", self.cardinalities, 1, None))
        n = len(self.cardinalities)
        if isinstance(self.factors, str) or not isinstance(self.factors, Sequence):
            raise InvalidInputError(f"factors must be a sequence of tuples of variables, got {self.factors!r}")
        factors = tuple(_integers(f"factors: factor {k}", f, 0, None) for k, f in enumerate(self.factors))
        object.__setattr__(self, "factors", factors)
        for k, factor in enumerate(factors):
            if max(factor) >= n:
                raise InvalidInputError(
                    f"factors: factor {k} has variable {max(factor)}, but cardinalities has {n} variables, "
                    f"from 0 to {n - 1}"
                )
            if len(set(factor)) != len(factor):
                raise InvalidInputError(
                    f"factors: factor {k} must have different variables, at least one, got {factor}"
                )
        missing = set(range(n)).difference(*factors)
        if missing:
            raise InvalidInputError(
                f"factors: variable {min(missing)} of the {n} in cardinalities belongs to no factor; give it a factor "
                f"({min(missing)},), whose scores may be 0"
            )
        if self.order is not None:
            object.__setattr__(self, "order", _integers("order", self.order, 0, n - 1))
            if sorted(self.order) != list(range(n)):
                raise InvalidInputError(f"order must have each of the {n} variables once, got {self.order}")

    @classmethod
    def from_uai(cls, text: str) -> tuple[MarkovField, tuple[Tensor, ...]]:
        """Return the model of a text in the UAI format, and its scores: the logarithms of the tables, in float64.

        Parameters
        ----------
        text : str
            The content of a file that begins with MARKOV or BAYES.
        """
        return cls._from_model(read_uai(text))[:2]

    @classmethod
    def from_pgmpy(cls, model: Any) -> tuple[MarkovField, tuple[Tensor, ...], list[Any]]:
        """Return the model of a discrete Markov or Bayesian network of pgmpy, its scores, and the names of variables.

        The scores are the logarithms of the factors or conditional tables, in float64. Variable i has the i-th name.

        Parameters
        ----------
        model : object
            An object with the methods of pgmpy's networks, ``get_factors`` or ``get_cpds``.
        """
        return cls._from_model(read_pgmpy(model))

    @classmethod
    def from_networkx(cls, graph: Any, cardinality: int | str = 2) -> MarkovField:
        """Return a model with a factor for each node, then one for each edge, in the order of ``graph``.

        Variable i is the i-th node. Edges from a node to itself are ignored.

        Parameters
        ----------
        graph : networkx.Graph
            An undirected graph.
        cardinality : int or str
            The number of values of each variable, or the node attribute that holds it.
        """
        return cls._from_model(read_networkx(graph, cardinality))[0]

    @classmethod
    def _from_model(cls, model: GraphicalModel) -> tuple[MarkovField, tuple[Tensor, ...], list[Any]]:
        theta = tuple(torch.from_numpy(table).log() for table in model.tables)
        return cls(model.cardinalities, model.factors), theta, model.variables

    @property
    def event_ndim(self) -> tuple[int, ...]:  # type: ignore[override]
        """The number of variables of each factor."""
        return tuple(map(len, self.factors))

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return min_fill_order(len(self.cardinalities), self.factors) if self.order is None else tuple(self.order)

    @cached_property
    def _steps(self) -> list[tuple[list[int], list[int], list[int]]]:
        return eliminate(self._order, self.factors)

    @property
    def _joined(self) -> Iterable[tuple[int, list[int]]]:
        """The variable of each step of elimination, and the other variables that the step joins."""
        return ((v, rest) for v, (_, _, rest) in zip(self._order, self._steps, strict=True))

    @property
    def width(self) -> int:
        """The largest number of variables that the elimination of another variable joins."""
        return max((len(rest) for _, rest in self._joined), default=0)

    def has_binary_parts(self, theta: Parts) -> bool:
        return True

    def factorization(self) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        return self.cardinalities, self.factors

    def validate(self, theta: Parts) -> None:
        for k, (table, factor) in enumerate(zip(as_tuple(theta), self.factors, strict=True)):
            expected = tuple(self.cardinalities[v] for v in factor)
            if tuple(table.shape[1:]) != expected:
                raise InvalidInputError(
                    f"theta[{k}]: markov_field takes a table of shape {expected} for the variables {factor}, got "
                    f"{tuple(table.shape[1:])} after the batch dimensions"
                )

    def build(self, event_shape: Any) -> Hypergraph:
        hyperedges = sum(math.prod(self.cardinalities[u] for u in (v, *rest)) for v, rest in self._joined)
        if hyperedges > _MOST_HYPEREDGES:
            raise UnsupportedError(
                f"markov_field: elimination joins up to {self.width + 1} variables (a width of {self.width}), in "
                f"tables of {hyperedges:.1e} entries in total, more than {_MOST_HYPEREDGES:.0e}; pass a better order, "
                "use the relaxation belief_propagation or mean_field, which need no elimination, or split the model "
                "into a FactorGraph"
            )
        graph, roots = HypergraphBuilder(event_shape), []
        results: list[tuple[np.ndarray, list[int]]] = []
        for v, (factors, steps, rest) in zip(self._order, self._steps, strict=True):
            scope = [*rest, v]  # the variable is last, so that its values are in order among the hyperedges of a node
            parts = sorted(((graph.parts[k], list(self.factors[k])) for k in factors), key=lambda part: len(part[1]))
            tails = sorted((results[j] for j in steps), key=lambda result: len(result[1]))
            while len(parts) > 1 or len(tails) > 2:
                used_parts, parts = parts[:1], parts[1:]
                used_tails, tails = tails[:2], tails[2:]
                joined = sorted({u for _, variables in (*used_parts, *used_tails) for u in variables})
                node = graph.nodes(*(self.cardinalities[u] for u in joined))
                scores = _spread(*used_parts[0], joined) if used_parts else None
                graph.add(node, *(_spread(*tail, joined) for tail in used_tails), part=scores)
                tails.insert(0, (node, joined))
            node = graph.nodes(*(self.cardinalities[u] for u in rest))
            shape = [self.cardinalities[u] for u in scope]
            graph.add(
                np.broadcast_to(node[..., None], shape),
                *(np.broadcast_to(_spread(*tail, scope), shape) for tail in tails),
                part=np.broadcast_to(_spread(*parts[0], scope), shape) if parts else None,
            )
            results.append((node, rest))
            if not rest:
                roots.append(node)
        goal = roots.pop()
        while roots:
            node = graph.node()
            graph.add(node, goal, roots.pop())
            goal = node
        return graph.build(goal)

    def readout(self, y: Parts) -> Parts:
        """Return the indicators of the values of each variable, a tuple of (B, c_i)."""
        return tuple(self._indicators(as_tuple(y), v) for v in range(len(self.cardinalities)))

    def _indicators(self, tables: Sequence[Tensor], v: int) -> Tensor:
        """Return the indicators (B, c) of the values of variable v, read from the smallest table with the variable."""
        table, factor = min(
            ((t, f) for t, f in zip(tables, self.factors, strict=True) if v in f), key=lambda pair: len(pair[1])
        )
        others = [axis for axis, u in enumerate(factor, 1) if u != v]
        return table.sum(others) if others else table

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        n = len(self.cardinalities)
        if labels.ndim != 2 or labels.shape[1] != n:
            raise InvalidInputError(f"labels must be values of shape (B, {n}), got shape {tuple(labels.shape)}")
        sizes = torch.tensor(self.cardinalities, device="cpu").to(labels.device, non_blocking=True)
        wrong = (labels < 0) | (labels >= sizes)
        reject_labels(wrong, labels, "each value must be at least 0 and below its cardinality", defers=True)
        labels = labels.clamp(min=0).minimum(sizes - 1)  # on a GPU, the check may come later
        tables = []
        for table, factor in zip(as_tuple(like), self.factors, strict=True):
            place = torch.zeros_like(labels[:, 0])
            for v in factor:
                place = place * self.cardinalities[v] + labels[:, v]
            flat = torch.zeros(len(labels), table.shape[1:].numel(), dtype=table.dtype, device=labels.device)
            tables.append(flat.scatter_(1, place.unsqueeze(1), 1.0).reshape(-1, *table.shape[1:]))
        return tuple(tables)

    def decode(self, y: Parts) -> Tensor:
        return torch.stack([piece.argmax(1) for piece in as_tuple(self.readout(y))], 1)

    def describe_part(self, y: Parts, tensor: int, index: tuple[int, ...]) -> str:
        values = ", ".join(f"{v} = {value}" for v, value in zip(self.factors[tensor], index, strict=True))
        return f"entry of theta[{tensor}] for variables {values}"


def _spread(numbers: np.ndarray, variables: Sequence[int], scope: Sequence[int]) -> np.ndarray:
    """Return ``numbers``, with an axis for each of the ``variables``, with an axis for each variable of ``scope``."""
    inside = [u for u in scope if u in variables]
    moved = np.asarray(numbers).transpose([list(variables).index(u) for u in inside])
    return moved[tuple(slice(None) if u in variables else None for u in scope)]


def _integers(name: str, values: Any, least: int, most: int | None) -> tuple[int, ...]:
    """Return ``values`` as a tuple of integers of at least ``least`` and at most ``most``."""
    values = values.tolist() if isinstance(values, np.ndarray | Tensor) else values
    wanted = f"a sequence of integers {f'of at least {least}' if most is None else f'from {least} to {most}'}"
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInputError(f"{name} must be {wanted}, got {values!r}")
    numbers = tuple(values)
    highest = math.inf if most is None else most
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= highest:
            raise InvalidInputError(f"{name} must be {wanted}, got {value!r}")
    if not numbers:
        raise InvalidInputError(f"{name} must be {wanted}, at least one, got none")
    return tuple(map(int, numbers))
