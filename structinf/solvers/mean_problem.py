"""Problems over the mean: scores in float64, and checked structures of an oracle as flat vectors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import InvalidInputError, PluginError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size
from .flattening import Flattening

__all__ = ["MeanProblem"]


class MeanProblem:
    """max ⟨θ, μ⟩ − Ω(μ) over μ in conv(Y), for each instance, and the coordinates of μ penalised by a quadratic Ω.

    The quadratic Ω is ½ ‖r(μ)‖², where r is the identity or the oracle's readout. A readout that selects
    coordinates becomes a mask. The tensors of any other readout become extra coordinates with score 0; Ω then
    penalises only the extra coordinates.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    theta : (B | 1, *event) tensor, or a tuple of them
        The scores.
    readout : bool
        Whether Ω penalises only the readout.
    first_tensor : bool
        Whether Ω penalises only the first tensor of θ; then ``readout`` has no effect.

    Attributes
    ----------
    theta : tuple of Tensor
        The scores, in float64.
    penalised : (1 | B, coordinates) bool Tensor
        Whether Ω penalises each coordinate.
    tensor_is_penalised : list of bool
        For each tensor of θ, whether the gradient of Ω can be nonzero in the tensor.
    """

    def __init__(self, oracle: Oracle, theta: Parts, readout: bool, first_tensor: bool = False) -> None:
        self.oracle = oracle
        self.theta = tuple(t.detach().to(torch.float64).contiguous() for t in as_tuple(theta))
        self.batch = batch_size(theta)
        self.flattening = Flattening(theta)
        if first_tensor:
            self.tensor_is_penalised = [k == 0 for k in range(len(self.theta))]
            place = torch.arange(len(self.flattening), device=self.flattening.device)
            self.penalised = (place < self.flattening.offset[1])[None]
        elif readout and oracle.has_readout and self.batch:
            self._inspect_readout(theta)
        else:
            self.penalised = torch.ones(1, len(self.flattening), dtype=torch.bool, device=self.flattening.device)
            self.tensor_is_penalised = [True] * len(self.theta)

    def _inspect_readout(self, theta: Parts) -> None:
        """Find the coordinates selected by the readout R, or add extra coordinates for any other R."""
        flattening = self.flattening
        rows = self.batch if self.oracle.bound else 1
        probe = [t.new_zeros(rows, *t.shape[1:]) for t in self.theta]
        read = self.oracle.readout(flattening.as_parts(probe))
        kept = {id(r) for r in as_tuple(read)}
        if len(kept) == len(as_tuple(read)) and kept <= {id(v) for v in probe}:  # the readout returns whole tensors
            self.tensor_is_penalised = [id(v) in kept for v in probe]
            masks = zip(probe, self.tensor_is_penalised, strict=True)
            seen = [torch.full_like(v[:1], penalised, dtype=torch.bool) for v, penalised in masks]
            self.penalised = torch.cat([s.reshape(1, -1) for s in seen], 1)
            return
        # For a generic v, R selects coordinates if and only if each entry of RᵀRv equals 0 or the same entry of v.
        generator = torch.Generator().manual_seed(0)
        for v in probe:
            v += torch.rand(v.shape[1:], dtype=torch.float64, generator=generator, device="cpu").to(v.device) + 0.5
        read = self.oracle.readout(flattening.as_parts(probe))
        image = as_tuple(self.oracle.readout_transpose(read, flattening.as_parts(probe)))
        self.tensor_is_penalised = [bool(i.any()) for i in image]
        if all(bool(((i == 0) | (i == v)).all()) for i, v in zip(image, probe, strict=True)):
            self.penalised = torch.cat([i.reshape(rows, -1) for i in image], 1) != 0
        else:
            self._readout_is_tuple = isinstance(read, tuple)
            self.flattening = Flattening(theta, [r.shape[1:] for r in as_tuple(read)])
            place = torch.arange(len(self.flattening), device=flattening.device)
            self.penalised = (place < self.flattening.offset[self.flattening.extra])[None]

    def flatten_structures(self, y: Parts, oracle: Oracle, size: int) -> list[Tensor]:
        """Check the structures ``y`` of ``size`` instances from ``oracle``, and return (size, width) tensors.

        The tensors of the readout come first if the problem has extra coordinates.
        """
        flattening = self.flattening
        tensors = as_tuple(y)
        form = isinstance(y, tuple) == flattening.is_tuple and len(tensors) == len(self.theta)
        if not (form and all(isinstance(t, Tensor) for t in tensors)):
            came = f"({', '.join(type(t).__name__ for t in y)})" if isinstance(y, tuple) else type(y).__name__
            raise PluginError(
                f"{oracle.label()}: argmax must return the form of theta, a tensor or a tuple of the same length, "
                f"got {came}"
            )
        if flattening.extra:
            tensors = (*as_tuple(oracle.readout(y)), *tensors)
        for tensor, shape in zip(tensors, flattening.shapes, strict=True):
            if tensor.shape != (size, *shape) or tensor.dtype != torch.float64 or tensor.device != flattening.device:
                raise PluginError(
                    f"{oracle.label()}: a structure must have the shape, dtype and device of theta, {(size, *shape)}, "
                    f"torch.float64 and {flattening.device}; got {tuple(tensor.shape)}, {tensor.dtype} and "
                    f"{tensor.device}"
                )
        flat = [t.reshape(size, width) for t, width in zip(tensors, flattening.widths, strict=True)]
        return [t.contiguous() for t in flat] if flattening.device.type == "cpu" else flat  # a GPU joins the tensors

    def gradient_through_readout(self, read: Tensor, rows: Tensor, oracle: Oracle) -> Parts:
        """Return θ − Rᵀ(R μ) for the instances ``rows``, given the extra coordinates ``read`` = R μ, (rows, extra)."""
        flattening = self.flattening
        theta = [t if t.shape[0] == 1 else t[rows] for t in self.theta]
        pieces = zip(read.split(flattening.widths[: flattening.extra], 1), flattening.shapes, strict=False)
        shaped = tuple(piece.reshape(len(rows), *shape) for piece, shape in pieces)
        image = oracle.readout_transpose(shaped if self._readout_is_tuple else shaped[0], flattening.as_parts(theta))
        changes = zip(theta, as_tuple(image), self.tensor_is_penalised, strict=True)
        return flattening.as_parts([t - i if penalised else t for t, i, penalised in changes])

    def unstack_structures(self, structures: Parts) -> Iterator[Parts]:
        """Yield K batches of structures (B, *event), in float64, from a stack ``structures`` (K, B, *event)."""
        tensors = as_tuple(structures)
        wanted = [(self.batch, *shape) for shape in self.flattening.shapes[self.flattening.extra :]]
        if [t.shape[1:] for t in tensors] != wanted or len({t.shape[0] for t in tensors}) != 1:
            raise InvalidInputError(
                f"warm_start must have shape (K, B, *event), with (B, *event) = {wanted} for the tensors of theta and "
                f"the same K; got {[tuple(t.shape) for t in tensors]}"
            )
        for k in range(tensors[0].shape[0]):
            yield self.flattening.as_parts([t[k].to(self.theta[0]) for t in tensors])

    def infinite_score_error(self, index: int) -> PluginError:
        """Return the error for a structure of non-finite score at batch index ``index``."""
        return PluginError(
            f"{self.oracle.label()}: argmax returned a structure whose score is -inf or nan for batch index {index}; "
            "argmax must avoid parts of score -inf, and raise InfeasibleError if every structure uses such a part"
        )
