"""Relaxed random walks through a hypergraph: each choice of a derivation is a softmax of noisy scores.

A derivation is drawn from the goal down: at each node, the hyperedge of highest score plus Gumbel noise. Here each node
divides its flow among its hyperedges by a softmax of the noisy scores, which is differentiable in the scores.

References
----------
Y. Fu, C. Tan, B. Bi, M. Chen, Y. Feng & A. Rush, Latent template induction with Gumbel-CRFs, NeurIPS 2020, Algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.logsumexp import logsumexp
from ..parts import divide_by_temperature
from . import torch_backend
from .hypergraph import Hypergraph
from .torch_backend import Bucket

__all__ = ["relaxed_walks"]


def relaxed_walks(
    graph: Hypergraph,
    theta: Tensor,
    goal: Tensor,
    noise: Tensor,
    temperature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relaxed derivations, with the derivations that they relax.

    Parameters
    ----------
    graph : Hypergraph
        The hypergraph.
    theta : (B, P) float64 Tensor
        Scores of the parts.
    goal : (B,) int64 Tensor
        The goal of each instance.
    noise : (B, E + 1) float64 Tensor
        Gumbel noise of the hyperedges; the last column belongs to no hyperedge.
    temperature : float, or Tensor with one number
        The divisor of the noisy scores in each softmax.

    Returns
    -------
    relaxed : (B, P) Tensor
        The flow through each part, differentiable in θ by autograd.
    drawn : (B, P) Tensor
        The parts of a sample of p(y) ∝ exp⟨θ, y⟩, with the same noise, without a gradient.
    value : (B,) Tensor
        log Z.
    """
    noisy: dict[int, Tensor] = {}

    def sum_scores(bucket: Bucket, x: Tensor) -> Tensor:
        noisy[id(bucket)] = torch.where(x > -torch.inf, x + noise[:, bucket.edges], -torch.inf)
        return logsumexp(x, -1)

    def divide(bucket: Bucket, flow: Tensor) -> Tensor:
        x = noisy[id(bucket)]
        # Nodes without a derivation get no flow.
        is_dead = (x.detach() == -torch.inf).all(-1, keepdim=True)
        scaled = divide_by_temperature(x.masked_fill(is_dead, 0.0), temperature)
        assert isinstance(scaled, Tensor)
        return scaled.softmax(-1) * flow.unsqueeze(-1)

    def choose(bucket: Bucket, flow: Tensor) -> Tensor:
        x = noisy[id(bucket)].detach()
        return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), flow.unsqueeze(-1))

    value = torch_backend.at_goals(torch_backend.evaluate_nodes(graph, theta, sum_scores), goal)
    one = torch.ones_like(value, requires_grad=False)
    goal = goal.clamp(min=0)
    relaxed, _ = torch_backend.send_flow(graph, goal, one.detach(), divide)
    drawn, _ = torch_backend.send_flow(graph, goal, one.detach(), choose)
    return relaxed, drawn, value
