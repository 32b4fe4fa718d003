"""The recursions of a chain in plain torch, for any device: the reference for the compiled loops.

Here ``unary`` is (B | 1, T, S), ``transition`` (B | 1, P, S, S) with P = T − 1, or 1 for a transition shared by all
steps, and ``lengths`` (B,). Steps come from ``unbind``. With indexing in a loop, autograd would build a gradient of
full size at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structinf.kernels.logsumexp import logsumexp

__all__ = ["best_tags", "value", "value_and_mean"]

Maximum = Callable[[Tensor, int], Tensor]
Step = Callable[[Tensor], Tensor]


def value(unary: Tensor, transition: Tensor, lengths: Tensor, smax: Maximum = logsumexp) -> Tensor:
    """Return DP_Ω, (B,), for ``smax``, max_Ω along a dimension. Autograd supports the derivative orders of ``smax``."""
    v, total = _rescale(_first(unary, lengths))
    for t, (step, scores) in enumerate(_steps(unary, transition, smax), 1):
        new, peak = _rescale(step(v) + scores)
        inside = t < lengths
        v = torch.where(inside.unsqueeze(1), new, v)
        total = total + torch.where(inside, peak, 0.0)
    return smax(v, 1) + total.to(unary.dtype)


def _gibbs(x: Tensor, level: Tensor) -> Tensor:
    return (x + torch.where(torch.isneginf(level), level, -level).unsqueeze(1)).exp()


def value_and_mean(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    smax: Maximum = logsumexp,
    choices: Callable[[Tensor, Tensor], Tensor] = _gibbs,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return DP_Ω (B,), and its gradient for nodes (B, T, S) and edges (B, P, S, S).

    The backward pass follows q as in :mod:`.log_domain`, in memory of the size of the inputs. ``choices`` returns q
    along dimension 1, given scores and their max_Ω.
    """
    v, total = _rescale(_first(unary, lengths))
    table = []
    for t, (step, scores) in enumerate(_steps(unary, transition, smax), 1):
        level = step(v)
        table.append((v, level))
        new, peak = _rescale(level + scores)
        inside = t < lengths
        v = torch.where(inside.unsqueeze(1), new, v)
        total = total + torch.where(inside, peak, 0.0)
    end = smax(v, 1)
    node = choices(v, end)
    nodes, edges = [], []
    matrices = transition.unbind(1)
    for t in range(len(table), 0, -1):
        v, level = table[t - 1]
        q = choices(v.unsqueeze(2) + matrices[min(t, len(matrices)) - 1], level)
        inside = (t < lengths).unsqueeze(1)
        nodes.append(torch.where(inside, node, 0.0))
        edge = q * nodes[-1].unsqueeze(1)
        node = torch.where(inside, edge.sum(2), node)
        if edges and len(matrices) == 1:
            edges[0] += edge
        else:
            edges.append(edge)
    nodes.append(node)
    batch, states = node.shape
    value = end + total.to(unary.dtype)
    if not edges:
        return value, torch.stack(nodes, 1), transition.new_zeros(batch, transition.shape[1], states, states)
    return value, torch.stack(nodes[::-1], 1), torch.stack(edges[::-1], 1)


def best_tags(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tags (B, T) of the best sequences, 0 in the padding, and whether any sequence is allowed, (B,)."""
    score, _ = _rescale(_first(unary, lengths))
    origins = []
    matrices = transition.unbind(1)
    for t, scores in enumerate(unary.unbind(1)[1:], 1):
        best, origin = (score.unsqueeze(2) + matrices[min(t, len(matrices)) - 1]).max(1)
        new, _ = _rescale(best + scores)
        score = torch.where((t < lengths).unsqueeze(1), new, score)
        origins.append(origin)
    value, tag = score.max(1)
    tags = [tag]
    for t in range(len(origins), 0, -1):
        before = origins[t - 1].gather(1, tag.unsqueeze(1)).squeeze(1)
        tag = torch.where(t < lengths, before, tag)
        tags.append(tag)
    stacked = torch.stack(tags[::-1], 1)
    inside = torch.arange(stacked.shape[1], device=lengths.device) < lengths.unsqueeze(1)
    return torch.where(inside, stacked, 0), ~torch.isneginf(value)


def _first(unary: Tensor, lengths: Tensor) -> Tensor:
    return unary.unbind(1)[0].expand(len(lengths), -1)


def _rescale(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``alpha`` minus its maximum, and the maximum in float64. The maximum is a constant for autograd."""
    peak = alpha.detach().amax(1)
    peak = torch.where(torch.isneginf(peak), 0.0, peak)
    return alpha - peak.unsqueeze(1), peak.double()


def _steps(unary: Tensor, transition: Tensor, smax: Maximum) -> list[tuple[Step, Tensor]]:
    """Return for each step but the first: v ↦ max_Ω over i of v(i) + A(i, ·), and the unary scores."""
    scores = unary.unbind(1)[1:]
    if smax is logsumexp and transition.shape[1] == 1 and _fits_product(transition):
        steps = [_product(transition)]
    else:
        steps = [_maximum(matrix, smax) for matrix in transition.unbind(1)]
    return list(zip(steps * len(scores) if len(steps) == 1 else steps, scores, strict=False))


def _maximum(matrix: Tensor, smax: Maximum) -> Step:
    return lambda v: smax(v.unsqueeze(2) + matrix, 1)


def _product(transition: Tensor) -> Step:
    """Return the step of log-sum-exp as a product with exp A, without B · S² numbers for the backward pass."""
    top = transition.detach().amax((2, 3))
    factor = (transition - top[..., None, None]).exp().squeeze(1)

    def advance(alpha: Tensor) -> Tensor:
        a = alpha.exp()
        product = a @ factor[0] if len(factor) == 1 else torch.bmm(a.unsqueeze(1), factor).squeeze(1)
        return product.log() + top

    return advance


def _fits_product(transition: Tensor) -> bool:
    """Return whether all matrices are finite and their range is within the limit derived in :mod:`.scaled`."""
    info = torch.finfo(transition.dtype)
    limit = math.log(info.eps / info.tiny) - math.log(transition.shape[-1]) - 4
    a = transition.detach()
    return bool((a.amax((1, 2, 3)) - a.amin((1, 2, 3)) <= limit / 2).all())
