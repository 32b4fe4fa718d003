"""The sizes on which every registered oracle is checked: the one table to extend for a new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import enumerators
import enumerators_flows as flows
import enumerators_graph_paths as graph_paths
import enumerators_graphs as graphs
import enumerators_paths as paths
import enumerators_programs as programs
import enumerators_rankings as rankings
import enumerators_subsets as subsets
import enumerators_trees as trees
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
    part_cost : float
        What a part of the first tensor that differs adds to the Hamming distance: a wrong token changes two parts.
    power : int
        Of the difference, where it is not 0 or 1.
    relaxed : bool
        Whether the laws of relaxations are tried on it too, which takes longer.
    """

    name: str
    event_shape: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    structure: InstanceData | None = None
    listing: Callable[[Any], list[Structure]] | None = None
    lengths: Sequence[Any] = ()
    part_cost: float = 0.5
    power: int = 1
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


def _flow(
    edges: tuple[tuple[Any, Any], ...],
    supplies: Mapping[Any, int],
    capacities: Sequence[int],
    relaxed: bool = False,
    **options: Any,
) -> Example:
    return Example(
        "flow",
        (len(edges),),
        {"graph": edges, "supplies": supplies, "capacities": capacities, **options},
        listing=lambda _: list(flows.flows(edges, supplies, capacities)),
        relaxed=relaxed,
    )


def _transportation(supplies: Sequence[int], demands: Sequence[int], relaxed: bool = False) -> Example:
    return Example(
        "transportation",
        (len(supplies), len(demands)),
        {"supplies": supplies, "demands": demands},
        listing=lambda _: list(flows.plans(supplies, demands)),
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
        structure={"lengths": in_use},
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
        structure={"lengths": in_use},
        listing=lambda lengths: list(paths.grid_paths(rows, columns, steps, lengths)),
        lengths=in_use,
        relaxed=relaxed,
    )


def _neighbour_path(rows: int, columns: int, in_use: Sequence[tuple[int, int]], moves: str) -> Example:
    steps = graph_paths.FOUR if moves == "4-neighbours" else graph_paths.EIGHT
    return Example(
        "grid_path",
        (rows, columns),
        {"moves": moves},
        structure={"lengths": in_use},
        listing=lambda lengths: list(graph_paths.neighbour_paths(rows, columns, steps, lengths)),
        lengths=in_use,
    )


def _path(
    edges: tuple[tuple[Any, Any], ...], source: Any, target: Any, relaxed: bool = False, **options: Any
) -> Example:
    nodes = {node for edge in edges for node in edge}
    return Example(
        "path",
        (len(nodes) if options.get("scores") == "nodes" else len(edges),),
        {"graph": edges, "source": source, "target": target, **options},
        listing=lambda _: list(graph_paths.graph_paths(edges, source, target, **options)),
        relaxed=relaxed,
    )


def _path_of_terminals(edges: tuple[tuple[Any, Any], ...], pairs: Sequence[tuple[int, int]], **options: Any) -> Example:
    return Example("path", (len(edges),), {"graph": edges, **options}, structure={"terminals": pairs})


def _dtw(rows: int, columns: int, in_use: Sequence[tuple[int, int]], relaxed: bool = False) -> Example:
    steps = ((1, 1), (1, 0), (0, 1))
    return Example(
        "dtw",
        (rows, columns),
        structure={"lengths": in_use},
        listing=lambda lengths: list(paths.grid_paths(rows, columns, steps, lengths)),
        lengths=in_use,
        relaxed=relaxed,
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
        structure={"lengths": list(in_use)},
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
        structure={"lengths": list(in_use)},
        listing=lambda length: list(subsets.bits(size, length)),
        lengths=in_use,
        part_cost=1.0,
    )


def _ranking(size: int, relaxed: bool = False) -> Example:
    in_use = range(size + 1)
    return Example(
        "ranking",
        (size,),
        structure={"lengths": list(in_use)},
        listing=lambda length: list(rankings.rankings(size, length)),
        lengths=in_use,
        power=2,
        relaxed=relaxed,
    )


def _correlated_subset(size: int, k: int, relaxed: bool = False) -> Example:
    in_use = range(k, size + 1)
    return Example(
        "correlated_subset",
        ((size,), (size - 1,)),
        {"k": k},
        structure={"lengths": list(in_use)},
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


def _monotonic_alignment(
    rows: int, columns: int, in_use: Sequence[tuple[int, int]], relaxed: bool = False, **options: bool
) -> Example:
    return Example(
        "monotonic_alignment",
        (rows, columns),
        options,
        structure={"lengths": in_use},
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
    labels = 2 if options.get("labelled") else None
    return Example(
        "binary_tree",
        (words, words, *([labels] if labels else [])),
        options if rules is None else {**options, "rules": rules},
        listing=lambda length: list(trees.binary_tree(words, labels, rules, length=length)),
        lengths=range(1, words + 1),
        relaxed=relaxed,
    )


def _semi_markov(steps: int, form: str, relaxed: bool = False) -> Example:
    shapes: Mapping[str, Any] = {
        "segments": (steps, 2, 2),
        "transition": ((steps, 2, 2), (2, 2)),
        "pairwise": (steps, 2, 2, 2),
    }
    return Example(
        "semi_markov",
        shapes[form],
        {"pairwise": True} if form == "pairwise" else {},
        listing=lambda length: list(subsets.semi_markov(steps, 2, 2, form, length)),
        lengths=range(1, steps + 1),
        relaxed=relaxed,
    )


def _spanning_tree(nodes: int, relaxed: bool = False) -> Example:
    def listing(length: int | None) -> list[Structure]:
        size = length or nodes
        edges = graphs.all_pairs(size)
        return list(graphs.as_matrix(graphs.spanning_trees(size, edges), edges, nodes))

    return Example("spanning_tree", (nodes, nodes), listing=listing, lengths=range(1, nodes + 1), relaxed=relaxed)


def _matching(nodes: int, perfect: bool, relaxed: bool = False) -> Example:
    def listing(length: int | None) -> list[Structure]:
        size = nodes if length is None else length
        edges = graphs.all_pairs(size)
        return list(graphs.as_matrix(graphs.matchings(size, edges, perfect), edges, nodes))

    in_use = range(0, nodes + 1, 2 if perfect else 1)
    return Example("matching", (nodes, nodes), {"perfect": perfect}, listing=listing, lengths=in_use, relaxed=relaxed)


def _listed_edges(name: str, edges: graphs.Edges, find: Callable[..., Any], **options: Any) -> Example:
    nodes = len({node for edge in edges for node in edge})
    return Example(
        name,
        (len(edges),),
        {"edges": edges, **options},
        listing=lambda _: list(graphs.as_list(find(nodes, edges, **options), edges)),
    )


def _milp(relaxed: bool = False, solver: str = "highs", **options: Any) -> Example:
    return Example(
        "milp",
        (len(options["A"][0]),),
        {**options, "solver": solver},
        listing=lambda _: list(programs.program(**options)),
        part_cost=1.0,
        relaxed=relaxed,
    )


def _tour(nodes: int, relaxed: bool = False) -> Example:
    return Example(
        "tour",
        (nodes, nodes),
        listing=lambda length: list(programs.tour(nodes, length)),
        lengths=range(1, nodes + 1),
        relaxed=relaxed,
    )


def _constraint_model(people: int, relaxed: bool = False) -> Example:
    seating = programs.Seating(people)
    return Example(
        "constraint_model",
        (people, people),
        {"build": seating},
        listing=lambda _: list(seating.listing()),
        part_cost=1.0,
        relaxed=relaxed,
    )


_WAYS = (("home", "bus"), ("home", "train"), ("train", "bus"), ("bus", "work"), ("train", "work"))
_PIPES = (("b", "c"), ("a", "b"), ("a", "c"), ("c", "b"), ("b", "d"), ("c", "d"))
_ROADS = (("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "d"), ("d", "b"))
_MULTIGRAPH = ((0, 1), (2, 1), (1, 0), (0, 2), (3, 1), (1, 2), (3, 2))
_HEXAGON = ((0, 1), (0, 3), (1, 2), (1, 4), (1, 5), (2, 5), (3, 4), (4, 5))

TABLE = (
    _binary_tree(4, relaxed=True),
    _binary_tree(2, labelled=True),
    _binary_tree(3, labelled=True, rules=((0, 1, 0), (0, 1, 1), (1, 0, 0))),
    _semi_markov(3, "segments", relaxed=True),
    _semi_markov(3, "transition"),
    _semi_markov(2, "pairwise"),
    _dag_path(_WAYS, "home", "work", relaxed=True),
    _dag_path(((0, 1),), 0, 1),
    _dtw(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], relaxed=True),
    _dtw(3, 3, [(3, 3), (2, 3)]),
    _neighbour_path(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], "4-neighbours"),
    _neighbour_path(3, 2, [(3, 2), (1, 1), (2, 2)], "8-neighbours"),
    _path(_ROADS, "a", "d", relaxed=True),
    _path(_ROADS, "d", "a", scores="nodes"),
    _path_of_terminals(_ROADS, [(0, 3), (3, 0), (1, 2), (2, 2)], directed=False),
    _grid_path(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], relaxed=True),
    _grid_path(3, 2, [(3, 2), (1, 1), (2, 2)], diagonal=True),
    _alignment("global", affine=False, relaxed=True),
    _alignment("global", affine=True),
    _alignment("local", affine=False),
    _alignment("local", affine=True),
    _bits(3),
    _bits(1),
    _ranking(3, relaxed=True),
    _ranking(4),
    _ranking(1),
    _subset(4, 2, relaxed=True),
    _subset(3, 2, at_most=True),
    _correlated_subset(4, 2, relaxed=True),
    _knapsack((2, 3, 1, 2), 4, relaxed=True),
    _monotonic_alignment(2, 3, [(2, 3), (1, 2), (2, 2)], relaxed=True),
    _monotonic_alignment(2, 3, [(2, 3), (1, 2), (2, 2)], surjective=True),
    _projective_tree(3, relaxed=True),
    _projective_tree(3, single_root=True),
    _projective_tree(2, labelled=True),
    _flow(_PIPES, {"a": 2, "d": -2}, (1, 2, 2, 1, 1, 2), relaxed=True),
    _flow(_PIPES, {"a": 2, "d": -2}, (1, 2, 2, 1, 1, 2), solver="ortools"),
    _flow(((0, 0), (0, 1), (0, 1)), {0: 1, 1: -1}, (1, 1, 1)),
    _transportation((1, 2), (2, 1, 1), relaxed=True),
    _transportation((3, 2), (1, 2, 2)),
    _transportation((3, 3), (1, 2, 0)),
    _transportation((2,), (2,)),
    _categorical(4, relaxed=True),
    _categorical(1),
    _chain(3, 2, "shared", relaxed=True),
    _chain(4, 2, "steps"),
    _chain(3, 2, "edges"),
    _chain(1, 3, "shared"),
    _chain(1, 3, "edges"),
    _chain(3, 1, "shared"),
    _assignment(3, 3, relaxed=True),
    _assignment(2, 4),
    _assignment(3, 2),
    _assignment(2, 3, allow_unmatched=True),
    _assignment(1, 1),
    _arborescence(3, single_root=False, relaxed=True),
    _arborescence(3, single_root=True),
    _arborescence(1, single_root=True),
    _milp(A=((2, 1, -1), (1, 1, 1)), lower=(0, 1), upper=(2, 2), solver="cp_sat", relaxed=True),
    _milp(A=((2, 1, 3, 1), (-1, 0, 0, 1)), upper=(4, 0)),
    _tour(3, relaxed=True),
    _tour(4),
    _constraint_model(3, relaxed=True),
    _constraint_model(4),
    _spanning_tree(4, relaxed=True),
    _spanning_tree(2),
    _listed_edges("spanning_tree", _MULTIGRAPH, graphs.spanning_trees),
    _matching(4, perfect=False, relaxed=True),
    _matching(4, perfect=True),
    _listed_edges("matching", _HEXAGON, graphs.matchings, perfect=True),
    _listed_edges("matching", _HEXAGON, graphs.matchings, perfect=False),
)

REGISTERED = structinf.list_oracles()

EXAMPLES = [example for example in TABLE if example.name in REGISTERED]

MISSING = sorted(set(REGISTERED) - {example.name for example in TABLE})


def one_for_each(
    kind: Callable[[Oracle], Any], wanted: Callable[[Example], bool] = lambda example: example.relaxed
) -> list[Example]:
    """The first example of each ``kind`` of oracle, of those ``wanted``."""
    return list({kind(example.oracle()): example for example in reversed(EXAMPLES) if wanted(example)}.values())


def parametrize(wanted: Callable[[Example], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run a test for each example that is ``wanted``, as its argument ``example``."""
    return pytest.mark.parametrize("example", list(filter(wanted, EXAMPLES)), ids=str)
