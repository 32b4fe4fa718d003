"""The sizes on which every registered oracle is checked: the one table to extend for a new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import enumerators
import structinf
from enumerators import Structure
from structinf import Oracle
from structinf.testing import InstanceData


@dataclass(frozen=True)
class Example:
    """One small size of one oracle.

    Attributes
    ----------
    name : str
        Under which the oracle is registered.
    event_shape : tuple
        As for :func:`structinf.testing.check_oracle`.
    options : mapping
    structure : mapping, optional
        Instance data to draw from; acceptable scalar lengths are found without it.
    listing : callable, optional
        From an instance's lengths (None for the whole) to all structures, independent of the library.
    lengths : sequence
        Those that ``listing`` takes.
    relaxed : bool
        Whether the laws of relaxations are tried on it too, which takes longer.
    """

    name: str
    event_shape: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    structure: InstanceData | None = None
    listing: Callable[[Any], list[Structure]] | None = None
    lengths: Sequence[Any] = ()
    relaxed: bool = False

    def oracle(self) -> Oracle:
        """Made with the options."""
        return structinf.get_oracle(self.name, **self.options)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Event shapes of the tensors of θ."""
        return self.event_shape if self.is_tuple else (self.event_shape,)

    @property
    def is_tuple(self) -> bool:
        """Whether θ is a tuple."""
        return not isinstance(self.event_shape[0], int)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return sum(map(math.prod, self.shapes))

    def __str__(self) -> str:
        options = "".join(f"-{key}={value}" for key, value in self.options.items())
        return f"{self.name}{options}-{self.event_shape}".replace(" ", "")


def _chain(steps: int, states: int, form: str, relaxed: bool = False) -> Example:
    shapes = {
        "shared": ((steps, states), (states, states)),
        "steps": ((steps, states), (steps - 1, states, states)),
        "edges": (steps - 1, states, states),
    }
    lengths = range(1, steps + 1)
    return Example(
        "chain",
        shapes[form],
        structure={"lengths": list(lengths)},
        listing=lambda length: list(enumerators.chain(steps, states, form, length)),
        lengths=lengths,
        relaxed=relaxed,
    )


def _assignment(rows: int, columns: int, relaxed: bool = False, **options: Any) -> Example:
    in_use = [(rows, columns), (rows - 1, columns), (rows, columns - 1), (1, 1), (0, columns)]
    return Example(
        "assignment",
        (rows, columns),
        options,
        structure={"lengths": in_use},
        listing=lambda lengths: list(enumerators.assignment(rows, columns, lengths)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _arborescence(words: int, single_root: bool, relaxed: bool = False) -> Example:
    return Example(
        "arborescence",
        (words + 1, words + 1),
        {"single_root": single_root},
        listing=lambda length: list(enumerators.arborescence(words + 1, single_root, length)),
        lengths=range(1, words + 1),
        relaxed=relaxed,
    )


def _categorical(count: int, relaxed: bool = False) -> Example:
    return Example("categorical", (count,), listing=lambda _: list(enumerators.categorical(count)), relaxed=relaxed)


TABLE = (
    _categorical(4, relaxed=True),
    _categorical(1),
    _chain(3, 2, "shared", relaxed=True),
    _chain(4, 2, "steps"),
    _chain(3, 2, "edges", relaxed=True),
    _chain(1, 3, "shared"),
    _chain(1, 3, "edges"),
    _chain(3, 1, "shared"),
    _assignment(3, 3, relaxed=True),
    _assignment(2, 4),
    _assignment(3, 2),
    _assignment(2, 3, allow_unmatched=True),
    _assignment(1, 1),
    _arborescence(3, single_root=False, relaxed=True),
    _arborescence(3, single_root=True, relaxed=True),
    _arborescence(1, single_root=True),
)

REGISTERED = structinf.list_oracles()

EXAMPLES = [example for example in TABLE if example.name in REGISTERED]

MISSING = sorted(set(REGISTERED) - {example.name for example in TABLE})


def parametrize(wanted: Callable[[Example], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run a test for each example that is ``wanted``, as its argument ``example``."""
    return pytest.mark.parametrize("example", list(filter(wanted, EXAMPLES)), ids=str)
