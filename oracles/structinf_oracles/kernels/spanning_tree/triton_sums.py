"""Sums over spanning trees on a GPU, by the formulas of :mod:`.sums`.

Two kernels surround the elimination of :mod:`structinf_oracles.kernels.arborescence.triton_elimination`. For lists of
edges, the first one merges parallel edges and writes the two arcs of each pair of nodes, and the second one divides the
marginals of the arcs among the edges. Each number is written once, by one program, and sums have a fixed order. So no
barrier and no atomic operation is necessary, and results repeat bit for bit. Importing this module imports triton.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch
from structinf.kernels.gpu.triton_smooth_max import finite, log_of_positive

from ..arborescence import dispatch

__all__ = [
    "EdgeLists",
    "Matrices",
    "best_of_pairs",
    "covariance_product",
    "log_partition",
    "log_partition_and_marginals",
]

_BLOCK = 256


class EdgeLists(NamedTuple):
    """The tables of G undirected graphs, padded as in :class:`.sums.Multigraph`, and the graph of each instance."""

    nodes: int
    """The largest number of nodes."""
    keys: Tensor
    """(G, P): the pairs i < j of nodes joined by edges, as i n + j, in order."""
    pair: Tensor
    """(G, E): the pair of each edge."""
    edges_of_pairs: Tensor
    """(G, P, M): the edges of each pair."""
    counts: Tensor | None
    """(G,): the number of nodes of each graph; None if all have the largest number."""
    index: Tensor | None
    """(B,) int64: the graph of each instance; None for one graph."""
    is_simple: bool
    """Whether the edges are the pairs, in order, without parallel edges."""


class Matrices(NamedTuple):
    """Graphs of all pairs of n nodes, with scores (B, n, n) read above the diagonal."""

    lengths: Tensor | None = None
    """(B,) int64: the number of nodes in use, the first nodes; None for all."""

    @property
    def is_simple(self) -> bool:
        """Whether no edges are parallel."""
        return True


Graphs: TypeAlias = "EdgeLists | Matrices"


def log_partition(scores: Tensor, graphs: Graphs) -> Tensor:
    """Return log Z, (B,) in float64, −inf without a tree, for ``scores`` (B, E) or (B, n, n)."""
    arcs = _arcs_of(scores, None, graphs)
    return dispatch.log_partition(arcs.scores, arcs.words)


def log_partition_and_marginals(scores: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
    """Return log Z, (B,) in float64, and the probability of each edge in the form and the dtype of the scores."""
    arcs = _arcs_of(scores, None, graphs)
    value, means = dispatch.log_partition_and_marginals(arcs.scores, arcs.words)
    return value, arcs.to_edges(means, None)


def covariance_product(scores: Tensor, v: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
    """Return log Z, (B,) in float64, and Cov[Y] v in the form of the scores, for v of the scores' or one instance."""
    arcs = _arcs_of(scores, v, graphs)
    value, product = dispatch.covariance_product(arcs.scores, arcs.directions, arcs.words)
    # Without parallel edges, v of an edge is v̄ of its pair, so that the marginals have the factor 0.
    means = None if graphs.is_simple else dispatch.log_partition_and_marginals(arcs.scores, arcs.words)[1]
    return value, arcs.to_edges(means, product)


def best_of_pairs(scores: Tensor, graphs: EdgeLists) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best edge of each pair of nodes, the first of several, in both triangles of matrices.

    Parameters
    ----------
    scores : (B, E) Tensor
        The scores of the edges.
    graphs : EdgeLists
        The graphs.

    Returns
    -------
    best : (B, n, n) float64 Tensor
        The scores of the edges, −inf for pairs without an edge.
    edges : (B, n, n) int32 Tensor
        The numbers of the edges, undefined where the score is −inf.
    counts : (B,) int64 Tensor
        The numbers of nodes.
    """
    edges = torch.empty(len(scores), *[max(graphs.nodes, 2)] * 2, dtype=torch.int32, device=scores.device)
    arcs = _ArcsOfLists(scores, None, graphs, edges)
    return arcs.scores, edges, arcs.words


def _arcs_of(scores: Tensor, v: Tensor | None, graphs: Graphs) -> _ArcsOfLists | _ArcsOfMatrices:
    if isinstance(graphs, Matrices):
        return _ArcsOfMatrices(scores, v, graphs)
    return _ArcsOfLists(scores, v, graphs)


class _ArcsOfMatrices:
    """The scores of all arcs, (B, n, n), the numbers of nodes but the first, (B,), and the arcs of v if v is given."""

    def __init__(self, scores: Tensor, v: Tensor | None, graphs: Matrices) -> None:
        self.words = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
        self.scores = _mirrored(scores, graphs.lengths, self.words)
        self.directions = self.scores if v is None else _mirrored(v.to(scores.dtype))

    def to_edges(self, means: Tensor | None, product: Tensor | None) -> Tensor:
        """Return the sums of the two arcs of each pair i < j, above the diagonal, and 0 elsewhere."""
        arcs = means if product is None else product
        assert arcs is not None
        return _mirrored(arcs, adds=True)


def _mirrored(x: Tensor, lengths: Tensor | None = None, words: Tensor | None = None, *, adds: bool = False) -> Tensor:
    x, n = x.detach().contiguous(), x.shape[1]
    out, lengths = torch.empty_like(x), None if lengths is None else lengths.contiguous()
    launch(_mirror, (len(x), triton.cdiv(n * n, _BLOCK)), x, out, lengths, words, n, ADDS=adds, BLOCK=_BLOCK)
    return out


class _ArcsOfLists:
    """The scores of all arcs, (B, n, n) in float64, the numbers of nodes but the first, and the arcs of v̄.

    With ``choices`` (B, n, n), the scores are those of the best edges, and ``words`` counts all nodes.
    """

    def __init__(self, scores: Tensor, v: Tensor | None, graphs: EdgeLists, choices: Tensor | None = None) -> None:
        self.of_edges, self.graphs = scores.detach().contiguous(), graphs
        self.v = None if v is None else v.detach().to(scores.dtype).expand_as(scores).contiguous()
        self.size = max(graphs.nodes, 2)
        shape = len(scores), self.size, self.size
        self.scores = scores.new_full(shape, float("-inf"), dtype=torch.float64)
        self.directions = self.scores if v is None else torch.zeros_like(self.scores)
        self.words = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
        results = self.scores, None if v is None else self.directions, choices, self.words
        _, pairs, most = graphs.edges_of_pairs.shape
        tables = graphs.index, graphs.keys, graphs.edges_of_pairs, graphs.counts
        sizes = graphs.nodes, self.size, scores.shape[1], pairs, most
        grid = len(scores), max(1, triton.cdiv(pairs, _BLOCK))
        launch(_merge, grid, self.of_edges, self.v, *tables, *results, *sizes, BLOCK=_BLOCK)

    def to_edges(self, means: Tensor | None, product: Tensor | None) -> Tensor:
        """Return the marginals of the edges, or Cov[Y] v with ``product``, from those of the arcs."""
        out, graphs = torch.empty_like(self.of_edges), self.graphs
        tables = graphs.index, graphs.keys, graphs.pair, self.scores, self.directions
        sizes = self.size, out.shape[1], graphs.keys.shape[1]
        arguments = self.of_edges, self.v, *tables, means, product, out, *sizes
        launch(_split, (len(out), triton.cdiv(out.shape[1], _BLOCK)), *arguments, BLOCK=_BLOCK)
        return out


# A size of 1 stays a variable: as a constant it would not be a tensor, as the conditions below need.
@triton.jit(do_not_specialize=["nodes", "size", "edges", "pairs", "most"])
def _merge(
    scores, v, index, keys, edges_of_pairs, counts, arcs, directions, choices, words, nodes, size, edges, pairs,
    most, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write log Σ exp of the edges of each pair, and their mean of v, or the best edge, as both arcs of the pair."""
    b = tl.program_id(0).to(tl.int64)
    graph, count = b * 0, nodes
    if index is not None:
        graph = tl.load(index + b)
    if counts is not None:
        count = tl.load(counts + graph)
    scores, arcs = scores + b * edges, arcs + b * size * size
    if tl.program_id(1) == 0:
        if choices is not None:
            tl.store(words + b, count.to(tl.int64))
        else:
            # A single node gets a second node, joined by an arc of score 0 without an edge: the only tree.
            tl.store(words + b, tl.maximum(count - 1, 1).to(tl.int64))
            tl.store(arcs + 1, tl.zeros([], tl.float64), mask=count < 2)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + graph * pairs + p, mask=p < pairs, other=-1)
    inside = (key >= 0) & (key < size * size)
    place = edges_of_pairs + (graph * pairs + p) * most
    mirrored = key % size * size + key // size
    top, best = tl.full([BLOCK], float("-inf"), tl.float64), tl.zeros([BLOCK], tl.int32)
    for m in range(most):
        e = tl.load(place + m, mask=inside, other=edges)
        score = tl.load(scores + e, mask=e < edges, other=float("-inf")).to(tl.float64)
        best = tl.where(score > top, e.to(tl.int32), best)
        top = tl.where(score > top, score, top)
    value = top
    if choices is not None:
        choices += b * size * size
        tl.store(choices + key, best, mask=inside)
        tl.store(choices + mirrored, best, mask=inside)
    else:
        shift = finite(top)
        total, moved = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
        for m in range(most):
            e = tl.load(place + m, mask=inside, other=edges)
            share = tl.exp(tl.load(scores + e, mask=e < edges, other=float("-inf")).to(tl.float64) - shift)
            total += share
            if v is not None:
                moved += share * tl.load(v + b * edges + e, mask=e < edges, other=0.0).to(tl.float64)
        value = shift + log_of_positive(total)
        if v is not None:
            directions += b * size * size
            mean = moved / tl.where(total > 0, total, 1.0)
            tl.store(directions + key, mean, mask=inside)
            tl.store(directions + mirrored, mean, mask=inside)
    tl.store(arcs + key, value, mask=inside)
    tl.store(arcs + mirrored, value, mask=inside)


@triton.jit(do_not_specialize=["size", "edges", "pairs"])
def _split(
    scores, v, index, keys, pair, arcs, directions, means, product, out, size, edges, pairs, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the marginal of each edge, or the entry of the product."""
    b = tl.program_id(0).to(tl.int64)
    graph = b * 0
    if index is not None:
        graph = tl.load(index + b)
    matrix = b * size * size
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(pair + graph * edges + e, mask=e < edges, other=pairs)
    inside = p < pairs
    key = tl.load(keys + graph * pairs + p, mask=inside, other=0)
    mirrored = key % size * size + key // size
    x = tl.load(scores + b * edges + e, mask=inside, other=float("-inf")).to(tl.float64)
    allowed = x > float("-inf")
    merged = tl.load(arcs + matrix + key, mask=inside & allowed, other=0.0)
    share = tl.where(allowed, tl.exp(tl.where(allowed, x, 0.0) - merged), 0.0)
    result = tl.zeros([BLOCK], tl.float64)
    if means is not None:
        result += tl.load(means + matrix + key, mask=inside, other=0.0)
        result += tl.load(means + matrix + mirrored, mask=inside, other=0.0)
    if product is not None:
        if means is not None:
            own = tl.load(v + b * edges + e, mask=inside, other=0.0).to(tl.float64)
            result *= own - tl.load(directions + matrix + key, mask=inside, other=0.0)
        result += tl.load(product + matrix + key, mask=inside, other=0.0)
        result += tl.load(product + matrix + mirrored, mask=inside, other=0.0)
    tl.store(out + b * edges + e, (share * result).to(out.dtype.element_ty), mask=e < edges)


@triton.jit(do_not_specialize=["n"])
def _mirror(x, out, lengths, words, n, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy the entries above the diagonal below it, or with ``ADDS`` add the entries below it to those above."""
    b = tl.program_id(0).to(tl.int64)
    if words is not None:
        size = n
        if lengths is not None:
            size = tl.load(lengths + b)
        tl.store(words + b, (size - 1).to(tl.int64), mask=tl.program_id(1) == 0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i, j, inside = at // n, at % n, at < n * n
    x, low, high = x + b * n * n, tl.minimum(i, j), tl.maximum(i, j)
    value = tl.load(x + low * n + high, mask=inside, other=0.0)
    if ADDS:
        value = tl.where(i < j, value + tl.load(x + high * n + low, mask=inside, other=0.0), 0.0)
    tl.store(out + b * n * n + at, value, mask=inside)
