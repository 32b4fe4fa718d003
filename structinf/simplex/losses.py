"""Fenchel-Young losses of scores over classes, with the interface of torch.nn.CrossEntropyLoss."""

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
from ..validation import check_floating, check_real
from .along_dim import RowParameter, check_scores, move_to_last, read_parameter
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
    """Return the Fenchel-Young loss of scores x for target classes, or for target probabilities y.

        L(x, y) = max_p (⟨p, x⟩ + H(p)) − H(y) − ⟨x, y⟩ ≥ 0

    The entropy H generates the map p(x). The loss is convex in x, 0 only for p(x) = y, and has the gradient p(x) − y.

    Parameters
    ----------
    x : Tensor
        Floating-point scores of K classes along ``dim``, with any other dimensions. A score of −inf excludes a class.
    target : Tensor
        Integer classes in the shape of x without ``dim``, or floating-point probabilities in the shape of x.
    entropy : str or Entropy
        The name of a map, ``"softmax"``, ``"sparsemax"`` or ``"entmax15"``, or an entropy such as
        ``TsallisEntropy(1.25)``, ``NormEntropy(2)`` or ``RenyiEntropy(0.5)``. A tensor α of TsallisEntropy, with an α
        for each row, receives a gradient.
    dim : int
        The dimension of the classes, by default the last (in torch.nn.CrossEntropyLoss, dimension 1).
    weight : (K,) Tensor, optional
        The weight of each class, for targets given as classes.
    cost : (K, K) Tensor, optional
        Costs with a diagonal of 0; cost[i, j] is the cost of predicting class j for target class i. The loss adds row i
        to the scores, so that the target must win by more than the cost. For target probabilities, the loss adds the
        mean row.
    ignore_index : int
        Instances of this class, −100 by default, have loss 0 and gradient 0 and do not count in the mean, even if
        scores are NaN. Target probabilities are never ignored.
    reduction : "mean", "sum" or "none"
        Reduction over instances, as in torch.nn, including the weighted mean. The mean over no instances is 0 with
        gradient 0, instead of NaN.

    Returns
    -------
    Tensor
        A scalar, or the loss of each instance in the shape of x without ``dim`` for reduction "none". The loss has the
        dtype of x and is twice differentiable. If the target class has score −inf, the loss is inf with gradient 0.

    Raises
    ------
    InvalidInputError
        If a target, cost or weight has the wrong shape, a class is not in 0, ..., K − 1, or target probabilities are
        negative or do not sum to 1.
    UnknownNameError
        If no entropy belongs to the name.
    TypeError
        If scores, targets or the entropy have the wrong type.

    Notes
    -----
    For label smoothing s, pass the smoothed targets ``(1 - s) * one_hot(target, K) + s / K``.

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
    parameter = entropy.row_parameter(x, dim)
    scores = entropy.cast_scores(move_to_last(x, dim))
    lead, classes = scores.shape[:-1], scores.shape[-1]
    scores = scores.reshape(lead.numel(), classes)
    if parameter is not None:
        entropy = entropy.at(parameter.reshape(lead.numel(), 1))
    _check_table("cost", cost, (classes, classes))
    _check_table("weight", weight, (classes,))
    if isinstance(target, Tensor) and target.is_floating_point():
        y = _target_probabilities(target, x, dim).reshape(scores.shape)
        if weight is not None:
            raise InvalidInputError(
                "weight needs target classes, got target probabilities; multiply the losses of reduction='none' by "
                "weights instead"
            )
        losses = _probability_losses(scores, y, entropy, cost)
        counts = torch.ones_like(losses)
    else:
        labels, any_ignored = _target_classes(target, lead, classes, ignore_index)
        ignored = labels == ignore_index
        if any_ignored:  # saves a pass over all scores without ignored instances
            labels = labels.masked_fill(ignored, 0)
            scores = scores.masked_fill(ignored.unsqueeze(1), 0.0)  # scores may be NaN
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
    """Return the loss of each row of ``scores`` (rows, K) for classes ``labels``, (rows,)."""
    if not scores.numel():
        return scores.sum(1)
    scores = scores if cost is None else scores + cost.to(scores)[labels]
    # Use indexing, because gather would keep the scores for the backward pass.
    target_score = scores[torch.arange(len(labels), device=labels.device), labels]
    p = entropy.probabilities(scores)
    zero = torch.zeros_like(target_score)
    return loss_at_maximizer(entropy, scores, p, target_score, zero, entropy.row_parameter(scores, -1))


def _probability_losses(scores: Tensor, y: Tensor, entropy: Entropy, cost: Tensor | None) -> Float[Tensor, " rows"]:
    """Return the loss of each row for target probabilities ``y`` (rows, K) in float64, (rows,)."""
    scores = scores if cost is None else scores + (y @ cost.to(y)).to(scores.dtype)
    target_score = torch.where(y > 0, y * torch.where(y > 0, scores, 0.0), 0.0).sum(1)
    parameter = entropy.row_parameter(scores, -1)
    return loss_at_maximizer(entropy, scores, entropy.probabilities(scores), target_score, entropy(y), parameter)


def _target_classes(
    target: Tensor, lead: torch.Size, classes: int, ignore_index: int
) -> tuple[Int[Tensor, " rows"], bool]:
    """Return ``target``, flattened, in int64, and whether an instance is ignored."""
    if not isinstance(target, Tensor) or target.dtype is torch.bool or target.is_complex():
        received = f"a tensor of {target.dtype}" if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target must be a tensor of integers (classes) or floating point (probabilities), got {received}"
        )
    if target.shape != lead:
        raise InvalidInputError(
            f"target must have shape {tuple(lead)} for classes, the shape of x without the dim of classes, got "
            f"integers of shape {tuple(target.shape)}; for torch's layout, pass dim=1"
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
                f"target: classes must lie between 0 and {classes - 1}, or equal ignore_index = {ignore_index}, got "
                f"{int(labels[index])} at {index}"
            )

    return check_under_vmap(target.long(), check).reshape(-1), any_ignored


def _target_probabilities(target: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return ``target`` in float64 with classes in the last dimension, normalized to sum 1."""
    check_floating("target", target)
    if target.shape != x.shape:
        raise InvalidInputError(
            f"target: probabilities must have the shape {tuple(x.shape)} of x, got shape {tuple(target.shape)}; pass "
            "classes as integers"
        )
    tolerance = torch.finfo(target.dtype).eps ** 0.5

    def check(y: Tensor) -> None:
        is_invalid = ~((y >= 0).all(-1) & ((y.sum(-1) - 1).abs() <= tolerance))
        if bool(is_invalid.any()):
            index = tuple(is_invalid.nonzero()[0].tolist())
            raise InvalidInputError(
                f"target: probabilities must be at least 0 with sum 1 along dim {dim}, got {y[index].tolist()[:8]} at "
                f"{index}"
            )

    y = check_under_vmap(move_to_last(target, dim).double(), check)
    # The sum is 1 only up to rounding. Normalize exactly, so that adding a number to all scores keeps the loss.
    return y / y.sum(-1, keepdim=True)


def _check_table(name: str, table: Tensor | None, shape: tuple[int, ...]) -> None:
    if table is not None and (not isinstance(table, Tensor) or table.shape != shape):
        received = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise InvalidInputError(f"{name} must be a tensor of shape {shape} for {shape[0]} classes, got {received}")
    check_real(name, table)


class LossOptions(TypedDict, total=False):
    """The options of :func:`simplex_loss`."""

    dim: int
    weight: Tensor | None
    cost: Tensor | None
    ignore_index: int
    reduction: Reduction


def _entmax_losses_like(x: Tensor, target: Tensor, alpha: RowParameter = 1.5, **options: Any) -> Tensor:
    return _losses_like(x, target, "", **options)


@public_call(operator=OperatorSpec(_entmax_losses_like, is_scalar=_is_scalar))
def entmax_loss(
    x: Tensor, target: Tensor, alpha: RowParameter = 1.5, **options: Unpack[LossOptions]
) -> Float[Tensor, "*rows"]:
    """Return the loss generated by :func:`entmax`: :func:`simplex_loss` with ``TsallisEntropy(alpha)``.

    Parameters
    ----------
    x : Tensor
        Floating-point scores of K classes along ``dim``, as for :func:`simplex_loss`.
    target : Tensor
        Integer classes or floating-point probabilities, as for :func:`simplex_loss`.
    alpha : float, Tensor, or nested list of float
        α, at least 1, default 1.5. A tensor or list is a scalar, or broadcasts to the shape of x with size 1 at ``dim``
        (an α for each row). A tensor receives a gradient.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.

    Examples
    --------
    >>> import torch
    >>> x, target = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0])
    >>> entmax_loss(x, target, alpha=1)
    tensor(1.4076)
    >>> x = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.4, 0.3]])
    >>> alpha = [[1.2], [2.0]]
    >>> entmax_loss(x, torch.tensor([0, 1]), alpha, reduction="none")
    tensor([1.1991, 0.3433])
    """
    return simplex_loss(x, target, TsallisEntropy(read_parameter("alpha", alpha)), **options)


class SimplexLoss(nn.Module):
    """:func:`simplex_loss` as a module, with the interface of torch.nn.CrossEntropyLoss.

    Parameters
    ----------
    entropy : str or Entropy
        The name of a map, ``"softmax"``, ``"sparsemax"`` or ``"entmax15"``, or an entropy such as
        ``TsallisEntropy(1.25)``, ``NormEntropy(2)`` or ``RenyiEntropy(0.5)``. If α is an nn.Parameter, it is the
        parameter ``alpha`` of the module.
    dim : int
        The dimension of the classes, by default the last (in torch.nn.CrossEntropyLoss, dimension 1).
    weight : (K,) Tensor, optional
        The weight of each class, for targets given as classes; a buffer of the module.
    cost : (K, K) Tensor, optional
        Costs with a diagonal of 0; cost[i, j] is the cost of predicting class j for target class i. A buffer of the
        module.
    ignore_index : int
        Instances of this class, −100 by default, have loss 0 and gradient 0 and do not count in the mean.
    reduction : "mean", "sum" or "none"
        Reduction over instances, as in torch.nn. The mean over no instances is 0 with gradient 0, instead of NaN.

    Attributes
    ----------
    margin : float
        The loss is 0 if and only if the score of the target class is at least ``margin`` above each other score plus
        cost.

    Notes
    -----
    For label smoothing s, pass the smoothed targets ``(1 - s) * one_hot(target, K) + s / K``.

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
        if isinstance(alpha := getattr(self.entropy, "alpha", None), nn.Parameter):
            self.register_parameter("alpha", alpha)
        self.reduction: Reduction = check_reduction(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("cost", cost)

    @property
    def margin(self) -> float | Tensor:
        """The margin of the entropy."""
        return self.entropy.margin

    def forward(self, x: Tensor, target: Tensor) -> Float[Tensor, "*rows"]:
        """Return the loss of scores x for target classes or probabilities.

        Parameters
        ----------
        x : Tensor
            The scores, with the classes along ``dim``.
        target : Tensor
            Class indices, or probabilities in the shape of x.
        """
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
