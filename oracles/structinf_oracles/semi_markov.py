"""Semi-Markov models: sequences divided into labelled segments, with a score for each whole segment."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.dp import Hypergraph, HypergraphBuilder
from structinf.errors import InvalidInputError
from structinf.kernels.arrays import all_parts
from structinf.kernels.gpu import uses_triton
from structinf.parts import Parts, as_tuple
from structinf.shapes import Float, Int
from structinf.validation import check_flag, check_lengths

from .common import segment_boundaries
from .common.labels import indicators, nonzero_positions, reject_labels
from .common.segment_boundaries import has_boundaries
from .common.segmentation_sums import SegmentationSums

__all__ = ["SemiMarkov"]

_FORMS = (
    "segments (..., T, D, S), (segments, transition (..., S, S)), (steps (..., T, S), boundaries (..., T, 2, S), "
    "durations (..., D, S)) with or without a transition (..., S, S), or with pairwise=True edges (..., T, D, S, S)"
)


@dataclass(frozen=True)
class SemiMarkov(SegmentationSums):
    """Divisions of T steps into segments of at most D steps, each with one of S labels.

    The index [t, d] stands for the segment of d + 1 steps that ends at step t and starts at step t − d, counted from
    0. Entries with d > t are never read. Neighbouring segments may have the same label. −inf forbids a segment or a
    transition. Scores θ and structures y have one of five forms:

    ==================================================  =============================================================
    θ                                                   y
    ==================================================  =============================================================
    segments (..., T, D, S), a single tensor            indicators of the segments, [t, d, label]
    segments (..., T, D, S), transition (..., S, S)     indicators of the segments, and counts of the transitions
                                                        between the labels of neighbours, [from, to]
    edges (..., T, D, S, S), with ``pairwise``          indicators of the segments with the label before,
                                                        [t, d, from, to]
    steps (..., T, S), boundaries (..., T, 2, S),       indicators of the label of each step, [t, label], and of the
    durations (..., D, S)                               first and the last step of each segment, [t, 0 or 1, label],
                                                        and counts of the durations, [d, label]
    steps, boundaries, durations,                       the same, and counts of the transitions
    transition (..., S, S)
    ==================================================  =============================================================

    A transition of shape (S, S) or (1, S, S) is shared by the batch, as are durations of shape (D, S) or (1, D, S).
    With ``pairwise``, the first segment has no label before it and reads the entry ``from`` = 0, whatever its label.

    The last two forms are for long series. The score of a segment is the sum of ``steps`` over the segment, plus
    ``boundaries`` at the first and the last step, plus ``durations``. Boundaries are necessary, because labels of steps
    do not separate neighbouring segments of equal labels. The scores of boundaries may be zeros.

    - Labels, shape (..., T, 3): the first step, the number of steps and the label of each segment, in order, padded
      with −1. The method :meth:`labels_of_steps` returns the label of each step.
    - Instance data ``lengths``, shape (...): the number of steps in use, an integer in [0, T]. Default: T. In y all
      parts beyond the length are 0.

    Parameters
    ----------
    pairwise : bool, default False
        Whether θ is a single tensor that scores each segment together with the label before (the third form).

    Notes
    -----
    Time and memory are O(T D S), with a transition O(T D S + T S²), and with ``pairwise`` O(T D S²).
    :meth:`segment_scores` makes scores of segments from scores of steps and durations. Ties go to the
    shortest segment, decided from the end backwards. With a transition or ``pairwise``, ties go to the lowest label
    first.

    With boundaries, the memory of ``argmax``, sums, their first and second derivatives, and samples is
    O(T S + D S + S²). Other queries, such as k best structures and regularizers other than the negative entropy,
    build a graph with 2 T D S nodes, and raise UnsupportedError for more than 20,000,000 nodes.

    With boundaries, a score of a step counts as −inf if it is below the best score of the step by more than
    10⁸ (1 + c), where c is the largest absolute value among the best scores of each boundary, each duration and each
    label before a transition. Masks such as the smallest float thus leave the other scores their digits.

    References
    ----------
    S. Sarawagi & W. W. Cohen, Semi-Markov conditional random fields for information extraction, NIPS 2004, §2.

    Examples
    --------
    >>> theta = torch.zeros(1, 4, 2, 2)
    >>> theta[0, 2, 1, 1] = 1.0  # steps 1 and 2 as one segment of label 1
    >>> oracle = SemiMarkov()
    >>> oracle.decode(oracle.argmax(theta))
    tensor([[[ 0,  1,  0],
             [ 1,  2,  1],
             [ 3,  1,  0],
             [-1, -1, -1]]])
    >>> oracle.labels_of_steps(oracle.argmax(theta))
    tensor([[0, 1, 1, 0]])
    >>> oracle.count(theta)
    [44]

    The same model from scores of steps and durations, for a series too long for T · D · S scores:

    >>> steps = torch.zeros(1, 10_000, 2)
    >>> boundaries = torch.zeros(1, 10_000, 2, 2)
    >>> steps[..., 1] = -1.0
    >>> steps[0, 4000:7000, 1] = 1.0
    >>> durations = torch.full((1, 5000, 2), -1.0)
    >>> y = oracle.argmax((steps, boundaries, durations))
    >>> oracle.decode(y)[0, :4].tolist()
    [[0, 4000, 0], [4000, 3000, 1], [7000, 3000, 0], [-1, -1, -1]]
    """

    name: ClassVar[str] = "semi_markov"
    search_terms: ClassVar[tuple[str, ...]] = ("semi_crf", "segmentation", "hsmm", "segments")
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    has_empty_structure: ClassVar[bool] = True
    label_ndim: ClassVar[int] = 2
    label_form: ClassVar[str] = (
        "segments [first step, number of steps (1 to D), label], padded with −1 to the shape (T, 3)"
    )

    pairwise: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_flag("pairwise", self.pairwise)

    # -- the recursion ---------------------------------------------------------------------

    def has_binary_parts(self, theta: Parts) -> bool:
        return not isinstance(theta, tuple)  # y counts transitions

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        if has_boundaries(graph.parts):
            return segment_boundaries.build(graph)
        segments = as_tuple(graph.parts)[0]
        steps, durations, labels = *segments.shape[:2], segments.shape[-1]
        t, d = np.tril_indices(steps, m=durations)
        if not isinstance(graph.parts, tuple) and not self.pairwise:
            done = graph.nodes(steps + 1)  # [i]: the first i steps
            graph.add(done[0])
            graph.add(done[t + 1, None], done[t - d, None], part=segments[t, d])
            return graph.build(np.append(-1, done[1:]))
        # The first i steps, with the label of the last segment (``ended``) or with any label (``done``).
        ended, done = graph.nodes(steps + 1, labels), graph.nodes(steps + 1)
        if self.pairwise:
            first, later = np.arange(min(steps, durations)), t > d
            t, d = t[later], d[later]
            graph.add(ended[t + 1][:, None], ended[t - d][:, :, None], part=segments[t, d])
            graph.add(ended[first + 1], part=segments[first, first, 0])
        else:
            begun = graph.nodes(steps, labels)  # the label of the next segment
            graph.add(begun[0])
            graph.add(begun[1:, None], ended[1:-1, :, None], part=graph.parts[1])
            graph.add(ended[t + 1], begun[t - d], part=segments[t, d])
        graph.add(done[1:, None], ended[1:])
        return graph.build(np.append(-1, done[1:]))

    # -- shapes ----------------------------------------------------------------------------

    @staticmethod
    def segment_scores(
        steps: Float[Tensor, "*batch steps labels"], durations: Tensor, boundaries: Tensor | None = None
    ) -> Tensor:
        """Return scores of segments, (..., T, D, S), from scores of their steps, durations and boundaries.

        The score of a segment is the sum of ``steps`` over its steps, plus the entries of ``durations`` and
        ``boundaries``. With a transition beside these scores, the memory is O(T D S), where edges of ``pairwise`` take
        O(T D S²). Long series are scored by (steps, boundaries, durations) without these scores, in memory O(T S).

        Parameters
        ----------
        steps : (..., T, S) Tensor
            The score of each step with each label, for example the logits of an encoder; −inf forbids a label.
        durations : (D, S) Tensor, or (..., D, S)
            The score of a segment of d + 1 steps, [d, label].
        boundaries : (..., T, 2, S) Tensor, optional
            The scores of the first and the last step of a segment, [t, 0 or 1, label]; by default 0.

        Returns
        -------
        (..., T, D, S) Tensor
            The scores [t, d, label], differentiable by autograd. Entries with d > t, which are never read, are scores
            of shorter segments.

        Examples
        --------
        >>> steps = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> segments = SemiMarkov.segment_scores(steps, -torch.ones(2, 2))
        >>> oracle = SemiMarkov()
        >>> oracle.decode(oracle.argmax(segments[None]))
        tensor([[[ 0,  2,  0],
                 [ 2,  1,  1],
                 [-1, -1, -1]]])
        """
        if steps.ndim < 2 or durations.ndim < 2 or steps.shape[-1] != durations.shape[-1]:
            raise InvalidInputError(
                "segment_scores takes steps (..., T, S) and durations (..., D, S) with the same labels, got shapes "
                f"{tuple(steps.shape)} and {tuple(durations.shape)}"
            )
        if boundaries is not None and (
            boundaries.ndim < 3 or boundaries.shape[-3:] != (steps.shape[-2], 2, steps.shape[-1])
        ):
            raise InvalidInputError(
                f"boundaries must have shape (..., T, 2, S) with T and S of steps {tuple(steps.shape)}, got "
                f"{tuple(boundaries.shape)}"
            )
        # Differences of cumulative sums would lose digits, and give NaN beside −inf.
        sums = [steps if boundaries is None else steps + boundaries[..., 0, :]]
        for _ in range(durations.shape[-2] - 1):
            sums.append(steps + pad(sums[-1][..., :-1, :], (0, 0, 1, 0)))
        segments = torch.stack(sums, -2) + durations.unsqueeze(-3)
        return segments if boundaries is None else segments + boundaries[..., 1, :].unsqueeze(-2)

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of event dimensions of a single tensor θ: 4 if ``pairwise``, else 3."""
        return 4 if self.pairwise else 3

    def resolve_event_ndim(self, theta: Parts) -> tuple[int, ...]:
        if not isinstance(theta, tuple):
            return (self.event_ndim,)
        if not self.pairwise and len(theta) in (3, 4):
            return (2, 3, 2, 2)[: len(theta)]
        if self.pairwise or len(theta) != 2:
            raise InvalidInputError(
                f"theta: semi_markov takes {_FORMS}; got a tuple of {len(theta)} tensors with pairwise={self.pairwise}"
            )
        if theta[0].ndim == 2:
            raise InvalidInputError(
                f"theta: semi_markov takes {_FORMS}; got tensors of shapes {tuple(theta[0].shape)} and "
                f"{tuple(theta[1].shape)}; for scores of steps and durations, pass zeros (T, 2, S) as boundaries"
            )
        return 3, 2

    def validate(self, theta: Parts) -> None:
        shapes = [tuple(t.shape[1:]) for t in as_tuple(theta)]
        steps, labels = shapes[0][0], shapes[0][-1]
        if has_boundaries(theta):
            expected_shapes = [(steps, labels), (steps, 2, labels), (max(shapes[2][0], 1), labels), (labels, labels)]
        else:
            expected_shapes = [(steps, shapes[0][1], *[labels] * (self.event_ndim - 2)), (labels, labels)]
        if 0 in shapes[0] or shapes != expected_shapes[: len(shapes)]:
            raise InvalidInputError(
                f"theta: semi_markov takes {_FORMS}, with T, D and S at least 1; got "
                f"{' and '.join(map(str, shapes))} after the batch dimensions"
            )
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], 1, steps, f"T = {steps} steps", has_empty=True)

    def valid_parts(self, theta: Parts) -> Parts | None:
        """Mask the segments that start at step 0 or later and end within the length, or the steps in use."""
        if has_boundaries(theta):
            return self._steps_in_use(theta)
        segments = as_tuple(theta)[0]
        _, steps, durations, *labels = segments.shape
        if uses_triton(segments):
            from structinf.kernels.padding import triton_masks

            shape, lengths = (steps, durations, *labels[: self.pairwise]), self.bound.get("lengths")
            rows = None if lengths is None else 0
            mask = triton_masks.mask(shape, segments.device, lengths, rows, order="column <= row")
            mask = mask.any(0, keepdim=True) if len(segments) < len(mask) else mask
            mask = mask.view(*mask.shape, *[1] * (segments.ndim - mask.ndim)).expand(-1, *segments.shape[1:])
            return (mask, all_parts(theta[1])) if isinstance(theta, tuple) else mask
        t = torch.arange(steps, device=segments.device).unsqueeze(1)
        d = torch.arange(durations, device=segments.device)
        mask = (d <= t).unsqueeze(0)
        if "lengths" in self.bound:
            ended = t < self.bound["lengths"].view(-1, 1, 1)
            mask = mask & (ended.any(0, keepdim=True) if len(segments) == 1 else ended)
        mask = mask.view(*mask.shape, *[1] * len(labels)).expand(-1, -1, -1, *labels)
        if self.pairwise:
            label_before = torch.arange(labels[0], device=segments.device) > 0
            mask = mask & ~((d == t).view(steps, durations, 1, 1) & label_before.unsqueeze(1))
        return (mask, all_parts(theta[1])) if isinstance(theta, tuple) else mask

    def _steps_in_use(self, theta: Parts) -> Parts | None:
        lengths, steps = self.bound.get("lengths"), as_tuple(theta)[0].shape[1]
        # On a GPU, a mask costs less than to wait for the answer.
        if lengths is None or (lengths.is_cpu and bool((lengths == steps).all())):
            return None
        if uses_triton(lengths):
            from structinf.kernels.padding import triton_masks

            used = triton_masks.mask((steps, 1), lengths.device, lengths, 0)[..., 0]
        else:
            used = torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)

        def mask(part: Tensor) -> Tensor:
            rows = used.any(0, keepdim=True) if len(part) == 1 else used
            return rows.view(*rows.shape, *[1] * (part.ndim - 2)).expand(-1, *part.shape[1:])

        unary, boundaries, *others = as_tuple(theta)
        return mask(unary), mask(boundaries), *map(all_parts, others)

    # -- labels ----------------------------------------------------------------------------

    def readout(self, y: Parts) -> Parts:
        """Return the indicators of the segments, with the label before if ``pairwise``; or of steps and boundaries."""
        return y[:2] if has_boundaries(y) else as_tuple(y)[0]

    def hamming_cost(self, y: Parts) -> Parts:
        """Return costs that count the wrong steps of each segment. Other parts cost 0, with a batch dimension of 1."""
        if has_boundaries(y):
            steps, *others = as_tuple(y)
            return steps.sum(2, keepdim=True) - steps, *(torch.zeros_like(t[:1]) for t in others)
        segments = as_tuple(y)[0]
        steps, durations = segments.shape[1:3]
        right = torch.nn.functional.one_hot(self.labels_of_steps(y) + 1, segments.shape[-1] + 1)[..., 1:]
        # [i, label]: the number of the first i steps whose label differs.
        wrong = pad((right.sum(2, keepdim=True) - right).cumsum(1), (0, 0, 1, 0))
        end = torch.arange(1, steps + 1, device=segments.device).unsqueeze(1)
        start = (end - 1 - torch.arange(durations, device=segments.device)).clamp(min=0)
        cost = (wrong[:, end] - wrong[:, start]).to(segments.dtype)
        if self.pairwise:
            return cost.unsqueeze(3).expand(segments.shape)
        return (cost, torch.zeros_like(y[1][:1])) if isinstance(y, tuple) else cost

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        segments = as_tuple(like)[0]
        steps, states = segments.shape[1], segments.shape[-1]
        durations = as_tuple(like)[2].shape[1] if has_boundaries(like) else segments.shape[2]
        if labels.ndim != 3 or labels.shape[1:] != (steps, 3):
            raise InvalidInputError(
                f"labels must be segments [first step, number of steps, label] of 1 to D = {durations} steps, padded "
                f"with −1 to the shape (..., {steps}, 3); got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        used = (labels != -1).any(2)
        start, size, label = labels.unbind(2)
        reject = functools.partial(reject_labels, labels=labels, defers=True, entry="segment")
        form = "[first step, number of steps, label]"
        reject(
            used & ((size < 1) | (size > durations)),
            why=f"a segment {form} must have between 1 and D = {durations} steps",
        )
        reject(
            used & ((label < 0) | (label >= states)),
            why=f"the label of a segment {form} must lie between 0 and {states - 1}",
        )
        end = torch.where(used, size, 0).cumsum(1)
        reject(used & (start != end - size), why=f"a segment {form} must start where the segment before ends")
        reject_labels(used[:, 1:] & ~used[:, :-1], labels, "a segment follows the padding", defers=True)
        length = self.bound.get("lengths", labels.new_full((len(labels),), steps))
        reject_labels(
            end[:, -1:] != length.unsqueeze(1), labels, "the segments do not end with the last step in use", defers=True
        )
        if has_boundaries(like):
            return segment_boundaries.encode(start, label, used, length, like)
        before = pad(label[:, :-1], (1, 0))
        place = (end - 1) * durations + size - 1
        place = (place * states + before if self.pairwise else place) * states + label
        y = indicators(place, used, math.prod(segments.shape[1:]), segments).reshape(-1, *segments.shape[1:])
        if not isinstance(like, tuple):
            return y
        moves = torch.where(used, before * states + label, states**2)[:, 1:]
        if not moves.is_cpu:  # the check of the labels may come later
            moves = moves.clamp(0, states**2)
        count = torch.zeros(len(labels), states**2 + 1, dtype=y.dtype, device=y.device)
        count.scatter_add_(1, moves, torch.ones_like(moves, dtype=y.dtype))
        return y, count[:, :-1].reshape(-1, states, states)

    def decode(self, y: Parts) -> Int[Tensor, "batch steps 3"]:
        if has_boundaries(y):
            return segment_boundaries.segments_of(y)
        segments = self._without_label_before(y)
        _, steps, durations, states = segments.shape
        positions = nonzero_positions(segments.flatten(1), steps)
        t, d, label = positions // (durations * states), positions // states % durations, positions % states
        return torch.where(positions.unsqueeze(2) < 0, -1, torch.stack([t - d, d + 1, label], 2))

    def describe_part(self, y: Parts, tensor: int, index: tuple[int, ...]) -> str:
        if has_boundaries(y):
            return segment_boundaries.describe(tensor, index)
        if tensor == 1:
            return f"transition {index[0]} -> {index[1]} between labels"
        last, longer, *before, label = index
        words = f"segment of the steps {last - longer} to {last} with label {label}"
        return f"{words} after label {before[0]}" if before and last > longer else words

    def labels_of_steps(self, y: Parts) -> Int[Tensor, "batch steps"]:
        """Return the label of the segment that holds each step, −1 beyond the length."""
        if has_boundaries(y):
            return torch.where((y[0] == 0).all(2), -1, y[0].argmax(2))
        segments = self._without_label_before(y)
        _, steps, durations, _ = segments.shape
        by_step = segments.sum(2)
        for d in range(1, min(steps, durations)):
            by_step[:, :-d] += segments[:, d:, d:].sum(2)
        return torch.where((by_step == 0).all(2), -1, by_step.argmax(2))

    def _without_label_before(self, y: Parts) -> Float[Tensor, "batch steps durations labels"]:
        segments = as_tuple(y)[0]
        return segments.sum(3) if self.pairwise else segments
