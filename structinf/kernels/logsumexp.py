"""Sums of exponentials in torch, on any device, whose derivatives of every order survive −inf.

The library's torch recursions are written with these: torch.logsumexp has NaN gradients where
all its entries are −inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["logaddexp", "logsumexp"]


def logsumexp(x: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """log Σ exp x along ``dim``; −inf with gradient 0 where every entry is −inf.

    Parameters
    ----------
    x : Tensor
        Entries below +inf; −inf allowed.

    Examples
    --------
    >>> x = torch.tensor([float("-inf"), float("-inf")], requires_grad=True)
    >>> value = logsumexp(x, 0)
    >>> value.backward()
    >>> value.item(), x.grad.tolist()
    (-inf, [0.0, 0.0])
    """
    if x.numel() == 0:
        return torch.logsumexp(x, dim, keepdim=keepdim)
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    total = (x - top).exp().sum(dim, keepdim=True)
    empty = total == 0
    # The inner where keeps log's infinite slope out of the branch that the outer one discards.
    value = torch.where(empty, float("-inf"), torch.where(empty, 1.0, total).log() + top)
    return value if keepdim else value.squeeze(dim)


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(exp x + exp y), −inf-safe as :func:`logsumexp`."""
    return logsumexp(torch.stack(torch.broadcast_tensors(x, y)), 0)
