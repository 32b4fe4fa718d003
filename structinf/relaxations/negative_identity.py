"""negative_identity: the identity as gradient, behind a projection of the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..parts import Parts, map_parts
from ..solvers.flattening import Flattening
from ..validation import check_choice
from .surrogate import ArgmaxResult, Surrogate

__all__ = ["NegativeIdentity", "Projection"]

Projection = Literal["none", "mean", "norm", "std"]


@dataclass(frozen=True, kw_only=True)
class NegativeIdentity(Surrogate):
    """argmax ⟨θ, y⟩, with the gradient P'(θ)ᵀ v for v = dL/dy and a projection P.

    For costs ω = −θ with the argmin y, the gradient is −P'(ω)ᵀ v, hence the name. P removes directions of θ that do
    not change the argmax, so that no gradient step is spent on them. P acts on the finite parts of an instance, and
    on all tensors of a tuple together:

    ==========  ====================================  =====================================================
    projection  P(θ)                                  P'(θ)ᵀ v
    ==========  ====================================  =====================================================
    "none"      θ                                     v
    "mean"      θ − mean θ                            v − mean v
    "norm"      θ / ‖θ‖                               (v − u ⟨u, v⟩) / ‖θ‖ with u = θ / ‖θ‖
    "std"       z / ‖z‖ with z = θ − mean θ           w − mean w, where w is (v − u ⟨u, v⟩) / ‖z‖ with
                                                      u = z / ‖z‖
    ==========  ====================================  =====================================================

    "mean" and "std" are for sets Y whose structures all have the same number of parts. Where the norm is 0, P is
    undefined and the gradient is 0.

    Parameters
    ----------
    projection : "none", "mean", "norm" or "std"
        The projection P, as in the table.

    References
    ----------
    Sahoo, Paulus, Vlastelica, Musil, Kuleshov & Martius 2023, Backpropagation through Combinatorial Algorithms:
    Identity with Projection Works, §3.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", NegativeIdentity(projection="mean"))
    >>> y.backward(torch.tensor([[3.0, 0, 0]]))
    >>> theta.grad
    tensor([[ 2., -1., -1.]])
    """

    projection: Projection = "none"

    name = "negative_identity"
    search_terms = ("identity",)

    def __post_init__(self) -> None:
        check_choice("projection", self.projection, ("none", "mean", "norm", "std"))

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        if self.projection == "none":
            return v
        flattening = Flattening(v)

        def vectors(parts: Parts) -> Tensor:
            return flattening.flatten(map_parts(lambda t, z: t.expand_as(z), parts, v))

        inside = vectors(result.allowed_parts(v)) != 0
        number = inside.sum(1, keepdim=True)
        x, g = torch.where(inside, vectors(result.theta), 0.0), vectors(v)

        def centred(t: Tensor) -> Tensor:
            return torch.where(inside, t - t.sum(1, keepdim=True) / number, 0.0)

        if self.projection != "norm":
            x = centred(x)
        if self.projection != "mean":
            norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            u = x / norm
            g = torch.where(norm > 0, (g - u * (u * g).sum(1, keepdim=True)) / norm, 0.0)
        return flattening.unflatten(g if self.projection == "norm" else centred(g))
