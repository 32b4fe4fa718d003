"""Building hypergraphs, and what is wrong with some."""

from __future__ import annotations

import dataclasses
import functools
import random

import numpy as np
import pytest
import torch

from structinf.dp import HypergraphBuilder
from structinf.dp.graph import Graph
from structinf.errors import InvalidInputError

# ----------------------------------------------------------------------------- building


def chain(count: int = 3) -> tuple[HypergraphBuilder, np.ndarray]:
    """A leaf, and nodes with a hyperedge of a part each from the one before."""
    graph = HypergraphBuilder((count,))
    nodes = graph.nodes(count + 1)
    graph.add(nodes[0])
    graph.add(nodes[1:], nodes[:-1], part=graph.parts)
    return graph, nodes


def test_numbers_of_parts_have_the_shapes_of_theta():
    assert HypergraphBuilder((2, 3)).parts.tolist() == [[0, 1, 2], [3, 4, 5]]
    one, other = HypergraphBuilder(((2,), (2, 2))).parts
    assert (one.tolist(), other.tolist()) == ([0, 1], [[2, 3], [4, 5]])
    assert HypergraphBuilder(()).parts.tolist() == 0
    one, other = HypergraphBuilder(((0, 2), ())).parts
    assert (one.shape, other.tolist()) == ((0, 2), 0)


def test_hyperedges_keep_the_order_in_which_they_were_added():
    graph = HypergraphBuilder((4,))
    goal, (a, b) = graph.node(), graph.nodes(2)
    graph.add(goal, b, part=3)
    graph.add([a, b], part=[0, 1])
    graph.add(goal, a, b, part=2)
    graph.add(goal, [a, a], [b, a])
    built = graph.build(goal)
    assert repr(built) == "Hypergraph(3 nodes, 6 hyperedges, 4 parts)"
    assert built.level.tolist() == [0, 0, 1]
    assert built.offset.tolist() == [0, 1, 2, 6]
    assert built.part.tolist() == [0, 1, 3, 2, 4, 4]
    assert built.tails.tolist() == [[3, 3], [3, 3], [1, 3], [0, 1], [0, 1], [0, 0]]
    assert built.goals.tolist() == 2
    assert (built.part.dtype, built.tails.dtype, built.offset.dtype) == (np.int32, np.int32, np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_levels_do_not_depend_on_the_order_of_adding(seed):
    draw, count = random.Random(seed), 12
    # Nodes have numbers that say nothing about their order.
    name = draw.sample(range(count), count)
    edges = [(name[head], [name[draw.randrange(head)] for _ in range(draw.randint(0, 2))]) for head in range(1, count)]
    edges += [(name[0], []), *[(name[h], [name[draw.randrange(h)]]) for h in range(1, count)]]
    draw.shuffle(edges)
    graph = HypergraphBuilder((1,))
    graph.nodes(count)
    for head, tails in edges:
        graph.add(head, *tails)
    built = graph.build(np.asarray(name))
    assert built.nodes == count
    number = dict(zip(name, built.goals.tolist(), strict=True))

    @functools.cache
    def level(node: int) -> int:
        return max(1 + max((level(t) for t in tails), default=-1) for head, tails in edges if head == node)

    for node in name:
        assert built.level[number[node]] == level(node)
    assert (np.diff(built.level) >= 0).all()
    assert (built.tails[built.tails < count] < np.repeat(built.head, 2).reshape(-1, 2)[built.tails < count]).all()


def test_only_what_a_goal_needs_is_kept():
    graph, nodes = chain(5)
    beside = graph.node()
    graph.add(beside, nodes[4], nodes[0], part=2)
    assert repr(graph.build(nodes[3])) == "Hypergraph(4 nodes, 4 hyperedges, 5 parts)"
    assert graph.build([-1, nodes[2], nodes[4]]).goals.tolist() == [-1, 2, 4]


def test_prune_drops_what_cannot_be_derived():
    graph, nodes = chain(2)
    nothing, above = graph.nodes(2)
    graph.add(above, nothing, nodes[0])
    graph.add(nodes[2], above)
    graph.add(nodes[2], nodes[0], nothing)
    with pytest.raises(InvalidInputError, match=r"node 3 is a tail, but no hyperedge leads to it; add\(3\) makes it a"):
        graph.build(nodes[2])
    built = graph.build(nodes[2], prune=True)
    assert repr(built) == "Hypergraph(3 nodes, 3 hyperedges, 2 parts)"
    with pytest.raises(
        InvalidInputError, match="goals: node 4 cannot be derived: no hyperedges lead to it from leaves"
    ):
        graph.build(above, prune=True)
    # In an array, goals without derivation stand for lengths without structures.
    assert (graph.build([[nodes[2], above]], prune=True).goals == [[2, -1]]).all()
    with pytest.raises(InvalidInputError, match="goals: node 4 cannot be derived"):
        graph.build([above, -1], prune=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.add(0, 0, 0, 0), "add: a hyperedge has at most two tails, got 3; combine tails in an extra node"),
        (lambda g: g.add(7), "add: head 7 is out of range: there are 4 nodes; use the results of node"),
        (lambda g: g.add([0, -1]), "add: head -1 is out of range"),
        (lambda g: g.add(0, 1, [[2], [9]]), "add: second tail 9 is out of range: there are 4 nodes"),
        (
            lambda g: g.add(1, 0, part=3),
            "add: part 3 is out of range: theta has 3 parts; use numbers from the builder's",
        ),
        (lambda g: g.add(1, 0, part=-1), "add: part -1 is out of range"),
        (lambda g: g.add(1.0), "add: head must be an integer, or an integer array; got float64"),
        (lambda g: g.add(1, [True]), "add: first tail must be an integer, or an integer array; got bool"),
        (lambda g: g.add(1, 0, part=0.5), "add: part must be an integer, or an integer array; got float64"),
        (
            lambda g: g.add([0, 1], [0, 1, 2]),
            r"add: head, tails and part must broadcast to a common shape, got \(2,\), ",
        ),
        (lambda g: g.build(4), r"goals: node 4 is out of range: there are 4 nodes; use the results of node\(\) and"),
        (lambda g: g.build([0, -2]), "goals: node -2 is out of range"),
        (lambda g: g.build([]), r"goals must be a node or an integer array of nodes, got \[\]"),
        (lambda g: g.build(1.0), "goals must be a node or an integer array of nodes, got 1.0"),
        (lambda g: g.build([[0], [1, 2]]), r"goals must be a node or an integer array of nodes, got \[\[0\], "),
        (lambda g: g.nodes(-3), r"nodes: a shape is a tuple of sizes of at least 0, got \(-3,\)"),
        (lambda g: g.nodes(2, 1.5), r"nodes: a shape is a tuple of sizes of at least 0, got \(2, 1.5\)"),
        (lambda g: g.build([-1, -1]), "goals must hold at least one node, got only −1"),
        (lambda g: g.build(g.node()), "goals: node 4 cannot be derived: no hyperedges lead to it from leaves"),
        (
            lambda g: g.add(0, 3) or g.build(3),
            "the hyperedges form a cycle, 1 -> 2 -> 3 -> 0 -> 1: a recursion needs an",
        ),
        (lambda g: g.add(2, 2) or g.build(3), "the hyperedges form a cycle, 2 -> 2"),
    ],
)
def test_what_is_wrong_is_said(call, message):
    graph, _ = chain()
    with pytest.raises(InvalidInputError, match=message):
        call(graph)


@pytest.mark.parametrize("shape", [3, (-1,), (2.0,), "ab", ((2,), 3), ((2,), (-1, 2)), None])
def test_what_is_no_event_shape_is_refused(shape):
    with pytest.raises(
        InvalidInputError, match=r"^event_shape: a shape is a tuple of sizes .*, or a tuple of shapes, got"
    ):
        HypergraphBuilder(shape)


@pytest.mark.parametrize("shape", [(2, 3), torch.Size([2, 3]), [2, 3], (np.int64(2), 3)])
def test_event_shapes_in_any_form(shape):
    assert HypergraphBuilder(shape).parts.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [part.shape for part in HypergraphBuilder((shape, (4,))).parts] == [(2, 3), (4,)]


@pytest.mark.parametrize(
    ("goals", "lengths", "message"),
    [
        (
            2,
            (5,),
            r"lengths must have shape \(\.\.\., 2\), since goals have 2 dimensions; got \(5,\) .*\{\"lengths\": 1\}",
        ),
        (2, (5, 3), r"lengths must have shape \(\.\.\., 2\), .*got \(5, 3\)"),
        (
            1,
            (5, 2),
            r"lengths must have shape \(\.\.\.\), since goals have 1 dimension; got \(5, 2\) .*\{\"lengths\": 0\}",
        ),
    ],
)
def test_lengths_that_index_no_goals_are_refused(goals, lengths, message):
    graph, nodes = chain()
    built = graph.build(nodes.reshape(2, 2) if goals == 2 else nodes)
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        built.goal(torch.zeros(lengths, dtype=torch.int64), 5)


@pytest.mark.parametrize("goals", [1, 2])
def test_goals_on_a_device(goals):
    graph, nodes = chain()
    table = np.append(nodes[::-1], [-1, nodes[0]])
    built = graph.build(table if goals == 1 else table.reshape(2, 3))
    lengths = torch.cartesian_prod(*[torch.tensor([-(1 << 40), -2, -1, 0, 1, 2, 3, 5, 6, 1 << 40])] * goals)
    device = torch.device("cpu")
    for given, batch in ((lengths, len(lengths)), (None, 3)):
        assert built.goal_on(device, given, batch).tolist() == built.goal(given, batch).tolist()


def test_the_only_goal_on_a_device():
    graph, nodes = chain()
    assert graph.build(nodes[-1]).goal_on(torch.device("cpu"), None, 2).tolist() == [3, 3]


def test_nothing_may_be_added():
    graph, nodes = chain()
    graph.add([], nodes[:0], part=graph.parts[:0])
    assert graph.build(nodes[-1]).edges == 4


# ----------------------------------------------------------------------------- without the builder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": [9, 0, 1, 2]}, "out of range"),
        ({"part": [-1, 0, 1, 2]}, "out of range"),
        ({"tails": [[5, 4], [0, 4], [1, 4], [2, 4]]}, "out of range"),
        ({"tails": [[-1, 4], [0, 4], [1, 4], [2, 4]]}, "out of range"),
        ({"goals": [4]}, "out of range"),
        ({"goals": [-2]}, "out of range"),
        ({"offset": [0, 1, 2, 3, 9]}, "offset must rise"),
        ({"offset": [0, 1, 1, 3, 4]}, "offset must rise"),
        ({"offset": [0, 1, 2, 3]}, "the shapes"),
        ({"tails": [[4, 4], [0, 4]]}, "the shapes"),
        ({"level": [0, 2, 1, 3]}, "topological order"),
        ({"tails": [[3, 4], [0, 4], [1, 4], [2, 4]]}, "topological order"),
    ],
)
def test_arrays_that_would_lead_compiled_loops_out_of_their_memory(changes, message):
    graph, nodes = chain()
    built = graph.build(nodes)
    arrays = {name: np.array(value, getattr(built, name).dtype) for name, value in changes.items()}
    with pytest.raises(InvalidInputError, match=f"^Hypergraph: .*{message}.*; use HypergraphBuilder"):
        dataclasses.replace(built, **arrays)


@pytest.mark.parametrize("ends", [[[0, 2]], [[-1, 0]], [[0, 1], [1, 10**7]]])
def test_ends_of_edges_that_are_no_nodes(ends):
    with pytest.raises(InvalidInputError, match=r"^graph: ends must be numbers of nodes, from 0 to 1, got \["):
        Graph(("a", "b"), np.array(ends))
