"""The blocks of structured mean field: the variables of each oracle of a factor graph, and each variable alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .graph_factors import OracleGroup

__all__ = ["Blocks", "Step", "find_blocks"]


class Step(NamedTuple):
    """Blocks that change at once: no table joins two of them.

    Attributes
    ----------
    variables : (n,) bool Tensor
        The variables of the blocks.
    factors : list of tuples
        Groups with a block in the step, with the places (F',) of the blocks' factors in the group.
    """

    variables: Tensor
    factors: list[tuple[int, Tensor]]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a graph.

    Attributes
    ----------
    tables : tuple of bool
        Whether the factors of each group are tables.
    alone : (n,) bool Tensor
        The variables of no oracle, which are blocks by themselves.
    steps : list of Step
        All blocks, in the order of the coordinate ascent.
    """

    tables: tuple[bool, ...]
    alone: Tensor
    steps: list[Step]


@functools.lru_cache(maxsize=64)
def find_blocks(
    groups: tuple[OracleGroup, ...], tables: tuple[bool, ...], names: tuple[str, ...], size: int
) -> Blocks | str:
    """Return the blocks of a graph, or the reason why no product of distributions of its oracles exists, as a clause.

    Parameters
    ----------
    groups : tuple of OracleGroup
        The factors.
    tables : tuple of bool
        Whether the factors of each group are tables, with scores for all values of their variables.
    names : tuple of str
        The names of the factors in messages.
    size : int
        The number of variables.
    """
    members = [
        (number, f, group.numbers[f], variables)
        for number, group in enumerate(groups)
        for f, variables in enumerate(group.variables.tolist())
    ]
    owner: list[int | None] = [None] * size
    for number, _, k, variables in members:
        if len(set(variables)) < len(variables):
            repeated = next(v for v in variables if variables.count(v) > 1)
            return f"{_name(names, k)} has variable {repeated} more than once; use belief_propagation"
        for v in () if tables[number] else variables:
            if owner[v] is not None:
                return (
                    f"{_name(names, owner[v])}, and {_name(names, k)}, share variable {v}, and a product of their "
                    "distributions gives it two values; use belief_propagation, or lp_sparsemap"
                )
            owner[v] = k
    first = 1 + max((k for _, _, k, _ in members), default=-1)
    block = [first + v if owned is None else owned for v, owned in enumerate(owner)]
    neighbours: dict[int, set[int]] = {b: set() for b in block}
    for number, _, k, variables in members:
        joined = [block[v] for v in variables] if tables[number] else []
        for i, b in enumerate(joined):
            if b in joined[:i]:
                pair = variables[joined.index(b)], variables[i]
                return (
                    f"{_name(names, k)} joins the variables {pair[0]} and {pair[1]} of {_name(names, b)}, which are "
                    "not independent; use belief_propagation"
                )
            neighbours[b].update(joined)
    colour: dict[int, int] = {}
    for b in sorted(neighbours):
        used = {colour[other] for other in neighbours[b] if other in colour}
        colour[b] = next(c for c in range(len(used) + 1) if c not in used)
    of_variable = torch.tensor([colour[b] for b in block], device="cpu")
    steps = []
    for c in range(1 + max(colour.values())):
        places: dict[int, list[int]] = {}
        for number, f, k, _ in members:
            if not tables[number] and colour[k] == c:
                places.setdefault(number, []).append(f)
        steps.append(Step(of_variable == c, [(g, torch.tensor(found, device="cpu")) for g, found in places.items()]))
    return Blocks(tables, torch.tensor([owned is None for owned in owner], device="cpu"), steps)


def _name(names: Sequence[str], k: int | None) -> str:
    return names[k or 0].rstrip(",")
