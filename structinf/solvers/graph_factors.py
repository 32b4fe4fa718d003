"""The factors of a factor graph, in groups that share an oracle: a group is one batch of instances of the oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple

__all__ = ["Factor", "GraphFactors", "OracleGroup", "check_values"]


@dataclass(frozen=True, eq=False)
class Factor:
    """A factor of a graph: an oracle whose parts are variables of the graph.

    Attributes
    ----------
    oracle : Oracle
        The set of structures allowed for the variables.
    variables : (*event) int64 Tensor
        The flat index of the variable at each part of the oracle's first tensor.
    negated : (*event) bool Tensor
        Whether the part is 1 minus the variable.
    additional : tuple of torch.Size
        The shapes of the oracle's other tensors.
    first : int
        The position of the factor's first additional tensor in the scores of the graph.
    label : str
        The name of the oracle or of the logic factor.
    name : str
        The name in messages.
    data : mapping of str to str
        The keyword in calls of the graph, for the name of each instance data that the oracle receives.
    """

    oracle: Oracle
    variables: Tensor
    negated: Tensor
    additional: tuple[torch.Size, ...]
    first: int
    label: str
    name: str
    data: Mapping[str, str]

    def shares_oracle(self, other: Factor, keywords: Set[str]) -> bool:
        """Return whether both factors have the same oracle, names of data in ``keywords``, and shapes of scores."""
        own, others = ((f.variables.shape, f.additional, f.given(keywords).keys()) for f in (self, other))
        if own != others or type(self.oracle) is not type(other.oracle):
            return False
        return self.oracle is other.oracle or _are_equal(self.oracle, other.oracle)

    def given(self, keywords: Set[str]) -> dict[str, str]:
        """Return the names of data, with keywords, whose keyword is among ``keywords``."""
        return {name: keyword for name, keyword in self.data.items() if keyword in keywords}

    def bind(self, data: Mapping[str, Tensor]) -> Oracle:
        """Return the oracle with its instance data among ``data``, the data (B, ...) of the graph by keyword."""
        own = {name: data[keyword] for name, keyword in self.given(data.keys()).items()}
        return self.oracle.bind(**own) if own else self.oracle


@dataclass(frozen=True, eq=False)
class GraphFactors:
    """The factors of a graph, or of a part of a graph, as solvers see them.

    Attributes
    ----------
    groups : list of OracleGroup
        The factors by oracle.
    names : tuple of str
        The name of each factor in messages.
    data : mapping of str to (B, ...) Tensor
        The instance data of the graph by keyword.
    """

    groups: list[OracleGroup]
    names: tuple[str, ...]
    data: Mapping[str, Tensor]

    def __getitem__(self, rows: Tensor) -> GraphFactors:
        """Return the factors with the data of the instances ``rows``."""
        return replace(self, data={keyword: t[rows] for keyword, t in self.data.items()})


def check_values(values: Tensor, name: str) -> None:
    """Raise InvalidInputError if a structure of a factor gives a variable a value other than 0 and 1.

    Parameters
    ----------
    values : Tensor
        The parts of structures that are variables.
    name : str
        The factor's name in the message.
    """
    wrong = values[(values != 0) & (values != 1)]
    if len(wrong):
        raise InvalidInputError(
            f"{name} has a structure with a part of {wrong[0].item():g}; parts that are variables must be 0 or 1"
        )


@dataclass(frozen=True, eq=False)
class OracleGroup:
    """F factors with the same oracle on scores of the same shapes.

    A batch of R instances of the graph has R · F instances of the oracle, those of the first instance first. The
    vectors of a factor hold the parts of the oracle in the order of its tensors: m parts that are variables, then a
    additional parts.

    Attributes
    ----------
    oracle : Oracle
        The oracle.
    numbers : tuple of int
        The numbers of the factors in the graph.
    variables : (F, m) int64 Tensor
        The flat index of the variable of each part.
    negated : (F, m) bool Tensor
        Whether the part is 1 minus the variable.
    shapes : tuple of torch.Size
        The event shape of each tensor of the oracle.
    first : tuple of int
        The position of each factor's first additional tensor in the scores of the graph.
    data : mapping of str to tuple of str
        The keyword in calls of the graph for each factor, for the name of each instance data of the call.
    """

    oracle: Oracle
    numbers: tuple[int, ...]
    variables: Tensor
    negated: Tensor
    shapes: tuple[torch.Size, ...]
    first: tuple[int, ...]
    data: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, factors: Sequence[Factor], keywords: Set[str]) -> list[OracleGroup]:
        """Return the groups of ``factors`` in a call with these ``keywords`` of instance data.

        Factors with the same oracle are in different groups if only some of them receive data.
        """
        groups: list[list[int]] = []
        for k, factor in enumerate(factors):
            group = next((g for g in groups if factors[g[0]].shares_oracle(factor, keywords)), None)
            groups.append([k]) if group is None else group.append(k)
        return [cls._of([factors[k] for k in group], tuple(group), keywords) for group in groups]

    @classmethod
    def _of(cls, factors: Sequence[Factor], numbers: tuple[int, ...], keywords: Set[str]) -> OracleGroup:
        head = factors[0]
        return cls(
            oracle=head.oracle,
            numbers=numbers,
            variables=torch.stack([factor.variables.flatten() for factor in factors]),
            negated=torch.stack([factor.negated.flatten() for factor in factors]),
            shapes=(head.variables.shape, *head.additional),
            first=tuple(factor.first for factor in factors),
            data={name: tuple(factor.data[name] for factor in factors) for name in head.given(keywords)},
        )

    def bind(self, data: Mapping[str, Tensor]) -> Oracle:
        """Return the oracle for a batch of B · F rows, the factors of the first instance first.

        Parameters
        ----------
        data : mapping of str to (B, ...) Tensor
            The instance data of the graph by keyword.
        """
        own = {
            name: torch.stack([data[keyword] for keyword in keywords], 1).flatten(0, 1)
            for name, keywords in self.data.items()
        }
        return self.oracle.bind(**own) if own else self.oracle

    def __len__(self) -> int:
        return len(self.numbers)

    def additional_scores(self, theta: Parts, batch: int) -> Tensor:
        """Return the additional scores in ``theta`` as vectors, (batch, F, a)."""
        tensors, count = as_tuple(theta), len(self.shapes) - 1
        if not count:
            return tensors[0].new_zeros(batch, len(self), 0)
        rows = [
            torch.cat([t.expand(batch, *t.shape[1:]).flatten(1) for t in tensors[first : first + count]], 1)
            for first in self.first
        ]
        return torch.stack(rows, 1)

    def as_parts(self, vectors: Tensor) -> Parts:
        """Return vectors (N, m + a) in the form of the oracle's scores, contiguous."""
        if len(self.shapes) == 1:
            return vectors.reshape(-1, *self.shapes[0]).contiguous()
        pieces = vectors.split([math.prod(shape) for shape in self.shapes], 1)
        return tuple(p.reshape(-1, *shape).contiguous() for p, shape in zip(pieces, self.shapes, strict=True))

    def as_vectors(self, parts: Parts) -> Tensor:
        """Return parts (..., *event) of the oracle as vectors (..., m + a)."""
        tensors = as_tuple(parts)
        batch = tensors[0].shape[: tensors[0].ndim - len(self.shapes[0])]
        return torch.cat([t.reshape(*batch, math.prod(s)) for t, s in zip(tensors, self.shapes, strict=True)], -1)


def _are_equal(oracle: Oracle, other: Oracle) -> bool:
    try:
        return bool(oracle == other)
    except (TypeError, ValueError, RuntimeError):  # options that are arrays
        return False
