"""Differentiable ranking and sorting."""

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
from ..validation import check_flag, check_floating

__all__ = ["soft_rank", "soft_sort"]


@public_call(operator=OperatorSpec(), functorch=True)
def soft_rank(theta: Tensor, temperature: float = 1.0, *, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Return the soft rank of each of the n numbers along ``dim``, from 1 for the lowest to n for the highest.

        argmin ‖θ / temperature − μ‖²  over  μ ∈ conv{permutations of (1, ..., n)}

    Parameters
    ----------
    theta : Tensor
        Finite floating-point numbers, with at least one dimension. Half-precision input is converted to float32, also
        in the result.
    temperature : float
        Above 0, default 1. If all numbers are further apart than the temperature, the ranks are integers with gradient
        0. At high temperatures, all ranks approach (n + 1) / 2. Equal numbers have equal ranks.
    dim : int
        The dimension of the n numbers, by default the last.

    Returns
    -------
    Tensor
        Ranks from 1 to n with sum n (n + 1) / 2, in the shape of θ. The ranks are piecewise linear in θ: the gradient
        is exact, and second derivatives are 0.

    Raises
    ------
    InvalidInputError
        If θ has NaN or infinity or has no dimension ``dim``, or if the temperature is not positive or makes
        θ / temperature overflow.

    See Also
    --------
    soft_sort : The numbers, softly sorted.

    Notes
    -----
    Compiled loops on CPU threads sort each row and run an isotonic regression, in O(n) operations and memory. CUDA
    tensors are copied to the CPU and back.

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
    """Sort the n numbers along ``dim`` softly, in ascending order.

        argmin ‖(1, ..., n) / temperature − μ‖²  over  μ ∈ conv{permutations of θ}

    Parameters
    ----------
    theta : Tensor
        Finite floating-point numbers, with at least one dimension. Half-precision input is converted to float32, also
        in the result.
    temperature : float
        Above 0, default 1. At high temperatures, all results approach the mean of the numbers.
    dim : int
        The dimension to sort along, by default the last.
    descending : bool
        Whether to sort from the highest to the lowest, default False.

    Returns
    -------
    Tensor
        Softly sorted numbers in the shape of θ, with the same sum along ``dim``. The result is piecewise linear in θ:
        the gradient is exact, and second derivatives are 0.

    Raises
    ------
    InvalidInputError
        If :func:`soft_rank` raises for the same θ and ``dim``, or the temperature is not positive or makes
        n / temperature overflow.

    References
    ----------
    M. Blondel, O. Teboul, Q. Berthet & J. Djolonga, Fast differentiable sorting and ranking, ICML 2020.

    Examples
    --------
    >>> import torch
    >>> theta = torch.tensor([5.0, 1.0, 2.0])
    >>> soft_sort(theta, 0.1), soft_sort(theta)
    (tensor([1., 2., 5.]), tensor([1.6667, 2.6667, 3.6667]))
    >>> soft_sort(theta, descending=True)
    tensor([3.6667, 2.6667, 1.6667])
    """
    check_flag("descending", descending)
    ascending = _project(theta, temperature, dim, is_sorting=True)
    return ascending.flip(dim) if descending else ascending


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
    value, jacobian = projection.project(flat, temperature, is_sorting=is_sorting)
    return attach_jacobian(value, flat, jacobian.jvp, jacobian.vjp).view(rows.shape).movedim(-1, dim)


def _check_range(theta: Tensor, temperature: float, is_sorting: bool) -> None:
    """Raise InvalidInputError for NaN or infinity, and if the projected point divided by the temperature overflows."""
    low, high = theta.detach().aminmax()
    largest = max(high.item(), -low.item())
    if not math.isfinite(largest):
        index = tuple((~theta.isfinite()).nonzero()[0].tolist())
        raise InvalidInputError(f"theta holds {theta[index].item()} at {index}; it must be finite")
    what, size = ("the ranks", theta.numel()) if is_sorting else ("theta", largest)
    if math.isinf(max(size, 1.0) / temperature):
        raise InvalidInputError(f"temperature {temperature!r} is too small: {what} / temperature overflows")
