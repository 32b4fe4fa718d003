"""Every subset, knapsack, segmentation and monotonic alignment by itertools, and their recursions as grammars.

The lists are written from the definitions alone. The grammars say in which order the recursions choose, on which DP_Ω
depends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from enumerators import Structure
from hypergraph_reference import Grammar

# ----------------------------------------------------------------------------- structures


def subset(size: int, k: int, at_most: bool = False, length: int | None = None) -> Iterator[Structure]:
    """Exactly or at most k of the first ``length`` of ``size`` elements."""
    for y in _memberships(size, size if length is None else length):
        if y.sum() == k or (at_most and y.sum() < k):
            yield (y,)


def bits(size: int, length: int | None = None) -> Iterator[Structure]:
    """Any of the first ``length`` of ``size`` elements."""
    for y in _memberships(size, size if length is None else length):
        yield (y,)


def correlated_subset(size: int, k: int, length: int | None = None) -> Iterator[Structure]:
    """Exactly k elements, and the pairs of neighbours among them."""
    for (y,) in subset(size, k, length=length):
        yield y, y[1:] * y[:-1]


def knapsack(weights: Sequence[int], capacity: int) -> Iterator[Structure]:
    """Items that weigh at most ``capacity``."""
    for y in _memberships(len(weights), len(weights)):
        if sum(w for w, packed in zip(weights, y, strict=True) if packed) <= capacity:
            yield (y,)


def markov_field(cardinalities: Sequence[int], factors: Sequence[Sequence[int]]) -> Iterator[Structure]:
    """The entries of the tables that each assignment of values uses."""
    for values in itertools.product(*map(range, cardinalities)):
        y = []
        for factor in factors:
            y.append(np.zeros([cardinalities[v] for v in factor]))
            y[-1][tuple(values[v] for v in factor)] = 1
        yield tuple(y)


def semi_markov(
    steps: int, durations: int, labels: int, form: str = "segments", length: int | None = None
) -> Iterator[Structure]:
    """Labelled segments. ``form``: "segments", "transition" for those with numbers of transitions, "pairwise", or
    "boundaries" and "boundaries, transition" for steps, boundaries and numbers of durations.
    """
    length = steps if length is None else length
    for cuts in itertools.product([False, True], repeat=length - 1):
        starts = [0, *(t + 1 for t, cut in enumerate(cuts) if cut)]
        spans = list(itertools.pairwise([*starts, length]))
        if any(end - start > durations for start, end in spans):
            continue
        for tags in itertools.product(range(labels), repeat=len(spans)):
            segments = np.zeros((steps, durations, labels))
            pairwise = np.zeros((steps, durations, labels, labels))
            transition = np.zeros((labels, labels))
            by_step, boundaries = np.zeros((steps, labels)), np.zeros((steps, 2, labels))
            before = 0
            for (start, end), tag in zip(spans, tags, strict=True):
                segments[end - 1, end - start - 1, tag] = 1
                pairwise[end - 1, end - start - 1, before, tag] = 1
                by_step[start:end, tag] = 1
                boundaries[start, 0, tag] = boundaries[end - 1, 1, tag] = 1
                before = tag
            for pair in itertools.pairwise(tags):
                transition[pair] += 1
            counts = by_step, boundaries, segments.sum(0)
            yield {
                "segments": (segments,),
                "transition": (segments, transition),
                "pairwise": (pairwise,),
                "boundaries": counts,
                "boundaries, transition": (*counts, transition),
            }[form]


def monotonic_alignment(
    rows: int, columns: int, surjective: bool = False, lengths: Sequence[int] | None = None
) -> Iterator[Structure]:
    """A row for each column, none before that of the column before, and each row if ``surjective``."""
    n, m = lengths or (rows, columns)
    for choice in itertools.product(range(n), repeat=m):
        if list(choice) != sorted(choice) or (surjective and set(choice) != set(range(n))):
            continue
        y = np.zeros((rows, columns))
        for column, row in enumerate(choice):
            y[row, column] = 1
        yield (y,)


def _memberships(size: int, length: int) -> Iterator[np.ndarray]:
    for chosen in itertools.product([0.0, 1.0], repeat=length):
        yield np.array([*chosen, *[0.0] * (size - length)])


# ----------------------------------------------------------------------------- recursions


def subset_grammar(size: int, k: int, at_most: bool = False, length: int | None = None) -> Grammar:
    """Symbol (i, j): j of the first i elements, or up to j; the last is left or taken."""

    def options(symbol):
        i, j = symbol
        if i == 0:
            return [([], [])] if j == 0 or at_most else []
        return [([], [(i - 1, j)]), *([([(0, i - 1)], [(i - 1, j - 1)])] if j else [])]

    return (size if length is None else length, k), options


def bits_grammar(size: int, length: int | None = None) -> Grammar:
    """Symbol i: some of the first i elements; the last is left or taken."""

    def options(i):
        return [([], [i - 1]), ([(0, i - 1)], [i - 1])] if i else [([], [])]

    return size if length is None else length, options


def correlated_subset_grammar(size: int, k: int, length: int | None = None) -> Grammar:
    """Symbol (last, i, j): j of the first i elements, and whether the last of them is one, but for its own score."""

    def options(symbol):
        last, i, j = symbol
        if last == "any":
            return [([], [(False, i, j)]), *([([(0, i - 1)], [(True, i, j)])] if i else [])]
        if i == 0:
            return [([], [])] if (last, j) == (False, 0) else []
        if not last:
            return [([], [(False, i - 1, j)]), *([([(0, i - 2)], [(True, i - 1, j)])] if i > 1 else [])]
        if j == 0:
            return []
        joint = [([(1, i - 2), (0, i - 2)], [(True, i - 1, j - 1)])] if i > 1 else []
        return [([], [(False, i - 1, j - 1)]), *joint]

    return ("any", size if length is None else length, k), options


def knapsack_grammar(weights: Sequence[int], capacity: int) -> Grammar:
    """Symbol (i, c): the first i items, in a capacity of c; the last is left or packed."""

    def options(symbol):
        i, c = symbol
        if i == 0:
            return [([], [])]
        packed = [([(0, i - 1)], [(i - 1, c - weights[i - 1])])] if weights[i - 1] <= c else []
        return [([], [(i - 1, c)]), *packed]

    return (len(weights), capacity), options


def semi_markov_grammar(
    steps: int, durations: int, labels: int, form: str = "segments", length: int | None = None
) -> Grammar:
    """Symbols i, the first i steps; (i, label), with the label of the last segment, or of the one after it."""

    def sizes(i):
        return range(1, min(i, durations) + 1)

    def segments(i):
        if i == 0:
            return [([], [])]
        return [([(0, i - 1, d - 1, s)], [i - d]) for d in sizes(i) for s in range(labels)]

    def transition(symbol):
        if isinstance(symbol, int):
            return [([], [("ended", symbol, s)]) for s in range(labels)]
        what, i, s = symbol
        if what == "ended":
            return [([(0, i - 1, d - 1, s)], [("begun", i - d, s)]) for d in sizes(i)]
        return [([], [])] if i == 0 else [([(1, r, s)], [("ended", i, r)]) for r in range(labels)]

    def pairwise(symbol):
        if isinstance(symbol, int):
            return [([], [(symbol, s)]) for s in range(labels)]
        i, s = symbol
        later = [([(0, i - 1, d - 1, r, s)], [(i - d, r)]) for d in sizes(i) if d < i for r in range(labels)]
        return [*later, *([([(0, i - 1, i - 1, 0, s)], [])] if i <= durations else [])]

    def scores(i, d, s):
        inside = [(0, t, s) for t in range(i - d, i)]
        return [*inside, (1, i - d, 0, s), (1, i - 1, 1, s), (2, d - 1, s)]

    def boundaries(i):
        return [([], [])] if i == 0 else [(scores(i, d, s), [i - d]) for d in sizes(i) for s in range(labels)]

    def boundaries_and_transition(symbol):
        if isinstance(symbol, int) or symbol[0] == "begun":
            return [([(3, *part[1:]) for part in parts], tails) for parts, tails in transition(symbol)]
        _, i, s = symbol
        return [(scores(i, d, s), [("begun", i - d, s)]) for d in sizes(i)]

    options = {
        "segments": segments,
        "transition": transition,
        "pairwise": pairwise,
        "boundaries": boundaries,
        "boundaries, transition": boundaries_and_transition,
    }[form]
    return steps if length is None else length, options


def monotonic_alignment_grammar(
    rows: int, columns: int, surjective: bool = False, lengths: Sequence[int] | None = None
) -> Grammar:
    """Symbol (i, j): the first j columns in rows up to i; or with the last of them in row i, if ``surjective``."""
    n, m = lengths or (rows, columns)

    def up_to(symbol):
        i, j = symbol
        if j == 0:
            return [([], [])]
        return [*([([], [(i - 1, j)])] if i else []), ([(0, i, j - 1)], [(i, j - 1)])]

    def exactly(symbol):
        i, j = symbol
        if j == 1:
            return [([(0, 0, 0)], [])] if i == 0 else []
        return [*([([(0, i, j - 1)], [(i - 1, j - 1)])] if i else []), ([(0, i, j - 1)], [(i, j - 1)])]

    return (n - 1, m), exactly if surjective else up_to
