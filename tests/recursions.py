"""Dynamic programs as users write them in torch, and the same as grammars in plain Python, from which all else follows.

A grammar is its start symbol and a function from a symbol to its options, each (parts, symbols).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from structinf.dp.recursion import DynamicProgram
from structinf.kernels.logsumexp import logsumexp
from structinf.oracle import Enumerable, check_lengths
from structinf.parts import Potentials, as_tuple, map_parts
from structinf.regularizers import Regularizer

INF = math.inf
Grammar = tuple[Any, Callable[[Any], list[tuple[list, list]]]]


# ----------------------------------------------------------------------------- recursions


class Listed(DynamicProgram, Enumerable):
    """With the list that the grammar makes, for the laws that compare with one."""

    def enumerate(self, event_shape: Any) -> Potentials:
        lengths = self.bound["lengths"][0].tolist() if "lengths" in self.bound else None
        return stacked([parts for parts, _ in derivations(self.grammar(event_shape, lengths))], event_shape)


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
    structure_ndim: ClassVar = {"lengths": 1}

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
    structure_ndim: ClassVar = {"lengths": 0}

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


@dataclass(frozen=True)
class Own(Regularizer):
    """Twice the negative entropy, as a user's own."""

    def value(self, x):
        return 2 * logsumexp(x / 2, -1)

    def gradient(self, x):
        return torch.softmax(x / 2, -1).masked_fill(x.amax(-1, keepdim=True).isneginf(), 0.0)

    def hessian_product(self, q, z):
        return q * (z - (q * z).sum(-1, keepdim=True)) / 2


# ----------------------------------------------------------------------------- what grammars say


def derivations(
    grammar: Grammar, weigh: Callable[[Any], Iterable[float]] = lambda symbol: itertools.repeat(1.0)
) -> list[tuple[tuple, float]]:
    """Parts, with repetitions, and product of the options' weights of every derivation."""
    start, options = grammar

    @functools.cache
    def derive(symbol):
        found = []
        for (parts, tails), weight in zip(options(symbol), weigh(symbol), strict=False):
            for below in itertools.product(*map(derive, tails)):
                found.append((sum((p for p, _ in below), tuple(parts)), weight * math.prod(w for _, w in below)))
        return found

    return derive(start)


def walks(grammar: Grammar, theta: Potentials, regularizer: Regularizer) -> tuple[float, list[tuple[tuple, float]]]:
    """DP_Ω(θ) of one instance, and every derivation with its probability under the random walk."""
    start, options = grammar

    @functools.cache
    def node(symbol):
        scores = [score(theta, parts) + sum(node(tail)[0] for tail in tails) for parts, tails in options(symbol)]
        return smooth(scores, regularizer)

    return node(start)[0], derivations(grammar, lambda symbol: node(symbol)[1])


def score(theta: Potentials, parts: Sequence[tuple]) -> float:
    """Of one instance, a batch of one."""
    return sum(float(as_tuple(theta)[which][(0, *index)]) for which, *index in parts)


def smooth(x: list[float], regularizer: Regularizer) -> tuple[float, np.ndarray]:
    """max_Ω and its gradient in float64, by bisection."""
    scores = np.array(x, dtype=float)
    if not len(scores) or scores.max() == -INF:
        return -INF, np.zeros(len(scores))
    d, alpha = scores - scores.max(), regularizer.alpha
    if alpha == INF:
        q, omega = np.eye(len(d))[int(d.argmax())], 0.0
    elif alpha in (None, 1):  # Own() is the only one of no alpha
        factor = 2 if alpha is None else 1
        q = np.exp(d / factor) / np.exp(d / factor).sum()
        omega = factor * (q * np.log(np.where(q > 0, q, 1))).sum()
    else:
        a = alpha - 1
        low, high = -1 / a, 0.0
        for _ in range(100):
            tau = (low + high) / 2
            q = np.maximum(a * (d - tau), 0) ** (1 / a)
            low, high = (tau, high) if q.sum() > 1 else (low, tau)
        q = q / q.sum()
        omega = ((q**alpha).sum() - 1) / (alpha * a)
    return float(scores.max() + (np.where(q > 0, d, 0) * q).sum() - omega), q


def stacked(all_parts: Sequence[Sequence[tuple]], event_shape: Any) -> Potentials:
    """The structures of these parts, (N, *event) in float64."""
    ys = [np.zeros((len(all_parts), *shape)) for shape in shapes_of(event_shape)]
    for row, parts in enumerate(all_parts):
        for which, *index in parts:
            ys[which][(row, *index)] += 1
    return formed([torch.from_numpy(y) for y in ys], event_shape)


def mean_of(found: list[tuple[tuple, float]], event_shape: Any) -> Potentials:
    """Σ probability · structure, (1, *event)."""
    return summed(torch.tensor([w for _, w in found]), stacked([p for p, _ in found], event_shape))


def summed(weights: torch.Tensor, structures: Potentials) -> Potentials:
    return map_parts(lambda y: torch.tensordot(weights.double(), y, 1)[None], structures)


def shapes_of(event_shape: Any) -> list[tuple[int, ...]]:
    return [event_shape] if isinstance(event_shape[0], int) else list(event_shape)


def formed(tensors: list[torch.Tensor], event_shape: Any) -> Potentials:
    """A tuple if the event shape is one of several."""
    return tensors[0] if isinstance(event_shape[0], int) else tuple(tensors)
