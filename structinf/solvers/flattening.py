"""Conversion between scores or structures and flat vectors of coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..parts import Parts, as_tuple

__all__ = ["Flattening"]


class Flattening:
    """The order of the coordinates in flat vectors: the ``extra`` tensors first, then the tensors of θ.

    Parameters
    ----------
    theta : (B | 1, *event) tensor, or a tuple of them
        The scores, read for their form, shapes, dtype and device.
    extra : sequence of torch.Size
        Event shapes of the extra tensors; none by default.

    Attributes
    ----------
    shapes : tuple of torch.Size
        Event shape of each tensor.
    offset : tuple of int
        First coordinate of each tensor; the last entry is the number of coordinates.
    extra : int
        Number of extra tensors.
    """

    def __init__(self, theta: Parts, extra: Sequence[torch.Size] = ()) -> None:
        tensors = as_tuple(theta)
        self.is_tuple = isinstance(theta, tuple)
        self.dtype, self.device = tensors[0].dtype, tensors[0].device
        self.extra = len(extra)
        self.shapes = (*extra, *(t.shape[1:] for t in tensors))
        self.offset = (0, *itertools.accumulate(math.prod(shape) for shape in self.shapes))

    def __len__(self) -> int:
        return self.offset[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of coordinates of each tensor."""
        return tuple(high - low for low, high in itertools.pairwise(self.offset))

    def as_parts(self, tensors: Sequence[Tensor]) -> Parts:
        """Return ``tensors`` as a tuple if θ is a tuple, else the only tensor."""
        return tuple(tensors) if self.is_tuple else tensors[0]

    def split(self, vectors: Tensor) -> list[Tensor]:
        """Split vectors (..., coordinates) into all tensors, (..., *event) each."""
        pieces = vectors.split(self.widths, -1)
        return [p.reshape(*vectors.shape[:-1], *shape) for p, shape in zip(pieces, self.shapes, strict=True)]

    def unflatten(self, vectors: Tensor) -> Parts:
        """Return vectors (..., coordinates) as scores or structures (..., *event) of θ's dtype, without extra
        tensors.
        """
        return self.as_parts([p.to(self.dtype).contiguous() for p in self.split(vectors)[self.extra :]])

    def flatten(self, potentials: Parts) -> Tensor:
        """Return scores or structures (B, *event) as float64 vectors (B, coordinates), with 0 in the extra tensors."""
        tensors = as_tuple(potentials)
        batch = tensors[0].shape[0]
        front = tensors[0].new_zeros(batch, self.offset[self.extra], dtype=torch.float64)
        widths = self.widths[self.extra :]
        flat = (t.to(torch.float64).reshape(batch, width) for t, width in zip(tensors, widths, strict=True))
        return torch.cat([front, *flat], 1)
