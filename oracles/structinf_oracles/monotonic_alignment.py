"""Monotonic alignments: each column of a grid picks a row, and the rows never decrease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.shapes import Int
from structinf.validation import check_flag

from .common.grids import cells_within, check_grid, sizes_in_use
from .common.labels import agreeing_choices, indicators, reject_labels

__all__ = ["MonotonicAlignment"]


@dataclass(frozen=True)
class MonotonicAlignment(HypergraphProgram):
    """Alignments in which each of m columns picks one of n rows, and the rows never decrease.

    For example, the columns are frames of speech or of a musical performance, and the rows are phonemes or notes.

    - Scores θ, shape (..., n, m), any sign: the score of each cell. −inf forbids a cell. By default the first and the
      last row picked are free. Scores of −inf in the first or the last column determine where the alignment begins or
      ends.
    - Structure y, shape (..., n, m): 1 in the cell picked by each column.
    - Labels, shape (..., m): the row picked by each column, an integer in [0, n). Decoded labels are −1 beyond the
      length.
    - Instance data ``lengths``, shape (..., 2): the numbers of rows and of columns in use, integers in [1, n] and [1,
      m], or both 0. Default: n and m. In y all parts outside are 0.

    Parameters
    ----------
    surjective : bool, default False
        Whether every row in use is picked by at least one column. The alignment then starts in the first row, ends in
        the last row, and advances by at most one row per column. The number of rows must be at most the number of
        columns.

    Notes
    -----
    There are C(n + m − 1, m) alignments and C(m − 1, n − 1) surjective alignments. Time and memory are O(nm). Ties go
    to the lowest row, decided from the last column backwards.

    References
    ----------
    J. Kim, S. Kim, J. Kong & S. Yoon, Glow-TTS: a generative flow for text-to-speech via monotonic alignment search,
    NeurIPS 2020, Algorithm 1, for surjective alignments.

    Examples
    --------
    >>> theta = torch.tensor(
    ...     [[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 2.0, 1.0]]]
    ... )
    >>> free = MonotonicAlignment()
    >>> surjective = MonotonicAlignment(surjective=True)
    >>> free.decode(free.argmax(theta))
    tensor([[0, 2, 2]])
    >>> surjective.decode(surjective.argmax(theta))
    tensor([[0, 1, 2]])
    >>> free.count(theta), surjective.count(theta)
    ([10], [1])
    """

    name: ClassVar[str] = "monotonic_alignment"
    search_terms: ClassVar[tuple[str, ...]] = ("monotonic_attention", "alignment")
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    has_empty_structure: ClassVar[bool] = True
    label_ndim: ClassVar[int] = 1

    surjective: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_flag("surjective", self.surjective)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int, int]) -> Hypergraph:
        graph, (n, m) = HypergraphBuilder(event_shape), event_shape
        cells = graph.parts
        goals = np.full((n + 1, m + 1), -1)
        if self.surjective:
            at = graph.nodes(n, m)  # [i, j]: the columns up to j, and column j picks row i
            graph.add(at[0, 0], part=cells[0, 0])
            graph.add(at[1:, 1:], at[:-1, :-1], part=cells[1:, 1:])
            graph.add(at[:, 1:], at[:, :-1], part=cells[:, 1:])
            goals[1:, 1:] = np.where(np.tri(n, m, -1, bool), -1, at)
        else:
            within = graph.nodes(n, m + 1)  # [i, j]: the first j columns, and all pick rows up to i
            graph.add(within[:, 0])
            graph.add(within[1:, 1:], within[:-1, 1:])
            graph.add(within[:, 1:], within[:, :-1], part=cells)
            goals[1:, 1:] = within[:, 1:]
        return graph.build(goals, prune=True)

    def validate(self, theta: Tensor) -> None:
        check_grid(self.label(), theta, self.bound.get("lengths"))
        if self.surjective:
            rows, columns = sizes_in_use(self.bound, theta.shape[1:], theta).unbind(1)
            if bool((rows > columns).any()):
                index = int((rows > columns).nonzero()[0, 0])
                raise InvalidInputError(
                    f"theta: surjective alignments need a column for each row, got {int(rows[index])} rows and "
                    f"{int(columns[index])} columns at batch index {index}; transpose theta, or allow skipped rows "
                    "with surjective=False"
                )

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return cells_within(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        _, n, m = like.shape
        if labels.ndim != 2 or labels.shape[1] != m:
            raise InvalidInputError(
                f"labels must be the row of each column, shape (..., {m}); got {tuple(labels.shape)} with the batch "
                "flat"
            )
        rows, columns = sizes_in_use(self.bound, (n, m), labels).split(1, 1)
        used = torch.arange(m, device=labels.device) < columns
        reject_labels(used & ((labels < 0) | (labels >= rows)), labels, "a row is not in use", defers=True)
        step = labels.diff(dim=1)
        reject_labels(used[:, 1:] & (step < 0), labels, "a row is below the row of the column before", defers=True)
        if self.surjective:
            last = labels.gather(1, columns - 1)
            skipped = (used[:, 1:] & (step > 1)) | (labels[:, :1] != 0) | (last != rows - 1)
            reject_labels(skipped, labels, "a row is skipped", defers=True)
        cells = labels * m + torch.arange(m, device=labels.device)
        return indicators(cells, used.expand(labels.shape), n * m, like).reshape(len(labels), n, m)

    def allowed_parts(self, labels: Tensor, like: Tensor) -> Tensor:
        _, n, m = like.shape
        if labels.ndim != 2 or labels.shape[1] != m:
            raise InvalidInputError(f"labels must be the row of each column, (B, {m}), got {tuple(labels.shape)}")
        rows, columns = sizes_in_use(self.bound, (n, m), labels).split(1, 1)
        used = torch.arange(m, device=labels.device) < columns
        return agreeing_choices(labels, used, rows, n).transpose(1, 2)

    def decode(self, y: Tensor) -> Int[Tensor, "batch m"]:
        return torch.where((y == 0).all(1), -1, y.argmax(1))
