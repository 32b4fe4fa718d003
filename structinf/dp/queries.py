"""Numbers of derivations, lists of all of them, their entropy and probabilities."""

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

# Of a perceptron. What it has not found by then is taken for a point inside the hull: a sum of structures, but none.
_MAX_MOVES = 1000


def count(
    graph: Hypergraph, goal: int, dropped_parts: Tensor | None = None, dropped_edges: Tensor | None = None
) -> int:
    """The number of derivations of ``goal``, exact, without those that use dropped parts (P,) or hyperedges (E,)."""
    kept = np.ones(graph.edges, np.bool_)
    if dropped_parts is not None:
        kept &= ~np.append(dropped_parts.numpy(), False)[graph.part]
    if dropped_edges is not None:
        kept &= ~dropped_edges.numpy()
    counts = np.ones(graph.nodes + 1, object)  # Python's integers, which do not overflow; 1 for no tail
    for nodes, edges in graph.by_level:
        each = counts[graph.tails[edges, 0]] * counts[graph.tails[edges, 1]] * kept[edges].astype(int)
        counts[nodes] = np.add.reduceat(each, np.searchsorted(graph.head[edges], nodes))
    return int(counts[goal])


def derivations(graph: Hypergraph, goal: int, count: int) -> Tensor:
    """The parts of all ``count`` derivations of ``goal``, (count, P) float64."""
    _, structures = dispatch.list_derivations(graph, torch.zeros(1, graph.edges), torch.tensor([goal]), count)
    return structures.squeeze(1)


def support(
    graph: Hypergraph, q: Float[Tensor, "batch edges"], goal: Tensor, max_structures: int
) -> tuple[Tensor, Tensor]:
    """Probabilities (K, B) and parts (K, B, P) of all derivations that a walk along q can make, the likeliest first.

    InvalidInputError if there are more than ``max_structures``.
    """
    counts = [count(graph, int(g), dropped_edges=row) for g, row in zip(goal, (q == 0).cpu(), strict=True)]
    largest = max(counts, default=1)
    if largest > max_structures:
        raise InvalidInputError(
            f"{largest} structures have a positive probability at batch index {counts.index(largest)}, more than "
            f"max_structures={max_structures}; lower the temperature, or take a sparse regularizer"
        )
    scores, parts = dispatch.list_derivations(graph, q.log(), goal, largest)
    scores, order = scores.sort(dim=0, descending=True, stable=True)
    return scores.exp(), parts.take_along_dim(order.unsqueeze(2), 0)


def entropy(
    graph: Hypergraph, theta: Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """DP_Ω and the Shannon entropy of the derivation of the goal that a walk along q makes, both (B,) float64.

    H_i = Σ_e q_e (−log q_e + H of the tails): the expectation semiring (Eisner 2002).
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
    """DP_Ω, the log-probability of the structures ``y``, both (B,), and the structures found for them, (B, P)."""
    structures, used = _derivation_of(graph, goal, y)
    v, q = edge_probabilities(graph, theta, regularizer)
    return at_goals(v, goal), torch.special.xlogy(used, q).sum(1), structures


def _derivation_of(graph: Hypergraph, goal: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``y`` and how often its derivation uses each hyperedge; another structure where ``y`` is none.

    The derivation is the best one where the parts that ``y`` lacks are forbidden and each other one scores 1 over its
    number in ``y``: no other has all parts of an indicator. Where larger numbers mislead, scores are moved as a
    perceptron moves them, which ends, since structures are vertices of their hull; or what is found scores less than
    ``y`` would, which is then no structure.
    """
    scores = torch.where(y > 0, 1 / y, -torch.inf)
    moves = 0
    while True:
        _, chosen = edge_probabilities(graph, scores, Unregularized())
        structures, used = send_flow(graph, goal, scores.new_ones(len(scores)), split_flow(chosen))
        ahead = torch.where(y > 0, scores, 0.0) * (
            structures - y
        )  # what is found has no part that y lacks, or scores −inf
        if moves == _MAX_MOVES or bool(((structures == y).all(1) | (ahead.sum(1) < 0)).all()):
            return structures, used
        scores = scores + (y - structures)
        moves += 1
