"""Numbers of derivations, lists of all of them, their entropy and probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..regularizers import Regularizer, Unregularized
from .hypergraph import Hypergraph
from .levels import Bucket, edge_probabilities, recur, walk

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["count", "derivations", "edge_probabilities", "entropy", "log_prob"]


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


def derivations(graph: Hypergraph, goal: int) -> Tensor:
    """The parts of all derivations of ``goal``, (count, P) float64."""
    needed = np.zeros(graph.nodes + 1, np.bool_)
    needed[goal] = True
    for _, edges in reversed(graph.by_level):
        needed[graph.tails[edges[needed[graph.head[edges]]]]] = True
    found: dict[int, np.ndarray] = {graph.nodes: np.zeros((1, graph.parts), np.float32)}
    for i in np.flatnonzero(needed[:-1]):
        lists = []
        for edge in range(graph.offset[i], graph.offset[i + 1]):
            one, other = (found[int(tail)] for tail in graph.tails[edge])
            both = (one[:, None] + other[None]).reshape(-1, graph.parts)
            if graph.part[edge] < graph.parts:
                both[:, graph.part[edge]] += 1
            lists.append(both)
        found[int(i)] = np.concatenate(lists)
    return torch.from_numpy(found[goal]).double()


def entropy(
    graph: Hypergraph, theta: jaxtyping.Float[Tensor, "batch parts"], goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """DP_Ω and the Shannon entropy of the derivation of the goal that a walk along q makes, both (B,) float64.

    H_i = Σ_e q_e (−log q_e + H of the tails): the expectation semiring (Eisner 2002).
    """
    v, q = edge_probabilities(graph, theta, regularizer)
    padded = torch.nn.functional.pad(q, (0, 1))

    def step(bucket: Bucket, tails: Tensor) -> Tensor:
        own = padded[:, bucket.edges]
        return (torch.special.entr(own) + own * torch.where(own > 0, tails, 0.0)).sum(2)

    h = recur(graph, torch.zeros_like(theta, dtype=torch.float64), step)
    index = goal.unsqueeze(1)
    return v.gather(1, index).squeeze(1), h.gather(1, index).squeeze(1)


def log_prob(
    graph: Hypergraph,
    theta: jaxtyping.Float[Tensor, "batch parts"],
    goal: Tensor,
    y: jaxtyping.Float[Tensor, "batch parts"],
    regularizer: Regularizer,
) -> tuple[Tensor, Tensor, Tensor]:
    """DP_Ω, the log-probability of the structures ``y``, both (B,), and the structures found for them, (B, P).

    With the parts that ``y`` lacks forbidden and the others scored by their number in ``y``, its derivation is the best.
    """
    only = torch.where(y > 0, y, -torch.inf).double()
    _, chosen = edge_probabilities(graph, only, Unregularized())
    padded = torch.nn.functional.pad(chosen, (0, 1))
    found, used = walk(
        graph, goal, torch.ones_like(only[:, 0]), lambda bucket, w: padded[:, bucket.edges] * w.unsqueeze(2)
    )
    v, q = edge_probabilities(graph, theta, regularizer)
    return v.gather(1, goal.unsqueeze(1)).squeeze(1), torch.special.xlogy(used, q).sum(1), found.to(y.dtype)
