"""Sums over the spanning trees of undirected graphs, by sums over trees directed away from one node.

The method is Kirchhoff's theorem, in the form without subtractions of
:mod:`structinf_oracles.kernels.arborescence.dispatch`. Scores are (B, E), with a column for each edge. A tree has at
most one of several parallel edges. Parallel edges therefore count as one edge of score log Σ exp, whose probability
is divided by their softmax w. Let p be the marginals and C the covariance of the graph without parallel edges. The
chain rule gives, for an edge e of the pair k of nodes,

    ∂_e log Z = w_e p_k,        (Cov v)_e = w_e ((C v̄)_k + p_k (v_e − v̄_k))        with v̄_k = Σ_{e in k} w_e v_e.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.kernels.logsumexp import logsumexp

from ..arborescence import dispatch

__all__ = ["Multigraph", "covariance_product", "log_partition", "log_partition_and_marginals", "sample"]


class Multigraph(NamedTuple):
    """An undirected graph as index tensors, with the number of nodes used by each instance."""

    nodes: int
    keys: Tensor
    """(P,): the pairs i < j of nodes joined by edges, as i n + j, in order."""
    mirrored: Tensor
    """(P,): the same pairs as j n + i."""
    pair: Tensor
    """(E,): the pair of each edge."""
    edges_of_pairs: Tensor
    """(P, M): the edges of each pair, padded with E."""
    lengths: Tensor
    """(B,): the number of nodes in use, the first nodes; at least 1."""
    is_simple: bool
    """Whether the edges are the pairs, in order, without parallel edges."""


def log_partition(scores: Tensor, graph: Multigraph) -> Tensor:
    """Return log Z, (B,) in float64, −inf without a tree; differentiable to any order."""
    arcs, words = _arcs(_merged(scores, graph), graph)
    return dispatch.log_partition(arcs, words)


def log_partition_and_marginals(scores: Tensor, graph: Multigraph) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) and the probability of each edge (B, E), in float64, computed on the CPU without autograd."""
    scores = scores.detach()
    merged = _merged(scores, graph)
    value, means = dispatch.log_partition_and_marginals(*_arcs(merged, graph))
    means = _both_ways(means, graph)
    return value, means if graph.is_simple else means[:, graph.pair] * _shares(scores, merged, graph)


def covariance_product(scores: Tensor, v: Tensor, graph: Multigraph) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) and Cov[Y] v (B, E), in float64, for v (B | 1, E), computed on the CPU without autograd."""
    scores, v = scores.detach(), v.detach().double().expand_as(scores)
    merged = _merged(scores, graph)
    arcs, words = _arcs(merged, graph)
    if graph.is_simple:
        value, product = dispatch.covariance_product(arcs, _arcs(v, graph, missing=0.0)[0], words)
        return value, _both_ways(product, graph)
    shares = _shares(scores, merged, graph)
    mean = pad(shares * v, (0, 1))[:, graph.edges_of_pairs].sum(2)
    value, product = dispatch.covariance_product(arcs, _arcs(mean, graph, missing=0.0)[0], words)
    means = _both_ways(dispatch.log_partition_and_marginals(arcs, words)[1], graph)[:, graph.pair]
    return value, shares * (_both_ways(product, graph)[:, graph.pair] + means * (v - mean[:, graph.pair]))


def sample(
    scores: Tensor, n: int, graph: Multigraph, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return exact samples, computed on the CPU.

    Returns
    -------
    feasible : (B,) bool Tensor
        Whether there is a tree.
    edges : (n, B, most) int64 Tensor
        The edges of each tree in any order, with −1 for unused nodes.
    """
    scores = scores.detach()
    merged = _merged(scores, graph)
    arcs, words = _arcs(merged, graph)
    feasible, heads = dispatch.sample_heads(arcs, n, words, generator=generator)
    word = torch.arange(1, arcs.shape[1], device=heads.device)
    none = (heads < 0) | (graph.lengths < 2)[:, None]
    # The pair of nodes that each arc joins, P for none.
    key = torch.minimum(heads, word) * graph.nodes + torch.maximum(heads, word)
    pair = torch.searchsorted(graph.keys, key).masked_fill(none, len(graph.keys))
    edges = pair
    if not graph.is_simple:
        edges_of_pairs = pad(graph.edges_of_pairs, (0, 0, 0, 1), value=scores.shape[1])
        shares = pad(_shares(scores, merged, graph), (0, 1))[:, edges_of_pairs]
        shares = shares[torch.arange(len(scores), device=pair.device)[:, None], pair].cumsum(-1)
        device = generator.device if generator is not None else "cpu"
        drawn = torch.rand(pair.shape, dtype=shares.dtype, generator=generator, device=device).to(pair.device)
        # 1 − drawn lies in (0, 1], so that no edge with a share of 0 is drawn.
        at = (1 - drawn)[..., None] * shares[..., -1:]
        edges = edges_of_pairs[pair, (shares < at).sum(-1)]
    return feasible, edges.masked_fill(none, -1)


# ----------------------------------------------------------------------------- conversion to arcs and back


def _merged(scores: Tensor, graph: Multigraph) -> Tensor:
    """Return the scores of the pairs of nodes, (B, P)."""
    if graph.is_simple:
        return scores
    return logsumexp(pad(scores, (0, 1), value=float("-inf"))[:, graph.edges_of_pairs], 2)


def _shares(scores: Tensor, merged: Tensor, graph: Multigraph) -> Tensor:
    """Return w, (B, E): 0 for forbidden edges."""
    return torch.where(torch.isneginf(scores), 0.0, (scores - merged[:, graph.pair]).exp())


def _arcs(values: Tensor, graph: Multigraph, missing: float = float("-inf")) -> tuple[Tensor, Tensor]:
    """Return ``values`` (B, P) as arcs in both directions, and the number of words: all nodes but the first.

    An instance with a single node gets a second node, joined by an arc of score 0 without an edge. So it has one
    tree.
    """
    size = max(graph.nodes, 2)
    arcs = values.new_full((len(values), size * size), missing)
    arcs = arcs.index_copy(1, graph.keys, values).index_copy(1, graph.mirrored, values)
    alone = graph.lengths < 2
    if bool(alone.any()):
        is_first = torch.arange(size * size, device=values.device) == 1
        arcs = torch.where(alone[:, None] & is_first, 0.0, arcs)
    return arcs.unflatten(1, (size, size)), (graph.lengths - 1).clamp(min=1)


def _both_ways(arcs: Tensor, graph: Multigraph) -> Tensor:
    """Return the sums of the two arcs of each pair, (B, P); 0 for an instance with a single node."""
    flat = arcs.flatten(1)
    total = flat.index_select(1, graph.keys).add_(flat.index_select(1, graph.mirrored))
    return total.masked_fill_((graph.lengths < 2)[:, None], 0.0)
