"""Binary trees over a sequence of words (constituents), labelled or unlabelled, scored by their spans."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.validation import bound_lengths, check_flag, check_lengths, skips_checks

from .common.labels import indicators, nonzero_positions, reject_labels

__all__ = ["BinaryTree"]


@dataclass(frozen=True, kw_only=True)
class BinaryTree(HypergraphProgram):
    """Trees in which every span of two or more words splits into two spans, down to single words.

    ⟨θ, y⟩ = Σ θ[i, j] over the 2n − 1 spans of the tree. The span [i, j] holds the words i, ..., j, counted from 0.
    Single words are spans too.

    - Scores θ, shape (..., n, n): θ[i, j] is the score of the span [i, j]. Entries with i > j are never read. −inf
      forbids a span. With ``labelled``, shape (..., n, n, L): the score of each span with each of L labels. With U
      ``unary_rules``, shape (..., n, n, L + U): the scores of each span with each label alone, and then the scores of
      each span with each unary rule.
    - Structure y, same shape as θ: 1 for each span of the tree, with ``labelled`` at the label or the unary rule of the
      span. Entries with i > j and the padding are 0.
    - Labels, shape (..., 2n − 1, 2), or (..., 2n − 1, 3) with ``labelled``: the first word, the last word and the
      label of each span, in any order. The label of a span with the unary rule u is L + u. Decoded spans are sorted by
      their first word, longer spans first. Rows beyond the 2 · length − 1 spans are −1.
    - Instance data ``lengths``, shape (...): the number of words, an integer in [0, n]. Default: n.

    Parameters
    ----------
    labelled : bool, default False
        Whether each span has one of L labels, with its own score.
    rules : sequence of (parent, left, right), optional
        Allowed combinations of the label of a span and the labels of its two halves, integers in [0, L). Default:
        all.
    roots : sequence of int, optional
        Allowed labels of the span of all words, integers in [0, L). Default: all.
    unary_rules : sequence of (parent, child), optional
        Unary steps from one label to another label of the same span. A span has at most one step: its own label is then
        the parent, and the child splits by ``rules`` or is above a single word. The step has one score, without the
        scores of the two labels alone. Default: no steps.

    Notes
    -----
    The recursion is the algorithm of Cocke, Kasami and Younger, O(n³): n³ / 6 hyperedges, or n³ / 6 for each rule.
    A chain of several unary steps, such as A → B → C, is one rule (A, C) with the score of the chain.

    References
    ----------
    D. Younger, Recognition and parsing of context-free languages in time n³, Information and Control 10 (1967).
    K. Lari & S. Young, The estimation of stochastic context-free grammars using the inside-outside algorithm,
    Computer Speech and Language 4 (1990).

    Examples
    --------
    >>> theta = torch.zeros(1, 4, 4)
    >>> theta[0, 1, 2], theta[0, 0, 2] = 1.0, 0.5
    >>> tree = BinaryTree()
    >>> tree.decode(tree.argmax(theta))[0].tolist()
    [[0, 3], [0, 2], [0, 0], [1, 2], [1, 1], [2, 2], [3, 3]]
    >>> tree.count(theta)
    [5]

    With these rules only label 0 splits, and its left half has label 1. All trees branch to the right:

    >>> rules = [(0, 1, 0), (0, 1, 1)]
    >>> right_branching = BinaryTree(labelled=True, rules=rules, roots=[0])
    >>> right_branching.count(torch.zeros(1, 4, 4, 2))
    [2]

    A noun (label 1) alone can be a noun phrase (label 0). The unary rule adds a fourth score to each span:

    >>> phrases = BinaryTree(
    ...     labelled=True,
    ...     rules=[(2, 0, 2)],
    ...     roots=[2],
    ...     unary_rules=[(0, 1)],
    ... )
    >>> theta = torch.tensor([0.0, 1.0, 0.0, 2.0]).expand(1, 2, 2, 4)
    >>> phrases.decode(phrases.argmax(theta))[0].tolist()
    [[0, 1, 2], [0, 0, 3], [1, 1, 2]]
    """

    labelled: bool = False
    rules: Sequence[Sequence[int]] | None = None
    roots: Sequence[int] | None = None
    unary_rules: Sequence[Sequence[int]] | None = None

    name: ClassVar[str] = "binary_tree"
    search_terms: ClassVar[tuple[str, ...]] = (
        "cky",
        "cyk",
        "inside_outside",
        "pcfg",
        "constituency",
        "context_free_grammar",
    )
    instance_ndim = MappingProxyType({"lengths": 0})
    has_empty_structure = True
    label_ndim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_flag("labelled", self.labelled)
        if not self.labelled and not self.rules is self.roots is self.unary_rules is None:
            raise InvalidInputError("rules, roots and unary_rules are about labels; pass labelled=True to use them")
        # Tuples make equal options share a cached graph. Duplicate rules would count a tree more than once.
        if self.rules is not None:
            rules = dict.fromkeys(_labels("rules", rule) for rule in _rows("rules", self.rules))
            if wrong := [rule for rule in rules if len(rule) != 3]:
                raise InvalidInputError(
                    f"rules must be triples of labels (parent, left, right), got {wrong[0]}; pairs (parent, child) are "
                    "unary_rules"
                )
            object.__setattr__(self, "rules", tuple(rules))
        if self.unary_rules is not None:
            steps = tuple(_labels("unary_rules", step) for step in _rows("unary_rules", self.unary_rules))
            if wrong := [step for step in steps if len(step) != 2 or step[0] == step[1]]:
                raise InvalidInputError(
                    f"unary_rules must be pairs of different labels (parent, child), got {wrong[0]}"
                )
            if len(set(steps)) < len(steps):
                raise InvalidInputError(f"unary_rules must be different, got {list(steps)}")
            object.__setattr__(self, "unary_rules", steps)
        if self.roots is not None:
            object.__setattr__(self, "roots", tuple(dict.fromkeys(_labels("roots", self.roots))))
            if not self.roots:
                raise InvalidInputError("roots must hold at least one label, got none")

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of event dimensions of θ: 3 if ``labelled``, else 2."""
        return 3 if self.labelled else 2

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: Any) -> Hypergraph:
        n = event_shape[0]
        graph = HypergraphBuilder(event_shape)
        parts = graph.parts.reshape(n, n, -1)
        top, bottom = self._labels_of_parts(parts.shape[2])
        # With rules, a span has a node for each label. Without rules, all labels of a span share one node.
        labels = parts.shape[2] - len(self.unary_rules or ())
        kinds = 1 if self.rules is None else labels
        span, split = (np.broadcast_to(nodes, (n, n, labels)) for nodes in graph.nodes(2, n, n, kinds))
        parent, left, right = self._rules()
        i, j = np.triu_indices(n, 1)
        graph.add(span[i, j][:, top], split[i, j][:, bottom], part=parts[i, j])
        i = np.arange(n)
        graph.add(span[i, i][:, top], part=parts[i, i])
        for width in range(1, n):
            i = np.arange(n - width)[:, None, None]
            j, k = i + width, i + np.arange(width)[:, None]
            graph.add(split[i, j, parent], span[i, k, left], span[k + 1, j, right])
        roots = np.flatnonzero(np.ones_like(top) if self.roots is None else np.isin(top, self.roots))
        goals = graph.nodes(n)
        graph.add(goals[0], part=parts[0, 0, roots])
        graph.add(goals[1:, None], split[0, 1:][:, bottom[roots]], part=parts[0, 1:][:, roots])
        return graph.build(np.append(-1, np.where(self._have_trees(n, labels), goals, -1)), prune=True)

    def _labels_of_parts(self, kinds: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the label of a span, and the label that splits, for each of the L + U parts of the span, (L + U,)."""
        steps = np.reshape(self.unary_rules or (), (-1, 2)).astype(np.int64)
        alone = np.arange(kinds - len(steps))
        return np.append(alone, steps[:, 0]), np.append(alone, steps[:, 1])

    def _rules(self) -> np.ndarray:
        """Return the labels of parents, left halves and right halves, (3, R).

        Without rules, zeros for the one shared node.
        """
        return np.reshape([(0, 0, 0)] if self.rules is None else self.rules, (-1, 3)).astype(np.int64).T

    def _have_trees(self, n: int, labels: int) -> np.ndarray:
        """Return for 1, ..., n words whether there is a tree, (n,) bool."""
        parent, left, right = self._rules()
        top, bottom = self._labels_of_parts(labels + len(self.unary_rules or ()))
        has_tree = np.zeros((n + 1, labels), np.bool_)
        has_tree[1] = True
        for words in range(2, n + 1):
            both = has_tree[1:words, left] & has_tree[words - 1 : 0 : -1, right]
            splits = np.isin(np.arange(labels), parent[both.any(0)])
            has_tree[words, top[splits[bottom]] if self.rules is not None else parent[both.any(0)]] = True
        roots = slice(None) if self.roots is None or self.rules is None else list(self.roots)
        return np.asarray(has_tree[1:, roots].any(1))

    # -- form and labels -------------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        n, *others = theta.shape[1:]
        steps = len(self.unary_rules or ())
        if n < 1 or others[0] != n or (self.labelled and others[1] <= steps):
            form = "(n, n, L) of labelled spans" if self.labelled else "(n, n) of spans"
            form = f"(n, n, L + {steps}) of spans with labels and unary rules" if steps else form
            raise InvalidInputError(
                f"theta: {self.label()} takes scores {form}, indexed by first and last word, for n >= 1 words; got "
                f"{tuple(theta.shape[1:])} after the batch dimension"
            )
        rules = [self._rules().flatten(), np.ravel(self.unary_rules or ()), np.array(self.roots or ())]
        largest = int(np.concatenate(rules).max(initial=0))
        if self.labelled and largest >= others[1] - steps:
            raise InvalidInputError(
                f"theta: {self.label()} has rules or roots with label {largest}, but theta scores only the labels 0 "
                f"to {others[1] - steps - 1}{f' and {steps} unary rules' if steps else ''}; score more labels or "
                "change the rules"
            )
        if "lengths" in self.bound:
            check_lengths(self._lengths(theta), 1, n, f"n = {n} words", has_empty=True)
        without = self.hypergraph(theta).goals < 0
        # Nothing waits for a GPU if every number of words in question has a tree.
        if without[1:].any() if "lengths" in self.bound else without[n]:
            self._check_has_tree(self._lengths(theta), torch.from_numpy(without))

    def _check_has_tree(self, lengths: Tensor, without: Tensor) -> None:
        """Raise InvalidInputError if a number of words in ``lengths`` (B,) is marked in ``without`` (n + 1,)."""
        if skips_checks(lengths):
            return
        wrong = without.to(lengths.device)[lengths]
        if bool(wrong.any()):
            b = int(wrong.nonzero()[0])
            raise InvalidInputError(
                f"rules: no tree over {int(lengths[b])} words follows the rules, at batch index {b}; allow more rules "
                "or roots"
            )

    def valid_parts(self, theta: Tensor) -> Tensor:
        """Mask the spans [i, j] with i ≤ j that end within the length."""
        n = theta.shape[1]
        if uses_triton(theta):
            from structinf.kernels.padding import triton_masks

            lengths = self.bound.get("lengths")
            column = None if lengths is None else 0
            spans = triton_masks.mask((n, n), theta.device, lengths, columns=column, order="row <= column")
            spans = spans.any(0, keepdim=True) if len(theta) < len(spans) else spans
            return spans[..., None].expand(len(spans), *theta.shape[1:]) if self.labelled else spans
        spans = torch.ones(1, n, n, dtype=torch.bool, device=theta.device).triu_()
        if "lengths" in self.bound:
            inside = torch.arange(n, device=theta.device) < self._lengths(theta[:1])[:, None]
            spans = spans & inside[:, None]
        return spans[..., None].expand(len(spans), *theta.shape[1:]) if self.labelled else spans

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n, fields = like.shape[1], 3 if self.labelled else 2
        if labels.shape[1:] != (2 * n - 1, fields):
            form = "first word, last word, label" if self.labelled else "first word, last word"
            raise InvalidInputError(
                f"labels must be spans ({form}) of shape (B, {2 * n - 1}, {fields}), got shape {tuple(labels.shape)}"
            )
        lengths = self._lengths(like).expand(len(labels))
        used = torch.arange(2 * n - 1, device=labels.device) < 2 * lengths[:, None] - 1
        first, last, label = (*labels.unbind(2), torch.zeros_like(labels[..., 0]))[:3]
        kinds = like.shape[3] if self.labelled else 1
        reject_labels(
            used & ((first < 0) | (last < first) | (last >= lengths[:, None])),
            labels,
            "a span lies outside the words in use",
            defers=True,
        )
        reject_labels(used & ((label < 0) | (label >= kinds)), labels, "a span's label is out of range", defers=True)
        y = indicators((first * n + last) * kinds + label, used, n * n * kinds, like).reshape(
            len(labels), *like.shape[1:]
        )
        # All trees have the same number of spans. So the best tree for the scores y is y itself, if y is a tree.
        # Another binding would check the lengths again, and wait for a GPU.
        oracle = self if len(self.bound.get("lengths", y)) == len(y) else self.bind(lengths=lengths)
        best: Any = oracle.argmax(y)
        kind = "binary tree" if self.rules is self.roots is None else "binary tree that the rules allow"
        reject_labels(best != y, labels, f"the spans do not form a {kind}", defers=True)
        return y

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        first, last, *label = index
        where = f"span of the words {first} to {last}"
        if label and (step := label[0] - cast(Tensor, y).shape[3] + len(self.unary_rules or ())) >= 0:
            parent, child = cast(Any, self.unary_rules)[step]
            return f"{where} with unary rule {step}, {parent} -> {child}"
        return where + (f" with label {label[0]}" if label else "")

    def decode(self, y: Tensor) -> Tensor:
        n, kinds = y.shape[1], y.shape[3] if self.labelled else 1
        # In reverse order of the last word: of spans with the same first word, the longest comes first.
        positions = nonzero_positions(y.flip(2).flatten(1), 2 * n - 1)
        spans = [positions // (n * kinds), n - 1 - positions // kinds % n, positions % kinds]
        return torch.stack(spans[: y.ndim - 1], 2).masked_fill(positions[..., None] < 0, -1)

    def _lengths(self, theta: Tensor) -> Tensor:
        """Return the bound lengths (B,), or n for each instance."""
        n = theta.shape[1]
        return bound_lengths(self, len(theta), n, theta.device)


def _rows(option: str, rules: Any) -> list[Any]:
    """Return the rules given for an option as a list.

    Raises InvalidInputError unless they are a sequence or an array with rows.
    """
    is_array = hasattr(rules, "shape") and len(rules.shape) > 0
    is_sequence = is_array or (isinstance(rules, Sequence) and not isinstance(rules, str | bytes))
    # A single rule, without a list around it, has numbers as rows.
    if not is_sequence or any(isinstance(row, int) or getattr(row, "shape", None) == () for row in rules):
        form, example = ("triples of labels (parent, left, right)", "[(0, 1, 2)]")
        if option == "unary_rules":
            form, example = ("pairs of labels (parent, child)", "[(0, 1)]")
        raise InvalidInputError(f"{option} must be a sequence of {form}, got {rules!r}; give for example {example}")
    return list(rules)


def _labels(option: str, given: Any) -> tuple[int, ...]:
    """Return the labels ``given`` for an option as a tuple of integers.

    Raises InvalidInputError if one is negative or no integer.
    """
    try:
        labels = tuple(operator.index(label) for label in given)
        is_flag = any(isinstance(label, bool) for label in given)
    except TypeError:
        labels, is_flag = (-1,), False
    if is_flag or min(labels, default=0) < 0:
        raise InvalidInputError(f"{option}: labels must be integers of at least 0, got {given!r}")
    return labels
