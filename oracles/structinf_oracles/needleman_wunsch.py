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
    mode : {"global", "local"}, default "global"
        Whether all elements count, or only the elements between the first and the last match. A local alignment may
        be empty, with score 0.
    affine : bool, default False
        Whether opening and extending a gap have separate scores.

    Notes
    -----
    There are C(n + m, n) global alignments. If elements of both sides are skipped between two matches, their order
    makes no difference. The recursion skips the rows first, and so counts each alignment once. Recursions over all
    orders have the same best score, but count alignments several times in sums. Time and memory are O(n m).

    In global mode, linear gap scores a_i and b_j that depend on the position reduce to a constant and match scores
    match[i, j] − a_i − b_j, without gap scores.

    Ties go to matches, then to skipped rows, decided from the end backwards. In local mode ties go to the empty
    alignment, to an earlier end, and to a later beginning.

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
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = (2, 1)
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    has_empty_structure: ClassVar[bool] = True
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
        # Node [i, j] stands for the first i row and j column elements, after a match (``matched``) or after any step.
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
        """Lead from ``matched`` to ``aligned`` by any number of skipped rows, then of skipped columns."""
        rows = matched  # in global mode, nodes of matches also serve as nodes of skipped rows
        if self.mode == "local":
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

    def _anywhere(self, graph: HypergraphBuilder, matched: np.ndarray) -> np.ndarray:
        """Return nodes without matches, or with the last match anywhere among the first i and j elements."""
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
                f"theta[1] must have shape {shape} after the batch dimensions with affine={self.affine}, the scores of "
                f"{scored} for each side; got {tuple(gap.shape[1:])}"
            )

    def valid_parts(self, theta: Parts) -> Parts | None:
        match, gap = as_tuple(theta)
        cells = cells_within(self.bound.get("lengths"), match)
        return None if cells is None else (cells, torch.ones_like(gap, dtype=torch.bool))

    def readout(self, y: Parts) -> Tensor:
        """Return the matches."""
        return as_tuple(y)[0]

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        match, gap = as_tuple(like)
        sizes = sizes_in_use(self.bound, match.shape[1:], labels)
        used = check_cells(labels, sizes, min(match.shape[1:]))
        rising = (labels.diff(dim=1) > 0).all(2)
        reject_labels(used[:, 1:] & ~rising, labels, "matches must rise in rows and in columns")
        if self.mode == "global":
            labels = torch.cat([labels.new_full((len(labels), 1, 2), -1), labels, sizes.unsqueeze(1)], 1)
        # The cumulative maximum repeats the last match in the padding, where nothing is skipped.
        skipped = (labels.cummax(1).values.diff(dim=1) - 1).clamp(min=0)
        opened = (skipped > 0).sum(1)
        count = torch.stack([opened, skipped.sum(1) - opened], 2) if self.affine else skipped.sum(1)
        cells = labels[:, 1:-1] if self.mode == "global" else labels
        return cell_indicators(cells, used, match), count.to(gap.dtype)

    def decode(self, y: Parts) -> Tensor:
        match, _ = as_tuple(y)
        return nonzero_cells(match, min(match.shape[1:]))
