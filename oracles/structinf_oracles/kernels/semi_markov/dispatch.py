"""CPU entry points for segmentations scored by steps, boundaries and durations.

Scores are (steps (B | 1, T, S), boundaries (B | 1, T, 2, S), durations (B | 1, D, S)), with or without transition
(B | 1, S, S), on any device. Values are float64, and results have the dtype and the device of the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.kernels import parallel_rows, to_numpy, zeros

from . import sums, walks

__all__ = ["hessian_product", "value", "value_and_mean", "walk"]


def value(theta: tuple[Tensor, ...], lengths: Tensor) -> Tensor:
    """Return log Z, (B,)."""
    out = torch.empty(len(lengths), dtype=torch.float64, device="cpu")
    parallel_rows(sums.value, len(lengths), *_arrays(theta, lengths), out.numpy(), work=8 * _choices(theta, lengths))
    return out.to(theta[0].device)


def value_and_mean(theta: tuple[Tensor, ...], lengths: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return log Z, (B,), and the marginals, (B, *event) in the form of θ."""
    out, results = torch.empty(len(lengths), dtype=torch.float64, device="cpu"), _results(theta, lengths)
    arrays = *_arrays(theta, lengths), *to_numpy(out, *results)
    parallel_rows(sums.mean, len(lengths), *arrays, work=24 * _choices(theta, lengths))
    return out.to(theta[0].device), _like(results, theta)


def hessian_product(
    theta: tuple[Tensor, ...], lengths: Tensor, v: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return log Z, (B,), and its Hessian times v, (B, *event) in the form of θ."""
    out, results = torch.empty(len(lengths), dtype=torch.float64, device="cpu"), _results(theta, lengths)
    arrays = *_arrays(theta, lengths), *_arrays(v), *to_numpy(out, *results)
    parallel_rows(sums.hessian_product, len(lengths), *arrays, work=48 * _choices(theta, lengths))
    return out.to(theta[0].device), _like(results, theta)


def walk(theta: tuple[Tensor, ...], lengths: Tensor, uniforms: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best score and segmentation, or with ``uniforms`` log Z and n samples.

    Parameters
    ----------
    theta : tuple of Tensors
        The scores.
    lengths : (B,) Tensor
        The lengths.
    uniforms : (n, B, 2 T) Tensor, or None
        Numbers in [0, 1) for samples; None for the best segmentation.

    Returns
    -------
    values : (B,) Tensor
        The values, in float64.
    tags : (n, B, T) Tensor
        The label of each step, −1 beyond the lengths. The best segmentation has n = 1.
    starts : (n, B, T) bool Tensor
        Whether a segment starts at the step.
    """
    batch, steps, is_hard = len(lengths), theta[0].shape[1], uniforms is None
    drawn = torch.zeros(1, batch, 2 * steps, dtype=torch.float64, device="cpu") if uniforms is None else uniforms
    out = torch.empty(batch, dtype=torch.float64, device="cpu")
    tags = torch.full((len(drawn), batch, steps), -1, device="cpu")
    starts = torch.zeros(tags.shape, dtype=torch.bool, device="cpu")
    arrays = *_arrays(theta, lengths, drawn), is_hard, *to_numpy(out, tags, starts)
    parallel_rows(walks.walks, batch, *arrays, work=8 * _choices(theta, lengths))
    device = theta[0].device
    return out.to(device), tags.to(device), starts.to(device)


def _arrays(theta: tuple[Tensor, ...], *others: Tensor) -> list[object]:
    """Return the arrays of kernels. Without transitions, the transition is (1, 0, 0)."""
    transition = theta[3] if len(theta) == 4 else theta[0].new_empty(1, 0, 0)
    return to_numpy(*(t.detach().double() for t in (*theta[:3], transition)), *others)


def _results(theta: tuple[Tensor, ...], lengths: Tensor) -> list[Tensor]:
    shapes = [t.shape[1:] for t in theta] + [(0, 0)] * (4 - len(theta))
    return [zeros(len(lengths), *shape, dtype=torch.float64) for shape in shapes]


def _like(results: list[Tensor], theta: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(r.to(t) for r, t in zip(results, theta, strict=False))


def _choices(theta: tuple[Tensor, ...], lengths: Tensor) -> int:
    """Return the number of segments of the batch, and of pairs of labels at its steps."""
    (steps, labels), durations = theta[0].shape[1:], theta[2].shape[1]
    return len(lengths) * steps * labels * (durations + (labels if len(theta) == 4 else 1))
