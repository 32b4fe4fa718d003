"""The passes of a smoothed recursion in torch, level by level, for any device, dtype and regularizer.

This module is the reference for the compiled loops of `structinf.kernels.hypergraph.smoothed_passes`, whose docstring
has the formulas. The torch passes run on GPUs and support autograd, needed for derivatives of third and higher order.
All numbers are float64, like the node values in the compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..regularizers import Regularizer, smooth_max_gradient, smooth_max_value
from ..shapes import Float
from ..smoothing import smooth_max
from .hypergraph import Hypergraph

__all__ = [
    "Bucket",
    "at_goals",
    "buckets_of",
    "edge_probabilities",
    "evaluate_nodes",
    "hessian_product",
    "send_flow",
    "split_flow",
    "value",
    "value_and_mean",
]


class Bucket(NamedTuple):
    """Nodes of one level with similar numbers of hyperedges, padded to the largest number d.

    Attributes
    ----------
    nodes : (n,) int64 Tensor
        Node numbers.
    edges : (n, d) int64 Tensor
        Hyperedge numbers; E in the padding.
    part : (n, d) int64 Tensor
        The part of each hyperedge: P for no part, P + 1 in the padding.
    tails : tuple of (n, d) int64 Tensors
        First tails, then second tails, omitted if no hyperedge of the bucket has such a tail; N for no tail.
    """

    nodes: Tensor
    edges: Tensor
    part: Tensor
    tails: tuple[Tensor, ...]


def buckets_of(graph: Hypergraph, device: torch.device) -> Sequence[Bucket]:
    """Return the buckets of the graph in topological order, on ``device``; `Hypergraph.cached` keeps them."""
    part, tails = np.append(graph.part, graph.parts + 1), np.append(graph.tails, [[graph.nodes] * 2], 0)
    degree, buckets = np.diff(graph.offset), []

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    for nodes, _ in graph.by_level:
        size = np.ceil(np.log2(degree[nodes])).astype(int)
        for s in np.unique(size):
            chosen = nodes[size == s]
            columns = np.arange(degree[chosen].max())
            edges = graph.offset[chosen, None] + columns
            edges[columns >= degree[chosen, None]] = graph.edges
            used = [t for t in np.moveaxis(tails[edges], 2, 0) if (t < graph.nodes).any()]
            buckets.append(
                Bucket(on_device(chosen), on_device(edges), on_device(part[edges]), tuple(map(on_device, used)))
            )
    return buckets


def evaluate_nodes(graph: Hypergraph, theta: Tensor, step: Callable[[Bucket, Tensor], Tensor]) -> Tensor:
    """Return the values of all nodes, (B, N + 1), with 0 in the last column for a missing tail.

    ``step`` maps the scores of hyperedges (B, n, d) to the values of their heads (B, n).
    """
    is_recorded = torch.is_grad_enabled() and theta.requires_grad
    padded = torch.cat([theta, theta.new_zeros(len(theta), 1), theta.new_full((len(theta), 1), -torch.inf)], 1)
    v, buckets = theta.new_zeros(len(theta), graph.nodes + 1), graph.cached(buckets_of, theta.device)
    pieces = (padded[:, bucket.part.flatten()] for bucket in buckets)
    if is_recorded:  # one indexing operation, since each separate one would allocate a gradient of the size of θ
        parts = torch.cat([bucket.part.flatten() for bucket in buckets])
        pieces = padded[:, parts].split([bucket.part.numel() for bucket in buckets], 1)
    for bucket, scores in zip(buckets, pieces, strict=True):
        x = scores.reshape(len(theta), *bucket.part.shape)
        for tail in bucket.tails:
            x = x + v[:, tail]
        new = step(bucket, x)
        v = v.index_copy(1, bucket.nodes, new) if is_recorded else v.index_copy_(1, bucket.nodes, new)
    return v


def send_flow(
    graph: Hypergraph, goal: Tensor, weight: Tensor, step: Callable[[Bucket, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Send the flow ``weight`` (B,) from the goals down to the leaves.

    ``step`` splits the flow of nodes (B, n) among their hyperedges (B, n, d). Each hyperedge passes its flow to all of
    its tails.

    Returns
    -------
    parts : (B, P) Tensor
        The total flow through the hyperedges of each part.
    edges : (B, E) Tensor
        The flow through each hyperedge.
    """
    batch = len(weight)
    w = weight.new_zeros(batch, graph.nodes + 1)
    w[torch.arange(batch, device=w.device), goal] = weight
    parts, edges = w.new_zeros(batch, graph.parts + 2), w.new_zeros(batch, graph.edges + 1)
    for bucket in reversed(graph.cached(buckets_of, w.device)):
        flow = step(bucket, w[:, bucket.nodes]).flatten(1)
        edges[:, bucket.edges.flatten()] = flow
        parts.index_add_(1, bucket.part.flatten(), flow)
        for tail in bucket.tails:
            w.index_add_(1, tail.flatten(), flow)
    return parts[:, :-2], edges[:, :-1]


def at_goals(v: Tensor, goal: Tensor) -> Float[Tensor, " batch"]:
    """Return the entry of ``v`` (B, N + 1) at the node ``goal`` (B,) of each instance; −inf for the goal −1."""
    return torch.where(goal < 0, -torch.inf, v.gather(1, goal.clamp(min=0).unsqueeze(1)).squeeze(1))


def value(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> Float[Tensor, " batch"]:
    """Return DP_Ω(θ), (B,), differentiable by autograd."""
    return at_goals(evaluate_nodes(graph, theta.double(), lambda _, x: smooth_max(regularizer, x)), goal)


def edge_probabilities(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """Return the values of all nodes, (B, N + 1), and P(hyperedge | head) of each hyperedge, (B, E), in float64."""
    q = theta.new_zeros(len(theta), graph.edges + 1, dtype=torch.float64)

    def step(bucket: Bucket, x: Tensor) -> Tensor:
        q[:, bucket.edges] = smooth_max_gradient(regularizer, x)
        return smooth_max_value(regularizer, x)

    return evaluate_nodes(graph, theta.double(), step), q[:, :-1]


def value_and_mean(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,), and its gradient, (B, P), in float64."""
    v, q = edge_probabilities(graph, theta, regularizer)
    parts, _ = send_flow(graph, goal, torch.ones_like(v[:, 0]), split_flow(q))
    return at_goals(v, goal), parts


def split_flow(q: Float[Tensor, "batch edges"]) -> Callable[[Bucket, Tensor], Tensor]:
    """Return a step for :func:`send_flow` that splits the flow of each node in proportion to ``q``."""
    padded = torch.nn.functional.pad(q, (0, 1))
    return lambda bucket, w: padded[:, bucket.edges] * w.unsqueeze(2)


def hessian_product(
    graph: Hypergraph,
    theta: Float[Tensor, "batch parts"],
    direction: Float[Tensor, "batch parts"],
    goal: Tensor,
    regularizer: Regularizer,
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,), and ∇²DP_Ω(θ) times ``direction``, (B, P), in float64."""
    v, q = edge_probabilities(graph, theta, regularizer)
    padded = torch.nn.functional.pad(q, (0, 1))
    q_dot = torch.zeros_like(padded)

    def tangent(bucket: Bucket, x_dot: Tensor) -> Tensor:
        # Replace −inf by 0 in the padding, where q = 0: the product 0 · −inf would be NaN.
        x_dot, scores = torch.where(bucket.edges == graph.edges, 0.0, x_dot), padded[:, bucket.edges]
        q_dot[:, bucket.edges] = regularizer.hessian_product(scores, x_dot)
        return (scores * x_dot).sum(2)

    evaluate_nodes(graph, direction.double(), tangent)
    q_dot[:, -1] = 0.0
    # ḟ = q̇ w + q ẇ. The flows w and ẇ are the two halves of one batch.
    twice = torch.cat([padded, padded])

    def down(bucket: Bucket, w: Tensor) -> Tensor:
        flow = twice[:, bucket.edges] * w.unsqueeze(2)
        half = len(w) // 2
        flow[half:] += q_dot[:, bucket.edges] * w[:half].unsqueeze(2)
        return flow

    one = torch.ones_like(v[:, 0])
    parts, _ = send_flow(graph, goal.repeat(2), torch.cat([one, torch.zeros_like(one)]), down)
    return at_goals(v, goal), parts[len(theta) :]
