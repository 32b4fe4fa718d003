"""Soft-DTW from series: between two of them, without its bias, and as a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..losses import Reduction, check_reduction, reduce_losses
from ..parts import broadcast_shapes
from ..regularizers import Regularizer
from ..shapes import Float
from .pairwise import Metric, check_metric, check_series, pairwise_cost
from .soft_dtw_costs import check_band, resolve_regularizer, soft_dtw

__all__ = ["SoftDTWLoss", "soft_dtw_between", "soft_dtw_divergence"]


@public_call(functorch=True)
def soft_dtw_between(
    x: Tensor,
    y: Tensor,
    temperature: float | None = None,
    *,
    metric: Metric = "squared_euclidean",
    regularizer: str | Regularizer = "negentropy",
    band: int | Tensor | None = None,
    lengths: Any = None,
) -> Float[Tensor, "*batch"]:
    """:func:`structinf.soft_dtw` of the pairwise costs of two series.

    Parameters
    ----------
    x : (..., n, d) Tensor, or (n,)
    y : (..., m, d) Tensor, or (m,)
        As for :func:`structinf.pairwise_cost`; batch dimensions broadcast.
    temperature : float, optional
        In the unit of the metric.
    metric : str or callable
        As for :func:`structinf.pairwise_cost`.
    regularizer, band
        As for :func:`structinf.soft_dtw`.
    lengths : (..., 2) integers, optional
        Items of x and of y in use; what comes after is not read.

    Returns
    -------
    Tensor
        (...), in the dtype of the series.

    Examples
    --------
    >>> soft_dtw_between(torch.tensor([1.0]), torch.tensor([1.0, 2.0, 3.0]))
    tensor(5.)
    """
    a, b, own = _without_padding(*check_series(x, y), band, lengths)
    cost = pairwise_cost(a, b, metric)
    return soft_dtw(cost, temperature, regularizer=regularizer, band=band, lengths=own).to(x.dtype)


@public_call(functorch=True)
def soft_dtw_divergence(
    x: Tensor,
    y: Tensor,
    temperature: float | None = None,
    *,
    metric: Metric = "squared_euclidean",
    regularizer: str | Regularizer = "negentropy",
    band: int | Tensor | None = None,
    lengths: Any = None,
) -> Float[Tensor, "*batch"]:
    """Soft-DTW without its bias: sdtw(x, y) − ½ sdtw(x, x) − ½ sdtw(y, y), which is 0 between a series and itself.

    Soft-DTW is negative between similar series, and least for others than equal ones; this is neither.

    Parameters
    ----------
    x, y, temperature, metric, regularizer, band, lengths
        As for :func:`soft_dtw_between`; the series may differ in length.

    Returns
    -------
    Tensor
        (...), in the dtype of the series. With the negative entropy it is at least 0 for every metric for which
        k / (1 + k), k = exp(−c / γ), is a positive definite kernel; for the squared Euclidean one that is not proven,
        and no exception is known. With "squared_l2" it can be slightly negative.

    References
    ----------
    M. Cuturi, J.-P. Vert, Ø. Birkenes & T. Matsui, A kernel for time series based on global alignments, ICASSP 2007.
    M. Blondel, A. Mensch & J.-P. Vert, Differentiable divergences between time series, AISTATS 2021, §3.

    Examples
    --------
    >>> x, y = torch.arange(100.0).cos(), torch.arange(90.0).cos()
    >>> soft_dtw_between(x, x), soft_dtw_divergence(x, x), soft_dtw_divergence(x, y)
    (tensor(-104.3709), tensor(0.), tensor(8.0839))
    """
    a, b, both = _without_padding(*check_series(x, y), band, lengths)

    def cost_between(s: Tensor, t: Tensor, sides: list[int]) -> Tensor:
        own = None if both is None else both[..., sides]
        return soft_dtw(pairwise_cost(s, t, metric), temperature, regularizer=regularizer, band=band, lengths=own)

    return (cost_between(a, b, [0, 1]) - 0.5 * (cost_between(a, a, [0, 0]) + cost_between(b, b, [1, 1]))).to(x.dtype)


def _without_padding(x: Tensor, y: Tensor, band: Any, lengths: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Both series with 0 in the padding, whose NaN would otherwise reach gradients as 0 · NaN, and the lengths.

    Where lengths or bands belong to instances, both series get all batch dimensions.
    """
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if lengths is not None or isinstance(band, Tensor):
        x, y = x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:])
    if lengths is None:
        return x, y, None
    lengths = torch.as_tensor(lengths, device=x.device)
    if lengths.shape != (*batch, 2):
        raise InvalidInputError(
            f"lengths must have shape {(*batch, 2)}, the items of x and of y in use, got {tuple(lengths.shape)}"
        )
    x, y = (
        torch.where(torch.arange(s.shape[-2], device=x.device).unsqueeze(1) < lengths[..., i, None, None], s, 0.0)
        for i, s in enumerate((x, y))
    )
    return x, y, lengths


class SoftDTWLoss(nn.Module):
    """Soft-DTW, or its divergence, between predicted and right series, reduced over the batch.

    Parameters
    ----------
    temperature, metric, regularizer, band
        As for :func:`soft_dtw_between`.
    divergence : bool
        Take :func:`soft_dtw_divergence`, which is least where the series are equal.
    reduction : "mean", "sum" or "none"
        Over the batch, as in torch.nn; the mean of an empty batch is 0.

    Examples
    --------
    >>> loss = SoftDTWLoss(divergence=True)
    >>> loss(torch.zeros(2, 5, 1), torch.ones(2, 7, 1))
    tensor(9.4119)
    """

    def __init__(
        self,
        temperature: float | None = None,
        *,
        metric: Metric = "squared_euclidean",
        regularizer: str | Regularizer = "negentropy",
        band: int | None = None,
        divergence: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.regularizer = resolve_regularizer(temperature, regularizer)
        self.metric = check_metric(metric)
        self.band, self.divergence = check_band(band), divergence
        self.reduction: Reduction = check_reduction(reduction)

    def forward(self, x: Tensor, y: Tensor, lengths: Any = None) -> Float[Tensor, "*batch"]:
        """The loss between x (..., n, d) and y (..., m, d): a scalar, or (...) with ``reduction="none"``."""
        function = soft_dtw_divergence if self.divergence else soft_dtw_between
        options = {"metric": self.metric, "regularizer": self.regularizer, "band": self.band}
        return reduce_losses(function(x, y, lengths=lengths, **options), self.reduction)

    def extra_repr(self) -> str:
        shown = ("metric", "regularizer", "band", "divergence", "reduction")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
