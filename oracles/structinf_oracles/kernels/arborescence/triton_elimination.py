"""Log-partition function and marginals of rooted trees as Triton kernels, one launch each.

The forward pass is the elimination of :mod:`.elimination` in the log domain, in float64. A program handles an instance.
The table ``states`` has for each word k the chain before the elimination of word k, in 3 + k rows (the root, the root
at order t, the words 0 to k) of k + 1 columns. The memory is n³ / 3 numbers for each instance.

The backward pass differentiates the elimination, from word 0 on. ``adjoints`` has the layout of ``states``: the
derivative of log Z with respect to each number, which is a probability. A number of the chain after the elimination of
k is log(exp old[j, i] + exp(step[j] + into[i])), so that its adjoint is split in the proportion of the two terms. All
sums have a fixed order. The absolute error of a marginal is a few roundings of 1.

The barriers are there because threads read numbers that other threads of the program have stored: the chain after the
elimination of the word before, and the adjoints of the steps into word k.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch
from structinf.kernels.gpu.triton_smooth_max import finite, log_of_positive

__all__ = ["log_partition", "log_partition_and_marginals"]


@triton.jit
def _offset(k):
    """Return the place of the chain before the elimination of word k: the sum of (3 + i) (1 + i) over i below k."""
    return (k - 1) * k * (2 * k - 1) // 6 + 2 * k * (k - 1) + 3 * k


@triton.jit
def _load_arcs(theta, states, n, size, ROWS: tl.constexpr, COLS: tl.constexpr, SINGLE_ROOT: tl.constexpr):
    """Write the chain of all words of one instance, with ``size`` of n words in use."""
    place = states + _offset(size - 1)
    i = tl.arange(0, COLS)
    for first in range(0, size + 2, ROWS):
        j = first + tl.arange(0, ROWS)
        head = tl.where(j < 2, 0, j - 1)
        inside = (j < size + 2)[:, None] & (i < size)[None, :]
        root_row = 1 if SINGLE_ROOT else 0
        is_arc = (j >= 2)[:, None] & (head[:, None] != i[None, :] + 1) | (j == root_row)[:, None]
        score = tl.load(theta + head[:, None] * (n + 1) + i[None, :] + 1, mask=inside & is_arc, other=float("-inf")).to(
            tl.float64
        )
        tl.store(place + j[:, None] * size + i[None, :], score, mask=inside)


@triton.jit
def _pivot(steps, j, size):
    """Return the log of the pivot of the word with log weights ``steps``, and whether it is of order t."""
    others = tl.where(j == 1, float("-inf"), steps)
    top = tl.max(others, 0)
    total = tl.sum(tl.exp(others - finite(top)), 0)
    certain = top == float("-inf")
    of_order_t = tl.max(tl.where(j == 1, steps, float("-inf")), 0)
    return tl.where(certain, of_order_t, top + log_of_positive(total)), certain


@triton.jit
def _forward(
    theta, lengths, value, states, n, numbers,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr, SINGLE_ROOT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    theta += b * (n + 1) * (n + 1)
    states += b * numbers
    size = tl.load(lengths + b).to(tl.int32)
    _load_arcs(theta, states, n, size, ROWS, COLS, SINGLE_ROOT)
    tl.debug_barrier()
    line, i = tl.arange(0, LINES), tl.arange(0, COLS)
    total = tl.zeros([], tl.float64)
    order = tl.zeros([], tl.int32)
    for back in range(size):
        k = size - 1 - back
        old, new = states + _offset(k), states + _offset(k - 1)
        width = k + 1
        steps = tl.load(old + line * width + k, mask=line < 2 + k, other=float("-inf"))
        pivot, certain = _pivot(steps, line, k)
        total += pivot
        order += certain.to(tl.int32)
        shift = finite(pivot)
        into = tl.load(old + (2 + k) * width + i, mask=i < k, other=float("-inf"))
        for first in range(0, 2 + k, ROWS):
            j = first + tl.arange(0, ROWS)
            inside = (j < 2 + k)[:, None] & (i < k)[None, :]
            step = tl.load(old + j * width + k, mask=j < 2 + k, other=float("-inf")) - shift
            step = tl.where(certain, tl.where(j == 0, 0.0, float("-inf")), step)
            a = tl.load(old + j[:, None] * width + i[None, :], mask=inside, other=float("-inf"))
            c = step[:, None] + into[None, :]
            top = tl.maximum(a, c)
            gap = tl.where(top == float("-inf"), 0.0, tl.minimum(a, c) - finite(top))
            tl.store(new + j[:, None] * k + i[None, :], top + tl.log(1.0 + tl.exp(gap)), mask=inside)
        tl.debug_barrier()
    tl.store(value + b, tl.where(order > 1, float("-inf"), total))


@triton.jit
def _backward(
    lengths, states, adjoints, means, n, numbers,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr, SINGLE_ROOT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    states += b * numbers
    adjoints += b * numbers
    means += b * (n + 1) * (n + 1)
    size = tl.load(lengths + b).to(tl.int32)
    line, i = tl.arange(0, LINES), tl.arange(0, COLS)
    for k in range(size):
        old, new = states + _offset(k), states + _offset(k - 1)
        to, given = adjoints + _offset(k), adjoints + _offset(k - 1)
        width = k + 1
        steps = tl.load(old + line * width + k, mask=line < 2 + k, other=float("-inf"))
        pivot, certain = _pivot(steps, line, k)
        shift = finite(pivot)
        into = tl.load(old + (2 + k) * width + i, mask=i < k, other=float("-inf"))
        sums = tl.zeros([COLS], tl.float64)
        for first in range(0, 2 + k, ROWS):
            j = first + tl.arange(0, ROWS)
            inside = (j < 2 + k)[:, None] & (i < k)[None, :]
            step = tl.load(old + j * width + k, mask=j < 2 + k, other=float("-inf")) - shift
            step = tl.where(certain, tl.where(j == 0, 0.0, float("-inf")), step)
            a = tl.load(old + j[:, None] * width + i[None, :], mask=inside, other=float("-inf"))
            result = finite(tl.load(new + j[:, None] * k + i[None, :], mask=inside, other=0.0))
            adjoint = tl.load(given + j[:, None] * k + i[None, :], mask=inside, other=0.0)
            passed = adjoint * tl.exp(step[:, None] + into[None, :] - result)
            tl.store(to + j[:, None] * width + i[None, :], adjoint * tl.exp(a - result), mask=inside)
            tl.store(to + j * width + k, tl.sum(passed, 1), mask=j < 2 + k)
            sums += tl.sum(passed, 0)
        tl.store(to + (2 + k) * width + i, sums, mask=i < k)
        tl.debug_barrier()
        # The adjoints of the steps, log a[j, k] − log s_k, reach a[j, k] and the pivot, whose own adjoint is 1.
        passed = tl.load(to + line * width + k, mask=line < 2 + k, other=0.0)
        rest = 1.0 - tl.sum(passed, 0)
        share = tl.exp(tl.where(line == 1, float("-inf"), steps - shift))
        adjoint = passed + rest * share
        adjoint = tl.where(certain, tl.where(line == 1, 1.0, 0.0), adjoint)
        tl.debug_barrier()
        tl.store(to + line * width + k, adjoint, mask=line < 2 + k)
        tl.store(to + (2 + k) * width + k, tl.zeros([], tl.float64))
        tl.debug_barrier()
    place = adjoints + _offset(size - 1)
    for first in range(0, size + 2, ROWS):
        j = first + tl.arange(0, ROWS)
        head = tl.where(j < 2, 0, j - 1)
        root_row = 1 if SINGLE_ROOT else 0
        inside = ((j < size + 2) & ((j >= 2) | (j == root_row)))[:, None] & (i < size)[None, :]
        mean = tl.load(place + j[:, None] * size + i[None, :], mask=inside, other=0.0)
        tl.store(means + head[:, None] * (n + 1) + i[None, :] + 1, mean.to(means.dtype.element_ty), mask=inside)


def log_partition(theta: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Return log Z, (B,) in float64, −inf if there is no tree, for θ (B, n + 1, n + 1) and ``lengths`` (B,) ≥ 1."""
    return _eliminate(theta.contiguous(), lengths, single_root)[0]


def log_partition_and_marginals(theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) in float64, and the probability of each arc, (B, n + 1, n + 1) in θ's dtype.

    If log Z is −inf, the marginals are undefined.
    """
    theta = theta.contiguous()
    value, states = _eliminate(theta, lengths, single_root)
    means = torch.zeros_like(theta)
    n = theta.shape[1] - 1
    adjoints = torch.empty_like(states)
    launch(_backward, (len(theta),), lengths, states, adjoints, means, n, states.shape[1], **_blocks(n, single_root))
    return value, means


def _eliminate(theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) and the table ``states`` of all instances."""
    n = theta.shape[1] - 1
    value = theta.new_empty(len(theta), dtype=torch.float64)
    states = theta.new_empty(len(theta), sum((3 + i) * (1 + i) for i in range(n)), dtype=torch.float64)
    launch(_forward, (len(theta),), theta, lengths, value, states, n, states.shape[1], **_blocks(n, single_root))
    return value, states


def _blocks(n: int, single_root: bool) -> dict[str, Any]:
    """Return the sizes of blocks, and the number of warps, for n words."""
    columns = triton.next_power_of_2(n)
    rows = max(1, min(triton.next_power_of_2(n + 2), 1024 // columns))
    return {
        "ROWS": rows,
        "COLS": columns,
        "LINES": triton.next_power_of_2(n + 2),
        "SINGLE_ROOT": single_root,
        "warps": 1 if columns <= 8 else 4,
    }
