"""Sums over all structures: exact, and by the sparsemax of all scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..oracle import Enumerable, Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts, pack_like
from ..regularizers import NEGENTROPY, Regularizer, SquaredL2
from ..transitions import TransitionSystem, enumerate_sequences, sequence_log_prob
from ..validation import check_feasible, check_in_range
from .base import Estimator
from .weighted_structures import WeightedStructures, select_instances

__all__ = ["Exact", "SparsemaxEstimator", "empty_structures", "enumerate_and_score", "group_by_instance_data"]


class _EnumerationEstimator(Estimator):
    """The weights ∇max_Ω of the scores of all structures."""

    requires = (Enumerable,)

    def __init__(self, regularizer: Regularizer) -> None:
        super().__init__()
        self.regularizer = regularizer

    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        first, size = as_tuple(theta)[0], batch_size(theta)
        check_in_range("temperature", self.regularizer.temperature, first.dtype)
        groups = [
            (rows, *enumerate_and_score(oracle, theta, rows))
            for rows in group_by_instance_data(oracle, size, first.device)
        ]
        feasible = torch.ones(size, dtype=torch.bool, device=first.device)
        for rows, _, found in groups:
            feasible[rows] = ~found.detach().isneginf().all(1)
        check_feasible(feasible, f"structure of {oracle.label()}")
        several = [empty_structures(theta, size)]
        for rows, structures, found in groups:
            weights = autograd.smooth_argmax(self.regularizer, found / self.regularizer.temperature).to(first.dtype)
            row, column = weights.detach().nonzero(as_tuple=True)
            chosen = map_parts(lambda y, t, i=column: y.to(t.dtype)[i], structures, theta)
            support_weights = weights[row, column]
            several.append(
                WeightedStructures(chosen, rows[row], support_weights, torch.zeros_like(support_weights), size)
            )
        return WeightedStructures.concatenate(several).drop_zero_weights()

    def extra_repr(self) -> str:
        return f"{self.regularizer!r}"


def empty_structures(theta: Parts, size: int) -> WeightedStructures:
    """Return no structures, as a function of θ, so that an empty batch is differentiable too."""
    weights = torch.stack([t[:0].flatten(1).sum(1) for t in as_tuple(theta)]).sum(0)
    instance = torch.zeros(0, dtype=torch.int64, device=weights.device)
    return WeightedStructures(
        map_parts(lambda t: t.detach()[:0], theta), instance, weights, torch.zeros_like(weights), size
    )


def group_by_instance_data(oracle: Oracle, size: int, device: torch.device) -> list[Tensor]:
    """Group the indices of instances with equal instance data, which have the same structures."""
    data, groups = [value.tolist() for value in oracle.bound.values()], {}
    for b in range(size):
        groups.setdefault(repr([value[b] for value in data]), []).append(b)
    return [torch.tensor(rows, device=device) for rows in groups.values()]


def enumerate_and_score(oracle: Oracle, theta: Parts, rows: Tensor) -> tuple[Parts, Tensor]:
    """Return all structures (Y, *event) of the instances ``rows``, and their scores (len(rows), Y) in float64.

    All instances ``rows`` have equal instance data.
    """
    shapes = pack_like([tuple(t.shape[1:]) for t in as_tuple(theta)], theta)  # pyright: ignore
    group_oracle: Any = oracle[rows[:1]]
    structures = map_parts(lambda y, t: y.to(t.device), group_oracle.enumerate(shapes), theta)
    own = [t.expand(len(rows), *t.shape[1:]) for t in as_tuple(select_instances(theta, rows))]
    flat = torch.cat([t.flatten(1) for t in own], 1).double()
    parts = torch.cat([y.flatten(1) for y in as_tuple(structures)], 1)
    forbidden = flat.detach().isneginf()
    found = torch.where(forbidden, 0.0, flat) @ parts.T
    if bool(forbidden.any()):
        found = found.masked_fill(forbidden.double() @ parts.abs().T > 0, -torch.inf)
    return structures, found


class Exact(_EnumerationEstimator):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, as a sum over all structures; differentiable to any order.

    Structures with a part of score −inf, or with a probability that rounds to 0, are not evaluated. Instances with
    equal instance data share one list of structures. A transition system may have at most 10,000 sequences.

    References
    ----------
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, chapter 5.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> si.expect(lambda y: y @ cost, theta, "subset", Exact(), k=2)
    tensor([3.7905])
    """

    search_terms = ("enumerate", "enumeration", "marginalization")

    def __init__(self) -> None:
        super().__init__(NEGENTROPY)

    def weighted_sequences(
        self, system: TransitionSystem, inputs: Any, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        found = enumerate_sequences(system, inputs, on_dead_end="raise")
        log_p = sequence_log_prob(system, inputs, found.actions)
        weights = torch.where(found.valid, log_p, -torch.inf).exp()
        return WeightedStructures.of(found.structures, weights).drop_zero_weights().merge_equal()


class SparsemaxEstimator(_EnumerationEstimator):
    """E[f(Y)] under p = argmin ‖p − s / temperature‖² over the simplex, for the scores s of all structures.

    Only structures with p > 0 are evaluated.

    Parameters
    ----------
    temperature : float
        The divisor of the scores, above 0. A lower temperature gives a sparser distribution, closer to the argmax.

    References
    ----------
    Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity.
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, Equation 5.14.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> estimator = SparsemaxEstimator(temperature=2.0)
    >>> si.expect(lambda y: y @ cost, theta, "subset", estimator, k=2)
    tensor([3.6250])
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__(SquaredL2(temperature=temperature))
