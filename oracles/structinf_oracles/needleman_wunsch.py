"""Alignments of two sequences with gaps: global, local, semi-global and between: Needleman-Wunsch, Smith-Waterman."""

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
from structinf.kernels.arrays import all_parts
from structinf.parts import Parts, as_tuple
from structinf.validation import check_choice, check_flag

from .common.grids import cell_indicators, cells_within, check_cells, check_grid, nonzero_cells, sizes_in_use
from .common.labels import reject_labels

__all__ = ["NeedlemanWunsch"]

# Which skipped elements have no score in each mode: before the first match, after the last match, and without matches.
# "longer" stands for the side that skips more elements at this end, and for the columns if both skip equally many.
_FREE = {
    "global": ("none", "none", "none"),
    "local": ("both", "both", "both"),
    "semi_global": ("columns", "columns", "columns"),
    "overlap": ("longer", "longer", "both"),
    "dovetail": ("rows", "columns", "both"),
    "extension": ("none", "both", "both"),
}


@dataclass(frozen=True)
class NeedlemanWunsch(HypergraphProgram):
    """Alignments of two sequences: matches of elements in order, with gap scores for skipped elements.

    An alignment of n row elements with m column elements is a set of cells (i₁, j₁), (i₂, j₂), ... with i₁ < i₂ < ...
    and j₁ < j₂ < ..., the matches. Scores θ and structures y are tuples of two tensors:

    ========  ====================================================  ===================================================
    affine    θ                                                     y
    ========  ====================================================  ===================================================
    False     match (..., n, m), gap (..., 2)                       0/1 matrix of the matches, and the numbers of
                                                                    skipped row and column elements
    True      match (..., n, m), gap (..., 2, 2)                    0/1 matrix of the matches, and in
                                                                    ``y[1][..., side, :]`` the number of gaps and the
                                                                    number of further elements in gaps
    ========  ====================================================  ===================================================

    Side 0 is the rows, and side 1 is the columns. A gap is a run of skipped elements of one side between two
    neighbouring matches, before the first match, or after the last match. Without ``affine``, each skipped element
    scores ``gap[side]``. With ``affine``, the first element of a gap scores ``gap[side, 0]``, and each further
    element ``gap[side, 1]``. All scores are added, so that gap scores are usually negative. Gap scores of shape (2,)
    or (2, 2) are shared by the batch. −inf forbids a match or gaps.

    - Labels, shape (..., min(n, m), 2): the row and the column of each match, in order, padded with −1.
    - Instance data ``lengths``, shape (..., 2): the numbers of row and column elements in use, integers in [1, n] and
      [1, m], or both 0. Default: n and m.

    Parameters
    ----------
    mode : {"global", "local", "semi_global", "overlap", "dovetail", "extension"}, default "global"
        Which skipped elements at the ends of the sequences have no score, see the table.
    affine : bool, default False
        Whether opening and extending a gap have separate scores.

    Notes
    -----
    ===============  ======================  ======================  ======================================
    ``mode``         free before the first   free after the last     finds
                     match                   match
    ===============  ======================  ======================  ======================================
    ``global``       nothing                 nothing                 an alignment of all elements
    ``local``        both sides              both sides              similar regions
    ``semi_global``  columns                 columns                 all rows inside the columns
    ``overlap``      the longer side         the longer side         an overlap, or one side inside the other
    ``dovetail``     rows                    columns                 the end of the rows at the begin of the columns
    ``extension``    nothing                 both sides              similar regions from the first elements on
    ===============  ======================  ======================  ======================================

    Free elements have no score and do not count in y. In mode ``overlap``, one side skips free elements at each end:
    the side that skips more elements there, or the columns if both skip equally many. For gap scores of at most 0 that
    are equal for both sides, no other choice scores more. An alignment without matches has score 0 in the modes
    ``local``, ``overlap``, ``dovetail`` and ``extension``, and skips all rows in the mode ``semi_global``.

    There are C(n + m, n) alignments, in each mode. If elements of both sides are skipped between two matches, their
    order makes no difference. The recursion skips the rows first, and so counts each alignment once. Recursions over
    all orders have the same best score, but count alignments several times in sums. Time and memory are O(n m).

    In global mode, linear gap scores a_i and b_j that depend on the position reduce to a constant and match scores
    match[i, j] − a_i − b_j, without gap scores.

    Ties go to matches, then to skipped rows, decided from the end backwards. In the other modes, ties go first to the
    alignment without matches, to an earlier end, and to a later beginning.

    References
    ----------
    S. B. Needleman & C. D. Wunsch, A general method applicable to the search for similarities in the amino acid
    sequence of two proteins, Journal of Molecular Biology 48 (1970). T. F. Smith & M. S. Waterman, Identification of
    common molecular subsequences, Journal of Molecular Biology 147 (1981). O. Gotoh, An improved algorithm for
    matching biological sequences, Journal of Molecular Biology 162 (1982).

    Examples
    --------
    >>> one = torch.tensor(list(b"GATTACA"))
    >>> other = torch.tensor(list(b"GTAACA"))
    >>> match = torch.where(one[:, None] == other, 1.0, -1.0)
    >>> gap = torch.tensor([-1.0, -1.0])
    >>> oracle = NeedlemanWunsch()
    >>> theta = (match[None], gap[None])
    >>> oracle.score(theta, oracle.argmax(theta))
    tensor([3.])
    """

    name: ClassVar[str] = "needleman_wunsch"
    search_terms: ClassVar[tuple[str, ...]] = (
        "smith_waterman",
        "alignment",
        "edit_distance",
        "levenshtein",
        "sequence_alignment",
        "global_alignment",
        "local_alignment",
        "semi_global_alignment",
        "glocal",
        "free_end_gaps",
        "fitting_alignment",
        "overlap_alignment",
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = (2, 1)
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    has_empty_structure: ClassVar[bool] = True
    label_ndim: ClassVar[int] = 2

    mode: str = field(default="global", kw_only=True)
    affine: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, tuple(_FREE))
        check_flag("affine", self.affine)

    @property
    def always_feasible(self) -> bool:
        return self.mode not in ("global", "semi_global")

    # -- the recursion ---------------------------------------------------------------------

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        match, gap = graph.parts
        n, m = match.shape
        # Node [i, j] stands for the first i row and j column elements, after a match (``matched``) or after any step.
        matched, aligned = graph.nodes(2, n + 1, m + 1)
        before, after, _ = _FREE[self.mode]
        unmatched = self._begin(graph, before, matched, match, gap)
        graph.add(matched[1:, 1:], aligned[:-1, :-1], part=match)
        (self._affine_gaps if self.affine else self._linear_gaps)(graph, matched, aligned, gap)
        end = aligned if after == "none" else self._end(graph, after, matched, unmatched, gap)
        goals = np.full((n + 1, m + 1), -1)
        goals[1:, 1:] = end[1:, 1:]
        return graph.build(goals, prune=True)

    def _begin(
        self, graph: HypergraphBuilder, free: str, matched: np.ndarray, match: np.ndarray, gap: np.ndarray
    ) -> np.ndarray | None:
        """Lead to all first matches; return nodes (n + 1, 1 | m + 1) of alignments without matches.

        If nothing is free, the node ``matched[0, 0]`` is a match before the first elements, and the result is None.
        """
        if free == "none":
            graph.add(matched[0, 0])
            return None
        n, m = match.shape
        if free == "both":
            graph.add(matched[1:, 1:], part=match)
        else:
            rows, columns = self._skip_first(graph, n, gap[0]), self._skip_first(graph, m, gap[1])
            row, column = np.indices((n, m))
            scores_rows = row <= column if free == "longer" else np.full((n, m), free == "columns")
            skipped = np.where(scores_rows, rows[row], columns[column])
            graph.add(matched[1:, 1:], skipped, part=match)
            if free == "columns":
                return rows[:, None]
        empty = graph.node()
        graph.add(empty)
        return np.full((n + 1, m + 1), empty)

    def _end(
        self, graph: HypergraphBuilder, free: str, matched: np.ndarray, unmatched: np.ndarray | None, gap: np.ndarray
    ) -> np.ndarray:
        """Return nodes of alignments of the first i and j elements of which some are free after the last match."""
        in_row, found = graph.nodes(2, *matched.shape)
        # The last match is in row i, and any number of columns are skipped behind it.
        graph.add(in_row[:, 1:], in_row[:, :-1])
        graph.add(in_row, matched)
        if unmatched is not None:
            # With two free sides, later rows inherit the alignment without matches from row 0.
            rows = slice(1 if free == "both" else None)
            graph.add(found[rows], unmatched[rows])
        if free == "both":
            graph.add(found[1:], found[:-1])
        elif free == "columns":
            graph.add(found[1:], self._skip_last(graph, in_row, (1, 0), gap[0]))
        else:
            # The free elements come first, then steps that skip one element of each side, with the score of one side.
            in_column = graph.nodes(*matched.shape)
            graph.add(in_column[1:], in_column[:-1])
            graph.add(in_column[1:], matched[:-1])
            graph.add(found[1:, 1:], self._skip_last(graph, in_row, (1, 1), gap[0]))
            graph.add(found[1:, 1:], self._skip_last(graph, in_column, (1, 1), gap[1]))
            graph.add(found, in_column)
        graph.add(found, in_row)
        return found

    def _opening_and_further(self, gap: np.ndarray) -> tuple[Any, Any]:
        """Return the parts of the first and of each further skipped element, from those of one side."""
        return (gap[0], gap[1]) if self.affine else (gap, gap)

    def _skip_first(self, graph: HypergraphBuilder, count: int, gap: np.ndarray) -> np.ndarray:
        """Return nodes of 0, 1, ... and ``count`` skipped elements of a side, without other elements."""
        opening, further = self._opening_and_further(gap)
        skipped = graph.nodes(count + 1)
        graph.add(skipped[0])
        graph.add(skipped[1:2], skipped[:1], part=opening)
        graph.add(skipped[2:], skipped[1:-1], part=further)
        return skipped

    def _skip_last(
        self, graph: HypergraphBuilder, start: np.ndarray, step: tuple[int, int], gap: np.ndarray
    ) -> np.ndarray:
        """Return nodes after one or more steps from ``start``, each with the score of a skipped element of a side."""
        (down, right), (opening, further) = step, self._opening_and_further(gap)
        rows, columns = start.shape
        skipped = graph.nodes(rows, columns)
        heads, tails = (slice(down, None), slice(right, None)), (slice(rows - down), slice(columns - right))
        graph.add(skipped[heads], skipped[tails], part=further)
        graph.add(skipped[heads], start[tails], part=opening)
        return skipped[heads]

    def _linear_gaps(self, graph: HypergraphBuilder, matched: np.ndarray, aligned: np.ndarray, gap: np.ndarray) -> None:
        """Lead from ``matched`` to ``aligned`` by any number of skipped rows, then of skipped columns."""
        rows = matched  # in global mode, nodes of matches also serve as nodes of skipped rows
        if self.mode != "global":
            rows = graph.nodes(*matched.shape)
            graph.add(rows, matched)
        graph.add(rows[1:], rows[:-1], part=gap[0])
        graph.add(aligned, rows)
        graph.add(aligned[:, 1:], aligned[:, :-1], part=gap[1])

    def _affine_gaps(self, graph: HypergraphBuilder, matched: np.ndarray, aligned: np.ndarray, gap: np.ndarray) -> None:
        """Lead from ``matched`` to ``aligned`` as :meth:`_linear_gaps`, with scores of opening and extending gaps."""
        rows, columns = graph.nodes(2, *matched.shape)
        graph.add(rows[1:], matched[:-1], part=gap[0, 0])
        graph.add(rows[1:], rows[:-1], part=gap[0, 1])
        graph.add(columns[:, 1:], np.stack([matched, rows])[..., :-1], part=gap[1, 0])
        graph.add(columns[:, 1:], columns[:, :-1], part=gap[1, 1])
        graph.add(aligned, np.stack([matched, rows, columns]))

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
                f"theta[1] must have shape {shape} after the batch dimensions with affine={self.affine}, the scores of "
                f"{scored} for each side; got {tuple(gap.shape[1:])}"
            )

    def valid_parts(self, theta: Parts) -> Parts | None:
        match, gap = as_tuple(theta)
        cells = cells_within(self.bound.get("lengths"), match)
        return None if cells is None else (cells, all_parts(gap))

    def readout(self, y: Parts) -> Tensor:
        """Return the matches."""
        return as_tuple(y)[0]

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        match, gap = as_tuple(like)
        sizes = sizes_in_use(self.bound, match.shape[1:], labels)
        used = check_cells(labels, sizes, min(match.shape[1:]))
        rising = (labels.diff(dim=1) > 0).all(2)
        reject_labels(used[:, 1:] & ~rising, labels, "matches must rise in rows and in columns", defers=True)
        # The cumulative maximum repeats the last match in the padding, where nothing is skipped.
        inner = (labels.cummax(1).values.diff(dim=1) - 1).clamp(min=0)
        before, after, unmatched = _FREE[self.mode]
        is_empty = ~used[:, :1]
        first = torch.where(is_empty, _scored(sizes, unmatched), _scored(labels[:, 0], before))
        last = torch.where(is_empty, 0, _scored(sizes - 1 - labels.amax(1), after))
        skipped = torch.cat([first.unsqueeze(1), inner, last.unsqueeze(1)], 1)
        opened = (skipped > 0).sum(1)
        count = torch.stack([opened, skipped.sum(1) - opened], 2) if self.affine else skipped.sum(1)
        return cell_indicators(labels, used, match), count.to(gap.dtype)

    def decode(self, y: Parts) -> Tensor:
        match, _ = as_tuple(y)
        return nonzero_cells(match, min(match.shape[1:]))


def _scored(skipped: Tensor, free: str) -> Tensor:
    """Return the numbers of ``skipped`` row and column elements (B, 2), with 0 for the side that is free."""
    rows, columns = skipped.unbind(1)
    side = torch.arange(2, device=skipped.device)
    has_score = {
        "none": torch.ones_like(skipped, dtype=torch.bool),
        "both": torch.zeros_like(skipped, dtype=torch.bool),
        "rows": side == 1,
        "columns": side == 0,
        "longer": torch.stack([rows <= columns, rows > columns], 1),
    }[free]
    return torch.where(has_score, skipped, 0)
