"""Ranking losses: the order of the structures of a pool by predicted scores, compared with the true order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..adapters import mean_of_vectors, scores_of_vectors
from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..kernels.arrays import from_library, log_softmax, numpy_if_small, take_columns, with_columns
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts, parts_to_vectors
from ..validation import check_choice, check_nonnegative, check_positive
from .decision_loss import DecisionLoss
from .loss_pool import LossPool
from .reduction import Reduction, attach_gradient

__all__ = ["RankingLoss"]


class RankingLoss(DecisionLoss):
    """The predicted scores p = ⟨θ, s⟩ of the structures s of a pool, compared with their true scores q = ⟨t, s⟩.

    ============  ==================================================================================
    kind          loss
    ============  ==================================================================================
    "pointwise"   the mean of (p − q)² over the pool
    "pairwise"    the mean of max(0, margin + p − p*) over the structures with q < q*, where p* and
                  q* are the scores of the structure of the pool with the largest q
    "listwise"    the cross-entropy −Σ softmax(q / temperature) log softmax(p / temperature)
    ============  ==================================================================================

    In training mode, a share ``solve_ratio`` of the calls adds the best structures for θ and for t to the pool. The
    loss remembers the best structures for t while the pool holds them, and calls the oracle once for each t. It
    remembers none if ``capacity`` is below twice the batch size. In evaluation mode, the pool stays as it is.
    ``state_dict`` contains it. Structures with a part of score −inf are left out for the instance.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    kind : "pointwise", "pairwise" or "listwise"
        The loss, from the table.
    pool : (K, *event) Tensor, or tuple of Tensors, optional
        The first structures of the pool, for example the best decisions of the training data.
    capacity : int
        The largest number of structures in the pool. A new structure replaces the structure added or found again the
        longest ago.
    solve_ratio : float
        The share of training calls, between 0 and 1, that call the oracle: calls 1, 11, 21, ... for 0.1.
    margin : float
        The margin of "pairwise", at least 0.
    temperature : float
        The temperature of "listwise", above 0, in units of a score.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        In a call with instance data, since the structures of one instance may be none of another instance.

    References
    ----------
    Mandi, Bucarey, Mulamba & Guns 2022, Decision-Focused Learning: Through the Lens of Learning to Rank, ICML,
    where costs are c = −t. "pairwise" compares with the best structure only.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]])
    >>> true_theta = torch.tensor([[2.0, 0.5, 1.0]])
    >>> for kind in ("pointwise", "pairwise", "listwise"):
    ...     loss = RankingLoss("categorical", kind, pool=torch.eye(3))
    ...     print(loss(theta, true_theta))
    tensor(1.4167)
    tensor(0.5000)
    tensor(1.4986)
    """

    def __init__(
        self,
        oracle: str | Oracle,
        kind: Literal["pointwise", "pairwise", "listwise"] = "pairwise",
        *,
        pool: Parts | None = None,
        capacity: int = 1000,
        solve_ratio: float = 0.1,
        margin: float = 0.0,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__(oracle, options, reduction, on_infeasible)
        check_choice("kind", kind, ("pointwise", "pairwise", "listwise"))
        check_nonnegative("margin", margin)
        check_positive("temperature", temperature)
        self.kind, self.margin, self.temperature = kind, margin, temperature
        self.pool = LossPool(pool, capacity, solve_ratio)

    def _losses(self, problem: Problem, predicted: Parts, true: Parts) -> Tensor:
        self.pool.grow(problem.oracle, None, predicted, true)
        vectors = self.pool.vectors(true)
        if any(t.requires_grad for t in as_tuple(true)):
            p, q = (scores_of_vectors(scores, vectors, problem.is_finite) for scores in (predicted, true))
            return self._compare(torch, p, q, problem.is_finite)[0]

        def compare(theta: Parts) -> tuple[Tensor, Parts]:
            p, q = (scores_of_vectors(scores, vectors, problem.is_finite) for scores in (theta, true))
            losses, slopes = self._compare(torch, p, q, problem.is_finite)
            return losses, mean_of_vectors(slopes(), vectors, theta)

        def differentiable_gradient(theta: Parts) -> Parts:
            return compare(map_parts(Tensor.double, theta))[1]

        if problem.is_finite and isinstance(predicted, Tensor) and isinstance(true, Tensor):
            library, (p, q, pool) = numpy_if_small(*map(parts_to_vectors, (predicted, true)), vectors[0])
            losses, slopes = self._compare(library, p @ pool.T, q @ pool.T, True)
            losses, gradient = from_library(losses), from_library(slopes() @ pool)
            gradient = gradient.view(len(gradient), *predicted.shape[1:])
        else:
            with torch.no_grad():
                losses, gradient = compare(predicted)
        return attach_gradient(losses, problem, self.reduction, problem.theta, gradient, differentiable_gradient)

    def _compare(self, library: Any, p: Any, q: Any, is_finite: bool) -> tuple[Any, Callable[[], Any]]:
        """Return the losses, (B,), and a function that returns their derivatives by the predicted scores, (B, K).

        Both are differentiable.

        Parameters
        ----------
        library : module
            The library of the scores: torch, or numpy if no part is forbidden.
        p, q : (B | 1, K) Tensor or array
            The predicted and the true scores of the structures.
        is_finite : bool
            Whether no part is forbidden, so that all scores count.
        """
        allowed = None if is_finite else ~p.isneginf()

        def where(condition: Tensor | None, values: Tensor) -> Tensor:
            return values if condition is None else torch.where(condition, values, 0.0)

        def both(condition: Tensor) -> Tensor:
            return condition if allowed is None else allowed & condition

        if self.kind == "listwise":
            # Without any allowed structure, the softmax would be NaN, and so would its gradient.
            if allowed is not None:
                p, q = (where(allowed.any(1, keepdim=True), scores) for scores in (p, q))
            if self.temperature != 1:
                p, q = p / self.temperature, q / self.temperature
            shares, logs = library.exp(log_softmax(q)), log_softmax(p)
            used = None if allowed is None else allowed & (shares > 0)
            shares = where(used, shares)
            losses = -(shares * where(used, logs)).sum(1)

            def of_shares() -> Tensor:
                total = library.exp(logs)
                if allowed is not None:  # otherwise, the shares add to 1
                    total = total * shares.sum(1, keepdim=True)
                return (total - shares) / self.temperature if self.temperature != 1 else total - shares

            return losses, of_shares
        p = where(allowed, p)
        if self.kind == "pointwise":
            differences = p - where(allowed, q)
            squares = (differences * differences).sum(1)
            if allowed is None:
                return squares / p.shape[1], lambda: differences * (2 / p.shape[1])
            count = allowed.sum(1, keepdim=True).clamp(min=1)
            return squares / count[:, 0], lambda: 2 * differences / count
        best = q.argmax(1)
        errors = (self.margin + p if self.margin else p) - take_columns(p, best)
        counted = library.asarray(both(q < take_columns(q, best)), dtype=library.float64)
        count = counted.sum(1)[:, None]
        weights = counted * (errors >= 0) / (count + (count == 0))

        def slopes() -> Any:
            return with_columns(weights, best, -weights.sum(1)[:, None])  # the best structure has no weight

        return (weights * errors).sum(1), slopes

    def extra_repr(self) -> str:
        oracle, rest = f"oracle={self.oracle!r}", super().extra_repr()
        extra = {"pairwise": f", margin={self.margin}", "listwise": f", temperature={self.temperature}"}
        return f"{oracle}, kind={self.kind!r}{extra.get(self.kind, '')}{rest.removeprefix(oracle)}"
