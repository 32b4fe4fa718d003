"""Projective trees: dependency trees without crossing arcs, labelled or unlabelled, scored by their arcs."""

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

from .common.dependency_arcs import arcs_in_use, arcs_that_agree, check_arcs, describe_arc, lengths_in_use
from .common.labels import agreeing_choices, indicators, reject_labels

__all__ = ["ProjectiveTree"]


@dataclass(frozen=True, kw_only=True)
class ProjectiveTree(HypergraphProgram):
    """Dependency trees without crossing arcs: each of n words has one head, another word or the root.

    Words are numbered from 1 to n, and node 0 is the root, left of all words. In a projective tree, every word
    between a word and its head is a descendant of the head. ⟨θ, y⟩ = Σ_m θ[head(m), m].

    - Scores θ, shape (..., n + 1, n + 1), any sign: θ[h, m] is the score of the arc from head h to word m. Column 0
      and the diagonal are never read. −inf forbids an arc. With ``labelled``, shape (..., n + 1, n + 1, L): the score
      of each arc with each of L labels.
    - Structure y, same shape as θ: 1 for each arc of the tree, with ``labelled`` at the label of the arc. Column 0,
      the diagonal and the padding are 0.
    - Labels, shape (..., n): the head of each word, an integer in [0, n]. With ``labelled``, shape (..., n, 2): the
      head of each word and the label of its arc. Decoded labels are −1 beyond the length.
    - Instance data ``lengths``, shape (...): the number of words without the root, an integer in [0, n]. Default: n.

    Parameters
    ----------
    single_root : bool, default False
        Whether exactly one word has the root as its head. If False, any number of words may.
    labelled : bool, default False
        Whether each arc has one of L labels, with its own score.

    Notes
    -----
    The recursion is Eisner's algorithm, O(n³), with about n³ / 2 hyperedges: the arcs of both directions share the
    best split of the words between their ends.

    References
    ----------
    J. Eisner, Three new probabilistic models for dependency parsing: an exploration, COLING 1996, §4.

    Examples
    --------
    The arcs 3 -> 1 and 2 -> 4 cross, so a tree has at most one of them:

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
    search_terms: ClassVar[tuple[str, ...]] = ("eisner", "projective_dependency")
    instance_ndim = MappingProxyType({"lengths": 0})
    has_empty_structure = True

    def __post_init__(self) -> None:
        check_flag("single_root", self.single_root)
        check_flag("labelled", self.labelled)

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of event dimensions of θ: 3 if ``labelled``, else 2."""
        return 3 if self.labelled else 2

    @property
    def label_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of label dimensions: 2 if ``labelled``, else 1."""
        return 2 if self.labelled else 1

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: Any) -> Hypergraph:
        size = event_shape[0]
        graph = HypergraphBuilder(event_shape)
        arcs = graph.parts.reshape(size, size, -1)
        # For nodes i < j: a split of the words between them (``split``), an arc over them, i -> j (``right``) or j -> i
        # (``left``), and a complete span from i right to j (``has_right``) or from j left to i (``has_left``).
        split, right, left, has_right, has_left = graph.nodes(5, size, size)
        alone = graph.node()
        graph.add(alone)
        np.fill_diagonal(has_right, alone)
        np.fill_diagonal(has_left, alone)
        i, j = np.triu_indices(size, 1)
        graph.add(right[i, j, None], split[i, j, None], part=arcs[i, j])
        i, j = i[size - 1 :], j[size - 1 :]  # without i = 0, as the root has no head
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

    def allowed_parts(self, labels: Tensor, like: Tensor) -> Tensor:
        if not self.labelled:
            return arcs_that_agree(self, labels, like)
        n, kinds = like.shape[2] - 1, like.shape[3]
        if labels.shape[1:] != (n, 2):
            raise InvalidInputError(
                f"labels must be heads and labels of arcs, (B, {n}, 2), got shape {tuple(labels.shape)}"
            )
        head, label = labels.unbind(2)
        inside = torch.arange(n, device=labels.device) < lengths_in_use(self, like).expand(len(labels))[:, None]
        of_words = agreeing_choices(label, inside, kinds, kinds)
        of_nodes = torch.cat([torch.ones_like(of_words[:, :1]), of_words], 1)
        return arcs_that_agree(self, head, like).unsqueeze(3) & of_nodes.unsqueeze(1)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = like.shape[1] - 1
        if labels.shape[1:] != ((n, 2) if self.labelled else (n,)):
            form = f"heads and labels of arcs, (B, {n}, 2)" if self.labelled else f"heads, (B, {n})"
            raise InvalidInputError(
                f"labels must be {form}, got shape {tuple(labels.shape)}; theta of shape (B, {n + 1}, {n + 1}, ...) "
                f"scores {n} words and the root"
            )
        head, label = labels.unbind(2) if self.labelled else (labels, torch.zeros_like(labels))
        lengths = lengths_in_use(self, like).expand(len(labels))
        inside = torch.arange(n, device=labels.device) < lengths[:, None]
        kinds = like.shape[3] if self.labelled else 1
        reject_labels(
            inside & ((head < 0) | (head > lengths[:, None])),
            labels,
            "a head is neither 0 (the root) nor a word in use",
            defers=True,
        )
        reject_labels(inside & ((label < 0) | (label >= kinds)), labels, "an arc's label is out of range", defers=True)
        word = torch.arange(1, n + 1, device=labels.device)
        place = (head * (n + 1) + word) * kinds + label
        y = indicators(place, inside, (n + 1) ** 2 * kinds, like).reshape(len(labels), *like.shape[1:])
        # All trees have the same number of arcs. So the best tree for the scores y is y itself, if y is a tree.
        # Another binding would check the lengths again, and wait for a GPU.
        oracle = self if len(self.bound.get("lengths", y)) == len(y) else self.bind(lengths=lengths)
        best: Any = oracle.argmax(y)
        kind = "projective tree with a single root" if self.single_root else "projective tree"
        reject_labels(best != y, labels, f"the heads do not form a {kind}", defers=True)
        return y

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        return describe_arc(index)

    def decode(self, y: Tensor) -> Tensor:
        words = (y if self.labelled else y.unsqueeze(3))[:, :, 1:].transpose(1, 2).flatten(2)
        best, empty = words.argmax(2), (words == 0).all(2)
        if self.labelled:
            kinds = y.shape[3]
            best, empty = torch.stack([best // kinds, best % kinds], 2), empty.unsqueeze(2)
        return torch.where(empty, -1, best)
