"""Projective trees: dependency trees without crossing arcs, labelled or not, scored by their arcs."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.validation import check_flag

from .common.dependency_arcs import arcs_in_use, check_arcs, lengths_in_use
from .common.labels import reject_labels

__all__ = ["ProjectiveTree"]


@dataclass(frozen=True, kw_only=True)
class ProjectiveTree(HypergraphProgram):
    """Trees in which each of n words has one head, another word or the root, and no two arcs cross.

    That is, every word between a word and its head descends from the head; the root stands left of all words.

    ⟨θ, y⟩ = Σ_m θ[head(m), m] for θ (..., n + 1, n + 1), where θ[h, m] scores the arc h -> m. Node 0 is the root.
    Labelled arcs have scores (..., n + 1, n + 1, L), and each arc of a tree has one of the L labels. Column 0 and the
    diagonal are never read; there and in the padding y is 0. −inf forbids an arc.

    Instance data: ``lengths`` (...), integers in [1, n], counts words and not the root. Labels are the words' heads
    (..., n), from 0 to n, or heads and labels of the arcs (..., n, 2); decoded ones are −1 beyond the length.

    Parameters
    ----------
    single_root : bool, default False
        Allow only trees with exactly one arc from the root.
    labelled : bool, default False

    Notes
    -----
    Eisner's algorithm, O(n³): some n³ / 2 hyperedges, since the arcs of both directions share the best split of the
    words between their ends.

    References
    ----------
    J. Eisner, Three new probabilistic models for dependency parsing: an exploration, COLING 1996, §4.

    Examples
    --------
    Of two crossing arcs, 3 -> 1 and 2 -> 4, a tree has one at most:

    >>> theta = torch.zeros(1, 5, 5)
    >>> theta[0, [3, 2], [1, 4]] = 2.0
    >>> theta[0, [0, 2], [2, 3]] = 1.0
    >>> tree = ProjectiveTree(single_root=True)
    >>> tree.decode(tree.argmax(theta))
    tensor([[2, 0, 2, 2]])
    >>> tree.count(theta)
    [30]
    """

    single_root: bool = False
    labelled: bool = False

    name: ClassVar[str] = "projective_tree"
    instance_ndim = MappingProxyType({"lengths": 0})

    def __post_init__(self) -> None:
        check_flag("single_root", self.single_root)
        check_flag("labelled", self.labelled)

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """3 if labelled, else 2."""
        return 3 if self.labelled else 2

    @property
    def label_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """2 if labelled, else 1."""
        return 2 if self.labelled else 1

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: Any) -> Hypergraph:
        size = event_shape[0]
        graph = HypergraphBuilder(event_shape)
        arcs = graph.parts.reshape(size, size, -1)
        # Of nodes i < j: a split of what lies between them, an arc over it, i -> j or j -> i, and all that i has up to
        # j or j has down to i.
        split, right, left, has_right, has_left = graph.nodes(5, size, size)
        alone = graph.node()
        graph.add(alone)
        np.fill_diagonal(has_right, alone)
        np.fill_diagonal(has_left, alone)
        i, j = np.triu_indices(size, 1)
        graph.add(right[i, j, None], split[i, j, None], part=arcs[i, j])
        i, j = i[size - 1 :], j[size - 1 :]  # not the root, which has no head
        graph.add(left[i, j, None], split[i, j, None], part=arcs[j, i])
        if self.single_root:
            graph.add(split[0, 1:], has_left[1, 1:])
        for width in range(1, size):
            i = np.arange(size - width)[:, None]
            k, j = i + np.arange(width), i + width
            graph.add(has_right[i, j], right[i, k + 1], has_right[k + 1, j])
            graph.add(has_left[i, j][1:], has_left[i, k][1:], left[k, j][1:])
            some = slice(1 if self.single_root else 0, None)
            graph.add(split[i, j][some], has_right[i, k][some], has_left[k + 1, j][some])
        return graph.build(np.append(-1, has_right[0, 1:]))

    # -- form and labels -------------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        check_arcs(self, theta, labelled=self.labelled)

    def valid_parts(self, theta: Tensor) -> Tensor:
        arcs = arcs_in_use(self, theta)
        return arcs[..., None].expand(len(arcs), *theta.shape[1:]) if self.labelled else arcs

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = like.shape[1] - 1
        if labels.shape[1:] != ((n, 2) if self.labelled else (n,)):
            form = f"heads and labels of arcs, (B, {n}, 2)" if self.labelled else f"heads, (B, {n})"
            raise InvalidInputError(
                f"labels must be {form}, got shape {tuple(labels.shape)}; theta has one row and one column more than "
                "there are words, for the root"
            )
        head, label = labels.unbind(2) if self.labelled else (labels, torch.zeros_like(labels))
        lengths = lengths_in_use(self, like).expand(len(labels))
        inside = torch.arange(n, device=labels.device) < lengths[:, None]
        reject_labels(
            inside & ((head < 0) | (head > lengths[:, None])), labels, "a head is neither 0, the root, nor a word"
        )
        arcs = like.new_zeros(len(labels), n + 1, n + 1, like.shape[3] if self.labelled else 1)
        reject_labels(inside & ((label < 0) | (label >= arcs.shape[3])), labels, "an arc's label is not in range")
        b, m = inside.nonzero(as_tuple=True)
        arcs[b, head[b, m], m + 1, label[b, m]] = 1
        y = arcs.reshape(len(labels), *like.shape[1:])
        # All trees have as many arcs, so that the one with most arcs of y is y, if that is a tree.
        best: Any = self.bind(lengths=lengths).argmax(y)
        kind = "projective tree with a single root" if self.single_root else "projective tree"
        reject_labels(best != y, labels, f"the heads make no {kind}")
        return y

    def decode(self, y: Tensor) -> Tensor:
        words = (y if self.labelled else y.unsqueeze(3))[:, :, 1:].transpose(1, 2).flatten(2)
        best, empty = words.argmax(2), (words == 0).all(2)
        if self.labelled:
            kinds = y.shape[3]
            best, empty = torch.stack([best // kinds, best % kinds], 2), empty.unsqueeze(2)
        return torch.where(empty, -1, best)
