"""Every query of chains as a hypergraph program, against recursions in plain Python."""

from __future__ import annotations

import pytest

import enumerators
from chain_enumeration import CHAIN
from hypergraph_program_assertions import Program, every_query

pytestmark = pytest.mark.slow


def grammar(steps, states, form, length):
    """The recursion: from the end to the last tag, and from each tag to the one before."""
    length = steps if length is None else length
    edges = form == "edges"

    def options(symbol):
        if symbol == "end":
            return [([], [(length - 1, s)]) for s in range(1 if edges and length == 1 else states)]
        t, s = symbol
        own = [] if edges else [(0, t, s)]
        if t == 0:
            return [(own, [])]
        pair = {"shared": lambda r: (1, r, s), "steps": lambda r: (1, t - 1, r, s), "edges": lambda r: (0, t - 1, r, s)}
        return [([*own, pair[form](r)], [(t - 1, r)]) for r in range(states)]

    return "end", options


def program(steps, states, form):
    shapes = {
        "shared": ((steps, states), (states, states)),
        "steps": ((steps, states), (steps - 1, states, states)),
        "edges": (steps - 1, states, states),
    }
    return Program(
        CHAIN,
        shapes[form],
        lambda length: list(enumerators.chain(steps, states, form, length)),
        lambda length: grammar(steps, states, form, length),
        lengths=list(range(1, steps + 1)),
    )


PROGRAMS = [
    program(3, 3, "shared"),
    program(3, 2, "steps"),
    program(3, 2, "edges"),
    program(1, 3, "shared"),
    program(2, 2, "edges"),
    program(3, 1, "shared"),
]


@every_query(PROGRAMS)
def test_query(query, program):
    query(program)
