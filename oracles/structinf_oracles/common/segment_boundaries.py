"""Segmentations scored by their steps, boundaries and durations.

The forms are (steps (..., T, S), boundaries (..., T, 2, S), durations (..., D, S)), and the same with a transition
(..., S, S). In a structure, ``steps`` has the label of each step, ``boundaries`` the first and the last step of each
segment, ``durations`` the number of segments of d + 1 steps, and ``transition`` the number of pairs of neighbours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder
from structinf.errors import UnsupportedError
from structinf.parts import Parts, as_tuple

__all__ = [
    "build",
    "describe",
    "encode",
    "graph_size",
    "has_boundaries",
    "is_structure",
    "segments_of",
    "structures",
    "without_masks",
]


_LEAST_MASK = 1e36
"""A number of this size is a mask, such as the smallest float32, and no measure of other scores."""

_MOST_NODES = 20_000_000
"""A graph of this many nodes takes about 6 GB to build."""


def has_boundaries(theta: Parts) -> bool:
    """Return whether θ has one of the forms of this module."""
    return isinstance(theta, tuple) and len(theta) > 2


def graph_size(shapes: Sequence[Sequence[int]]) -> int:
    """Return the approximate number of nodes of :func:`build` for the event shapes of θ."""
    (steps, labels), durations = shapes[0], shapes[2][0]
    return 2 * steps * min(steps, durations) * labels


def build(graph: HypergraphBuilder) -> Hypergraph:
    """Return the recursion with a node for each step, duration and label, for queries without a kernel of their own.

    Parameters
    ----------
    graph : HypergraphBuilder
        A new builder for the event shapes of a form of this module.
    """
    unary, boundaries, durations, *transition = graph.parts
    (steps, labels), most = unary.shape, min(len(durations), len(unary))
    if (size := graph_size([part.shape for part in graph.parts])) > _MOST_NODES:
        raise UnsupportedError(
            f"semi_markov: for {steps} steps, {most} durations and {labels} labels, this query needs a graph of "
            f"{size:,} nodes, and the limit is {_MOST_NODES:,}; the best structure, sums and samples need no graph: "
            "map, marginals, sparsemap, perturbed, log_partition, entropy, log_prob and sample"
        )
    done = graph.nodes(steps + 1)  # [i]: the first i steps
    opened = graph.nodes(steps, labels)  # a segment of the label starts at the step
    # [t, d]: a segment of d + 1 steps that includes step t and may go on, and the same segment at its end.
    age, closed = graph.nodes(2, steps, most, labels)
    t, d = np.tril_indices(steps, m=most)
    graph.add(age[:, 0], opened, part=unary)
    later = d > 0
    graph.add(age[t[later], d[later]], age[t[later] - 1, d[later] - 1], part=unary[t[later]])
    graph.add(closed[t, d], age[t, d], part=durations[d])
    if transition:
        begun, ended = graph.nodes(2, steps, labels)
        graph.add(begun[0])
        graph.add(begun[1:, None], ended[:-1, :, None], part=transition[0])
        graph.add(opened, begun, part=boundaries[:, 0])
        graph.add(ended[t], closed[t, d], part=boundaries[t, 1])
        graph.add(done[1:, None], ended)
    else:
        graph.add(done[0])
        graph.add(opened, done[:-1, None], part=boundaries[:, 0])
        graph.add(done[t + 1, None], closed[t, d], part=boundaries[t, 1])
    return graph.build(np.append(-1, done[1:]), prune=True)


def without_masks(theta: Parts) -> Parts:
    """Return θ with −inf in place of scores of steps that only masks such as the smallest float have.

    Sums of segments are differences of cumulative sums, in which a mask would leave no digits of the other scores. A
    score is a mask if it is below the best score of its step by more than 10⁸ (1 + c). c is the largest absolute value
    among the best scores of each boundary, each duration and each label before a transition; a tensor with a mask of
    this kind is left out. To cut the
    step out of its segment costs about 20 c, so the share of structures with the score is below exp(−10⁷), unless
    the scores forbid the cut.
    """
    steps, *others = as_tuple(theta)
    largest = [torch.linalg.vector_norm(t.detach().amax(-1).flatten(1), math.inf, 1) for t in others]
    scale = functools.reduce(torch.maximum, [t.masked_fill(t > _LEAST_MASK, 0.0) for t in largest]).view(-1, 1, 1)
    # The bound may overflow to −inf, and then no score is a mask.
    is_mask = steps < steps.amax(2, keepdim=True) - 1e8 * (1 + scale)
    if is_mask.is_cpu and not bool(is_mask.any()):
        return theta
    return steps.masked_fill(is_mask, -torch.inf), *others


def structures(tags: Tensor, starts: Tensor, like: Parts) -> Parts:
    """Return segmentations in the form of ``like``.

    Parameters
    ----------
    tags : (..., T) integer Tensor
        The label of each step; −1 beyond the length.
    starts : (..., T) bool Tensor
        Whether a segment starts at the step.
    like : tuple of Tensors
        The scores.
    """
    _, _, durations, *transition = like
    dtype, labels, most = durations.dtype, durations.shape[2], durations.shape[1]
    inside, tag = tags >= 0, tags.clamp(0, labels - 1)
    t = torch.arange(tags.shape[-1], device=tags.device)
    ends = inside.clone()
    ends[..., :-1] &= starts[..., 1:] | ~inside[..., 1:]
    label = (tag.unsqueeze(-1) == torch.arange(labels, device=tags.device)) & inside.unsqueeze(-1)
    boundaries = torch.stack([label & starts.unsqueeze(-1), label & ends.unsqueeze(-1)], -2)
    longer = (t - torch.where(starts, t, 0).cummax(-1).values).clamp(max=most - 1)
    y = [label.to(dtype), boundaries.to(dtype), _counts(longer * labels + tag, ends, (most, labels), dtype)]
    if transition:
        pairs = tag[..., :-1] * labels + tag[..., 1:]
        y.append(_counts(pairs, starts[..., 1:] & inside[..., 1:], (labels, labels), dtype))
    return tuple(y)


def is_structure(y: Parts, lengths: Tensor) -> Tensor:
    """Return whether each instance of ``y`` (B, *event) is a segmentation of its length, (B,)."""
    label, boundaries, durations = as_tuple(y)[:3]
    t = torch.arange(label.shape[1], device=label.device)
    inside = t < lengths.unsqueeze(1)
    tags, starts = torch.where(inside, label.argmax(2), -1), (boundaries[:, :, 0] != 0).any(2) & inside
    last = torch.where(starts, t, 0).cummax(1).values
    # The label changes only where a segment starts, and no segment is too long.
    right = (starts[:, 0] & ((t - last < durations.shape[1]) | ~inside).all(1)) & (
        (tags[:, 1:] == tags[:, :-1]) | starts[:, 1:] | ~inside[:, 1:]
    ).all(1)
    for rebuilt, part in zip(structures(tags, starts, y), as_tuple(y), strict=True):
        right = right & (rebuilt == part).flatten(1).all(1)
    return right


def _counts(index: Tensor, is_counted: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return how often each number is in ``index`` (..., n) where ``is_counted``, (..., *shape)."""
    count = torch.zeros(*index.shape[:-1], shape[0] * shape[1], dtype=dtype, device=index.device)
    return count.scatter_add_(-1, index, is_counted.to(dtype)).unflatten(-1, shape)


def encode(first: Tensor, label: Tensor, used: Tensor, length: Tensor, like: Parts) -> Parts:
    """Return segmentations in the form of ``like``.

    Parameters
    ----------
    first, label : (B, T) integer Tensor
        The first step and the label of each segment, in order.
    used : (B, T) bool Tensor
        Which entries are segments.
    length : (B,) Tensor
        The number of steps in use.
    like : tuple of Tensors
        The scores.
    """
    steps = first.shape[1]
    # On a GPU, the check of the labels may come later. The last column receives all other entries.
    place = torch.where(used, first, steps).clamp(0, steps)
    starts = torch.zeros(len(first), steps + 1, dtype=torch.bool, device=first.device).scatter_(1, place, True)[:, :-1]
    tags = label.gather(1, (starts.cumsum(1) - 1).clamp(min=0))
    inside = torch.arange(steps, device=first.device) < length.unsqueeze(1)
    return structures(torch.where(inside, tags, -1), starts, like)


def segments_of(y: Parts) -> Tensor:
    """Return the first step, the number of steps and the label of each segment, (B, T, 3), padded with −1."""
    label, boundaries = as_tuple(y)[:2]
    steps = label.shape[1]
    starts, ends = ((boundaries[:, :, side] != 0).any(2) for side in (0, 1))
    t = torch.arange(steps, device=label.device).expand(starts.shape)
    place = (starts.cumsum(1) - 1).clamp(min=0)
    first = torch.full((len(label), steps + 1), -1, device=label.device)
    last = first.clone()
    # The last column receives all steps that are no boundaries.
    first.scatter_(1, torch.where(starts, place, steps), t)
    last.scatter_(1, torch.where(ends, place, steps), t)
    first, last = first[:, :-1], last[:, :-1]
    tag = label.argmax(2).gather(1, first.clamp(min=0))
    return torch.where(first.unsqueeze(2) < 0, -1, torch.stack([first, last - first + 1, tag], 2))


def describe(tensor: int, index: tuple[int, ...]) -> str:
    """Return the words of messages for a part."""
    if tensor == 0:
        return f"label {index[1]} of step {index[0]}"
    if tensor == 1:
        step, side, label = index
        return f"{'end' if side else 'start'} of a segment with label {label} at step {step}"
    if tensor == 2:
        return f"segment of {index[0] + 1} steps with label {index[1]}"
    return f"transition {index[0]} -> {index[1]} between labels"
