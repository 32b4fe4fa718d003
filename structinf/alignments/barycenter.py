"""Barycenters (weighted Fréchet means) of series under soft-DTW."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from ..parts import enable_autograd
from ..regularizers import Regularizer
from ..shapes import Float
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.minimize import minimize_by_lbfgs
from ..validation import check_flag, check_floating, check_natural
from .pairwise import Metric, pairwise_cost
from .soft_dtw_series import soft_dtw_between

__all__ = ["Barycenter", "soft_dtw_barycenter"]


@dataclass(frozen=True)
class Barycenter:
    """A barycenter with the losses of its optimization.

    Attributes
    ----------
    series : (length, d) Tensor, or (length,)
        The barycenter, with the number of dimensions, dtype and device of the input series.
    losses : (iterations + 1,) Tensor
        The weighted mean cost at the start and after each iteration. The smallest loss is the loss of ``series``.
    converged : bool
        Whether the optimization met the tolerance.
    """

    series: Tensor
    losses: Float[Tensor, " iterations"]
    converged: bool


def soft_dtw_barycenter(
    series: Sequence[Tensor] | Tensor,
    temperature: float | None = None,
    *,
    weights: Any = None,
    lengths: Any = None,
    length: int | None = None,
    init: Any = None,
    divergence: bool = False,
    metric: Metric = "squared_euclidean",
    regularizer: str | Regularizer = "negentropy",
    band: int | None = None,
    max_iter: int = 100,
    tolerance: float = 1e-7,
    on_failure: OnFailure = "warn",
) -> Barycenter:
    """Return a barycenter of ``series`` under soft-DTW: a series z that minimizes Σ_i w_i sdtw(z, x_i) / Σ_i w_i.

    The solver is scipy's L-BFGS. The objective is not convex in z, so the result is a local minimum near ``init``.

    Parameters
    ----------
    series : sequence of N tensors (n_i, d) or (n_i,), or (N, n, d) Tensor
        The series x_i. Their lengths may differ.
    temperature : float, optional
        γ, as for :func:`structinf.soft_dtw`. At 0 (hard DTW), the objective has kinks where L-BFGS may stop early.
    weights : (N,) numbers, optional
        The weights w_i, at least 0 and not all 0, equal by default. Long series have higher costs; to compensate,
        Cuturi & Blondel divide each weight by the length of the series.
    lengths : (N,) integers, optional
        Number of items in use of each series, for ``series`` given as one tensor.
    length : int, optional
        Length of the barycenter. The default is the length of the longest series.
    init : (length, d) array-like, or (length,), optional
        Initial series. The default is the weighted mean of the series, each resampled to ``length`` items.
    divergence : bool
        Whether to minimize the divergence (:func:`structinf.soft_dtw_divergence`) instead of soft-DTW, default False.
        The barycenter of equal series then equals the series. Without the divergence, the barycenter is smoother than
        the series, and more so at higher temperatures.
    metric : str or callable
        The metric of :func:`structinf.pairwise_cost`.
    regularizer : str or Regularizer
        Ω, as for :func:`structinf.soft_dtw`.
    band : int, optional
        As for :func:`structinf.soft_dtw`, at least the difference in length between the barycenter and any series.
    max_iter : int
        Limit of L-BFGS iterations, at least 1.
    tolerance : float
        At least 0. L-BFGS stops when an iteration changes the loss by less than ``tolerance`` times the mean cost of
        an arbitrary alignment.
    on_failure : "warn", "raise" or "ignore"
        Action if the tolerance is not met: one ConvergenceWarning, a ConvergenceError, or nothing.

    Returns
    -------
    Barycenter
        The barycenter, its losses, and whether L-BFGS converged, computed in float64 and without a gradient.

    Raises
    ------
    InvalidInputError
        If the series do not match each other, weights or lengths are out of range, or :func:`structinf.soft_dtw`
        raises.

    References
    ----------
    M. Cuturi & M. Blondel, Soft-DTW: a differentiable loss function for time-series, ICML 2017, §3.1.
    M. Blondel, A. Mensch & J.-P. Vert, Differentiable divergences between time series, AISTATS 2021, §4.

    Examples
    --------
    >>> short = torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> long = torch.tensor([3.0, 0.0, 0.0, 3.0, 0.0])
    >>> soft_dtw_barycenter([short, long], 0.1).series.round(decimals=2)
    tensor([2., 0., 0., 2., 0.])
    """
    check_stopping(max_iter, tolerance, on_failure)
    check_flag("divergence", divergence)
    if band is not None:
        check_natural("band", band, 0)
    options = {"temperature": temperature, "metric": metric, "regularizer": regularizer, "band": band}
    with enable_autograd():
        batch = _pad_series(series, lengths, weights)
        start = _initial_series(batch, init, length)
        loss = _objective(batch, len(start), divergence, functools.partial(soft_dtw_between, **options))
        sizes = {"cost": _typical_cost(start, batch, metric), "spread": _value_range(start, batch)}
        z, losses, failure = minimize_by_lbfgs(loss, start, max_iter=max_iter, tolerance=tolerance, **sizes)
    if failure:
        report_nonconvergence(
            f"soft_dtw_barycenter did not converge: {failure} after {len(losses) - 1} iterations, at a loss of "
            f"{losses[-1]:.6g}; raise max_iter or tolerance, or the temperature for a smoother loss",
            on_failure,
        )
    z = z.to(batch.dtype)
    return Barycenter(
        z.squeeze(1) if batch.flat else z, torch.tensor(losses, dtype=torch.float64, device="cpu"), not failure
    )


def _objective(
    batch: _Series, length: int, divergence: bool, cost_between: Callable[..., Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the objective: the weighted mean cost between a series of this ``length`` and the series of ``batch``."""
    sides = torch.stack([torch.full_like(batch.lengths, length), batch.lengths], 1)
    if not divergence:
        return lambda z: batch.weights @ cost_between(z, batch.items, lengths=sides)
    with torch.no_grad():
        self_cost = batch.weights @ cost_between(batch.items, batch.items, lengths=sides[:, [1, 1]])
    return lambda z: (
        batch.weights @ cost_between(z, batch.items, lengths=sides) - 0.5 * (self_cost + cost_between(z, z))
    )


# ----------------------------------------------------------------------------- input series


class _Series(NamedTuple):
    """Series (N, n, d) in float64 with 0 in the padding, their lengths (N,), and weights (N,) that sum to 1.

    ``flat`` is True if the input series have shape (n,), and ``dtype`` is their dtype.
    """

    items: Tensor
    lengths: Tensor
    weights: Tensor
    flat: bool
    dtype: torch.dtype

    @property
    def rows(self) -> list[Tensor]:
        """Each series without its padding."""
        return [x[:n] for x, n in zip(self.items, self.lengths.tolist(), strict=True)]


def _pad_series(series: Any, lengths: Any, weights: Any) -> _Series:
    if isinstance(series, Tensor):
        if series.ndim != 3:
            raise InvalidInputError(f"series must have shape (N, n, d) if it is one tensor, got {tuple(series.shape)}")
        rows = list(series)
        if lengths is not None:
            counts = _as_tensor("lengths", lengths)
            integral = not (counts.is_floating_point() or counts.dtype is torch.bool)
            if (
                not integral
                or counts.shape != (len(rows),)
                or not bool(((counts >= 1) & (counts <= series.shape[1])).all())
            ):
                raise InvalidInputError(
                    f"lengths must be {len(rows)} integers from 1 to {series.shape[1]}, got {counts.tolist()}"
                )
            rows = [row[:count] for row, count in zip(rows, counts.tolist(), strict=True)]
    elif lengths is not None:
        raise InvalidInputError(
            "lengths must be omitted for a list of series; they describe the padding of one tensor (N, n, d)"
        )
    else:
        rows = list(series)
    _check_rows(rows)
    first = rows[0].detach()
    rows = [(row.unsqueeze(1) if row.ndim == 1 else row).detach().double() for row in rows]
    counts = torch.tensor([len(row) for row in rows], device=first.device)
    w = _check_weights(weights, len(rows)).to(first.device)
    return _Series(pad_sequence(rows, batch_first=True), counts, w / w.sum(), first.ndim == 1, first.dtype)


def _check_rows(rows: list[Any]) -> None:
    if not rows:
        raise InvalidInputError("series must hold at least one series, got none")
    for i, row in enumerate(rows):
        check_floating(f"series[{i}]", row)
        if row.ndim not in (1, 2) or row.numel() == 0:
            raise InvalidInputError(f"series[{i}] must have shape (n, d) or (n,), not empty, got {tuple(row.shape)}")
        row_form, first = ((t.ndim, t.shape[1:], t.dtype, t.device) for t in (row, rows[0]))
        if row_form != first:
            raise InvalidInputError(
                f"series[{i}] must match series[0] (shape {tuple(rows[0].shape)}, {rows[0].dtype}, on "
                f"{rows[0].device}) except in length, got shape {tuple(row.shape)}, {row.dtype}, on {row.device}"
            )
        if not bool(row.detach().isfinite().all()):
            raise InvalidInputError(
                f"series[{i}] must be finite, got NaN or infinity; if these values are padding, pass lengths"
            )


def _check_weights(weights: Any, count: int) -> Tensor:
    if weights is None:
        return torch.ones(count, dtype=torch.float64, device="cpu")
    w = _as_tensor("weights", weights).double()
    if w.shape != (count,) or not bool(w.isfinite().all() and (w >= 0).all() and (w > 0).any()):
        raise InvalidInputError(f"weights must be {count} finite numbers of at least 0, not all 0, got {weights}")
    return w


def _initial_series(batch: _Series, init: Any, length: int | None) -> Tensor:
    """Return the initial series (length, d), in float64."""
    if length is not None:
        check_natural("length", length)
    if init is None:
        count = int(batch.lengths.max()) if length is None else length
        return torch.tensordot(batch.weights, torch.stack([_resample(row, count) for row in batch.rows]), 1)
    received = _as_tensor("init", init).to(batch.items)
    start = received.unsqueeze(1) if batch.flat and received.ndim == 1 else received
    if start.ndim != 2 or len(start) == 0 or start.shape[1] != batch.items.shape[2] or not bool(start.isfinite().all()):
        raise InvalidInputError(
            f"init must be a finite series of {batch.items.shape[2]} features, got shape {tuple(received.shape)}"
        )
    if length is not None and length != len(start):
        raise InvalidInputError(
            f"length must equal the length of init, {len(start)}, got {length}; omit length or init"
        )
    return start


def _as_tensor(name: str, value: Any) -> Tensor:
    try:
        # numpy reads Python numbers as float64, torch would read them as float32.
        return value.detach() if isinstance(value, Tensor) else as_tensor(np.array(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a tensor or a list of numbers, got {value!r}") from error


def _resample(series: Tensor, count: int) -> Tensor:
    """Interpolate ``series`` (n, d) linearly at ``count`` evenly spaced places from the first to the last item."""
    place = torch.linspace(0, len(series) - 1, count, dtype=series.dtype, device=series.device)
    below = place.long().clamp(max=max(len(series) - 2, 0))
    above = (below + 1).clamp(max=len(series) - 1)
    return torch.lerp(series[below], series[above], (place - below).unsqueeze(1))


def _typical_cost(start: Tensor, batch: _Series, metric: Metric) -> float:
    """Return the mean cost of a path of ``len(start)`` arbitrary cells, or 1 if it is 0 or infinite."""
    with torch.no_grad():
        cells = [pairwise_cost(start, row, metric).abs().mean() for row in batch.rows]
        cost = len(start) * float(batch.weights @ torch.stack(cells))
    return cost if 0 < cost < math.inf else 1.0


def _value_range(start: Tensor, batch: _Series) -> float:
    """Return the range (maximum − minimum) of the numbers in all series, or 1 if all numbers are equal."""
    numbers = torch.cat([start, *batch.rows])
    return float(numbers.max() - numbers.min()) or 1.0
