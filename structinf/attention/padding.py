"""Attention masks: forbidden pairs, and padding among queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..calls.arguments import broadcasts
from ..compile.torch_private import is_functorch_wrapped_tensor
from ..errors import InvalidInputError

__all__ = ["PaddedDim", "apply_masks", "check_mask", "is_padding"]


class PaddedDim:
    """The queries (``dim`` −2) or keys (``dim`` −1) of scores, with padding at any position.

    ``lengths`` (...) is the number of entries without padding, or None if there is no mask.
    """

    def __init__(self, padding: Tensor | None, dim: int) -> None:
        self._padding, self._dim = padding, dim
        self.lengths = self._order = None
        if padding is not None:
            self.lengths = (~padding).sum(-1)
            # torch.compile and torch.func hide the values of the mask, so the padding always moves to the end.
            is_hidden = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(padding)
            if is_hidden or bool((padding[..., :-1] & ~padding[..., 1:]).any()):
                self._order = padding.byte().argsort(dim=-1, stable=True)

    def pack(self, scores: Tensor) -> Tensor:
        """Move the padding to the end, keep the order of the other entries, and set the scores of the padding to 0."""
        if self._padding is None:
            return scores
        scores = scores.masked_fill(self._broadcast_mask(self._padding), 0)
        return scores if self._order is None else self._gather(scores, self._order)

    def unpack(self, weights: Tensor) -> Tensor:
        """Undo :meth:`pack` for weights, with 0 in the padding."""
        if self._padding is None:
            return weights
        if self._order is not None:
            weights = self._gather(weights, self._order.argsort(-1))
        return weights.masked_fill(self._broadcast_mask(self._padding), 0)

    def _gather(self, t: Tensor, order: Tensor) -> Tensor:
        return t.gather(self._dim, self._broadcast_mask(order).expand_as(t))

    def _broadcast_mask(self, t: Tensor) -> Tensor:
        return t.unsqueeze(-3 - self._dim)


def check_mask(name: str, mask: Tensor, shape: Sequence[int], *, floating: bool = False) -> None:
    """Raise unless ``mask`` broadcasts to ``shape`` and is boolean (or floating-point, if ``floating``)."""
    if not isinstance(mask, Tensor) or not (mask.dtype is torch.bool or (floating and mask.is_floating_point())):
        received = f"a tensor of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        added = ", or a floating-point tensor to add to the scores" if floating else ""
        raise TypeError(f"{name} must be a boolean tensor, True at masked entries{added}; got {received}")
    expected_shape = torch.Size(shape)
    if not broadcasts(mask.shape, expected_shape) or mask.shape[-1:] != expected_shape[-1:]:
        raise InvalidInputError(
            f"{name} must have shape {tuple(expected_shape)}, or a shape that broadcasts to it, got {tuple(mask.shape)}"
        )


def apply_masks(
    scores: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the scores with −inf at forbidden pairs, and a boolean padding mask of the keys or None.

    Floating-point masks are added to the scores, as in torch; −inf in the key mask marks padding.
    """
    if attn_mask is not None:
        check_mask("attn_mask", attn_mask, scores.shape, floating=True)
        is_flag = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(attn_mask, -math.inf) if is_flag else scores + attn_mask.to(scores.dtype)
    if key_padding_mask is None:
        return scores, None
    check_mask("key_padding_mask", key_padding_mask, (*scores.shape[:-2], scores.shape[-1]), floating=True)
    if key_padding_mask.dtype is torch.bool:
        return scores, key_padding_mask
    padding = is_padding(key_padding_mask)
    added = key_padding_mask.masked_fill(padding, 0).unsqueeze(-2)
    return scores + added.to(scores.dtype), padding


def is_padding(mask: Tensor) -> Tensor:
    """Return a key padding mask as booleans."""
    return mask if mask.dtype is torch.bool else mask.isneginf()
