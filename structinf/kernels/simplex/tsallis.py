"""Values of Tsallis' entropies and of what they leave of a maximum, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...shapes import Float
from ..arrays import empty, to_numpy
from ..threads import parallel_rows

__all__ = ["tsallis_maximum"]

# Elementary operations for each number.
PLAIN, POWERS = 3, 20


def tsallis_maximum(
    x: Float[Tensor, "*rows n"],
    p: Float[Tensor, "*rows n"],
    origin: Float[Tensor, "*rows"],
    alpha: float,
) -> Float[Tensor, "*rows"]:
    """⟨p, x − origin⟩ + (1 − Σ p^α) / (α (α − 1)) in float64, for the p at which it is largest, in x's dtype."""
    from .tsallis_rows import tsallis_maximum as kernel

    out = empty(*origin.shape, dtype=torch.float64)
    scores, points, origins = to_numpy(x, p, origin)
    arrays: tuple[Any, ...] = scores.ravel(), points.ravel(), origins.ravel(), x.shape[-1], float(alpha)
    parallel_rows(
        kernel, origin.numel(), *arrays, out.numpy().ravel(), work=(PLAIN if alpha in (1.5, 2) else POWERS) * x.numel()
    )
    return out
