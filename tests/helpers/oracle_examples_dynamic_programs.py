"""Sizes of dynamic programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import enumerators
import enumerators_paths as paths
import enumerators_subsets as subsets
import enumerators_trees as trees
from enumerators import Structure
from oracle_example import Example
from structinf_oracles.common.step_patterns import PATTERNS


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
        instance_data={"lengths": list(lengths)},
        listing=lambda length: list(enumerators.chain(steps, states, form, length)),
        lengths=lengths,
        relaxed=relaxed,
    )


def _categorical(count: int, relaxed: bool = False) -> Example:
    return Example("categorical", (count,), listing=lambda _: list(enumerators.categorical(count)), relaxed=relaxed)


def _alignment(mode: str, affine: bool, relaxed: bool = False) -> Example:
    in_use = [(2, 2), (1, 1), (2, 1)]
    return Example(
        "needleman_wunsch",
        ((2, 2), (2, 2) if affine else (2,)),
        {"mode": mode, "affine": affine},
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(paths.alignments(2, 2, mode, affine, lengths)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _grid_path(
    rows: int, columns: int, in_use: Sequence[tuple[int, int]], diagonal: bool = False, relaxed: bool = False
) -> Example:
    steps = ((1, 1), (1, 0), (0, 1)) if diagonal else ((1, 0), (0, 1))
    return Example(
        "grid_path",
        (rows, columns),
        {"moves": "with-diagonal"} if diagonal else {},
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(paths.grid_paths(rows, columns, steps, lengths)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _dtw(rows: int, columns: int, in_use: Sequence[tuple[int, int]], relaxed: bool = False) -> Example:
    steps = ((1, 1), (1, 0), (0, 1))
    return Example(
        "dtw",
        (rows, columns),
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(paths.grid_paths(rows, columns, steps, lengths)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _warping(pattern: str, in_use: Sequence[tuple[int, int]], **ends: bool) -> Example:
    return Example(
        "dtw",
        (2, 3),
        {"step_pattern": pattern, **ends},
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(paths.warping_paths(2, 3, PATTERNS[pattern], lengths, **ends)),
        lengths=in_use,
    )


def _dag_path(edges: tuple[tuple[Any, Any], ...], source: Any, target: Any, relaxed: bool = False) -> Example:
    return Example(
        "dag_path",
        (len(edges),),
        {"graph": edges},
        listing=lambda _: list(paths.dag_paths(edges, source, target)),
        relaxed=relaxed,
    )


def _subset(size: int, k: int, relaxed: bool = False, **options: Any) -> Example:
    in_use = range(size if options else k, size + 1)
    return Example(
        "subset",
        (size,),
        {"k": k, **options},
        instance_data={"lengths": list(in_use)},
        listing=lambda length: list(subsets.subset(size, k, length=length, **options)),
        lengths=in_use,
        part_cost=1.0,
        relaxed=relaxed,
    )


def _bits(size: int) -> Example:
    in_use = range(size + 1)
    return Example(
        "bits",
        (size,),
        instance_data={"lengths": list(in_use)},
        listing=lambda length: list(subsets.bits(size, length)),
        lengths=in_use,
        part_cost=1.0,
    )


def _correlated_subset(size: int, k: int, relaxed: bool = False) -> Example:
    in_use = range(k, size + 1)
    return Example(
        "correlated_subset",
        ((size,), (size - 1,)),
        {"k": k},
        instance_data={"lengths": list(in_use)},
        listing=lambda length: list(subsets.correlated_subset(size, k, length)),
        lengths=in_use,
        part_cost=1.0,
        relaxed=relaxed,
    )


def _knapsack(weights: tuple[int, ...], capacity: int, relaxed: bool = False) -> Example:
    return Example(
        "knapsack",
        (len(weights),),
        {"weights": weights, "capacity": capacity},
        listing=lambda _: list(subsets.knapsack(weights, capacity)),
        part_cost=1.0,
        relaxed=relaxed,
    )


def _markov_field(
    cardinalities: tuple[int, ...], factors: tuple[tuple[int, ...], ...], relaxed: bool = False
) -> Example:
    shapes = tuple(tuple(cardinalities[v] for v in factor) for factor in factors)

    def distance(y: Structure, z: Structure) -> float:
        """The number of variables whose values differ."""
        values = [{v: i for t, factor in zip(tables, factors, strict=True) for v, i in
                   zip(factor, (int(a[0]) for a in t.nonzero()), strict=True)} for tables in (y, z)]  # fmt: skip
        return sum(values[0][v] != values[1][v] for v in range(len(cardinalities)))

    return Example(
        "markov_field",
        shapes,
        {"cardinalities": cardinalities, "factors": factors},
        listing=lambda _: list(subsets.markov_field(cardinalities, factors)),
        distance=distance,
        relaxed=relaxed,
    )


def _monotonic_alignment(
    rows: int, columns: int, in_use: Sequence[tuple[int, int]], relaxed: bool = False, **options: bool
) -> Example:
    return Example(
        "monotonic_alignment",
        (rows, columns),
        options,
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(subsets.monotonic_alignment(rows, columns, lengths=lengths, **options)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _projective_tree(words: int, relaxed: bool = False, **options: bool) -> Example:
    labels = 2 if options.get("labelled") else None
    single_root = options.get("single_root", False)
    return Example(
        "projective_tree",
        (words + 1, words + 1, *([labels] if labels else [])),
        options,
        listing=lambda length: list(trees.projective_tree(words, single_root, labels, length)),
        lengths=range(1, words + 1),
        relaxed=relaxed,
    )


def _binary_tree(words: int, relaxed: bool = False, rules: trees.Rules | None = None, **options: Any) -> Example:
    labels, steps = 2 if options.get("labelled") else None, options.get("unary_rules", ())
    return Example(
        "binary_tree",
        (words, words, *([labels + len(steps)] if labels else [])),
        options if rules is None else {**options, "rules": rules},
        listing=lambda length: list(trees.binary_tree(words, labels, rules, length=length, steps=steps)),
        lengths=range(1, words + 1),
        relaxed=relaxed,
    )


def _semi_markov(steps: int, form: str, relaxed: bool = False) -> Example:
    shapes: Mapping[str, Any] = {
        "segments": (steps, 2, 2),
        "transition": ((steps, 2, 2), (2, 2)),
        "pairwise": (steps, 2, 2, 2),
        "boundaries": ((steps, 2), (steps, 2, 2), (2, 2)),
        "boundaries, transition": ((steps, 2), (steps, 2, 2), (2, 2), (2, 2)),
    }
    return Example(
        "semi_markov",
        shapes[form],
        {"pairwise": True} if form == "pairwise" else {},
        listing=lambda length: list(subsets.semi_markov(steps, 2, 2, form, length)),
        lengths=range(1, steps + 1),
        relaxed=relaxed,
    )


_WAYS = (("home", "bus"), ("home", "train"), ("train", "bus"), ("bus", "work"), ("train", "work"))

PROGRAMS = (
    _binary_tree(4, relaxed=True),
    _binary_tree(2, labelled=True),
    _binary_tree(3, labelled=True, rules=((0, 1, 0), (0, 1, 1), (1, 0, 0))),
    _binary_tree(2, labelled=True, rules=((0, 1, 0), (1, 0, 0)), unary_rules=((0, 1), (1, 0))),
    _semi_markov(3, "segments", relaxed=True),
    _semi_markov(3, "transition"),
    _semi_markov(2, "pairwise"),
    _semi_markov(3, "boundaries"),
    _semi_markov(2, "boundaries, transition"),
    _dag_path(_WAYS, "home", "work", relaxed=True),
    _dag_path(((0, 1),), 0, 1),
    _dtw(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], relaxed=True),
    _dtw(3, 3, [(3, 3), (2, 3)]),
    _warping("asymmetric", [(2, 3), (1, 2)], open_begin=True, open_end=True),
    _grid_path(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], relaxed=True),
    _grid_path(3, 2, [(3, 2), (1, 1), (2, 2)], diagonal=True),
    _alignment("global", affine=False, relaxed=True),
    _alignment("global", affine=True),
    _alignment("local", affine=False),
    _alignment("local", affine=True),
    _alignment("overlap", affine=True),
    _bits(3),
    _bits(1),
    _subset(4, 2, relaxed=True),
    _subset(3, 2, at_most=True),
    _correlated_subset(4, 2, relaxed=True),
    _knapsack((2, 3, 1, 2), 4, relaxed=True),
    _markov_field((2, 2, 2), ((0, 1), (1, 2), (2, 0)), relaxed=True),
    _markov_field((2, 1, 3, 2), ((2, 0), (1,), (3, 2))),
    _monotonic_alignment(2, 3, [(2, 3), (1, 2), (2, 2)], relaxed=True),
    _monotonic_alignment(2, 3, [(2, 3), (1, 2), (2, 2)], surjective=True),
    _projective_tree(3, relaxed=True),
    _projective_tree(3, single_root=True),
    _projective_tree(2, labelled=True),
    _categorical(4, relaxed=True),
    _categorical(1),
    _chain(3, 2, "shared", relaxed=True),
    _chain(4, 2, "steps"),
    _chain(3, 2, "edges"),
    _chain(1, 3, "shared"),
    _chain(1, 3, "edges"),
    _chain(3, 1, "shared"),
)
