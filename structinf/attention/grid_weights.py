"""Alignment and matching attention: one structure over all pairs of a query and a key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..oracle import Oracle
from ..relaxation import Relaxation
from ..validation import check_flag
from .base import StructuredWeights

__all__ = ["GridWeights"]


class GridWeights(StructuredWeights):
    """The relaxed structure of an oracle of matrices, over the whole matrix of queries and keys.

    =======================  ======================================================================================
    oracle                   weights
    =======================  ======================================================================================
    "assignment"             matching attention: a key goes to one query at most, so that later words do not attend
                             again to what is taken; rows sum to 1 if there are no fewer keys than queries
    "dtw"                    alignment attention: queries and keys are read in order, and each query meets a run of
                             keys; rows sum to the run's expected length, or to 1 if ``normalized``
    "monotonic_alignment"    each query picks one key, and later queries never an earlier one; rows sum to 1. It takes
                             the place of attention that has to learn this. Its columns pick rows: ``transposed=True``
    =======================  ======================================================================================

    Parameters
    ----------
    oracle : str or Oracle
        Of matrices (n, m), such as those above.
    relaxation : str or Relaxation
    transposed : bool
        Whether the oracle's rows are the keys, and its columns the queries.
    normalized : bool
        Whether a query's weights are divided by their sum.
    **options
        Of whatever was given by name.

    Notes
    -----
    A forbidden pair, of score −inf, is forbidden in every structure; if none is left, for a query without keys in an
    alignment say, that is an InfeasibleError. Padding is left out of the structure. Where the oracle's ``lengths`` are
    one number, as for graphs, queries and keys are the same sequence.

    Examples
    --------
    >>> scores = torch.tensor([[1.0, 0.9], [1.0, 0.0]])
    >>> GridWeights("assignment", "sinkhorn")(scores)
    tensor([[0.3894, 0.6106],
            [0.6106, 0.3894]])
    >>> GridWeights("monotonic_alignment", "map", transposed=True)(
    ...     torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    ... )
    tensor([[1., 0.],
            [1., 0.]])
    """

    event_ndim = 2

    def __init__(
        self,
        oracle: str | Oracle = "assignment",
        relaxation: str | Relaxation = "sparsemap",
        *,
        transposed: bool = False,
        normalized: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(oracle, relaxation, normalized, options)
        check_flag("transposed", transposed)
        self.transposed = transposed

    @property
    def is_self_attention(self) -> bool:
        return self.layer.oracle.instance_ndim.get("lengths") == 0

    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        theta = scores.mT if self.transposed else scores
        weights = self.relaxed_mean(theta, self._lengths(scores, queries, keys), generator)
        return weights.mT if self.transposed else weights

    def _lengths(self, scores: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor | None:
        if queries is None and keys is None:
            return None
        if "lengths" not in self.layer.oracle.instance_ndim:
            raise UnsupportedError(
                f"{self.layer.oracle.label()} takes no lengths, so that no query and no key can be padding; group "
                "instances of equal size, or forbid pairs by an attn_mask"
            )
        batch, (n, m) = scores.shape[:-2], scores.shape[-2:]
        sides = [
            torch.full(batch, size, device=scores.device) if found is None else found.expand(batch)
            for found, size in ((queries, n), (keys, m))
        ]
        if self.is_self_attention:
            return sides[1]
        return torch.stack(sides[::-1] if self.transposed else sides, -1)

    def extra_repr(self) -> str:
        return f"transposed={self.transposed}, {super().extra_repr()}"
