"""Projections onto the capped simplex, the convex hull of the subsets of k elements, or of at most k.

    Δ_k = {0 ≤ μ ≤ 1 : Σ μ = k}

Scores (B, d) of −inf forbid an element, and set its μ to 0. An instance with fewer than k other elements has no point
in Δ_k. Its result is finite but meaningless. For at most k elements, the best point of the cube [0, 1]^d is optimal
if its sum is at most k; otherwise the best point of Δ_k is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from structinf.autograd import CappedSimplexMap, apply_simplex_map
from structinf.kernels.logsumexp import logsumexp
from structinf.shapes import Float

__all__ = ["cube_entropic", "entropic", "lowest_of", "nearest"]

_MOST_STEPS = 100


# ----------------------------------------------------------------------------- Euclidean projection


def lowest_of(scores: Float[Tensor, "batch d"], k: int | Tensor) -> Float[Tensor, "batch 1"]:
    """Return the k-th highest score of each row for k or ``k`` (B | 1, 1): +inf for 0, and the lowest for k ≥ d."""
    size = scores.shape[1]
    if isinstance(k, int):  # without a wait for a device
        last = scores.topk(min(k, size), dim=1).values[:, -1:]
        return last if min(k, size) else scores.new_full((len(scores), 1), torch.inf)
    most = min(int(k.max()) if k.numel() else 0, size)
    top = pad(scores.topk(most, dim=1).values, (1, 0), value=torch.inf)
    return top.gather(1, k.clamp(0, size).expand(len(scores), 1))


def nearest(scores: Float[Tensor, "batch d"], k: int | Tensor, *, at_most: bool = False) -> Float[Tensor, "batch d"]:
    """Return argmin ‖θ − μ‖² over Δ_k, or over the hull of at most k elements: μ = clip(θ − τ, 0, 1)."""
    if not at_most:
        return apply_simplex_map(CappedSimplexMap(), scores, _as_parameter(k))
    return _within(k, scores.clamp(0, 1), apply_simplex_map(CappedSimplexMap(), scores.clamp(min=0), _as_parameter(k)))


def _as_parameter(k: int | Tensor) -> float | Tensor:
    return k.double() if isinstance(k, Tensor) else float(k)


# ----------------------------------------------------------------------------- entropic projections


def cube_entropic(scores: Float[Tensor, "batch d"], *, binary: bool) -> Float[Tensor, "batch d"]:
    """Return :func:`entropic` over the whole cube: μ = min(1, exp(θ − 1)) or, if ``binary``, the sigmoid of θ."""
    return scores.sigmoid() if binary else (scores - 1).clamp(max=0).exp()


def entropic(
    scores: Float[Tensor, "batch d"], k: int | Tensor, *, at_most: bool = False, binary: bool
) -> Float[Tensor, "batch d"]:
    """Return argmax ⟨θ, μ⟩ − Σ μ log μ and, if ``binary``, − Σ (1 − μ) log(1 − μ).

    For some τ, μ is :func:`cube_entropic` of θ − τ.
    """
    if scores.numel() == 0:
        return scores.clone()
    exact = (_logistic if binary else _capped_softmax)(scores.double(), k).to(scores.dtype)
    return _within(k, cube_entropic(scores, binary=binary), exact) if at_most else exact


def _capped_softmax(scores: Tensor, k: int | Tensor) -> Tensor:
    """Return μ = min(1, exp(θ − τ)): 1 for the highest scores, and for the others a softmax times the rest of k."""
    most = min(int(k.max()) if isinstance(k, Tensor) else k, scores.shape[1])
    ordered, order = scores.detach().sort(dim=1, descending=True, stable=True)
    # If the j highest scores have μ = 1, the next score x has μ = (k − j) exp(x) / Σ exp over the scores from x down.
    left = (k - torch.arange(most, dtype=scores.dtype, device=scores.device)).clamp(min=0)
    log_sums = ordered.flip(1).logcumsumexp(1).flip(1)
    full = (ordered[:, :most] + left.log() > log_sums[:, :most]).sum(1, keepdim=True)
    place = torch.arange(scores.shape[1], device=scores.device)
    ones = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order, place < full)
    free = ~ones & ~scores.isneginf()
    rest = torch.where(free, scores, -torch.inf)
    share = torch.where(free, rest - logsumexp(rest, 1, keepdim=True), -torch.inf).exp()
    return torch.where(free, ((k - full) * share).clamp(max=1), ones.to(scores.dtype))


def _logistic(scores: Tensor, k: int | Tensor) -> Tensor:
    """Return the sigmoid of θ − τ, or a vertex if k = 0 or at most k elements are allowed."""
    allowed = ~scores.isneginf() & (k > 0)
    rows = (allowed.sum(1, keepdim=True) > k).nonzero()[:, 0]
    z = scores[rows]
    own = k[rows] if isinstance(k, Tensor) else torch.full((len(rows), 1), k, device=z.device)
    most = int(own.max()) if len(rows) else 0
    ordered, order = z.detach().topk(min(most + 1, z.shape[1]), dim=1)
    place = torch.arange(ordered.shape[1], device=z.device)
    taken = torch.zeros_like(z, dtype=torch.bool).scatter_(1, order, place < own)
    z = z - (0.5 * ordered.gather(1, own - 1) + 0.5 * ordered.gather(1, own)) if len(rows) else z
    tau = _balance(z.detach(), taken)
    if torch.is_grad_enabled() and z.requires_grad:
        for _ in range(2):  # two Newton steps from the root give τ correct derivatives of the first three orders
            tau = tau + _step(z, tau, taken)
    return allowed.to(scores.dtype).index_copy(0, rows, (z - tau).sigmoid())


@torch.no_grad()
def _balance(z: Tensor, taken: Tensor) -> Tensor:
    """Return the τ, (B, 1), for which Σ sigmoid(z − τ) is the number of ``taken`` elements, the highest scores.

    The method is Newton's within bounds. The bounds hold if 0 lies halfway between the lowest taken score and the
    highest other score.
    """
    count = taken.sum(1, keepdim=True)
    low, high = -(2.0 * count).to(z.dtype).log(), (2.0 * (z.shape[1] - count)).to(z.dtype).log()
    tau = torch.zeros_like(low)
    done = torch.zeros_like(low, dtype=torch.bool)
    for _ in range(_MOST_STEPS):
        step = _step(z, tau, taken)
        low, high = torch.where(step >= 0, tau, low), torch.where(step <= 0, tau, high)
        there = step.abs() <= 4 * torch.finfo(z.dtype).eps * (1 + tau.abs())
        ahead = tau + step
        moved = torch.where(there | ((low < ahead) & (ahead < high)), ahead, 0.5 * (low + high))
        tau, done = torch.where(done, tau, moved), done | there  # no further steps for other instances' sake
        if bool(done.all()):
            break
    return tau


def _step(z: Tensor, tau: Tensor, taken: Tensor) -> Tensor:
    """Return Newton's step for log Σ μ over the elements not taken = log Σ (1 − μ) over the elements taken.

    The equation states Σ μ = k without cancellation. The difference of its sides decreases in τ, with a slope of at
    most 2. At the root the slope is at least 1/2, however far apart the scores are.
    """
    apart = torch.where(taken, tau - z, z - tau)
    logs = logsigmoid(apart)
    given = logsumexp(torch.where(taken, -torch.inf, logs), 1, keepdim=True)
    missing = logsumexp(torch.where(taken, logs, -torch.inf), 1, keepdim=True)
    fall = (logs - torch.where(taken, missing, given)).exp() * (-apart).sigmoid()
    return (given - missing) / fall.sum(1, keepdim=True)


# ----------------------------------------------------------------------------- at most k elements


def _within(k: int | Tensor, inside: Tensor, exact: Tensor) -> Tensor:
    """Return the point ``inside`` of the cube if its sum is at most ``k``, else the point ``exact`` of Δ_k."""
    return torch.where(inside.detach().double().sum(1, keepdim=True) <= k, inside, exact)
