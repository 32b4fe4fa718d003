"""The forms of chain scores, and the common form taken by the recursions.

In the common form ``unary`` is (B | 1, T, S) and ``transition`` is (B | 1, P, S, S), where P = T − 1, or 1 for a
transition shared by all steps. Edge scores alone, (B, T − 1, S, S), have unary scores of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structinf.kernels import zeros
from structinf.kernels.gpu import uses_triton
from structinf.parts import Parts, as_tuple

__all__ = ["common_form", "original_form", "size_of", "tag_indicators"]


def size_of(theta: Parts) -> tuple[int, int]:
    """Return T and S for scores with one batch dimension."""
    steps, states = as_tuple(theta)[0].shape[1], as_tuple(theta)[0].shape[-1]
    return steps if isinstance(theta, tuple) else steps + 1, states


def common_form(theta: Parts) -> tuple[Tensor, Tensor]:
    """Return ``unary`` and ``transition`` in the common form, for scores with one batch dimension."""
    if not isinstance(theta, tuple):
        return theta.new_zeros(1, theta.shape[1] + 1, theta.shape[-1]), theta
    unary, transition = theta
    return unary, transition.unsqueeze(1) if transition.ndim == 3 else transition


def original_form(nodes: Tensor | None, edges: Tensor, theta: Parts) -> Parts:
    """Return results for nodes (..., T, S) and edges (..., P, S, S) in the form of ``theta``.

    Edge scores alone need no nodes.
    """
    if nodes is None or not isinstance(theta, tuple):
        return edges
    return nodes, edges.squeeze(-3) if theta[1].ndim == 3 else edges


def tag_indicators(tags: Tensor, lengths: Tensor | None, theta: Parts) -> Parts:
    """Return the structures of ``tags`` (..., B, T), in the form of ``theta``.

    Tags beyond ``lengths`` (..., B) are ignored. By default all tags are in use, and must lie in [0, S).
    """
    states, dtype = size_of(theta)[1], as_tuple(theta)[0].dtype
    is_shared = isinstance(theta, tuple) and theta[1].ndim == 3
    if uses_triton(tags):
        from ..kernels.chain.triton_indicators import tag_indicators as on_gpu

        has_nodes = isinstance(theta, tuple)
        return original_form(*on_gpu(tags, lengths, states, dtype, has_nodes=has_nodes, is_shared=is_shared), theta)
    if lengths is None:
        inside = torch.ones((), dtype=dtype, device=tags.device).expand(tags.shape)
    else:
        inside = torch.arange(tags.shape[-1], device=tags.device) < lengths.unsqueeze(-1)
        # On a device, torch.where would launch another kernel to fill a tensor with the number.
        tags = torch.where(inside, tags, 0) if tags.is_cpu else tags.clamp(0, states - 1)
        inside = inside.expand(tags.shape).to(dtype)

    def empty(*shape: int) -> Tensor:
        if tags.device.type == "cpu" and dtype in (torch.float32, torch.float64):
            return zeros(*shape, dtype=dtype)
        return torch.zeros(shape, dtype=dtype, device=tags.device)

    nodes = empty(*tags.shape, states)
    nodes.scatter_(-1, tags.unsqueeze(-1), inside.unsqueeze(-1))
    pairs, used = torch.add(tags[..., 1:], tags[..., :-1], alpha=states), inside[..., 1:]
    if is_shared:
        edges = empty(*tags.shape[:-1], states**2).scatter_add_(-1, pairs, used)
    else:
        edges = empty(*pairs.shape, states**2)
        edges.scatter_(-1, pairs.unsqueeze(-1), used.unsqueeze(-1))
    edges = edges.view(*tags.shape[:-1], 1 if is_shared else pairs.shape[-1], states, states)
    return original_form(nodes, edges, theta)
