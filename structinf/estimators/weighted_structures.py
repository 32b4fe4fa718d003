"""Weighted structures of a whole batch, packed: each instance has as many structures as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..calls.problem import Problem
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts, pack_like
from ..shapes import Float
from ..solvers.perturbation import merge_samples
from .equal_rows import first_of_each_group, group_equal_rows

__all__ = [
    "FunctionValues",
    "WeightedStructures",
    "needs_gradient",
    "one_with_log_gradient",
    "scores",
    "select_instances",
]


@dataclass(frozen=True)
class WeightedStructures:
    """The terms of Σ_i weights_i f(structures_i), a sum for each instance.

    Attributes
    ----------
    structures : (N, *event) Parts
        The structures, without a gradient.
    instance : (N,) int64 Tensor
        The batch index of each structure.
    weights : (N,) Tensor
        The weight of each structure.
    control : (N,) Tensor
        Weights of a baseline Σ_i control_i f(structures_i) of each instance. Estimators with this baseline subtract
        it from f before the product with ∇weights.
    batch : int
        The number of instances.

    Examples
    --------
    Two structures of one instance with probability ½ each, and a structure of weight 0:

    >>> structures = torch.eye(3).unsqueeze(1)
    >>> weights = torch.tensor([[0.5], [0.5], [0.0]])
    >>> terms = WeightedStructures.of(structures, weights)
    >>> terms = terms.drop_zero_weights()
    >>> terms.structures, terms.weights
    (tensor([[1., 0., 0.],
            [0., 1., 0.]]), tensor([0.5000, 0.5000]))
    >>> terms.sum(terms.weights * torch.tensor([10.0, 20.0]))
    tensor([15.])
    """

    structures: Parts
    instance: Tensor
    weights: Tensor
    control: Tensor
    batch: int

    @classmethod
    def of(cls, structures: Parts, weights: Tensor, control: Tensor | None = None) -> Self:
        """Pack ``structures`` (K, B, *event) with ``weights`` (K, B).

        Structure k of instance b gets the index k B + b.

        Parameters
        ----------
        structures : (K, B, *event) Tensor, or tuple of them
            K structures for each instance.
        weights : (K, B) Tensor
            The weight of each structure.
        control : (K, B) Tensor, optional
            The ``control`` of each structure.
        """
        if weights.ndim != 2 or any(y.shape[:2] != weights.shape for y in as_tuple(structures)):
            received = " and ".join(str(tuple(y.shape)) for y in as_tuple(structures))
            raise InvalidInputError(
                f"structures and weights must have shapes (K, B, *event) and (K, B), got {received} and "
                f"{tuple(weights.shape)}"
            )
        count, batch = weights.shape
        instance = torch.arange(batch, device=weights.device).expand(count, batch).flatten()
        control = torch.zeros_like(weights) if control is None else control
        return cls(merge_samples(structures), instance, weights.flatten(), control.flatten(), batch)

    @classmethod
    def concatenate(cls, several: Sequence[Self]) -> Self:
        """Concatenate the structures of all ``several``.

        Parameters
        ----------
        several : sequence of WeightedStructures
            Structures for the same batch.
        """
        columns = zip(*(as_tuple(terms.structures) for terms in several), strict=True)
        return cls(
            pack_like([torch.cat(column) for column in columns], several[0].structures),
            torch.cat([terms.instance for terms in several]),
            torch.cat([terms.weights for terms in several]),
            torch.cat([terms.control for terms in several]),
            several[0].batch,
        )

    def drop_zero_weights(self) -> Self:
        """Drop structures of weight 0, and sort the others by instance; the sort is stable."""
        index = self.weights.detach().nonzero()[:, 0]
        return self._at(index[self.instance[index].argsort(stable=True)])

    def merge_equal(self) -> Self:
        """Merge equal structures of an instance, add their weights and controls, and sort by instance."""
        group_id = group_equal_rows([t.flatten(1) for t in as_tuple(self.structures)])
        key, place = (group_id + self.instance * len(group_id)).unique(return_inverse=True)
        first = first_of_each_group(place, len(key))
        weights, control = (t.new_zeros(len(key)).index_add(0, place, t) for t in (self.weights, self.control))
        return replace(self._at(first), weights=weights, control=control)

    def sum(self, values: Tensor) -> Float[Tensor, " batch"]:
        """Return the sum of ``values`` (N,) for each instance, (batch,).

        Parameters
        ----------
        values : (N,) Tensor
            A value for each structure.
        """
        return values.new_zeros(self.batch).index_add(0, self.instance, values)

    def _at(self, index: Tensor) -> Self:
        return replace(
            self,
            structures=map_parts(lambda t: t[index], self.structures),
            instance=self.instance[index],
            weights=self.weights[index],
            control=self.control[index],
        )


@dataclass(frozen=True)
class FunctionValues:
    """The values of f at weighted structures.

    Attributes
    ----------
    weighted_structures : WeightedStructures
        The structures with their weights.
    values : (N,) Tensor
        f at each structure, without a gradient.
    problem : Problem or None
        The batch with its oracle and scores; None for a transition system.
    inputs : tuple of (*batch, ...) Tensors
        The inputs of :func:`structinf.expect`.
    """

    weighted_structures: WeightedStructures
    values: Tensor
    problem: Problem | None
    inputs: tuple[Tensor, ...]

    def controls(self) -> Float[Tensor, " n"]:
        """Return the baseline Σ control · values of each structure's instance, (N,), without a gradient."""
        found = self.weighted_structures
        return found.sum(found.control.detach() * self.values)[found.instance]

    def means(self) -> Float[Tensor, " batch"]:
        """Return Σ weights · values of each instance, (batch,), without a gradient."""
        return self.weighted_structures.sum(self.weighted_structures.weights.detach() * self.values)

    @property
    def batch_shape(self) -> torch.Size:
        """The batch dimensions of the values of :func:`structinf.expect`."""
        return torch.Size([self.weighted_structures.batch]) if self.problem is None else self.problem.batch_shape

    def contexts(self) -> tuple[Tensor, ...]:
        """Return the inputs, or without inputs the tensors of θ, as (*batch, ...) tensors without a gradient."""
        if self.inputs:
            return tuple(x.detach() for x in self.inputs)
        if self.problem is None:
            raise InvalidInputError("baseline: a module for a transition system needs the argument inputs of expect")
        theta, size = self.problem.theta, self.weighted_structures.batch
        return as_tuple(self.problem.restore_parts(map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), theta)))


def select_instances(theta: Parts, rows: Tensor) -> Parts:
    """Return the scores (len(rows), *event) of the instances ``rows``; tensors shared by the batch stay shared."""
    if batch_size(theta) == 1:
        return theta
    return map_parts(lambda t: t if len(t) == 1 else t[rows], theta)


def scores(oracle: Oracle, theta: Parts, terms: WeightedStructures) -> Float[Tensor, " n"]:
    """Return ⟨θ, y⟩ of each structure in ``terms``, (N,), in θ's dtype."""
    structures = map_parts(lambda y, t: y.to(t.dtype), terms.structures, theta)
    return oracle.score(select_instances(theta, terms.instance), structures)


def needs_gradient(theta: Parts) -> bool:
    """Return whether autograd records operations on a tensor of ``theta``."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in as_tuple(theta))


def one_with_log_gradient(known: Tensor) -> Tensor:
    """Return 1 with the gradient of ``known``, to any order: exp(known − known.detach())."""
    return (known - known.detach()).exp()
