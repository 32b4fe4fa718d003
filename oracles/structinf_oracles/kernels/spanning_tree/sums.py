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
    """An undirected graph as index tensors, or a graph of each instance, with the number of nodes of each instance.

    The tables of an instance with fewer edges than E are padded: keys with a number above the keys of all pairs, pairs
    with P, and edges with E.
    """

    nodes: int
    keys: Tensor
    """(1 | B, P): the pairs i < j of nodes joined by edges, as i n + j, in order."""
    mirrored: Tensor
    """(1 | B, P): the same pairs as j n + i."""
    pair: Tensor
    """(1 | B, E): the pair of each edge."""
    edges_of_pairs: Tensor
    """(1 | B, P, M): the edges of each pair, padded with E."""
    lengths: Tensor
    """(B,): the number of nodes in use, the first nodes; at least 1."""
    is_simple: bool
    """Whether the edges are the pairs, in order, without parallel edges."""
    has_padding: bool
    """Whether the tables have a row for each instance, and may be padded; otherwise one row without padding."""


def log_partition(scores: Tensor, graph: Multigraph) -> Tensor:
    """Return log Z, (B,) in float64, −inf without a tree; differentiable to any order."""
    arcs, words = _arcs(_merged(scores, graph), graph)
    return dispatch.log_partition(arcs, words)


def log_partition_and_marginals(scores: Tensor, graph: Multigraph) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) in float64 and the probability of each edge (B, E), computed on the CPU without autograd."""
    scores = scores.detach()
    merged = _merged(scores, graph)
    value, means = dispatch.log_partition_and_marginals(*_arcs(merged, graph))
    means = _both_ways(means, graph)
    return value, means if graph.is_simple else _of_edges(means, graph) * _shares(scores, merged, graph)


def covariance_product(scores: Tensor, v: Tensor, graph: Multigraph) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) in float64 and Cov[Y] v (B, E), for v (B | 1, E), computed on the CPU without autograd."""
    scores, v = scores.detach(), v.detach().to(scores).expand_as(scores)
    merged = _merged(scores, graph)
    arcs, words = _arcs(merged, graph)
    if graph.is_simple:
        value, product = dispatch.covariance_product(arcs, _arcs(v, graph, missing=0.0)[0], words)
        return value, _both_ways(product, graph)
    shares = _shares(scores, merged, graph)
    mean = _pick(pad(shares * v, (0, 1)), graph.edges_of_pairs).sum(2)
    value, product = dispatch.covariance_product(arcs, _arcs(mean, graph, missing=0.0)[0], words)
    means = _of_edges(_both_ways(dispatch.log_partition_and_marginals(arcs, words)[1], graph), graph)
    along = _of_edges(_both_ways(product, graph), graph)
    return value, shares * (along + means * (v - _of_edges(mean, graph)))


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
    pairs = graph.keys.shape[1]
    if not graph.has_padding:
        pair = torch.searchsorted(graph.keys[0], key).masked_fill(none, pairs)
    else:
        place = torch.searchsorted(graph.keys, key.transpose(0, 1).flatten(1).contiguous())
        pair = place.unflatten(1, (n, -1)).transpose(0, 1).masked_fill(none, pairs)
    edges = pair
    if not graph.is_simple:
        edges_of_pairs = pad(graph.edges_of_pairs, (0, 0, 0, 1), value=scores.shape[1])
        shares = _pick(pad(_shares(scores, merged, graph), (0, 1)), edges_of_pairs)
        row = torch.arange(len(scores), device=pair.device)[:, None]
        shares = shares[row, pair].cumsum(-1)
        device = generator.device if generator is not None else "cpu"
        drawn = torch.rand(pair.shape, dtype=shares.dtype, generator=generator, device=device).to(pair.device)
        # 1 − drawn lies in (0, 1], so that no edge with a share of 0 is drawn.
        at = (1 - drawn)[..., None] * shares[..., -1:]
        edges = edges_of_pairs[row if graph.has_padding else 0, pair, (shares < at).sum(-1)]
    return feasible, edges.masked_fill(none, -1)


# ----------------------------------------------------------------------------- conversion to arcs and back


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """Return the ``values`` (B, X) at the positions ``index`` (1 | B, ...), (B, ...)."""
    if len(index) == 1:
        return values[:, index[0]]
    return values.gather(1, index.flatten(1)).unflatten(1, index.shape[1:])


def _of_edges(values: Tensor, graph: Multigraph) -> Tensor:
    """Return for each edge the number of its pair, (B, E), for ``values`` (B, P); 0 in the padding."""
    return _pick(pad(values, (0, 1)) if graph.has_padding else values, graph.pair)


def _merged(scores: Tensor, graph: Multigraph) -> Tensor:
    """Return the scores of the pairs of nodes, (B, P)."""
    if graph.is_simple:
        return scores
    return logsumexp(_pick(pad(scores, (0, 1), value=float("-inf")), graph.edges_of_pairs), 2)


def _shares(scores: Tensor, merged: Tensor, graph: Multigraph) -> Tensor:
    """Return w, (B, E): 0 for forbidden edges."""
    return torch.where(torch.isneginf(scores), 0.0, (scores - _of_edges(merged, graph)).exp())


def _arcs(values: Tensor, graph: Multigraph, missing: float = float("-inf")) -> tuple[Tensor, Tensor]:
    """Return ``values`` (B, P) as arcs in both directions, and the number of words: all nodes but the first.

    An instance with a single node gets a second node, joined by an arc of score 0 without an edge. So it has one
    tree.
    """
    size = max(graph.nodes, 2)
    if not graph.has_padding:
        arcs = values.new_full((len(values), size * size), missing)
        arcs = arcs.index_copy(1, graph.keys[0], values).index_copy(1, graph.mirrored[0], values)
    else:  # the last column takes the padding
        arcs = values.new_full((len(values), size * size + 1), missing)
        arcs = arcs.scatter(1, graph.keys, values).scatter(1, graph.mirrored, values)[:, :-1]
    alone = graph.lengths < 2
    if bool(alone.any()):
        is_first = torch.arange(size * size, device=values.device) == 1
        arcs = torch.where(alone[:, None] & is_first, 0.0, arcs)
    return arcs.unflatten(1, (size, size)), (graph.lengths - 1).clamp(min=1)


def _both_ways(arcs: Tensor, graph: Multigraph) -> Tensor:
    """Return the sums of the two arcs of each pair, (B, P); 0 for an instance with a single node."""
    flat = arcs.flatten(1)
    if not graph.has_padding:
        total = flat.index_select(1, graph.keys[0]).add_(flat.index_select(1, graph.mirrored[0]))
    else:
        flat = pad(flat, (0, 1))
        total = flat.gather(1, graph.keys).add_(flat.gather(1, graph.mirrored))
    return total.masked_fill_((graph.lengths < 2)[:, None], 0.0)
