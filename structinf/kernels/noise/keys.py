"""The keys of counter-based random numbers, drawn from random generators of torch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw_key"]


def draw_key(generator: torch.Generator | None, device: torch.device) -> int | Tensor:
    """Return a key from 0 to 2⁶³ − 1 for draws on ``device``.

    From a CUDA generator, the key is a scalar on the device, so that no synchronization is needed. A recorded CUDA
    graph would repeat a number in each replay, so there the default generator of the device gives the key.
    """
    is_recorded = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    source = generator.device if generator is not None else device if is_recorded else "cpu"
    key = torch.empty((), dtype=torch.int64, device=source).random_(generator=generator)
    return int(key) if key.is_cpu else key
