"""α-entmax for any α ≥ 1: softmax (α = 1), entmax15 (α = 1.5), sparsemax (α = 2). Tsallis entropies generate it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..autograd.simplex_map import Parameter, SimplexMap, apply_simplex_map
from ..compile.public_call import OperatorSpec, public_call
from ..kernels.arrays import upcast_half
from ..kernels.simplex import dispatch as compiled
from ..kernels.simplex import torch_backend
from ..shapes import Float
from ..validation import check_k
from .along_dim import apply_along_dim, check_parameter, check_scores, move_to_last, per_row, restore_layout

__all__ = ["EntmaxMap", "entmax", "entmax15", "softmax", "sparsemax", "topk_sparsemax"]


class EntmaxMap(SimplexMap):
    """α-entmax. The parameter is α."""

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        if isinstance(parameter, float) and parameter == 1:
            return _softmax(x)
        return (compiled if x.is_cpu else torch_backend).entmax(x, parameter)

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        in_x = torch_backend.entmax_vjp(p, g, parameter)
        return in_x, torch_backend.entmax_alpha_vjp(p, g, parameter) if with_parameter_grad else None

    def compiled_vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        return compiled.vjp(p, g, parameter, with_parameter_grad=with_parameter_grad)


def _softmax(x: Tensor) -> Tensor:
    """Softmax, and 0 for a row of −inf."""
    p = torch.softmax(x, -1)
    # A row of NaN, of +inf or of −inf alone gives NaN. On a GPU, looking for NaN would wait for the device.
    if x.is_cpu and not (x.numel() and bool(p[..., 0].isnan().any())):
        return p
    return p.masked_fill(torch_backend.max_score(x).isneginf(), 0.0)


@public_call(operator=OperatorSpec())
def softmax(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Softmax along ``dim``: torch.softmax, but a row of −inf gives 0 with gradient 0 instead of NaN.

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
    return apply_along_dim(EntmaxMap(), x, dim, 1.0)


@public_call(operator=OperatorSpec())
def sparsemax(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Sparsemax along ``dim``: the projection onto the simplex, which is α-entmax for α = 2.

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
    return apply_along_dim(EntmaxMap(), x, dim, 2.0)


@public_call(operator=OperatorSpec())
def entmax15(x: Tensor, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-entmax along ``dim`` for α = 1.5: sparse like sparsemax, but with a continuous derivative.

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
    return apply_along_dim(EntmaxMap(), x, dim, 1.5)


@public_call(operator=OperatorSpec())
def entmax(x: Tensor, alpha: float | Tensor = 1.5, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-entmax along ``dim``, for any α ≥ 1: the larger α is, the sparser the probabilities are.

        argmax ⟨p, x⟩ − (Σ p^α − 1) / (α (α − 1))  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has probability 0 and gradient 0. Half precision is
        computed in float32.
    alpha : float or Tensor
        1 is :func:`softmax`, and 2 is :func:`sparsemax`. A tensor has no dimension, or a shape that broadcasts to that
        of x with size 1 at ``dim`` (an α for each row, or each head), and receives a gradient.
    dim : int

    Returns
    -------
    Tensor
        Probabilities with sum 1 along ``dim``, in the shape and dtype of x, differentiable to any order. A row of −inf
        gives 0 with gradient 0. A row with NaN or +inf gives NaN.

    Raises
    ------
    InvalidInputError
        If α is below 1 or has another shape, or if x has no dimension ``dim``. TypeError if x is not in floating point.

    Notes
    -----
    On the CPU, compiled loops read each row once to select the scores within 1 / (α − 1) of the highest: only these can
    have a probability above 0. Newton's method then runs on the selected scores in float64. Only α > 2 needs a sort.
    The gradient in α is exact for α = 1 too, where the usual formula divides by 0.

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
    return apply_along_dim(EntmaxMap(), x, dim, per_row("alpha", alpha, x, dim))


@public_call(operator=OperatorSpec())
def topk_sparsemax(x: Tensor, k: int, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Sparsemax of the k highest scores along ``dim``: the nearest probabilities with at most k non-zeros.

        argmin ‖p − x‖²  over probabilities p with at most k non-zeros

    Parameters
    ----------
    x : Tensor
        As for :func:`entmax`. If several scores are equal at the k-th place, torch.topk chooses among them.
    k : int
        At least 1. If k exceeds the number of scores, all are used.
    dim : int

    Returns
    -------
    Tensor
        As from :func:`entmax`. It equals :func:`sparsemax` if that has at most k non-zeros.

    Raises
    ------
    InvalidInputError
        If k is no integer of at least 1, or if x has no dimension ``dim``. TypeError if x is not in floating point.

    References
    ----------
    A. Kyrillidis, S. Becker, V. Cevher & C. Koch, Sparse projections onto the simplex, ICML 2013, §2.
    G. Correia, V. Niculae, W. Aziz & A. Martins, Efficient marginalization of discrete and structured latent variables
    via sparsity, NeurIPS 2020, §3.2.

    Examples
    --------
    >>> import torch
    >>> topk_sparsemax(torch.tensor([0.1, 0.2, 0.3]), 2)
    tensor([0.0000, 0.4500, 0.5500])
    """
    check_scores(x, dim)
    check_k(k)
    scores = move_to_last(upcast_half(x), dim)
    best, places = scores.topk(min(k, scores.shape[-1]), dim=-1)
    p = apply_simplex_map(EntmaxMap(), best, 2.0)
    rest = 0 * p.detach()[..., :1]  # NaN if p is NaN
    return restore_layout(rest.expand_as(scores).scatter(-1, places, p), x, dim)
