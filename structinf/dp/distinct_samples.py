"""Random derivations without replacement: stochastic beam search on the derivations of a hypergraph.

Each partial derivation stands for the set of its completions. Its perturbed log-probability is the maximum over the
set of log p(y) plus Gumbel noise. The n partial derivations of highest perturbed log-probability hold the n
derivations of highest perturbed log-probability, and these are n draws without replacement.

References
----------
W. Kool, H. van Hoof & M. Welling, Stochastic beams and where to find them: the Gumbel-top-k trick for sampling
sequences without replacement, ICML 2019, §4.1 and appendix B.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .hypergraph import Hypergraph

__all__ = ["distinct_derivations", "log_probabilities"]


def distinct_derivations(
    graph: Hypergraph, log_q: Tensor, goal: Tensor, n: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw n different derivations of each instance, in the order of their draws.

    Parameters
    ----------
    graph : Hypergraph
        The hypergraph.
    log_q : (B, E) float64 Tensor
        log P(hyperedge | head) of each hyperedge.
    goal : (B,) int64 Tensor
        The goal of each instance.
    n : int
        The number of draws.
    generator : torch.Generator, optional
        The source of randomness.

    Returns
    -------
    parts : (n, B, P) float64 Tensor
        The number of times that a derivation uses each part; 0 beyond the last derivation.
    valid : (n, B) bool Tensor
        False beyond the number of derivations of positive probability.
    """
    batch, device = len(goal), log_q.device
    log_q = pad(log_q, (0, 1), value=-torch.inf)
    offset, part, tails = (torch.from_numpy(a).to(device, torch.int64) for a in (graph.offset, graph.part, graph.tails))
    nothing = graph.nodes
    part, tails = pad(part, (0, 1), value=graph.parts), pad(tails, (0, 0, 0, 1), value=nothing)
    column, rows = torch.arange(graph.degree, device=device), torch.arange(batch, device=device)[:, None]
    log_p, perturbed = (log_q.new_full((batch, n), -torch.inf) for _ in range(2))
    log_p[:, :1], perturbed[:, :1] = 0, _gumbel((batch, 1), log_q, generator)
    # The nodes that a partial derivation still has to derive, the next one last.
    open_nodes = torch.full((batch, n, 1), nothing, device=device)
    open_nodes[:, :, 0] = goal[:, None]
    depth = torch.ones(batch, n, dtype=torch.int64, device=device)
    steps: list[tuple[Tensor, Tensor]] = []
    while bool(((depth > 0) & (log_p > -torch.inf)).any()):
        is_complete = (depth == 0) | (log_p == -torch.inf)
        top = open_nodes.gather(2, (depth - 1).clamp(min=0)[:, :, None])[:, :, 0]
        node = torch.where(is_complete, 0, top)
        edges = offset[node][:, :, None] + column
        edges = torch.where((edges < offset[node + 1][:, :, None]) & ~is_complete[:, :, None], edges, graph.edges)
        children = log_p[:, :, None] + log_q[rows[:, :, None], edges]
        noisy = _given_maximum(children, perturbed, generator)
        # A complete derivation is its own only child.
        children[:, :, 0] = torch.where(is_complete, log_p, children[:, :, 0])
        noisy[:, :, 0] = torch.where(is_complete, perturbed, noisy[:, :, 0])
        perturbed, chosen = _best(noisy.flatten(1), n)
        parent = chosen.div(graph.degree, rounding_mode="floor")
        log_p = children.flatten(1).gather(1, chosen)
        edge = edges.flatten(1).gather(1, chosen)
        steps.append((parent, edge))
        moves = ~is_complete.gather(1, parent)
        depth = depth.gather(1, parent) - moves.to(torch.int64)
        open_nodes = open_nodes.gather(1, parent[:, :, None].expand(-1, -1, open_nodes.shape[2]))
        for tail in tails[edge].flip(2).unbind(2):
            needed = moves & (tail != nothing)
            if int(depth.max()) == open_nodes.shape[2]:
                open_nodes = pad(open_nodes, (0, open_nodes.shape[2]), value=nothing)
            open_nodes.scatter_(2, depth[:, :, None], torch.where(needed, tail, nothing)[:, :, None])
            depth = depth + needed
    valid = perturbed > -torch.inf
    parts = log_q.new_zeros(batch, n, graph.parts + 1)
    place = torch.arange(n, device=device).expand(batch, n)
    for parent, edge in reversed(steps):
        parts.scatter_add_(2, part[edge.gather(1, place)][:, :, None], torch.ones_like(parts[:, :, :1]))
        place = parent.gather(1, place)
    return (parts[:, :, :-1] * valid[:, :, None]).transpose(0, 1), valid.T


def log_probabilities(graph: Hypergraph, theta: Tensor, v: Tensor) -> Tensor:
    """Return log P(hyperedge | head) under p(y) ∝ exp⟨θ, y⟩, (B, E), also where the probabilities underflow.

    Parameters
    ----------
    graph : Hypergraph
        The hypergraph.
    theta : (B, P) Tensor
        Scores of the parts.
    v : (B, N + 1) float64 Tensor
        log Z of each node, and 0 for a missing tail.
    """
    part, tails, head = (torch.from_numpy(a).to(v.device, torch.int64) for a in (graph.part, graph.tails, graph.head))
    scores = pad(theta.double(), (0, 1))[:, part] + v[:, tails[:, 0]] + v[:, tails[:, 1]]
    return torch.where(scores > -torch.inf, scores - v[:, head], -torch.inf)


def _gumbel(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = like.device if generator is None else generator.device
    exponential = torch.empty(shape, dtype=like.dtype, device=device).exponential_(generator=generator)
    return -exponential.to(like.device).clamp(min=torch.finfo(like.dtype).tiny).log()


def _given_maximum(locations: Tensor, maximum: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return Gumbel variables with ``locations`` (..., d), given that the largest of them is ``maximum`` (...)."""
    free = locations + _gumbel(tuple(locations.shape), locations, generator)
    top, maximum = free.amax(-1, keepdim=True), maximum[..., None]
    # Kool et al. 2019, appendix B.3, which rounds little: the argument of exp is at most 0.
    gap = maximum - free + torch.log1p(-(free - top).exp())
    shifted = maximum - gap.clamp(min=0) - torch.log1p((-gap.abs()).exp())
    return torch.where(free == top, maximum, shifted).masked_fill(locations == -torch.inf, -torch.inf)


def _best(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n largest scores of each row, in order, and their columns; a row with fewer gets −inf."""
    if scores.shape[1] < n:
        scores = pad(scores, (0, n - scores.shape[1]), value=-torch.inf)
    return scores.topk(n, dim=1)
