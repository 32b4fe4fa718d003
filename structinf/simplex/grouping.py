"""Fusedmax and oscarmax: probabilities with equal values in groups of neighbours, or in any groups."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..autograd.simplex_map import Parameter, SimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..kernels.simplex import dispatch as compiled
from ..kernels.simplex import torch_backend
from ..shapes import Float
from .along_dim import apply_along_dim, check_parameter
from .entmax_family import EntmaxMap

__all__ = ["fusedmax", "oscarmax"]


@dataclass(frozen=True)
class _GroupingMap(SimplexMap):
    """Fusedmax if ``is_contiguous``, with runs of neighbours as groups, else oscarmax. The parameter is the weight.

    The Jacobian depends only on the groups. Each group is a set of entries with equal p.
    """

    is_contiguous: bool

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        assert isinstance(parameter, float)
        return (compiled.fusedmax if self.is_contiguous else compiled.oscarmax)(x, parameter)

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        return torch_backend.group_means(p, g, self.is_contiguous), None

    def compiled_vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        kernels = compiled if p.is_cpu else torch_backend
        return kernels.group_means(p, g, self.is_contiguous), None


def _apply(is_contiguous: bool, x: Tensor, weight: float, dim: int) -> Tensor:
    if isinstance(weight, Tensor) and (weight.numel() != 1 or weight.requires_grad):
        received = f"a tensor of shape {tuple(weight.shape)}" if weight.numel() != 1 else "a tensor that requires grad"
        raise InvalidInputError(
            f"weight must be one number for all rows, without a gradient, got {received}; call the map once for each "
            "weight, with float(weight)"
        )
    check_parameter("weight", weight, 0)
    if not weight:
        return apply_along_dim(EntmaxMap(), x, dim, 2.0)
    return apply_along_dim(_GroupingMap(is_contiguous), x, dim, float(weight))


@public_call(operator=OperatorSpec())
def fusedmax(x: Tensor, weight: float = 0.1, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Return sparse probabilities along ``dim`` with equal values in runs of neighbours.

        argmin ½ ‖p − x‖² + weight Σ |p_{i+1} − p_i|  over probabilities p

    Parameters
    ----------
    x : Tensor
        Floating-point scores of any shape. An entry of −inf, such as padding, has probability 0 and gradient 0. The sum
        over neighbours omits entries of −inf, so padding does not change the result. Half-precision input is computed
        in float32.
    weight : float
        At least 0, default 0.1. Weight 0 gives :func:`sparsemax`, and larger weights give longer runs.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Returns
    -------
    Tensor
        Probabilities with sum 1 along ``dim``, in the shape and dtype of x. The probabilities are piecewise linear in
        x: the gradient is exact, and second derivatives are 0. A row of −inf gives 0 with gradient 0. A row with NaN
        or +inf gives NaN.

    Raises
    ------
    InvalidInputError
        If the weight is negative, or if x has no dimension ``dim``.
    TypeError
        If x is not a floating-point tensor.

    Notes
    -----
    Compiled loops run the taut-string algorithm, in O(n) operations for each row, and then sparsemax. CUDA tensors are
    copied to the CPU and back. In the backward pass, each entry of the support receives the mean of the incoming
    gradient over its run, minus the mean over the support.

    References
    ----------
    V. Niculae & M. Blondel, A regularized framework for sparse and structured neural attention, NIPS 2017.
    P. L. Davies & A. Kovac, Local extremes, runs, strings and multiresolution, Annals of Statistics 29, 2001.

    Examples
    --------
    >>> import torch
    >>> # sparsemax: 0, 0.3, 0.4, 0.3, 0, 0
    >>> fusedmax(torch.tensor([0.0, 0.6, 0.7, 0.6, 0.0, 0.2]))
    tensor([0.0000, 0.3333, 0.3333, 0.3333, 0.0000, 0.0000])
    """
    return _apply(True, x, weight, dim)


@public_call(operator=OperatorSpec())
def oscarmax(x: Tensor, weight: float = 0.1, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Return sparse probabilities along ``dim`` with equal values in groups of arbitrary entries.

        argmin ½ ‖p − x‖² + weight Σ_{i<j} max(p_i, p_j)  over probabilities p

    Parameters
    ----------
    x : Tensor
        Floating-point scores of any shape. An entry of −inf, such as padding, has probability 0 and gradient 0. The sum
        over pairs omits entries of −inf. Half-precision input is computed in float32.
    weight : float
        At least 0, default 0.1. Weight 0 gives :func:`sparsemax`, and larger weights give larger groups.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Returns
    -------
    Tensor
        Probabilities with the properties of :func:`fusedmax`.

    Raises
    ------
    InvalidInputError
        If the weight is negative, or if x has no dimension ``dim``.
    TypeError
        If x is not a floating-point tensor.

    Notes
    -----
    Compiled loops sort the scores, run an isotonic regression and then sparsemax. CUDA tensors are copied to the CPU
    and back. The result is the exact minimum, and adding a number to all x does not change the result. The paper
    instead composes sparsemax with OSCAR's proximal operator, which sorts |x| and shrinks negative scores towards 0.
    The composition is the exact minimum only for large enough x.

    References
    ----------
    V. Niculae & M. Blondel, A regularized framework for sparse and structured neural attention, NIPS 2017.
    X. Zeng & M. Figueiredo, The ordered weighted ℓ₁ norm: atomic formulation, projections, and algorithms, 2014.

    Examples
    --------
    >>> import torch
    >>> # sparsemax: 0.5333, 0.0333, 0.4333, 0
    >>> oscarmax(torch.tensor([0.5, 0.0, 0.4, -0.5]))
    tensor([0.4333, 0.1333, 0.4333, 0.0000])
    """
    return _apply(False, x, weight, dim)
