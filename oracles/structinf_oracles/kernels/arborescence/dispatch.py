"""Sums over rooted trees: log-partition function, marginals, Hessian-vector products and samples.

Scores θ are (B, n + 1, n + 1), where θ[h, m] scores the arc from head h to word m. Node 0 is the root; column 0 and
the diagonal are never read. If autograd records the call, :func:`log_partition` runs in plain torch: the elimination of
:mod:`.elimination` in the log domain. On a GPU, Triton kernels compute log Z, marginals and Hessian products. All other
functions are compiled and run on the CPU. All computations are in float64, since sums of float32 logarithms near 1000
would leave marginals about four digits. Arcs are returned in θ's dtype, log Z in float64.

For float32 scores and any number of arcs from the root, the inverse of the Laplacian (:mod:`.laplacian_inverse`) takes
a quarter of the time of :mod:`.marginals`. Instances for which the inverse is not accurate take :mod:`.marginals`.

The spanning trees of an undirected graph are the trees of a symmetric θ with any vertex as the root. In the results,
add up the two directions of each edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.kernels.arrays import to_numpy
from structinf.kernels.gpu import uses_triton
from structinf.kernels.threads import parallel_rows

from . import torch_backend

__all__ = ["covariance_product", "log_partition", "log_partition_and_marginals", "sample_heads"]


def log_partition(theta: Tensor, lengths: Tensor | None = None, *, single_root: bool = False) -> Tensor:
    """Return log Σ exp⟨θ, y⟩ over the trees y, (B,) in float64; −inf if there is none.

    If θ requires grad, the result is differentiable by autograd to any order.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) Tensor
        Scores of the arcs.
    lengths : (B,) int64 Tensor, optional
        Number of words of each instance, without padding. Default: n.
    single_root : bool
        Whether to sum over the trees with exactly one arc from the root only.
    """
    is_recorded = theta.requires_grad and torch.is_grad_enabled()
    if not is_recorded and uses_triton(theta):
        from . import triton_elimination

        return triton_elimination.log_partition(theta, _counts(theta, lengths), single_root)
    if theta.device.type != "cpu" or is_recorded:
        return torch_backend.log_partition(theta, lengths, single_root)
    from .elimination import log_partition as kernel

    size, n, scores, counts, status = _arrays(theta, lengths)
    value = np.empty(size)
    _run(kernel, status, n**3 // 8, scores, counts, single_root, ..., value, status)
    return torch.from_numpy(value)


def log_partition_and_marginals(
    theta: Tensor, lengths: Tensor | None = None, *, single_root: bool = False
) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) and its gradient (B, n + 1, n + 1): the probability of each arc, 0 outside the trees.

    The parameters are those of :func:`log_partition`. The computation runs on the CPU, or on a GPU in Triton kernels.
    If log Z = −inf, the marginals are undefined.
    """
    if uses_triton(theta):
        from . import triton_elimination

        return triton_elimination.log_partition_and_marginals(theta, _counts(theta, lengths), single_root)
    value, means = _value_and_mean(theta, None, lengths, single_root)
    return torch.from_numpy(value).to(theta.device), torch.from_numpy(means).to(theta)


def covariance_product(
    theta: Tensor, v: Tensor, lengths: Tensor | None = None, *, single_root: bool = False
) -> tuple[Tensor, Tensor]:
    """Return log Z (B,) and the product of its Hessian with ``v`` (B | 1, n + 1, n + 1), (B, n + 1, n + 1).

    The other parameters are those of :func:`log_partition`. The computation runs on the CPU, or on a GPU in Triton
    kernels. If log Z = −inf, the product is undefined.
    """
    if uses_triton(theta):
        from . import triton_elimination

        return triton_elimination.covariance_product(theta, v, _counts(theta, lengths), single_root)
    value, product = _value_and_mean(theta, v.expand_as(theta), lengths, single_root)
    return torch.from_numpy(value).to(theta.device), torch.from_numpy(product).to(theta)


def sample_heads(
    theta: Tensor,
    samples: int,
    lengths: Tensor | None = None,
    *,
    single_root: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return exact samples of p(y) ∝ exp⟨θ, y⟩.

    The parameters are those of :func:`log_partition`, the number of samples and the random generator. The computation
    runs on the CPU. Each tree has its own random stream, seeded from ``generator``.

    Returns
    -------
    feasible : (B,) bool Tensor
        False if there is no tree.
    heads : (samples, B, n) int64 Tensor
        Head of each word, 0 for the root; −1 in the padding.
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


def _counts(theta: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the number of words of each instance, (B,)."""
    if lengths is None:
        return torch.full((len(theta),), theta.shape[1] - 1, device=theta.device)
    return lengths


def _float64(x: Tensor) -> np.ndarray:
    return to_numpy(x.to("cpu", torch.float64))[0]


def _arrays(theta: Tensor, lengths: Tensor | None) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray]:
    """Return the batch size, n, scores, lengths, and the status array of the kernels, filled with OUT_OF_RANGE."""
    from .elimination import OUT_OF_RANGE

    size, n = theta.shape[0], theta.shape[1] - 1
    counts = np.full(size, n, np.int64) if lengths is None else to_numpy(lengths)[0]
    return size, n, _float64(theta), counts, np.full(size, OUT_OF_RANGE, np.int64)


def _value_and_mean(
    theta: Tensor, v: Tensor | None, lengths: Tensor | None, single_root: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return log Z (B,) and the marginals, or their derivative along ``v``, (B, n + 1, n + 1)."""
    if theta.dtype == torch.float32 and not single_root:
        return _from_inverse(theta, v, _counts(theta, lengths))
    from .marginals import value_and_mean

    size, n, scores, counts, status = _arrays(theta, lengths)
    direction = None if v is None else _float64(v)
    value, arcs = np.empty(size), np.zeros(theta.shape)
    means, product, work = (arcs, None, n**3 // 2) if v is None else (None, arcs, n**3)
    _run(value_and_mean, status, work, scores, direction, counts, single_root, ..., value, means, product, status)
    return value, arcs


def _from_inverse(theta: Tensor, v: Tensor | None, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Do the work of :func:`_value_and_mean` for float32 scores, by the inverse where it is accurate."""
    from .laplacian_inverse import value_and_mean32

    scores, counts, *rest = to_numpy(theta, lengths, *([] if v is None else [v]))
    value, arcs, is_accurate = np.empty(len(theta)), np.zeros(theta.shape, np.float32), np.zeros(len(theta), np.bool_)
    work = len(theta) * (theta.shape[1] - 1) ** 3 // (8 if v is None else 3)
    arguments = scores, rest[0] if rest else None, counts, value, arcs, is_accurate
    parallel_rows(value_and_mean32, len(theta), *arguments, work=work)
    if not is_accurate.all():
        left = torch.from_numpy(~is_accurate).to(theta.device)
        double, direction = theta[left].double(), None if v is None else v[left]
        value[~is_accurate], arcs[~is_accurate] = _value_and_mean(double, direction, lengths[left], False)
    return value, arcs


def _run(kernel: Callable[..., None], status: np.ndarray, work: int, *arguments: Any) -> None:
    """Call ``kernel`` without exponents, and then with exponents for the instances still OUT_OF_RANGE.

    The argument ``...`` stands for the kernel's parameter ``with_exponents``: None in the first call, True in the
    second.
    """
    from .elimination import OUT_OF_RANGE

    for with_exponents in (None, True):
        filled = [with_exponents if argument is ... else argument for argument in arguments]
        parallel_rows(kernel, len(status), *filled, work=len(status) * work)
        if not (status == OUT_OF_RANGE).any():
            break
