"""Soft ranks and soft sorts: differentiable by all numbers, not only by those that are moved."""

from __future__ import annotations

import math

from torch import Tensor

from ..autograd import attach_jacobian
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..kernels.arrays import upcast_half
from ..kernels.permutahedron import projection
from ..regularizers import check_temperature
from ..shapes import Float
from ..validation import check_floating

__all__ = ["soft_rank", "soft_sort"]


@public_call(operator=OperatorSpec(), functorch=True)
def soft_rank(theta: Tensor, temperature: float = 1.0, *, dim: int = -1) -> Float[Tensor, "*shape"]:
    """The rank of each number among the n along ``dim``, 1 for the lowest and n for the highest, made smooth.

        argmin ‖θ / temperature − μ‖²  over  μ ∈ conv{all orders of (1, ..., n)}

    Parameters
    ----------
    theta : Tensor
        Floating point and finite, of at least one dimension; half precision is lifted to float32.
    temperature : float
        Above 0. Where all numbers are further apart than it, ranks are whole and their derivatives 0; the larger it is,
        the nearer all ranks are to (n + 1) / 2. Numbers that are equal have equal ranks.
    dim : int

    Returns
    -------
    Tensor
        Of θ's shape, between 1 and n, of sum n (n + 1) / 2. Piecewise linear in θ: its derivative is exact, and the
        second one 0.

    Raises
    ------
    InvalidInputError
        For NaN or infinity, a temperature that is not positive or makes θ / temperature overflow, an unknown ``dim``.

    See Also
    --------
    soft_sort : The numbers themselves in order.

    Notes
    -----
    A sort and an isotonic regression, in O(n) operations and memory for each row, in compiled loops on CPU threads;
    CUDA tensors are copied once.

    References
    ----------
    M. Blondel, O. Teboul, Q. Berthet & J. Djolonga, Fast differentiable sorting and ranking, ICML 2020, §4-5.

    Examples
    --------
    >>> import torch
    >>> theta = torch.tensor([5.0, 1.0, 2.0])
    >>> soft_rank(theta), soft_rank(theta, 2)
    (tensor([3., 1., 2.]), tensor([3.0000, 1.2500, 1.7500]))
    """
    return _project(theta, temperature, dim, is_sorting=False)


@public_call(operator=OperatorSpec(), functorch=True)
def soft_sort(
    theta: Tensor, temperature: float = 1.0, *, dim: int = -1, descending: bool = False
) -> Float[Tensor, "*shape"]:
    """The n numbers along ``dim`` in order, made smooth.

        argmin ‖(1, ..., n) / temperature − μ‖²  over  μ ∈ conv{all orders of θ}

    Parameters
    ----------
    theta, temperature, dim
        As for :func:`soft_rank`. With a large temperature all numbers are near their mean.
    descending : bool
        From the highest to the lowest.

    Returns
    -------
    Tensor
        Of θ's shape and, along ``dim``, of θ's sum. Piecewise linear in θ: its derivative is exact, the second one 0.

    Raises
    ------
    InvalidInputError
        As for :func:`soft_rank`.

    References
    ----------
    M. Blondel, O. Teboul, Q. Berthet & J. Djolonga, Fast differentiable sorting and ranking, ICML 2020.

    Examples
    --------
    >>> import torch
    >>> theta = torch.tensor([5.0, 1.0, 2.0])
    >>> soft_sort(theta, 0.1), soft_sort(theta), soft_sort(theta, descending=True)
    (tensor([1., 2., 5.]), tensor([1.6667, 2.6667, 3.6667]), tensor([3.6667, 2.6667, 1.6667]))
    """
    found = _project(theta, temperature, dim, is_sorting=True)
    return found.flip(dim) if descending else found


def _project(theta: Tensor, temperature: float, dim: int, *, is_sorting: bool) -> Tensor:
    check_temperature(temperature)
    check_floating("theta", theta)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -theta.ndim <= dim < theta.ndim:
        raise InvalidInputError(f"dim must be a dimension of theta, which has shape {tuple(theta.shape)}, got {dim!r}")
    theta = upcast_half(theta)
    if theta.numel():
        _check_range(theta, temperature, is_sorting)
    rows = theta.movedim(dim, -1)
    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    value, blocks = projection.project(flat, temperature, is_sorting=is_sorting)
    return attach_jacobian(value, flat, blocks.jvp, blocks.vjp).view(rows.shape).movedim(-1, dim)


def _check_range(theta: Tensor, temperature: float, is_sorting: bool) -> None:
    """Raise InvalidInputError for NaN, for infinity, and if what is projected, over the temperature, overflows."""
    low, high = theta.detach().aminmax()
    largest = max(high.item(), -low.item())
    if not math.isfinite(largest):
        index = tuple((~theta.isfinite()).nonzero()[0].tolist())
        raise InvalidInputError(f"theta holds {theta[index].item()} at {index}; it must be finite")
    what, size = ("the ranks", theta.numel()) if is_sorting else ("theta", largest)
    if math.isinf(max(size, 1.0) / temperature):
        raise InvalidInputError(f"temperature {temperature!r} is too small: {what} / temperature overflows")
