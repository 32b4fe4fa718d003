"""The passes of a smoothed recursion, in compiled loops or in torch, whichever serves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy, zeros
from ..regularizers import Regularizer
from . import levels
from .hypergraph import Hypergraph

__all__ = ["gradient", "hessian_product", "kbest", "sample", "value"]

# Elementary operations of a hyperedge and pass, to tell when a second thread pays.
_WORK = 8


def _is_compiled(theta: Tensor, regularizer: Regularizer) -> bool:
    return theta.device.type == "cpu" and regularizer.alpha is not None


def _run(kernel: Any, graph: Hypergraph, goal: Tensor, first: tuple[Any, ...], *last: Any, work: int = _WORK) -> None:
    """``kernel`` over the batch; tensors in ``first`` and ``last`` as arrays, the goal and the graph's between them."""
    arrays = graph.offset, graph.part, graph.tails
    before, after = ([to_numpy(a)[0] if isinstance(a, Tensor) else a for a in side] for side in (first, last))
    parallel_rows(kernel, len(goal), *before, to_numpy(goal)[0], *arrays, *after, work=work * len(goal) * graph.edges)


def value(graph: Hypergraph, theta: Tensor, goal: Tensor, regularizer: Regularizer) -> Tensor:
    """DP_Ω, (B,) float64, of θ (B, P); autograd can follow it where θ requires grad."""
    follow = torch.is_grad_enabled() and theta.requires_grad
    if follow or not _is_compiled(theta, regularizer):
        return levels.value(graph, theta, goal, regularizer)
    from ..kernels import hypergraph as kernels

    out = torch.empty(len(theta), dtype=torch.float64)
    _run(kernels.value, graph, goal, (theta,), graph.degree, float(regularizer.alpha), out)  # pyright: ignore
    return out


def gradient(
    graph: Hypergraph, theta: Tensor, goal: Tensor, regularizer: Regularizer, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """DP_Ω, (B,) float64, and its gradient, (B, P), times each instance's ``weight``, (B,)."""
    if not _is_compiled(theta, regularizer):
        found, parts = levels.gradient(graph, theta, goal, regularizer)
        return found, (parts if weight is None else parts * weight.unsqueeze(1)).to(theta.dtype)
    from ..kernels import hypergraph as kernels

    out, parts = torch.empty(len(theta), dtype=torch.float64), zeros(*theta.shape, dtype=theta.dtype)
    weight = torch.ones_like(out) if weight is None else weight.double()
    _run(kernels.gradient, graph, goal, (theta,), graph.degree, float(regularizer.alpha), weight, out, parts)  # pyright: ignore
    return out, parts


def hessian_product(
    graph: Hypergraph, theta: Tensor, direction: Tensor, goal: Tensor, regularizer: Regularizer
) -> tuple[Tensor, Tensor]:
    """DP_Ω, (B,) float64, and ∇²DP_Ω times ``direction``, both (B, P)."""
    if not _is_compiled(theta, regularizer):
        found, parts = levels.hessian_product(graph, theta, direction, goal, regularizer)
        return found, parts.to(theta.dtype)
    from ..kernels import hypergraph as kernels

    out, parts = torch.empty(len(theta), dtype=torch.float64), zeros(*theta.shape, dtype=theta.dtype)
    _run(kernels.hessian_product, graph, goal, (theta, direction), graph.degree, float(regularizer.alpha), out, parts)  # pyright: ignore
    return out, parts


def sample(
    graph: Hypergraph,
    theta: Tensor,
    goal: Tensor,
    regularizer: Regularizer,
    n: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """DP_Ω, (B,) float64, and ``n`` walks along q from each goal, (n, B, P), in θ's dtype."""
    from ..kernels import hypergraph_derivations as kernels

    size = graph.size_of(goal)
    device = "cpu" if generator is None else generator.device
    uniforms = torch.rand(n, len(goal), size, dtype=torch.float64, generator=generator, device=device)
    own = theta.detach().cpu()
    out, parts = torch.empty(len(own), dtype=torch.float64), zeros(n, *own.shape, dtype=own.dtype)
    alpha = float(regularizer.alpha)  # pyright: ignore
    _run(kernels.sample, graph, goal, (own,), graph.degree, alpha, size, uniforms, out, parts)
    return out.to(theta.device), parts.to(theta.device)


def kbest(graph: Hypergraph, scores: Tensor, goal: Tensor, k: int, by_edge: bool = False) -> tuple[Tensor, Tensor]:
    """The ``k`` best scores, (k, B) float64, −inf where there are fewer, and their derivations' parts, (k, B, P).

    Parameters
    ----------
    scores : (B, P) Tensor
        Of the parts; or (B, E) of the hyperedges, if ``by_edge``.
    """
    from ..kernels import hypergraph_derivations as kernels

    own = scores.detach().cpu()
    found = torch.empty(k, len(own), dtype=torch.float64)
    parts = zeros(k, len(own), graph.parts, dtype=own.dtype)
    _run(kernels.kbest, graph, goal, (own.double(), by_edge), graph.size_of(goal), found, parts, work=4 * k)
    return found.to(scores.device), parts.to(scores.device)
