"""Sizes of structures that are no dynamic programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import enumerators
import enumerators_flows as flows
import enumerators_graph_paths as graph_paths
import enumerators_graphs as graphs
import enumerators_integer_programs as programs
import enumerators_rankings as rankings
from enumerators import Structure
from oracle_example import Example


def _assignment(rows: int, columns: int, relaxed: bool = False, **options: Any) -> Example:
    in_use = [(rows, columns), (rows - 1, columns), (rows, columns - 1), (1, 1), (0, columns)]
    by_score = options.get("allow_unmatched") == "by_score"
    return Example(
        "assignment",
        (rows, columns),
        options,
        instance_data={"lengths": in_use},
        listing=lambda lengths: list(enumerators.assignment(rows, columns, lengths, by_score)),
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


def _neighbour_path(rows: int, columns: int, in_use: Sequence[tuple[int, int]], moves: str) -> Example:
    steps = graph_paths.FOUR if moves == "4-neighbours" else graph_paths.EIGHT
    return Example(
        "grid_path",
        (rows, columns),
        {"moves": moves},
        instance_data={"lengths": in_use},
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
    return Example("path", (len(edges),), {"graph": edges, **options}, instance_data={"terminals": pairs})


def _ranking(size: int, relaxed: bool = False) -> Example:
    in_use = range(size + 1)
    return Example(
        "ranking",
        (size,),
        instance_data={"lengths": list(in_use)},
        listing=lambda length: list(rankings.rankings(size, length)),
        lengths=in_use,
        power=2,
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


_PIPES = (("b", "c"), ("a", "b"), ("a", "c"), ("c", "b"), ("b", "d"), ("c", "d"))
_ROADS = (("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "d"), ("d", "b"))
_MULTIGRAPH = ((0, 1), (2, 1), (1, 0), (0, 2), (3, 1), (1, 2), (3, 2))
_HEXAGON = ((0, 1), (0, 3), (1, 2), (1, 4), (1, 5), (2, 5), (3, 4), (4, 5))

COMBINATIONS = (
    _neighbour_path(2, 3, [(2, 3), (1, 2), (2, 1), (1, 1)], "4-neighbours"),
    _neighbour_path(3, 2, [(3, 2), (1, 1), (2, 2)], "8-neighbours"),
    _path(_ROADS, "a", "d", relaxed=True),
    _path(_ROADS, "d", "a", scores="nodes"),
    _path_of_terminals(_ROADS, [(0, 3), (3, 0), (1, 2), (2, 2)], directed=False),
    _ranking(3, relaxed=True),
    _ranking(4),
    _ranking(1),
    _flow(_PIPES, {"a": 2, "d": -2}, (1, 2, 2, 1, 1, 2), relaxed=True),
    _flow(_PIPES, {"a": 2, "d": -2}, (1, 2, 2, 1, 1, 2), solver="ortools"),
    _flow(((0, 0), (0, 1), (0, 1)), {0: 1, 1: -1}, (1, 1, 1)),
    _transportation((1, 2), (2, 1, 1), relaxed=True),
    _transportation((3, 2), (1, 2, 2)),
    _transportation((3, 3), (1, 2, 0)),
    _transportation((2,), (2,)),
    _assignment(3, 3, relaxed=True),
    _assignment(2, 4),
    _assignment(3, 2),
    _assignment(2, 3, allow_unmatched=True),
    _assignment(3, 2, allow_unmatched="by_score"),
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
