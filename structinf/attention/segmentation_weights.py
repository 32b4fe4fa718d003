"""Segmentation attention: which keys are selected depends on whether their neighbours are, by a two-state chain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..oracle import Oracle
from ..relaxation import Relaxation
from .base import StructuredWeights

__all__ = ["SegmentationWeights"]


class SegmentationWeights(StructuredWeights):
    """How probable it is that each key is selected, for each query, in a chain over the keys.

    Key t is selected, y_t = 1, or not. For one query's scores s,

        p(y) ∝ exp(Σ_t s_t y_t + Σ_t A[y_t, y_{t+1}]),   w_t ∝ p(y_t = 1),

    with a learned transition A, (2, 2), that all queries share. With A = 0, as at first, each key is selected by a
    sigmoid of its own score; A[1, 1] above 0 favours runs of keys.

    =====================================  =========================================================================
    relaxation                             weights
    =====================================  =========================================================================
    "marginals"                            dense, of a conditional random field: Kim et al.'s
    "smoothed", regularizer="squared_l2"   sparse, of the smoothed Viterbi recursion: Mensch & Blondel's
    "sparsemap", ...                       whatever works for a chain
    =====================================  =========================================================================

    Parameters
    ----------
    relaxation : str or Relaxation
    oracle : str or Oracle
        Of a chain's potentials.
    normalized : bool
        Whether a query's weights are divided by their sum, as Mensch & Blondel do; else they are the probabilities
        themselves, each between 0 and 1. A query whose keys all have probability 0 keeps weights of 0: with sparse
        relaxations, or where each is too small a number for float32, below e^−87.
    **options
        Of whatever was given by name: ``temperature`` above all. Mensch & Blondel's are 2 for the negative entropy and
        10 for the squared norm, where small ones leave 0 and 1 with no gradient.

    Attributes
    ----------
    transition : (2, 2) nn.Parameter
        A[from, to]; 0 at first.

    Notes
    -----
    In Mensch & Blondel's tensor, θ[t, i, j] has the state i of key t and j of key t − 1: it is A[j, i], with s_t added
    for i = 1. A key that is forbidden, by a score of −inf, is passed over in state 0; padding is left out of the chain.

    References
    ----------
    Y. Kim, C. Denton, L. Hoang & A. Rush, Structured attention networks, ICLR 2017, §3.1.
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §5
    and appendix C.3.

    Examples
    --------
    >>> weights = SegmentationWeights("marginals", normalized=False)
    >>> scores = torch.tensor([[2.0, 0.0, 2.0, -4.0]])
    >>> weights(scores).detach()
    tensor([[0.8808, 0.5000, 0.8808, 0.0180]])
    >>> weights.transition.data = torch.tensor([[0.0, -1.0], [-1.0, 1.0]])
    >>> weights(scores).detach()
    tensor([[0.9713, 0.9574, 0.9395, 0.1124]])
    """

    event_ndim = (2, 2)

    def __init__(
        self,
        relaxation: str | Relaxation = "marginals",
        oracle: str | Oracle = "chain",
        *,
        normalized: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(oracle, relaxation, normalized, options)
        self.transition = nn.Parameter(torch.empty(2, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each key by itself, as at first."""
        nn.init.zeros_(self.transition)

    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        unary = torch.stack([torch.zeros_like(scores), scores], -1)
        lengths = None if keys is None else keys.unsqueeze(-1).expand(scores.shape[:-1])
        nodes, _ = self.relaxed_mean((unary, self.transition), lengths, generator)
        return nodes[..., 1]
