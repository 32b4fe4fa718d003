"""The loss of scores over classes that an entropy generates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..autograd.simplex_gap import fenchel_young_gap
from ..autograd.value_check import check_under_vmap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..losses import Reduction, check_reduction
from ..shapes import Float, Int
from .entropies import Entropy
from .forms import check_scores, to_last

__all__ = ["simplex_loss"]


def _losses_like(
    x: Tensor, target: Tensor, entropy: Entropy, *, dim: int = -1, reduction: Reduction = "mean", **_: Any
) -> Tensor:
    return x.new_empty([] if reduction != "none" else to_last(x, dim).shape[:-1])


def _is_scalar(*_: Any, reduction: Reduction = "mean", **__: Any) -> bool:
    return reduction != "none"


@public_call(operator=OperatorSpec(_losses_like, is_scalar=_is_scalar))
def simplex_loss(
    x: Tensor,
    target: Tensor,
    entropy: Entropy,
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    cost: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*rows"]:
    """The Fenchel-Young loss of scores x for the right class, or for probabilities y of the classes.

        L(x, y) = max_p (⟨p, x⟩ + H(p)) − H(y) − ⟨x, y⟩ ≥ 0

    It is convex in x, 0 only for p(x) = y, and has the gradient p(x) − y.

    Parameters
    ----------
    x : Tensor
        Scores of the K classes along ``dim``, of any rank, in floating point. −inf is a class that is not to be had.
    target : Tensor
        Classes as integers, of x's shape without ``dim``; or probabilities in floating point, of x's shape.
    entropy : Entropy
    dim : int
        Of the classes. The last one, unlike torch's 1, unless said otherwise.
    weight : (K,) Tensor, optional
        What an instance counts, by its class; targets must be classes.
    cost : (K, K) Tensor, optional
        What it costs to predict one class (column) for another (row), of 0 for the right one: the target's row is added
        to its scores, so that a right class must win by more than the cost. Of probabilities, the mean row.
    ignore_index : int
        Instances of this class have loss 0 and gradient 0, whatever their scores are; the mean is over the others.
        Probabilities are never ignored.
    reduction : "mean", "sum" or "none"
        As in torch.nn, with the weighted mean there too; but the mean of no instances is 0, and so is its gradient.

    Returns
    -------
    Tensor
        A number, or x's shape without ``dim`` if it is not reduced; of x's dtype, twice differentiable. Infinite, with
        gradient 0, where the right class has a score of −inf.

    Raises
    ------
    InvalidInputError
        For targets of other shapes, classes that there are not, and what is no probabilities; for a cost or weight of
        other shapes. TypeError for scores or targets of other types.

    References
    ----------
    M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, Definition 2.

    Examples
    --------
    >>> from structinf.simplex import ShannonEntropy, TsallisEntropy
    >>> x = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
    >>> simplex_loss(x, torch.tensor([0, 0]), TsallisEntropy(2), reduction="none")
    tensor([1., 0.])
    >>> simplex_loss(x, torch.tensor([1, -100]), ShannonEntropy())
    tensor(0.4076)
    """
    check_scores(x, dim)
    check_reduction(reduction)
    if not isinstance(entropy, Entropy):
        raise TypeError(f"entropy: an Entropy such as TsallisEntropy(1.5) is needed, got {type(entropy).__name__}")
    scores = entropy.upcast_half(to_last(x, dim))
    lead, classes = scores.shape[:-1], scores.shape[-1]
    scores = scores.reshape(lead.numel(), classes)
    _check_table("cost", cost, (classes, classes))
    _check_table("weight", weight, (classes,))
    if isinstance(target, Tensor) and target.is_floating_point():
        y = _probabilities(target, x, dim).reshape(scores.shape)
        if weight is not None:
            raise InvalidInputError(
                "weight: it goes by an instance's class, and the targets are probabilities; weigh the losses of "
                "reduction='none' instead"
            )
        losses = _of_probabilities(scores, y, entropy, cost)
        counts = torch.ones_like(losses)
    else:
        labels, any_ignored = _labels(target, lead, classes, ignore_index)
        ignored = labels == ignore_index
        if any_ignored:  # a pass over all scores less if none is
            labels = labels.masked_fill(ignored, 0)
            scores = scores.masked_fill(ignored.unsqueeze(1), 0.0)  # whatever they were, NaN too
        losses = _of_classes(scores, labels, entropy, cost)
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


def _of_classes(scores: Tensor, labels: Tensor, entropy: Entropy, cost: Tensor | None) -> Float[Tensor, " rows"]:
    """The loss of each row of ``scores`` (rows, K)."""
    if not scores.numel():
        return scores.sum(1)
    scores = scores if cost is None else scores + cost.to(scores)[labels]
    right = scores[torch.arange(len(labels), device=labels.device), labels]  # gather would keep the scores for backward
    return fenchel_young_gap(entropy, scores, entropy.probabilities(scores), right, torch.zeros_like(right))


def _of_probabilities(scores: Tensor, y: Tensor, entropy: Entropy, cost: Tensor | None) -> Float[Tensor, " rows"]:
    """The same for probabilities ``y`` (rows, K) in float64."""
    scores = scores if cost is None else scores + (y @ cost.to(y)).to(scores.dtype)
    right = torch.where(y > 0, y * torch.where(y > 0, scores, 0.0), 0.0).sum(1)
    return fenchel_young_gap(entropy, scores, entropy.probabilities(scores), right, entropy(y))


def _labels(target: Tensor, lead: torch.Size, classes: int, ignore_index: int) -> tuple[Int[Tensor, " rows"], bool]:
    """``target``, flat, in int64, and whether any is to be ignored."""
    if not isinstance(target, Tensor) or target.dtype is torch.bool or target.is_complex():
        received = f"a tensor of {target.dtype}" if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target: a tensor of integers (classes) or floating point (probabilities) is needed, got {received}"
        )
    if target.shape != lead:
        raise InvalidInputError(
            f"target: classes of shape {tuple(lead)}, which is that of x without its dim of classes, or probabilities "
            f"of x's shape are needed, got integers of shape {tuple(target.shape)}; torch's classes are along dim=1"
        )

    any_ignored = False

    def check(labels: Tensor) -> None:
        nonlocal any_ignored
        ignored = labels == ignore_index
        any_ignored = bool(ignored.any())
        wrong = ((labels < 0) | (labels >= classes)) & ~ignored
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            raise InvalidInputError(
                f"target: classes are from 0 to {classes - 1}, or ignore_index = {ignore_index}, got "
                f"{int(labels[index])} at {index}"
            )

    return check_under_vmap(target.long(), check).reshape(-1), any_ignored


def _probabilities(target: Tensor, x: Tensor, dim: int) -> Tensor:
    """``target`` in float64 with the classes last, of sum 1."""
    if target.shape != x.shape:
        raise InvalidInputError(
            f"target: probabilities of x's shape {tuple(x.shape)} are needed, got shape {tuple(target.shape)}; classes "
            "are integers"
        )
    near = torch.finfo(target.dtype).eps ** 0.5

    def check(y: Tensor) -> None:
        wrong = ~((y >= 0).all(-1) & ((y.sum(-1) - 1).abs() <= near))
        if bool(wrong.any()):
            index = tuple(wrong.nonzero()[0].tolist())
            raise InvalidInputError(
                f"target: probabilities are at least 0 and of sum 1 along dim {dim}, got {y[index].tolist()[:8]} at "
                f"{index}"
            )

    y = check_under_vmap(to_last(target, dim).double(), check)
    # To rounding of their own dtype, the sum is 1; the loss must not change if a number is added to all scores.
    return y / y.sum(-1, keepdim=True)


def _check_table(name: str, table: Tensor | None, shape: tuple[int, ...]) -> None:
    if table is not None and (not isinstance(table, Tensor) or table.shape != shape):
        received = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise InvalidInputError(f"{name}: a tensor of shape {shape} is needed for {shape[0]} classes, got {received}")
