"""The sizes on which every registered oracle is checked: the tables to extend for a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import structinf
from oracle_example import Example
from oracle_examples_combinatorial import COMBINATIONS
from oracle_examples_dynamic_programs import PROGRAMS
from structinf import Oracle

ORACLE_EXAMPLES = (*COMBINATIONS, *PROGRAMS)

REGISTERED = structinf.list_oracles()

EXAMPLES = [example for example in ORACLE_EXAMPLES if example.name in REGISTERED]

ORACLES_WITHOUT_EXAMPLE = sorted(set(REGISTERED) - {example.name for example in ORACLE_EXAMPLES})


def one_for_each(
    kind: Callable[[Oracle], Any], wanted: Callable[[Example], bool] = lambda example: example.relaxed
) -> list[Example]:
    """The first example of each ``kind`` of oracle, of those ``wanted``."""
    return list({kind(example.oracle()): example for example in reversed(EXAMPLES) if wanted(example)}.values())


def parametrize(wanted: Callable[[Example], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run a test for each example that is ``wanted``, as its argument ``example``.

    Without --full, a structure's first example runs, and every fourth of the other examples of all structures.
    """
    first = one_for_each(type, wanted)
    others = [example for example in EXAMPLES if wanted(example) and example not in first]
    rare = [example for number, example in enumerate(others) if number % 4]
    return pytest.mark.parametrize(
        "example",
        [
            pytest.param(example, id=str(example), marks=pytest.mark.full if example in rare else ())
            for example in EXAMPLES
            if wanted(example)
        ],
    )
