"""Quantization of numbers and vectors with straight-through gradients."""

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
    """Return ``x.round()``, with half rounded to even, and with the gradient of x: derivative 1, second derivative 0.

    Parameters
    ----------
    x : (...) Tensor
        Floating-point numbers.

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
    """Return ``x.floor()`` with the gradient of x: derivative 1, second derivative 0.

    Parameters
    ----------
    x : (...) Tensor
        Floating-point numbers.

    Examples
    --------
    >>> x = torch.tensor([0.4, 1.7], requires_grad=True)
    >>> floor_straight_through(x).tolist()
    [0.0, 1.0]
    """
    check_floating("x", x)
    return _straight_through(x.detach().floor(), x)


def _straight_through(value: Tensor, x: Tensor) -> Tensor:
    """Return ``value`` with the gradient of x, without the rounding error of x + (value − x).detach()."""
    return attach_jacobian(value, x, _identity, _identity)


def _identity(g: Tensor) -> Tensor:
    return g


class Quantized(NamedTuple):
    """The output of a :class:`VectorQuantizer`.

    Attributes
    ----------
    quantized : (..., d) Tensor
        The nearest codes, with the gradient of x and without a gradient for the codebook.
    indices : (...) Tensor
        Rows of the nearest codes in the codebook, int64.
    codebook_loss : scalar Tensor
        The mean of ‖x − code‖² over the vectors, with a gradient only for the codebook.
    commitment_loss : scalar Tensor
        β times the mean of ‖x − code‖² over the vectors, with a gradient only for x.
    """

    quantized: Tensor
    indices: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor


class VectorQuantizer(nn.Module):
    """A module that replaces each vector x by the nearest code e_k, k = argmin ‖x − e_k‖; ties go to the first code.

    Train with the loss of the task plus ``codebook_loss`` + ``commitment_loss``. With stopped gradients sg, these two
    losses are ‖sg(x) − e_k‖² + β ‖x − sg(e_k)‖², so codes move towards vectors, and vectors towards codes.

    Parameters
    ----------
    codes : int
        K, the number of codes.
    dim : int
        d, the size of each code.
    beta : float
        β, the weight of the commitment loss, above 0. Default 0.25.

    Attributes
    ----------
    codebook : (K, d) Parameter
        The codes, initially uniform in [−1/K, 1/K]. Set custom codes with ``quantizer.codebook.data[:] = centres``, and
        decode indices with ``quantizer.codebook[indices]``.

    Raises
    ------
    InvalidInputError
        If an option is out of range, or an input has another vector size, NaN or infinity.

    Notes
    -----
    Distances are sums of squared differences, so equal codes have equal distances, independent of the batch. Distances
    are computed in blocks of up to 2²² numbers, without a tensor (..., K, d).

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
        codebook = torch.empty(codes, dim)  # on the default device
        self.codebook = nn.Parameter(codebook.uniform_(-1 / codes, 1 / codes))

    def forward(self, x: Tensor) -> Quantized:
        """Quantize vectors x (..., d); half-precision input is computed in float32.

        Parameters
        ----------
        x : (..., d) Tensor
            The vectors to quantize.
        """
        check_floating("x", x)
        dim = self.codebook.shape[1]
        if x.ndim == 0 or x.shape[-1] != dim:
            raise InvalidInputError(f"x must hold vectors of shape (..., {dim}), got shape {tuple(x.shape)}")
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
        raise InvalidInputError("x must be finite, got NaN or infinity")


_BLOCK = 2**22  # number of distances computed at once


def _nearest(x: Tensor, codebook: Tensor) -> Tensor:
    """Return the row of the code nearest to each vector of x (N, d), (N,)."""
    mode = "donot_use_mm_for_euclid_dist"  # the expansion by a matrix product would lose digits
    blocks = x.split(max(1, _BLOCK // len(codebook)))
    # argmin returns the first of equal distances.
    return torch.cat([torch.cdist(block, codebook, compute_mode=mode).argmin(1) for block in blocks])
