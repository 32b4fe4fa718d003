"""Base classes of attention weights: maps from scores, and means of relaxed structures."""

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
    """A map from scores of queries and keys to the weights of the keys in each query's context.

    Subclass it for weights of your own: :class:`StructuredAttention` and :class:`StructuredMultiheadAttention` take
    any.
    """

    @property
    def couples_queries(self) -> bool:
        """Whether one structure covers all queries, so that padding among the queries would change it."""
        return False

    @abc.abstractmethod
    def forward(
        self,
        scores: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch queries keys"]:
        """The weights, of the shape and dtype of the scores.

        Laws: what is padding is as if it were not there, wherever it stands, and whatever its scores; its weights, and
        those of pairs whose score is −inf, are 0. The result is differentiable in the scores, and half precision is
        computed in float32.

        Parameters
        ----------
        scores : (..., n, m) Tensor
            Of n queries and m keys; −inf forbids a pair.
        key_padding_mask : (..., m) bool Tensor, optional
            True where a key is padding; its batch dimensions broadcast.
        query_padding_mask : (..., n) bool Tensor, optional
            The same of the queries.
        generator : torch.Generator, optional
            The only source of randomness, for weights that draw noise; torch's own one by default.
        """


class StructuredWeights(AttentionWeights):
    """Weights from the mean of a relaxed structure; subclasses say how scores become potentials.

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
    normalized : bool
        Whether a query's weights are divided by their sum. A query without any weight keeps weights of 0.
    options : mapping
        Of whatever was given by name.
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
        """Whether padding among the keys gets score −inf in place, instead of being moved to the end."""
        return False

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys are the same sequence, and share their padding."""
        return False

    @abc.abstractmethod
    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """Return weights (..., n, m) before normalisation, with any values in the padding.

        Parameters
        ----------
        scores : (..., n, m) Tensor
            In full precision. All padding is at the end and has score 0.
        queries, keys : (...) Tensor or None
            Numbers of queries and keys that are not padding, which may be 0; None means all.
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
            return scores.clone()  # few oracles accept structures without parts
        if key_padding_mask is not None and self.masks_padding_in_place:
            scores, key_padding_mask = scores.masked_fill(key_padding_mask.unsqueeze(-2), -math.inf), None
        if self.is_self_attention:
            key_padding_mask = query_padding_mask = self._merge_padding(scores, key_padding_mask, query_padding_mask)
        queries, keys = PaddedDim(query_padding_mask, -2), PaddedDim(key_padding_mask, -1)
        weights = self.mean(keys.pack(queries.pack(upcast_half(scores))), queries.lengths, keys.lengths, generator)
        weights = queries.unpack(keys.unpack(weights))
        return (normalize(weights) if self.normalized else weights).to(scores.dtype)

    def _merge_padding(self, scores: Tensor, of_keys: Tensor | None, of_queries: Tensor | None) -> Tensor | None:
        """Return the padding of the sequence that is both queries and keys."""
        if scores.shape[-2] != scores.shape[-1]:
            raise InvalidInputError(
                f"{self.layer.oracle.label()} is over one sequence, so that scores (..., n, n) of self-attention are "
                f"needed, got shape {tuple(scores.shape)}"
            )
        return of_keys if of_queries is None else of_queries if of_keys is None else of_keys | of_queries

    def relaxed_mean(self, theta: Any, lengths: Tensor | None, generator: torch.Generator | None) -> Any:
        """Return the layer's mean; lengths of 0 become 1, because oracles accept no empty side."""
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
