"""Vector-Jacobian products of maps to the simplex, in one launch. Importing this module imports triton.

The formulas are in `structinf.kernels.simplex.vjp`. For a number α ≤ 2 and for the capped simplex, the computation is
in the dtype of p:

    J g = s (g − Σ s g / Σ s),    s = p^(2 − α) where p > 0, and 1 where 0 < p < 1 for the capped simplex.

For α > 2 and for tensors α, the weights s are relative to the weight of one entry, in float64, and the product with the
derivative in α comes from the same launch:

    ⟨g, ∂p / ∂α⟩ = −⟨D, J g⟩,    D = (log p)² φ((α − 1) log p).

A row of up to 8,192 numbers stays in the registers of a program, and the kernel reads longer rows twice. (The limit
halves in float64, and for α other than 1, 1.5 and 2.) For α > 2 and tensors α, rows longer than 2,048 use torch
operations. The kernels allocate no memory, and need no
barrier, since programs read nothing that is written.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from ..arrays import upcast_half
from ..gpu import launch
from . import torch_backend
from .triton_above_2 import power_of
from .triton_rows import (
    LINEAR,
    SOFTMAX,
    SQUARE,
    alpha_arguments,
    alpha_of,
    load_tile,
    row_starts,
    rows_of,
    store_tile,
)

__all__ = ["capped_simplex_vjp", "entmax_vjp"]

_CAPPED = tl.constexpr(6)


def entmax_vjp(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], alpha: float | Tensor, with_alpha_grad: bool
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows 1"] | None]:
    """Return the products of the cotangent ``g`` with the Jacobians of entmax, in the scores and in ``alpha``.

    The second product, for a tensor ``alpha``, is None unless ``with_alpha_grad``.
    """
    if isinstance(alpha, Tensor):
        alpha = upcast_half(alpha)
    arguments, case, level = alpha_arguments(alpha)
    if level < 2:
        return _product(p, g, arguments, case, level, None), None
    rows = rows_of(p, 2)
    if not rows.fits:
        in_alpha = torch_backend.entmax_alpha_vjp(p, g, alpha) if with_alpha_grad else None
        return torch_backend.entmax_vjp(p, g, alpha), in_alpha
    out, in_alpha = rows.empty(), alpha.new_empty(*p.shape[:-1], 1) if with_alpha_grad else None
    grid, constants = rows.blocks()
    tensors = rows.tensor, rows.like(g), out, in_alpha
    launch(_any_product, grid, *tensors, *arguments, rows.count, rows.n, *rows.strides, CASE=case, **constants)
    return out, in_alpha


def capped_simplex_vjp(
    p: Float[Tensor, "*rows n"], g: Float[Tensor, "*rows n"], with_sum_grad: bool
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows 1"] | None]:
    """Return the products of the cotangent ``g`` with the Jacobians of the projection, in the scores and in the sum."""
    in_sum = p.new_empty(*p.shape[:-1], 1) if with_sum_grad else None
    return _product(p, g, (None, 0, 0), _CAPPED, 0, in_sum), in_sum


def _product(
    p: Tensor, g: Tensor, arguments: tuple[Tensor | None, int, int], case: Any, level: int, in_sum: Tensor | None
) -> Tensor:
    rows = rows_of(p, level)
    out = rows.empty()
    grid, constants = rows.blocks()
    constants |= {"CASE": case, "FITS": rows.fits}
    tensors = rows.tensor, rows.like(g), out, in_sum
    launch(_jacobian_product, grid, *tensors, *arguments, rows.count, rows.n, *rows.strides, **constants)
    return out


@triton.jit
def _weights(p, a, CASE: tl.constexpr):
    """Return s."""
    if CASE == SOFTMAX:
        s = p
    elif CASE == SQUARE:
        s = tl.sqrt(p)
    elif CASE == LINEAR:
        s = tl.where(p > 0, 1.0, 0.0) + 0.0 * p  # NaN for NaN
    elif CASE == _CAPPED:
        s = tl.where((p > 0) & (p < 1), 1.0, 0.0) + 0.0 * p
    else:
        s = power_of(p, (1.0 - a)[:, None]) + 0.0 * p
    return s.to(p.dtype)


@triton.jit(do_not_specialize=["bits", "rows", "n", "inner", "outer_stride"])
def _jacobian_product(
    p, g, out, in_sum, alphas, alpha_stride, bits, rows, n, inner, outer_stride, inner_stride, item,
    CASE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, FITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    first = load_tile(p, start, item, 0, n, inside, 0.0, SIZE)
    first_g = load_tile(g, start, item, 0, n, inside, 0.0, SIZE)
    a = (alpha_of(alphas, alpha_stride, bits, row, inside, CASE) - 1.0).to(first.dtype)
    first_s = _weights(first, a, CASE)
    totals, products = first_s, tl.where(first_s != 0, first_s * first_g, 0.0)
    if not FITS:
        for begin in range(SIZE, n, SIZE):
            s = _weights(load_tile(p, start, item, begin, n, inside, 0.0, SIZE), a, CASE)
            totals += s
            products += tl.where(s != 0, s * load_tile(g, start, item, begin, n, inside, 0.0, SIZE), 0.0)
    total = tl.sum(totals, 1)
    mean = tl.sum(products, 1) / tl.where(total != 0, total, 1.0)
    product = tl.where(first_s != 0, first_s * (first_g - mean[:, None]), 0.0)
    store_tile(out, product + (0.0 * total)[:, None], start, item, 0, n, inside, SIZE)
    if in_sum is not None:
        tl.store(in_sum + row, mean, mask=inside)
    if not FITS:
        for begin in range(SIZE, n, SIZE):
            s = _weights(load_tile(p, start, item, begin, n, inside, 0.0, SIZE), a, CASE)
            v = load_tile(g, start, item, begin, n, inside, 0.0, SIZE) - mean[:, None]
            store_tile(out, tl.where(s != 0, s * v, 0.0) + (0.0 * total)[:, None], start, item, begin, n, inside, SIZE)


@triton.jit
def _without_infinity(where, s):
    """Return ``s`` with 0 in place of +inf at the positions ``where`` the other factor is 0."""
    return tl.where(where & (s == float("inf")), 0.0, s)


@triton.jit
def _phi(z):
    """Return φ(z) = (1 − e^z + z e^z) / z² for z ≤ 0, from its series Σ (k + 1) / (k + 2)! z^k where z > −1."""
    near, far = tl.where(z > -1, z, 0.0), tl.where(z > -1, -1.0, z)
    series, k = tl.full(z.shape, 1.0, tl.float64), tl.full([], 16.0, tl.float64)
    for _ in tl.static_range(17):
        series = 1.0 + near * series * ((k + 2.0) / ((k + 1.0) * (k + 3.0)))
        k -= 1.0
    power = tl.exp(far)
    return tl.where(z > -1, 0.5 * series, (1.0 - power + far * power) / (far * far))


@triton.jit(do_not_specialize=["bits", "rows", "n", "inner", "outer_stride"])
def _any_product(
    p, g, out, in_alpha, alphas, alpha_stride, bits, rows, n, inner, outer_stride, inner_stride, item,
    CASE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    column = tl.arange(0, SIZE)
    stored = load_tile(p, start, item, 0, n, inside, 0.0, SIZE)
    invalid = tl.max(tl.where(stored == stored, 0, 1), 1) > 0
    q = tl.where(stored == stored, stored, 0.0).to(tl.float64)
    v = load_tile(g, start, item, 0, n, inside, 0.0, SIZE).to(tl.float64)
    exponent = 2.0 - alpha_of(alphas, alpha_stride, bits, row, inside, CASE)
    positive = q > 0
    log_q = tl.log(tl.where(positive, q, 1.0))
    # Differences to the entry of the largest weight do not cancel: the smallest p for α > 2, otherwise the largest p.
    largest = tl.max(tl.where(positive, log_q, float("-inf")), 1)
    smallest = tl.min(tl.where(positive, log_q, float("inf")), 1)
    reference = tl.where(exponent < 0, smallest, largest)
    reference = tl.where(tl.abs(reference) < float("inf"), reference, 0.0)
    place = tl.min(tl.where(positive & (log_q == reference[:, None]), column[None, :], SIZE), 1)
    is_place = column[None, :] == place[:, None]
    v = tl.where(positive, v - tl.sum(tl.where(is_place, v, 0.0), 1)[:, None], 0.0)
    ratio = tl.where(positive, tl.exp(exponent[:, None] * (log_q - reference[:, None])), 0.0)
    s = tl.where(positive, tl.exp(exponent[:, None] * log_q), 0.0)
    total = tl.sum(ratio, 1)
    total = tl.where(total > 0, total, 1.0)
    mean = tl.sum(ratio * v, 1) / total
    others = tl.sum(tl.where(is_place, 0.0, _without_infinity(v == 0, s) * v), 1) / total
    others = tl.where(others == others, others, _without_infinity(mean == 0, tl.max(s, 1)) * mean)
    apart = v - mean[:, None]
    product = tl.where(is_place, -others[:, None], _without_infinity(apart == 0, s) * apart)
    store_tile(out, tl.where(invalid[:, None], float("nan"), product), start, item, 0, n, inside, SIZE)
    if in_alpha is not None:
        slope = log_q * log_q * _phi((1.0 - exponent)[:, None] * log_q)
        slope -= tl.sum(tl.where(is_place, slope, 0.0), 1)[:, None]
        moved = -tl.sum(tl.where(positive & (is_place == 0), slope * product, 0.0), 1)
        tl.store(in_alpha + row, tl.where(invalid, float("nan"), moved), mask=inside)
