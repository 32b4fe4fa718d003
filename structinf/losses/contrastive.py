"""Contrastive losses: the gold structure against the structures of a pool."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from ..adapters import mean_of_vectors, scores_of_vectors
from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.gold import gold_structures
from ..calls.problem import Problem
from ..calls.resolution import get_oracle
from ..kernels.arrays import from_library, numpy_if_small
from ..oracle import Oracle
from ..parts import Parts, inner_product, map_parts, parts_to_vectors, scale_per_instance
from ..relaxation import resolve_relaxation
from ..validation import check_choice
from .gold_scores import gold_scores
from .loss_pool import LossPool
from .reduction import Reduction, attach_gradient, check_reduction, describe_rules
from .structured_loss import StructuredLoss

__all__ = ["ContrastiveLoss"]


class ContrastiveLoss(StructuredLoss):
    """The scores of the structures of a pool S, compared with the score of the gold structure y.

    ======  =======================================================  ===============================================
    kind    loss                                                     gradient
    ======  =======================================================  ===============================================
    "nce"   the mean of ⟨θ, s⟩ − ⟨θ, y⟩ over s ∈ S                   the mean of S, minus y
    "map"   the maximum of ⟨θ, s⟩ − ⟨θ, y⟩ over s ∈ S ∪ {y}          the best structure of S ∪ {y}, minus y
    ======  =======================================================  ===============================================

    In training mode, each call adds the gold structures of the batch to the pool, and a share ``solve_ratio`` of the
    calls adds the best structures for θ. In evaluation mode, the pool stays as it is. ``state_dict`` contains it. If
    the pool holds all structures, "map" is the perceptron loss of :class:`FenchelYoungLoss`. "nce" is linear in θ and
    has no lower bound. Structures with a part of score −inf are left out for the instance.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    kind : "nce" or "map"
        The loss, from the table.
    pool : (K, *event) Tensor, or tuple of Tensors, optional
        The first structures of the pool, for example the best decisions of the training data.
    capacity : int
        The largest number of structures in the pool. A new structure replaces the structure added or found again the
        longest ago.
    solve_ratio : float
        The share of training calls, between 0 and 1, that call the oracle: calls 1, 11, 21, ... for 0.1.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0, whatever its gold structure is. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        In a call with instance data, since the structures of one instance may be none of another instance.

    References
    ----------
    Mulamba, Mandi, Diligenti, Lombardi, Bucarey & Guns 2021, Contrastive Losses and Solution Caching for
    Predict-and-Optimize, IJCAI, pages 2833-2840. For the losses of ĉ − c there, pass θ − t as the scores.

    Examples
    --------
    >>> loss = ContrastiveLoss("categorical", pool=torch.eye(3))
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    >>> loss = ContrastiveLoss("categorical", "map", pool=torch.eye(3))
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.)
    """

    keeps_state = True

    def __init__(
        self,
        oracle: str | Oracle,
        kind: Literal["nce", "map"] = "nce",
        *,
        pool: Parts | None = None,
        capacity: int = 1000,
        solve_ratio: float = 0.1,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        check_choice("kind", kind, ("nce", "map"))
        self.on_infeasible = on_infeasible
        self.oracle, self.relaxation = get_oracle(oracle, **options), resolve_relaxation("map")
        self.kind = kind
        self.pool = LossPool(pool, capacity, solve_ratio)
        self.reduction = check_reduction(reduction)

    def _gold(self, problem: Problem, y: Any) -> Parts:
        return gold_structures(problem, y, "y", is_known=functools.partial(self.pool.knows, problem.oracle))

    def _losses(self, problem: Problem, gold: Parts, relaxation: Any) -> Tensor:
        theta, is_mean = problem.theta, problem.is_finite and self.kind == "nce"
        if problem.is_finite and isinstance(theta, Tensor) and not is_mean:
            self.pool.grow(problem.oracle, gold, theta)
            (vectors,) = self.pool.vectors(theta)
            losses, mean = _compare_with_best(*numpy_if_small(*map(parts_to_vectors, (theta, gold)), vectors))
            return attach_gradient(losses, problem, self.reduction, theta, mean.view(len(mean), *theta.shape[1:]))
        fixed, y = (map_parts(lambda t: t.detach().double(), parts) for parts in (theta, gold))
        # Without a forbidden part, every gold structure has a finite score.
        own = None if is_mean else gold_scores(problem.oracle, fixed, y)
        self.pool.grow(problem.oracle, gold, theta)
        vectors = self.pool.vectors(fixed)
        if own is None:
            # The mean of the scores is the score of the mean. Sums of structures are exact.
            count = vectors[0].shape[0]
            total = mean_of_vectors(vectors[0].new_ones(1, count), vectors, y)
            total = map_parts(lambda s, gold: s - count * gold, total, y)
            mean = map_parts(lambda s: s / count, total)
            losses = inner_product(fixed, total) / count
            return attach_gradient(losses, problem, self.reduction, theta, mean)
        scores = scores_of_vectors(fixed, vectors, problem.is_finite)
        weights, differences = self._compare(scores, own[:, None])
        losses = (weights * differences).sum(1)
        # The weights are constant near θ, and the loss is linear.
        total = weights.sum(1)
        mean = map_parts(lambda m, gold: m - scale_per_instance(gold, total), mean_of_vectors(weights, vectors, y), y)
        return attach_gradient(losses, problem, self.reduction, theta, mean)

    def _compare(self, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the structures and the differences of scores, (B, K) each.

        Parameters
        ----------
        scores : (B, K) Tensor
            The scores of the structures of the pool.
        own : (B, 1) Tensor
            The scores of the gold structures.
        """
        allowed = ~scores.isneginf()
        differences = torch.where(allowed, scores, 0.0) - torch.where(allowed, own, 0.0)
        best = differences.amax(1, keepdim=True)
        counted = allowed if self.kind == "nce" else allowed & (differences == best) & (best >= 0)
        return counted.to(scores) / counted.sum(1, keepdim=True).clamp(min=1), differences

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, kind={self.kind!r}, {describe_rules(self)}"


def _compare_with_best(library: Any, data: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the losses "map", (B,), and their gradients, (B, D), if no part is forbidden.

    Parameters
    ----------
    library : module
        The library of the arrays, torch or numpy.
    data : list
        The scores (B | 1, D), the gold structures (B, D) and the structures of the pool (K, D), in float64.
    """
    theta, y, vectors = data
    differences = theta @ vectors.T - (theta * y).sum(1)[:, None]
    best = library.amax(differences, 1)
    weights = library.asarray(differences == best[:, None], dtype=library.float64)
    is_better = library.asarray(best >= 0, dtype=library.float64)
    mean = (weights / weights.sum(1)[:, None]) @ vectors
    return from_library(library.where(best >= 0, best, 0.0)), from_library((mean - y) * is_better[:, None])
