"""Sparsemax of the highest scores alone."""

from __future__ import annotations

from torch import Tensor

from ..autograd.simplex import apply_simplex_map
from ..compile.public_call import OperatorSpec, public_call
from ..kernels.arrays import upcast_half
from ..shapes import Float
from ..validation import check_k
from .forms import AlongDim, check_scores, restored, to_last
from .tsallis import TsallisMap

__all__ = ["TopkSparsemax", "topk_sparsemax"]


@public_call(operator=OperatorSpec())
def topk_sparsemax(x: Tensor, k: int, dim: int = -1) -> Float[Tensor, "*shape"]:
    """The nearest probabilities of which at most k are not 0, along ``dim``: the sparsemax of the k highest scores.

        argmin ‖p − x‖²  over probabilities p with at most k non-zeros

    Parameters
    ----------
    x : Tensor
        As for :func:`sparsemax`. Of equal scores at the k-th place, which one counts is torch.topk's choice.
    k : int
        At least 1; more than there are scores is all of them.
    dim : int

    Returns
    -------
    Tensor
        Of the shape and dtype of x; it is :func:`sparsemax` where that has at most k non-zeros. Otherwise as from
        there.

    Raises
    ------
    InvalidInputError
        For another k, or an unknown ``dim``. TypeError if x is not in floating point.

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
    scores = to_last(upcast_half(x), dim)
    best, places = scores.topk(min(k, scores.shape[-1]), dim=-1)
    p = apply_simplex_map(TsallisMap(2.0), best)
    rest = 0 * p.detach()[..., :1]  # NaN where p is
    return restored(rest.expand_as(scores).scatter(-1, places, p), x, dim)


class TopkSparsemax(AlongDim):
    """:func:`topk_sparsemax` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    k : int
    dim : int

    Examples
    --------
    >>> import torch
    >>> TopkSparsemax(k=2)(torch.tensor([0.1, 0.2, 0.3]))
    tensor([0.0000, 0.4500, 0.5500])
    """

    map = staticmethod(topk_sparsemax)

    def __init__(self, k: int, dim: int = -1) -> None:
        check_k(k)
        super().__init__(dim, k=k)
