"""Latent dependency attention: each word attends to its head in a tree over the sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..oracle import Oracle
from ..relaxation import Relaxation
from .base import StructuredWeights

__all__ = ["DependencyWeights"]


class DependencyWeights(StructuredWeights):
    """How probable it is that each word's head is each other word, in a latent dependency tree: for self-attention.

    scores[i, j] is that of the arc from head j to word i, and weights[i, j] its marginal. The diagonal is the root's:
    scores[i, i] scores word i as one that has no head, and weights[i, i] says how probable that is; such a word attends
    to itself. Each word's weights sum to 1.

    Parameters
    ----------
    oracle : str or Oracle
        "arborescence", or "projective_tree" for trees without crossing arcs.
    relaxation : str or Relaxation
    **options
        Of whatever was given by name, such as ``single_root=True``.

    Notes
    -----
    A forbidden pair, of score −inf, is forbidden in every tree; if none is left, that is an InfeasibleError. What is
    padding as a query or as a key is no word of the tree.

    References
    ----------
    Y. Kim, C. Denton, L. Hoang & A. Rush, Structured attention networks, ICLR 2017, §3.2 (projective trees).
    Y. Liu & M. Lapata, Learning structured text representations, TACL 6, 2018 (arborescences).

    Examples
    --------
    >>> scores = torch.tensor(
    ...     [[0.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 0.0]]
    ... )
    >>> DependencyWeights("arborescence", "marginals", single_root=True)(
    ...     scores
    ... )
    tensor([[0.0433, 0.8456, 0.1111],
            [0.0433, 0.9382, 0.0184],
            [0.0433, 0.9382, 0.0184]])
    """

    event_ndim = 2

    def __init__(
        self,
        oracle: str | Oracle = "arborescence",
        relaxation: str | Relaxation = "marginals",
        **options: Any,
    ) -> None:
        super().__init__(oracle, relaxation, False, options)  # their sums are 1 already

    @property
    def is_self_attention(self) -> bool:
        return True

    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        root = scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        theta = pad(torch.cat([root, scores.mT], -2), (1, 0))
        lengths = None if keys is None else keys.expand(scores.shape[:-2])
        arcs = self.relaxed_mean(theta, lengths, generator)
        return arcs[..., 1:, 1:].mT + torch.diag_embed(arcs[..., 0, 1:])
