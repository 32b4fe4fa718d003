"""Every projective dependency tree and every binary tree over a few words, and their recursions as grammars.

The lists are written from the definitions alone. The grammars say in which order the recursions choose, on which DP_Ω
depends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from enumerators import Structure, arborescence
from hypergraph_reference import Grammar

Rules = Sequence[tuple[int, int, int]]

# ----------------------------------------------------------------------------- structures


def projective_tree(
    words: int, single_root: bool = False, labels: int | None = None, length: int | None = None
) -> Iterator[Structure]:
    """Trees in which all words between a word and its head descend from that head."""
    length = words if length is None else length
    nodes = range(1, length + 1)
    for (tree,) in arborescence(length + 1, single_root):
        heads = [int(tree[:, m].argmax()) for m in nodes]
        if any(h not in _ancestors(k, heads) for m, h in zip(nodes, heads, strict=True) for k in _between(m, h)):
            continue
        for names in itertools.product(range(labels or 1), repeat=length):
            y = np.zeros((words + 1, words + 1, labels or 1))
            for m, h, name in zip(nodes, heads, names, strict=True):
                y[h, m, name] = 1
            yield (y if labels else y[..., 0],)


def _ancestors(word: int, heads: Sequence[int]) -> list[int]:
    found = [word]
    while found[-1]:
        found.append(heads[found[-1] - 1])
    return found[1:]


def _between(a: int, b: int) -> range:
    return range(min(a, b) + 1, max(a, b))


def binary_tree(
    words: int,
    labels: int | None = None,
    rules: Rules | None = None,
    roots: Sequence[int] | None = None,
    length: int | None = None,
    steps: Sequence[tuple[int, int]] = (),
) -> Iterator[Structure]:
    """All single words, and as many longer spans as there are gaps between words, of which no two cross.

    With unary ``steps``, the names after the labels are those of the steps.
    """
    top, bottom = ([*range(labels or 1), *(step[k] for step in steps)] for k in (0, 1))
    length = words if length is None else length
    singles = [(i, i) for i in range(length)]
    longer = list(itertools.combinations(range(length), 2))
    for chosen in itertools.combinations(longer, length - 1):
        if any(a < c <= b < d for (a, b), (c, d) in itertools.product(chosen, repeat=2)):
            continue
        spans = [*singles, *chosen]
        for names in itertools.product(range(len(top)), repeat=len(spans)):
            label = dict(zip(spans, names, strict=True))
            if roots is not None and top[label[0, length - 1]] not in roots:
                continue
            triples = [_triple(span, label) for span in chosen]
            if rules is not None and not all((bottom[a], top[b], top[c]) in rules for a, b, c in triples):
                continue
            y = np.zeros((words, words, len(top)))
            for (i, j), name in label.items():
                y[i, j, name] = 1
            yield (y if labels else y[..., 0],)


def _triple(span: tuple[int, int], label: dict[tuple[int, int], int]) -> tuple[int, int, int]:
    """The labels of a span and of the two that it splits into."""
    i, j = span
    (k,) = [k for k in range(i, j) if (i, k) in label and (k + 1, j) in label]
    return label[i, j], label[i, k], label[k + 1, j]


# ----------------------------------------------------------------------------- recursions


def projective_tree_grammar(
    words: int, single_root: bool = False, labels: int | None = None, length: int | None = None
) -> Grammar:
    """Spans of nodes i..j: "right" and "left" of an arc between the ends and all below it, "inside" it without its
    score, "open right" and "open left" of all that i has to its right, up to j, or j to its left, down to i."""

    def part(h, m):
        return [[(0, h, m, *name)] for name in ([(label,) for label in range(labels)] if labels else [()])]

    def options(symbol):
        what, i, j = symbol
        if i == j:
            return [([], [])]
        if what == "right":
            return [(arc, [("inside", i, j)]) for arc in part(i, j)]
        if what == "left":
            return [(arc, [("inside", i, j)]) for arc in part(j, i)]
        if what == "inside":
            last = 1 if single_root and i == 0 else j
            return [([], [("open right", i, k), ("open left", k + 1, j)]) for k in range(i, last)]
        if what == "open right":
            return [([], [("right", i, k), ("open right", k, j)]) for k in range(i + 1, j + 1)]
        return [([], [("open left", i, k), ("left", k, j)]) for k in range(i, j)]

    return ("open right", 0, words if length is None else length), options


def binary_tree_grammar(
    words: int,
    labels: int | None = None,
    rules: Rules | None = None,
    roots: Sequence[int] | None = None,
    length: int | None = None,
    steps: Sequence[tuple[int, int]] = (),
) -> Grammar:
    """Spans i..j with a label if there are rules; "split" before its label is scored."""
    # The name of a part, the label of its span, and the label that splits.
    names = [((label,), (label,), (label,)) for label in range(labels)] if labels else [((), (), ())]
    names += [((len(names) + u,), (parent,), (child,)) for u, (parent, child) in enumerate(steps)]

    def options(symbol):
        what, i, j, name = symbol
        if what == "root":
            return [([(0, i, j, *n)], _below(i, j, b)) for n, t, b in names if roots is None or t[0] in roots]
        if what == "span":
            return [([(0, i, j, *n)], _below(i, j, b)) for n, t, b in names if rules is None or t == name]
        triples = [(name, (), ())] if rules is None else [tuple((x,) for x in rule) for rule in rules]
        return [
            ([], [("span", i, k, left), ("span", k + 1, j, right)])
            for k in range(i, j)
            for parent, left, right in triples
            if parent == name
        ]

    def _below(i, j, name):
        return [("split", i, j, name if rules is not None else ())] if i < j else []

    return ("root", 0, (words if length is None else length) - 1, ()), options
