"""The result of solvers for regularized means: means with their support and weights."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from ..parts import Parts, map_parts
from .flattening import Flattening

__all__ = ["WeightedMeanResult"]


class WeightedMeanResult(abc.ABC):
    """The means μ = Σ_k p_k y_k of a batch, with the structures y_k and their weights p_k.

    A solver keeps the structures of an instance in numbered slots. This class sorts the structures by weight.

    Parameters
    ----------
    flattening : Flattening
        The order of the coordinates.
    mean : (B, coordinates) Tensor
        The means as flat vectors, in float64 like all tensors here.
    value : (B,) Tensor
        The objective at μ.
    weights : (B, slots) Tensor
        The weights by slot, 0 in empty slots.
    gap : (B,) Tensor
        The duality gap.
    converged : (B,) bool Tensor
        Whether the gap is within the solver's tolerance.
    oracle_calls : int
        The number of oracle calls.

    Attributes
    ----------
    mean : Parts
        μ, (B, *event), of θ's dtype and device.
    value : (B,) Tensor
        The objective at μ.
    weights : (K, B) Tensor
        Weights in descending order. The weights of an instance sum to 1; unused entries at the end are 0.
    gap : (B,) Tensor
        Upper bound of the difference between the maximum and the value.
    converged : (B,) bool Tensor
        Whether the gap is within the solver's tolerance.
    oracle_calls : int
        The number of oracle calls; each call takes all unfinished instances.
    """

    def __init__(
        self,
        flattening: Flattening,
        *,
        mean: Tensor,
        value: Tensor,
        weights: Tensor,
        gap: Tensor,
        converged: Tensor,
        oracle_calls: int,
    ) -> None:
        by_weight, slots = weights.T.sort(dim=0, descending=True, stable=True)
        largest_support = int((by_weight > 0).sum(0).max()) if len(weights) else 0
        self._flattening, self._slots, self._slot_count = flattening, slots[:largest_support], weights.shape[1]
        self.mean = flattening.unflatten(mean)
        self.value = value.to(flattening.dtype)
        self.weights = by_weight[:largest_support].to(flattening.dtype)
        self.gap = gap.to(flattening.dtype)
        self.converged = converged
        self.oracle_calls = oracle_calls

    def support(self) -> Parts:
        """Return the structures of the weights, (K, B, *event), with 0 in place of structures of weight 0."""
        return self._flattening.unflatten(self._structures(self._slots))

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Return the product of cotangents with the Jacobian of mean and weights with respect to θ, (B, *event).

        Parameters
        ----------
        mean_cotangent : (B, *event) tensor, or a tuple of them, or None
            The cotangent of the mean; None for 0.
        weights_cotangent : (K, B) Tensor, or None
            The cotangent of the weights; None for 0.
        """
        flattening = self._flattening
        shape = self._slots.shape[1], self._slot_count
        weights = torch.zeros(shape, dtype=torch.float64, device=flattening.device)
        if weights_cotangent is not None:
            weights.scatter_(1, self._slots.T, weights_cotangent.detach().T.to(torch.float64))
        if mean_cotangent is None:
            mean = weights.new_zeros(len(weights), len(flattening))
        else:
            mean = flattening.flatten(map_parts(Tensor.detach, mean_cotangent))
        return flattening.unflatten(self._vjp(mean, weights))

    @abc.abstractmethod
    def _structures(self, slots: Tensor) -> Tensor:
        """Return the structures in ``slots`` (K, B) as (K, B, coordinates) in float64, with 0 for slots of weight 0."""

    @abc.abstractmethod
    def _vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        """Return the product (B, coordinates) of :meth:`vjp` for cotangents (B, coordinates) and (B, slots).

        All tensors are in float64.
        """
