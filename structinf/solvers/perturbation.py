"""Noisy copies of scores, stacked as one batch so that one oracle call serves all samples."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import parallel_rows, to_numpy
from ..kernels.arrays import LARGE_BYTES, empty
from ..kernels.gpu import uses_triton
from ..kernels.noise.keys import draw_key
from ..noise import Exponential, Gumbel, Logistic, Noise, Normal
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, check_scale_now, map_parts, pack_like
from ..validation import check_in_range

__all__ = [
    "NoisyCopies",
    "add_to_samples",
    "draw_noise",
    "merge_samples",
    "multiplicative_factors",
    "perturb",
    "repeat_instances",
    "weighted_sum_of_samples",
]


@dataclass(frozen=True)
class NoisyCopies:
    """θ + σU, or θ exp(σU − σ²/2), for n draws of U. Copy s of instance b has the batch index s B + b.

    Attributes
    ----------
    oracle : Oracle
        The oracle of all n B copies.
    theta : (n B, *event) Parts
        The noisy scores. Each copy has its own values, also of tensors shared by the batch.
    noise : (n, B, *event) Parts, or None
        The draws U, 0 in the padding. None without ``keeps_noise`` of :func:`perturb`, where they are not in memory.
    """

    oracle: Oracle
    theta: Parts
    noise: Parts | None


def perturb(
    oracle: Oracle,
    theta: Parts,
    noise: Noise,
    scale: float | Tensor,
    samples: int,
    generator: torch.Generator | None,
    *,
    multiplicative: bool = False,
    antithetic: bool = False,
    keeps_noise: bool = True,
) -> NoisyCopies:
    """Return ``samples`` noisy copies of ``theta`` (B | 1, *event), differentiable in ``theta``.

    With additive noise, they are also differentiable in a tensor ``scale`` with one number.

    The copies are θ + scale · U, or with ``multiplicative`` θ exp(scale · U − scale² / 2), for draws U of
    :func:`draw_noise`. Without ``keeps_noise``, the result may leave out the draws, which saves a pass over memory.

    Raises InvalidInputError if the dtype of θ cannot represent the noise, or its factors.
    """
    dtype = as_tuple(theta)[0].dtype
    if isinstance(scale, Tensor):
        number = check_scale_now("sigma", scale)
        drawn = draw_noise(oracle, theta, noise, samples, generator, antithetic=antithetic)
        copies = map_parts(lambda t, u: t + number.to(u) * u, theta, drawn)
        return NoisyCopies(oracle.repeat(samples), merge_samples(copies), drawn)
    check_in_range("sigma", scale, dtype)
    # Less than one draw of a billion is above 6.
    if multiplicative and 6 * scale - 0.5 * scale * scale < math.log(torch.finfo(dtype).tiny):
        raise InvalidInputError(
            f"sigma {scale!r} is too large for multiplicative noise in {dtype}: all factors exp(σU − σ²/2) underflow "
            "to 0; use a smaller sigma"
        )
    if not multiplicative and not antithetic and _is_drawn_with_scores(theta, noise, generator):
        copies, draws = _draw_noisy_scores(oracle, theta, noise, scale, samples, generator, keeps_noise)
        return NoisyCopies(oracle.repeat(samples), copies, draws)
    drawn = draw_noise(oracle, theta, noise, samples, generator, antithetic=antithetic)
    if multiplicative:
        # A factor may underflow to 0, and 0 · −inf would be NaN at forbidden parts.
        copies = map_parts(lambda t, u: torch.where(t.isinf(), t, t * multiplicative_factors(u, scale)), theta, drawn)
    else:
        copies = map_parts(lambda t, u: _add_scaled(t, u, scale), theta, drawn)
    return NoisyCopies(oracle.repeat(samples), merge_samples(copies), drawn)


_OF_COUNTERS = (Exponential, Gumbel, Logistic, Normal)
"""Distributions of `structinf.kernels.noise.counter_rng`. Subclasses of users may draw other numbers."""


def _is_drawn_with_scores(theta: Parts, noise: Noise, generator: torch.Generator | None) -> bool:
    """Return whether a compiled loop draws the noise and adds the scores in one pass."""
    if type(noise) not in _OF_COUNTERS or not (generator is None or generator.device.type == "cpu"):
        return False
    is_recording = torch.is_grad_enabled()
    return all(t.is_cpu and not uses_triton(t) and not (is_recording and t.requires_grad) for t in as_tuple(theta))


def _draw_noisy_scores(
    oracle: Oracle,
    theta: Parts,
    noise: Noise,
    scale: float,
    samples: int,
    generator: torch.Generator | None,
    keeps_noise: bool,
) -> tuple[Parts, Parts | None]:
    """Return θ + scale · U, (samples B, *event), and the draws U of :func:`draw_noise`, (samples, B, *event) or None.

    The draws are those of :func:`draw_noise` for the same state of the generator.
    """
    from ..kernels.noise import counter_rng
    from ..kernels.noise import noisy_scores as kernels

    size, tensors = batch_size(theta), as_tuple(theta)
    distribution = getattr(counter_rng, noise.name.upper())
    factors = _factors_of_noise(oracle, theta, size)
    copies, draws = [], []
    for t, factor in zip(tensors, factors, strict=True):
        shape, number = (size, *t.shape[1:]), np.float64 if t.dtype is torch.float64 else np.float32
        kernel, chunk = (kernels.perturb64, 1) if number is np.float64 else (kernels.perturb32, 2)
        chunk *= counter_rng.CHUNK
        count = samples * math.prod(shape)
        chunks = -(-count // chunk)
        noisy = np.empty(chunks * chunk, number)
        drawn = np.empty(chunks * chunk if keeps_noise else 0, number)
        key, (scores,) = np.uint64(int(draw_key(generator, t.device))), to_numpy(t)
        arguments = key, distribution, scores.reshape(-1), factor, number(scale), drawn, noisy
        parallel_rows(kernel, chunks, *arguments, work=8 * count)
        copies.append(torch.from_numpy(noisy[:count].reshape(samples * size, *shape[1:])))
        if keeps_noise:
            draws.append(torch.from_numpy(drawn[:count].reshape(samples, *shape)))
    return pack_like(copies, theta), pack_like(draws, theta) if keeps_noise else None


def _factors_of_noise(oracle: Oracle, theta: Parts, size: int) -> list[np.ndarray]:
    """Return factors of the draws for each tensor: 1, and 0 for parts without noise; an empty array if all are 1."""
    masks, tensors = _noise_masks(oracle, theta, size), as_tuple(theta)
    if not masks:
        return [np.empty(0, np.float64 if t.dtype is torch.float64 else np.float32) for t in tensors]
    factors = [functools.reduce(torch.logical_and, column) for column in zip(*map(as_tuple, masks), strict=True)]
    return [
        to_numpy(factor.expand(len(factor), *t.shape[1:]).to(t.dtype))[0].reshape(-1)
        for t, factor in zip(tensors, factors, strict=True)
    ]


def _noise_masks(oracle: Oracle, theta: Parts, size: int) -> list[Parts]:
    """Return masks (B | 1, *event) of the parts with noise; all other parts get 0."""
    # Masks of each instance, also for shared tensors: the padding of one instance may be valid in another instance.
    form = map_parts(lambda t: t if len(t) == size else t.expand(size, *t.shape[1:]), theta)
    found = oracle.valid_parts(form), oracle.perturbed_parts(theta)
    return [masks for masks in found if masks is not None]


def _add_scaled(t: Tensor, u: Tensor, scale: float) -> Tensor:
    if not u.is_cpu or u.nbytes < LARGE_BYTES or (t.requires_grad and torch.is_grad_enabled()):
        return torch.add(t, u, alpha=scale)
    return torch.add(t, u, alpha=scale, out=empty(*u.shape, dtype=u.dtype))


def multiplicative_factors(u: Tensor, scale: float | Tensor) -> Tensor:
    """Return exp(σu − σ²/2) for σ = ``scale``; its mean is 1 for standard normal u."""
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
    """Draw noise for each part of each instance, (samples, B, *event), with 0 in the padding.

    With ``antithetic``, the second half of the samples is minus the first half.
    """
    size = batch_size(theta)
    drawn = []
    for t in as_tuple(theta):
        shape = (samples // 2 if antithetic else samples, size, *t.shape[1:])
        u = noise.sample(shape, dtype=t.dtype, device=t.device, generator=generator)
        if not isinstance(u, Tensor) or u.shape != shape or u.dtype != t.dtype:
            received = f"shape {tuple(u.shape)} and {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
            raise InvalidInputError(
                f"noise: sample() of {noise!r} must return shape {shape} and {t.dtype}, got {received}"
            )
        # Tests show that the built-in distributions return finite draws.
        if type(noise).__module__ != Noise.__module__ and not bool(u.isfinite().all()):
            raise InvalidInputError(f"noise: sample() of {noise!r} returned NaN or infinity; draws must be finite")
        drawn.append(torch.cat([u, -u]) if antithetic else u)
    form = pack_like(drawn, theta)
    for masks in _noise_masks(oracle, theta, size):
        # A product suffices because draws are finite. torch.where is slower with a mask shared by samples. Only
        # the draws of the library's own distributions certainly have memory of their own.
        multiply = torch.Tensor.mul_ if type(noise).__module__ == Noise.__module__ else torch.mul
        form = map_parts(lambda u, mask, f=multiply: f(u, mask.to(u.dtype)), form, masks)
    return form


def repeat_instances(theta: Parts, samples: int) -> Parts:
    """Repeat each instance of ``theta`` (B | 1, *event) ``samples`` times; return (samples B, *event)."""
    size = batch_size(theta)
    return map_parts(lambda t: t.expand(samples, size, *t.shape[1:]).reshape(samples * size, *t.shape[1:]), theta)


def merge_samples(copies: Parts) -> Parts:
    """Merge samples and batch: return (samples B, *event) for ``copies`` (samples, B, *event)."""
    return map_parts(lambda t: t.flatten(0, 1), copies)


def add_to_samples(samples: Tensor, v: Tensor, scale: float) -> tuple[Tensor, bool]:
    """Return ``samples`` (n, B, *event) + ``scale`` · ``v`` (B, *event), and whether all numbers are finite."""
    if not samples.is_cpu:
        total = torch.add(samples, v, alpha=scale)
        return total, bool(total.isfinite().all())
    from ..kernels.noise.products import steps

    drawn, direction = to_numpy(samples, v.to(samples.dtype))
    total, is_finite = np.empty_like(drawn), np.empty(len(direction), np.bool_)
    flat = *drawn.shape[:2], math.prod(drawn.shape[2:])
    arrays = drawn.reshape(flat), direction.reshape(flat[1:]), drawn.dtype.type(scale), total.reshape(flat), is_finite
    parallel_rows(steps, len(direction), *arrays, work=2 * drawn.size)
    return torch.from_numpy(total), bool(is_finite.all())


def weighted_sum_of_samples(samples: Tensor, weights: Tensor, theta: Tensor) -> Tensor:
    """Return Σ wᵢ yᵢ, (B, *event), over ``samples`` (n, B, *event) with ``weights`` (n, B).

    The sum is 0 at parts whose score in ``theta`` (B | 1, *event) is infinite.
    """
    size, shape = len(theta), samples.shape[1:]
    if not samples.is_cpu:
        total = torch.einsum("nb,nbd->bd", weights, samples.unsqueeze(-1).flatten(2)).view(shape)
        return torch.where(theta.isinf(), 0.0, total)
    from ..kernels.noise.products import weighted_sums

    drawn, factors, scores = to_numpy(samples, weights.to(samples.dtype), theta)
    count = math.prod(shape[1:])
    total = np.empty((shape[0], count), drawn.dtype)
    arrays = drawn.reshape(len(drawn), shape[0], count), factors, scores.reshape(size, count), total
    parallel_rows(weighted_sums, shape[0], *arrays, work=drawn.size)
    return torch.from_numpy(total.reshape(shape))
