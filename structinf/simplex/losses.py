"""Losses in the place of torch.nn.CrossEntropyLoss, by the names of the maps that they train."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import TypedDict, Unpack

from ..losses import Reduction, check_reduction
from ..shapes import Float
from .entropies import Entropy, NormEntropy, RenyiEntropy, ShannonEntropy, SquaredNormEntropy, TsallisEntropy
from .fenchel_young import simplex_loss

__all__ = [
    "Entmax15Loss",
    "EntmaxLoss",
    "LossOptions",
    "NormmaxLoss",
    "RenyiLoss",
    "SimplexLoss",
    "SoftmaxLoss",
    "SparsemaxLoss",
    "SquaredNormLoss",
    "entmax15_loss",
    "entmax_loss",
    "normmax_loss",
    "sparsemax_loss",
]


class LossOptions(TypedDict, total=False):
    """The options of :func:`simplex_loss`."""

    dim: int
    weight: Tensor | None
    cost: Tensor | None
    ignore_index: int
    reduction: Reduction


def sparsemax_loss(x: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Float[Tensor, "*rows"]:
    """The loss of :func:`sparsemax`: :func:`simplex_loss` for ``TsallisEntropy(2)``, with its options.

    Parameters
    ----------
    x, target
        As for :func:`simplex_loss`.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.

    Examples
    --------
    >>> import torch
    >>> sparsemax_loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.)
    """
    return simplex_loss(x, target, TsallisEntropy(2.0), **options)


def entmax15_loss(x: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Float[Tensor, "*rows"]:
    """The loss of :func:`entmax15`: :func:`simplex_loss` for ``TsallisEntropy(1.5)``, with its options.

    Parameters
    ----------
    x, target
        As for :func:`simplex_loss`.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.

    Examples
    --------
    >>> import torch
    >>> entmax15_loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.0617)
    """
    return simplex_loss(x, target, TsallisEntropy(1.5), **options)


def entmax_loss(
    x: Tensor, target: Tensor, alpha: float = 1.5, **options: Unpack[LossOptions]
) -> Float[Tensor, "*rows"]:
    """The loss of :func:`entmax`: :func:`simplex_loss` for ``TsallisEntropy(alpha)``, with its options.

    Parameters
    ----------
    x, target
        As for :func:`simplex_loss`.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.
    alpha : float
        At least 1.

    Examples
    --------
    >>> import torch
    >>> entmax_loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]), alpha=1)
    tensor(1.4076)
    """
    return simplex_loss(x, target, TsallisEntropy(alpha), **options)


def normmax_loss(
    x: Tensor, target: Tensor, alpha: float = 2.0, **options: Unpack[LossOptions]
) -> Float[Tensor, "*rows"]:
    """The loss of :func:`normmax`: :func:`simplex_loss` for ``NormEntropy(alpha)``, with its options.

    Parameters
    ----------
    x, target
        As for :func:`simplex_loss`.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :func:`simplex_loss`.
    alpha : float
        Above 1.

    Examples
    --------
    >>> import torch
    >>> normmax_loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([1]))
    tensor(0.)
    """
    return simplex_loss(x, target, NormEntropy(alpha), **options)


class SimplexLoss(nn.Module):
    """:func:`simplex_loss` as a module, in the place of torch.nn.CrossEntropyLoss.

    Parameters
    ----------
    entropy : Entropy
    dim : int
        Of the classes: the last one, unlike torch's 1, unless said otherwise.
    weight : (K,) Tensor, optional
        What an instance counts, by its class; not for probabilities as targets. A buffer.
    cost : (K, K) Tensor, optional
        What it costs to predict one class (column) for another (row), of 0 for the right one. A buffer.
    ignore_index : int
        Instances of this class have loss 0 and gradient 0, and do not count. Probabilities are never ignored.
    reduction : "mean", "sum" or "none"
        As in torch.nn; but the mean of no instances is 0, and so is its gradient.

    Attributes
    ----------
    margin : float
        The loss is 0 where the right class's score exceeds all others by so much (and by their costs), and only there.

    Examples
    --------
    >>> import torch
    >>> loss = SimplexLoss(RenyiEntropy(0.5), reduction="sum")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0])), loss.margin
    (tensor(1.5690), inf)
    """

    weight: Tensor | None
    cost: Tensor | None

    def __init__(
        self,
        entropy: Entropy,
        *,
        dim: int = -1,
        weight: Tensor | None = None,
        cost: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        if not isinstance(entropy, Entropy):
            raise TypeError(f"entropy: one such as TsallisEntropy(1.5) is needed, got {type(entropy).__name__}")
        self.entropy, self.dim, self.ignore_index = entropy, dim, ignore_index
        self.reduction: Reduction = check_reduction(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("cost", cost)

    @property
    def margin(self) -> float:
        """The entropy's margin."""
        return self.entropy.margin

    def forward(self, x: Tensor, target: Tensor) -> Float[Tensor, "*rows"]:
        """The loss of scores x for classes, or for probabilities of them."""
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


def _known(options: LossOptions, loss: type[SimplexLoss]) -> LossOptions:
    """The ``options``, if they are all those of losses."""
    for name in sorted(options.keys() - LossOptions.__annotations__):
        if name == "label_smoothing":
            instead = "pass smoothed targets, such as (1 - s) * one_hot(target, K) + s / K"
        else:
            instead = f"all losses have {', '.join(LossOptions.__annotations__)}"
        raise TypeError(f"{loss.__name__}() got an unexpected keyword argument {name!r}; {instead}")
    return options


class SoftmaxLoss(SimplexLoss):
    """The loss of :func:`softmax`: the cross-entropy, less the entropy of the target where it is not a class.

    Parameters
    ----------
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> SoftmaxLoss()(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.4076)
    """

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(ShannonEntropy(), **_known(options, type(self)))


class SparsemaxLoss(SimplexLoss):
    """The loss of :func:`sparsemax`, of margin 1.

    Parameters
    ----------
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    References
    ----------
    A. Martins & R. Astudillo, From softmax to sparsemax, ICML 2016, §3.

    Examples
    --------
    >>> import torch
    >>> SparsemaxLoss(dim=1)(torch.zeros(2, 5, 7), torch.zeros(2, 7, dtype=torch.long))
    tensor(0.4000)
    """

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(TsallisEntropy(2.0), **_known(options, type(self)))


class Entmax15Loss(SimplexLoss):
    """The loss of :func:`entmax15`, of margin 2.

    Parameters
    ----------
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> Entmax15Loss()(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.0617)
    """

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(TsallisEntropy(1.5), **_known(options, type(self)))


class EntmaxLoss(SimplexLoss):
    """The loss of :func:`entmax`, of margin 1 / (α − 1).

    Parameters
    ----------
    alpha : float
        At least 1.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> EntmaxLoss(alpha=1.25)(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.1646)
    """

    def __init__(self, alpha: float = 1.5, **options: Unpack[LossOptions]) -> None:
        super().__init__(TsallisEntropy(alpha), **_known(options, type(self)))


class NormmaxLoss(SimplexLoss):
    """The loss of :func:`normmax`, of margin 1.

    Parameters
    ----------
    alpha : float
        Above 1.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> NormmaxLoss()(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.)
    """

    def __init__(self, alpha: float = 2.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(NormEntropy(alpha), **_known(options, type(self)))


class SquaredNormLoss(SimplexLoss):
    """The loss that :class:`SquaredNormEntropy` generates, of margin 1.

    Parameters
    ----------
    alpha : float
        Above 1.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> SquaredNormLoss()(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.)
    """

    def __init__(self, alpha: float = 2.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(SquaredNormEntropy(alpha), **_known(options, type(self)))


class RenyiLoss(SimplexLoss):
    """The loss that :class:`RenyiEntropy` generates, of no margin.

    Parameters
    ----------
    beta : float
        Above 0, at most 1.
    **options
        ``dim``, ``weight``, ``cost``, ``ignore_index`` and ``reduction``, as for :class:`SimplexLoss`.

    Examples
    --------
    >>> import torch
    >>> RenyiLoss(beta=0.5)(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.5690)
    """

    def __init__(self, beta: float = 0.5, **options: Unpack[LossOptions]) -> None:
        super().__init__(RenyiEntropy(beta), **_known(options, type(self)))
