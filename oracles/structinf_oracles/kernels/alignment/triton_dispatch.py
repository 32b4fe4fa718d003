"""GPU entry points of alignments, for α of 1, 1.5, 2 and infinity. Importing this module imports triton.

The functions are those of :mod:`.dispatch`, with results on the device of θ. ``lengths`` (B, 2) may be None, and
``band`` is (B,) or an integer, so that nothing is allocated for instances without data of their own. No function waits
for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import triton_smoothed_passes as smoothed_passes
from .triton_paths import argmax, sample, topk
from .triton_smoothed_passes import value

__all__ = ["argmax", "hessian_product", "sample", "topk", "value", "value_and_mean"]


def value_and_mean(
    theta: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and its gradient (B, n, m) times ``weight`` (B,), 1 by default."""
    if alpha < math.inf:
        return smoothed_passes.value_and_mean(theta, lengths, band, alpha, weight)
    best, path = argmax(theta, lengths, band)
    return best, path if weight is None else path.mul_(weight.view(-1, 1, 1))


def hessian_product(
    theta: Tensor, v: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ) and ∇²DP_Ω(θ) v, (B, n, m), which is 0 for α = infinity."""
    if alpha < math.inf:
        return smoothed_passes.hessian_product(theta, v, lengths, band, alpha)
    return value(theta, lengths, band, alpha), torch.zeros_like(theta)
