"""The passes of a smoothed recursion: compiled loops on the CPU, Triton kernels on CUDA devices, torch otherwise.

Triton kernels compute values, gradients, Hessian products and samples, for α = 1, 1.5, 2 and inf. The k best
derivations and lists of derivations are computed on the CPU for every device, because each node merges the lists of its
hyperedges one entry after another. Derivatives of third and higher order, and regularizers of users, take torch
operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import compiled_alpha, parallel_rows, to_numpy, zeros
from ..regularizers import Regularizer
from ..smoothing import kernel_alpha, triton_alpha
from . import torch_backend
from .device_tables import DeviceTables, device_tables
from .hypergraph import Hypergraph

__all__ = [
    "best_on_cpu",
    "hessian_product",
    "k_best",
    "list_derivations",
    "sample",
    "used_parts",
    "value",
    "value_and_mean",
]

# Elementary operations per hyperedge and pass, an estimate for the number of threads.
_WORK_PER_EDGE = 8
# The weights of the instances of small calls, so that a call makes none.
_ONES = np.ones(1024)
# Limit of hyperedges drawn at once. This many uniform float64 numbers take 80 MB.
_MAX_DRAWN = 10**7


def _exact_for(theta: Tensor, alpha: float) -> Tensor:
    """Return θ, cast to float64 if the kernel for ``alpha`` needs float64 (`structinf.kernels.smooth_max`)."""
    return theta if alpha in (1, 1.5, 2, math.inf) else theta.double()


def _tables(graph: Hypergraph, theta: Tensor) -> DeviceTables:
    return graph.cached(device_tables, theta.device)


def _run(kernel: Any, graph: Hypergraph, goal: Tensor, *args: Any, tables: int = 0, work: int = _WORK_PER_EDGE) -> None:
    """Run ``kernel`` over the batch, with tensors converted to arrays and ``graph`` to its blocks.

    With ``tables`` above 0, the kernel takes groups of instances and as many scratch tables of node values
    (`structinf.kernels.hypergraph.smoothed_passes`).
    """
    arrays = [a.blocks if a is graph else to_numpy(a)[0] if isinstance(a, Tensor) else a for a in args]
    work *= _edges_visited(graph, to_numpy(goal)[0])
    if tables:
        _run_groups(kernel, graph, len(goal), tables, work, *arrays)
    else:
        parallel_rows(kernel, len(goal), *arrays, work=work)


def _run_groups(kernel: Any, graph: Hypergraph, batch: int, tables: int, work: int, *arrays: Any) -> None:
    """Run a kernel that takes groups of instances and scratch tables; see :func:`_run`."""
    lanes = _lanes()
    shape = tables, graph.nodes + 1, lanes
    size = math.prod(shape)

    def serve_groups(start: int, stop: int) -> None:
        flat = np.empty(size + lanes)
        first = -flat.__array_interface__["data"][0] % (8 * lanes) // 8  # so that no row spans two cache lines
        kernel(start, stop, flat[first : first + size].reshape(shape), *arrays)

    parallel_rows(serve_groups, -(-batch // lanes), work=work)


@functools.cache
def _lanes() -> int:
    """Return the number of instances in a group, imported at the first call; see :func:`_best_kernel`."""
    from ..kernels.simd.vector import LANES

    return LANES


def _edges_visited(graph: Hypergraph, goal: np.ndarray) -> int:
    """Return the number of hyperedges that the loops visit for goals (B,): all, or those of the goal's component."""
    if graph.begin is None:
        return len(goal) * graph.edges
    return int((graph.offset[goal + 1] - graph.offset[graph.begin[goal]]).sum())


def value(graph: Hypergraph, theta: Tensor, goal: Tensor, regularizer: Regularizer) -> Tensor:
    """Return DP_Ω(θ), (B,) float64, for θ (B, P); differentiable by autograd if θ requires grad."""
    if torch.is_grad_enabled() and theta.requires_grad:
        return torch_backend.value(graph, theta, goal, regularizer)
    if (alpha := triton_alpha(theta, regularizer)) is not None:
        from ..kernels.hypergraph import triton_passes

        return triton_passes.value(_tables(graph, theta), theta, goal, alpha)
    alpha = kernel_alpha(theta, regularizer)
    if alpha is None:
        return torch_backend.value(graph, theta, goal, regularizer)
    from ..kernels.hypergraph import smoothed_passes as kernels

    out = torch.empty(len(theta), dtype=torch.float64, device="cpu")
    _run(kernels.value, graph, goal, _exact_for(theta, alpha), goal, graph, compiled_alpha(alpha), out, tables=1)
    return out


def value_and_mean(
    graph: Hypergraph, theta: Tensor, goal: Tensor, regularizer: Regularizer, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) float64, and its gradient, (B, P), times the ``weight`` (B,) of each instance."""
    if (alpha := triton_alpha(theta, regularizer)) is not None:
        from ..kernels.hypergraph import triton_passes

        return triton_passes.value_and_mean(_tables(graph, theta), theta, goal, alpha, weight)
    alpha = kernel_alpha(theta, regularizer)
    if alpha is None:
        out, parts = torch_backend.value_and_mean(graph, theta, goal, regularizer)
        return out, (parts if weight is None else parts * weight.unsqueeze(1)).to(theta.dtype)
    out, exact = torch.empty(len(theta), dtype=torch.float64, device="cpu"), _exact_for(theta, alpha)
    parts = zeros(*theta.shape, dtype=exact.dtype)
    weight = torch.ones_like(out) if weight is None else weight.double()
    if alpha == math.inf:
        _run(_best_kernel(), graph, goal, exact, goal, graph, weight, out, parts, tables=3)
    else:
        from ..kernels.hypergraph import smoothed_passes as kernels

        arguments = exact, goal, graph, compiled_alpha(alpha), weight, out, parts
        _run(kernels.value_and_mean, graph, goal, *arguments, tables=4)
    return out, parts.to(theta.dtype)


def best_on_cpu(graph: Hypergraph, theta: Tensor, goal: np.ndarray) -> tuple[np.ndarray, Tensor]:
    """Return the best scores, (B,) float64, and the parts of the best structures, (B, P).

    θ (B, P) is contiguous on the CPU.

    Does the work of :func:`value_and_mean` without a regularizer. Small calls take most of their time outside of the
    compiled loop, so that each operation counts here.
    """
    scores, batch = theta.detach().numpy(), len(goal)
    out, parts = np.empty(batch), np.zeros(scores.shape, scores.dtype)
    weight = _ONES[:batch] if batch <= len(_ONES) else np.ones(batch)
    work = _WORK_PER_EDGE * _edges_visited(graph, goal)
    _run_groups(_best_kernel(), graph, batch, 3, work, scores, goal, graph.blocks, weight, out, parts)
    return out, torch.from_numpy(parts)


@functools.cache
def _best_kernel() -> Any:
    """Return the compiled loop, imported at the first call. An import statement in each call takes 3 µs."""
    from ..kernels.hypergraph import best_derivations

    return best_derivations.best


def hessian_product(
    graph: Hypergraph, theta: Tensor, direction: Tensor, goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) float64, and ∇²DP_Ω(θ) times ``direction``, both (B, P)."""
    if regularizer.alpha == math.inf:
        return value(graph, theta.detach(), goal, regularizer), torch.zeros_like(theta)
    if (alpha := triton_alpha(theta, regularizer)) is not None:
        from ..kernels.hypergraph import triton_passes

        return triton_passes.hessian_product(_tables(graph, theta), theta, direction, goal, alpha)
    alpha = kernel_alpha(theta, regularizer)
    if alpha is None:
        out, parts = torch_backend.hessian_product(graph, theta, direction, goal, regularizer)
        return out, parts.to(theta.dtype)
    from ..kernels.hypergraph import smoothed_passes as kernels

    out, exact = torch.empty(len(theta), dtype=torch.float64, device="cpu"), _exact_for(theta, alpha)
    parts, direction = zeros(*theta.shape, dtype=exact.dtype), direction.to(exact.dtype)
    arguments = exact, direction, goal, graph, compiled_alpha(alpha), out, parts
    _run(kernels.hessian_product, graph, goal, *arguments, tables=7)
    return out, parts.to(theta.dtype)


def sample(
    graph: Hypergraph,
    theta: Tensor,
    goal: Tensor,
    regularizer: Regularizer,
    n: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) float64, and ``n`` structures per instance, (n, B, P), in the dtype of θ.

    Each structure comes from a random walk from the goal, choosing hyperedges with the probabilities q = ∇max_Ω.
    """
    if (alpha := triton_alpha(theta, regularizer)) is not None:
        from ..kernels.hypergraph import triton_derivations

        nodes = triton_derivations.nodes_of(_tables(graph, theta), theta, goal, alpha)
        parts = theta.new_zeros(n, *theta.shape)
        for chunk, uniforms in _draws(graph, goal, parts, generator):
            uniforms = uniforms.to(theta.device, non_blocking=True)
            triton_derivations.sample(_tables(graph, theta), theta, goal, alpha, nodes, uniforms, chunk)
        return nodes[0], parts
    from ..kernels.hypergraph import derivations as kernels

    parts, theta_on_cpu = zeros(n, *theta.shape, dtype=theta.dtype), theta.detach().cpu()
    alpha = kernel_alpha(theta_on_cpu, regularizer)
    if alpha is None:
        v, q = torch_backend.edge_probabilities(graph, theta, regularizer)
        out = torch_backend.at_goals(v, goal)
        if bool(out.isneginf().any()):
            return out, parts.to(theta.device)  # an instance has no structure of finite score
        kernel, arguments, tables = kernels.sample_from_probabilities, (q, goal, graph), 0
    else:
        out = torch.empty(len(theta), dtype=torch.float64, device="cpu")
        kernel, arguments, tables = (
            kernels.sample,
            (_exact_for(theta_on_cpu, alpha), goal, graph, compiled_alpha(alpha), out),
            3,
        )
    for chunk, uniforms in _draws(graph, goal, parts, generator):
        _run(kernel, graph, goal, *arguments, uniforms, chunk, tables=tables, work=_WORK_PER_EDGE * len(chunk))
    return out.to(theta.device), parts.to(theta.device)


def _draws(
    graph: Hypergraph, goal: Tensor, parts: Tensor, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows of ``parts`` (n, B, P) and their uniform numbers (rows, B, size), on the generator's device."""
    size = graph.size_of(goal)
    if len(goal) * size > _MAX_DRAWN:
        raise InvalidInputError(
            f"structures of up to {size} hyperedges for each of {len(goal)} instances are too many to draw at once "
            f"(more than {_MAX_DRAWN} hyperedges). Split the batch"
        )
    device = "cpu" if generator is None else generator.device
    for chunk in parts.split(max(1, _MAX_DRAWN // max(1, len(goal) * size))):
        yield (
            chunk,
            torch.rand(len(chunk), len(goal), size, dtype=torch.float64, generator=generator, device=device),
        )


def used_parts(graph: Hypergraph, goal: Tensor) -> Tensor:
    """Return the mask of `Hypergraph.part_mask`, without parts for the goal −1, computed by Triton kernels."""
    from ..kernels.hypergraph import triton_passes

    return triton_passes.used_parts(graph.cached(device_tables, goal.device), goal)


def k_best(graph: Hypergraph, theta: Tensor, goal: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` best scores, (k, B) float64, and the parts of their derivations, (k, B, P).

    Instances with fewer than ``k`` derivations have scores of −inf in the remaining rows. All tensors are on the CPU.
    """
    from ..kernels.hypergraph import derivations as kernels

    scores, parts = (
        torch.empty(k, len(theta), dtype=torch.float64, device="cpu"),
        zeros(k, *theta.shape, dtype=theta.dtype),
    )
    _run(kernels.k_best, graph, goal, theta.double(), goal, graph, scores, parts, work=4 * k)
    return scores, parts


def list_derivations(graph: Hypergraph, scores: Tensor, goal: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the scores of all derivations, (count, B) float64, and their parts, (count, B, P).

    The score of a derivation is the sum of the ``scores`` (B, E) of its hyperedges. Derivations with a hyperedge of
    score −inf are left out. ``count`` is the largest number of derivations of an instance. Derivations are sorted by
    their hyperedges, from the goal down.
    """
    from ..kernels.hypergraph import derivations as kernels

    totals = torch.empty(count, len(scores), dtype=torch.float64, device="cpu")
    parts = zeros(count, len(scores), graph.parts, dtype=torch.float64)
    _run(kernels.list_derivations, graph, goal, scores.double(), goal, graph, totals, parts)
    return totals.to(scores.device), parts.to(scores.device)
