"""Fenchel-Young losses of scores over classes, in the place of torch.nn.CrossEntropyLoss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict, Unpack

from ..autograd.simplex_loss import loss_at_maximizer
from ..autograd.vmap_check import check_under_vmap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..losses import Reduction, check_reduction
from ..shapes import Float, Int
from .along_dim import check_scores, move_to_last
from .entropies import Entropy, TsallisEntropy, get_entropy

__all__ = ["LossOptions", "SimplexLoss", "entmax_loss", "simplex_loss"]


def _losses_like(
    x: Tensor, target: Tensor, entropy: str | Entropy, *, dim: int = -1, reduction: Reduction = "mean", **_: Any
) -> Tensor:
    return x.new_empty([] if reduction != "none" else move_to_last(x, dim).shape[:-1])


def _is_scalar(*_: Any, reduction: Reduction = "mean", **__: Any) -> bool:
    return reduction != "none"


@public_call(operator=OperatorSpec(_losses_like, is_scalar=_is_scalar))
def simplex_loss(
    x: Tensor,
    target: Tensor,
    entropy: str | Entropy,
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    cost: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*rows"]:
    """The Fenchel-Young loss of scores x for target classes, or for target probabilities y.

        L(x, y) = max_p (⟨p, x⟩ + H(p)) − H(y) − ⟨x, y⟩ ≥ 0

    It is convex in x, 0 only for p(x) = y, and has the gradient p(x) − y. The entropy H decides which map p is.

    Parameters
    ----------
    x : Tensor
        Scores of the K classes along ``dim``, in floating point, with any other dimensions. A score of −inf excludes
        its class.
    target : Tensor
        Classes as integers, of x's shape without ``dim``; or probabilities in floating point, of x's shape.
    entropy : str or Entropy
        The name of a map, ``"softmax"``, ``"sparsemax"`` or ``"entmax15"``, or an entropy such as
        ``TsallisEntropy(1.25)``, ``NormEntropy(2)`` or ``RenyiEntropy(0.5)``.
    dim : int
        The dimension of the classes: the last by default, where torch.nn.CrossEntropyLoss has 1.
    weight : (K,) Tensor, optional
        The weight of an instance by its class. Targets must be classes.
    cost : (K, K) Tensor, optional
        The cost of predicting the class of the column for the class of the row, with a diagonal of 0. The target's row
        is added to the scores, so that the target class must win by more than the cost. For probabilities, the mean
        row is added.
    ignore_index : int
        Instances of this class have loss 0 and gradient 0, whatever their scores are, and do not count in the mean.
        Target probabilities are never ignored.
    reduction : "mean", "sum" or "none"
        As in torch.nn, including the weighted mean. The mean over no instances is 0 with gradient 0, instead of NaN.

    Returns
    -------
    Tensor
        A scalar, or a tensor of x's shape without ``dim`` for reduction "none"; in x's dtype, twice differentiable. It
        is infinite, with gradient 0, if the target class has a score of −inf.

    Raises
    ------
    InvalidInputError
        If a target, cost or weight has the wrong shape, a class is not in 0, ..., K − 1, or target probabilities are
        negative or do not sum to 1. UnknownNameError if no map with an entropy has the name. TypeError for scores,
        targets or entropies of other types.

    Notes
    -----
    There is no ``label_smoothing``: pass the smoothed targets ``(1 - s) * one_hot(target, K) + s / K``.

    References
    ----------
    M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, Definition 2.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
    >>> simplex_loss(x, torch.tensor([0, 0]), "sparsemax", reduction="none")
    tensor([1., 0.])
    >>> simplex_loss(x, torch.tensor([1, -100]), TsallisEntropy(1.25))
    tensor(0.1646)
    """
    check_scores(x, dim)
    check_reduction(reduction)
    entropy = get_entropy(entropy)
    scores = entropy.cast_scores(move_to_last(x, dim))
    lead, classes = scores.shape[:-1], scores.shape[-1]
    scores = scores.reshape(lead.numel(), classes)
    _check_table("cost", cost, (classes, classes))
    _check_table("weight", weight, (classes,))
    if isinstance(target, Tensor) and target.is_floating_point():
        y = _target_probabilities(target, x, dim).reshape(scores.shape)
        if weight is not None:
            raise InvalidInputError(
                "weight: weights are for target classes, and these targets are probabilities; multiply the losses of "
                "reduction='none' by weights instead"
            )
        losses = _probability_losses(scores, y, entropy, cost)
        counts = torch.ones_like(losses)
    else:
        labels, any_ignored = _target_classes(target, lead, classes, ignore_index)
        ignored = labels == ignore_index
        if any_ignored:  # otherwise save a pass over all scores
            labels = labels.masked_fill(ignored, 0)
            scores = scores.masked_fill(ignored.unsqueeze(1), 0.0)  # even NaN
        losses = _class_losses(scores, labels, entropy, cost)
        counts = torch.ones_like(losses) if weight is None else weight.to(losses)[labels]
        counts = counts.masked_fill(ignored, 0.0)
        losses = counts * torch.where((counts != 0) | losses.isfinite(), losses, 0.0)
    if reduction == "none":
        return losses.view(lead).to(x.dtype)
    total = losses.sum()
    if reduction == "mean":
        count = counts.sum()
        total = total / torch.where(count != 0, count, 1.0)
    return total.to(x.dtype)


def _class_losses(scores: Tensor, labels: Tensor, entropy: Entropy, cost: Tensor | None) -> Float[Tensor, " rows"]:
    """The loss of each row of ``scores`` (rows, K)."""
    if not scores.numel():
        return scores.sum(1)
    scores = scores if cost is None else scores + cost.to(scores)[labels]
    # Indexing, because gather would keep the scores for the backward pass.
    target_score = scores[torch.arange(len(labels), device=labels.device), labels]
    p = entropy.probabilities(scores)
    return loss_at_maximizer(entropy, scores, p, target_score, torch.zeros_like(target_score))


def _probability_losses(scores: Tensor, y: Tensor, entropy: Entropy, cost: Tensor | None) -> Float[Tensor, " rows"]:
    """The loss of each row for probabilities ``y`` (rows, K) in float64."""
    scores = scores if cost is None else scores + (y @ cost.to(y)).to(scores.dtype)
    target_score = torch.where(y > 0, y * torch.where(y > 0, scores, 0.0), 0.0).sum(1)
    return loss_at_maximizer(entropy, scores, entropy.probabilities(scores), target_score, entropy(y))


def _target_classes(
    target: Tensor, lead: torch.Size, classes: int, ignore_index: int
) -> tuple[Int[Tensor, " rows"], bool]:
    """``target``, flat, in int64, and whether any instance is ignored."""
    if not isinstance(target, Tensor) or target.dtype is torch.bool or target.is_complex():
        received = f"a tensor of {target.dtype}" if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target: a tensor of integers (classes) or floating point (probabilities) is needed, got {received}"
        )
    if target.shape != lead:
        raise InvalidInputError(
            f"target: classes of shape {tuple(lead)}, the shape of x without the dim of classes, or probabilities of "
            f"x's shape are needed, got integers of shape {tuple(target.shape)}; for torch's layout pass dim=1"
        )

    any_ignored = False

    def check(labels: Tensor) -> None:
        nonlocal any_ignored
        ignored = labels == ignore_index
        any_ignored = bool(ignored.any())
        is_invalid = ((labels < 0) | (labels >= classes)) & ~ignored
        if bool(is_invalid.any()):
            index = tuple(is_invalid.nonzero()[0].tolist())
            raise InvalidInputError(
                f"target: classes are from 0 to {classes - 1}, or ignore_index = {ignore_index}, got "
                f"{int(labels[index])} at {index}"
            )

    return check_under_vmap(target.long(), check).reshape(-1), any_ignored


def _target_probabilities(target: Tensor, x: Tensor, dim: int) -> Tensor:
    """``target`` in float64 with the classes last, of sum 1."""
    if target.shape != x.shape:
        raise InvalidInputError(
            f"target: probabilities of x's shape {tuple(x.shape)} are needed, got shape {tuple(target.shape)}; classes "
            "are integers"
        )
    tolerance = torch.finfo(target.dtype).eps ** 0.5

    def check(y: Tensor) -> None:
        is_invalid = ~((y >= 0).all(-1) & ((y.sum(-1) - 1).abs() <= tolerance))
        if bool(is_invalid.any()):
            index = tuple(is_invalid.nonzero()[0].tolist())
            raise InvalidInputError(
                f"target: probabilities are at least 0 and of sum 1 along dim {dim}, got {y[index].tolist()[:8]} at "
                f"{index}"
            )

    y = check_under_vmap(move_to_last(target, dim).double(), check)
    # The sum is 1 up to rounding. Divide by it, so that the loss does not change if a number is added to all scores.
    return y / y.sum(-1, keepdim=True)


def _check_table(name: str, table: Tensor | None, shape: tuple[int, ...]) -> None:
    if table is not None and (not isinstance(table, Tensor) or table.shape != shape):
        received = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise InvalidInputError(f"{name}: a tensor of shape {shape} is needed for {shape[0]} classes, got {received}")


class LossOptions(TypedDict, total=False):
    """The options of :func:`simplex_loss`."""

    dim: int
    weight: Tensor | None
    cost: Tensor | None
    ignore_index: int
    reduction: Reduction


def entmax_loss(
    x: Tensor, target: Tensor, alpha: float = 1.5, **options: Unpack[LossOptions]
) -> Float[Tensor, "*rows"]:
    """The loss of :func:`entmax`: :func:`simplex_loss` with ``TsallisEntropy(alpha)``.

    Parameters
    ----------
    x, target
        As for :func:`simplex_loss`.
    alpha : float
        At least 1.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.

    Examples
    --------
    >>> import torch
    >>> entmax_loss(
    ...     torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]), alpha=1
    ... )
    tensor(1.4076)
    """
    return simplex_loss(x, target, TsallisEntropy(alpha), **options)


class SimplexLoss(nn.Module):
    """:func:`simplex_loss` as a module, in the place of torch.nn.CrossEntropyLoss.

    Parameters
    ----------
    entropy : str or Entropy
        The name of a map, ``"softmax"``, ``"sparsemax"`` or ``"entmax15"``, or an entropy such as
        ``TsallisEntropy(1.25)``, ``NormEntropy(2)`` or ``RenyiEntropy(0.5)``.
    dim : int
        The dimension of the classes: the last by default, where torch.nn.CrossEntropyLoss has 1.
    weight : (K,) Tensor, optional
        The weight of an instance by its class. Targets must be classes. A buffer.
    cost : (K, K) Tensor, optional
        The cost of predicting the class of the column for the class of the row, with a diagonal of 0. A buffer.
    ignore_index : int
        Instances of this class have loss 0 and gradient 0, and do not count in the mean.
    reduction : "mean", "sum" or "none"
        As in torch.nn. The mean over no instances is 0 with gradient 0, instead of NaN.

    Attributes
    ----------
    margin : float
        The loss is 0 if and only if the target class's score exceeds each other score (plus its cost) by this number.

    Notes
    -----
    There is no ``label_smoothing``: pass the smoothed targets ``(1 - s) * one_hot(target, K) + s / K``.

    Examples
    --------
    >>> import torch
    >>> loss = SimplexLoss("sparsemax", reduction="sum")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0])), loss.margin
    (tensor(1.), 1.0)
    """

    weight: Tensor | None
    cost: Tensor | None

    def __init__(
        self,
        entropy: str | Entropy,
        *,
        dim: int = -1,
        weight: Tensor | None = None,
        cost: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.entropy, self.dim, self.ignore_index = get_entropy(entropy), dim, ignore_index
        self.reduction: Reduction = check_reduction(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("cost", cost)

    @property
    def margin(self) -> float:
        """The entropy's margin."""
        return self.entropy.margin

    def forward(self, x: Tensor, target: Tensor) -> Float[Tensor, "*rows"]:
        """The loss of scores x for target classes or probabilities."""
        return simplex_loss(
            x,
            target,
            self.entropy,
            dim=self.dim,
            weight=self.weight,
            cost=self.cost,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        tables = "".join(f", {name}=..." for name in ("weight", "cost") if getattr(self, name) is not None)
        return (
            f"{self.entropy!r}, dim={self.dim}, ignore_index={self.ignore_index}, reduction={self.reduction!r}{tables}"
        )
