"""Potentials as vectors: their coordinates numbered through, and those that a quadratic penalty sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..errors import InvalidInputError, PluginError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size

__all__ = ["Coordinates", "Objective"]


class Coordinates:
    """The coordinates of ``extra`` tensors and then of θ's, tensor after tensor.

    Attributes
    ----------
    shapes : tuple of torch.Size
        Event shape of each tensor.
    offset : tuple of int
        First coordinate of each tensor, and the number of coordinates.
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

    def like(self, tensors: Sequence[Tensor]) -> Parts:
        """``tensors`` in θ's form."""
        return tuple(tensors) if self.is_tuple else tensors[0]

    def parts(self, vectors: Tensor) -> list[Tensor]:
        """The tensors, (..., *event) each, of vectors (..., coordinates)."""
        pieces = vectors.split(self.widths, -1)
        return [p.reshape(*vectors.shape[:-1], *shape) for p, shape in zip(pieces, self.shapes, strict=True)]

    def split(self, vectors: Tensor) -> Parts:
        """Vectors (..., coordinates) as potentials (..., *event) of θ's dtype, without the extra tensors."""
        return self.like([p.to(self.dtype).contiguous() for p in self.parts(vectors)[self.extra :]])

    def join(self, potentials: Parts) -> Tensor:
        """Potentials (B, *event) as float64 vectors (B, coordinates), 0 in the extra tensors."""
        tensors = as_tuple(potentials)
        batch = tensors[0].shape[0]
        front = tensors[0].new_zeros(batch, self.offset[self.extra], dtype=torch.float64)
        widths = self.widths[self.extra :]
        flat = (t.to(torch.float64).reshape(batch, width) for t, width in zip(tensors, widths, strict=True))
        return torch.cat([front, *flat], 1)


class Objective:
    """max ⟨θ, μ⟩ − ½ ‖r(μ)‖² over conv(Y) for each instance, where r is the identity or the oracle's readout.

    A readout that picks coordinates is a mask. For any other the readout's tensors become extra
    coordinates, the only penalised ones, of score 0.

    Parameters
    ----------
    theta : (B | 1, *event) tensor, or a tuple of them
    readout : bool
        Penalise the readout alone.

    Attributes
    ----------
    theta : tuple of Tensor
        In float64.
    penalised : (1 | B, coordinates) bool Tensor
    moved : list of bool
        For each tensor of θ, whether the penalty's gradient changes it.
    """

    def __init__(self, oracle: Oracle, theta: Parts, readout: bool) -> None:
        self.oracle = oracle
        self.theta = tuple(t.detach().to(torch.float64).contiguous() for t in as_tuple(theta))
        self.batch = batch_size(theta)
        self.coordinates = Coordinates(theta)
        if readout and type(oracle).readout is not Oracle.readout and self.batch:
            self._see_readout(theta)
        else:
            self.penalised = torch.ones(1, len(self.coordinates), dtype=torch.bool, device=self.coordinates.device)
            self.moved = [True] * len(self.theta)

    def _see_readout(self, theta: Parts) -> None:
        """Find out which coordinates the readout R picks, if it does pick coordinates."""
        coordinates = self.coordinates
        rows = self.batch if self.oracle.bound else 1
        probe = [t.new_zeros(rows, *t.shape[1:]) for t in self.theta]
        read = self.oracle.readout(coordinates.like(probe))
        kept = {id(r) for r in as_tuple(read)}
        if len(kept) == len(as_tuple(read)) and kept <= {id(v) for v in probe}:  # whole tensors, as they are
            self.moved = [id(v) in kept for v in probe]
            seen = [torch.full_like(v[:1], moved, dtype=torch.bool) for v, moved in zip(probe, self.moved, strict=True)]
            self.penalised = torch.cat([s.reshape(1, -1) for s in seen], 1)
            return
        # The entries of RᵀRv, for a generic v, are all v's or 0 exactly if R picks coordinates.
        generator = torch.Generator().manual_seed(0)
        for v in probe:
            v += torch.rand(v.shape[1:], dtype=torch.float64, generator=generator).to(v.device) + 0.5
        read = self.oracle.readout(coordinates.like(probe))
        image = as_tuple(self.oracle.readout_transpose(read, coordinates.like(probe)))
        self.moved = [bool(i.any()) for i in image]
        if all(bool(((i == 0) | (i == v)).all()) for i, v in zip(image, probe, strict=True)):
            self.penalised = torch.cat([i.reshape(rows, -1) for i in image], 1) != 0
        else:
            self._readout_is_tuple = isinstance(read, tuple)
            self.coordinates = Coordinates(theta, [r.shape[1:] for r in as_tuple(read)])
            place = torch.arange(len(self.coordinates), device=coordinates.device)
            self.penalised = (place < self.coordinates.offset[self.coordinates.extra])[None]

    def vertices(self, y: Parts, oracle: Oracle, size: int) -> list[Tensor]:
        """An oracle's answer for ``size`` instances as (size, width) tensors, those of its readout first."""
        coordinates = self.coordinates
        tensors = as_tuple(y)
        form = isinstance(y, tuple) == coordinates.is_tuple and len(tensors) == len(self.theta)
        if not (form and all(isinstance(t, Tensor) for t in tensors)):
            received = f"({', '.join(type(t).__name__ for t in y)})" if isinstance(y, tuple) else type(y).__name__
            raise PluginError(f"{oracle.label()}: argmax must return a structure of the form of theta, got {received}")
        if coordinates.extra:
            tensors = (*as_tuple(oracle.readout(y)), *tensors)
        for tensor, shape in zip(tensors, coordinates.shapes, strict=True):
            if tensor.shape != (size, *shape) or tensor.dtype != torch.float64 or tensor.device != coordinates.device:
                raise PluginError(
                    f"{oracle.label()}: a structure must have shape {(size, *shape)}, dtype torch.float64 and device "
                    f"{coordinates.device}, as theta has; got {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
                )
        return [t.reshape(size, width).contiguous() for t, width in zip(tensors, coordinates.widths, strict=True)]

    def direction(self, read: Tensor, rows: Tensor, oracle: Oracle) -> Parts:
        """θ − Rᵀ(R μ) for the instances ``rows``, given the extra coordinates (rows, extra) of μ."""
        coordinates = self.coordinates
        theta = [t if t.shape[0] == 1 else t[rows] for t in self.theta]
        pieces = zip(read.split(coordinates.widths[: coordinates.extra], 1), coordinates.shapes, strict=False)
        shaped = tuple(piece.reshape(len(rows), *shape) for piece, shape in pieces)
        image = oracle.readout_transpose(shaped if self._readout_is_tuple else shaped[0], coordinates.like(theta))
        moves = zip(theta, as_tuple(image), self.moved, strict=True)
        return coordinates.like([t - i if moved else t for t, i, moved in moves])

    def iterate_structures(self, structures: Parts) -> Iterator[Parts]:
        """The potentials (B, *event), in float64, that are stacked in ``structures`` (K, B, *event)."""
        tensors = as_tuple(structures)
        wanted = [(self.batch, *shape) for shape in self.coordinates.shapes[self.coordinates.extra :]]
        if [t.shape[1:] for t in tensors] != wanted or len({t.shape[0] for t in tensors}) != 1:
            raise InvalidInputError(
                f"warm_start: structures of shapes (K, B, *event) ending in {wanted} expected, "
                f"got {[tuple(t.shape) for t in tensors]}"
            )
        for k in range(tensors[0].shape[0]):
            yield self.coordinates.like([t[k].to(self.theta[0]) for t in tensors])

    def invalid_vertex_error(self, index: int) -> PluginError:
        """What to raise for a vertex of non-finite score."""
        return PluginError(
            f"{self.oracle.label()}: argmax returned a structure whose score is -inf or nan for batch index {index}; "
            "it must not use parts of score -inf, and raise InfeasibleError where every structure does"
        )
