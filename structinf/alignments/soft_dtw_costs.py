"""Soft-DTW: the smoothed cost of aligning the items of two series, and the alignments behind it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..calls.problem import Problem, blame_argument, broadcasts
from ..calls.resolution import get_oracle, get_relaxation
from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..regularizers import Regularizer, Unregularized, check_temperature, get_regularizer
from ..relaxations.smoothed import Smoothed
from ..shapes import Float, Int
from ..validation import check_floating

__all__ = ["alignment_matrix", "alignment_path", "check_band", "resolve_regularizer", "soft_dtw"]


@public_call(functorch=True)
def soft_dtw(
    cost: Tensor,
    temperature: float | None = None,
    *,
    regularizer: str | Regularizer = "negentropy",
    band: int | Tensor | None = None,
    lengths: Any = None,
) -> Float[Tensor, "*batch"]:
    """The least cost of an alignment, smoothed: −γ log Σ exp(−cost(A) / γ) over alignments A, for the negative entropy.

    An alignment is a path of cells from (0, 0) to (n − 1, m − 1) by steps down, right or diagonally down right, and
    costs what its cells cost. Every minimum in the recursion over cells is smoothed by the regularizer Ω; the
    gradient is the expected alignment, :func:`alignment_matrix`.

    Parameters
    ----------
    cost : (..., n, m) Tensor
        Of matching item i with item j, as from :func:`structinf.pairwise_cost`; +inf forbids it. Less is better, unlike
        with potentials, which everything else here takes.
    temperature : float, optional
        γ, multiplies Ω. The regularizer's own (1) by default; 0 is hard DTW, whose subgradient is the best path.
    regularizer : str or Regularizer
        "negentropy" has dense expected alignments, "squared_l2" and "tsallis" sparse ones; "none" is hard DTW.
    band : int or (...) integer Tensor, optional
        Only cells with |i − j| ≤ band are used (Sakoe & Chiba's): a number of cells, for all or instance by instance,
        of |n − m| at least.
    lengths : (..., 2) integers, optional
        Rows and columns in use, each instance's; what lies outside is not read.

    Returns
    -------
    Tensor
        (...), in the dtype of the cost. At most the hard cost, and often negative: there are many alignments. It is
        differentiable twice, by compiled passes on the CPU.

    Raises
    ------
    InvalidInputError
        For NaN or −inf in use, lengths out of range, a band that cannot reach the last cell, a negative temperature.
    InfeasibleError
        If an instance has no alignment of finite cost.

    Notes
    -----
    Ω is 0 where a choice is certain; Mensch & Blondel's squared norm lacks the −½ that makes it so.

    References
    ----------
    M. Cuturi & M. Blondel, Soft-DTW: a differentiable loss function for time-series, ICML 2017, §2.
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §4.2.

    Examples
    --------
    >>> cost = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
    >>> soft_dtw(cost), soft_dtw(cost, 0.5), soft_dtw(cost, temperature=0)
    (tensor(-1.1904), tensor(-0.2508), tensor(0.))
    """
    problem, smoothed = _prepare(cost, temperature, regularizer, band, lengths)
    with problem.plain_modes():
        value = smoothed.conjugate(problem.oracle, problem.theta)
    return problem.restore(0 - value)  # a cost of 0, not of −0


@public_call
def alignment_matrix(
    cost: Tensor,
    temperature: float | None = None,
    *,
    regularizer: str | Regularizer = "negentropy",
    band: int | Tensor | None = None,
    lengths: Any = None,
) -> Float[Tensor, "*batch n m"]:
    """The expected alignment: how probable it is that item i is matched with item j; the gradient of :func:`soft_dtw`.

    Parameters
    ----------
    cost, temperature, regularizer, band, lengths
        As for :func:`soft_dtw`; with temperature 0 it is the best path, whose own gradient is 0.

    Returns
    -------
    Tensor
        (..., n, m), between 0 and 1; 0 outside the band and the lengths. Differentiable.

    Examples
    --------
    >>> cost = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
    >>> alignment_matrix(cost)
    tensor([[1.0000e+00, 2.3609e-01, 7.5377e-04],
            [2.3609e-01, 9.1618e-01, 2.3609e-01],
            [7.5377e-04, 2.3609e-01, 1.0000e+00]])
    >>> alignment_matrix(cost, 2, regularizer="squared_l2")
    tensor([[1.0000, 0.1918, 0.0000],
            [0.1918, 0.9245, 0.1811],
            [0.0000, 0.1811, 1.0000]])
    """
    problem, smoothed = _prepare(cost, temperature, regularizer, band, lengths)
    with problem.plain_modes():
        mean = smoothed.mean(problem.oracle, problem.theta)
    return cast(Tensor, problem.restore_parts(mean))


@public_call
def alignment_path(
    cost: Tensor, *, band: int | Tensor | None = None, lengths: Any = None
) -> Int[Tensor, "*batch steps 2"]:
    """The alignment of least cost, as a list of its cells; where several cost the same, diagonal steps come first.

    Parameters
    ----------
    cost, band, lengths
        As for :func:`soft_dtw`.

    Returns
    -------
    Tensor
        (..., n + m − 1, 2) integers: row and column of each cell in order, padded with −1.

    Examples
    --------
    >>> alignment_path(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]))
    tensor([[ 0,  0],
            [ 1,  0],
            [ 2,  1],
            [-1, -1]])
    """
    problem = _bind_band_and_lengths(cost, band, lengths)
    with problem.plain_modes(), torch.no_grad():
        labels = problem.oracle.decode(problem.oracle.argmax(problem.theta))
    return problem.restore(labels)


def resolve_regularizer(temperature: float | None, regularizer: str | Regularizer) -> Regularizer:
    """The regularizer with this temperature; none at all at 0."""
    if temperature is not None:
        check_temperature(temperature, allow_zero=True)
    found = get_regularizer(regularizer, temperature or None)
    return Unregularized() if temperature == 0 else found


def check_band(band: int | Tensor | None) -> int | Tensor | None:
    """``band``; InvalidInputError if it is neither None, nor a number of cells, nor a tensor of them."""
    if not isinstance(band, Tensor):
        get_oracle("dtw", band=band)
    return band


def _prepare(
    cost: Tensor, temperature: float | None, regularizer: str | Regularizer, band: Any, lengths: Any
) -> tuple[Problem, Smoothed]:
    smoothed = get_relaxation("smoothed", regularizer=resolve_regularizer(temperature, regularizer))
    return _bind_band_and_lengths(cost, band, lengths), cast(Smoothed, smoothed)


def _bind_band_and_lengths(cost: Tensor, band: Any, lengths: Any) -> Problem:
    check_floating("cost", cost)
    if lengths is not None:
        _check_lengths(lengths, cost)
    try:
        with blame_argument("cost", but="theta holds"):
            return Problem.build(-cost, get_oracle("dtw"), {"band": band, "lengths": lengths})
    except InvalidInputError as error:
        hint = " (theta is minus the cost)" if "theta" in str(error) else ""
        raise InvalidInputError(f"{error}{hint}") from None


def _check_lengths(lengths: Any, cost: Tensor) -> None:
    """InvalidInputError if ``lengths`` have a shape that no rows and columns of ``cost`` have."""
    try:
        shape = torch.as_tensor(lengths).shape
    except (TypeError, ValueError, RuntimeError):
        return  # which is refused as with any other instance data
    batch = cost.shape[:-2]
    if shape[-1:] != (2,) or len(shape) != len(batch) + 1 or not broadcasts(shape[:-1], batch):
        raise InvalidInputError(
            f"lengths: rows and columns in use, {(*batch, 2)} for a cost of shape {tuple(cost.shape)}, are needed; "
            f"got shape {tuple(shape)}"
        )
