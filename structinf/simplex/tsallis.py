"""α-entmax, which Tsallis' entropies generate: softmax (α = 1), entmax 1.5, sparsemax (α = 2) and all beyond."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..autograd.simplex import SimplexMap, fixed_or_given
from ..compile.public_call import OperatorSpec, public_call
from ..errors import InvalidInputError
from ..kernels.simplex import dispatch as compiled
from ..kernels.simplex import torch_backend
from ..shapes import Float
from .forms import AlongDim, apply_along, check_parameter, row_parameter

__all__ = ["Entmax", "Entmax15", "Softmax", "Sparsemax", "TsallisMap", "entmax", "entmax15", "softmax", "sparsemax"]


@dataclass(frozen=True)
class TsallisMap(SimplexMap):
    """α-entmax, whose parameter is α where ``alpha`` is None."""

    alpha: float | None = None

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        if self.alpha == 1:
            return _softmax(x)
        return (compiled if x.is_cpu else torch_backend).entmax(x, fixed_or_given(self.alpha, parameter))

    def pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not p.is_cpu:
            return self.differentiable_vjp(p, parameter, g, with_parameter_grad)
        product, slope = compiled.pull_back(
            p, g, fixed_or_given(self.alpha, parameter), with_parameter_grad=with_parameter_grad
        )
        return product, slope if slope is None or parameter is None else slope.to(parameter.dtype)

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        alpha = fixed_or_given(self.alpha, parameter)
        product = torch_backend.entmax_vjp(p, g, alpha)
        slope = torch_backend.entmax_alpha_vjp(p, g, alpha) if with_parameter_grad else None
        return product, slope


def _softmax(x: Tensor) -> Tensor:
    """Softmax, with 0 where all are −inf."""
    p = torch.softmax(x, -1)
    # A row of NaN comes of NaN, of +inf, or of −inf alone; to look for one costs little, but would make GPUs wait.
    if x.is_cpu and not (x.numel() and bool(p[..., 0].isnan().any())):
        return p
    return p.masked_fill(torch_backend.max_score(x).isneginf(), 0.0)


_SOFTMAX, _ENTMAX15, _SPARSEMAX, _ENTMAX = TsallisMap(1.0), TsallisMap(1.5), TsallisMap(2.0), TsallisMap()


@public_call(operator=OperatorSpec())
def softmax(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Softmax along ``dim``: torch.softmax, but 0 with gradient 0 in a row of −inf alone.

        argmax ⟨p, x⟩ − Σ p log p  over probabilities p

    Parameters
    ----------
    x, dim
        As for :func:`entmax`.

    Returns
    -------
    Tensor
        As from :func:`entmax`.

    References
    ----------
    J. S. Bridle, Probabilistic interpretation of feedforward classification network outputs, with relationships to
    statistical pattern recognition, Neurocomputing, 1990.

    Examples
    --------
    >>> import torch
    >>> softmax(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]))
    tensor([[0.2689, 0.7311],
            [0.0000, 0.0000]])
    """
    return apply_along(_SOFTMAX, x, dim)


@public_call(operator=OperatorSpec())
def sparsemax(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Sparsemax along ``dim``: the nearest point of the simplex, which is α-entmax for α = 2.

        argmin ‖p − x‖²  over probabilities p

    Parameters
    ----------
    x, dim
        As for :func:`entmax`.

    Returns
    -------
    Tensor
        As from :func:`entmax`. Piecewise linear in x.

    References
    ----------
    A. Martins & R. Astudillo, From softmax to sparsemax, ICML 2016.

    Examples
    --------
    >>> import torch
    >>> sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """
    return apply_along(_SPARSEMAX, x, dim)


@public_call(operator=OperatorSpec())
def entmax15(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-entmax along ``dim`` for α = 1.5: sparse as sparsemax, but smooth.

    Parameters
    ----------
    x, dim
        As for :func:`entmax`.

    Returns
    -------
    Tensor
        As from :func:`entmax`.

    References
    ----------
    B. Peters, V. Niculae & A. Martins, Sparse sequence-to-sequence models, ACL 2019, §3.

    Examples
    --------
    >>> import torch
    >>> entmax15(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.1693, 0.8307, 0.0000])
    """
    return apply_along(_ENTMAX15, x, dim)


@public_call(operator=OperatorSpec())
def entmax(x: Tensor, alpha: float | Tensor = 1.5, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-entmax along ``dim``, for any α of at least 1: the larger it is, the sparser the probabilities.

        argmax ⟨p, x⟩ − (Σ p^α − 1) / (α (α − 1))  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has probability 0 and gradient 0; half precision is
        computed in float32.
    alpha : float or Tensor
        1 is :func:`softmax`, 2 :func:`sparsemax`. A tensor of no dimension, or of a shape that broadcasts to that of x
        with 1 at ``dim`` (an α for each row, or each head), has a gradient of its own.
    dim : int

    Returns
    -------
    Tensor
        Of the shape and dtype of x: probabilities of sum 1 along ``dim``, differentiable to any order. Where all
        scores are −inf, 0 with gradient 0; where one is NaN or +inf, NaN.

    Raises
    ------
    InvalidInputError
        For an α below 1, or of another shape; an unknown ``dim``. TypeError if x is not in floating point.

    Notes
    -----
    Compiled on the CPU. Only scores within 1 / (α − 1) of the highest can have a probability: each row is read once to
    find them, and the rest happens among those, in float64. For α ≤ 2 that is a few steps of Newton's method and no
    sort. The gradient in α is exact at α = 1 and near it.

    References
    ----------
    B. Peters, V. Niculae & A. Martins, Sparse sequence-to-sequence models, ACL 2019, §3.
    G. Correia, V. Niculae & A. Martins, Adaptively sparse transformers, EMNLP 2019, §3.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, 2.0, 0.0])
    >>> entmax(x, 1.25), entmax(x, 4)
    (tensor([0.2148, 0.7507, 0.0345]), tensor([0., 1., 0.]))
    >>> entmax(x.expand(2, 3), torch.tensor([[1.0], [2.0]]))
    tensor([[0.2447, 0.6652, 0.0900],
            [0.0000, 1.0000, 0.0000]])
    """
    check_parameter("alpha", alpha, 1)
    if isinstance(alpha, Tensor):
        return apply_along(_ENTMAX, x, dim, row_parameter("alpha", alpha, x, dim))
    return apply_along(TsallisMap(float(alpha)), x, dim)


class Softmax(AlongDim):
    """:func:`softmax` as a module.

    Parameters
    ----------
    dim : int

    Examples
    --------
    >>> import torch
    >>> Softmax(dim=-1)(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]))
    tensor([[0.2689, 0.7311],
            [0.0000, 0.0000]])
    """

    map = staticmethod(softmax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Sparsemax(AlongDim):
    """:func:`sparsemax` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    dim : int

    Examples
    --------
    >>> import torch
    >>> Sparsemax(dim=-1)(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """

    map = staticmethod(sparsemax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Entmax15(AlongDim):
    """:func:`entmax15` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    dim : int

    Examples
    --------
    >>> import torch
    >>> Entmax15(dim=-1)(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.1693, 0.8307, 0.0000])
    """

    map = staticmethod(entmax15)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Entmax(nn.Module):
    """:func:`entmax` as a module, with an α that may be learnt.

    Parameters
    ----------
    alpha : float or Tensor
        As for :func:`entmax`; what it is at first, if ``learnable``.
    dim : int
    learnable : bool
        Whether α is a parameter: α = 1 + softplus(β), where the module holds β; so it must be above 1.

    Raises
    ------
    InvalidInputError
        For an α below 1, or, if it is ``learnable``, of 1.

    Examples
    --------
    One for each of 8 heads, for scores (batch, head, query, key).

    >>> import torch
    >>> layer = Entmax(torch.full((8, 1, 1), 1.5), learnable=True)
    >>> layer(torch.zeros(2, 8, 3, 4)).shape, layer.alpha.shape
    (torch.Size([2, 8, 3, 4]), torch.Size([8, 1, 1]))
    """

    beta: Tensor | None

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, *, learnable: bool = False) -> None:
        super().__init__()
        check_parameter("alpha", alpha, 1)
        self.dim = dim
        if learnable:
            start = torch.as_tensor(alpha, dtype=None if isinstance(alpha, Tensor) else torch.get_default_dtype())
            if bool((start == 1).any()):
                raise InvalidInputError(
                    "alpha must be above 1 if it is learnable, as 1 is the limit of 1 + softplus(β)"
                )
            self.beta = nn.Parameter(_inverse_softplus(start.detach() - 1))
        elif isinstance(alpha, Tensor):
            self.register_buffer("fixed", alpha.detach().clone())
            self.beta = None
        else:
            self.fixed, self.beta = float(alpha), None

    @property
    def alpha(self) -> float | Tensor:
        """α as it is now."""
        return self.fixed if self.beta is None else 1 + softplus(self.beta)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of x's shape."""
        return entmax(x, self.alpha, self.dim)

    def extra_repr(self) -> str:
        alpha = self.alpha
        shown = f"of shape {tuple(alpha.shape)}" if isinstance(alpha, Tensor) and alpha.numel() > 1 else f"{alpha:g}"
        return f"alpha={shown}, dim={self.dim}, learnable={self.beta is not None}"


def _inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))
