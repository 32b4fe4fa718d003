"""Soft-DTW of two series, the soft-DTW divergence, and the loss module."""

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
    """Return the soft-DTW of two series: :func:`structinf.soft_dtw` of their pairwise costs.

    Parameters
    ----------
    x : (..., n, d) Tensor, or (n,)
        The first series, as for :func:`structinf.pairwise_cost`.
    y : (..., m, d) Tensor, or (m,)
        The second series. Batch dimensions of ``x`` and ``y`` broadcast.
    temperature : float, optional
        γ, in the unit of the metric, as for :func:`structinf.soft_dtw`. Default 1.
    metric : str or callable
        The metric of :func:`structinf.pairwise_cost`.
    regularizer : str or Regularizer
        Ω, as for :func:`structinf.soft_dtw`.
    band : int or (...) integer Tensor, optional
        Largest |i − j| of matched items, as for :func:`structinf.soft_dtw`.
    lengths : (..., 2) integers, optional
        Numbers of items of ``x`` and of ``y`` in use. Items in the padding are not read.

    Returns
    -------
    Tensor
        The soft-DTW of each instance, (...), in the dtype of the series.

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
    """Return the soft-DTW divergence sdtw(x, y) − ½ sdtw(x, x) − ½ sdtw(y, y).

    Soft-DTW is negative between similar series, and sdtw(x, y) is not smallest at y = x. The divergence corrects this
    bias: it is 0 at y = x.

    Parameters
    ----------
    x : (..., n, d) Tensor, or (n,)
        The first series, as for :func:`structinf.pairwise_cost`.
    y : (..., m, d) Tensor, or (m,)
        The second series. Batch dimensions of ``x`` and ``y`` broadcast.
    temperature : float, optional
        γ, in the unit of the metric, as for :func:`structinf.soft_dtw`. Default 1.
    metric : str or callable
        The metric of :func:`structinf.pairwise_cost`.
    regularizer : str or Regularizer
        Ω, as for :func:`structinf.soft_dtw`.
    band : int or (...) integer Tensor, optional
        Largest |i − j| of matched items, as for :func:`structinf.soft_dtw`.
    lengths : (..., 2) integers, optional
        Numbers of items of ``x`` and of ``y`` in use. Items in the padding are not read.

    Returns
    -------
    Tensor
        The divergence of each instance, (...), in the dtype of the series. With the negative entropy, the divergence
        is at least 0 if k / (1 + k) with k = exp(−c / γ) is a positive definite kernel. For squared Euclidean costs,
        no proof and no counterexample is known. With "squared_l2", the divergence can be negative.

    References
    ----------
    M. Cuturi, J.-P. Vert, Ø. Birkenes & T. Matsui, A kernel for time series based on global alignments, ICASSP 2007.
    M. Blondel, A. Mensch & J.-P. Vert, Differentiable divergences between time series, AISTATS 2021, §3.

    Examples
    --------
    >>> x, y = torch.arange(100.0).cos(), torch.arange(90.0).cos()
    >>> soft_dtw_between(x, x)
    tensor(-104.3709)
    >>> soft_dtw_divergence(x, x), soft_dtw_divergence(x, y)
    (tensor(0.), tensor(8.0839))
    """
    a, b, both = _without_padding(*check_series(x, y), band, lengths)

    def cost_between(s: Tensor, t: Tensor, sides: list[int]) -> Tensor:
        own = None if both is None else both[..., sides]
        return soft_dtw(pairwise_cost(s, t, metric), temperature, regularizer=regularizer, band=band, lengths=own)

    return (cost_between(a, b, [0, 1]) - 0.5 * (cost_between(a, a, [0, 0]) + cost_between(b, b, [1, 1]))).to(x.dtype)


def _without_padding(x: Tensor, y: Tensor, band: Any, lengths: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return both series with 0 in the padding, and the lengths.

    NaN in the padding would otherwise reach gradients as 0 · NaN. With ``lengths`` or a tensor ``band``, both series
    are expanded to the common batch shape.
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
    """Soft-DTW, or the soft-DTW divergence, between predicted and target series, reduced over the batch.

    Parameters
    ----------
    temperature : float, optional
        γ, in the unit of the metric, as for :func:`structinf.soft_dtw`. Default 1.
    metric : str or callable
        The metric of :func:`structinf.pairwise_cost`.
    regularizer : str or Regularizer
        Ω, as for :func:`structinf.soft_dtw`.
    band : int, optional
        Largest |i − j| of matched items, as for :func:`structinf.soft_dtw`.
    divergence : bool
        Whether the loss is :func:`soft_dtw_divergence`, which is 0 for equal series. By default (False), the loss is
        :func:`soft_dtw_between`.
    reduction : "mean", "sum" or "none"
        Reduction over the batch, as in torch.nn; the mean of an empty batch is 0.

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
        """Return the loss between x (..., n, d) and y (..., m, d): a scalar, or (...) with ``reduction="none"``.

        Parameters
        ----------
        x : (..., n, d) Tensor
            The first series.
        y : (..., m, d) Tensor
            The second series.
        lengths : (..., 2) integer tensor or nested sequence, optional
            The numbers of elements of x and of y in use, as for :func:`structinf.soft_dtw`.
        """
        function = soft_dtw_divergence if self.divergence else soft_dtw_between
        options = {"metric": self.metric, "regularizer": self.regularizer, "band": self.band}
        return reduce_losses(function(x, y, lengths=lengths, **options), self.reduction)

    def extra_repr(self) -> str:
        shown = ("metric", "regularizer", "band", "divergence", "reduction")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
