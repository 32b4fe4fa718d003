"""Base classes of attention weights."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError, UnsupportedError
from ..kernels.arrays import upcast_half
from ..layers import Layer
from ..oracle import Oracle
from ..relaxation import Relaxation
from ..shapes import Float
from ..validation import check_flag
from .padding import PaddedDim, check_mask

__all__ = ["AttentionWeights", "StructuredWeights", "normalize"]


class AttentionWeights(nn.Module, abc.ABC):
    """Base class of maps from the scores of queries and keys to attention weights.

    :class:`StructuredAttention` and :class:`StructuredMultiheadAttention` accept an object of any subclass as
    ``weights``.
    """

    @property
    def couples_queries(self) -> bool:
        """Whether one structure covers all queries, so that padded queries would affect other queries."""
        return False

    @abc.abstractmethod
    def forward(
        self,
        scores: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch queries keys"]:
        """Return the attention weights, (..., n, m), in the dtype of the scores.

        Laws:

        - Padding has weight 0 and does not affect other weights, at any position and with any scores.
        - Pairs with score −inf have weight 0.
        - The weights are differentiable in the scores.
        - Half-precision scores are computed in float32.

        Parameters
        ----------
        scores : (..., n, m) Tensor
            Scores of n queries and m keys; −inf forbids a pair.
        key_padding_mask : (..., m) bool Tensor, optional
            True for padded keys. Batch dimensions broadcast.
        query_padding_mask : (..., n) bool Tensor, optional
            True for padded queries. Batch dimensions broadcast.
        generator : torch.Generator, optional
            Random generator for stochastic weights. The default is torch's own.
        """


class StructuredWeights(AttentionWeights):
    """Base class of attention weights from the mean of a relaxation; subclasses implement :meth:`mean`.

    Parameters
    ----------
    oracle : str or Oracle
        An oracle, or a name from :func:`structinf.list_oracles`.
    relaxation : str or Relaxation
        A relaxation, or a name from :func:`structinf.list_relaxations`.
    normalized : bool
        Whether to divide the weights of each query by their sum. Weights that are all 0 stay 0.
    options : mapping
        Options of an oracle or relaxation given by name.
    """

    event_ndim: ClassVar[int | tuple[int, ...]]

    def __init__(
        self, oracle: str | Oracle, relaxation: str | Relaxation, normalized: bool, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        check_flag("normalized", normalized)
        self.layer, self.normalized = Layer(oracle, relaxation, **options), normalized
        found = getattr(self.layer.oracle, "event_ndim", None)
        if found != self.event_ndim:
            raise UnsupportedError(
                f"{type(self).__name__} makes scores for structures with {_dimensions(self.event_ndim)}, and "
                f"{self.layer.oracle.label()} takes {_dimensions(found)}; for other forms of scores, override mean() "
                "in a subclass of StructuredWeights"
            )

    @property
    def couples_queries(self) -> bool:
        return self.event_ndim == 2

    @property
    def masks_padding_in_place(self) -> bool:
        """Whether padded keys get score −inf in place, instead of moving to the end."""
        return False

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys are one sequence with common padding."""
        return False

    @abc.abstractmethod
    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """Return weights (..., n, m) before normalization, with arbitrary values in the padding.

        Parameters
        ----------
        scores : (..., n, m) Tensor
            Scores in float32 or float64. All padding is at the end and has score 0.
        queries : (...) integer Tensor or None
            Number of queries without padding, at least 0. None means n.
        keys : (...) integer Tensor or None
            Number of keys without padding, at least 0. None means m.
        generator : torch.Generator or None
            Random generator for a stochastic relaxation.
        """

    def forward(
        self,
        scores: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch queries keys"]:
        for name, mask, dim in (("key", key_padding_mask, -1), ("query", query_padding_mask, -2)):
            if mask is not None:
                check_mask(f"{name}_padding_mask", mask, (*scores.shape[:-2], scores.shape[dim]))
        if not (scores.shape[-2] and scores.shape[-1]):
            return scores.clone()  # most oracles reject structures without parts
        if key_padding_mask is not None and self.masks_padding_in_place:
            scores, key_padding_mask = scores.masked_fill(key_padding_mask.unsqueeze(-2), -math.inf), None
        if self.is_self_attention:
            key_padding_mask = query_padding_mask = self._merge_padding(scores, key_padding_mask, query_padding_mask)
        queries, keys = PaddedDim(query_padding_mask, -2), PaddedDim(key_padding_mask, -1)
        weights = self.mean(keys.pack(queries.pack(upcast_half(scores))), queries.lengths, keys.lengths, generator)
        weights = queries.unpack(keys.unpack(weights))
        return (normalize(weights) if self.normalized else weights).to(scores.dtype)

    def _merge_padding(self, scores: Tensor, of_keys: Tensor | None, of_queries: Tensor | None) -> Tensor | None:
        """Return the padding mask of the sequence in self-attention: the union of both masks."""
        if scores.shape[-2] != scores.shape[-1]:
            raise InvalidInputError(
                f"scores must have shape (..., n, n), because {self.layer.oracle.label()} is a structure over one "
                f"sequence (self-attention); got shape {tuple(scores.shape)}"
            )
        return of_keys if of_queries is None else of_queries if of_keys is None else of_keys | of_queries

    def relaxed_mean(self, theta: Any, lengths: Tensor | None, generator: torch.Generator | None) -> Any:
        """Return the mean of the layer, with lengths of 0 raised to 1, because oracles reject a length of 0.

        Parameters
        ----------
        theta : Tensor, or tuple of Tensor
            The scores of the parts.
        lengths : integer Tensor, optional
            The lengths of each instance.
        generator : torch.Generator, optional
            The source of all noise.
        """
        data = {} if lengths is None else {"lengths": lengths.clamp(min=1)}
        return cast(Any, self.layer(theta, generator=generator, **data))

    def extra_repr(self) -> str:
        return f"normalized={self.normalized}"


def normalize(weights: Tensor) -> Float[Tensor, "*batch queries keys"]:
    """Divide the weights of each query by their sum; all-zero weights stay 0."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1)


def _dimensions(event_ndim: Any) -> str:
    return f"{event_ndim} dimensions" if isinstance(event_ndim, int) else f"dimensions {event_ndim}"
