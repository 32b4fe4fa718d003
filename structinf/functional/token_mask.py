"""Masks with holes: the tokens in use moved together, and results moved back to their places."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError

__all__ = ["TokenMask"]


class TokenMask:
    """A mask of the tokens in use, which may leave out tokens in the middle of a sequence.

    :meth:`pack` moves the tokens in use to the start, in order, and ``lengths`` counts them. The structure then
    treats tokens on both sides of a hole as neighbours. :meth:`unpack` moves results back.

    Parameters
    ----------
    mask : (..., T) bool Tensor
        True for the tokens in use, with the batch dimensions of the scores.

    Attributes
    ----------
    mask : (..., T) bool Tensor
        The mask.
    lengths : (...) int64 Tensor
        The number of tokens in use, the instance data ``lengths``.

    Examples
    --------
    Tags of a sentence without its second token, by a chain:

    >>> import structinf as si
    >>> tokens = TokenMask(torch.tensor([[True, False, True]]))
    >>> unary = torch.tensor([[[1.0, 0.0], [0.0, 9.0], [0.0, 2.0]]])
    >>> theta = tokens.pack(unary), torch.zeros(2, 2)
    >>> y = si.relax(theta, "chain", "map", lengths=tokens.lengths)
    >>> labels = si.decode(y, "chain", lengths=tokens.lengths)
    >>> tokens.unpack(labels, fill=-1)
    tensor([[ 0, -1,  1]])
    """

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.ndim == 0:
            received = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise InvalidInputError(f"mask must be a boolean tensor of shape (..., T), got {received}")
        self.mask, self.lengths = mask, mask.sum(-1)
        # The tokens in use come first, and both groups keep their order.
        self._order = mask.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)

    def pack(self, tokens: Tensor) -> Tensor:
        """Return ``tokens`` (..., T, ...) with the tokens in use first, and the other tokens after them.

        Parameters
        ----------
        tokens : (..., T, ...) Tensor
            A tensor whose first dimensions are the dimensions of the mask: scores, or labels.
        """
        return tokens.gather(self.mask.ndim - 1, self._index("tokens", tokens))

    def unpack(self, packed: Tensor, fill: float = 0.0) -> Tensor:
        """Return the results ``packed`` (..., T, ...) at the places of their tokens, and ``fill`` elsewhere.

        Parameters
        ----------
        packed : (..., T, ...) Tensor
            A mean, structures or labels, in the order of :meth:`pack`.
        fill : float
            The value of tokens that are not in use, for example −1 for labels.
        """
        index = self._index("packed", packed)
        moved = torch.zeros_like(packed).scatter(self.mask.ndim - 1, index, packed)
        used = self.mask.to(packed.device).view(*self.mask.shape, *[1] * (packed.ndim - self.mask.ndim))
        return torch.where(used, moved, torch.full_like(moved, fill))

    def _index(self, name: str, t: Tensor) -> Tensor:
        shape = self.mask.shape
        if not isinstance(t, Tensor) or t.shape[: len(shape)] != shape:
            received = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
            raise InvalidInputError(
                f"{name} must have a shape that starts with the shape {tuple(shape)} of the mask, got {received}"
            )
        order = self._order.to(t.device).view(*shape, *[1] * (t.ndim - len(shape)))
        return order.expand(t.shape)
