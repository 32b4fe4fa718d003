"""Log-partition function, marginals and Hessian products of rooted trees as Triton kernels.

The forward pass is the elimination of :mod:`.elimination` in the log domain, in float64. A program handles an instance.
The table ``states`` has for each word k the chain before the elimination of word k, in 3 + k rows (the root, the root
at order t, the words 0 to k) of k + 1 columns. The memory is n³ / 3 numbers for each instance.

The backward pass differentiates the elimination, from word 0 on. ``adjoints`` has the layout of ``states``: the
derivative of log Z with respect to each number, which is a probability. A number of the chain after the elimination of
k is log(exp old[j, i] + exp(step[j] + into[i])), so that its adjoint is split in the proportion of the two terms. All
sums have a fixed order. The absolute error of a marginal is a few roundings of 1.

A Hessian product is the derivative of the marginals in a direction. With ``TANGENT``, both passes also compute the
derivative in this direction of each number of their table: ``slopes`` of ``states``, and ``turns`` of ``adjoints``. The
derivative of a number −inf counts as 0.

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

__all__ = ["covariance_product", "log_partition", "log_partition_and_marginals"]


@triton.jit
def _offset(k):
    """Return the place of the chain before the elimination of word k: the sum of (3 + i) (1 + i) over i below k."""
    return (k - 1) * k * (2 * k - 1) // 6 + 2 * k * (k - 1) + 3 * k


@triton.jit
def _load_arcs(theta, states, n, size, missing, ROWS: tl.constexpr, COLS: tl.constexpr, SINGLE_ROOT: tl.constexpr):
    """Write the chain of all words of one instance, with ``size`` of n words in use, and ``missing`` if not an arc."""
    place = states + _offset(size - 1)
    i = tl.arange(0, COLS)
    for first in range(0, size + 2, ROWS):
        j = first + tl.arange(0, ROWS)
        head = tl.where(j < 2, 0, j - 1)
        inside = (j < size + 2)[:, None] & (i < size)[None, :]
        root_row = 1 if SINGLE_ROOT else 0
        is_arc = (j >= 2)[:, None] & (head[:, None] != i[None, :] + 1) | (j == root_row)[:, None]
        score = tl.load(theta + head[:, None] * (n + 1) + i[None, :] + 1, mask=inside & is_arc, other=missing).to(
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
def _shares(steps, shift, j):
    """Return the probabilities of the steps of finite order, for the finite log pivot ``shift``."""
    return tl.exp(tl.where(j == 1, float("-inf"), steps - shift))


@triton.jit
def _forward(
    theta, direction, lengths, value, states, slopes, n, numbers,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr, SINGLE_ROOT: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    theta += b * (n + 1) * (n + 1)
    states += b * numbers
    size = tl.load(lengths + b).to(tl.int32)
    _load_arcs(theta, states, n, size, float("-inf"), ROWS, COLS, SINGLE_ROOT)
    if TANGENT:
        slopes += b * numbers
        _load_arcs(direction + b * (n + 1) * (n + 1), slopes, n, size, 0.0, ROWS, COLS, SINGLE_ROOT)
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
        if TANGENT:
            old_slopes, new_slopes = slopes + _offset(k), slopes + _offset(k - 1)
            of_steps = tl.load(old_slopes + line * width + k, mask=line < 2 + k, other=0.0)
            of_pivot = tl.sum(_shares(steps, shift, line) * of_steps, 0)
            of_into = tl.load(old_slopes + (2 + k) * width + i, mask=i < k, other=0.0)
        for first in range(0, 2 + k, ROWS):
            j = first + tl.arange(0, ROWS)
            inside = (j < 2 + k)[:, None] & (i < k)[None, :]
            step = tl.load(old + j * width + k, mask=j < 2 + k, other=float("-inf")) - shift
            step = tl.where(certain, tl.where(j == 0, 0.0, float("-inf")), step)
            a = tl.load(old + j[:, None] * width + i[None, :], mask=inside, other=float("-inf"))
            c = step[:, None] + into[None, :]
            top = tl.maximum(a, c)
            gap = tl.where(top == float("-inf"), 0.0, tl.minimum(a, c) - finite(top))
            result = top + tl.log(1.0 + tl.exp(gap))
            tl.store(new + j[:, None] * k + i[None, :], result, mask=inside)
            if TANGENT:
                of_step = tl.load(old_slopes + j * width + k, mask=j < 2 + k, other=0.0) - of_pivot
                of_c = tl.where(certain, 0.0, of_step)[:, None] + of_into[None, :]
                of_a = tl.load(old_slopes + j[:, None] * width + i[None, :], mask=inside, other=0.0)
                slope = tl.exp(a - finite(result)) * of_a + tl.exp(c - finite(result)) * of_c
                tl.store(new_slopes + j[:, None] * k + i[None, :], slope, mask=inside)
        tl.debug_barrier()
    tl.store(value + b, tl.where(order > 1, float("-inf"), total))


@triton.jit
def _backward(
    lengths, states, slopes, adjoints, turns, means, n, numbers,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr, SINGLE_ROOT: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    states += b * numbers
    adjoints += b * numbers
    if TANGENT:
        slopes += b * numbers
        turns += b * numbers
    arcs = (n + 1) * (n + 1)
    means += b * arcs
    size = tl.load(lengths + b).to(tl.int32)
    line, i = tl.arange(0, LINES), tl.arange(0, COLS)
    for first in range(0, arcs, COLS):
        tl.store(means + first + i, tl.zeros([COLS], means.dtype.element_ty), mask=first + i < arcs)
    tl.debug_barrier()
    for k in range(size):
        old, new = states + _offset(k), states + _offset(k - 1)
        to, given = adjoints + _offset(k), adjoints + _offset(k - 1)
        width = k + 1
        steps = tl.load(old + line * width + k, mask=line < 2 + k, other=float("-inf"))
        pivot, certain = _pivot(steps, line, k)
        shift = finite(pivot)
        into = tl.load(old + (2 + k) * width + i, mask=i < k, other=float("-inf"))
        sums = tl.zeros([COLS], tl.float64)
        if TANGENT:
            old_slopes, new_slopes = slopes + _offset(k), slopes + _offset(k - 1)
            turns_to, turns_given = turns + _offset(k), turns + _offset(k - 1)
            of_steps = tl.load(old_slopes + line * width + k, mask=line < 2 + k, other=0.0)
            of_pivot = tl.sum(_shares(steps, shift, line) * of_steps, 0)
            of_into = tl.load(old_slopes + (2 + k) * width + i, mask=i < k, other=0.0)
            of_sums = tl.zeros([COLS], tl.float64)
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
            if TANGENT:
                of_step = tl.load(old_slopes + j * width + k, mask=j < 2 + k, other=0.0) - of_pivot
                of_c = tl.where(certain, 0.0, of_step)[:, None] + of_into[None, :]
                of_a = tl.load(old_slopes + j[:, None] * width + i[None, :], mask=inside, other=0.0)
                of_result = tl.load(new_slopes + j[:, None] * k + i[None, :], mask=inside, other=0.0)
                turn = tl.load(turns_given + j[:, None] * k + i[None, :], mask=inside, other=0.0)
                turn_of_a = tl.exp(a - result) * (turn + adjoint * (of_a - of_result))
                tl.store(turns_to + j[:, None] * width + i[None, :], turn_of_a, mask=inside)
                turn_of_c = tl.exp(step[:, None] + into[None, :] - result) * turn + passed * (of_c - of_result)
                tl.store(turns_to + j * width + k, tl.sum(turn_of_c, 1), mask=j < 2 + k)
                of_sums += tl.sum(turn_of_c, 0)
        tl.store(to + (2 + k) * width + i, sums, mask=i < k)
        if TANGENT:
            tl.store(turns_to + (2 + k) * width + i, of_sums, mask=i < k)
        tl.debug_barrier()
        # The adjoints of the steps, log a[j, k] − log s_k, reach a[j, k] and the pivot, whose own adjoint is 1.
        passed = tl.load(to + line * width + k, mask=line < 2 + k, other=0.0)
        rest = 1.0 - tl.sum(passed, 0)
        share = _shares(steps, shift, line)
        adjoint = passed + rest * share
        adjoint = tl.where(certain, tl.where(line == 1, 1.0, 0.0), adjoint)
        if TANGENT:
            of_passed = tl.load(turns_to + line * width + k, mask=line < 2 + k, other=0.0)
            turn = of_passed + share * (rest * (of_steps - of_pivot) - tl.sum(of_passed, 0))
            turn = tl.where(certain, 0.0, turn)
        tl.debug_barrier()
        tl.store(to + line * width + k, adjoint, mask=line < 2 + k)
        tl.store(to + (2 + k) * width + k, tl.zeros([], tl.float64))
        if TANGENT:
            tl.store(turns_to + line * width + k, turn, mask=line < 2 + k)
            tl.store(turns_to + (2 + k) * width + k, tl.zeros([], tl.float64))
        tl.debug_barrier()
    place = (turns if TANGENT else adjoints) + _offset(size - 1)
    for first in range(0, size + 2, ROWS):
        j = first + tl.arange(0, ROWS)
        head = tl.where(j < 2, 0, j - 1)
        root_row = 1 if SINGLE_ROOT else 0
        inside = ((j < size + 2) & ((j >= 2) | (j == root_row)))[:, None] & (i < size)[None, :]
        mean = tl.load(place + j[:, None] * size + i[None, :], mask=inside, other=0.0)
        tl.store(means + head[:, None] * (n + 1) + i[None, :] + 1, mean.to(means.dtype.element_ty), mask=inside)


def log_partition(theta: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Return log Z, (B,) in float64, −inf if there is no tree, for θ (B, n + 1, n + 1) and ``lengths`` (B,) ≥ 1."""
    return _Elimination(theta, None, lengths, single_root).value


def log_partition_and_marginals(theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) in float64, and the probability of each arc, (B, n + 1, n + 1) in θ's dtype.

    If log Z is −inf, the marginals are undefined.
    """
    elimination = _Elimination(theta, None, lengths, single_root)
    return elimination.value, elimination.backward()


def covariance_product(theta: Tensor, v: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) in float64, and the product of its Hessian with ``v`` (B | 1, n + 1, n + 1), in θ's dtype.

    If log Z is −inf, the product is undefined.
    """
    elimination = _Elimination(theta, v.expand_as(theta).contiguous(), lengths, single_root)
    return elimination.value, elimination.backward()


class _Elimination:
    """The forward pass: log Z and the table ``states`` of all instances, with ``slopes`` if a direction is given."""

    def __init__(self, theta: Tensor, direction: Tensor | None, lengths: Tensor, single_root: bool) -> None:
        self.theta, self.lengths = theta.contiguous(), lengths
        self.n = n = theta.shape[1] - 1
        numbers = sum((3 + i) * (1 + i) for i in range(n))
        self.constants = _blocks(n, single_root, direction is not None)
        self.value = theta.new_empty(len(theta), dtype=torch.float64)
        self.states = theta.new_empty(len(theta), numbers, dtype=torch.float64)
        self.slopes = None if direction is None else torch.empty_like(self.states)
        results = self.value, self.states, self.slopes
        launch(_forward, (len(theta),), self.theta, direction, lengths, *results, n, numbers, **self.constants)

    def backward(self) -> Tensor:
        """Return the marginals; with a direction, their derivative in this direction."""
        means, adjoints = torch.empty_like(self.theta), torch.empty_like(self.states)
        turns = None if self.slopes is None else torch.empty_like(self.states)
        tables = self.states, self.slopes, adjoints, turns
        sizes = self.n, self.states.shape[1]
        launch(_backward, (len(means),), self.lengths, *tables, means, *sizes, **self.constants)
        return means


def _blocks(n: int, single_root: bool, has_direction: bool) -> dict[str, Any]:
    """Return the sizes of blocks, and the number of warps, for n words."""
    columns = triton.next_power_of_2(n)
    rows = max(1, min(triton.next_power_of_2(n + 2), (512 if has_direction else 1024) // columns))
    return {
        "ROWS": rows,
        "COLS": columns,
        "LINES": triton.next_power_of_2(n + 2),
        "SINGLE_ROOT": single_root,
        "TANGENT": has_direction,
        "warps": 1 if columns <= 8 else 4,
    }
