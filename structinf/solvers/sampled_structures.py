"""Structures of samples, with their mean and their inner products: dense, or as lists of their parts."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy, zeros
from ..parts import Parts, as_tuple, map_parts, parts_to_vectors, vectors_to_parts

__all__ = ["DenseStructures", "ListedStructures", "SampledStructures"]


@dataclass(frozen=True)
class DenseStructures:
    """Structures with their mean.

    Attributes
    ----------
    structures : (n, B, *event) Parts
        The structures.
    mean : (B, *event) Parts
        Their mean over the n samples.
    """

    structures: Parts
    mean: Parts

    def inner_products(self, v: Parts) -> Tensor:
        """Return ⟨y, v⟩, (n, B), of each structure y with its instance's ``v`` (B, *event)."""
        first, *others = map(_dense_inner_products, as_tuple(self.structures), as_tuple(v))
        return sum(others, start=first)


@dataclass(frozen=True)
class ListedStructures:
    """Structures on the CPU as lists of their parts; see :meth:`structinf.oracle.Oracle.argmax_indices`.

    Attributes
    ----------
    lists : (n, B, m) int32 Tensor
        The parts of each structure.
    like : (B | 1, *event) Parts
        The form and dtype of the structures.
    """

    lists: Tensor
    like: Parts

    @property
    def _size(self) -> int:
        """The number of parts of an instance."""
        return sum(math.prod(t.shape[1:]) for t in as_tuple(self.like))

    @functools.cached_property
    def mean(self) -> Parts:
        """The mean over the n samples, (B, *event)."""
        from ..kernels.noise.listed_structures import means

        mean = torch.empty(self.lists.shape[1], self._size, dtype=as_tuple(self.like)[0].dtype, device="cpu")
        parallel_rows(means, len(mean), self.lists.numpy(), mean.numpy(), work=2 * self.lists.numel() + mean.numel())
        return vectors_to_parts(mean, self.like)

    @functools.cached_property
    def structures(self) -> Parts:
        """The structures, (n, B, *event)."""
        from ..kernels.noise.listed_structures import write_structures

        samples, size, _ = self.lists.shape
        y = zeros(samples * size, self._size, dtype=as_tuple(self.like)[0].dtype)
        parallel_rows(write_structures, len(y), self.lists.flatten(0, 1).numpy(), y.numpy(), work=y.numel())
        parts = vectors_to_parts(y, self.like)
        return map_parts(lambda t: t.contiguous().view(samples, size, *t.shape[1:]), parts)

    def inner_products(self, v: Parts) -> Tensor:
        """Return ⟨y, v⟩, (n, B), of each structure y with its instance's ``v`` (B, *event)."""
        from ..kernels.noise.listed_structures import inner_products

        vectors = parts_to_vectors(v) if isinstance(v, tuple) else v.reshape(len(v), self._size)
        lists, (vectors,) = self.lists.numpy(), to_numpy(vectors)
        products = np.empty(lists.shape[:2], vectors.dtype)
        parallel_rows(inner_products, lists.shape[1], lists, vectors, products, work=2 * lists.size)
        return torch.from_numpy(products)


SampledStructures = DenseStructures | ListedStructures


def _dense_inner_products(samples: Tensor, v: Tensor) -> Tensor:
    samples, v = samples.unsqueeze(-1).flatten(2), v.unsqueeze(-1).flatten(1)
    if not samples.is_cpu:
        return torch.einsum("nbd,bd->nb", samples, v)
    from ..kernels.noise.products import inner_products

    arrays = to_numpy(samples, v.to(samples.dtype))
    products = np.empty(samples.shape[:2], arrays[0].dtype)
    parallel_rows(inner_products, samples.shape[1], *arrays, products, work=samples.numel())
    return torch.from_numpy(products)
