"""Attention with one head."""

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
from ..validation import check_floating, check_generator
from .base import AttentionWeights
from .padding import apply_masks, check_mask, is_padding
from .resolve import choose_weights

__all__ = ["StructuredAttention", "scaled_dot"]


def scaled_dot(query: Tensor, key: Tensor) -> Float[Tensor, "*batch queries keys"]:
    """Return scaled dot products ⟨q, k⟩ / √d, (..., n, m), for queries (..., n, d) and keys (..., m, d)."""
    check_floating("query", query)
    check_floating("key", key)
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise InvalidInputError(
            "query and key must have shapes (..., n, d) and (..., m, d) with the same d, got "
            f"{tuple(query.shape)} and {tuple(key.shape)}; for other shapes, pass a function score=..."
        )
    check_same_batch_and_dtype("query", query, "key", key)
    return (query / math.sqrt(query.shape[-1])) @ key.mT


def check_same_batch_and_dtype(name: str, t: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless two tensors (..., rows, columns) have one dtype, or autocast is on, and their batches broadcast.

    Parameters
    ----------
    name, other_name : str
        The names of the arguments, for messages.
    t, other : Tensor
        The arguments.

    Raises
    ------
    TypeError
        If the dtypes differ.
    InvalidInputError
        If the batch dimensions do not broadcast.
    """
    if t.dtype != other.dtype and not torch.is_autocast_enabled(t.device.type):
        raise TypeError(
            f"{name} and {other_name} must have the same dtype, got {t.dtype} and {other.dtype}; cast one with .to()"
        )
    sizes = zip(reversed(t.shape[:-2]), reversed(other.shape[:-2]), strict=False)
    if any(size != other_size and 1 not in (size, other_size) for size, other_size in sizes):
        raise InvalidInputError(
            f"{name} and {other_name} must have batch dimensions that broadcast, in front of the last two, got shapes "
            f"{tuple(t.shape)} and {tuple(other.shape)}; pass the same batch"
        )


class StructuredAttention(nn.Module):
    """Attention with weights from a map to the simplex, or from a relaxed structure over queries and keys.

        S = score(query, key),  W = weights(S),  context = W · value

    ===============================================================  =========================================
    StructuredAttention(...)                                         attention
    ===============================================================  =========================================
    "softmax", "sparsemax", "entmax15", ...; or a function           separate queries: :class:`SimplexWeights`
    oracle="chain", relaxation="marginals"                           segments: :class:`SegmentationWeights`
    oracle="chain", relaxation="smoothed", regularizer="squared_l2"  sparse segments
    oracle="subset", k=3                                             k keys per query: :class:`RowWeights`
    oracle="assignment", relaxation="sinkhorn"                       matching: :class:`GridWeights`
    oracle="dtw", relaxation="smoothed", normalized=True             alignment
    oracle="monotonic_alignment", relaxation="marginals"             alignment, one key per query
    oracle="arborescence", relaxation="marginals"                    heads of words: :class:`DependencyWeights`
    an object of :class:`AttentionWeights`                           custom weights
    ===============================================================  =========================================

    Parameters
    ----------
    weights : str, callable or AttentionWeights, optional
        A function name or function, as for :class:`SimplexWeights`, or an object of :class:`AttentionWeights`. The
        default without an oracle is "softmax".
    oracle : str or Oracle, optional
        An oracle, instead of ``weights``. :func:`structinf.list_oracles` lists the names.
    relaxation : str or Relaxation, optional
        The relaxation of the oracle (:func:`structinf.list_relaxations`). The default is the default of the class in
        the table.
    score : callable, optional
        A function or module from query (..., n, d) and key (..., m, e) to scores (..., n, m). The default is
        ⟨q, k⟩ / √d.
    dropout : float
        Probability of setting a weight to 0 in training, default 0.
    **options
        Options of the function, oracle or relaxation given by name, and of the classes in the table (``normalized``).

    Raises
    ------
    UnknownNameError
        If a name is unknown.
    UnsupportedError
        If the oracle does not support the relaxation.
    TypeError
        If an option is unknown.

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
        if isinstance(dropout, bool) or not isinstance(dropout, int | float):
            raise TypeError(f"dropout must be a number, got {dropout!r}; pass attention weights as weights=...")
        if not 0 <= dropout <= 1:
            raise InvalidInputError(f"dropout must be a probability between 0 and 1, got {dropout!r}")
        if score is not None and not callable(score):
            raise TypeError(f"score must be a function of query and key, or None, got {score!r}")
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
        """Return contexts (..., n, e) and weights (..., n, m).

        Parameters
        ----------
        query : (..., n, d) Tensor
            The queries.
        key : (..., m, d) Tensor
            The keys.
        value : (..., m, e) Tensor
            The values, one for each key.
        key_padding_mask : (..., m) Tensor, optional
            True for padded keys, which are removed from the structure. A floating-point mask is added to the scores, as
            in torch, and −inf marks padding.
        need_weights : bool
            Whether to return the weights, without dropout, instead of None. Default True.
        attn_mask : (..., n, m) Tensor, optional
            True for forbidden pairs, or a floating-point mask added to the scores.
        query_padding_mask : (..., n) bool Tensor, optional
            True for padded queries, whose weights and contexts are 0. The default is the padding of the keys if one
            structure covers all queries, and ``query`` and ``key`` are the same tensor.
        generator : torch.Generator, optional
            Random generator for stochastic weights. The default is torch's own.

        Notes
        -----
        If all keys of a query are masked, its weights and context are 0, where torch returns NaN. If one structure
        covers all queries and the masks allow no structure, the call raises InfeasibleError.
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
        """Return the ``query_padding_mask`` of self-attention, or None if no structure covers all queries.

        Parameters
        ----------
        key_padding_mask : (..., m) bool Tensor, optional
            True for keys in the padding.
        """
        if key_padding_mask is None or not self.weights.couples_queries:
            return None
        check_mask("key_padding_mask", key_padding_mask, getattr(key_padding_mask, "shape", ()), floating=True)
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
        """Return contexts and weights as :meth:`forward` does, for given scores (..., n, m).

        Parameters
        ----------
        scores : (..., n, m) Tensor
            The score of each pair of a query and a key.
        value : (..., m, e) Tensor
            A value for each key.
        key_padding_mask, attn_mask, query_padding_mask, generator
            As for :meth:`forward`.
        need_weights : bool
            Whether to return the weights; otherwise the second result is None.
        """
        check_floating("scores", scores)
        check_floating("value", value)
        check_generator(generator)
        if scores.ndim < 2 or value.ndim < 2 or value.shape[-2] != scores.shape[-1]:
            raise InvalidInputError(
                "scores and values must have shapes (..., n, m) and (..., m, e), one value for each key; got shapes "
                f"{tuple(scores.shape)} and {tuple(value.shape)}"
            )
        check_same_batch_and_dtype("scores", scores, "value", value)
        scores, padding = apply_masks(scores, key_padding_mask, attn_mask)
        weights = self.weights(scores, padding, query_padding_mask, generator)
        return self.dropout(weights) @ value, weights if need_weights else None
