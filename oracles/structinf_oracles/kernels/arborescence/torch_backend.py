"""The elimination of :mod:`.elimination` in the log domain in plain torch, for other devices and for autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.kernels.logsumexp import logaddexp, logsumexp

__all__ = ["log_partition"]

_NEVER = float("-inf")


def log_partition(theta: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """Return log Z, (B,) in float64, differentiable by autograd to any order."""
    chain = _log_chain(theta, lengths, single_root)
    value, order = chain.new_zeros(len(theta)), torch.zeros(len(theta), dtype=torch.int64, device=theta.device)
    for k in range(theta.shape[1] - 2, -1, -1):
        steps, into = chain[:, : 2 + k, k], chain[:, 2 + k, :k]
        finite = logsumexp(torch.cat([steps[:, :1], steps[:, 2:]], 1), 1)
        # If only the root at order t is left, the step to the root is certain.
        certain = torch.isneginf(finite)
        pivot = torch.where(certain, steps[:, 1], finite)
        value, order = value + pivot, order + certain
        pivot = torch.where(torch.isneginf(pivot), 0.0, pivot)
        to_root = torch.full_like(steps, _NEVER)
        to_root[:, 0] = 0
        steps = torch.where(certain[:, None], to_root, steps - pivot[:, None])
        chain = logaddexp(chain[:, : 2 + k, :k], steps[:, :, None] + into[:, None, :])
    return torch.where(order > 1, _NEVER, value)


def _log_chain(theta: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """Return log a[j, i] in float64, (B, 2 + n, n): rows for the root, the root at order t, and each word.

    A padding word has a single arc, of weight 1, to the first word.
    """
    n = theta.shape[1] - 1
    nodes = torch.arange(n + 1, device=theta.device)
    count = nodes.new_full((1,), n) if lengths is None else lengths
    inside = nodes <= count[:, None]
    arcs = inside[:, :, None] & inside[:, None, 1:] & (nodes[:, None] != nodes[1:])
    scores = torch.where(arcs, theta[:, :, 1:].double(), _NEVER)
    anchored = (nodes[:, None] == 1) & ~inside[:, None, 1:]
    scores = torch.where(anchored, 0.0, scores)
    empty = torch.full_like(scores[:, :1], _NEVER)
    roots = [empty, scores[:, :1]] if single_root else [scores[:, :1], empty]
    return torch.cat([*roots, scores[:, 1:]], 1)
