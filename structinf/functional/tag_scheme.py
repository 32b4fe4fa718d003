"""Span encodings of tag sequences (BIO, BIOES, BILOU): masks for chains, and the spans of a tag sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..shapes import Bool, Int
from ..validation import check_floating

__all__ = ["Span", "TagScheme"]

# The role of each prefix: begin, inside, end or single token of a span, or outside of all spans.
_ROLES = {
    "BIO": {"B": "begin", "I": "inside", "O": "outside"},
    "BIOES": {"B": "begin", "I": "inside", "O": "outside", "E": "end", "S": "single"},
    "BILOU": {"B": "begin", "I": "inside", "L": "end", "O": "outside", "U": "single"},
}


class Span(NamedTuple):
    """Tokens ``start`` to ``stop`` − 1 of a sequence, with the name of their type.

    Attributes
    ----------
    start : int
        Index of the first token.
    stop : int
        Index after the last token.
    type : str
        Type of the span, such as "PER"; empty for tags without a type.

    Examples
    --------
    >>> Span(1, 3, "PER")
    Span(start=1, stop=3, type='PER')
    """

    start: int
    stop: int
    type: str


@dataclass(frozen=True)
class TagScheme:
    """The rules of a span encoding: masks for the structure ``chain``, and conversion between tags and spans.

    Parameters
    ----------
    tags : sequence of str
        Name of each state of the chain, in order: "O", or a prefix and a type joined by "-", such as "B-PER".
        A prefix alone, such as "B", is a tag of the type "". Padding has no tag: use the chain's ``lengths``.
    encoding : str
        "BIO" (also called IOB2): a span is B I I ...; "BIOES": a span is S, or B I ... E; "BILOU": the same as BIOES
        with L for E and U for S.

    Raises
    ------
    InvalidInputError
        If a tag is repeated, if its prefix does not belong to the encoding, or if no span can contain the tag: I-X
        without B-X, or B-X without E-X in BIOES.

    References
    ----------
    L. Ratinov & D. Roth, Design challenges and misconceptions in named entity recognition, CoNLL 2009, section 3.

    Examples
    --------
    >>> scheme = TagScheme(["O", "B-PER", "I-PER"], "BIO")
    >>> scheme.transition
    tensor([[ True,  True, False],
            [ True,  True,  True],
            [ True,  True,  True]])
    >>> scheme.spans(torch.tensor([0, 1, 2, 0]))
    [[Span(start=1, stop=3, type='PER')]]
    """

    tags: tuple[str, ...]
    encoding: str = "BIO"

    def __init__(self, tags: Sequence[str], encoding: str = "BIO") -> None:
        object.__setattr__(self, "tags", (tags,) if isinstance(tags, str) else tuple(tags))
        object.__setattr__(self, "encoding", encoding)
        if encoding not in _ROLES:
            raise InvalidInputError(f"encoding must be one of {', '.join(_ROLES)}, got {encoding!r}")
        if not self.tags:
            raise InvalidInputError("tags must name at least one tag")
        for tag in self.tags:
            role, kind = self._parse(tag)
            if role is None or (role == "outside" and kind):
                prefixes = ", ".join(_ROLES[encoding])
                raise InvalidInputError(
                    f"tag {tag!r} is not a tag of the encoding {encoding}; give 'O', or one of the prefixes {prefixes} "
                    "and a type, such as 'B-PER'; padding needs no tag, since chains take lengths"
                )
        if len(set(self.tags)) < len(self.tags):
            repeated = next(tag for i, tag in enumerate(self.tags) if tag in self.tags[:i])
            raise InvalidInputError(f"tags must differ from each other, got {repeated!r} twice")
        self._check_spans_are_possible()

    def _check_spans_are_possible(self) -> None:
        """Raise InvalidInputError for a tag without the tags that begin and end its spans."""
        prefixes = {role: prefix for prefix, role in _ROLES[self.encoding].items()}
        for tag, (role, kind) in zip(self.tags, self._parsed, strict=True):
            needed = [] if role in ("outside", "single") else ["begin", *["end"] * ("end" in prefixes)]
            for other in needed:
                if (other, kind) not in self._parsed:
                    missing = prefixes[other] + (f"-{kind}" if kind else "")
                    raise InvalidInputError(
                        f"tags has {tag!r} without {missing!r}, so no valid sequence contains {tag!r}; add {missing!r} "
                        "at the end of tags, which keeps the indices of the other tags"
                    )

    # -- masks ---------------------------------------------------------------------------------

    @cached_property
    def start(self) -> Bool[Tensor, " states"]:
        """Whether a sequence may start with each tag, (S,) bool."""
        return torch.tensor([role in ("outside", "begin", "single") for role, _ in self._parsed], device="cpu")

    @cached_property
    def end(self) -> Bool[Tensor, " states"]:
        """Whether a sequence may end with each tag, (S,) bool."""
        return torch.tensor([not self._must_continue(role) for role, _ in self._parsed], device="cpu")

    @cached_property
    def transition(self) -> Bool[Tensor, "states states"]:
        """Whether the tag of the column may follow the tag of the row, (S, S) bool."""
        return torch.tensor(
            [[self._may_follow(before, after) for after in self._parsed] for before in self._parsed], device="cpu"
        )

    def constrain(
        self,
        unary: Tensor,
        transition: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        start: Tensor | None = None,
        end: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of a chain with −inf for all starts, ends and transitions that the encoding forbids.

        Parameters
        ----------
        unary : (..., T, S) Tensor
            Scores of the tags.
        transition : (S, S), (..., S, S) or (..., T − 1, S, S) Tensor
            Scores of the transitions, from the row to the column.
        lengths : (...) integers, optional
            Number of tokens of each sequence; T by default. The same lengths go to ``relax`` or the loss.
        start, end : (S,) Tensor, optional
            Scores of the first and of the last tag, added to ``unary``; 0 by default.

        Returns
        -------
        unary, transition : Tensors of the shapes of the arguments

        Examples
        --------
        >>> scheme = TagScheme(["O", "B", "I"])
        >>> unary = torch.tensor([[0.0, 0.0, 9.0], [0.0, 1.0, 3.0]])
        >>> theta = scheme.constrain(unary, torch.zeros(3, 3))
        >>> theta[0]
        tensor([[0., 0., -inf],
                [0., 1., 3.]])
        """
        check_floating("unary", unary)
        check_floating("transition", transition)
        if min(unary.ndim, transition.ndim) < 2:
            raise InvalidInputError(
                f"unary and transition must have shapes (..., T, S) and (..., S, S), got {tuple(unary.shape)} and "
                f"{tuple(transition.shape)}"
            )
        steps, states = unary.shape[-2:]
        if states != len(self.tags) or transition.shape[-2:] != (states, states):
            raise InvalidInputError(
                f"unary (..., T, S) and transition (..., S, S) must have S = {len(self.tags)} states, the number of "
                f"tags, got shapes {tuple(unary.shape)} and {tuple(transition.shape)}"
            )
        position = torch.arange(steps, device=unary.device)
        last = self._lengths(lengths, unary.shape[:-2], steps, unary.device) - 1
        for allowed, scores, is_edge in (
            (self.start, start, position == 0),
            (self.end, end, position == last.unsqueeze(-1)),
        ):
            edge = unary if scores is None else unary + scores
            edge = edge.masked_fill(~allowed.to(unary.device), -torch.inf)
            unary = torch.where(is_edge.unsqueeze(-1), edge, unary)
        return unary, transition.masked_fill(~self.transition.to(transition.device), -torch.inf)

    # -- tag sequences -------------------------------------------------------------------------

    def violations(self, labels: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Bool[Tensor, "*batch steps"]:
        """Return where a tag breaks the encoding: after the tag before it, as the first tag, or as the last tag.

        Parameters
        ----------
        labels : (..., T) integers
            Indices of tags; −1 is padding.
        lengths : (...) integers, optional
            Number of tokens of each sequence; by default, the tokens up to the first −1.

        Examples
        --------
        >>> scheme = TagScheme(["O", "B", "I"])
        >>> scheme.violations(torch.tensor([0, 2, 2, 1]))
        tensor([False,  True, False, False])
        """
        labels, count = self._tokens(labels, lengths)
        position = torch.arange(labels.shape[-1], device=labels.device)
        inside = position < count.unsqueeze(-1)
        tag = torch.where(inside, labels, 0)
        start, end, transition = (mask.to(labels.device) for mask in (self.start, self.end, self.transition))
        wrong = ~end[tag] & (position == count.unsqueeze(-1) - 1)
        wrong[..., :1] |= ~start[tag[..., :1]]
        wrong[..., 1:] |= ~transition[tag[..., :-1], tag[..., 1:]]
        return wrong & inside

    def spans(self, labels: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[list[Span]]:
        """Return the spans of each sequence of the flattened batch, in order.

        Sequences that break the encoding are read as conlleval reads them: a span starts at B or S, at a change of
        type, and after O or an end; it stops after E or S, and before the next span or O.

        Parameters
        ----------
        labels, lengths
            As for :meth:`violations`.
        """
        labels, count = self._tokens(labels, lengths)
        rows = labels.reshape(count.numel(), labels.shape[-1]).tolist()
        return [self._spans_of(row[:n]) for row, n in zip(rows, count.flatten().tolist(), strict=True)]

    def encode(self, spans: Iterable[tuple[int, int, str]], length: int) -> Int[Tensor, " steps"]:
        """Return the tags, (length,), of spans that do not overlap; tokens outside of all spans are O.

        Parameters
        ----------
        spans : iterable of (start, stop, type)
            Tokens ``start`` to ``stop`` − 1.
        length : int
            Number of tokens.

        Raises
        ------
        InvalidInputError
            If spans overlap or leave the sequence, or if ``tags`` lacks a tag that they need.

        Examples
        --------
        >>> TagScheme(["O", "B-LOC", "I-LOC"]).encode([(1, 3, "LOC")], 4)
        tensor([0, 1, 2, 0])
        """
        roles: list[tuple[str, str]] = [("outside", "")] * length
        for start, stop, kind in spans:
            if not 0 <= start < stop <= length or any(role != "outside" for role, _ in roles[start:stop]):
                raise InvalidInputError(
                    f"spans must not overlap and must lie within the {length} tokens, got ({start}, {stop}, {kind!r})"
                )
            roles[start:stop] = [(role, kind) for role in self._roles_of_span(stop - start)]
        index = {parsed: i for i, parsed in enumerate(self._parsed)}
        if missing := next((parsed for parsed in roles if parsed not in index), None):
            role, kind = missing
            prefix = next(letter for letter, name in _ROLES[self.encoding].items() if name == role)
            raise InvalidInputError(
                f"tags has no {prefix + (f'-{kind}' if kind else '')!r}, but the spans need it; tags are {self.tags}"
            )
        return torch.tensor([index[parsed] for parsed in roles], dtype=torch.int64, device="cpu")

    def repair(self, labels: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Int[Tensor, "*batch steps"]:
        """Return tags that follow the encoding and have the spans that :meth:`spans` reads from ``labels``.

        Padding stays as it is. A sequence without violations is returned unchanged.

        Parameters
        ----------
        labels, lengths
            As for :meth:`violations`.

        Examples
        --------
        >>> TagScheme(["O", "B", "I"]).repair(torch.tensor([0, 2, 2, 1]))
        tensor([0, 1, 2, 1])
        """
        labels, count = self._tokens(labels, lengths)
        repaired = labels.clone(memory_format=torch.contiguous_format)
        rows = repaired.view(count.numel(), labels.shape[-1])
        for row, found, n in zip(rows, self.spans(labels, count), count.flatten().tolist(), strict=True):
            row[:n] = self.encode(found, n).to(row)
        return repaired

    # -- rules ---------------------------------------------------------------------------------

    @cached_property
    def _parsed(self) -> list[tuple[str, str]]:
        """Role and type of each tag."""
        return [(role or "", kind) for role, kind in map(self._parse, self.tags)]

    def _parse(self, tag: str) -> tuple[str | None, str]:
        prefix, _, kind = tag.partition("-")
        return _ROLES[self.encoding].get(prefix), kind

    def _must_continue(self, role: str) -> bool:
        return self.encoding != "BIO" and role in ("begin", "inside")

    def _may_follow(self, before: tuple[str, str], after: tuple[str, str]) -> bool:
        is_open = before[0] in ("begin", "inside")
        continues = after[0] in ("inside", "end")
        if is_open and continues:
            return before[1] == after[1]
        return not continues and not self._must_continue(before[0])

    def _roles_of_span(self, n: int) -> list[str]:
        if self.encoding == "BIO":
            return ["begin"] + ["inside"] * (n - 1)
        return ["single"] if n == 1 else ["begin", *["inside"] * (n - 2), "end"]

    def _spans_of(self, labels: list[int]) -> list[Span]:
        found: list[Span] = []
        start: int | None = None
        before = ("outside", "")
        for t, current in enumerate([*(self._parsed[label] for label in labels), ("outside", "")]):
            joins = (
                start is not None
                and before[0] in ("begin", "inside")
                and current[0] in ("inside", "end")
                and before[1] == current[1]
            )
            if not joins:
                if start is not None:
                    found.append(Span(start, t, before[1]))
                start = None if current[0] == "outside" else t
            before = current
        return found

    # -- arguments -----------------------------------------------------------------------------

    def _tokens(self, labels: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor]:
        """The labels, and the number of tokens of each sequence, (...)."""
        if not isinstance(labels, Tensor):
            raise TypeError(
                f"labels must be a tensor of integers (..., T), the indices of tags, got {type(labels).__name__}; for "
                "tags of one sequence as strings, pass torch.tensor([scheme.tags.index(tag) for tag in labels])"
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool or not labels.ndim:
            raise InvalidInputError(
                f"labels must be integers of shape (..., T), got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if lengths is None:
            count = (labels >= 0).cumprod(-1).sum(-1)
        else:
            count = self._lengths(lengths, labels.shape[:-1], labels.shape[-1], labels.device)
        inside = torch.arange(labels.shape[-1], device=labels.device) < count.unsqueeze(-1)
        wrong = inside & ((labels < 0) | (labels >= len(self.tags)))
        if bool(wrong.any()):
            *index, token = wrong.nonzero()[0].tolist()
            where = f"batch index {tuple(index)}, token {token}" if index else f"token {token}"
            raise InvalidInputError(
                f"labels must lie between 0 and {len(self.tags) - 1}, got {int(labels[wrong][0])} at {where}"
            )
        return labels, count

    def _lengths(
        self, lengths: Tensor | Sequence[int] | None, batch: torch.Size, steps: int, device: torch.device
    ) -> Tensor:
        if lengths is None:
            return torch.full(batch, steps, device=device)
        count = torch.as_tensor(lengths, device=device)
        if count.is_floating_point() or bool(((count < 0) | (count > steps)).any()):
            raise InvalidInputError(f"lengths must be integers between 0 and T = {steps}, got {count.tolist()}")
        try:
            return count.expand(batch)
        except RuntimeError:
            raise InvalidInputError(
                f"lengths must have the batch shape {tuple(batch)}, got {tuple(count.shape)}"
            ) from None
