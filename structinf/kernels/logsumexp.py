"""logsumexp and logaddexp in torch, on any device, with finite derivatives of every order at −inf.

The torch recursions of the library use these functions, because the gradient of torch.logsumexp is NaN where all
entries are −inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["logaddexp", "logsumexp"]


def logsumexp(x: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """Return log Σ exp x along ``dim``; −inf with gradient 0 where every entry is −inf.

    Parameters
    ----------
    x : Tensor
        Entries are below +inf, and may be −inf.
    dim : int or tuple of int
        The dimensions to reduce.
    keepdim : bool
        Whether the result keeps the reduced dimensions with size 1.

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
    # The inner where keeps the infinite slope of log at 0 out of the gradient of the discarded branch.
    value = torch.where(empty, float("-inf"), torch.where(empty, 1.0, total).log() + top)
    return value if keepdim else value.squeeze(dim)


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Return log(exp x + exp y), with the gradient of :func:`logsumexp` at −inf.

    Parameters
    ----------
    x : Tensor
        The first argument.
    y : Tensor
        The second argument.
    """
    return logsumexp(torch.stack(torch.broadcast_tensors(x, y)), 0)
