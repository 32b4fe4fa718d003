"""Monotonic alignments: each column of a grid picks a row, and rows never go back."""

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
from .common.labels import indicators, reject_labels

__all__ = ["MonotonicAlignment"]


@dataclass(frozen=True)
class MonotonicAlignment(HypergraphProgram):
    """Each of m columns picks one of n rows, and later columns never an earlier row.

    θ is (..., n, m), the score of each cell, and y has a 1 in the cell that each column picks. −inf forbids a cell. The
    columns may be frames of speech or a performance, and the rows the phonemes or notes that they come from.

    Without further restriction the first row picked may be any, as may the last, and rows may be skipped. −inf in the
    first or last column says where to begin or end. With ``surjective=True`` each row is picked by some column: the
    alignment starts in the first row, ends in the last, and goes from a column to the next by at most one row.

    Instance data: ``lengths`` (..., 2), integers, the rows and the columns in use; parts outside are 0. Labels are the
    columns' rows (..., m); decoded ones are −1 beyond the length.

    Parameters
    ----------
    surjective : bool
        Whether every row in use is picked, of which there may be no more than columns.

    Notes
    -----
    There are C(n + m − 1, m) alignments, and C(m − 1, n − 1) surjective ones. Time and memory are O(nm). Ties go to the
    lowest row, from the last column backwards.

    References
    ----------
    J. Kim, S. Kim, J. Kong & S. Yoon, Glow-TTS: a generative flow for text-to-speech via monotonic alignment search,
    NeurIPS 2020, Algorithm 1, for surjective ones.

    Examples
    --------
    >>> theta = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 2.0, 1.0]]])
    >>> free, surjective = MonotonicAlignment(), MonotonicAlignment(surjective=True)
    >>> free.decode(free.argmax(theta)), surjective.decode(surjective.argmax(theta))
    (tensor([[0, 2, 2]]), tensor([[0, 1, 2]]))
    >>> free.count(theta), surjective.count(theta)
    ([10], [1])
    """

    name: ClassVar[str] = "monotonic_alignment"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
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
            at = graph.nodes(n, m)  # [i, j]: the columns up to j, which is in row i
            graph.add(at[0, 0], part=cells[0, 0])
            graph.add(at[1:, 1:], at[:-1, :-1], part=cells[1:, 1:])
            graph.add(at[:, 1:], at[:, :-1], part=cells[:, 1:])
            goals[1:, 1:] = np.where(np.tri(n, m, -1, bool), -1, at)
        else:
            within = graph.nodes(n, m + 1)  # [i, j]: the first j columns, all in rows up to i
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
                    f"{int(columns[index])} columns at batch index {index}; swap the two, or allow skipped rows with "
                    "surjective=False"
                )

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return cells_within(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        _, n, m = like.shape
        if labels.ndim != 2 or labels.shape[1] != m:
            raise InvalidInputError(
                f"labels: the row of each column, (..., {m}), is needed; got {tuple(labels.shape)} with the batch flat"
            )
        rows, columns = sizes_in_use(self.bound, (n, m), labels).split(1, 1)
        used = torch.arange(m, device=labels.device) < columns
        reject_labels(used & ((labels < 0) | (labels >= rows)), labels, "a row is none of those in use")
        step = labels.diff(dim=1)
        reject_labels(used[:, 1:] & (step < 0), labels, "rows go back")
        if self.surjective:
            last = labels.gather(1, columns - 1)
            skipped = used[:, 1:] & (step > 1)
            reject_labels(skipped | (labels[:, :1] != 0) | (last != rows - 1), labels, "a row is skipped")
        cells = labels * m + torch.arange(m, device=labels.device)
        return indicators(cells, used.expand(labels.shape), n * m, like).reshape(len(labels), n, m)

    def decode(self, y: Tensor) -> Int[Tensor, "batch m"]:
        return torch.where((y == 0).all(1), -1, y.argmax(1))
