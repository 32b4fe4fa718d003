"""The capped simplex, of numbers between 0 and 1 with a given sum."""

from __future__ import annotations

from torch import Tensor

from ..autograd import CappedSimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..shapes import Float
from .forms import AlongDim, apply_along, check_parameter, check_scores, extent, row_parameter

__all__ = ["Budget", "budget"]


_CAPPED = CappedSimplexMap()


@public_call(operator=OperatorSpec())
def budget(x: Tensor, k: float | Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """The nearest point of the capped simplex along ``dim``: a soft choice of k things.

        argmin ‖p − x‖²  over  0 ≤ p ≤ 1 with Σ p = k

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has p = 0 and gradient 0; half precision is computed in
        float32.
    k : float or Tensor
        The sum, between 0 and the size n of ``dim``; not only whole numbers. A tensor of no dimension, or of a shape
        that broadcasts to that of x with 1 at ``dim``, has a gradient of its own.
    dim : int

    Returns
    -------
    Tensor
        Of the shape and dtype of x, piecewise linear in x and k, differentiable to any order. A row with no more than k
        scores above −inf has 1 there, and gradient 0; a row with NaN or +inf is NaN.

    Raises
    ------
    InvalidInputError
        If k is not between 0 and n, or is of another shape; for an unknown ``dim``. TypeError if x is not in floating
        point.

    See Also
    --------
    sparsemax : The same for k = 1, where no p exceeds 1 anyway.

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
    largest = (extent(k)[1] if k.numel() else 0.0) if isinstance(k, Tensor) else k
    if largest > size:
        raise InvalidInputError(f"k must be at most {size}, the size of x along dim {dim}, got {largest:g}")
    if isinstance(k, Tensor):
        return apply_along(_CAPPED, x, dim, row_parameter("k", k, x, dim))
    return apply_along(CappedSimplexMap(float(k)), x, dim)


class Budget(AlongDim):
    """:func:`budget` as a module.

    Parameters
    ----------
    k : float
    dim : int

    Examples
    --------
    >>> import torch
    >>> Budget(k=2)(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    tensor([0.0000, 0.1250, 0.3750, 0.6250, 0.8750])
    """

    map = staticmethod(budget)

    def __init__(self, k: float, dim: int = -1) -> None:
        check_parameter("k", k, 0)
        super().__init__(dim, k=k)
