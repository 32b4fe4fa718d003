"""Factors of a discrete model in groups of equal shape, so that one operation processes a group for the whole batch.

A table of a group has shape (c1, c2, ..., B, F): the values of the variables come first, then the batch (of size 1 if
all instances share the group) and the F factors of the group. Sums over the values then run over long contiguous rows.
Numbers for each value of a variable have shape (c, B, n), where n variables have the cardinality c.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import InfeasibleError
from ..parts import Parts, as_tuple, batch_size

__all__ = ["FactorGroup", "FactorTables", "Layout", "along", "find_layout", "is_compiled", "reduce_to"]


@dataclass(frozen=True)
class FactorGroup:
    """Factors whose tables have the same shape.

    Attributes
    ----------
    shape : tuple of int
        The cardinality of each variable of a factor.
    factors : tuple of int
        The indices of the factors.
    places : tuple of tuples of int
        For each variable of a factor, the index of this variable among the variables of its cardinality.
    """

    shape: tuple[int, ...]
    factors: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The groups of the factors, and the variables of each cardinality, of a model.

    Attributes
    ----------
    cardinalities : tuple of int
        The number of values of each variable.
    factors : tuple of tuples of int
        The variables of each factor.
    """

    cardinalities: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    _on_device: dict[torch.device, list[list[Tensor]]] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def variables(self) -> dict[int, list[int]]:
        """The variables of each cardinality."""
        found: dict[int, list[int]] = {}
        for v, c in enumerate(self.cardinalities):
            found.setdefault(c, []).append(v)
        return found

    @functools.cached_property
    def places(self) -> list[int]:
        """The index of each variable among the variables of its cardinality."""
        place = {v: i for found in self.variables.values() for i, v in enumerate(found)}
        return [place[v] for v in range(len(self.cardinalities))]

    @functools.cached_property
    def groups(self) -> list[FactorGroup]:
        """The groups, factors of one variable first."""
        members: dict[tuple[int, ...], list[int]] = {}
        for k, factor in enumerate(self.factors):
            members.setdefault(tuple(self.cardinalities[v] for v in factor), []).append(k)
        return [
            FactorGroup(
                shape,
                tuple(factors),
                tuple(tuple(self.places[self.factors[k][s]] for k in factors) for s in range(len(shape))),
            )
            for shape, factors in sorted(members.items(), key=lambda item: len(item[0]))
        ]

    @functools.cached_property
    def first_joint(self) -> int:
        """The index of the first group whose factors join several variables."""
        return next((g for g, group in enumerate(self.groups) if len(group.shape) > 1), len(self.groups))

    @functools.cached_property
    def colours(self) -> list[list[int]]:
        """Variables in classes, such that no factor joins two variables of a class."""
        neighbours: list[set[int]] = [set() for _ in self.cardinalities]
        for factor in self.factors:
            for v in factor:
                neighbours[v].update(factor)
        colour: dict[int, int] = {}
        for v in range(len(self.cardinalities)):
            used = {colour.get(u) for u in neighbours[v]}
            colour[v] = next(c for c in range(len(used) + 1) if c not in used)
        classes: list[list[int]] = [[] for _ in range(1 + max(colour.values()))]
        for v, c in colour.items():
            classes[c].append(v)
        return classes

    def indices(self, device: torch.device) -> list[list[Tensor]]:
        """Return ``places`` of each group as tensors (F,) on ``device``."""
        if device not in self._on_device:
            self._on_device[device] = [
                [torch.tensor(place, dtype=torch.int64, device=device) for place in group.places]
                for group in self.groups
            ]
        return self._on_device[device]


@functools.lru_cache(maxsize=64)
def _make_layout(cardinalities: tuple[int, ...], factors: tuple[tuple[int, ...], ...]) -> Layout:
    return Layout(cardinalities, factors)


def find_layout(cardinalities: Sequence[int], factors: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of a model; the layouts of 64 models are kept."""
    return _make_layout(tuple(cardinalities), tuple(map(tuple, factors)))


def along(x: Tensor, axis: int, arity: int) -> Tensor:
    """Return ``x`` (c, B, F) in the shape of a table of ``arity`` variables, with its values along ``axis``."""
    return x.view(*[1] * axis, x.shape[0], *[1] * (arity - axis - 1), *x.shape[1:])


def reduce_to(axis: int, arity: int) -> tuple[int, ...]:
    """Return the axes of all variables of a table except ``axis``."""
    return tuple(t for t in range(arity) if t != axis)


class FactorTables:
    """The scores of a model, in groups, in float64.

    Parameters
    ----------
    layout : Layout
        The groups of the model.
    theta : tuple of (B | 1, *cardinalities) Tensor
        A table of each factor.
    label : str
        The name of the model in messages.

    Attributes
    ----------
    tables : list of (c1, c2, ..., B | 1, F) Tensor
        The scores of each group.
    base : dict of (c, B, n) Tensor
        The sum of the scores of factors with one variable, for the variables of each cardinality.
    allowed : dict of (c, B, n) bool Tensor, or None
        The values that forbidden entries leave to each variable; None if no entry is −inf.
    size : int
        The batch size B.
    """

    def __init__(self, layout: Layout, theta: Parts, label: str) -> None:
        self.layout, self.theta = layout, as_tuple(theta)
        self.size = batch_size(theta)
        self.device = self.theta[0].device
        self.label = label
        self.index = layout.indices(self.device)
        self.tables = [t.double() for t in self.group([t.detach() for t in self.theta])]
        self.base = self.add_up({}, range(layout.first_joint), [[t] for t in self.tables[: layout.first_joint]])
        self.allowed: dict[int, Tensor] | None = None
        if any(bool(t.isneginf().any()) for t in self.tables):
            self._forbid()

    def group(self, theta: Sequence[Tensor]) -> list[Tensor]:
        """Return the tables of ``theta`` in groups."""
        found = []
        for group in self.layout.groups:
            members = [theta[k] for k in group.factors]
            if any(len(t) != len(members[0]) for t in members):
                members = [t.expand(self.size, *t.shape[1:]) for t in members]
            stacked = torch.stack(members)
            found.append(stacked.permute(*range(2, stacked.ndim), 1, 0).contiguous())
        return found

    def ungroup(self, tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return grouped ``tables`` as a table (B, *cardinalities) for each factor, in the dtype of θ."""
        found: dict[int, Tensor] = {}
        for group, table in zip(self.layout.groups, tables, strict=True):
            full = table.expand(*table.shape[:-2], self.size, table.shape[-1]).to(self.theta[0].dtype)
            ordered = full.permute(-1, -2, *range(table.ndim - 2)).contiguous()
            found.update(zip(group.factors, ordered.unbind(0), strict=True))
        return tuple(found[k] for k in range(len(self.theta)))

    def zeros(self) -> dict[int, Tensor]:
        """Return zeros (c, B, n) for the variables of each cardinality."""
        return {
            c: torch.zeros(c, self.size, len(v), dtype=torch.float64, device=self.device)
            for c, v in self.layout.variables.items()
        }

    def add_up(
        self, start: dict[int, Tensor], groups: Sequence[int], messages: Sequence[Sequence[Tensor]]
    ) -> dict[int, Tensor]:
        """Return ``start`` plus the messages (c, B | 1, F) of factors in ``groups`` to their variables."""
        sums = {c: t.clone() for c, t in start.items()} if start else self.zeros()
        for g, sent in zip(groups, messages, strict=True):
            for index, message in zip(self.index[g], sent, strict=True):
                sums[len(message)].index_add_(2, index, message.expand(-1, self.size, -1))
        return sums

    def joint(self) -> Iterator[tuple[int, FactorGroup, Tensor, list[Tensor]]]:
        """Yield the index, the group, the tables and the indices of variables of groups with several variables."""
        for g in range(self.layout.first_joint, len(self.tables)):
            yield g, self.layout.groups[g], self.tables[g], self.index[g]

    def scale(self) -> Tensor:
        """Return the largest finite |score| of each instance, (B,)."""
        largest = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        for t in self.tables:
            finite = torch.where(t.isinf(), 0.0, t).abs()
            largest = torch.maximum(largest, finite.amax((*range(t.ndim - 2), -1)).expand(self.size))
        return largest

    def _forbid(self) -> None:
        """Set ``allowed``, and the entries with a value that is not allowed to −inf."""
        usable = {c: torch.ones(c, self.size, len(v), dtype=torch.bool, device=self.device) for c, v in
                  self.layout.variables.items()}  # fmt: skip
        self.allowed, self.tables = self.propagate(usable)
        empty = torch.stack([~t.any(0).all(1) for t in self.allowed.values()]).any(0)
        if bool(empty.any()):
            rows = empty.nonzero()[:, 0].tolist()
            c, place = next(
                (c, int(missing.nonzero()[0, 0]))
                for c, missing in ((c, ~t[:, rows[0]].any(0)) for c, t in self.allowed.items())
                if bool(missing.any())
            )
            raise InfeasibleError(
                f"{self.label}: no structure has a finite score, because the entries of −inf leave no value to "
                f"variable {self.layout.variables[c][place]}; give more entries a finite score",
                rows[0],
                rows,
            )
        for c, t in self.allowed.items():
            self.base[c] = self.base[c].masked_fill(~t, -torch.inf)

    def propagate(self, allowed: dict[int, Tensor]) -> tuple[dict[int, Tensor], list[Tensor]]:
        """Return the values that have an allowed entry in each factor, and the tables with all other entries at −inf.

        The values are the largest set such that each value of a variable has an entry of finite score, with values of
        the set, in each factor of the variable: generalised arc consistency.
        """
        tables, allowed = list(self.tables), dict(allowed)
        while True:
            for g, (group, index) in enumerate(zip(self.layout.groups, self.index, strict=True)):
                for s, c in enumerate(group.shape):
                    outside = along(~allowed[c][:, :, index[s]], s, len(group.shape))
                    tables[g] = tables[g].masked_fill(outside, -torch.inf)
            missing = self.zeros()
            for g, (group, index) in enumerate(zip(self.layout.groups, self.index, strict=True)):
                unusable = tables[g].isneginf()
                for s, c in enumerate(group.shape):
                    entries = unusable.permute(s, *reduce_to(s, len(group.shape)), -2, -1)
                    without = entries.unsqueeze(1).flatten(1, -3).all(1)
                    missing[c].index_add_(2, index[s], without.double().expand(-1, self.size, -1))
            found = {c: t & (missing[c] == 0) for c, t in allowed.items()}
            if all(torch.equal(found[c], allowed[c]) for c in found):
                return allowed, tables
            allowed = found


def is_compiled(model: FactorTables) -> bool:
    """Return whether compiled loops solve the model; else torch operations do."""
    return model.device.type == "cpu"
