"""The passes of a smoothed recursion in torch, level by level: any device, dtype and regularizer.

It is the reference for the compiled loops (`structinf.kernels.hypergraph.smoothed_passes`, which states the passes). It
runs on GPUs, and autograd can follow it, which derivatives of third and higher order need. Everything is float64, as
the node values of the compiled loops are.
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
    """Nodes of one level with similar numbers of hyperedges, padded to the largest.

    Attributes
    ----------
    nodes : (n,) int64 Tensor
    edges : (n, d) int64 Tensor
        Hyperedges' numbers; E in the padding.
    part : (n, d) int64 Tensor
        P for none, and P + 1 in the padding.
    tails : tuple of (n, d) int64 Tensors
        As many as there are tails at all; N for none.
    """

    nodes: Tensor
    edges: Tensor
    part: Tensor
    tails: tuple[Tensor, ...]


def buckets_of(graph: Hypergraph, device: torch.device) -> Sequence[Bucket]:
    """The graph's buckets in topological order, on ``device``; made once a graph and device."""
    if device not in graph.plans:
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
        graph.plans[device] = buckets
    return graph.plans[device]


def evaluate_nodes(graph: Hypergraph, theta: Tensor, step: Callable[[Bucket, Tensor], Tensor]) -> Tensor:
    """Values of all nodes, (B, N + 1), the last one 0: ``step`` maps hyperedges' scores (B, n, d) to nodes' (B, n)."""
    is_recorded = torch.is_grad_enabled() and theta.requires_grad
    padded = torch.cat([theta, theta.new_zeros(len(theta), 1), theta.new_full((len(theta), 1), -torch.inf)], 1)
    v, buckets = theta.new_zeros(len(theta), graph.nodes + 1), buckets_of(graph, theta.device)
    pieces = (padded[:, bucket.part.flatten()] for bucket in buckets)
    if is_recorded:  # at once: each piece by itself would have a gradient of θ's size
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
    """Flow from the goals down: ``step`` maps nodes' flow (B, n) to hyperedges' (B, n, d), which reaches their tails.

    Returns
    -------
    parts : (B, P) Tensor
        Flow through the hyperedges of each part.
    edges : (B, E) Tensor
    """
    batch = len(weight)
    w = weight.new_zeros(batch, graph.nodes + 1)
    w[torch.arange(batch, device=w.device), goal] = weight
    parts, edges = w.new_zeros(batch, graph.parts + 2), w.new_zeros(batch, graph.edges + 1)
    for bucket in reversed(buckets_of(graph, w.device)):
        flow = step(bucket, w[:, bucket.nodes]).flatten(1)
        edges[:, bucket.edges.flatten()] = flow
        parts.index_add_(1, bucket.part.flatten(), flow)
        for tail in bucket.tails:
            w.index_add_(1, tail.flatten(), flow)
    return parts[:, :-2], edges[:, :-1]


def at_goals(v: Tensor, goal: Tensor) -> Float[Tensor, " batch"]:
    """The entries of ``v`` (B, N + 1) at each instance's node ``goal`` (B,)."""
    return v.gather(1, goal.unsqueeze(1)).squeeze(1)


def value(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> Float[Tensor, " batch"]:
    """DP_Ω, (B,), which autograd can follow."""
    return at_goals(evaluate_nodes(graph, theta.double(), lambda _, x: smooth_max(regularizer, x)), goal)


def edge_probabilities(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """Values of all nodes, (B, N + 1), and the probability of each hyperedge given its head, (B, E), float64."""
    q = theta.new_zeros(len(theta), graph.edges + 1, dtype=torch.float64)

    def step(bucket: Bucket, x: Tensor) -> Tensor:
        q[:, bucket.edges] = smooth_max_gradient(regularizer, x)
        return smooth_max_value(regularizer, x)

    return evaluate_nodes(graph, theta.double(), step), q[:, :-1]


def value_and_mean(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """DP_Ω, (B,), and its gradient, (B, P), float64."""
    v, q = edge_probabilities(graph, theta, regularizer)
    parts, _ = send_flow(graph, goal, torch.ones_like(v[:, 0]), split_flow(q))
    return at_goals(v, goal), parts


def split_flow(q: Float[Tensor, "batch edges"]) -> Callable[[Bucket, Tensor], Tensor]:
    """The step of :func:`send_flow` that spends each node's flow along ``q``."""
    padded = torch.nn.functional.pad(q, (0, 1))
    return lambda bucket, w: padded[:, bucket.edges] * w.unsqueeze(2)


def hessian_product(
    graph: Hypergraph,
    theta: Float[Tensor, "batch parts"],
    direction: Float[Tensor, "batch parts"],
    goal: Tensor,
    regularizer: Regularizer,
) -> tuple[Tensor, Tensor]:
    """DP_Ω, (B,), and ∇²DP_Ω times ``direction``, (B, P), float64."""
    v, q = edge_probabilities(graph, theta, regularizer)
    padded = torch.nn.functional.pad(q, (0, 1))
    q_dot = torch.zeros_like(padded)

    def tangent(bucket: Bucket, x_dot: Tensor) -> Tensor:
        # The direction is 0 in the padding, not −inf, where q is 0.
        x_dot, scores = torch.where(bucket.edges == graph.edges, 0.0, x_dot), padded[:, bucket.edges]
        q_dot[:, bucket.edges] = regularizer.hessian_product(scores, x_dot)
        return (scores * x_dot).sum(2)

    evaluate_nodes(graph, direction.double(), tangent)
    q_dot[:, -1] = 0.0
    # ḟ = q̇ w + q ẇ: both flows go down together, as two halves of a batch.
    twice = torch.cat([padded, padded])

    def down(bucket: Bucket, w: Tensor) -> Tensor:
        flow = twice[:, bucket.edges] * w.unsqueeze(2)
        half = len(w) // 2
        flow[half:] += q_dot[:, bucket.edges] * w[:half].unsqueeze(2)
        return flow

    one = torch.ones_like(v[:, 0])
    parts, _ = send_flow(graph, goal.repeat(2), torch.cat([one, torch.zeros_like(one)]), down)
    return at_goals(v, goal), parts[len(theta) :]
