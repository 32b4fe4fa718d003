"""Quantisation, of numbers and of vectors, whose gradients pass straight through."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..autograd import attach_jacobian
from ..autograd.vmap_check import check_under_vmap
from ..errors import InvalidInputError
from ..shapes import Float
from ..validation import check_floating, check_natural, check_positive

__all__ = ["Quantized", "VectorQuantizer", "floor_straight_through", "round_straight_through"]


def round_straight_through(x: Tensor) -> Float[Tensor, "*shape"]:
    """``x.round()``, to even numbers from the middle, with the gradient of x itself: 1, and second derivatives of 0.

    Parameters
    ----------
    x : (...) Tensor
        In floating point.

    References
    ----------
    Bengio, Léonard & Courville 2013, Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
    Computation, §4.

    Examples
    --------
    >>> x = torch.tensor([0.4, 1.7], requires_grad=True)
    >>> y = round_straight_through(x)
    >>> y.square().sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.0, 2.0], [0.0, 4.0])
    """
    check_floating("x", x)
    return _straight_through(x.detach().round(), x)


def floor_straight_through(x: Tensor) -> Float[Tensor, "*shape"]:
    """``x.floor()`` with the gradient of x itself, as :func:`round_straight_through`.

    Parameters
    ----------
    x : (...) Tensor
        In floating point.

    Examples
    --------
    >>> x = torch.tensor([0.4, 1.7], requires_grad=True)
    >>> floor_straight_through(x).tolist()
    [0.0, 1.0]
    """
    check_floating("x", x)
    return _straight_through(x.detach().floor(), x)


def _straight_through(value: Tensor, x: Tensor) -> Tensor:
    """``value`` exactly (which x + (value − x) is not), with the gradient of x."""
    return attach_jacobian(value, x, _identity, _identity)


def _identity(g: Tensor) -> Tensor:
    return g


class Quantized(NamedTuple):
    """What a :class:`VectorQuantizer` gives.

    Attributes
    ----------
    quantized : (..., d) Tensor
        The nearest codes, with the gradient of x, and none for the codebook.
    indices : (...) Tensor
        Their rows in the codebook, int64.
    codebook_loss : scalar Tensor
        The mean over the vectors of ‖x − code‖², with a gradient for the codebook alone.
    commitment_loss : scalar Tensor
        β times the same number, with a gradient for x alone.
    """

    quantized: Tensor
    indices: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor


class VectorQuantizer(nn.Module):
    """Each vector x becomes the code e_k nearest to it, k = argmin ‖x − e_k‖; of equally near ones, the first.

    The loss to train with is that of the task, plus ``codebook_loss`` + ``commitment_loss``, ‖sg(x) − e_k‖² + β ‖x −
    sg(e_k)‖², where sg stops gradients: the codes move to the vectors, and the vectors to their codes.

    Parameters
    ----------
    codes : int
        K.
    dim : int
        d.
    beta : float
        β, above 0.

    Attributes
    ----------
    codebook : (K, d) Parameter
        At first uniform in [−1/K, 1/K]; it may be assigned to, ``quantizer.codebook.data[:] = centres``. Vectors for
        indices are ``quantizer.codebook[indices]``.

    Raises
    ------
    InvalidInputError
        For other options, vectors of another size, and those that are not finite.

    Notes
    -----
    Distances are summed from differences, exactly equal for equal codes and independent of the batch, in blocks: what
    is kept is (..., d), and no (..., K, d) is ever made.

    References
    ----------
    van den Oord, Vinyals & Kavukcuoglu 2017, Neural Discrete Representation Learning, §3.2, Eq. 3.

    Examples
    --------
    >>> quantizer = VectorQuantizer(2, 1)
    >>> quantizer.codebook.data[:] = torch.tensor([[0.0], [1.0]])
    >>> found = quantizer(torch.tensor([[0.8], [0.4], [0.5]]))
    >>> found.indices.tolist()
    [1, 0, 0]
    >>> found.codebook_loss, found.commitment_loss
    (tensor(0.1500, grad_fn=<DivBackward0>), tensor(0.0375))
    """

    def __init__(self, codes: int, dim: int, *, beta: float = 0.25) -> None:
        super().__init__()
        check_natural("codes", codes)
        check_natural("dim", dim)
        check_positive("beta", beta)
        self.beta = beta
        self.codebook = nn.Parameter(torch.empty(codes, dim).uniform_(-1 / codes, 1 / codes))

    def forward(self, x: Tensor) -> Quantized:
        """Quantise vectors x (..., d); half precision through float32."""
        check_floating("x", x)
        dim = self.codebook.shape[1]
        if x.ndim == 0 or x.shape[-1] != dim:
            raise InvalidInputError(f"x: vectors (..., {dim}) are needed, got shape {tuple(x.shape)}")
        x = check_under_vmap(x, _check_finite)
        wide = torch.float64 if torch.float64 in (x.dtype, self.codebook.dtype) else torch.float32
        with torch.autocast(x.device.type, enabled=False):
            vectors, codebook = x.reshape(-1, dim).to(wide), self.codebook.to(wide)
            indices = _nearest(vectors.detach(), codebook.detach())
            chosen = codebook[indices]
            count = max(len(vectors), 1)
            codebook_loss = (vectors.detach() - chosen).square().sum() / count
            commitment_loss = self.beta * (vectors - chosen.detach()).square().sum() / count
            quantized = _straight_through(chosen.detach().view_as(x).to(x.dtype), x)
        return Quantized(quantized, indices.view(x.shape[:-1]), codebook_loss, commitment_loss)

    def extra_repr(self) -> str:
        codes, dim = self.codebook.shape
        return f"{codes}, {dim}, beta={self.beta:g}"


def _check_finite(x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        raise InvalidInputError("x: finite vectors are needed, got NaN or infinity in some")


_BLOCK = 2**22  # distances at a time


def _nearest(x: Tensor, codebook: Tensor) -> Tensor:
    """The row of the code nearest to each x (N, d), (N,)."""
    mode = "donot_use_mm_for_euclid_dist"  # the expansion of a square would cancel
    blocks = x.split(max(1, _BLOCK // len(codebook)))
    # argmin takes the first of equal ones.
    return torch.cat([torch.cdist(block, codebook, compute_mode=mode).argmin(1) for block in blocks])
