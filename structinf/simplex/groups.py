"""Fusedmax and oscarmax, whose probabilities are equal in groups: of neighbours, or of any."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..autograd.simplex import SimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..kernels.simplex import groups
from ..shapes import Float
from .forms import AlongDim, apply_along, check_parameter
from .tsallis import TsallisMap

__all__ = ["Fusedmax", "Oscarmax", "fusedmax", "oscarmax"]


@dataclass(frozen=True)
class _GroupedMap(SimplexMap):
    """Either one. The groups are those of equal p, which is enough."""

    weight: float
    is_chain: bool

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        return (groups.fusedmax if self.is_chain else groups.oscarmax)(x, self.weight)

    def pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        means = groups.group_means if p.is_cpu else groups.differentiable_group_means
        return means(p, g, self.is_chain), None

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        return groups.differentiable_group_means(p, g, self.is_chain), None


@public_call(operator=OperatorSpec())
def fusedmax(x: Tensor, weight: float = 0.1, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Sparse probabilities that are equal over runs of neighbours, along ``dim``.

        argmin ½ ‖p − x‖² + weight Σ |p_{i+1} − p_i|  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf, such as padding, has probability 0 and gradient 0, and
        is no neighbour: the terms of the sum that it is in are left out, so that padding changes nothing. Half
        precision is computed in float32.
    weight : float
        At least 0. With 0 it is :func:`sparsemax`; the larger it is, the longer the runs are.
    dim : int

    Returns
    -------
    Tensor
        Of the shape and dtype of x: probabilities of sum 1 along ``dim``. Piecewise linear in x: its derivative is
        exact, and the second one 0. Where all scores are −inf, 0 with gradient 0; where one is NaN or +inf, NaN.

    Raises
    ------
    InvalidInputError
        For a negative weight, or an unknown ``dim``. TypeError if x is not in floating point.

    Notes
    -----
    The taut string in compiled loops, in O(n) operations for each row, then sparsemax; CUDA tensors are copied once.
    The derivative is a mean over each run, less the mean over all probabilities above 0.

    References
    ----------
    V. Niculae & M. Blondel, A regularized framework for sparse and structured neural attention, NIPS 2017.
    P. L. Davies & A. Kovac, Local extremes, runs, strings and multiresolution, Annals of Statistics 29, 2001.

    Examples
    --------
    >>> import torch
    >>> fusedmax(torch.tensor([0.0, 0.6, 0.7, 0.6, 0.0, 0.2]))  # sparsemax: 0, 0.3, 0.4, 0.3, 0, 0
    tensor([0.0000, 0.3333, 0.3333, 0.3333, 0.0000, 0.0000])
    """
    check_parameter("weight", weight, 0)
    return apply_along(_GroupedMap(float(weight), True) if weight else TsallisMap(2.0), x, dim)


@public_call(operator=OperatorSpec())
def oscarmax(x: Tensor, weight: float = 0.1, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Sparse probabilities that are equal within groups, wherever along ``dim`` these are.

        argmin ½ ‖p − x‖² + weight Σ_{i<j} max(p_i, p_j)  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf, such as padding, has probability 0 and gradient 0, and
        is in no pair. Half precision is computed in float32.
    weight : float
        At least 0. With 0 it is :func:`sparsemax`; the larger it is, the larger the groups are.
    dim : int

    Returns
    -------
    Tensor
        As from :func:`fusedmax`.

    Raises
    ------
    InvalidInputError
        As for :func:`fusedmax`.

    Notes
    -----
    A sort and an isotonic regression in compiled loops, then sparsemax; CUDA tensors are copied once. This is the
    minimum itself, which stays the same when a number is added to all x. OSCAR's proximal operator for numbers of any
    sign, which sorts |x|, followed by sparsemax, as the paper has it, is equal to it where the x are large enough, and
    else may miss the minimum: it draws towards 0 what sparsemax only moves along with all the others.

    References
    ----------
    V. Niculae & M. Blondel, A regularized framework for sparse and structured neural attention, NIPS 2017.
    X. Zeng & M. Figueiredo, The ordered weighted ℓ₁ norm: atomic formulation, projections, and algorithms, 2014.

    Examples
    --------
    >>> import torch
    >>> oscarmax(torch.tensor([0.5, 0.0, 0.4, -0.5]))  # sparsemax: 0.5333, 0.0333, 0.4333, 0
    tensor([0.4333, 0.1333, 0.4333, 0.0000])
    """
    check_parameter("weight", weight, 0)
    return apply_along(_GroupedMap(float(weight), False) if weight else TsallisMap(2.0), x, dim)


class Fusedmax(AlongDim):
    """:func:`fusedmax` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    weight : float
    dim : int

    Examples
    --------
    >>> import torch
    >>> Fusedmax(weight=0.1)(torch.tensor([0.0, 0.6, 0.7, 0.6, 0.0, 0.2]))
    tensor([0.0000, 0.3333, 0.3333, 0.3333, 0.0000, 0.0000])
    """

    map = staticmethod(fusedmax)

    def __init__(self, weight: float = 0.1, dim: int = -1) -> None:
        check_parameter("weight", weight, 0)
        super().__init__(dim, weight=weight)


class Oscarmax(AlongDim):
    """:func:`oscarmax` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    weight : float
    dim : int

    Examples
    --------
    >>> import torch
    >>> Oscarmax(weight=0.1)(torch.tensor([0.5, 0.0, 0.4, -0.5]))
    tensor([0.4333, 0.1333, 0.4333, 0.0000])
    """

    map = staticmethod(oscarmax)

    def __init__(self, weight: float = 0.1, dim: int = -1) -> None:
        check_parameter("weight", weight, 0)
        super().__init__(dim, weight=weight)
