"""Noisy copies of a batch of potentials, as one batch, so that one call of the oracle serves all samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import parallel_rows, to_numpy
from ..noise import Noise
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts, pack_like

__all__ = [
    "NoisyCopies",
    "draw_noise",
    "merge_samples",
    "multiplicative_factors",
    "perturb",
    "repeat_instances",
    "sample_inner_products",
    "weighted_sum_of_samples",
]


@dataclass(frozen=True)
class NoisyCopies:
    """θ + σU for n draws of U, or θ exp(σU − σ²/2): copy s of instance b stands at s B + b.

    Attributes
    ----------
    oracle : Oracle
        For all the copies.
    theta : (n B, *event) Parts
        Each instance with its own copy of tensors that the batch shares.
    noise : (n, B, *event) Parts
        U, 0 in the padding.
    """

    oracle: Oracle
    theta: Parts
    noise: Parts


def perturb(
    oracle: Oracle,
    theta: Parts,
    noise: Noise,
    scale: float,
    samples: int,
    generator: torch.Generator | None,
    *,
    multiplicative: bool = False,
    antithetic: bool = False,
) -> NoisyCopies:
    """``samples`` noisy copies of ``theta``, (B | 1, *event), as which they are differentiable."""
    drawn = draw_noise(oracle, theta, noise, samples, generator, antithetic=antithetic)
    if multiplicative:
        # A factor may underflow to 0, and what is forbidden would be NaN.
        copies = map_parts(lambda t, u: torch.where(t.isinf(), t, t * multiplicative_factors(u, scale)), theta, drawn)
    else:
        copies = map_parts(lambda t, u: torch.add(t, u, alpha=scale), theta, drawn)
    return NoisyCopies(oracle.repeat(samples), merge_samples(copies), drawn)


def multiplicative_factors(u: Tensor, scale: float) -> Tensor:
    """exp(σu − σ²/2), of mean 1 for normal u."""
    return (scale * u - 0.5 * scale * scale).exp()


def draw_noise(
    oracle: Oracle,
    theta: Parts,
    noise: Noise,
    samples: int,
    generator: torch.Generator | None,
    *,
    antithetic: bool = False,
) -> Parts:
    """Draws for each part of each instance, (samples, B, *event), 0 in the padding.

    ``antithetic`` draws come in pairs: the second half of the samples is minus the first.
    """
    size = batch_size(theta)
    drawn = []
    for t in as_tuple(theta):
        shape = (samples // 2 if antithetic else samples, size, *t.shape[1:])
        u = noise.sample(shape, dtype=t.dtype, device=t.device, generator=generator)
        if not isinstance(u, Tensor) or u.shape != shape or u.dtype != t.dtype:
            received = f"shape {tuple(u.shape)} and {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
            raise InvalidInputError(
                f"noise: sample() of {noise!r} must give shape {shape} and {t.dtype}, got {received}"
            )
        if type(noise).__module__ != Noise.__module__ and not bool(u.isfinite().all()):  # ours are tested to be
            raise InvalidInputError(f"noise: sample() of {noise!r} gave NaN or infinity; draws must be finite")
        drawn.append(torch.cat([u, -u]) if antithetic else u)
    form = pack_like(drawn, theta)
    # Of each instance, also for tensors that the batch shares: what is one's padding may be inside another.
    masks = oracle.valid_parts(map_parts(lambda u: u[0], form))
    if masks is None:
        return form
    # A product, as draws are finite: where() takes several times as long over a mask that all samples share.
    return map_parts(lambda u, mask: u * mask.to(u.dtype), form, masks)


def repeat_instances(theta: Parts, samples: int) -> Parts:
    """``theta`` (B | 1, *event) as so many equal copies of each instance, (samples B, *event)."""
    size = batch_size(theta)
    return map_parts(lambda t: t.expand(samples, size, *t.shape[1:]).reshape(samples * size, *t.shape[1:]), theta)


def merge_samples(copies: Parts) -> Parts:
    """(samples, B, *event) as one batch, (samples B, *event)."""
    return map_parts(lambda t: t.flatten(0, 1), copies)


def sample_inner_products(samples: Tensor, v: Tensor) -> Tensor:
    """⟨y, v⟩, (n, B), for each y of the ``samples`` (n, B, *event) and its instance's v (B, *event)."""
    samples, v = samples.unsqueeze(-1).flatten(2), v.unsqueeze(-1).flatten(1)
    if not samples.is_cpu:
        return torch.einsum("nbd,bd->nb", samples, v)
    from ..kernels.noise.products import inner_products

    arrays = to_numpy(samples, v.to(samples.dtype))
    products = np.empty(samples.shape[:2], arrays[0].dtype)
    parallel_rows(inner_products, samples.shape[1], *arrays, products, work=samples.numel())
    return torch.from_numpy(products)


def weighted_sum_of_samples(samples: Tensor, weights: Tensor) -> Tensor:
    """Σ wᵢ yᵢ, (B, *event), of ``samples`` (n, B, *event) with their weights (n, B)."""
    flat = samples.unsqueeze(-1).flatten(2)
    if not samples.is_cpu:
        return torch.einsum("nb,nbd->bd", weights, flat).view(samples.shape[1:])
    from ..kernels.noise.products import weighted_sums

    arrays = to_numpy(flat, weights.to(samples.dtype))
    total = np.empty(flat.shape[1:], arrays[0].dtype)
    parallel_rows(weighted_sums, flat.shape[1], *arrays, total, work=samples.numel())
    return torch.from_numpy(total).view(samples.shape[1:])
