"""Counter-based random numbers in one launch. Importing this module imports triton.

The numbers are those of `structinf.kernels.noise.counter_rng` and `structinf.kernels.noise.gamma` for the same key: the
random words are equal, and the numbers are equal up to the rounding of logarithms and exponentials. Each counter of
Philox gives four float32 numbers or two float64 numbers. `tl.philox` is Philox4x32 with 10 rounds.

The key is an integer, or an int64 scalar on the device, so that a generator of the device is not read back. The
kernels allocate no memory, write each number once, and need no barrier. Sums of Gamma variables use float64 throughout,
as on the CPU, so that both devices reject the same attempts. Their tables are copied to a device once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from ..gpu.triton_exp_log import log_1_plus

__all__ = ["fill", "fill_sum_of_gamma"]

_EXPONENTIAL, _GUMBEL, _LOGISTIC, _NORMAL = (tl.constexpr(i) for i in range(4))
_DISTRIBUTIONS = {"exponential": _EXPONENTIAL, "gumbel": _GUMBEL, "logistic": _LOGISTIC, "normal": _NORMAL}
_BLOCK = 256
_BINS = tl.constexpr(1024)


def fill(distribution: str, out: Tensor, key: int | Tensor) -> None:
    """Fill ``out``, contiguous in float32 or float64, with numbers of a distribution of `counter_rng`.

    Parameters
    ----------
    distribution : str
        ``"exponential"``, ``"gumbel"``, ``"logistic"`` or ``"normal"``.
    out : Tensor
        The numbers, written.
    key : int or Tensor
        The key, from 0 to 2⁶³ − 1; a tensor is an int64 scalar on the device of ``out``.
    """
    of_a_counter = 2 if out.dtype == torch.float64 else 4
    # A chunk has 64 counters, and each program has whole chunks.
    grid = (-(-out.numel() // (of_a_counter * _BLOCK)),)
    constants: dict[str, Any] = {"DISTRIBUTION": _DISTRIBUTIONS[distribution], "BLOCK": _BLOCK}
    launch(_fill, grid, out, key, out.numel(), HAS_KEY=not isinstance(key, Tensor), **constants)


def fill_sum_of_gamma(k: int, terms: int, out: Tensor, key: int | Tensor) -> None:
    """Fill ``out``, contiguous in float32 or float64, with draws of `structinf.noise.SumOfGamma`."""
    numbers, guide = _tables(k, terms, out.device)
    grid = (-(-out.numel() // _BLOCK),)
    arguments = out, key, numbers, guide, out.numel()
    launch(_fill_gamma, grid, *arguments, HAS_KEY=not isinstance(key, Tensor), BLOCK=_BLOCK)


@functools.lru_cache(maxsize=64)
def _tables(k: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the four numbers and the two tables of `structinf.kernels.noise.gamma.fill`, on ``device``."""
    from .gamma import negative_binomial_mixture

    none, below, guide = negative_binomial_mixture(1 / k, terms)
    numbers = [terms / k, none, 1 / terms, -math.log(terms) / k, *below]
    return (
        torch.tensor(numbers, dtype=torch.float64, device=device),
        torch.tensor(guide, dtype=torch.int32, device=device),
    )


@triton.jit
def _words(key, place, stream):
    """Return the four 32-bit words at the positions ``place`` of a stream."""
    low = (place & 0xFFFFFFFF).to(tl.uint32)
    high = (place >> 32).to(tl.uint32)
    return tl.philox(key, low, high, tl.zeros_like(low) + stream, tl.zeros_like(low))


@triton.jit
def _joined(high, low):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _uniform(word):
    """Return V and 1 − V, for words of 32 bits in float32 and of 64 bits in float64."""
    if word.dtype == tl.uint32:
        v = (word.to(tl.float32) + 0.5) * (2.0**-32)
        complement = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * (2.0**-32)
    else:
        v = ((word >> 12) | (0x3FF << 52)).to(tl.float64, bitcast=True) - (1 - 2.0**-53)
        complement = 1.0 - v
    return v, complement


@triton.jit
def _exponential(word):
    v, complement = _uniform(word)
    if word.dtype == tl.uint32:
        # For V up to 1 − √½, V itself is more accurate than the rounded 1 − V.
        is_near = word < 0x4AFB0CCC
        e = tl.where(is_near, -log_1_plus(-v), -tl.log(complement))
    else:
        e = -tl.log(complement)
    return e


@triton.jit
def _normal_pair(word, other):
    """Return two independent standard normal numbers, with the polynomials of `counter_rng`."""
    square = 2.0 * _exponential(word)
    if word.dtype == tl.uint32:
        radius = tl.sqrt_rn(square)
        x = (other << 2).to(tl.int32, bitcast=True).to(tl.float32) * (3.141592653589793 * 2.0**-33)
        z = x * x
        c = -0.00135857793 * z + 0.0416550149
        c = (c * z - 0.499998564) * z + 1.0
        s = -0.000195039043 * z + 0.00833203579
        s = ((s * z - 0.166666507) * z + 1.0) * x
        is_positive, swap = (other >> 31) != 0, ((other >> 30) & 1) != 0
    else:
        radius = tl.sqrt(square)
        x = (other << 2).to(tl.int64, bitcast=True).to(tl.float64) * (3.141592653589793 * 2.0**-65)
        z = x * x
        c = 2.063045437966229288e-9 * z - 2.7555233884847418601e-7
        c = (c * z + 0.000024801578538562986336) * z - 0.0013888888869978658824
        c = ((c * z + 0.041666666666472305795) * z - 0.49999999999999250779) * z + 1.0
        s = 1.5894736651849095259e-10 * z - 2.5050716974102745028e-8
        s = (s * z + 2.7557313376400129128e-6) * z - 0.00019841269828650300013
        s = (((s * z + 0.0083333333333203624567) * z - 0.16666666666666616666) * z + 1.0) * x
        is_positive, swap = (other >> 63) != 0, ((other >> 62) & 1) != 0
    radius = tl.where(is_positive, radius, -radius)
    return radius * tl.where(swap, s, c), radius * tl.where(swap, c, s)


@triton.jit
def _number(word, DISTRIBUTION: tl.constexpr):
    if DISTRIBUTION == _LOGISTIC:
        v, complement = _uniform(word)
        u = tl.log(tl.div_rn(v, complement) if word.dtype == tl.uint32 else v / complement)
    else:
        u = _exponential(word)
        if DISTRIBUTION == _GUMBEL:
            u = -tl.log(u)
    return u


@triton.jit
def _pair(word, other, DISTRIBUTION: tl.constexpr):
    if DISTRIBUTION == _NORMAL:
        first, second = _normal_pair(word, other)
    else:
        first, second = _number(word, DISTRIBUTION), _number(other, DISTRIBUTION)
    return first, second


@triton.jit(do_not_specialize=["key", "count"])
def _fill(out, key, count, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr, HAS_KEY: tl.constexpr):
    if not HAS_KEY:
        key = tl.load(key)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chunk, i = place // 64, place % 64
    a, b, c, d = _words(key.to(tl.int64), place, 0)
    if out.dtype.element_ty == tl.float64:
        first, second = _pair(_joined(a, b), _joined(c, d), DISTRIBUTION)
        at = chunk * 128 + i
        tl.store(out + at, first, mask=at < count)
        tl.store(out + at + 64, second, mask=at + 64 < count)
    else:
        # The 32-bit words of a 64-bit word a, b are b, a in memory.
        first, third = _pair(b, d, DISTRIBUTION)
        second, fourth = _pair(a, c, DISTRIBUTION)
        at = (chunk * 256 + 2 * i)[:, None] + tl.arange(0, 2)[None, :]
        tl.store(out + at, tl.join(first, second), mask=at < count)
        tl.store(out + at + 128, tl.join(third, fourth), mask=at + 128 < count)


@triton.jit
def _chunk_word(key, at, stream):
    """Return the 64-bit words of a chunk at the positions ``at``: the second halves of chunks are the words c, d."""
    a, b, c, d = _words(key, (at // 128) * 64 + at % 64, stream)
    return tl.where(at % 128 < 64, _joined(a, b), _joined(c, d))


@triton.jit
def _attempt(shape, first, second, third):
    """Return a Gamma variable of ``shape`` at least 1, and whether it is accepted."""
    d = shape - 1.0 / 3.0
    x, _ = _normal_pair(first, second)
    root = 1.0 + x / tl.sqrt(9.0 * d)
    v = root * root * root
    is_inside = v > 0
    v = tl.where(is_inside, v, 1.0)
    chance, _ = _uniform(third)
    return d * v, is_inside & (tl.log(chance) < 0.5 * x * x + d * (1.0 - v + tl.log(v)))


@triton.jit(do_not_specialize=["key", "count"])
def _fill_gamma(out, key, numbers, guide, count, HAS_KEY: tl.constexpr, BLOCK: tl.constexpr):
    if not HAS_KEY:
        key = tl.load(key)
    key = key.to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    base, none = tl.load(numbers), tl.load(numbers + 1)
    scale, shift = tl.load(numbers + 2), tl.load(numbers + 3)
    below = numbers + 4
    u, _ = _uniform(_chunk_word(key, at, 0))
    n = tl.load(guide + (u * _BINS).to(tl.int32), mask=inside, other=0)
    going = inside & (tl.load(below + n, mask=inside, other=float("inf")) <= u)
    while tl.max(going.to(tl.int32), 0) > 0:
        n += going.to(tl.int32)
        going = going & (tl.load(below + n, mask=going, other=float("inf")) <= u)
    # Gamma(a) is Gamma(a + 1) V^(1 / a) for a uniform V. Given n = 0, u / P(N = 0) is uniform.
    is_small = base + n.to(tl.float64) < 1
    shape = base + n.to(tl.float64) + is_small.to(tl.float64)
    log_power = tl.where(is_small, tl.log(u / none) / base, 0.0)
    value, is_taken = _attempt(shape, _chunk_word(key, at, 1), _chunk_word(key, at, 2), _chunk_word(key, at, 3))
    left = inside & (is_taken == 0)
    stream = 4
    while tl.max(left.to(tl.int32), 0) > 0:
        a, b, c, d = _words(key, at, stream)
        e, f, _g, _h = _words(key, at, stream + 1)
        again, is_taken = _attempt(shape, _joined(a, b), _joined(c, d), _joined(e, f))
        value = tl.where(left, again, value)
        left = left & (is_taken == 0)
        stream += 2
    tl.store(out + at, (value * tl.exp(log_power) * scale + shift).to(out.dtype.element_ty), mask=inside)
