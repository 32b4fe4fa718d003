"""Different graphs of the instances of a batch, packed into arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from ..shapes import Int
from ..validation import check_flag
from .graph import Graph

__all__ = ["GraphBatch", "is_list_of_graphs"]

G = TypeVar("G", bound=Graph)


@dataclass(frozen=True, eq=False, repr=False)
class GraphBatch:
    """Different graphs of the instances of a batch.

    A batch of graphs is the option ``graph`` of ``dag_path``, ``path`` and ``flow``, and the option ``edges`` of
    ``spanning_tree`` and ``matching``. For oracles with scores of all pairs of nodes, such as ``arborescence``,
    :meth:`to_matrices` makes scores of pairs.

    Scores have one row for each graph, (G, E), padded to the largest number of edges E. :meth:`pad` makes such rows
    from the scores of all edges one after another, and :meth:`unpad` is its inverse.

    Attributes
    ----------
    edges : (ΣE, 2) int64 array
        The first and the second node of each edge of all graphs, one graph after another. The nodes of each graph are
        numbered from 0.
    edge_counts : (G,) int64 array
        The number of edges of each graph.
    node_counts : (G,) int64 array
        The number of nodes of each graph.
    directed : bool
        Whether edges have a direction.
    names : sequence of tuple, optional
        The names of the nodes of each graph. By default their numbers.

    Examples
    --------
    >>> import structinf as si
    >>> graphs = GraphBatch.of([
    ...     [(0, 1), (1, 2), (0, 2)],
    ...     [(0, 1), (0, 2), (1, 3), (2, 3)],
    ... ])
    >>> theta = graphs.pad(
    ...     torch.tensor([1.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0])
    ... )
    >>> y = si.relax(theta, "dag_path", "map", graph=graphs)
    >>> y
    tensor([[1., 1., 0., 0.],
            [0., 1., 0., 1.]])
    >>> graphs.unpad(y)
    tensor([1., 1., 0., 0., 1., 0., 1.])
    """

    edges: np.ndarray
    edge_counts: np.ndarray
    node_counts: np.ndarray
    directed: bool = True
    names: Sequence[tuple[Hashable, ...]] | None = None
    checksum: int = field(init=False)

    def __post_init__(self) -> None:
        arrays = {name: _integers(name, getattr(self, name)) for name in ("edges", "edge_counts", "node_counts")}
        edges, counts, nodes = arrays["edges"], arrays["edge_counts"], arrays["node_counts"]
        check_flag("directed", self.directed)
        if edges.shape != (len(edges), 2) and edges.size:
            raise InvalidInputError(f"GraphBatch: edges must be pairs of nodes, (E, 2), got shape {edges.shape}")
        arrays["edges"] = edges = edges.reshape(-1, 2)
        if counts.ndim != 1 or counts.shape != nodes.shape or counts.sum() != len(edges) or (counts < 0).any():
            raise InvalidInputError(
                f"GraphBatch: edge_counts and node_counts must hold a number for each graph, and edge_counts must add "
                f"up to the {len(edges)} edges; got shapes {counts.shape} and {nodes.shape} with {counts.sum()} edges"
            )
        if (nodes < 0).any():
            raise InvalidInputError(f"GraphBatch: node_counts must be at least 0, got {nodes.min()}")
        if self.names is not None and [len(names) for names in self.names] != nodes.tolist():
            raise InvalidInputError(
                "GraphBatch: names must hold the names of the nodes of each graph, as many as node_counts says"
            )
        if not len(counts):
            raise InvalidInputError("GraphBatch must have at least one graph, got none")
        wrong = ((edges < 0) | (edges >= np.repeat(nodes, counts)[:, None])).any(1)
        if wrong.any():
            graph = int(np.repeat(np.arange(len(counts)), counts)[wrong][0])
            raise InvalidInputError(
                f"GraphBatch: edges of graph {graph} must join nodes from 0 to {nodes[graph] - 1}, got "
                f"{edges[wrong][0].tolist()}"
            )
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        checksum = zlib.crc32(edges.tobytes(), zlib.crc32(counts.tobytes(), zlib.crc32(nodes.tobytes())))
        object.__setattr__(self, "checksum", checksum)

    @classmethod
    def of(cls, graphs: Sequence[Any], directed: bool | None = None) -> GraphBatch:
        """Pack graphs: networkx graphs, (E, 2) integer arrays, or sequences of pairs of nodes.

        Parameters
        ----------
        graphs : sequence
            The graphs, each in a form of the option ``graph`` for one graph. Their edges keep their order.
        directed : bool, optional
            Whether edges have a direction. By default as in networkx graphs; other graphs are directed.
        """
        if not isinstance(graphs, Iterable):
            raise InvalidInputError(f"graphs must be a sequence of graphs, got {graphs!r}")
        found = []
        for i, graph in enumerate(graphs):
            try:
                found.append(_of_array(graph, directed) if hasattr(graph, "dtype") else Graph.of(graph, directed))
            except InvalidInputError as error:
                raise InvalidInputError(f"graph {i} of the batch: {error}") from None
        kinds = {graph.directed for graph in found}
        if len(kinds) > 1:
            raise InvalidInputError("graphs of a batch must be all directed or all undirected; pass directed=")
        return cls(
            np.concatenate([graph.ends for graph in found] or [np.zeros((0, 2), np.int64)]),
            np.array([len(graph.ends) for graph in found], np.int64),
            np.array([len(graph.nodes) for graph in found], np.int64),
            kinds.pop() if kinds else True,
            tuple(graph.nodes for graph in found),
        )

    @classmethod
    def from_edge_index(cls, edge_index: Any, batch: Any, directed: bool = True) -> GraphBatch:
        """Pack the graphs of a batch of PyTorch Geometric.

        Parameters
        ----------
        edge_index : (2, ΣE) integer Tensor
            The first and the second node of each edge, numbered over the whole batch. The edges of a graph must be
            consecutive, as PyTorch Geometric returns them. PyTorch Geometric stores an undirected edge in both
            directions, which would be parallel edges here: pass ``edge_index[:, edge_index[0] < edge_index[1]]``.
        batch : (ΣN,) integer Tensor
            The graph of each node, in ascending order from 0.
        directed : bool
            Whether edges have a direction.
        """
        ends, of_node = (np.asarray(as_tensor(t).cpu()) for t in (edge_index, batch))
        if (
            ends.ndim != 2
            or ends.shape[0] != 2
            or of_node.ndim != 1
            or not {ends.dtype.kind, of_node.dtype.kind} <= {"i"}
        ):
            raise InvalidInputError(
                "edge_index must be integers of shape (2, E), and batch integers of shape (N,), got "
                f"{ends.dtype} of shape {ends.shape} and {of_node.dtype} of shape {of_node.shape}"
            )
        if not len(of_node) or of_node[0] < 0 or (np.diff(of_node) < 0).any():
            raise InvalidInputError("batch must name the graph of each node, in ascending order from 0")
        if ends.size and (ends.min() < 0 or ends.max() >= len(of_node)):
            raise InvalidInputError(f"edge_index must hold numbers of nodes from 0 to {len(of_node) - 1}")
        count = int(of_node[-1]) + 1
        of_edge = of_node[ends[0]]
        if (of_edge != of_node[ends[1]]).any() or (np.diff(of_edge) < 0).any():
            raise InvalidInputError(
                "edge_index must join nodes of the same graph, with the edges of a graph after another; sort the edges "
                "by batch[edge_index[0]]"
            )
        nodes = np.bincount(of_node, minlength=count)
        first = np.cumsum(nodes) - nodes
        return cls(ends.T - first[of_edge][:, None], np.bincount(of_edge, minlength=count), nodes, directed)

    def __len__(self) -> int:
        return len(self.edge_counts)

    def __getitem__(self, index: int) -> Graph:
        """Return a graph of the batch."""
        return self.single(index, Graph)

    def __iter__(self) -> Iterator[Graph]:
        return (self[i] for i in range(len(self)))

    def single(self, index: int, kind: Callable[..., G]) -> G:
        """Return a graph of the batch as an object of the class ``kind``.

        Parameters
        ----------
        index : int
            The number of the graph.
        kind : type
            :class:`Graph`, or a subclass.
        """
        start = int(self.edge_offset[index])
        names = tuple(range(self.node_counts[index])) if self.names is None else self.names[index]
        return kind(names, self.edges[start : start + self.edge_counts[index]], self.directed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphBatch):
            return NotImplemented
        if self is other:
            return True
        mine, its = ((g.edges, g.edge_counts, g.node_counts) for g in (self, other))
        same = self.checksum == other.checksum and self.directed == other.directed and self.names == other.names
        return same and all(map(np.array_equal, mine, its))

    def __hash__(self) -> int:
        return self.checksum

    def __repr__(self) -> str:
        return f"GraphBatch({len(self)} graphs, {len(self.edges)} edges)"

    @cached_property
    def edge_offset(self) -> Int[np.ndarray, " graphs"]:
        """The number of the first edge of each graph in ``edges``."""
        return np.cumsum(self.edge_counts) - self.edge_counts

    @cached_property
    def node_offset(self) -> Int[np.ndarray, " graphs"]:
        """The number of nodes of all graphs before each graph."""
        return np.cumsum(self.node_counts) - self.node_counts

    @cached_property
    def graph_of_edge(self) -> Int[np.ndarray, " edges"]:
        """The graph of each edge."""
        return np.repeat(np.arange(len(self)), self.edge_counts)

    @cached_property
    def place_of_edge(self) -> Int[np.ndarray, " edges"]:
        """The number of each edge in its graph."""
        return np.arange(len(self.edges)) - np.repeat(self.edge_offset, self.edge_counts)

    @cached_property
    def edges_of_all_nodes(self) -> Int[np.ndarray, "edges 2"]:
        """The ends of the edges, (ΣE, 2), with the nodes of all graphs numbered one graph after another."""
        return self.edges + self.node_offset[self.graph_of_edge][:, None]

    @property
    def most_edges(self) -> int:
        """E, the largest number of edges of a graph."""
        return int(self.edge_counts.max())

    @cached_property
    def padded_edges(self) -> Int[np.ndarray, "graphs most 2"]:
        """The ends of the edges of each graph, (G, E, 2), padded with 0."""
        padded = np.zeros((len(self), self.most_edges, 2), np.int64)
        padded[self.graph_of_edge, self.place_of_edge] = self.edges
        return padded

    # -- scores -----------------------------------------------------------------------------

    def pad(self, scores: Tensor) -> Tensor:
        """Return the scores of all edges, (ΣE, ...), as a row for each graph, (G, E, ...), padded with 0.

        Parameters
        ----------
        scores : (ΣE, ...) Tensor
            A number for each edge, one graph after another.
        """
        self._check("scores", scores, (len(self.edges),))
        padded = scores.new_zeros(len(self) * self.most_edges, *scores.shape[1:])
        padded = padded.index_copy(0, self._positions(scores), scores)
        return padded.view(len(self), self.most_edges, *scores.shape[1:])

    def unpad(self, rows: Tensor) -> Tensor:
        """Return the numbers of all edges, (ΣE, ...), from a row for each graph, (G, E, ...).

        Parameters
        ----------
        rows : (G, E, ...) Tensor
            A row for each graph, such as a mean.
        """
        self._check("rows", rows, (len(self), self.most_edges))
        return rows.flatten(0, 1).index_select(0, self._positions(rows))

    def to_matrices(self, scores: Tensor) -> Tensor:
        """Return the scores of all edges, (ΣE,), as scores of the pairs of nodes, (G, N, N), −inf without an edge.

        N is the largest number of nodes. Pass ``lengths=``:attr:`lengths` with the result, or ``lengths - 1`` for
        oracles whose lengths do not count the root, such as ``arborescence``. An edge from i to j has the entry [i, j].
        Undirected edges have the entry above the diagonal.

        Parameters
        ----------
        scores : (ΣE,) Tensor
            A number for each edge, one graph after another.

        Raises
        ------
        InvalidInputError
            If several edges join the same nodes, or an undirected edge joins a node to itself.
        """
        self._check("scores", scores, (len(self.edges),))
        if scores.ndim != 1:
            raise InvalidInputError(f"scores must be a number for each edge, got shape {tuple(scores.shape)}")
        size = int(self.node_counts.max())
        filled = scores.new_full((len(self) * size * size,), -torch.inf)
        positions = torch.tensor(self._entries, device=scores.device)
        return filled.index_copy(0, positions, scores).view(len(self), size, size)

    def from_matrices(self, matrices: Tensor) -> Tensor:
        """Return the numbers of all edges, (ΣE,), from matrices of pairs of nodes, (G, N, N).

        Parameters
        ----------
        matrices : (G, N, N) Tensor
            A matrix for each graph, such as a mean.
        """
        size = int(self.node_counts.max())
        self._check("matrices", matrices, (len(self), size, size))
        return matrices.flatten().index_select(0, torch.tensor(self._entries, device=matrices.device))

    @property
    def lengths(self) -> Tensor:
        """The number of nodes of each graph, (G,) int64, as instance data of oracles with scores of pairs."""
        return torch.tensor(self.node_counts, device="cpu")

    @cached_property
    def _entries(self) -> Int[np.ndarray, " edges"]:
        """The position of each edge in the flattened matrices of all graphs."""
        size = int(self.node_counts.max())
        start, end = (self.edges if self.directed else np.sort(self.edges, 1)).T
        entries = (self.graph_of_edge * size + start) * size + end
        _, first = np.unique(entries, return_index=True)
        repeated = np.ones(len(entries), np.bool_)
        repeated[first] = False
        for wrong, what in ((repeated, "parallel edges join"), ((start == end) & (not self.directed), "a loop joins")):
            if wrong.any():
                edge = int(np.flatnonzero(wrong)[0])
                raise InvalidInputError(
                    f"{what} nodes {start[edge]} and {end[edge]} of graph {self.graph_of_edge[edge]}, but a matrix has "
                    "one entry for each pair of different nodes; merge the edges"
                )
        return entries

    def _positions(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self.graph_of_edge * self.most_edges + self.place_of_edge).to(like.device)

    def _check(self, name: str, t: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(t, Tensor) or t.shape[: len(shape)] != shape:
            received = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else f"a {type(t).__name__}"
            wanted = ", ".join(map(str, shape))
            raise InvalidInputError(f"{name} must be a tensor of shape ({wanted}, ...), got {received}")


def _integers(name: str, values: Any) -> np.ndarray:
    """Return a copy of an array, tensor or list of integers in int64."""
    array = np.array(values.cpu() if isinstance(values, Tensor) else values)
    if array.size and array.dtype.kind not in "iu":
        raise InvalidInputError(f"GraphBatch: {name} must be an array of integers, got {array.dtype}")
    return array.astype(np.int64)


def _of_array(edges: Any, directed: bool | None) -> Graph:
    """Return :meth:`Graph.of` of an array or tensor, without a loop over its edges."""
    array = np.asarray(edges.cpu() if isinstance(edges, Tensor) else edges)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        return Graph.of(array, directed)  # raises the error
    ends = array.astype(np.int64)
    if array.size and ends.min() >= 0 and ends.max() < array.size and np.bincount(ends.ravel()).all():
        # The nodes are 0, 1, 2, ..., so that their names are their numbers.
        return Graph(tuple(range(int(ends.max()) + 1)), ends, directed is None or directed)
    names, ends = np.unique(array, return_inverse=True)
    return Graph(tuple(names.tolist()), ends.reshape(-1, 2), directed is None or directed)


def is_list_of_graphs(graph: Any) -> bool:
    """Return whether the option ``graph`` is a list of networkx graphs, of (E, 2) arrays or of Graph objects."""
    if not isinstance(graph, list | tuple) or not graph:
        return False
    first = graph[0]
    return isinstance(first, Graph) or hasattr(first, "is_directed") or getattr(first, "ndim", 0) == 2
