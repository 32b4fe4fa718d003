"""Segmentation attention: a two-state chain over the keys selects segments of keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..oracle import Oracle
from ..relaxation import Relaxation
from .base import StructuredWeights

__all__ = ["SegmentationWeights"]


class SegmentationWeights(StructuredWeights):
    """Attention weights from a chain over the keys: the probability that a query selects each key.

    Each key t has a state y_t, 1 if the query selects the key and 0 otherwise. For the scores s of a query,

        p(y) ∝ exp(Σ_t s_t y_t + Σ_t A[y_t, y_{t+1}]),   w_t ∝ p(y_t = 1),

    with a learned transition A, (2, 2), shared by all queries. With the initial A = 0, each key is selected
    independently, with probability sigmoid(s_t). A[1, 1] above 0 favours runs of keys.

    =====================================  =========================================================================
    relaxation                             weights
    =====================================  =========================================================================
    "marginals"                            dense: marginals of a conditional random field (Kim et al.)
    "smoothed", regularizer="squared_l2"   sparse: smoothed Viterbi recursion (Mensch & Blondel)
    "sparsemap", ...                       any other relaxation supported by chains
    =====================================  =========================================================================

    Parameters
    ----------
    relaxation : str or Relaxation
        The relaxation, "marginals" by default. :func:`structinf.list_relaxations` lists the names.
    oracle : str or Oracle
        An oracle with the scores of a chain, "chain" by default.
    normalized : bool
        Whether to divide the weights of each query by their sum, as Mensch & Blondel do (default True). With False, the
        weights are probabilities from 0 to 1. If all probabilities of a query are 0, the weights stay 0. Sparse
        relaxations give such zeros, and so do probabilities below e^−87 in float32.
    **options
        Options of an oracle or relaxation given by name, mainly ``temperature``. Mensch & Blondel use 2 for the
        negative entropy and 10 for the squared norm, where low temperatures give weights of 0 and 1 without gradient.

    Attributes
    ----------
    transition : (2, 2) nn.Parameter
        A[from, to], initially 0.

    Notes
    -----
    In Mensch & Blondel's tensor θ[t, i, j], i is the state of key t and j is the state of key t − 1. Its entries are
    A[j, i] for i = 0 and A[j, i] + s_t for i = 1. A key with score −inf stays in the chain with state 0. Padding is
    removed from the chain.

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
        self.transition = nn.Parameter(torch.empty(2, 2))  # on the default device
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the transition to 0, so that keys are selected independently."""
        nn.init.zeros_(self.transition)

    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        unary = torch.stack([torch.zeros_like(scores), scores], -1)
        lengths = None if keys is None else keys.unsqueeze(-1).expand(scores.shape[:-1])
        nodes, _ = self.relaxed_mean((unary, self.transition), lengths, generator)
        return nodes[..., 1]
