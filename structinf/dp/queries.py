"""Number, list, entropy and log-probabilities of the derivations of a hypergraph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..regularizers import Regularizer, Unregularized
from ..shapes import Float, Float64
from . import dispatch
from .hypergraph import Hypergraph
from .torch_backend import Bucket, at_goals, edge_probabilities, evaluate_nodes, send_flow, split_flow

__all__ = ["count", "derivations", "entropy", "log_prob", "support"]

# Limit of perceptron updates. After the last update, y counts as a mixture of structures that is no structure itself.
_MAX_MOVES = 1000


def count(
    graph: Hypergraph, goal: int, dropped_parts: Tensor | None = None, dropped_edges: Tensor | None = None
) -> int:
    """Return the exact number of derivations of ``goal`` without dropped parts (P,) and dropped hyperedges (E,)."""
    kept = np.ones(graph.edges, np.bool_)
    if dropped_parts is not None:
        kept &= ~np.append(dropped_parts.numpy(), False)[graph.part]
    if dropped_edges is not None:
        kept &= ~dropped_edges.numpy()
    counts = np.ones(graph.nodes + 1, object)  # Python integers cannot overflow; a missing tail counts 1
    for nodes, edges in graph.by_level:
        each = counts[graph.tails[edges, 0]] * counts[graph.tails[edges, 1]] * kept[edges].astype(int)
        counts[nodes] = np.add.reduceat(each, np.searchsorted(graph.head[edges], nodes))
    return int(counts[goal])


def derivations(graph: Hypergraph, goal: int, count: int) -> Tensor:
    """Return the parts of all ``count`` derivations of ``goal``, (count, P) float64."""
    _, structures = dispatch.list_derivations(
        graph, torch.zeros(1, graph.edges, device="cpu"), torch.tensor([goal], device="cpu"), count
    )
    return structures.squeeze(1)


def support(
    graph: Hypergraph, q: Float[Tensor, "batch edges"], goal: Tensor, max_structures: int
) -> tuple[Tensor, Tensor]:
    """Return probabilities (K, B) and parts (K, B, P) of all derivations of positive probability, likeliest first.

    ``q`` holds the probability of each hyperedge given its head. Raises InvalidInputError if an instance has more than
    ``max_structures`` derivations.
    """
    counts = [count(graph, int(g), dropped_edges=row) for g, row in zip(goal, (q == 0).cpu(), strict=True)]
    largest = max(counts, default=1)
    if largest > max_structures:
        raise InvalidInputError(
            f"{largest} structures have a positive probability at batch index {counts.index(largest)}, more than "
            f"max_structures={max_structures}; lower the temperature, or use a sparse regularizer"
        )
    scores, parts = dispatch.list_derivations(graph, q.log(), goal, largest)
    scores, order = scores.sort(dim=0, descending=True, stable=True)
    return scores.exp(), parts.take_along_dim(order.unsqueeze(2), 0)


def entropy(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ) and the Shannon entropy of a random derivation of the goal, both (B,) float64.

    Each node i chooses a hyperedge e with probability q_e. Its entropy H_i is Σ_e q_e (−log q_e + H of the tails), a
    recursion in the expectation semiring (Eisner 2002).
    """
    v, q = edge_probabilities(graph, theta, regularizer)
    padded = torch.nn.functional.pad(q, (0, 1))

    def step(bucket: Bucket, tails: Tensor) -> Tensor:
        q_of_bucket = padded[:, bucket.edges]
        return (torch.special.entr(q_of_bucket) + q_of_bucket * torch.where(q_of_bucket > 0, tails, 0.0)).sum(2)

    h = evaluate_nodes(graph, torch.zeros_like(theta, dtype=torch.float64), step)
    return at_goals(v, goal), at_goals(h, goal)


def log_prob(
    graph: Hypergraph,
    theta: Float[Tensor, "batch parts"],
    goal: Tensor,
    y: Float64[Tensor, "batch parts"],
    regularizer: Regularizer,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω(θ) and the log-probability of ``y``, both (B,), and the structures recovered from ``y``, (B, P).

    The recovered structure differs from ``y`` if ``y`` is no structure.
    """
    structures, used = _derivation_of(graph, goal, y)
    v, q = edge_probabilities(graph, theta, regularizer)
    return at_goals(v, goal), torch.special.xlogy(used, q).sum(1), structures


def _derivation_of(graph: Hypergraph, goal: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the structure ``y`` and the count of each hyperedge in its derivation; another structure for invalid y.

    The derivation is the best one for scores of −inf at parts with y = 0, and 1 / y at all other parts. For a 0/1
    structure ``y``, no other derivation scores as much. For larger counts the best derivation can differ from ``y``,
    and perceptron updates correct the scores. If ``y`` is a structure, the updates end, because structures are vertices
    of their convex hull. If the best derivation scores less than ``y``, then ``y`` is no structure.
    """
    scores = torch.where(y > 0, 1 / y, -torch.inf)
    moves = 0
    while True:
        _, chosen = edge_probabilities(graph, scores, Unregularized())
        structures, used = send_flow(graph, goal, scores.new_ones(len(scores)), split_flow(chosen))
        # Parts with y = 0 need no term: a derivation with such a part scores −inf.
        ahead = torch.where(y > 0, scores, 0.0) * (structures - y)
        if moves == _MAX_MOVES or bool(((structures == y).all(1) | (ahead.sum(1) < 0)).all()):
            return structures, used
        scores = scores + (y - structures)
        moves += 1
