"""Every structure of the built-in oracles by itertools, and sums over them in plain Python floats.

Written from the definitions alone; shares nothing with the library but the shapes of θ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

Structure = tuple[np.ndarray, ...]
"""One array for each tensor of θ."""


# ----------------------------------------------------------------------------- structures


def categorical(count: int) -> Iterator[Structure]:
    """One of ``count``."""
    for chosen in range(count):
        y = np.zeros(count)
        y[chosen] = 1
        yield (y,)


def chain(steps: int, states: int, form: str = "shared", length: int | None = None) -> Iterator[Structure]:
    """Sequences of tags. ``form`` of the transitions: "shared" (S, S), "steps" (T-1, S, S), or "edges" alone."""
    length = steps if length is None else length
    # By edge scores alone, a single token is one structure, whatever its tag.
    choices = range(1 if form == "edges" and length == 1 else states)
    for tags in itertools.product(choices, repeat=length):
        unary = np.zeros((steps, states))
        edges = np.zeros((steps - 1, states, states))
        for t, tag in enumerate(tags):
            unary[t, tag] = 1
        for t, (a, b) in enumerate(itertools.pairwise(tags)):
            edges[t, a, b] = 1
        yield {"shared": (unary, edges.sum(0)), "steps": (unary, edges), "edges": (edges,)}[form]


def assignment(
    rows: int, columns: int, lengths: tuple[int, int] | None = None, by_score: bool = False
) -> Iterator[Structure]:
    """Matchings of all of the smaller side, or all matchings if ``by_score``, of the rows and columns in use."""
    n, m = lengths or (rows, columns)
    for choice in itertools.product(range(-1, m), repeat=n):
        used = [c for c in choice if c >= 0]
        if len(set(used)) < len(used) or (len(used) < min(n, m) and not by_score):
            continue
        y = np.zeros((rows, columns))
        for r, c in enumerate(choice):
            if c >= 0:
                y[r, c] = 1
        yield (y,)


def arborescence(nodes: int, single_root: bool, length: int | None = None) -> Iterator[Structure]:
    """Trees out of node 0 over words 1..length: a head each, no cycle; one child of the root if ``single_root``."""
    words = range(1, nodes if length is None else length + 1)
    for heads in itertools.product(range(len(words) + 1), repeat=len(words)):
        tree = dict(zip(words, heads, strict=True))
        if any(tree[m] == m for m in words) or not all(_leads_to_root(m, tree) for m in words):
            continue
        if single_root and list(heads).count(0) != 1:
            continue
        y = np.zeros((nodes, nodes))
        for m, h in tree.items():
            y[h, m] = 1
        yield (y,)


def _leads_to_root(word: int, tree: dict[int, int]) -> bool:
    seen = set()
    while word and word not in seen:
        seen.add(word)
        word = tree[word]
    return word == 0


# ----------------------------------------------------------------------------- sums over them


def score(theta: Sequence[np.ndarray], y: Structure) -> float:
    """⟨θ, y⟩; −inf if a part of −inf is used."""
    used = [t[z != 0] * z[z != 0] for t, z in zip(theta, y, strict=True)]
    return math.fsum(np.concatenate([u.ravel() for u in used]).tolist()) if _finite(used) else -math.inf


def best(theta: Sequence[np.ndarray], structures: Sequence[Structure]) -> float:
    """The highest score."""
    return max(score(theta, y) for y in structures)


def log_partition(theta: Sequence[np.ndarray], structures: Sequence[Structure]) -> float:
    """log Σ exp⟨θ, y⟩."""
    top = best(theta, structures)
    return top + math.log(math.fsum(math.exp(score(theta, y) - top) for y in structures))


def mean(theta: Sequence[np.ndarray], structures: Sequence[Structure]) -> Structure:
    """Σ p(y) y with p(y) ∝ exp⟨θ, y⟩."""
    total = log_partition(theta, structures)
    weights = [math.exp(score(theta, y) - total) for y in structures]
    return tuple(sum(w * y[i] for w, y in zip(weights, structures, strict=True)) for i in range(len(theta)))


def projection(theta: Sequence[np.ndarray], structures: Sequence[Structure]) -> Structure:
    """argmin ‖θ − μ‖² over conv(structures): non-negative least squares, with a heavy row that says Σ p = 1."""
    allowed = [y for y in structures if score(theta, y) > -math.inf]
    rows = np.array([np.concatenate([t.ravel() for t in y]) for y in allowed])
    target = np.concatenate([np.where(np.isneginf(t), 0.0, t).ravel() for t in theta])
    weights, _ = nnls(np.vstack([rows.T, np.full(len(rows), 1e4)]), np.append(target, 1e4))
    point = weights @ rows / weights.sum()
    pieces = np.split(point, np.cumsum([t.size for t in theta])[:-1])
    return tuple(piece.reshape(t.shape) for piece, t in zip(pieces, theta, strict=True))


def _finite(values: Sequence[np.ndarray]) -> bool:
    return all(np.isfinite(v).all() for v in values)
