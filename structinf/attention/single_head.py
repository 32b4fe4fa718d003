"""Attention with one head: scores of queries and keys, weights, contexts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..relaxation import Relaxation
from ..shapes import Float
from .base import AttentionWeights
from .padding import apply_masks, check_mask, is_padding
from .resolve import choose_weights

__all__ = ["StructuredAttention", "scaled_dot"]


def scaled_dot(query: Tensor, key: Tensor) -> Float[Tensor, "*batch queries keys"]:
    """⟨q, k⟩ / √d for queries (..., n, d) and keys (..., m, d)."""
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise InvalidInputError(
            "query and key must have shapes (..., n, d) and (..., m, d) with the same d, got "
            f"{tuple(query.shape)} and {tuple(key.shape)}; pass a score=... for others"
        )
    return (query / math.sqrt(query.shape[-1])) @ key.mT


class StructuredAttention(nn.Module):
    """Contexts of queries: sums of values whose weights come from any map to the simplex, or from a relaxed structure.

        S = score(query, key),  W = weights(S),  context = W · value

    ===============================================================  =========================================
    StructuredAttention(...)                                         attention
    ===============================================================  =========================================
    "softmax", "sparsemax", "entmax15", ...; or a function           of each query by itself, dense or sparse
    oracle="chain", relaxation="marginals"                           to segments: :class:`SegmentationWeights`
    oracle="chain", relaxation="smoothed", regularizer="squared_l2"  to segments, sparse
    oracle="subset", k=3                                             to k keys: :class:`RowWeights`
    oracle="assignment", relaxation="sinkhorn"                       by matching: :class:`GridWeights`
    oracle="dtw", relaxation="smoothed", normalized=True             by alignment
    oracle="monotonic_alignment", relaxation="marginals"             by alignment, one key for each query
    oracle="arborescence", relaxation="marginals"                    to heads: :class:`DependencyWeights`
    an object of :class:`AttentionWeights`                           your own
    ===============================================================  =========================================

    Parameters
    ----------
    weights : str, callable or AttentionWeights, optional
        As for :class:`SimplexWeights`, or an object; "softmax" if no oracle is given.
    oracle : str or Oracle, optional
        In place of ``weights``.
    relaxation : str or Relaxation, optional
        Of the oracle; that of the classes above by default.
    score : callable, optional
        A function or module from query (..., n, d) and key (..., m, e) to scores (..., n, m); ⟨q, k⟩ / √d by default.
    dropout : float
        How probable it is that a weight is put to 0 in training.
    **options
        Of the map, the oracle, the relaxation, or the classes above (``normalized``).

    Raises
    ------
    UnknownNameError, UnsupportedError, TypeError
        If a name is unknown, an oracle cannot have the relaxation, or an option is nobody's.

    Examples
    --------
    >>> attention = StructuredAttention("sparsemax")
    >>> query, key = (
    ...     torch.tensor([[1.0, 0.0]]),
    ...     torch.tensor([[2.0, 0.0], [1.0, 1.0], [-3.0, 0.0]]),
    ... )
    >>> context, weights = attention(query, key, key)
    >>> weights
    tensor([[0.8536, 0.1464, 0.0000]])
    >>> StructuredAttention(oracle="assignment", relaxation="sinkhorn")(
    ...     key, key, key
    ... )[1].sum(0)
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        weights: str | Callable[..., Tensor] | AttentionWeights | None = None,
        *,
        oracle: str | Oracle | None = None,
        relaxation: str | Relaxation | None = None,
        score: Callable[[Tensor, Tensor], Tensor] | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(dropout, int | float):
            raise TypeError(f"dropout must be a number, got {dropout!r}; what weighs the keys is passed as weights=...")
        self.weights = choose_weights(weights, oracle, relaxation, options)
        self.score = scaled_dot if score is None else score
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Contexts (..., n, e) and weights (..., n, m).

        Parameters
        ----------
        query, key : (..., n, d) and (..., m, d) Tensor
        value : (..., m, e) Tensor
        key_padding_mask : (..., m) Tensor, optional
            True where a key is padding: it is as if it were not there, also for its neighbours in a structure. One in
            floating point, as torch has it, is added to the scores, and −inf is padding.
        need_weights : bool
            Whether the weights are returned too, before dropout; else None in their place.
        attn_mask : (..., n, m) Tensor, optional
            True where a query may not attend to a key; or in floating point, added to the scores.
        query_padding_mask : (..., n) bool Tensor, optional
            True where a query is padding: its weights and its context are 0. Where query and key are the same tensor
            and the structure is over all queries, it is the keys' unless said otherwise.
        generator : torch.Generator, optional
            The only source of randomness of weights that draw noise; torch's own one by default.

        Notes
        -----
        A query whose keys are all masked has weights and a context of 0, where torch gives NaN; in a structure over
        all queries, where forbidden pairs may leave no structure, it is an InfeasibleError.
        """
        if query is key and query_padding_mask is None:
            query_padding_mask = self.self_attention_padding(key_padding_mask)
        return self.attend(
            self.score(query, key),
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            query_padding_mask=query_padding_mask,
            generator=generator,
        )

    def self_attention_padding(self, key_padding_mask: Tensor | None) -> Tensor | None:
        """The ``query_padding_mask`` of self-attention, where a structure over all queries needs one."""
        if key_padding_mask is None or not self.weights.couples_queries:
            return None
        check_mask("key_padding_mask", key_padding_mask, key_padding_mask.shape, floating=True)
        return is_padding(key_padding_mask)

    def attend(
        self,
        scores: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As :meth:`forward`, from scores (..., n, m)."""
        if scores.ndim < 2 or value.ndim < 2 or value.shape[-2] != scores.shape[-1]:
            raise InvalidInputError(
                "scores (..., n, m) and values (..., m, e) are needed, one value for each key; got shapes "
                f"{tuple(scores.shape)} and {tuple(value.shape)}"
            )
        scores, padding = apply_masks(scores, key_padding_mask, attn_mask)
        weights = self.weights(scores, padding, query_padding_mask, generator)
        return self.dropout(weights) @ value, weights if need_weights else None
