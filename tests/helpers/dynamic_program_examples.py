"""Dynamic programs as users write them in torch, and their grammars, from which all that is known of them follows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from hypergraph_program_examples import formed, shapes_of
from hypergraph_reference import Grammar, Hyperedges, Recursion, of_grammar
from regularizers_by_alpha import INF
from structinf.dp.recursion import DynamicProgram
from structinf.oracle import Enumerable
from structinf.parts import Parts, as_tuple, map_parts
from structinf.validation import check_lengths

# ----------------------------------------------------------------------------- recursions


class Listed(DynamicProgram, Enumerable):
    """With the list that the grammar makes, for the checks that compare with one."""

    def enumerate(self, event_shape: Any) -> Parts:
        lengths = self.bound["lengths"][0].tolist() if "lengths" in self.bound else None
        shapes = shapes_of(event_shape)
        pieces = derived(plain(self, event_shape, lengths)).split([math.prod(shape) for shape in shapes], 1)
        return formed([p.reshape(-1, *shape) for p, shape in zip(pieces, shapes, strict=True)], event_shape)


@dataclass(frozen=True)
class FewOnes(Listed):
    """Binary strings without two ones in a row, and at most k ones."""

    k: int
    event_ndim = 1

    def value(self, theta, smax):
        none = theta.new_full((len(theta), 1), -INF)
        zero = torch.cat([torch.zeros_like(none), none.expand(-1, self.k)], 1)  # by the number of ones so far
        one = none.expand(-1, self.k + 1)
        for score in theta.unbind(1):
            zero, one = smax(torch.stack([zero, one]), 0), torch.cat([none, zero[:, :-1] + score[:, None]], 1)
        return smax(torch.cat([zero, one], 1), 1)

    def grammar(self, event_shape, lengths=None) -> Grammar:
        def options(symbol):
            if symbol == "start":
                return [([], [(last, event_shape[0], ones)]) for last in (0, 1) for ones in range(self.k + 1)]
            last, t, ones = symbol
            if t == 0 or ones < 0:
                return [([], [])] if symbol == (0, 0, 0) else []
            if last == 0:
                return [([], [(0, t - 1, ones)]), ([], [(1, t - 1, ones)])]
            return [([(0, t - 1)], [(0, t - 1, ones - 1)])]

        return "start", options


@dataclass(frozen=True)
class Grid(Listed):
    """Paths through a grid by steps down, right, or both."""

    event_ndim = 2
    instance_ndim: ClassVar = {"lengths": 1}

    def validate(self, theta):
        if "lengths" in self.bound:
            for lengths, size in zip(self.bound["lengths"].unbind(1), theta.shape[1:], strict=True):
                check_lengths(lengths, 1, size, f"{size} cells")

    def value(self, theta, smax):
        (n, m), none = theta.shape[1:], theta.new_full((len(theta),), -INF)
        v = {(i, j): none for i in range(-1, n) for j in range(-1, m)}
        for i, j in itertools.product(range(n), range(m)):
            before = smax(torch.stack([v[i - 1, j], v[i, j - 1], v[i - 1, j - 1]]), 0) if i + j else 0.0
            v[i, j] = before + theta[:, i, j]
        if "lengths" not in self.bound:
            return v[n - 1, m - 1]
        cells = torch.stack([v[i, j] for i in range(n) for j in range(m)], 1)
        i, j = (self.bound["lengths"] - 1).unbind(1)
        return cells.gather(1, (i * m + j).unsqueeze(1)).squeeze(1)

    def grammar(self, event_shape, lengths=None) -> Grammar:
        def options(cell):
            i, j = cell
            if cell == (0, 0):
                return [([(0, 0, 0)], [])]
            return [([(0, i, j)], [c]) for c in [(i - 1, j), (i, j - 1), (i - 1, j - 1)] if min(c) >= 0]

        n, m = lengths or event_shape
        return (n - 1, m - 1), options


@dataclass(frozen=True)
class Tags(Listed):
    """A chain of lengths."""

    event_ndim = (2, 2)
    instance_ndim: ClassVar = {"lengths": 0}

    def validate(self, theta):
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], 1, theta[0].shape[1], f"T = {theta[0].shape[1]} steps")

    def readout(self, y):
        return y[0]

    def value(self, theta, smax):
        unary, transition = theta
        lengths = self.bound.get("lengths", torch.tensor(unary.shape[1], device=unary.device))
        state = unary[:, 0]
        for t in range(1, unary.shape[1]):
            longer = smax(state.unsqueeze(2) + transition, 1) + unary[:, t]
            state = torch.where((t < lengths).reshape(-1, 1), longer, state)
        return smax(state)

    def grammar(self, event_shape, lengths=None) -> Grammar:
        steps, tags = event_shape[0]

        def options(symbol):
            if symbol == "start":
                return [([], [((lengths or steps) - 1, s)]) for s in range(tags)]
            t, s = symbol
            if t == 0:
                return [([(0, 0, s)], [])]
            return [([(0, t, s), (1, r, s)], [(t - 1, r)]) for r in range(tags)]

        return "start", options


@dataclass(frozen=True)
class Rod(Listed):
    """A rod of a whole length cut into pieces: how many of each length 1, 2, 3, ..."""

    length: int
    event_ndim = 1

    def value(self, theta, smax):
        none = theta.new_full((len(theta),), -INF)
        best = [torch.zeros_like(none)] + [none] * self.length
        for piece, price in enumerate(theta.unbind(1), 1):
            for n in range(piece, self.length + 1):
                best[n] = smax(torch.stack([best[n], best[n - piece] + price], 1))
        return best[-1]

    def grammar(self, event_shape, lengths=None) -> Grammar:
        def options(symbol):
            piece, n = symbol
            if piece == 0:
                return [([], [])] if n == 0 else []
            longer = [([(0, piece - 1)], [(piece, n - piece)])] if n >= piece else []
            return [([], [(piece - 1, n)]), *longer]

        return (event_shape[0], self.length), options


@dataclass(frozen=True)
class Twins(DynamicProgram):
    """A subtree that is derived up to five times over; many derivations have the same parts."""

    event_ndim = 1

    def value(self, theta, smax):
        a, b, c, d, e = theta.unbind(1)
        s = smax(torch.stack([a, b]), 0)
        t = smax(torch.stack([2 * s, c]), 0) + d
        return smax(torch.stack([t + s + t, s + e]), 0)

    def grammar(self, event_shape, lengths=None) -> Grammar:
        rules = {
            "s": [([(0, 0)], []), ([(0, 1)], [])],
            "t": [([(0, 3)], ["s", "s"]), ([(0, 2), (0, 3)], [])],
            "start": [([], ["t", "s", "t"]), ([(0, 4)], ["s"])],
        }
        return "start", rules.__getitem__


# ----------------------------------------------------------------------------- batches, and their plain recursions


def plain(oracle: Any, event_shape: Any, lengths: Any = None) -> Hyperedges:
    """What its grammar says."""
    return of_grammar(oracle.grammar(event_shape, lengths), shapes_of(event_shape))


def derived(lists: Hyperedges) -> torch.Tensor:
    """The parts of each derivation, (N, P) in float64."""
    return torch.tensor([d.parts for d in lists.derivations(lists.goals[0])], dtype=torch.float64)


@dataclass(frozen=True)
class Example:
    """A batch of three, whose lengths may differ."""

    oracle: DynamicProgram
    event_shape: Any
    lengths: tuple = ()

    def __str__(self) -> str:
        return type(self.oracle).__name__ + "-lengths" * bool(self.lengths)

    @property
    def bound(self) -> DynamicProgram:
        return self.oracle.bind(lengths=torch.tensor(self.lengths)) if self.lengths else self.oracle

    def lists(self, b: int) -> Hyperedges:
        return plain(self.oracle, self.event_shape, self.lengths[b] if self.lengths else None)

    def at(self, theta: Parts, b: int, alpha: float) -> tuple[Recursion, int]:
        """The plain recursion of instance ``b``, and its goal."""
        lists = self.lists(b)
        return lists.at(flat(theta)[b].tolist(), alpha), lists.goals[0]

    def draw(self, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Parts:
        drawn = [(scale * torch.randn(3, *s, dtype=torch.float64)).to(dtype) for s in shapes_of(self.event_shape)]
        theta = formed(drawn, self.event_shape)
        masks = self.bound.valid_parts(theta)
        return theta if masks is None else map_parts(lambda t, inside: t.where(inside, 0.0), theta, masks)


EXAMPLES = [
    Example(FewOnes(k=2), (5,)),
    Example(FewOnes(k=3), (1,)),
    Example(Grid(), (3, 4)),
    Example(Grid(), (3, 3), ((3, 3), (1, 2), (2, 3))),
    Example(Tags(), ((3, 2), (2, 2))),
    Example(Tags(), ((4, 3), (3, 3)), (4, 1, 2)),
    Example(Rod(length=5), (3,)),
    Example(Twins(), (5,)),
]
ALPHAS = (1, 1.5, 2, -2, INF)
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)
every_smooth = pytest.mark.parametrize("alpha", [alpha for alpha in ALPHAS if alpha < INF])
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def flat(y: Parts) -> torch.Tensor:
    return torch.cat([t.flatten(1) for t in as_tuple(y)], 1)


def assert_close(actual, expected, atol=1e-12):
    for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
        torch.testing.assert_close(a, torch.as_tensor(e, dtype=a.dtype), rtol=0, atol=atol)
