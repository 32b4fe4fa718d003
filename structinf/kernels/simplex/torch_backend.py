"""Maps to the simplex in torch, on any device, and their differentiable vector-Jacobian products.

References
----------
A. Martins & R. Astudillo, From softmax to sparsemax, ICML 2016.
B. Peters, V. Niculae & A. Martins, Sparse sequence-to-sequence models, ACL 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import upcast_half

__all__ = [
    "PHI_SERIES",
    "capped_simplex",
    "capped_simplex_vjp",
    "entmax",
    "entmax_alpha_vjp",
    "entmax_dual",
    "entmax_vjp",
    "exprel",
    "group_means",
    "max_score",
    "nan_in_invalid_rows",
    "phi",
    "power",
]

_MAX_STEPS = 100

EXPREL_SERIES = tuple(1 / math.factorial(k + 1) for k in range(20))
"""(e^z − 1) / z = Σ_k z^k / (k + 1)!, to rounding where |z| ≤ 1."""

PHI_SERIES = tuple((k + 1) / math.factorial(k + 2) for k in range(18))
"""φ(z) = (1 − e^z + z e^z) / z² = Σ_k (k + 1) / (k + 2)! z^k, to rounding where |z| ≤ 1."""


def max_score(x: Tensor) -> Tensor:
    """Return the largest entry, (..., 1); −inf for rows of length 0."""
    return x.amax(-1, keepdim=True) if x.shape[-1] else x.new_full((*x.shape[:-1], 1), -math.inf)


def entmax(x: Float[Tensor, "*rows n"], alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return α-entmax of rows of scores: 0 in a row of −inf, NaN in a row with NaN or +inf.

    Parameters
    ----------
    x : (..., n) Tensor
        The scores.
    alpha : float or (..., 1) Tensor
        At least 1.
    """
    if not x.numel():
        return x.clone()
    q = _entmax_per_row(x.double(), alpha.double()) if isinstance(alpha, Tensor) else _entmax_same_case(x, alpha)
    return nan_in_invalid_rows(x, torch.where(max_score(x).isneginf(), 0.0, q.to(x.dtype)))


def _entmax_same_case(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Return α-entmax for one α, or for several α that are all 1, all in (1, 2], or all above 2."""
    largest = alpha.max() if isinstance(alpha, Tensor) else alpha
    if largest == 1:
        return torch.softmax(x, -1)
    return entmax_dual(x, alpha - 1)[2] if largest <= 2 else _entmax_above_2(x, alpha - 1)


def _entmax_per_row(x: Tensor, alpha: Tensor) -> Tensor:
    q = torch.empty_like(x, memory_format=torch.contiguous_format)
    scores, found, each = x.reshape(-1, x.shape[-1]), q.view(-1, x.shape[-1]), alpha.reshape(-1)
    for chosen in (each == 1, (each > 1) & (each <= 2), each > 2):
        rows = chosen.nonzero().squeeze(1)
        if len(rows):
            found[rows] = _entmax_same_case(scores[rows], each[rows].unsqueeze(-1))
    return q


def nan_in_invalid_rows(x: Tensor, p: Tensor) -> Tensor:
    """Return ``p`` with NaN in the rows where ``x`` has NaN or +inf."""
    return p.masked_fill(~(x < math.inf).all(-1, keepdim=True), math.nan)


# With d = x − max x and a = α − 1, the optimal q is max(a d − t, 0)^(1/a) for the t in [−1, 0) at which it sums to 1
# (Peters et al. 2019, §3). In ℓ = −log(−t) / a, minus the log-probability of the largest entry,
#
#     q = r e^{−ℓ},    r = max(1 + a d e^{aℓ}, 0)^(1/a),    log Σ r = ℓ,
#
# This form is accurate for long rows and for α near 1: as α tends to 1, r tends to exp d, and ℓ to log Σ exp d.


def entmax_dual(x: Tensor, a: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return max x, ℓ and q of rows (..., n), for a in (0, 1], a number or (..., 1).

    A row of −inf has the ℓ and q of a row of zeros.
    """
    top = max_score(x)
    if not x.shape[-1]:
        return top, torch.zeros_like(top), x
    d = torch.where(x == top, 0.0, x - top)
    if isinstance(a, float | int) and a in (0.5, 1) and d.shape[-1] <= 16:
        log_sum = _closed_form(d, a)
    else:  # for longer rows, sorting takes more time than the saved steps
        log_sum = torch.zeros_like(top)
    # Newton's method for ‖max(a d − t, 0)‖_{1/a} = 1, from the left. The norm N is convex and decreasing in t, so each
    # step stays left of the root, and divides (N − 1) |N′| by at least 4, where |N′| ≥ 1. So at most log₄(n² / ε) steps
    # reach rounding accuracy; 2 to 10 are usual.
    tolerance, steps = 16 * torch.finfo(x.dtype).eps, 0
    while True:
        r, slope = _powers(d, log_sum, a)
        total, steepness = r.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)
        step = -torch.log1p(total / steepness * torch.expm1(a * (log_sum - total.log()))) / a
        moving = step.abs() > tolerance * (1 + log_sum)
        if steps == 64 or not moving.any():
            break
        log_sum = torch.where(moving, log_sum + step, log_sum)  # rows do not depend on each other
        steps += 1
    # The last step changes q itself, along dq/dt, and so removes the rounding error of Σ q − 1.
    scale = torch.exp(-log_sum)
    q = r * scale - slope * ((total * scale - 1) / steepness)
    return top, log_sum + step, q.clamp(min=0)


def _powers(d: Tensor, log_sum: Tensor, a: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return r and r^(1 − a)."""
    u = (d * (a * torch.exp(a * log_sum))).clamp(min=-1)
    if not isinstance(a, Tensor) and a == 1:
        return 1 + u, (1 + u).sign()
    if not isinstance(a, Tensor) and a == 0.5:
        return (1 + u).square(), 1 + u
    log_r = u.log1p() / a
    slope = (log_r * (1 - a)).exp()
    return log_r.exp(), torch.where(u > -1, slope, 0.0) if isinstance(a, Tensor) else slope  # 0⁰ is 0 where a is 1


def _closed_form(d: Tensor, a: float) -> Tensor:
    """Return ℓ for α = 2 (Martins & Astudillo 2016, algorithm 1) or α = 1.5 (Peters et al. 2019, §3), by sorting."""
    y = (a * d).clamp(min=-1).sort(-1, descending=True).values  # entries below −1 have q = 0
    k = torch.arange(1, d.shape[-1] + 1, dtype=d.dtype, device=d.device)
    mean = y.cumsum(-1) / k
    variance = (y * y).cumsum(-1) / k - mean * mean
    t = mean - (1 / k if a == 1 else (1 / k - variance).clamp(min=0).sqrt())
    support = (t <= y).sum(-1, keepdim=True).clamp(min=1)
    return -(-t.gather(-1, support - 1)).log() / a


def _entmax_above_2(x: Tensor, a: float | Tensor) -> Tensor:
    """Return q for a > 1, by the algorithm of :mod:`.entmax`."""
    top, n = max_score(x), x.shape[-1]
    d = torch.where(x == top, 0.0, x - top).double()
    ordered, place = d.sort(-1, descending=True).values, torch.arange(n, device=x.device)
    first = torch.zeros_like(top, dtype=torch.long)  # a rank in the support
    beyond = torch.full_like(first, n)  # a rank outside the support
    for _ in range(n.bit_length()):
        middle = (first + beyond) // 2
        powers = (a * (ordered - ordered.gather(-1, middle))).pow(1 / a)
        inside = torch.where(place < middle, powers, 0.0).sum(-1, keepdim=True) < 1
        first, beyond = torch.where(inside, middle, first), torch.where(inside, beyond, middle.clamp(min=1))
    c = a * (d - ordered.gather(-1, first))
    support, w = c >= 0, 1 / beyond.double()
    for _ in range(_MAX_STEPS):
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
    """Return p^exponent of p ≥ 0. Where p = 0, the result and all its derivatives are 0. NaN stays NaN."""
    positive = p != 0
    # The inner where keeps the infinite slope of the power at 0 out of the gradient of the discarded branch.
    return torch.where(positive, torch.where(positive, p, 1.0).pow(exponent), 0.0)


def entmax_vjp(q: Tensor, z: Tensor, alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return J z = s (z − ⟨s, z⟩ / Σ s), with s = q^(2 − α) where q > 0, and 0 elsewhere (Peters et al. 2019, §3)."""
    p, v = upcast_half(q), upcast_half(z)
    s = power(p, 2 - alpha)
    if p.shape[-1] and (isinstance(alpha, Tensor) or alpha > 2):
        return _vjp_from_largest_weight(p, s, v, alpha).to(z.dtype)
    total = s.sum(-1, keepdim=True)
    mean = (s * v).sum(-1, keepdim=True) / torch.where(total != 0, total, 1.0)
    return (s * (v - mean)).to(z.dtype)


def _vjp_from_largest_weight(p: Tensor, s: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """Return J v, computed with weights relative to the largest weight, as in :mod:`.vjp`."""
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
    others = torch.where(is_largest, 0.0, _zero_infinities(v == 0, s) * v).sum(-1, keepdim=True) / total
    unbounded = (_zero_infinities(mean == 0, s.amax(-1, keepdim=True)) * mean).detach()
    others = torch.where(others.isnan(), unbounded, others)
    return torch.where(is_largest & positive, -others, _zero_infinities(v == mean, s) * (v - mean))


def _zero_infinities(where: Tensor, s: Tensor) -> Tensor:
    """Return ``s`` with its infinite entries replaced by 0 at the positions ``where`` the other factor is 0."""
    return torch.where(where & s.isinf(), 0.0, s)


def entmax_alpha_vjp(q: Tensor, z: Tensor, alpha: float | Tensor) -> Float[Tensor, "*rows 1"]:
    """Return ⟨z, ∂q / ∂α⟩ for ``q`` and ``z`` (..., n), by the formula of :mod:`.vjp`."""
    p, v = upcast_half(q), upcast_half(z)
    log_p = torch.where(p != 0, p, 1.0).log()
    rates = entmax_vjp(p, log_p.square() * phi((alpha - 1) * log_p), alpha)
    return -(v * rates).sum(-1, keepdim=True).to(z.dtype)


def exprel(z: Tensor) -> Tensor:
    """Return (e^z − 1) / z for z ≤ 0, and 1 at 0; its derivative is :func:`phi`."""
    return _series_near_0(z, EXPREL_SERIES, lambda far: torch.expm1(far) / far)


def phi(z: Tensor) -> Tensor:
    """Return (1 − e^z + z e^z) / z² for z ≤ 0."""
    return _series_near_0(z, PHI_SERIES, lambda far: (1 - far.exp() + far * far.exp()) / far.square())


def _series_near_0(z: Tensor, coefficients: Sequence[float], formula: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the power series for z > −1, and ``formula`` below; each is differentiable to any order."""
    is_small = z > -1
    near, far = torch.where(is_small, z, 0.0), torch.where(is_small, -1.0, z)
    series = torch.zeros_like(z)
    for coefficient in reversed(coefficients):
        series = series * near + coefficient
    return torch.where(is_small, series, formula(far))


def capped_simplex(x: Float[Tensor, "*rows n"], k: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return the projection onto the capped simplex, clip(x − τ, 0, 1) with sum ``k``, a number or (..., 1).

    If a row has at most k scores above −inf, each of them has p = 1.
    """
    if not x.shape[-1]:
        return x.clone()
    k = torch.as_tensor(k, dtype=torch.float64, device=x.device).expand(*x.shape[:-1], 1)
    allowed = ~x.isneginf()
    rank = k.ceil().long().clamp(1, x.shape[-1])
    anchor = x.sort(-1, descending=True).values.gather(-1, rank - 1)  # τ is at least anchor − 1
    z = x.double() - anchor
    low = torch.full_like(k, -1.0)
    for bit in range(1, 54):
        higher = low + 0.5**bit
        low = torch.where((z - higher).clamp(0, 1).sum(-1, keepdim=True) > k, higher, low)
    rough = z - low
    # The entries between 0 and 1 determine the exact τ.
    is_between, ones = (rough > 0) & (rough < 1), (rough >= 1).sum(-1, keepdim=True)
    count = is_between.sum(-1, keepdim=True)
    tau = (torch.where(is_between, z, 0.0).sum(-1, keepdim=True) + ones - k) / count.clamp(min=1)
    p = torch.where(is_between, (z - tau).clamp(0, 1), (rough >= 1).double())
    p = torch.where(allowed.sum(-1, keepdim=True) <= k, allowed.double(), torch.where(k > 0, p, 0.0))
    return nan_in_invalid_rows(x, p.to(x.dtype))


def capped_simplex_vjp(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"]
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows 1"]]:
    """Return the products of the cotangent ``g`` with the Jacobians of :func:`capped_simplex` at ``p``, in x and k."""
    is_between = ((p > 0) & (p < 1)) | p.isnan()
    v = torch.where(is_between, g, 0.0)
    mean = (v + 0 * p).sum(-1, keepdim=True) / is_between.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(is_between, v - mean, 0.0), mean


def group_means(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], is_contiguous: bool
) -> Float[Tensor, "*rows n"]:
    """Return the product of the cotangent ``g`` with the Jacobian of fusedmax or oscarmax at ``p``.

    Parameters
    ----------
    is_contiguous : bool
        Whether each group is a run of neighbours, as in fusedmax.
    """
    support = (p > 0) | p.isnan()
    ordered, order = (p, None) if is_contiguous else p.sort(-1)
    begins = torch.ones_like(support)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    group = begins.cumsum(-1) - 1
    if order is not None:
        group = torch.empty_like(group).scatter(-1, order, group)
    v = torch.where(support, g, 0.0)
    size = torch.zeros_like(v).scatter_add(-1, group, torch.ones_like(v))
    mean = (torch.zeros_like(v).scatter_add(-1, group, v) / size.clamp(min=1)).gather(-1, group)
    support_mean = (v + 0 * p).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(support, mean - support_mean, 0.0)
