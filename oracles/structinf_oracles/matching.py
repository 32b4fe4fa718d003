"""Matchings in general graphs: pairs of nodes without common nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.deferred_checks import check_data_later
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.kernels import parallel_rows, to_numpy
from structinf.linear_constraints import LinearConstraints, LinearlyConstrained
from structinf.oracle import Enumerable, computed_on_cpu
from structinf.parts import Parts
from structinf.restriction import Restrictable, argmax_of_feasible
from structinf.validation import check_enumerable, check_flag, list_instances

from .common.labels import reject_labels
from .common.scored_edges import ScoredEdges

__all__ = ["Matching"]

# Elementary operations for each edge and node, measured for complete graphs of 200 nodes.
OPERATIONS = 1.0


@dataclass(frozen=True)
class Matching(  # pyright: ignore[reportIncompatibleVariableOverride]
    ScoredEdges, Restrictable, Enumerable, LinearlyConstrained
):
    """Sets of edges of an undirected graph without common nodes: every node has one partner, or at most one.

    ⟨θ, y⟩ = Σ_{e in matching} θ[e]. For matchings between two given sides of nodes, ``assignment`` is faster.

    - Scores θ, shape (..., n, n), any sign: the score θ[i, j] of each pair of nodes i < j. Only entries above the
      diagonal are read. With ``edges``, shape (..., E): the score of each edge, in the order of ``edges``. −inf
      forbids an edge.
    - Structure y, same shape as θ: 1 for each edge of the matching; 0 on and below the diagonal.
    - Labels, shape (..., n): the number of each node's partner, −1 for a node without a partner. With ``edges``,
      nodes have their numbers in ``oracle.edges.nodes``: in ascending order if all nodes are integers, else in order
      of appearance.
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
        the edges of a graph are padding. Parallel edges have separate scores.
    perfect : bool, default True
        Whether every node must have a partner. If True, there are n / 2 pairs, and a constant added to θ does not
        change the best matching. If False, the best matching has the highest score with any number of pairs, and
        edges of score 0 or less are never taken.

    Raises
    ------
    InvalidInputError
        If an edge joins a node to itself, or if ``perfect`` is set and the number of nodes is odd.
    InfeasibleError
        If an instance has no perfect matching of edges above −inf.

    Notes
    -----
    ``argmax`` is Edmonds' blossom algorithm, O(n³), on the CPU. It computes with integers: the scores are scaled by a
    power of two and rounded. Scores are exact if their magnitudes differ by a factor below 2⁴⁷; otherwise the error is
    at most 2⁻¹⁰⁰ of the largest. Ties are broken deterministically, without preference for an edge.

    There is no log-partition function: the sum over perfect matchings is a Hafnian, and its computation is
    #P-complete, even for bipartite graphs (the permanent).

    References
    ----------
    J. Edmonds, Paths, trees, and flowers (Canadian Journal of Mathematics 17, 1965). Z. Galil, Efficient algorithms
    for finding maximum matching in graphs (ACM Computing Surveys 18, 1986). L. G. Valiant, The complexity of
    computing the permanent (Theoretical Computer Science 8, 1979).

    Examples
    --------
    >>> theta = torch.tensor([[3.0, 10.0, 7.0, -1.0]])
    >>> path = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    >>> Matching(path).argmax(theta)
    tensor([[1., 0., 1., 0.]])
    >>> Matching(path, perfect=False).argmax(theta)
    tensor([[0., 1., 0., 0.]])
    """

    name: ClassVar[str] = "matching"
    search_terms: ClassVar[tuple[str, ...]] = ("blossom", "maximum_weight_matching")
    label_ndim: ClassVar[int] = 1
    has_labels_on_cpu: ClassVar[bool] = True
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "exact marginals of matchings are #P-complete (Valiant 1979)",
            "Samplable": "exact samples are as hard as exact marginals (Jerrum, Valiant & Vazirani 1986)",
            "Smoothable": "Edmonds' blossom algorithm is not a dynamic program (a recursion of maxima)",
        }
    )

    perfect: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("perfect", self.perfect)
        if self.is_batch:
            self._check_even(self.edges.node_counts, "edges, in graph {} of the batch: ")
        elif self.edges is not None:
            self._check_even(np.array([len(self.edges.nodes)]), "edges: ")

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def validate(self, theta: Tensor) -> None:
        super().validate(theta)
        if self.edges is not None:
            return
        nodes = self.nodes_in_use(theta)
        if nodes.is_cpu or not check_data_later((nodes % 2).any(), operator.not_):
            self._check_even(to_numpy(nodes)[0], "" if "lengths" in self.bound else "theta: ")

    def _check_even(self, nodes: np.ndarray, what: str) -> None:
        odd = np.flatnonzero(self.perfect * (nodes % 2))
        if len(odd):
            where = what.format(odd[0]) or f"lengths, at batch index {odd[0]}: "
            raise InvalidInputError(
                f"{where}a perfect matching needs an even number of nodes, got {nodes[odd[0]]}; pass perfect=False to "
                "allow nodes without a partner"
            )

    # -- labels ----------------------------------------------------------------------------

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = self.most_nodes(like)
        if labels.shape[1:] != (n,):
            raise InvalidInputError(
                f"labels of matchings must hold a partner, or −1, for each of {n} nodes, shape (..., {n}); "
                f"got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        labels, node = labels.long(), torch.arange(n, device=labels.device)
        lengths = self.nodes_in_use(like).expand(len(labels))[:, None]
        reject_labels((labels < -1) | (labels >= lengths), labels, "a partner must be a node in use, or −1 for none")
        alone = labels < 0
        back = labels.where(~alone, node).gather(1, labels.clamp(min=0)) if n else labels
        reject_labels(
            ~alone & ((back != node) | (labels == node)),
            labels,
            "a node is not the partner of its partner, or is its own partner",
        )
        if self.perfect:
            reject_labels(alone & (node < lengths), labels, "a node has no partner; pass perfect=False to allow that")
        instance, low = (node < labels).nonzero().unbind(1)
        rows, nodes, partners = (t.cpu().numpy() for t in (instance, low, labels[instance, low]))
        found = self.find_edges(rows, nodes, partners, like)
        edges, count = (torch.from_numpy(pairs).to(labels.device) for pairs in found)
        joining = torch.ones_like(labels).index_put((instance, low), count)
        reject_labels(joining < 1, labels, "no edge joins a node and its partner")
        reject_labels(joining > 1, labels, "parallel edges join a node and its partner; pass y instead of labels")
        y = like.new_zeros(len(labels), self.ends_of(like).shape[1])
        y[instance, edges] = 1
        return self.as_parts(y, like)

    def decode(self, y: Tensor) -> Tensor:
        instance, edge = self.edge_scores(y).nonzero().unbind(1)
        partners, ends = torch.full((len(y), self.most_nodes(y)), -1, device=y.device), self.ends_of(y)
        low, high = torch.tensor(ends, device=y.device)[instance if len(ends) > 1 else 0, edge].unbind(1)
        partners[instance, low], partners[instance, high] = high, low
        return partners

    # -- optimisation ----------------------------------------------------------------------

    @computed_on_cpu
    def argmax(self, theta: Tensor) -> Tensor:
        from .kernels.matching.argmax import best_matchings

        theta = self.without_padding(theta)
        scores, nodes = to_numpy(self.edge_scores(theta).double(), self.nodes_in_use(theta))
        y, feasible, ends = np.zeros(scores.shape), np.empty(len(scores), np.bool_), self.ends_of(theta)
        work = OPERATIONS * scores.size * max(self.most_nodes(theta), 1)
        parallel_rows(best_matchings, len(scores), ends, scores, nodes, self.perfect, y, feasible, work=work)
        if not feasible.all():
            indices = np.flatnonzero(~feasible).tolist()
            raise InfeasibleError(
                f"no perfect matching of finite score exists for {list_instances(indices)}, as the edges above −inf "
                "leave a node without a partner; allow more edges, or allow unmatched nodes with perfect=False",
                indices[0],
                indices,
            )
        return self.as_parts(torch.from_numpy(y).to(theta), theta)

    topk = computed_on_cpu(Restrictable.topk)

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        parts, ends, nodes = self.edges_of_instance(event_shape)
        size = math.prod(event_shape)
        others = np.setdiff1d(np.arange(size), parts)
        row = np.concatenate([ends[:, 0], ends[:, 1], np.full(len(others), nodes)])
        column = np.concatenate([parts, parts, others])
        # Each node has one edge, or at most one. The last row keeps parts that are no edges at 0.
        lower, upper = [float(self.perfect)] * nodes + [0.0], [1.0] * nodes + [0.0]
        return LinearConstraints.of((row, column, np.ones(len(row))), size, lower, upper)

    @property
    def has_nested_structures(self) -> bool:
        return not self.perfect

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        scores, forced = self.edge_scores(theta), self.edge_scores(low) > 0
        # A forced edge excludes the other edges at both of its nodes, which may be parallel edges.
        at_node = scores.new_zeros(len(scores), max(self.most_nodes(theta), 1))
        sides = torch.tensor(self.ends_of(theta), device=theta.device).expand(*scores.shape, 2).unbind(2)
        for side in sides:
            at_node.scatter_add_(1, side, forced.to(at_node))
        taken = torch.stack([at_node.gather(1, side) > 0 for side in sides]).any(0)
        scores = scores.masked_fill((self.edge_scores(high) < 1) | (taken & ~forced), -torch.inf)
        # Nothing competes with a forced edge. Any positive score adds it to a matching that need not be perfect.
        scores = torch.where(forced & ~scores.isneginf(), 1.0, scores)
        y, found = argmax_of_feasible(self, self.as_parts(scores, theta))
        return y, found & (cast(Tensor, y) >= low).flatten(1).all(1)

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all matchings, perfect or not as the option says, (|Y|, *event); at most a million."""
        like = torch.zeros(1, *event_shape, dtype=torch.float64, device="cpu")
        if self.is_batch:
            matchings = (graph := self.alone()).enumerate((len(graph.edges.ends),))
            return pad(matchings, (0, like.shape[1] - matchings.shape[1]))
        graph, nodes = self.graph_of(like), int(self.nodes_in_use(like)[0])
        ends = torch.tensor(graph.ends, device="cpu")
        chosen = torch.zeros(1, len(ends), dtype=torch.bool, device="cpu")
        matched = torch.zeros(1, len(graph.nodes), dtype=torch.bool, device="cpu")
        for node in range(nodes):
            # Extend each partial matching by no edge from this node to a higher node, or by one such edge.
            rows = [(matched[:, node] | (not self.perfect)).nonzero().flatten()]
            edges = ((ends[:, 0] == node) & (ends[:, 1] < nodes)).nonzero().flatten()
            rows += [(~matched[:, ends[e]].any(1)).nonzero().flatten() for e in edges]
            check_enumerable(sum(map(len, rows)), f"ways to match the first {node + 1} of {nodes} nodes")
            ways = [(chosen[rows[0]], matched[rows[0]])]
            for e, row in zip(edges, rows[1:], strict=True):
                ways.append((chosen[row].index_fill(1, e, True), matched[row].index_fill(1, ends[e], True)))
            chosen, matched = (torch.cat(parts) for parts in zip(*ways, strict=True))
        return self.as_parts(chosen.double(), like)
