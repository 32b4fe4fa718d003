"""Relaxed random walks through a hypergraph: each choice of a derivation is a softmax of noisy scores.

A derivation is drawn from the goal down: at each node, the hyperedge of highest score plus Gumbel noise. Here each node
divides its flow among its hyperedges by a softmax of the noisy scores, which is differentiable in the scores.

References
----------
Y. Fu, C. Tan, B. Bi, M. Chen, Y. Feng & A. Rush, Latent template induction with Gumbel-CRFs, NeurIPS 2020, Algorithm 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.logsumexp import logsumexp
from ..parts import divide_by_temperature
from ..solvers.conditional_noise import gumbel_scores_given_choice
from . import torch_backend
from .hypergraph import Hypergraph
from .torch_backend import Bucket

__all__ = ["RelaxedWalks", "relaxed_walks"]


class RelaxedWalks(NamedTuple):
    """Relaxed derivations of a hypergraph, with the derivations that they relax.

    Attributes
    ----------
    relaxed : (B, P) float64 Tensor
        The flow through each part, differentiable in θ by autograd.
    drawn : (B, P) float64 Tensor
        The parts of a sample of p(y) ∝ exp⟨θ, y⟩, with the same noise, without a gradient.
    value : (B,) float64 Tensor
        log Z, differentiable in θ.
    relaxed_again : (B, P) float64 Tensor, or None
        The flow for other noise that leads to the same sample, differentiable in θ.
    """

    relaxed: Tensor
    drawn: Tensor
    value: Tensor
    relaxed_again: Tensor | None


def relaxed_walks(
    graph: Hypergraph,
    theta: Tensor,
    goal: Tensor,
    noise: Tensor,
    temperature: float | Tensor,
    noise_again: Tensor | None = None,
) -> RelaxedWalks:
    """Return relaxed derivations, with the derivations that they relax.

    The noisy scores of a node are independent of the noisy scores of other nodes. Given the derivation, they have the
    largest value at the chosen hyperedge for nodes of the derivation, and their former distribution for other nodes.

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
    noise_again : (B, E + 1) float64 Tensor, optional
        Further Gumbel noise, for relaxed derivations given the sample.
    """
    scores: dict[int, Tensor] = {}
    choices: dict[int, Tensor] = {}

    def sum_scores(bucket: Bucket, x: Tensor) -> Tensor:
        scores[id(bucket)] = x
        return logsumexp(x, -1)

    def add_noise(bucket: Bucket) -> Tensor:
        x = scores[id(bucket)]
        return torch.where(x > -torch.inf, x + noise[:, bucket.edges], -torch.inf)

    def add_noise_again(bucket: Bucket) -> Tensor:
        assert noise_again is not None
        x, again, choice = scores[id(bucket)], noise_again[:, bucket.edges], choices[id(bucket)]
        is_visited = (choice > 0).any(-1, keepdim=True)
        given = gumbel_scores_given_choice(torch.where(is_visited, x, 0.0), choice, -again)
        free = torch.where(x > -torch.inf, x + again, -torch.inf)
        return torch.where(is_visited, given, free)

    def divide(x: Tensor, flow: Tensor) -> Tensor:
        # Nodes without a derivation get no flow.
        is_dead = (x.detach() == -torch.inf).all(-1, keepdim=True)
        scaled = divide_by_temperature(x.masked_fill(is_dead, 0.0), temperature)
        assert isinstance(scaled, Tensor)
        return scaled.softmax(-1) * flow.unsqueeze(-1)

    def choose(bucket: Bucket, flow: Tensor) -> Tensor:
        x = add_noise(bucket).detach()
        choices[id(bucket)] = torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), flow.unsqueeze(-1))
        return choices[id(bucket)]

    value = torch_backend.at_goals(torch_backend.evaluate_nodes(graph, theta, sum_scores), goal)
    one, goal = torch.ones_like(value, requires_grad=False).detach(), goal.clamp(min=0)
    relaxed, _ = torch_backend.send_flow(graph, goal, one, lambda bucket, flow: divide(add_noise(bucket), flow))
    drawn, _ = torch_backend.send_flow(graph, goal, one, choose)
    again = None
    if noise_again is not None:
        again, _ = torch_backend.send_flow(graph, goal, one, lambda bucket, flow: divide(add_noise_again(bucket), flow))
    return RelaxedWalks(relaxed, drawn, value, again)
