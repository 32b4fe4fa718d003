"""What the solvers of regularised means return: means, and the structures and weights that they are made of."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from ..parts import Parts, map_parts
from .flattening import Flattening

__all__ = ["WeightedMeanResult"]


class WeightedMeanResult(abc.ABC):
    """The means μ = Σ_k p_k y_k of a batch, with the structures y_k and their weights p_k.

    A solver keeps the structures of an instance in numbered slots; this class sorts them by weight.

    Parameters
    ----------
    flattening : Flattening
    mean : (B, coordinates) Tensor
        All tensors in float64.
    value, gap : (B,) Tensor
    weights : (B, slots) Tensor
        0 in empty slots.

    Attributes
    ----------
    mean : Parts
        μ, (B, *event), of θ's dtype and device.
    value : (B,) Tensor
        The objective at μ.
    weights : (K, B) Tensor
        Largest first, positive and summing to 1; zero behind an instance's last structure.
    gap : (B,) Tensor
        Upper bound on how far the value is below the maximum.
    converged : (B,) bool Tensor
    oracle_calls : int
        Calls of the oracle, each for all instances that were unfinished then.
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
        """The structures that the weights belong to, (K, B, *event); zero where the weight is."""
        return self._flattening.unflatten(self._structures(self._slots))

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Product of a cotangent with the Jacobian of mean and weights with respect to θ, (B, *event).

        Parameters
        ----------
        mean_cotangent : (B, *event) tensor, or a tuple of them, or None for 0
        weights_cotangent : (K, B) Tensor, or None for 0
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
        """The structures in ``slots`` (K, B): (K, B, coordinates) in float64, zero where the weight is."""

    @abc.abstractmethod
    def _vjp(self, mean_cotangent: Tensor, weights_cotangent: Tensor) -> Tensor:
        """The product (B, coordinates) of :meth:`vjp`, from (B, coordinates) and (B, slots) in float64."""
