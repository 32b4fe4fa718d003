"""Projection onto the capped simplex: numbers from 0 to 1 with a given sum."""

from __future__ import annotations

from torch import Tensor

from ..autograd import CappedSimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..shapes import Float
from .along_dim import (
    RowParameter,
    apply_along_dim,
    check_parameter,
    check_scores,
    per_row,
    read_parameter,
    value_range,
)

__all__ = ["budget"]


@public_call(operator=OperatorSpec())
def budget(x: Tensor, k: RowParameter, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Project scores onto the capped simplex along ``dim``, a soft choice of k entries.

        argmin ‖p − x‖²  over  0 ≤ p ≤ 1 with Σ p = k

    Parameters
    ----------
    x : Tensor
        Floating-point scores of any shape. An entry of −inf has p = 0 and gradient 0. Half-precision input is computed
        in float32.
    k : float, Tensor, or nested list of float
        The sum, a real number from 0 to the size n of ``dim``. A tensor or list is a scalar, or broadcasts to the shape
        of x with size 1 at ``dim``. A tensor receives a gradient.
    dim : int
        The dimension along which the result sums to k, by default the last.

    Returns
    -------
    Tensor
        Numbers from 0 to 1 in the shape and dtype of x. The result is piecewise linear in x and k, and differentiable
        to any order. In a row with at most k scores above −inf, these scores have p = 1 and gradient 0. A row with NaN
        or +inf gives NaN.

    Raises
    ------
    InvalidInputError
        If k is not between 0 and n or has the wrong shape, or if x has no dimension ``dim``.
    TypeError
        If x is not a floating-point tensor.

    See Also
    --------
    sparsemax : The same map for k = 1.

    References
    ----------
    P. Brucker, An O(n) algorithm for quadratic knapsack problems, Operations Research Letters 3, 1984.
    C. Malaviya, P. Ferreira & A. Martins, Sparse and constrained attention for neural machine translation, ACL 2018.

    Examples
    --------
    >>> import torch
    >>> budget(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), 2)
    tensor([0.0000, 0.1250, 0.3750, 0.6250, 0.8750])
    """
    check_scores(x, dim)
    k = read_parameter("k", k)
    check_parameter("k", k, 0)
    size = x.shape[dim] if x.ndim else 1
    largest = (value_range(k)[1] if k.numel() else 0.0) if isinstance(k, Tensor) else k
    if largest > size:
        raise InvalidInputError(f"k must be at most {size}, the size of x along dim {dim}, got {largest:g}")
    return apply_along_dim(CappedSimplexMap(), x, dim, per_row("k", k, x, dim))
