"""Vectors with few nonzeros, in dense arrays of their nonzeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["SparseVectors"]


class SparseVectors:
    """Vectors (..., width), as the places and the values of z entries that include all nonzeros.

    Parameters
    ----------
    index : (..., z) int64 Tensor
        The places; those of entries without use are 0.
    value : (..., z) Tensor
        The values, 0 for entries without use.
    width : int
        The number of coordinates.
    """

    def __init__(self, index: Tensor, value: Tensor, width: int) -> None:
        self.index, self.value, self.width = index, value, width

    @classmethod
    def of(cls, vectors: Tensor) -> SparseVectors:
        """Return the form of dense ``vectors`` (..., width)."""
        shape, width = vectors.shape[:-1], vectors.shape[-1]
        flat = vectors.flatten(0, -2)
        row, place = flat.nonzero(as_tuple=True)
        count = torch.bincount(row, minlength=len(flat))
        column = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        z = int(count.max()) if len(flat) else 0
        index = place.new_zeros(len(flat), z).index_put_((row, column), place)
        value = vectors.new_zeros(len(flat), z).index_put_((row, column), flat[row, place])
        return cls(index.view(*shape, z), value.view(*shape, z), width)

    def __getitem__(self, rows: Tensor) -> SparseVectors:
        return SparseVectors(self.index[rows], self.value[rows], self.width)

    def view(self, *shape: int) -> SparseVectors:
        """Return the vectors in the batch shape ``shape``."""
        z = self.index.shape[-1]
        return SparseVectors(self.index.reshape(*shape, z), self.value.reshape(*shape, z), self.width)

    def dense(self) -> Tensor:
        """Return the vectors in full, (..., width)."""
        out = self.value.new_zeros(*self.value.shape[:-1], self.width)
        return out.scatter_add_(-1, self.index, self.value)

    def dot(self, vectors: Tensor) -> Tensor:
        """Return the inner products (R, F, K) of vectors (R, F, K, width) with dense ``vectors`` (R, F, width)."""
        values = vectors.gather(2, self.index.flatten(2)).view_as(self.value)
        return (values * self.value).sum(3)

    def combine(self, weights: Tensor) -> Tensor:
        """Return the sums (R, F, width) of vectors (R, F, K, width) with ``weights`` (R, F, K)."""
        out = weights.new_zeros(*weights.shape[:2], self.width)
        return out.scatter_add_(2, self.index.flatten(2), (weights[..., None] * self.value).flatten(2))

    @staticmethod
    def concatenate(pieces: Sequence[SparseVectors], dim: int) -> SparseVectors:
        """Return the vectors of all pieces, joined along the dimension ``dim`` of the batch shape."""
        z = max(p.index.shape[-1] for p in pieces)

        def join(tensors: list[Tensor]) -> Tensor:
            return torch.cat([torch.nn.functional.pad(t, (0, z - t.shape[-1])) for t in tensors], dim)

        return SparseVectors(join([p.index for p in pieces]), join([p.value for p in pieces]), pieces[0].width)
