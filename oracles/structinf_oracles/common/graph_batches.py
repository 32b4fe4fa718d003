"""Batches of different graphs: checks of the graph of each instance, and paths in all graphs at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder
from structinf.dp.graph_batch import GraphBatch
from structinf.dp.paths import DAG
from structinf.errors import InvalidInputError
from structinf.oracle import Oracle
from structinf.shapes import Bool, Int
from structinf.validation import check_instances, check_lengths_later

from .labels import reject_labels

__all__ = [
    "PathBatch",
    "check_edge_labels",
    "check_graph_index",
    "counts_of_edges",
    "edges_in_use",
    "graphs_of",
    "numbers_of_nodes",
]


def graphs_of(oracle: Oracle) -> GraphBatch:
    """Return the batch of graphs of an oracle, its option ``graph`` or ``edges``."""
    options = vars(oracle)
    return options["graph"] if "graph" in options else options["edges"]


def check_graph_index(oracle: Oracle, theta: Tensor) -> None:
    """Raise InvalidInputError unless θ has the padded edges, and ``graph_index`` names graphs of the batch."""
    graphs = graphs_of(oracle)
    index = oracle.bound["graph_index"]
    if theta.shape[1] != graphs.most_edges:
        raise InvalidInputError(
            f"theta: {oracle.label()} takes a score for each of up to {graphs.most_edges} edges of a graph, shape "
            f"(..., {graphs.most_edges}), got {theta.shape[1]} after the batch dimensions; GraphBatch.pad "
            "returns such scores"
        )
    if index.is_floating_point() or index.dtype is torch.bool:
        raise InvalidInputError(f"graph_index must hold integers, got {index.dtype}")
    check_instances("graph_index", index, len(theta))
    if check_lengths_later(index, 0, len(graphs) - 1):
        return
    wrong = (index < 0) | (index >= len(graphs))
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"graph_index must lie between 0 and {len(graphs) - 1}, got {int(index[place])} at batch index {place}"
        )


def check_edge_labels(oracle: Oracle, labels: Tensor, used: Tensor, count: int, what: str) -> None:
    """Raise InvalidInputError unless the ``used`` labels (B, L) number edges of the graph of their instance.

    Parameters
    ----------
    oracle : Oracle
        The oracle, with one graph or a batch of graphs.
    labels : (B, L) integer Tensor
        The labels.
    used : (B, L) bool Tensor
        Whether a label is no padding.
    count : int
        The number of parts of θ.
    what : str
        The name of the parts in the message.
    """
    size: int | Tensor = count
    reason = f"{what} must lie between 0 and {count - 1}"
    if isinstance(graphs_of(oracle), GraphBatch):
        size = counts_of_edges(oracle, labels.device).unsqueeze(1)
        reason = f"{what} must be numbers of edges of the instance's graph"
    reject_labels(used & ((labels < 0) | (labels >= size)), labels, reason, defers=True)


def edges_in_use(oracle: Oracle, theta: Tensor) -> Bool[Tensor, "rows edges"] | None:
    """Mask the edges of the graph of each instance; None if all graphs have the same number of edges."""
    counts = graphs_of(oracle).edge_counts
    if (counts == theta.shape[1]).all():
        return None
    mask = _edge_masks(graphs_of(oracle), theta.device)[oracle.bound["graph_index"].to(theta.device)]
    return mask.any(0, keepdim=True) if len(theta) == 1 != len(mask) else mask


def counts_of_edges(oracle: Oracle, device: torch.device) -> Tensor:
    """Return the number of edges of the graph of each instance, (B,)."""
    return _edge_counts(graphs_of(oracle), device)[oracle.bound["graph_index"].to(device)]


@lru_cache(maxsize=64)
def _edge_counts(graphs: GraphBatch, device: torch.device) -> Tensor:
    return torch.tensor(graphs.edge_counts, device=device)


@lru_cache(maxsize=64)
def _edge_masks(graphs: GraphBatch, device: torch.device) -> Bool[Tensor, "graphs edges"]:
    """Return which of the padded edges each graph has."""
    return torch.from_numpy(np.arange(graphs.most_edges) < graphs.edge_counts[:, None]).to(device)


def numbers_of_nodes(graphs: GraphBatch, option: str, nodes: Any) -> Int[np.ndarray, " graphs"]:
    """Return the number of a node of each graph, (G,), for names of nodes, one for each graph."""
    if isinstance(nodes, str) or not hasattr(nodes, "__len__") or len(nodes) != len(graphs):
        raise InvalidInputError(
            f"{option} must hold a node for each of the {len(graphs)} graphs of the batch, got {nodes!r}"
        )
    if graphs.names is None:
        numbers = np.asarray(nodes if not isinstance(nodes, Tensor) else nodes.cpu())
        if numbers.dtype.kind not in "iu" or ((numbers < 0) | (numbers >= graphs.node_counts)).any():
            raise InvalidInputError(f"{option} must hold numbers of nodes of each graph, from 0, got {nodes!r}")
        return numbers.astype(np.int64)
    try:
        return np.array([_number_of_node(graphs, i, node, option) for i, node in enumerate(nodes)], np.int64)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}, in the batch of graphs") from None


def _number_of_node(graphs: GraphBatch, graph: int, node: Any, option: str) -> int:
    names: Any = graphs.names
    is_own_number = type(node) is int and 0 <= node < len(names[graph]) and names[graph][node] == node
    return node if is_own_number else graphs[graph].number(node, option)


class PathBatch(NamedTuple):
    """Acyclic graphs with numbers of a source and a target each, (G,)."""

    graphs: GraphBatch
    source: np.ndarray
    target: np.ndarray

    @classmethod
    def of(cls, graph: Any, source: Any, target: Any) -> PathBatch:
        """Convert and check the options of ``dag_path``; the default terminals are as for one graph."""
        graphs = graph if isinstance(graph, GraphBatch) else GraphBatch.of(graph, directed=True)
        if not graphs.directed:
            raise InvalidInputError("graph: paths need directed graphs, got a batch of undirected graphs")
        tail, head = graphs.edges_of_all_nodes.T
        nodes = int(graphs.node_counts.sum())
        if (empty := np.flatnonzero(graphs.node_counts == 0)).size:
            raise InvalidInputError(f"graph {empty[0]} of the batch must have at least one node, got none")
        _check_acyclic(graphs, tail, head, nodes)
        entered, left = (np.bincount(side, minlength=nodes) > 0 for side in (head, tail))
        alone = np.repeat(graphs.node_counts == 1, graphs.node_counts)
        ends = [
            _only(graphs, "source", "no edge leads to", ~entered & (left | alone))
            if source is None
            else numbers_of_nodes(graphs, "source", source),
            _only(graphs, "target", "no edge leaves", ~left & (entered | alone))
            if target is None
            else numbers_of_nodes(graphs, "target", target),
        ]
        found = cls(graphs, *ends)
        found.check_paths()
        return found

    def check_paths(self) -> None:
        """Raise InvalidInputError unless a path leads from the source to the target of each graph."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        (tail, head), nodes = self.graphs.edges_of_all_nodes.T, int(self.graphs.node_counts.sum())
        if not self.graphs.directed:
            tail, head = np.append(tail, head), np.append(head, tail)
        # One more node leads to all sources.
        first = self.graphs.node_offset
        start, end = np.append(tail, np.full(len(first), nodes)), np.append(head, first + self.source)
        matrix = csr_array((np.ones(len(start)), (start, end)), shape=(nodes + 1, nodes + 1))
        reached = np.zeros(nodes + 1, np.bool_)
        reached[breadth_first_order(matrix, nodes, return_predecessors=False)] = True
        if not reached[first + self.target].all():
            graph = int(np.flatnonzero(~reached[first + self.target])[0])
            names: Sequence[Hashable] = self.graphs[graph].nodes
            raise InvalidInputError(
                f"target: no path leads from {names[self.source[graph]]!r} to {names[self.target[graph]]!r} in graph "
                f"{graph} of the batch"
            )

    def hypergraph(self) -> Hypergraph:
        """Return the hypergraph of the paths of all graphs, with the goals (G,) and a component for each graph.

        Equal graphs share a component, so that compiled loops process their instances together.
        """
        graphs, builder = self.graphs, HypergraphBuilder((self.graphs.most_edges,))
        ends = [self.source.tolist(), self.target.tolist(), graphs.node_counts.tolist()]
        pieces = np.split(graphs.edges, graphs.edge_offset[1:])
        keys = [(*each, piece.tobytes()) for *each, piece in zip(*ends, pieces, strict=True)]
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        like = np.array([first[key] for key in keys])  # the first equal graph of each graph
        used = like == np.arange(len(keys))
        node = builder.nodes(int(graphs.node_counts.sum()))
        edges = used[graphs.graph_of_edge]
        start, end = graphs.edges_of_all_nodes[edges].T
        builder.add(node[(graphs.node_offset + self.source)[used]])
        builder.add(node[end], node[start], part=builder.parts[graphs.place_of_edge[edges]])
        goals = node[(graphs.node_offset + self.target)[like]]
        return builder.build(goals, prune=True, components=bool(used.sum() > 1))

    def order_of_edges(self, paths: Hypergraph) -> Int[np.ndarray, "graphs columns"]:
        """Return the edges of each graph in an order in which paths use them, with −1 in a last column."""
        graph_of_node = np.full(paths.nodes, -1)
        begin = np.zeros(paths.nodes, np.int64) if paths.begin is None else paths.begin
        first, which = np.unique(begin[paths.goals], return_inverse=True)
        graph_of_node[:] = np.searchsorted(first, begin)
        scored = paths.part < paths.parts
        rank = np.full((len(first), paths.parts), paths.nodes)
        head = paths.head[scored]
        rank[graph_of_node[head], paths.part[scored]] = paths.level[head]
        order = rank.argsort(1, kind="stable")[which]
        return np.pad(order, ((0, 0), (0, 1)), constant_values=-1)


def _check_acyclic(graphs: GraphBatch, tail: np.ndarray, head: np.ndarray, nodes: int) -> None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    matrix = csr_array((np.ones(len(tail)), (tail, head)), shape=(nodes, nodes))
    count, component = connected_components(matrix, connection="strong")
    on_cycle = component[tail] == component[head]
    if count == nodes and not on_cycle.any():
        return
    graph = int(graphs.graph_of_edge[on_cycle][0])
    try:
        graphs.single(graph, DAG)
    except InvalidInputError as error:
        raise InvalidInputError(f"graph {graph} of the batch: {error}") from None


def _only(graphs: GraphBatch, name: str, why: str, candidates: np.ndarray) -> Int[np.ndarray, " graphs"]:
    """Return the only candidate of each graph, (G,), for ``candidates`` among the nodes of all graphs."""
    graph_of_node = np.repeat(np.arange(len(graphs)), graphs.node_counts)
    counts = np.bincount(graph_of_node[candidates], minlength=len(graphs))
    if (counts != 1).any():
        graph = int(np.flatnonzero(counts != 1)[0])
        raise InvalidInputError(
            f"{name} must be given: the default is the only node that {why}, but graph {graph} of the batch has "
            f"{counts[graph]} such nodes"
        )
    return np.flatnonzero(candidates) - graphs.node_offset
