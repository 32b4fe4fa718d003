"""Alignments of two sequences with gaps, global and local: Needleman-Wunsch, Smith-Waterman, Gotoh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.parts import Parts, as_tuple
from structinf.validation import check_flag

from .common.grids import cell_indicators, cells_within, check_cells, check_grid, nonzero_cells, sizes_in_use
from .common.labels import reject_labels

__all__ = ["NeedlemanWunsch"]


@dataclass(frozen=True)
class NeedlemanWunsch(HypergraphProgram):
    """Matchings of some elements of two sequences that keep their order; the others are skipped, at the price of gaps.

    An alignment of n row elements with m column elements is a set of cells (i₁, j₁), (i₂, j₂), ... with i₁ < i₂ < ...
    and j₁ < j₂ < ..., the matches. It is scored by its matches and by the elements that it skips:

    ========  ====================================================  ===================================================
    affine    θ                                                     y
    ========  ====================================================  ===================================================
    False     match (..., n, m), gap (..., 2)                       0/1 matrix of the matches, and the numbers of row
                                                                    and of column elements that are skipped
    True      match (..., n, m), gap (..., 2, 2)                    the same, with ``y[1][..., side, 0]`` the number of
                                                                    gaps and ``y[1][..., side, 1]`` that of further
                                                                    elements in them
    ========  ====================================================  ===================================================

    Side 0 is that of the rows and 1 that of the columns. All scores are added, so that those of gaps are usually
    negative; gap scores of shape (2,) or (2, 2) are shared by the batch. A gap is a run of elements of one side that
    are skipped between two neighbouring matches (or before the first, or after the last); with affine scores, its
    first element scores ``gap[side, 0]``, to open it, and each further one ``gap[side, 1]``, to extend it. −inf forbids
    a match, or gaps.

    Instance data: ``lengths`` (..., 2), integers, the elements in use of either side. Labels are the matches in order,
    (..., min(n, m), 2), each a row and a column, padded with −1.

    Parameters
    ----------
    mode : {"global", "local"}
        Whether all elements count, or those between the first and the last match alone. A local alignment may be empty,
        with a score of 0.
    affine : bool
        Whether opening a gap and extending it have scores of their own.

    Notes
    -----
    There are C(n + m, n) global alignments: where elements of both sides are skipped between two matches, their order
    makes no difference, and the recursion takes those of the rows first. Recursions that go over all orders have the
    same best score, but count alignments several times in sums. Time and memory are O(n m).

    Linear gap scores that differ by position, a_i and b_j, are a constant and matches of match[i, j] − a_i − b_j
    (in global mode).

    Ties go to matches, then to skipped rows, from the end backwards; in local mode to the empty alignment, or to the
    one that ends earlier or begins later.

    References
    ----------
    S. B. Needleman & C. D. Wunsch, A general method applicable to the search for similarities in the amino acid
    sequence of two proteins, Journal of Molecular Biology 48 (1970). T. F. Smith & M. S. Waterman, Identification of
    common molecular subsequences, Journal of Molecular Biology 147 (1981). O. Gotoh, An improved algorithm for matching
    biological sequences, Journal of Molecular Biology 162 (1982).

    Examples
    --------
    >>> one, other = (torch.tensor(list(text.encode())) for text in ("GATTACA", "GTAACA"))
    >>> match = torch.where(one[:, None] == other, 1.0, -1.0)
    >>> gap = torch.tensor([-1.0, -1.0])
    >>> oracle = NeedlemanWunsch()
    >>> theta = (match[None], gap[None])
    >>> oracle.score(theta, oracle.argmax(theta))
    tensor([3.])
    """

    name: ClassVar[str] = "needleman_wunsch"
    event_ndim: ClassVar[int | tuple[int, ...]] = (2, 1)
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 2

    mode: str = field(default="global", kw_only=True)
    affine: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in ("global", "local"):
            raise InvalidInputError(f'mode must be "global" or "local", got {self.mode!r}')
        check_flag("affine", self.affine)

    @property
    def always_feasible(self) -> bool:
        return self.mode == "local"

    # -- the recursion ---------------------------------------------------------------------

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        match, gap = graph.parts
        n, m = match.shape
        # Node [i, j] stands for the first i and j elements; the last step is a match, or anything.
        matched, aligned = graph.nodes(2, n + 1, m + 1)
        if self.mode == "global":
            graph.add(matched[0, 0])
            end = aligned
        else:
            graph.add(matched[1:, 1:], part=match)
            end = self._anywhere(graph, matched)
        graph.add(matched[1:, 1:], aligned[:-1, :-1], part=match)
        (self._affine_gaps if self.affine else self._linear_gaps)(graph, matched, aligned, gap)
        goals = np.full((n + 1, m + 1), -1)
        goals[1:, 1:] = end[1:, 1:]
        return graph.build(goals, prune=True)

    def _linear_gaps(self, graph: HypergraphBuilder, matched: np.ndarray, aligned: np.ndarray, gap: np.ndarray) -> None:
        """Lead from ``matched`` by any number of skipped rows, and then columns, to ``aligned``."""
        rows = matched  # which nodes of a match may also be, unless alignments end there
        if self.mode == "local":
            rows = graph.nodes(*matched.shape)
            graph.add(rows, matched)
        graph.add(rows[1:], rows[:-1], part=gap[0])
        graph.add(aligned, rows)
        graph.add(aligned[:, 1:], aligned[:, :-1], part=gap[1])

    def _affine_gaps(self, graph: HypergraphBuilder, matched: np.ndarray, aligned: np.ndarray, gap: np.ndarray) -> None:
        """The same, where ``gap`` [side] opens and extends."""
        rows, columns = graph.nodes(2, *matched.shape)
        graph.add(rows[1:], matched[:-1], part=gap[0, 0])
        graph.add(rows[1:], rows[:-1], part=gap[0, 1])
        graph.add(columns[:, 1:], np.stack([matched, rows])[..., :-1], part=gap[1, 0])
        graph.add(columns[:, 1:], columns[:, :-1], part=gap[1, 1])
        graph.add(aligned, np.stack([matched, rows, columns]))

    def _anywhere(self, graph: HypergraphBuilder, matched: np.ndarray) -> np.ndarray:
        """Nodes of no match at all, or of a last one anywhere among the first i and j elements."""
        in_row, found = graph.nodes(2, *matched.shape)
        graph.add(in_row[:, 1:], in_row[:, :-1])
        graph.add(in_row, matched)
        graph.add(found[0])
        graph.add(found[1:], found[:-1])
        graph.add(found, in_row)
        return found

    # -- shapes and labels -----------------------------------------------------------------

    def resolve_event_ndim(self, theta: Parts) -> tuple[int, ...]:
        linear = super().resolve_event_ndim(theta)
        return (2, 2) if self.affine else linear

    def validate(self, theta: Parts) -> None:
        match, gap = as_tuple(theta)
        check_grid(self.label(), match, self.bound.get("lengths"))
        shape, scored = ((2, 2), "opening and extending a gap") if self.affine else ((2,), "skipping an element")
        if gap.shape[1:] != shape:
            raise InvalidInputError(
                f"theta[1]: with affine={self.affine}, the scores of {scored} of either side have shape {shape} after "
                f"the batch dimensions, got {tuple(gap.shape[1:])}"
            )

    def valid_parts(self, theta: Parts) -> Parts | None:
        match, gap = as_tuple(theta)
        cells = cells_within(self.bound.get("lengths"), match)
        return None if cells is None else (cells, torch.ones_like(gap, dtype=torch.bool))

    def readout(self, y: Parts) -> Tensor:
        """The matches."""
        return as_tuple(y)[0]

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        match, gap = as_tuple(like)
        sizes = sizes_in_use(self.bound, match.shape[1:], labels)
        used = check_cells(labels, sizes, min(match.shape[1:]))
        rising = (labels.diff(dim=1) > 0).all(2)
        reject_labels(used[:, 1:] & ~rising, labels, "matches must rise in rows and in columns")
        if self.mode == "global":
            labels = torch.cat([labels.new_full((len(labels), 1, 2), -1), labels, sizes.unsqueeze(1)], 1)
        # The padding, taken for the match before it, skips nothing.
        skipped = (labels.cummax(1).values.diff(dim=1) - 1).clamp(min=0)
        opened = (skipped > 0).sum(1)
        count = torch.stack([opened, skipped.sum(1) - opened], 2) if self.affine else skipped.sum(1)
        cells = labels[:, 1:-1] if self.mode == "global" else labels
        return cell_indicators(cells, used, match), count.to(gap.dtype)

    def decode(self, y: Parts) -> Tensor:
        match, _ = as_tuple(y)
        return nonzero_cells(match, min(match.shape[1:]))
