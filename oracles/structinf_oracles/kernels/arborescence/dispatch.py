"""Sums over rooted trees: log-partition, marginals, Hessian products and samples.

Potentials are θ (B, n + 1, n + 1): θ[h, m] scores the arc from head h to word m, and node 0 is the root; column 0
and the diagonal are never read. :func:`log_partition` is plain torch on other devices than the CPU, and where autograd
records it: the elimination of :mod:`.elimination` in the log domain. All else is compiled, and runs on the CPU.
Everything is in float64, since sums of float32 logarithms near 1000 would leave a marginal some four digits; arcs come
back in θ's dtype, log Z in float64.

The spanning trees of an undirected graph are the trees of a symmetric θ with any vertex for the root: add up the two
directions of each edge in the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.kernels.arrays import to_numpy
from structinf.kernels.threads import parallel_rows

from . import torch_backend

__all__ = ["covariance_product", "log_partition", "log_partition_and_marginals", "sample_heads"]


def log_partition(theta: Tensor, lengths: Tensor | None = None, *, single_root: bool = False) -> Tensor:
    """log Σ exp⟨θ, y⟩ over the trees y, (B,) in float64; −inf where there is none.

    Differentiable by autograd, to any order, if θ requires grad.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) Tensor
    lengths : (B,) int64 Tensor, optional
        Words of each instance; the rest is padding.
    single_root : bool
        Sum over the trees with exactly one arc from the root.
    """
    if theta.device.type != "cpu" or (theta.requires_grad and torch.is_grad_enabled()):
        return torch_backend.log_partition(theta, lengths, single_root)
    from .elimination import log_partition as kernel

    size, n, scores, counts, status = _arrays(theta, lengths)
    value = np.empty(size)
    _run(kernel, status, n**3 // 8, scores, counts, single_root, ..., value, status)
    return torch.from_numpy(value)


def log_partition_and_marginals(
    theta: Tensor, lengths: Tensor | None = None, *, single_root: bool = False
) -> tuple[Tensor, Tensor]:
    """log Z and its gradient, the probability of each arc, 0 outside the trees: (B,) and (B, n + 1, n + 1).

    Takes what :func:`log_partition` takes; computed on CPU. The marginals are undefined where log Z = −inf.
    """
    from .marginals import value_and_mean

    size, n, scores, counts, status = _arrays(theta, lengths)
    value, means = np.empty(size), np.zeros((size, n + 1, n + 1))
    _run(value_and_mean, status, n**3 // 2, scores, None, counts, single_root, ..., value, means, None, status)
    return torch.from_numpy(value).to(theta.device), torch.from_numpy(means).to(theta)


def covariance_product(
    theta: Tensor, v: Tensor, lengths: Tensor | None = None, *, single_root: bool = False
) -> tuple[Tensor, Tensor]:
    """log Z and the product of its Hessian with ``v`` (B | 1, n + 1, n + 1): (B,) and (B, n + 1, n + 1).

    Takes what :func:`log_partition` takes; computed on CPU. The product is undefined where log Z = −inf.
    """
    from .marginals import value_and_mean

    size, n, scores, counts, status = _arrays(theta, lengths)
    direction = _float64(v.expand_as(theta))
    value, product = np.empty(size), np.zeros((size, n + 1, n + 1))
    _run(value_and_mean, status, n**3, scores, direction, counts, single_root, ..., value, None, product, status)
    return torch.from_numpy(value).to(theta.device), torch.from_numpy(product).to(theta)


def sample_heads(
    theta: Tensor,
    samples: int,
    lengths: Tensor | None = None,
    *,
    single_root: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Exact samples of p(y) ∝ exp⟨θ, y⟩.

    Takes what :func:`log_partition` takes; computed on CPU. Each tree draws from a stream of its own, seeded from
    ``generator``.

    Returns
    -------
    feasible : (B,) bool Tensor
        False where there is no tree.
    heads : (samples, B, n) int64 Tensor
        Head of each word, 0 being the root; −1 in the padding.
    """
    from .sampling import sample_heads as kernel

    size, n, scores, counts, status = _arrays(theta, lengths)
    bounds = torch.iinfo(torch.int64)
    device = generator.device if generator is not None else "cpu"
    seeds = torch.randint(bounds.min, bounds.max, (samples, size), generator=generator, device=device)
    heads = np.full((samples, size, n), -1, np.int64)
    work = n**3 // 8 + 2 * samples * n**2
    _run(kernel, status, work, scores, counts, single_root, ..., to_numpy(seeds)[0].view(np.uint64), heads, status)
    return torch.from_numpy(status == 0).to(theta.device), torch.from_numpy(heads).to(theta.device)


# ----------------------------------------------------------------------------- to the kernels


def _float64(x: Tensor) -> np.ndarray:
    return to_numpy(x.to("cpu", torch.float64))[0]


def _arrays(theta: Tensor, lengths: Tensor | None) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray]:
    """Batch size, n, scores, lengths and the kernels' status, "still out of range"."""
    from .elimination import OUT_OF_RANGE

    size, n = theta.shape[0], theta.shape[1] - 1
    counts = np.full(size, n, np.int64) if lengths is None else to_numpy(lengths)[0]
    return size, n, _float64(theta), counts, np.full(size, OUT_OF_RANGE, np.int64)


def _run(kernel: Callable[..., None], status: np.ndarray, work: int, *arguments: Any) -> None:
    """Call ``kernel`` with None for ``...``, without exponents, and then with them for the instances that need them."""
    from .elimination import OUT_OF_RANGE

    for with_exponents in (None, True):
        filled = [with_exponents if argument is ... else argument for argument in arguments]
        parallel_rows(kernel, len(status), *filled, work=len(status) * work)
        if not (status == OUT_OF_RANGE).any():
            break
