"""Soft-DTW of a matrix of costs, with expected and best alignments."""

from __future__ import annotations

from numbers import Integral
from typing import Any, cast

import torch
from torch import Tensor

from ..calls.arguments import blame_argument, broadcasts
from ..calls.problem import Problem
from ..calls.resolution import get_oracle, get_relaxation
from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from ..regularizers import Regularizer, Unregularized, check_temperature, get_regularizer
from ..relaxations.smoothed import Smoothed
from ..shapes import Float, Int
from ..solution import PADDING
from ..solvers.argmax import best_structure
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
    """Return the smoothed minimum cost of an alignment.

    An alignment A is a path of cells from (0, 0) to (n − 1, m − 1) with steps down, right or diagonally down right. Its
    cost is the sum of the costs of its cells. The regularizer Ω smooths every minimum in the recursion over cells. With
    the negative entropy, the result is −γ log Σ_A exp(−cost(A) / γ). The gradient is the expected alignment,
    :func:`alignment_matrix`.

    Parameters
    ----------
    cost : (..., n, m) Tensor
        Costs of matching item i with item j, for example from :func:`structinf.pairwise_cost`; +inf forbids a match.
        Lower costs are better; in the rest of the library, higher scores are better.
    temperature : float, optional
        γ, the factor of Ω, at least 0. The default is the temperature of the regularizer, 1 for a name. 0 gives hard
        DTW, with the best path as subgradient.
    regularizer : str or Regularizer
        "negentropy" (the default) gives dense expected alignments, "squared_l2" and "tsallis" give sparse expected
        alignments, and "none" is hard DTW. See :mod:`structinf.regularizers`.
    band : int or (...) integer Tensor, optional
        Allow only cells with |i − j| ≤ band (Sakoe & Chiba), with a band of at least |n − m|. An integer holds for
        all instances, a tensor has one band per instance.
    lengths : (..., 2) integers, optional
        Numbers of rows and columns in use, per instance. Cells in the padding are not read.

    Returns
    -------
    Tensor
        The smoothed cost of each instance, (...), in the dtype of ``cost``. The result is at most the hard cost, and
        can be negative. It is differentiable twice, with compiled loops on the CPU.

    Raises
    ------
    InvalidInputError
        If a cell in use has NaN or −inf, lengths are out of range, a band excludes the last cell, or the temperature
        is negative.
    InfeasibleError
        If an instance has no alignment of finite cost.

    Notes
    -----
    Ω is 0 at one-hot vectors, so "squared_l2" is ½‖q‖² − ½. Mensch & Blondel use ½‖q‖² without the constant.

    References
    ----------
    M. Cuturi & M. Blondel, Soft-DTW: a differentiable loss function for time-series, ICML 2017, §2.
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §4.2.

    Examples
    --------
    >>> row = torch.tensor([0.0, 1.0, 2.0])
    >>> cost = (row.unsqueeze(1) - row).square()
    >>> soft_dtw(cost), soft_dtw(cost, 0.5), soft_dtw(cost, temperature=0)
    (tensor(-1.1904), tensor(-0.2508), tensor(0.))
    """
    problem, smoothed = _prepare(cost, temperature, regularizer, band, lengths)
    with problem.numbering(), _NamedCost(), problem.plain_modes(defers_checks=True):
        value = smoothed.conjugate(problem.oracle, problem.theta)
    return problem.restore(0 - value)  # `-value` would return −0 for a cost of 0


@public_call
def alignment_matrix(
    cost: Tensor,
    temperature: float | None = None,
    *,
    regularizer: str | Regularizer = "negentropy",
    band: int | Tensor | None = None,
    lengths: Any = None,
) -> Float[Tensor, "*batch n m"]:
    """Return the expected alignment, the gradient of :func:`soft_dtw`: the probability of matching item i with item j.

    Parameters
    ----------
    cost : (..., n, m) Tensor
        Costs of matching item i with item j, as for :func:`soft_dtw`.
    temperature : float, optional
        γ, as for :func:`soft_dtw`. At 0, the result is the best path, with gradient 0.
    regularizer : str or Regularizer
        Ω, as for :func:`soft_dtw`.
    band : int or (...) integer Tensor, optional
        Largest |i − j| of allowed cells, as for :func:`soft_dtw`.
    lengths : (..., 2) integers, optional
        Numbers of rows and columns in use, per instance.

    Returns
    -------
    Tensor
        The expected alignment, (..., n, m), with entries from 0 to 1, and 0 outside the band and in the padding. It is
        differentiable.

    Examples
    --------
    >>> row = torch.tensor([0.0, 1.0, 2.0])
    >>> cost = (row.unsqueeze(1) - row).square()
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
    with problem.numbering(), _NamedCost(), problem.plain_modes(defers_checks=True):
        mean = smoothed.mean(problem.oracle, problem.theta)
    return cast(Tensor, problem.restore_parts(mean))


@public_call
def alignment_path(
    cost: Tensor, *, band: int | Tensor | None = None, lengths: Any = None
) -> Int[Tensor, "*batch steps 2"]:
    """Return the cells of the alignment of minimum cost; ties go to diagonal steps.

    Parameters
    ----------
    cost : (..., n, m) Tensor
        Costs of matching item i with item j, as for :func:`soft_dtw`.
    band : int or (...) integer Tensor, optional
        Largest |i − j| of allowed cells, as for :func:`soft_dtw`.
    lengths : (..., 2) integers, optional
        Numbers of rows and columns in use, per instance.

    Returns
    -------
    Tensor
        Row and column of each cell in order, (..., n + m − 1, 2) integers, padded with −1.

    Examples
    --------
    >>> alignment_path(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]))
    tensor([[ 0,  0],
            [ 1,  0],
            [ 2,  1],
            [-1, -1]])
    """
    problem = _bind_band_and_lengths(cost, band, lengths)
    with problem.numbering(), _NamedCost(), problem.plain_modes(defers_checks=True), torch.no_grad():
        labels = problem.oracle.decode(best_structure(problem.oracle, problem.theta))
    return problem.restore(labels, fill=PADDING)


def resolve_regularizer(temperature: float | None, regularizer: str | Regularizer) -> Regularizer:
    """Return the regularizer with this temperature, or no regularizer (`Unregularized`) for a temperature of 0."""
    if temperature is not None:
        check_temperature(temperature, allow_zero=True)
    found = get_regularizer(regularizer, temperature or None)
    return Unregularized() if temperature == 0 else found


def check_band(band: int | Tensor | None) -> int | Tensor | None:
    """Return ``band``; raise InvalidInputError unless it is None, a valid number of cells, or a tensor."""
    if not isinstance(band, Tensor):
        get_oracle("dtw", band=band)
    return band


def _prepare(
    cost: Tensor, temperature: float | None, regularizer: str | Regularizer, band: Any, lengths: Any
) -> tuple[Problem, Smoothed]:
    if isinstance(temperature, Tensor) and temperature.ndim:
        raise InvalidInputError(
            f"temperature must be one number, got a tensor of shape {tuple(temperature.shape)}; the first argument is "
            "the matrix of costs: for two series, pass structinf.pairwise_cost(x, y)"
        )
    smoothed = get_relaxation("smoothed", regularizer=resolve_regularizer(temperature, regularizer))
    return _bind_band_and_lengths(cost, band, lengths), cast(Smoothed, smoothed)


def _bind_band_and_lengths(cost: Tensor, band: Any, lengths: Any) -> Problem:
    check_floating("cost", cost)
    if lengths is not None:
        _check_lengths(lengths, cost)
    # An integer is an option of the oracle: a call would copy instance data to a GPU.
    is_option = isinstance(band, Integral) and not isinstance(band, bool) and int(band) >= 0
    oracle = get_oracle("dtw", band=int(band)) if is_option else get_oracle("dtw")
    with _NamedCost(), blame_argument("cost", but="theta holds"):
        return Problem.build(-cost, oracle, {"band": None if is_option else band, "lengths": lengths})


class _NamedCost:
    """A context that adds to errors about values of θ that θ is minus the cost."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, InvalidInputError) and str(error).startswith("theta holds"):
            raise InvalidInputError(f"{error} (theta is minus the cost)") from None


def _check_lengths(lengths: Any, cost: Tensor) -> None:
    """Raise InvalidInputError if the shape of ``lengths`` does not match the batch shape of ``cost``."""
    try:
        shape = as_tensor(lengths).shape
    except (TypeError, ValueError, RuntimeError):
        return  # `Problem.build` raises the error
    batch = cost.shape[:-2]
    if shape[-1:] != (2,) or len(shape) != len(batch) + 1 or not broadcasts(shape[:-1], batch):
        raise InvalidInputError(
            f"lengths must have shape {(*batch, 2)}, the rows and columns in use, for a cost of shape "
            f"{tuple(cost.shape)}; got shape {tuple(shape)}"
        )
