"""Scores without padding, by a Triton kernel, differentiable to any order."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .function import Function

__all__ = ["keep_valid"]


def keep_valid(tensors: tuple[Tensor, ...], masks: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the results of :func:`structinf.kernels.padding.triton_padding.keep_valid`, differentiable in the scores.

    The padding has a gradient of exactly 0.

    Parameters
    ----------
    tensors : tuple of Tensor
        The scores.
    masks : tuple of bool Tensor
        A mask for each tensor, which broadcasts to the tensor.
    """
    *kept, wrong = _ValidParts.apply(masks, *tensors)
    return tuple(kept), wrong


class _ValidParts(Function):
    """The copies of several tensors with 0 outside of their masks, and whether the copies hold NaN or +inf."""

    @staticmethod
    def forward(masks: tuple[Tensor, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        from ..kernels.padding import triton_padding

        kept, wrong = triton_padding.keep_valid([t.detach() for t in tensors], masks)
        return *kept, wrong

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        masks, *tensors = inputs
        ctx.save_for_backward(*masks)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            output[-1], *(y for y, t in zip(output, tensors, strict=False) if not t.requires_grad)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        masks = ctx.saved_tensors
        given = [i for i, g in enumerate(gradients[:-1]) if g is not None]
        results: list[Tensor | None] = [None] * len(masks)
        if given:
            kept, _ = keep_valid(tuple(g for g in gradients if g is not None), tuple(masks[i] for i in given))
            for i, g in zip(given, kept, strict=True):
                results[i] = g
        return None, *results
