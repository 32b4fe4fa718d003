"""Points of the simplex capped at 1: the hull of subsets of k elements, or of at most k.

    Δ_k = {0 ≤ μ ≤ 1 : Σ μ = k}

Scores (B, d) of −inf forbid an element, whose μ is 0. An instance with fewer than k others has no point in Δ_k; what
comes back for it means nothing, but is finite. Where fewer than k may be taken, the best point of the cube [0, 1]^d is
best if its sum is at most k; if not, that of Δ_k is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from structinf.autograd import CappedSimplexMap, apply_simplex_map
from structinf.kernels.logsumexp import logsumexp
from structinf.shapes import Float

__all__ = ["cube_entropic", "entropic", "last_and_next", "nearest"]

_MOST_STEPS = 100


def last_and_next(scores: Float[Tensor, "batch d"], k: int) -> tuple[Tensor, Tensor]:
    """The k-th and the (k + 1)-th highest score, (B, 1) each, +inf for the 0-th, −inf for more than there are."""
    k = min(k, scores.shape[1])
    top = pad(scores.topk(min(k + 1, scores.shape[1]), dim=1).values, (1, 1), value=-torch.inf)
    top[:, 0] = torch.inf
    return top[:, k : k + 1], top[:, k + 1 : k + 2]


# ----------------------------------------------------------------------------- the nearest point


def nearest(scores: Float[Tensor, "batch d"], k: int, *, at_most: bool = False) -> Float[Tensor, "batch d"]:
    """argmin ‖θ − μ‖²: μ = clip(θ − τ, 0, 1)."""
    if not at_most:
        return apply_simplex_map(CappedSimplexMap(), scores, float(k))
    return _within(k, scores.clamp(0, 1), apply_simplex_map(CappedSimplexMap(), scores.clamp(min=0), float(k)))


# ----------------------------------------------------------------------------- points of most entropy


def cube_entropic(scores: Float[Tensor, "batch d"], *, binary: bool) -> Float[Tensor, "batch d"]:
    """As :func:`entropic` for any sum: μ = min(1, exp(θ − 1)), or, if ``binary``, the sigmoid of θ."""
    return scores.sigmoid() if binary else (scores - 1).clamp(max=0).exp()


def entropic(
    scores: Float[Tensor, "batch d"], k: int, *, at_most: bool = False, binary: bool
) -> Float[Tensor, "batch d"]:
    """argmax ⟨θ, μ⟩ − Σ μ log μ, and, if ``binary``, − Σ (1 − μ) log(1 − μ).

    For some τ, μ is :func:`cube_entropic` of θ − τ.
    """
    if scores.numel() == 0:
        return scores.clone()
    exact = (_logistic if binary else _capped_softmax)(scores.double(), k).to(scores.dtype)
    return _within(k, cube_entropic(scores, binary=binary), exact) if at_most else exact


def _capped_softmax(scores: Tensor, k: int) -> Tensor:
    """The highest scores have 1 each, the others a softmax of what is left of k."""
    most = min(k, scores.shape[1])
    ordered, order = scores.detach().sort(dim=1, descending=True, stable=True)
    # With the j highest at 1, j = 0, ..., k − 1, the next one has (k − j) exp(its score) / Σ exp(what is left).
    left = torch.arange(k, k - most, -1, dtype=scores.dtype, device=scores.device)
    log_sums = ordered.flip(1).logcumsumexp(1).flip(1)
    full = (ordered[:, :most] + left.log() > log_sums[:, :most]).sum(1, keepdim=True)
    place = torch.arange(scores.shape[1], device=scores.device)
    ones = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order, place < full)
    free = ~ones & ~scores.isneginf()
    rest = torch.where(free, scores, -torch.inf)
    share = torch.where(free, rest - logsumexp(rest, 1, keepdim=True), -torch.inf).exp()
    return torch.where(free, ((k - full) * share).clamp(max=1), ones.to(scores.dtype))


def _logistic(scores: Tensor, k: int) -> Tensor:
    """The sigmoid of θ − τ; without more than k elements to choose from, or with k = 0, a vertex."""
    allowed = ~scores.isneginf() & (k > 0)
    rows = (allowed.sum(1) > k).nonzero().squeeze(1)
    z = scores[rows]
    ordered, order = z.detach().topk(min(k + 1, z.shape[1]), dim=1)
    taken = torch.zeros_like(z, dtype=torch.bool).scatter_(1, order[:, :k], value=True)
    z = z - (0.5 * ordered[:, k - 1 : k] + 0.5 * ordered[:, k : k + 1]) if len(rows) else z
    tau = _balance(z.detach(), taken)
    if torch.is_grad_enabled() and z.requires_grad:
        for _ in range(2):  # steps of Newton's from the root, which give it derivatives of the first three orders
            tau = tau + _step(z, tau, taken)
    return allowed.to(scores.dtype).index_copy(0, rows, (z - tau).sigmoid())


@torch.no_grad()
def _balance(z: Tensor, taken: Tensor) -> Tensor:
    """The τ, (B, 1), where Σ sigmoid(z − τ) is the number of the highest scores, which are ``taken``.

    Newton's method within bounds that hold if 0 lies halfway between the lowest of them and the highest other one.
    """
    count = taken.sum(1, keepdim=True)
    low, high = -(2.0 * count).to(z.dtype).log(), (2.0 * (z.shape[1] - count)).to(z.dtype).log()
    tau = torch.zeros_like(low)
    for _ in range(_MOST_STEPS):
        step = _step(z, tau, taken)
        low, high = torch.where(step >= 0, tau, low), torch.where(step <= 0, tau, high)
        there = step.abs() <= 4 * torch.finfo(z.dtype).eps * (1 + tau.abs())
        ahead = tau + step
        tau = torch.where(there | ((low < ahead) & (ahead < high)), ahead, 0.5 * (low + high))
        if bool(there.all()):
            break
    return tau


def _step(z: Tensor, tau: Tensor, taken: Tensor) -> Tensor:
    """Newton's step for log Σ μ over what is not taken = log Σ (1 − μ) over what is.

    That is Σ μ = k without cancellation. The difference of the two falls in τ with a slope of 2 at most, and at the
    root of 1/2 at least, however far apart the scores are.
    """
    apart = torch.where(taken, tau - z, z - tau)
    logs = logsigmoid(apart)
    given = logsumexp(torch.where(taken, -torch.inf, logs), 1, keepdim=True)
    missing = logsumexp(torch.where(taken, logs, -torch.inf), 1, keepdim=True)
    fall = (logs - torch.where(taken, missing, given)).exp() * (-apart).sigmoid()
    return (given - missing) / fall.sum(1, keepdim=True)


# ----------------------------------------------------------------------------- at most k


def _within(k: int, inside: Tensor, exact: Tensor) -> Tensor:
    """The best point of the cube where its sum is at most ``k``, and that of Δ_k where it is more."""
    return torch.where(inside.detach().double().sum(1, keepdim=True) <= k, inside, exact)
