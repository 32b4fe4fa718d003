"""Agreement of predicted structures with gold structures: spans, attachments, brackets, alignments and matchings.

All numbers count over the whole batch ("micro"), as evaluation scripts do over a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..functional.tag_scheme import Span, TagScheme
from ..kernels.arrays import as_tensor
from ..validation import check_choice, check_natural

__all__ = [
    "AttachmentScores",
    "F1Score",
    "MatchingAccuracy",
    "alignment_error_rate",
    "attachment_scores",
    "bracket_f1",
    "matching_accuracy",
    "span_f1",
]


class F1Score(NamedTuple):
    """Precision, recall and their harmonic mean; each is 0 if its denominator is 0.

    Attributes
    ----------
    precision : float
        Share of the predicted items that are gold.
    recall : float
        Share of the gold items that are predicted.
    f1 : float
        2 · precision · recall / (precision + recall).
    """

    precision: float
    recall: float
    f1: float


class AttachmentScores(NamedTuple):
    """Shares of words with the right head; NaN without any word.

    Attributes
    ----------
    unlabelled : float
        Share of the words with the gold head (UAS).
    labelled : float
        Share of the words with the gold head and the gold label (LAS); NaN if no labels were given.
    words : int
        Number of words that were counted.
    """

    unlabelled: float
    labelled: float
    words: int


class MatchingAccuracy(NamedTuple):
    """Shares of right choices; NaN if nothing was counted.

    Attributes
    ----------
    items : float
        Share of the items with the gold partner.
    instances : float
        Share of the instances in which each counted item has the gold partner.
    """

    items: float
    instances: float


# ----------------------------------------------------------------------------- spans and brackets


def span_f1(
    predicted: Tensor,
    gold: Tensor,
    scheme: TagScheme,
    *,
    lengths: Tensor | Sequence[int] | None = None,
    average: str = "micro",
) -> F1Score:
    """Return precision, recall and F1 of the spans of tag sequences. A span is right if both ends and its type are.

    Sequences that break the encoding are read as :meth:`TagScheme.spans` reads them, as in the script conlleval.

    Parameters
    ----------
    predicted, gold : (..., T) integer Tensors
        Indices of tags, as :func:`structinf.decode` returns them; −1 is padding.
    scheme : TagScheme
        The names of the tags, and their encoding.
    lengths : (...) integers, optional
        Number of tokens of each sequence; by default, the tokens of ``gold`` up to the first −1.
    average : "micro" or "macro"
        "micro" counts the spans of all types together. "macro" is the mean over the types of predicted or gold spans
        of the scores of one type.

    Returns
    -------
    F1Score
        The numbers over the whole batch.

    References
    ----------
    Tjong Kim Sang & De Meulder 2003, Introduction to the CoNLL-2003 shared task, CoNLL, pages 142-147.

    Examples
    --------
    >>> from structinf import TagScheme
    >>> scheme = TagScheme(["O", "B-PER", "I-PER", "B-LOC"])
    >>> gold = torch.tensor([[1, 2, 0, 3]])
    >>> span_f1(torch.tensor([[1, 0, 0, 3]]), gold, scheme)
    F1Score(precision=0.5, recall=0.5, f1=0.5)
    """
    check_choice("average", average, ("micro", "macro"))
    _check_same_shape("predicted", predicted, "gold", gold, 1)
    if not isinstance(scheme, TagScheme):
        raise TypeError(f"scheme must be a TagScheme, got {type(scheme).__name__}")
    if lengths is None:
        lengths = (gold >= 0).cumprod(-1).sum(-1)
    found, right = (
        [(row, *span) for row, spans in enumerate(_spans(name, tags, scheme, lengths)) for span in spans]
        for name, tags in (("predicted", predicted), ("gold", gold))
    )
    if average == "micro":
        return _f1(found, right)
    kinds = sorted({item[-1] for item in found + right})
    scores = [_f1([i for i in found if i[-1] == kind], [i for i in right if i[-1] == kind]) for kind in kinds]
    if not scores:
        return F1Score(0.0, 0.0, 0.0)
    return F1Score(*(sum(column) / len(scores) for column in zip(*scores, strict=True)))


def _spans(name: str, tags: Tensor, scheme: TagScheme, lengths: Any) -> list[list[Span]]:
    try:
        return scheme.spans(tags, lengths)
    except InvalidInputError as error:
        raise InvalidInputError(re.sub(r"^labels\b", name, str(error))) from None


def bracket_f1(
    predicted: Tensor, gold: Tensor, *, min_length: int = 2, lengths: Tensor | Sequence[int] | None = None
) -> F1Score:
    """Return precision, recall and F1 of the brackets (constituents) of trees, with labels if the trees have labels.

    Parameters
    ----------
    predicted, gold : (..., K, 2) or (..., K, 3) integer Tensors
        The first word, the last word and the label of each span, as :func:`structinf.decode` returns them for
        ``binary_tree``. Rows of −1 are padding. The two numbers of rows may differ.
    min_length : int
        The least number of words of a bracket that counts. 2 leaves out single words, which each tree has.
    lengths : (...) integers, optional
        Number of words of each sentence. If given, the span of all words does not count: each tree has it.

    Returns
    -------
    F1Score
        The numbers over the whole batch. A span that occurs k times counts k times.

    References
    ----------
    Black et al. 1991, A procedure for quantitatively comparing the syntactic coverage of English grammars, pages
    306-311 (PARSEVAL).

    Examples
    --------
    >>> gold = torch.tensor([[[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]]])
    >>> other = torch.tensor([[[0, 2], [0, 0], [1, 2], [1, 1], [2, 2]]])
    >>> bracket_f1(other, gold)
    F1Score(precision=0.5, recall=0.5, f1=0.5)
    >>> bracket_f1(other, gold, lengths=[3])
    F1Score(precision=0.0, recall=0.0, f1=0.0)
    """
    check_natural("min_length", min_length)
    for name, t in (("predicted", predicted), ("gold", gold)):
        _check_integers(name, t)
        if t.ndim < 2 or t.shape[-1] not in (2, 3):
            raise InvalidInputError(
                f"{name} must hold spans (first, last) or (first, last, label), of shape (..., K, 2) or (..., K, 3), "
                f"got shape {tuple(t.shape)}"
            )
    if predicted.shape[:-2] != gold.shape[:-2] or predicted.shape[-1] != gold.shape[-1]:
        raise InvalidInputError(
            "predicted and gold must have the same batch shape, and both labels or neither, got shapes "
            f"{tuple(predicted.shape)} and {tuple(gold.shape)}"
        )
    batch = gold.shape[:-2]
    sizes = [-1] * batch.numel() if lengths is None else _lengths(lengths, batch).flatten().tolist()

    def brackets(t: Tensor) -> list[tuple[int, ...]]:
        rows = t.reshape(batch.numel(), *t.shape[-2:]).tolist()
        return [
            (b, *span)
            for b, (spans, size) in enumerate(zip(rows, sizes, strict=True))
            for span in spans
            if span[0] >= 0 and min_length <= span[1] - span[0] + 1 != size
        ]

    return _f1(brackets(predicted), brackets(gold))


def _f1(found: Iterable[Hashable], right: Iterable[Hashable]) -> F1Score:
    found, right = Counter(found), Counter(right)
    common = sum((found & right).values())
    precision, recall = (common / max(sum(items.values()), 1) for items in (found, right))
    return F1Score(precision, recall, 2 * precision * recall / (precision + recall) if common else 0.0)


# ----------------------------------------------------------------------------- heads, matchings, alignments


def attachment_scores(
    heads: Tensor,
    gold_heads: Tensor,
    labels: Tensor | None = None,
    gold_labels: Tensor | None = None,
    *,
    lengths: Tensor | Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> AttachmentScores:
    """Return the unlabelled and the labelled attachment score of dependency trees.

    Parameters
    ----------
    heads, gold_heads : (..., n) integer Tensors
        The head of each word, as :func:`structinf.decode` returns them. Words of gold head −1 (padding) do not count.
    labels, gold_labels : (..., n) integer Tensors, optional
        The label of the arc to each word. Both or neither.
    lengths : (...) integers, optional
        Number of words of each sentence; n by default.
    mask : (..., n) bool Tensor, optional
        The words that count, for example the words that are no punctuation.

    Returns
    -------
    AttachmentScores
        The shares over all words of the batch.

    References
    ----------
    Buchholz & Marsi 2006, CoNLL-X shared task on multilingual dependency parsing, CoNLL, pages 149-164.

    Examples
    --------
    >>> gold = torch.tensor([[2, 0, 2], [0, 1, -1]])
    >>> attachment_scores(torch.tensor([[2, 0, 1], [0, 1, 5]]), gold)
    AttachmentScores(unlabelled=0.8, labelled=nan, words=5)
    """
    _check_same_shape("heads", heads, "gold_heads", gold_heads, 1)
    if (labels is None) != (gold_labels is None):
        raise TypeError("labels and gold_labels belong together: pass both, or neither")
    counted = _counted(gold_heads, lengths, mask)
    right = (heads.to(gold_heads.device) == gold_heads) & counted
    words = int(counted.sum())
    labelled = torch.nan
    if labels is not None and gold_labels is not None:
        _check_same_shape("labels", labels, "gold_labels", gold_labels, 1)
        if labels.shape != heads.shape:
            raise InvalidInputError(
                f"labels must have the shape of heads, {tuple(heads.shape)}, got {tuple(labels.shape)}"
            )
        same = labels.to(gold_heads.device) == gold_labels.to(gold_heads.device)
        labelled = _share(int((right & same).sum()), words)
    return AttachmentScores(_share(int(right.sum()), words), labelled, words)


def matching_accuracy(
    predicted: Tensor,
    gold: Tensor,
    *,
    lengths: Tensor | Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> MatchingAccuracy:
    """Return the share of items with the right partner, and the share of instances in which all items have it.

    Parameters
    ----------
    predicted, gold : (..., n) integer Tensors
        The partner of each item, as :func:`structinf.decode` returns them, for example the column of each row of an
        ``assignment``. Items of gold partner −1 (padding) do not count.
    lengths : (...) integers, optional
        Number of items of each instance; n by default.
    mask : (..., n) bool Tensor, optional
        The items that count.

    Returns
    -------
    MatchingAccuracy
        The shares over the whole batch. Instances without a counted item are left out.

    Examples
    --------
    >>> gold = torch.tensor([[1, 0, 2], [0, 1, -1]])
    >>> matching_accuracy(torch.tensor([[1, 2, 0], [0, 1, 2]]), gold)
    MatchingAccuracy(items=0.6, instances=0.5)
    """
    _check_same_shape("predicted", predicted, "gold", gold, 1)
    counted = _counted(gold, lengths, mask)
    right = (predicted.to(gold.device) == gold) & counted
    some = counted.any(-1)
    whole = some & (right == counted).all(-1)
    return MatchingAccuracy(_share(int(right.sum()), int(counted.sum())), _share(int(whole.sum()), int(some.sum())))


def alignment_error_rate(
    predicted: Tensor, sure: Tensor, possible: Tensor | None = None, *, mask: Tensor | None = None
) -> float:
    """Return 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), for predicted links A, sure links S and possible links P ⊇ S.

    Without possible links, P = S, and the rate is 1 − F1 of the links.

    Parameters
    ----------
    predicted, sure, possible : (..., n, m) Tensors
        Matrices of links, nonzero or True for a link. A link that is sure is also possible.
    mask : (..., n, m) bool Tensor, optional
        The cells that count. Structures of the library are 0 in their padding and need no mask.

    Returns
    -------
    float
        The rate over the whole batch; 0 without any predicted or sure link.

    References
    ----------
    Och & Ney 2003, A systematic comparison of various statistical alignment models, Computational Linguistics 29,
    pages 19-51 (alignment error rate).

    Examples
    --------
    >>> predicted = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> alignment_error_rate(predicted, torch.eye(2))
    0.5
    >>> alignment_error_rate(predicted, torch.eye(2), torch.ones(2, 2))
    0.25
    """
    possible = sure if possible is None else possible
    cells = []
    for name, t in (("predicted", predicted), ("sure", sure), ("possible", possible)):
        if not isinstance(t, Tensor) or t.ndim < 2 or t.shape != predicted.shape:
            received = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
            raise InvalidInputError(
                f"{name} must be a tensor of links (..., n, m), all of the same shape, got {received}"
            )
        if t.is_floating_point() and bool(t.isnan().any()):
            raise InvalidInputError(f"{name} holds NaN")
        cells.append(t.to(predicted.device) != 0)
    a, s, p = cells
    counted = _mask(mask, a)
    a, s, p = a & counted, s & counted, (p | s) & counted
    total = int(a.sum()) + int(s.sum())
    return 1 - (int((a & s).sum()) + int((a & p).sum())) / total if total else 0.0


# ----------------------------------------------------------------------------- steps


def _share(part: int, whole: int) -> float:
    return part / whole if whole else torch.nan


def _check_integers(name: str, t: Any) -> None:
    if not isinstance(t, Tensor) or t.is_floating_point() or t.is_complex() or t.dtype is torch.bool:
        received = f"a tensor of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(f"{name} must be a tensor of integers, as structinf.decode returns, got {received}")


def _check_same_shape(name: str, t: Any, other: str, gold: Any, least: int) -> None:
    _check_integers(name, t)
    _check_integers(other, gold)
    if t.shape != gold.shape or t.ndim < least:
        raise InvalidInputError(
            f"{name} and {other} must have the same shape (..., n), got {tuple(t.shape)} and {tuple(gold.shape)}"
        )


def _lengths(lengths: Any, batch: torch.Size) -> Tensor:
    t = as_tensor(lengths).cpu()
    if t.is_floating_point() or t.shape != batch:
        raise InvalidInputError(
            f"lengths must be integers of the batch shape {tuple(batch)}, got {t.dtype} of shape {tuple(t.shape)}"
        )
    return t


def _mask(mask: Any, like: Tensor) -> Tensor:
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.shape != like.shape:
        received = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise InvalidInputError(f"mask must be a bool tensor of shape {tuple(like.shape)}, got {received}")
    return mask.to(like.device)


def _counted(gold: Tensor, lengths: Any, mask: Any) -> Tensor:
    """Return the items that count, (..., n) bool: inside the lengths, of the mask, and with a gold value."""
    counted = _mask(mask, gold) & (gold != -1)
    if lengths is None:
        return counted
    count = _lengths(lengths, gold.shape[:-1]).to(gold.device)
    if bool(((count < 0) | (count > gold.shape[-1])).any()):
        raise InvalidInputError(f"lengths must lie between 0 and {gold.shape[-1]}, got {count.tolist()}")
    return counted & (torch.arange(gold.shape[-1], device=gold.device) < count[..., None])
