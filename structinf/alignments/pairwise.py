"""Costs of matching each item of one series with each item of another series."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..kernels.arrays import upcast_half
from ..parts import broadcast_shapes
from ..shapes import Float
from ..validation import check_floating

__all__ = ["Metric", "check_metric", "check_series", "pairwise_cost"]

Metric = Literal["squared_euclidean", "euclidean", "l1", "absolute", "cosine"] | Callable[[Tensor, Tensor], Tensor]


@public_call
def pairwise_cost(x: Tensor, y: Tensor, metric: Metric = "squared_euclidean") -> Float[Tensor, "*batch n m"]:
    """Return the cost c(x_i, y_j) of matching item i of series ``x`` with item j of series ``y``, for all i and j.

    ===================  =================================================================
    metric               c(a, b)
    ===================  =================================================================
    "squared_euclidean"  ‖a − b‖², without a factor ½
    "euclidean"          ‖a − b‖, with gradient 0 at a = b
    "l1", "absolute"     Σ_k |a_k − b_k|, with gradient 0 in coordinates with a_k = b_k
    "cosine"             1 − ⟨a, b⟩ / (‖a‖ ‖b‖), or 1 with gradient 0 for a vector of zeros
    callable             the callable maps x (..., n, d) and y (..., m, d) to costs (..., n, m)
    ===================  =================================================================

    Parameters
    ----------
    x : (..., n, d) Tensor, or (n,)
        A series of n items with d features. A tensor of one dimension is a series of numbers; a batch of series of
        numbers has shape (B, n, 1).
    y : (..., m, d) Tensor, or (m,)
        A series with the dtype and device of ``x``. Batch dimensions broadcast: ``x[:, None]`` and ``y[None]`` give
        all pairs.
    metric : str or callable
        A metric from the table. The default is "squared_euclidean".

    Returns
    -------
    Tensor
        The costs, (..., n, m), in the dtype of ``x``, or in float32 for half-precision input to avoid overflow of
        squares. The named metrics are never negative and are differentiable twice. Neither the forward nor the backward
        pass allocates a tensor (..., n, m, d).

    Raises
    ------
    InvalidInputError
        If the series differ in dtype, device or number of features, or the metric is unknown.

    Examples
    --------
    >>> pairwise_cost(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0]))
    tensor([[4., 1.],
            [1., 0.]])
    """
    x, y = check_series(x, y)
    check_metric(metric)
    with torch.autocast(x.device.type, enabled=False):
        cost = metric(x, y) if callable(metric) else _METRICS[metric](x, y)
    wanted = (x.shape[-2], y.shape[-2])
    if not isinstance(cost, Tensor) or cost.shape[-2:] != wanted:
        received = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
        raise InvalidInputError(f"metric(x, y) must return a tensor (..., {wanted[0]}, {wanted[1]}), got {received}")
    return cost


def check_metric(metric: Metric) -> Metric:
    """Return ``metric``; raise InvalidInputError if it is an unknown name."""
    if not callable(metric) and metric not in _METRICS:
        raise InvalidInputError(f"metric must be a callable or one of {', '.join(_METRICS)}, got {metric!r}")
    return metric


def check_series(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return both series as (..., n, d), half precision cast to float32; InvalidInputError if they do not match."""
    for name, series in (("x", x), ("y", y)):
        check_floating(name, series, "a tensor (a series)")
        if series.ndim == 0:
            raise InvalidInputError(f"{name} must have at least one dimension, got a single number")
    for what, of_x, of_y in (("device", x.device, y.device), ("dtype", x.dtype, y.dtype)):
        if of_x != of_y:
            raise InvalidInputError(f"x and y must have the same {what}, got {of_x} and {of_y}")
    x, y = (series.unsqueeze(1) if series.ndim == 1 else series for series in (x, y))
    if x.shape[-1] != y.shape[-1]:
        raise InvalidInputError(
            "x and y must have the same number of features, their last dimension, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}. Convert a batch of series of numbers to shape (B, n, 1) with "
            "x.unsqueeze(-1)"
        )
    if x.shape[-1] == 0:
        raise InvalidInputError(
            f"x and y must have at least one feature, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    try:
        broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise InvalidInputError(
            f"the batch dimensions of x and y must broadcast, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        ) from None
    return upcast_half(x), upcast_half(y)


# ----------------------------------------------------------------------------- metrics of (..., n, d) and (..., m, d)


def _squared_euclidean(x: Tensor, y: Tensor) -> Tensor:
    centre = (0.5 * (x.mean(-2, keepdim=True) + y.mean(-2, keepdim=True))).detach()
    x, y = x - centre, y - centre
    # The expansion of the square loses digits for close items, so compute values in float64 and clamp negative ones.
    with torch.no_grad():
        value = _expanded_squares(x.double(), y.double()).clamp_(min=0).to(x.dtype)
    if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return value
    # The derivatives do not depend on the value, so record the expansion for autograd and overwrite its value.
    cost = _expanded_squares(x, y)
    cost.detach().copy_(value)
    return cost


def _expanded_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return ‖a‖² − 2 ⟨a, b⟩ + ‖b‖², computed by one matrix product."""
    one = x.new_ones(())
    left = torch.cat([-2 * x, x.square().sum(-1, keepdim=True), one.expand(*x.shape[:-1], 1)], -1)
    right = torch.cat([y, one.expand(*y.shape[:-1], 1), y.square().sum(-1, keepdim=True)], -1)
    return left @ right.mT


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    # A matrix product would have rounding errors of squares near 0, and the root magnifies them without bound.
    square = _sum_over_features(lambda a, b: (a - b).square(), x, y)
    is_different = square > 0
    return torch.where(is_different, torch.where(is_different, square, 1.0).sqrt(), 0.0)


def _l1(x: Tensor, y: Tensor) -> Tensor:
    return _sum_over_features(lambda a, b: (a - b).abs(), x, y)


def _sum_over_features(term: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return Σ_k term(x_k, y_k) over features k, with arguments x_k (..., n, 1) and y_k (..., 1, m)."""
    # Checkpoints keep autograd from storing all differences, (..., n, m, d). The backward pass recomputes differences.
    features = zip(x.split(1, -1), y.mT.split(1, -2), strict=True)
    terms = (checkpoint(term, a, b, use_reentrant=False, preserve_rng_state=False) for a, b in features)
    return functools.reduce(Tensor.add_, terms)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    cost = 1 - _directions(x) @ _directions(y).mT
    with torch.no_grad():
        cost.detach().clamp_(min=0)
    return cost


def _directions(x: Tensor) -> Tensor:
    """Return each item divided by its norm; items of zeros stay zeros."""
    size = x.detach().abs().amax(-1, keepdim=True)
    some = size > 0
    x = torch.where(some, x / torch.where(some, size, 1.0), 0.0)  # scaled so that squares do not overflow or underflow
    square = torch.where(some, x.square().sum(-1, keepdim=True), 1.0)
    return x / square.sqrt()


_METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared_euclidean": _squared_euclidean,
    "euclidean": _euclidean,
    "l1": _l1,
    "absolute": _l1,
    "cosine": _cosine,
}
