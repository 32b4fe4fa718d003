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
    """Self-attention weights from a latent dependency tree: the probability of each head for each word.

    scores[i, j] is the score of the arc from head j to word i, and weights[i, j] is the marginal of the arc. On the
    diagonal, scores[i, i] is the score of word i as a root, and weights[i, i] is the probability that word i is a root.
    A root attends to itself. The weights of each word sum to 1.

    Parameters
    ----------
    oracle : str or Oracle
        "arborescence" (the default), or "projective_tree" for trees without crossing arcs.
    relaxation : str or Relaxation
        The relaxation, "marginals" by default. :func:`structinf.list_relaxations` lists the names.
    **options
        Options of an oracle or relaxation given by name, such as ``single_root=True``.

    Notes
    -----
    A pair with score −inf is forbidden in every tree. If no tree remains, the call raises InfeasibleError. Words with
    padding in either mask are removed from the tree.

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
        super().__init__(oracle, relaxation, False, options)  # the weights already sum to 1

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
