"""Projections onto permutahedra and their Jacobians, by the kernels of :mod:`.isotonic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...shapes import Float, Int
from ..arrays import to_numpy
from ..threads import parallel_rows

__all__ = ["Jacobian", "project"]

# Elementary operations per number.
SORT, AVERAGE = 12, 4


@dataclass(frozen=True, eq=False)
class Jacobian:
    """The Jacobian of :func:`project`, which is constant around almost every θ.

    Attributes
    ----------
    blocks : (B, n) int32 array
        From :func:`structinf.kernels.permutahedron.isotonic.project`.
    is_sorting : bool
        Whether the projection was a soft sort instead of soft ranks.
    factor : float
        A factor of the product.
    """

    blocks: Any
    is_sorting: bool
    factor: float

    def jvp(self, v: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        """Return the product of the Jacobian with ``v``."""
        return self._product(v, True, not self.is_sorting)

    def vjp(self, v: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        """Return the product of the transposed Jacobian with ``v``."""
        return self._product(v, not self.is_sorting, True)

    def _product(self, v: Tensor, is_gathered: bool, is_scattered: bool) -> Tensor:
        from .isotonic import block_means

        (array,) = to_numpy(v)
        out = np.empty_like(array)
        options = is_gathered, is_scattered, not self.is_sorting, self.factor
        parallel_rows(block_means, len(array), array, self.blocks, *options, out, work=AVERAGE * array.size)
        return torch.from_numpy(out).to(v.device)


def project(
    theta: Float[Tensor, "batch n"],
    temperature: float = 1.0,
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    is_sorting: bool = False,
) -> tuple[Float[Tensor, "batch n"], Jacobian]:
    """Return the soft ranks of the numbers in each row, or their soft sort in ascending order, and the Jacobian.

    Soft ranks are the projection of θ / temperature onto the convex hull of the permutations of (1, ..., n). The soft
    sort is the projection of (1, ..., n) / temperature onto the convex hull of the permutations of θ.

    Parameters
    ----------
    theta : (B, n) Tensor
        Finite, in float32 or float64.
    temperature : float
        0 gives hard ranks, or a hard sort.
    lengths : (B,) Tensor, optional
        The number of leading elements in use in each row. The result is 0 for the other elements.
    is_sorting : bool
        Whether to sort instead of rank.
    """
    from . import isotonic

    (array,) = to_numpy(theta)
    sizes = np.full(1, array.shape[1]) if lengths is None else to_numpy(lengths)[0]
    out, blocks = np.empty_like(array), np.empty(array.shape, np.int32)
    bits = array.view(np.uint32 if array.itemsize == 4 else np.uint64)
    options = sizes, float(temperature), is_sorting
    parallel_rows(isotonic.project, len(array), array, bits, *options, out, blocks, work=SORT * array.size)
    factor = 1.0 if is_sorting or not temperature else 1.0 / temperature
    return torch.from_numpy(out).to(theta.device), Jacobian(blocks, is_sorting, factor)
