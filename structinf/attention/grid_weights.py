"""Alignment and matching attention: one structure over all pairs of queries and keys."""

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
    """Attention weights from an oracle over matrices: one relaxed structure over all queries and keys.

    =======================  ======================================================================================
    oracle                   weights
    =======================  ======================================================================================
    "assignment"             matching attention: each key is matched with at most one query. Rows sum to 1 if there are
                             at least as many keys as queries
    "dtw"                    alignment attention: each query is aligned with a run of consecutive keys, in order. Rows
                             sum to the expected length of the run, or to 1 if ``normalized``
    "monotonic_alignment"    monotonic attention: each query selects one key, and keys never decrease from query to
                             query. Rows sum to 1. Needs ``transposed=True``, since columns of the oracle select rows
    =======================  ======================================================================================

    Parameters
    ----------
    oracle : str or Oracle
        An oracle over matrices (n, m), "assignment" by default.
    relaxation : str or Relaxation
        The relaxation, "sparsemap" by default. :func:`structinf.list_relaxations` lists the names.
    transposed : bool
        Whether rows of the oracle are keys and columns are queries, default False.
    normalized : bool
        Whether to divide the weights of each query by their sum, default False.
    **options
        Options of an oracle or relaxation given by name.

    Notes
    -----
    A pair with score −inf is forbidden in every structure. If no structure remains, for example for a query without
    keys in an alignment, the call raises InfeasibleError. Padding is removed from the structure. If an instance of the
    oracle has one length, as for graphs, queries and keys must be the same sequence.

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
                f"{self.layer.oracle.label()} takes no lengths, so queries and keys cannot have padding; group "
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
