"""α-entmax and the capped simplex in torch, on any device, and products with their Jacobians that autograd can follow.

References
----------
A. Martins & R. Astudillo, From softmax to sparsemax, ICML 2016.
B. Peters, V. Niculae & A. Martins, Sparse sequence-to-sequence models, ACL 2019.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import upcast_half

__all__ = ["PHI", "capped", "entmax", "entmax_alpha_vjp", "entmax_dual", "entmax_vjp", "max_score", "power"]

_MOST_STEPS = 100

PHI = tuple((k + 1) / math.factorial(k + 2) for k in range(18))
"""φ(z) = (1 − e^z + z e^z) / z² = Σ_k (k + 1) / (k + 2)! z^k, to rounding where |z| ≤ 1."""


def max_score(x: Tensor) -> Tensor:
    """The largest entry, (..., 1); −inf if there is none."""
    return x.amax(-1, keepdim=True) if x.shape[-1] else x.new_full((*x.shape[:-1], 1), -math.inf)


def entmax(x: Float[Tensor, "*rows n"], alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """α-entmax of rows of scores; 0 where all are −inf, NaN where one is NaN or +inf.

    Parameters
    ----------
    alpha : float or (..., 1) Tensor
        Of at least 1.
    """
    if not x.numel():
        return x.clone()
    q = _by_rows(x.double(), alpha.double()) if isinstance(alpha, Tensor) else _alike(x, alpha)
    return _valid(x, torch.where(max_score(x).isneginf(), 0.0, q.to(x.dtype)))


def _alike(x: Tensor, alpha: float | Tensor) -> Tensor:
    """The same with one α, or several: all 1, all above 1 and at most 2, or all above 2."""
    largest = alpha.max() if isinstance(alpha, Tensor) else alpha
    if largest == 1:
        return torch.softmax(x, -1)
    return entmax_dual(x, alpha - 1)[2] if largest <= 2 else _anchored(x, alpha - 1)


def _by_rows(x: Tensor, alpha: Tensor) -> Tensor:
    q = torch.empty_like(x, memory_format=torch.contiguous_format)
    scores, found, each = x.reshape(-1, x.shape[-1]), q.view(-1, x.shape[-1]), alpha.reshape(-1)
    for chosen in (each == 1, (each > 1) & (each <= 2), each > 2):
        rows = chosen.nonzero().squeeze(1)
        if len(rows):
            found[rows] = _alike(scores[rows], each[rows].unsqueeze(-1))
    return q


def _valid(x: Tensor, p: Tensor) -> Tensor:
    """``p``, NaN in the rows in which ``x`` has NaN or +inf."""
    return p.masked_fill(~(x < math.inf).all(-1, keepdim=True), math.nan)


# With d = x − max x and a = α − 1, the optimal q is max(a d − t, 0)^(1/a) for the t in [−1, 0) at which it sums to 1
# (Peters et al. 2019, §3). In ℓ = −log(−t) / a, minus the log-probability of the largest entry,
#
#     q = r e^{−ℓ},    r = max(1 + a d e^{aℓ}, 0)^(1/a),    log Σ r = ℓ,
#
# which is accurate for large numbers of entries and for α near 1 alike (r tends to exp d, ℓ to log Σ exp d).


def entmax_dual(x: Tensor, a: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """max x, ℓ and q of rows (..., n), for a in (0, 1], a number or (..., 1).

    The latter two are as if a row of −inf were one of zeros.
    """
    top = max_score(x)
    if not x.shape[-1]:
        return top, torch.zeros_like(top), x
    d = torch.where(x == top, 0.0, x - top)
    if isinstance(a, float | int) and a in (0.5, 1) and d.shape[-1] <= 16:
        log_sum = _closed_form(d, a)
    else:  # sorting more takes longer than the steps that it saves
        log_sum = torch.zeros_like(top)
    # Newton's method for ‖max(a d − t, 0)‖_{1/a} = 1, from the left. The norm N is convex and decreasing in t, so that
    # each step stays left of the root, and divides (N − 1) |N′| by four or more, where |N′| ≥ 1: the distance comes
    # to rounding after at most log₄(n² / ε) steps; 2 to 10 are usual.
    tolerance, steps = 16 * torch.finfo(x.dtype).eps, 0
    while True:
        r, slope = _powers(d, log_sum, a)
        total, steepness = r.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)
        step = -torch.log1p(total / steepness * torch.expm1(a * (log_sum - total.log()))) / a
        moving = step.abs() > tolerance * (1 + log_sum)
        if steps == 64 or not moving.any():
            break
        log_sum = torch.where(moving, log_sum + step, log_sum)  # row by row, whatever the others do
        steps += 1
    # The last step is taken in q itself, along dq/dt: what rounding left of Σ q − 1 goes where it came from.
    scale = torch.exp(-log_sum)
    q = r * scale - slope * ((total * scale - 1) / steepness)
    return top, log_sum + step, q.clamp(min=0)


def _powers(d: Tensor, log_sum: Tensor, a: float | Tensor) -> tuple[Tensor, Tensor]:
    """r and r^(1 − a)."""
    u = (d * (a * torch.exp(a * log_sum))).clamp(min=-1)
    if not isinstance(a, Tensor) and a == 1:
        return 1 + u, (1 + u).sign()
    if not isinstance(a, Tensor) and a == 0.5:
        return (1 + u).square(), 1 + u
    log_r = u.log1p() / a
    slope = (log_r * (1 - a)).exp()
    return log_r.exp(), torch.where(u > -1, slope, 0.0) if isinstance(a, Tensor) else slope  # a may be 1, and 0⁰ is 0


def _closed_form(d: Tensor, a: float) -> Tensor:
    """ℓ for α = 2 (Martins & Astudillo 2016, algorithm 1) and α = 1.5 (Peters et al. 2019, §3), by sorting."""
    y = (a * d).clamp(min=-1).sort(-1, descending=True).values  # further down no entry has a probability
    k = torch.arange(1, d.shape[-1] + 1, dtype=d.dtype, device=d.device)
    mean = y.cumsum(-1) / k
    variance = (y * y).cumsum(-1) / k - mean * mean
    t = mean - (1 / k if a == 1 else (1 / k - variance).clamp(min=0).sqrt())
    support = (t <= y).sum(-1, keepdim=True).clamp(min=1)
    return -(-t.gather(-1, support - 1)).log() / a


def _anchored(x: Tensor, a: float | Tensor) -> Tensor:
    """q for a > 1, as compiled loops find it (:mod:`.simplex_points`)."""
    top, n = max_score(x), x.shape[-1]
    d = torch.where(x == top, 0.0, x - top).double()
    ordered, place = d.sort(-1, descending=True).values, torch.arange(n, device=x.device)
    first = torch.zeros_like(top, dtype=torch.long)  # whose q is above 0
    beyond = torch.full_like(first, n)  # whose q is not
    for _ in range(n.bit_length()):
        middle = (first + beyond) // 2
        powers = (a * (ordered - ordered.gather(-1, middle))).pow(1 / a)
        inside = torch.where(place < middle, powers, 0.0).sum(-1, keepdim=True) < 1
        first, beyond = torch.where(inside, middle, first), torch.where(inside, beyond, middle.clamp(min=1))
    c = a * (d - ordered.gather(-1, first))
    support, w = c >= 0, 1 / beyond.double()
    for _ in range(_MOST_STEPS):
        r = _norm(w, c, a)
        excess = torch.where(support, r, 0.0).sum(-1, keepdim=True) - 1
        step = excess / torch.where(support, (w / r).pow(a - 1), 0.0).sum(-1, keepdim=True)
        moving = (step > 4 * torch.finfo(d.dtype).eps * w) & (step < w)
        if not bool(moving.any()):
            break
        w = torch.where(moving, w - step, w)
    return torch.where(support, _norm(w, c, a), 0.0)


def _norm(w: Tensor, c: Tensor, a: float | Tensor) -> Tensor:
    return torch.where(c > 0, (w**a + c).pow(1 / a), w)


def power(p: Tensor, exponent: float | Tensor) -> Tensor:
    """p^exponent of p of at least 0, and 0, with all derivatives, where p is; NaN stays."""
    positive = p != 0
    # The inner where keeps the power's infinite slope at 0 out of the branch that the outer one discards.
    return torch.where(positive, torch.where(positive, p, 1.0).pow(exponent), 0.0)


def entmax_vjp(q: Tensor, z: Tensor, alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """s (z − ⟨s, z⟩ / Σ s) with s = q^(2 − α), and 0 where q is (Peters et al. 2019, §3)."""
    p, v = upcast_half(q), upcast_half(z)
    s = power(p, 2 - alpha)
    if p.shape[-1] and (isinstance(alpha, Tensor) or alpha > 2):
        return _from_largest(p, s, v, alpha).to(z.dtype)
    total = s.sum(-1, keepdim=True)
    mean = (s * v).sum(-1, keepdim=True) / torch.where(total != 0, total, 1.0)
    return (s * (v - mean)).to(z.dtype)


def _from_largest(p: Tensor, s: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """The product with weights in units of the largest, as :mod:`.simplex_products` has it."""
    positive = p != 0
    place = torch.where(positive, p, torch.inf).argmin(-1, keepdim=True)
    if isinstance(alpha, Tensor):
        place = torch.where(alpha > 2, place, p.argmax(-1, keepdim=True))
    v = v - v.gather(-1, place)
    largest = p.gather(-1, place)
    r = power(p / torch.where(largest != 0, largest, 1.0), 2 - alpha)
    total = r.sum(-1, keepdim=True)
    total = torch.where(total != 0, total, 1.0)
    mean = (r * v).sum(-1, keepdim=True) / total
    is_largest = torch.zeros_like(positive).scatter(-1, place, True)
    others = torch.where(is_largest, 0.0, _finite_at(v == 0, s) * v).sum(-1, keepdim=True) / total
    unbounded = (_finite_at(mean == 0, s.amax(-1, keepdim=True)) * mean).detach()
    others = torch.where(others.isnan(), unbounded, others)
    return torch.where(is_largest & positive, -others, _finite_at(v == mean, s) * (v - mean))


def _finite_at(place: Tensor, s: Tensor) -> Tensor:
    """``s``, but 0 at the ``place`` of zeros that it is to multiply, if it is infinite."""
    return torch.where(place & s.isinf(), 0.0, s)


def entmax_alpha_vjp(q: Tensor, z: Tensor, alpha: float | Tensor) -> Float[Tensor, "*rows 1"]:
    """⟨z, ∂q / ∂α⟩ for ``q`` and ``z`` (..., n); the formula is that of :mod:`.simplex_products`."""
    p, v = upcast_half(q), upcast_half(z)
    log_p = torch.where(p != 0, p, 1.0).log()
    rates = entmax_vjp(p, log_p.square() * _phi((alpha - 1) * log_p), alpha)
    return -(v * rates).sum(-1, keepdim=True).to(z.dtype)


def _phi(z: Tensor) -> Tensor:
    """(1 − e^z + z e^z) / z² for z ≤ 0."""
    is_small = z > -1
    near, far = torch.where(is_small, z, 0.0), torch.where(is_small, -1.0, z)
    series = torch.zeros_like(z)
    for coefficient in reversed(PHI):
        series = series * near + coefficient
    return torch.where(is_small, series, (1 - far.exp() + far * far.exp()) / far.square())


def capped(x: Float[Tensor, "*rows n"], budget: float | Tensor) -> Float[Tensor, "*rows n"]:
    """The nearest point of the capped simplex, clip(x − τ, 0, 1) of sum ``budget``, a number or (..., 1).

    All of what is above −inf has 1 where that is no more than the budget.
    """
    if not x.shape[-1]:
        return x.clone()
    budget = torch.as_tensor(budget, dtype=torch.float64, device=x.device).expand(*x.shape[:-1], 1)
    allowed = ~x.isneginf()
    rank = budget.ceil().long().clamp(1, x.shape[-1])
    anchor = x.sort(-1, descending=True).values.gather(-1, rank - 1)  # τ is at most 1 below it
    z = x.double() - anchor
    low = torch.full_like(budget, -1.0)
    for k in range(1, 54):
        higher = low + 0.5**k
        low = torch.where((z - higher).clamp(0, 1).sum(-1, keepdim=True) > budget, higher, low)
    share = z - low
    # The same τ from what is between 0 and 1 there.
    free, full = (share > 0) & (share < 1), (share >= 1).sum(-1, keepdim=True)
    many = free.sum(-1, keepdim=True)
    tau = (torch.where(free, z, 0.0).sum(-1, keepdim=True) + full - budget) / many.clamp(min=1)
    p = torch.where(free, (z - tau).clamp(0, 1), (share >= 1).double())
    p = torch.where(allowed.sum(-1, keepdim=True) <= budget, allowed.double(), torch.where(budget > 0, p, 0.0))
    return _valid(x, p.to(x.dtype))
