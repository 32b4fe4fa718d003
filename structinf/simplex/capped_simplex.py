"""The capped simplex: numbers between 0 and 1 with a given sum."""

from __future__ import annotations

from torch import Tensor

from ..autograd import CappedSimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..shapes import Float
from .along_dim import apply_along_dim, check_parameter, check_scores, per_row, value_range

__all__ = ["budget"]


@public_call(operator=OperatorSpec())
def budget(x: Tensor, k: float | Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Project scores onto the capped simplex along ``dim``: a soft choice of k things.

        argmin ‖p − x‖²  over  0 ≤ p ≤ 1 with Σ p = k

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has p = 0 and gradient 0. Half precision is computed in
        float32.
    k : float or Tensor
        The sum, between 0 and the size n of ``dim``; it need not be an integer. A tensor has no dimension, or a shape
        that broadcasts to that of x with size 1 at ``dim``, and receives a gradient.
    dim : int

    Returns
    -------
    Tensor
        Probabilities in the shape and dtype of x. They are piecewise linear in x and k, and differentiable to any
        order. In a row with no more than k scores above −inf, each of these has p = 1 and gradient 0. A row with NaN or
        +inf is NaN.

    Raises
    ------
    InvalidInputError
        If k is not between 0 and n or has another shape, or if x has no dimension ``dim``. TypeError if x is not in
        floating point.

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
    check_parameter("k", k, 0)
    size = x.shape[dim] if x.ndim else 1
    largest = (value_range(k)[1] if k.numel() else 0.0) if isinstance(k, Tensor) else k
    if largest > size:
        raise InvalidInputError(f"k must be at most {size}, the size of x along dim {dim}, got {largest:g}")
    return apply_along_dim(CappedSimplexMap(), x, dim, per_row("k", k, x, dim))
