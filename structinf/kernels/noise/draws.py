"""Draws of random numbers by the compiled loops of the CPU, and by operations of torch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..threads import parallel_rows
from .keys import draw_key

__all__ = ["SampleSpec", "draw_compiled", "draw_sum_of_gamma", "uniform", "unit_exponential"]


class SampleSpec(NamedTuple):
    """The shape, dtype and device of a sample, and its random generator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator | None


def draw_compiled(distribution: str, spec: SampleSpec) -> Tensor:
    """Return draws of a distribution of :mod:`.counter_rng`, by the CPU kernels."""
    from . import counter_rng as kernels

    if spec.dtype is torch.float64:
        return _fill_chunks(kernels.fill64, kernels.CHUNK, 6, spec, getattr(kernels, distribution))
    return _fill_chunks(kernels.fill32, 2 * kernels.CHUNK, 6, spec, getattr(kernels, distribution))


def draw_sum_of_gamma(k: int, terms: int, spec: SampleSpec) -> Tensor:
    """Return draws of the sum of gamma distributions with ``terms`` terms, by the CPU kernel."""
    from . import gamma as kernels
    from .counter_rng import CHUNK

    # The kernel draws in units of k / s, the scale of the last term.
    options = terms / k, *kernels.negative_binomial_mixture(1 / k, terms), 1 / terms, -math.log(terms) / k
    return _fill_chunks(kernels.fill, CHUNK, 100, spec, *options)


def _fill_chunks(fill: Any, chunk: int, work: int, spec: SampleSpec, *options: Any) -> Tensor:
    """Return numbers drawn by the kernel ``fill`` in chunks, with a key from the random generator.

    Parameters
    ----------
    fill : callable
        A kernel that fills a range of chunks of the output array.
    chunk : int
        Numbers in each chunk.
    work : int
        The cost of a number, in the unit of :func:`structinf.kernels.threads.parallel_rows`.
    spec : SampleSpec
        The shape, dtype and random generator.
    *options
        Further arguments of ``fill``.
    """
    key = int(draw_key(spec.generator, torch.device("cpu")))
    count = math.prod(spec.shape)
    chunks = -(-count // chunk)
    out = np.empty(chunks * chunk, np.float64 if spec.dtype is torch.float64 else np.float32)
    parallel_rows(fill, chunks, np.uint64(key), *options, out, work=work * count)
    return torch.from_numpy(out[:count].reshape(spec.shape))


def uniform(spec: SampleSpec) -> Tensor:
    """Return float64 draws in the open interval (0, 1): midpoints of 2⁵² equal intervals."""
    drawn = torch.randint(2**52, spec.shape, device=spec.device, generator=spec.generator)
    return (drawn.double() + 0.5) * 2.0**-52


def unit_exponential(spec: SampleSpec) -> Tensor:
    """Return exponential draws of rate 1, all finite and above 0."""
    return -uniform(spec).log().to(spec.dtype)
