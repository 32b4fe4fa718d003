"""Spanning trees of undirected graphs, scored by their edges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.errors import InvalidInputError
from structinf.kernels import parallel_rows, to_numpy, zeros
from structinf.kernels.gpu import uses_triton
from structinf.linear_constraints import LinearConstraints, LinearlyConstrained
from structinf.oracle import Enumerable, GibbsOracle, Samplable, computed_on_cpu
from structinf.parts import Parts
from structinf.restriction import Restrictable, argmax_of_feasible, in_order
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_count, check_enumerable, check_feasible, check_k

from .common.connecting_constraints import connecting_constraints
from .common.labels import indicators, nonzero_positions, reject_labels
from .common.scored_edges import ScoredEdges

if TYPE_CHECKING:
    from .kernels.spanning_tree.sums import Multigraph

__all__ = ["SpanningTree"]

TREE = "spanning tree"

# On a GPU, one program finds the best tree of a matrix, for all instances at once, with 2 µs for each node by the
# latency of its reductions. Lists of edges become matrices, with 12 bytes for each pair of nodes, 400 MB at most.
# Borůvka's algorithm takes about 250 launches for lists of edges of 1,000 nodes, 1 to 2 ms. All limits follow from
# these estimates; no GPU was at hand to measure them.
MOST_ON_GPU = 512
MOST_PAIRS_ON_GPU = 2**25
FEWEST_EDGES_ON_GPU = 100_000


@dataclass(frozen=True)
class SpanningTree(  # pyright: ignore[reportIncompatibleVariableOverride]
    ScoredEdges, GibbsOracle, Samplable, Restrictable, Enumerable, LinearlyConstrained
):
    """Trees that connect all n nodes of an undirected graph: n − 1 edges without a cycle.

    ⟨θ, y⟩ = Σ_{e in tree} θ[e]. A single node has one tree, without edges.

    - Scores θ, shape (..., n, n), any sign: the score θ[i, j] of each pair of nodes i < j. Only entries above the
      diagonal are read. With ``edges``, shape (..., E): the score of each edge, in the order of ``edges``. −inf
      forbids an edge.
    - Structure y, same shape as θ: 1 for each edge of the tree; 0 on and below the diagonal.
    - Labels, shape (..., n − 1, 2): the pairs of nodes i < j joined by the edges of the tree, in order, padded with
      −1. With ``edges``, shape (..., n − 1): the numbers of the edges, padded with −1 in a batch of graphs.
    - Instance data ``lengths``, shape (...), without ``edges`` only: the number of nodes in use, an integer in [0,
      n]. Default: n.
    - Instance data ``graph_index``, shape (...), with a batch of graphs: the number of each instance's graph. Default:
      instance b has graph b.

    Parameters
    ----------
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, networkx.Graph, or GraphBatch, optional
        The edges of the graph. Default: all pairs of nodes. The edges of a networkx.Graph are in the order of its
        ``edges``. A :class:`structinf.GraphBatch` of undirected graphs, or a list of networkx graphs or arrays, has a
        graph for each instance. E is then the largest number of edges, n the largest number of nodes, and parts beyond
        the edges of a graph are padding. Parallel edges have separate scores, and a tree has at most one of them.

    Raises
    ------
    InvalidInputError
        If an edge joins a node to itself, or ``edges`` form a graph that is not connected.
    InfeasibleError
        If the edges of an instance above −inf do not connect all nodes.

    Notes
    -----
    ``argmax`` is Prim's algorithm for matrices, in O(n²), and Borůvka's algorithm for lists of edges, in O(E log n).
    Of edges with equal scores, both take the first in order. On a GPU, graphs of at most 512 nodes and batches of at
    least 100,000 edges stay there; other scores are copied to the CPU. ``topk`` is Gabow's algorithm, in O(E) for each
    tree after sorting the edges, up to a factor that grows like the inverse Ackermann function.

    Sums over trees follow Kirchhoff's theorem (1847): log Z is the logarithm of a minor's determinant, computed in
    O(n³). Elimination without subtractions makes log Z and every marginal accurate for any range of scores. Samples
    use the same elimination.

    References
    ----------
    R. C. Prim, Shortest connection networks and some generalizations (Bell System Technical Journal 36, 1957).
    H. N. Gabow, Two algorithms for generating weighted spanning trees in order (SIAM Journal on Computing 6, 1977).

    Examples
    --------
    >>> triangle = SpanningTree([("a", "b"), ("a", "c"), ("b", "c")])
    >>> theta = torch.tensor([[1.0, 2.0, 3.0]]).log()
    >>> triangle.argmax(theta)
    tensor([[0., 1., 1.]])
    >>> triangle.log_partition(theta.double()).exp()
    tensor([11.0000], dtype=torch.float64)
    >>> triangle.marginals(theta)
    tensor([[0.4545, 0.7273, 0.8182]])
    """

    name: ClassVar[str] = "spanning_tree"
    search_terms: ClassVar[tuple[str, ...]] = (
        "kruskal",
        "prim",
        "boruvka",
        "mst",
        "minimum_spanning_tree",
        "maximum_spanning_tree",
    )
    has_empty_structure: ClassVar[bool] = True
    min_nodes: ClassVar[int] = 1
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "Smoothable": "a best spanning tree is found greedily, not by a dynamic program (a recursion of maxima)",
        }
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_batch:
            self._graphs.check_connected()
            return
        if self.edges is None:
            return
        if not self.edges.nodes:
            raise InvalidInputError("edges must form a graph with at least one node, got none")
        apart = np.flatnonzero(self.edges.components != self.edges.components[0])
        if len(apart):
            one, other = self.edges.nodes[0], self.edges.nodes[apart[0]]
            raise InvalidInputError(
                f"edges must form a connected graph, but no path connects {one!r} and {other!r}; add edges between them"
            )

    # -- labels ----------------------------------------------------------------------------

    @property
    def label_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of label dimensions: 1 with ``edges``, else 2."""
        return 2 if self.edges is None else 1

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        nodes = self.most_nodes(like)
        expected_shape = (nodes - 1, 2) if self.edges is None else (nodes - 1,)
        if labels.shape[1:] != expected_shape:
            what = "pairs of nodes" if self.edges is None else "numbers of edges"
            raise InvalidInputError(
                f"labels must be {what}, shape (..., {', '.join(map(str, expected_shape))}), for the {nodes - 1} edges "
                f"of a tree of {nodes} nodes; got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        lengths = self.nodes_in_use(like).expand(len(labels))
        used = torch.arange(nodes - 1, device=labels.device) < lengths[:, None] - 1
        labels = labels.long()
        count = lengths[:, None, None] if self.edges is None else self.edge_counts(labels.new_empty(like.shape))
        where = used.unflatten(1, (nodes - 1, 1)) if self.edges is None else used
        reject_labels(
            where & ((labels < 0) | (labels >= count)),
            labels,
            "a node or an edge number is out of range",
            defers=True,
        )
        reject_labels(~where & (labels != -1), labels, "more edges than in a tree are listed; pad with −1", defers=True)
        # On a GPU, the checks may come later, so that numbers outside are moved inside.
        if self.edges is None:
            least, largest = labels.where(where, 0).clamp(0, nodes - 1).aminmax(dim=2)
            ends = torch.stack([least, largest], 2)
            positions = least * nodes + largest
        else:
            positions = labels.where(used, 0).clamp(0, max(like.shape[1] - 1, 0))
            known, chosen = self.ends_on(labels), positions.unsqueeze(2)
            ends = known.expand(len(labels), -1, 2).gather(1, chosen.expand(-1, -1, 2)) * used.unsqueeze(2)
        joined = torch.arange(nodes, device=labels.device).expand(len(labels), nodes)
        for pair in ends.unbind(1):
            joined = _join(joined, *pair.unbind(1))
        outside = torch.arange(nodes, device=labels.device) >= lengths[:, None]
        reject_labels(
            (joined != joined[:, :1]) & ~outside,
            labels,
            "the edges do not form a tree, as nodes stay unconnected",
            defers=True,
        )
        return indicators(positions, used, like.shape[1:].numel(), like).reshape(len(labels), *like.shape[1:])

    def decode(self, y: Tensor) -> Tensor:
        nodes = self.most_nodes(y)
        positions = nonzero_positions(y.flatten(1), nodes - 1)
        if self.edges is not None:
            return positions
        return torch.where(positions[..., None] < 0, -1, torch.stack([positions // nodes, positions % nodes], -1))

    # -- the best tree ---------------------------------------------------------------------

    def has_binary_parts(self, theta: Parts) -> bool:
        return True

    def argmax(self, theta: Tensor) -> Tensor:
        if not theta.is_cpu or uses_triton(theta):
            on_device = self._argmax_on_device(theta)
            if on_device is not None:
                return on_device
        from .kernels.spanning_tree import argmax

        theta = self.without_padding(theta)
        trees, feasible = zeros(*theta.shape, dtype=theta.dtype), np.empty(len(theta), np.bool_)
        scores, y, lengths = to_numpy(theta, trees, self.nodes_in_use(theta))
        if self.edges is None:
            parallel_rows(argmax.prim, len(theta), scores, lengths, y, feasible, work=2 * theta.numel())
        else:
            work = 8 * theta.numel()
            parallel_rows(argmax.boruvka, len(theta), scores, self.ends_of(theta), lengths, y, feasible, work=work)
        check_feasible(torch.from_numpy(feasible), TREE)
        return trees.to(theta.device, non_blocking=True)

    def _argmax_on_device(self, theta: Tensor) -> Tensor | None:
        """Return the best trees without a copy to the CPU; None where the CPU is faster, or for other devices."""
        nodes = self.most_nodes(theta)
        batch = len(self.bound["graph_index"]) if self.is_batch else len(theta)
        is_small = nodes <= MOST_ON_GPU and (self.edges is None or batch * nodes**2 <= MOST_PAIRS_ON_GPU)
        if is_small and uses_triton(theta):
            from .kernels.spanning_tree import triton_prim

            if self.edges is None:
                trees, feasible = triton_prim.argmax(theta, self.nodes_in_use(theta))
            else:
                _, scores, graphs = self._sums(theta.detach())
                trees, feasible = triton_prim.argmax_of_edges(scores, graphs)
        elif self.edges is None or theta.numel() < FEWEST_EDGES_ON_GPU or theta.is_cpu:
            return None
        else:
            from .kernels.spanning_tree import torch_boruvka

            theta = self.without_padding(theta.detach())
            trees, feasible = torch_boruvka.boruvka(theta, self.ends_on(theta), nodes, self.nodes_in_use(theta))
        check_feasible(feasible, TREE)
        return trees

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        from .kernels.spanning_tree.k_best import topk

        check_k(k)
        theta = self.without_padding(theta.detach())
        scores = self.edge_scores(theta).double()
        order = scores.argsort(dim=1, descending=True, stable=True)
        trees = torch.zeros((k, *scores.shape), dtype=torch.bool, device="cpu")
        value = torch.full((k, len(theta)), -torch.inf, dtype=torch.float64, device="cpu")
        trees[0] = self.edge_scores(self.argmax(theta)) > 0
        scores, order, lengths, *results = to_numpy(scores, order, self.nodes_in_use(theta), trees, value)
        ends, work = self.ends_of(theta), 24 * trees.numel()
        parallel_rows(topk, len(theta), scores, order, ends, lengths, *results, work=work)
        trees, value = in_order(trees, value)
        return self.as_parts(trees, theta), value.to(theta), ~value.isneginf()

    @property
    def has_nested_structures(self) -> bool:
        return False

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        parts, ends, nodes = self.edges_of_instance(event_shape)
        arcs = (*np.concatenate([ends, ends[:, ::-1]]).T, np.concatenate([parts, parts]))
        total = np.array([max(nodes - 1.0, 0.0)])
        rows = np.zeros_like(parts), parts
        return connecting_constraints(arcs, nodes, math.prod(event_shape), rows, (total, total))

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        # Both algorithms only compare scores, so that forced edges of score +inf round nothing.
        forced = (low > 0) & ~theta.isneginf()
        y, found = argmax_of_feasible(self, theta.masked_fill(high < 1, -torch.inf).masked_fill(forced, torch.inf))
        return y, found & (cast(Tensor, y) >= low).flatten(1).all(1)

    def restricted_scores(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # A tree without a forced edge e gives a tree with e by one exchange, which loses at most the range of the
        # scores. Each tree with e comes from fewer than E n trees. So a score of e above all others by the range + 100
        # leaves trees without e a share of exp(−100) E n, which is below rounding. Eliminations without subtraction
        # compute these sums to full precision.
        theta = self.without_padding(theta)
        scores, forced = theta.masked_fill(high < 1, -torch.inf), (low > 0) & ~theta.isneginf()
        finite = scores > -torch.inf
        largest = scores.flatten(1).amax(1)
        least = torch.where(finite, scores, torch.inf).flatten(1).amin(1)
        level = (2 * largest - least + 100).view(-1, *[1] * (theta.ndim - 1))
        offset = torch.where(forced, scores - level, 0.0).flatten(1).sum(1)
        return torch.where(forced, level, scores), offset

    # -- sums over trees -------------------------------------------------------------------

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        sums, scores, graph = self._sums(theta, is_recorded=theta.requires_grad and torch.is_grad_enabled())
        value = sums.log_partition(scores, graph)
        check_feasible(value, TREE)
        return value.to(theta.dtype)

    def log_partition_and_marginals(self, theta: Tensor) -> tuple[Tensor, Parts]:
        if theta.device.type != "cpu" and not uses_triton(theta):
            return super().log_partition_and_marginals(theta)
        sums, scores, graph = self._sums(theta)
        value, means = sums.log_partition_and_marginals(scores, graph)
        check_feasible(value, TREE)
        return value.to(theta.dtype), means if means.ndim == 3 else self.as_parts(means, theta)

    def covariance_product(self, theta: Tensor, v: Tensor) -> Parts:
        if theta.device.type != "cpu" and not uses_triton(theta):
            return super().covariance_product(theta, v)
        sums, scores, graph = self._sums(theta)
        value, product = sums.covariance_product(scores, v if scores.ndim == 3 else self.edge_scores(v), graph)
        check_feasible(value, TREE)
        return product if product.ndim == 3 else self.as_parts(product, theta)

    def sample(self, theta: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        check_count(n)
        places = self._sample_places(theta, n, generator)
        y = indicators(places.flatten(0, 1), (places >= 0).flatten(0, 1), theta.shape[1:].numel(), theta)
        return y.reshape(*places.shape[:2], *theta.shape[1:])

    @computed_on_cpu
    def _sample_places(self, theta: Tensor, n: int, generator: torch.Generator | None) -> Int[Tensor, "n batch most"]:
        """Return the part of θ of each edge, in memory order, in ``n`` samples; −1 for unused nodes."""
        from .kernels.spanning_tree import sums

        scores, graph = self._weighted(theta)
        feasible, edges = sums.sample(scores, n, graph, generator)
        check_feasible(feasible, TREE)
        return edges if self.edges is not None else pad(graph.keys[0], (0, 1), value=-1)[edges]

    def _sums(self, theta: Tensor, *, is_recorded: bool = False) -> tuple[Any, Tensor, Any]:
        """Return the module that computes sums for θ, and its arguments: scores, of edges or (B, n, n), and graphs."""
        if is_recorded or not uses_triton(theta) or (self.edges is None and theta.shape[1] < 2):
            from .kernels.spanning_tree import sums

            return sums, *self._weighted(theta)
        from .kernels.spanning_tree import triton_sums

        if self.edges is None:
            return triton_sums, theta, triton_sums.Matrices(self.bound.get("lengths"))
        index = self.bound["graph_index"].to(theta.device) if self.is_batch else None
        tables = self.tables_on(theta.device)
        graphs = triton_sums.EdgeLists(self.most_nodes(theta), *tables, index, self.is_simple(theta))
        return triton_sums, theta if index is None else theta.expand(len(index), -1), graphs

    def _weighted(self, theta: Tensor) -> tuple[Tensor, Multigraph]:
        """Return the scores of the edges, in float64 if the graph has parallel edges, and the graph."""
        from .kernels.spanning_tree.sums import Multigraph

        tables, lengths = self.pairs_of(theta), self.nodes_in_use(theta)
        weighted = Multigraph(self.most_nodes(theta), *tables, lengths, self.is_simple(theta), self.is_batch)
        scores = self.edge_scores(self.without_padding(theta))
        return scores if weighted.is_simple else scores.double(), weighted

    # -- all trees -------------------------------------------------------------------------

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all trees, (|Y|, *event), at most a million. A matrix θ has n^(n − 2) trees."""
        like = torch.zeros(1, *event_shape, dtype=torch.float64, device="cpu")
        if self.is_batch:
            graph = self.alone()
            trees = graph.enumerate((len(graph.edges.ends),))
            return pad(trees, (0, like.shape[1] - trees.shape[1]))
        nodes = int(self.nodes_in_use(like)[0])
        trees = self.log_partition(like).item()  # the logarithm of the number of trees
        count = round(math.exp(trees)) if trees < 40 else 10 ** round(trees / math.log(10))
        check_enumerable(count, f"spanning trees of {nodes} nodes")
        ends = torch.tensor(self.graph_of(like).ends, device="cpu")
        within = (ends < nodes).all(1)
        y = torch.zeros(count, len(ends), dtype=torch.float64, device="cpu")
        y[:, within] = _spanning_trees(ends[within], nodes).double()
        return self.as_parts(y, like)


def _join(component: Tensor, u: Any, v: Any) -> Tensor:
    """Return components (K, n), named by one of their nodes, after joining nodes ``u`` and ``v``, (K,) or scalar."""
    rows = torch.arange(len(component), device=component.device)
    return torch.where(component == component[rows, v][:, None], component[rows, u][:, None], component)


def _spanning_trees(ends: Tensor, nodes: int) -> Bool[Tensor, "trees edges"]:
    """Return all spanning trees of a connected graph, (|Y|, E), trees with the first edges first.

    The edges are decided in turn, from the last to the first. An edge is taken if it joins two components, and left
    if the edges before it still connect all components.
    """
    edges = list(enumerate(ends.tolist()))
    # The edges of ``forest`` before any edge e connect the same nodes as all edges before e.
    grown, forest = torch.arange(nodes, device="cpu")[None], []
    for e, (u, v) in edges:
        if grown[0, u] != grown[0, v]:
            forest.append((e, u, v))
            grown = _join(grown, u, v)
    taken, component = (
        torch.zeros(1, len(ends), dtype=torch.bool, device="cpu"),
        torch.arange(nodes, device="cpu")[None],
    )
    for e, (u, v) in reversed(edges):
        remaining = component
        for before, one, other in forest:
            if before < e:
                remaining = _join(remaining, one, other)
        left, joins = (remaining == remaining[:, :1]).all(1), component[:, u] != component[:, v]
        chosen = taken[joins].index_fill(1, torch.tensor([e], device="cpu"), True)
        taken = torch.cat([chosen, taken[left]])
        component = torch.cat([_join(component[joins], u, v), component[left]])
    return taken
