"""Universal Dependencies treebanks: sentences from CoNLL-U files, and batches of them as tensors."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO, cast

import torch
from conllu import parse_incr
from conllu.exceptions import ParseException
from torch import Tensor

from structinf import InvalidInputError

__all__ = ["Batch", "Encoder", "Sentence", "length_buckets", "read_treebank"]

ROOT, UNKNOWN = 0, 1


class Sentence(NamedTuple):
    """Words, their tags, and their heads: 1 for the first word, 0 for the root."""

    words: list[str]
    tags: list[str]
    heads: list[int]


def read_treebank(folder: Path, max_sentences: int | None = None) -> dict[str, list[Sentence]]:
    """Sentences of the files ``*train*``, ``*dev*`` and ``*test*``, which end in .conllu or .conllu.xz."""
    if not folder.is_dir():
        raise FileNotFoundError(f"treebank: there is no folder {folder}")
    treebank = {}
    for part in ("train", "dev", "test"):
        files = sorted([*folder.glob(f"*{part}*.conllu"), *folder.glob(f"*{part}*.conllu.xz")])
        if not files:
            raise FileNotFoundError(f"treebank: {folder} holds no *{part}*.conllu or *{part}*.conllu.xz")
        sentences = [sentence for file in files for sentence in _read(file)]
        treebank[part] = sentences[:max_sentences]
    return treebank


def _read(file: Path) -> Iterator[Sentence]:
    open_text = lzma.open if file.suffix == ".xz" else open
    with open_text(file, "rt", encoding="utf-8") as lines:
        try:
            for number, tokens in enumerate(parse_incr(cast(TextIO, lines)), 1):
                # Contractions (id 3-4) and elided words (id 3.1), whose ids are no integers, stand outside the tree.
                words = [token for token in tokens if isinstance(token["id"], int)]
                heads = [w["head"] for w in words]
                if None in heads or heads.count(0) != 1:
                    raise InvalidInputError(f"treebank: sentence {number} of {file} has no tree with one root")
                yield Sentence([w["form"] for w in words], [w["upos"] or "_" for w in words], heads)
        except ParseException as error:
            raise InvalidInputError(f"treebank: {file} is not in CoNLL-U: {error}") from error


# ----------------------------------------------------------------------------- tensors


class Batch(NamedTuple):
    """Sentences padded to a common length. In ``words`` and ``tags``, (B, n + 1), the root comes first.

    ``heads`` is (B, n), and ``lengths``, (B,), does not count the root.
    """

    words: Tensor
    tags: Tensor
    heads: Tensor
    lengths: Tensor


class Encoder:
    """Numbers for lower-cased words and for tags; words seen once in training stand for all unknown ones."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        counts = Counter(word.lower() for s in sentences for word in s.words)
        known = [word for word, count in counts.items() if count > 1]
        self.words = {word: i for i, word in enumerate(known, 2)}
        self.tags = {tag: i for i, tag in enumerate(sorted({tag for s in sentences for tag in s.tags}), 2)}
        self.word_count, self.tag_count = len(self.words) + 2, len(self.tags) + 2

    def __call__(self, sentences: Sequence[Sentence]) -> Batch:
        size, longest = len(sentences), max(len(s.words) for s in sentences)
        words, tags = torch.full((2, size, longest + 1), ROOT)
        heads = torch.zeros(size, longest, dtype=torch.int64)
        for b, sentence in enumerate(sentences):
            n = len(sentence.words)
            words[b, 1 : n + 1] = torch.tensor([self.words.get(word.lower(), UNKNOWN) for word in sentence.words])
            tags[b, 1 : n + 1] = torch.tensor([self.tags.get(tag, UNKNOWN) for tag in sentence.tags])
            heads[b, :n] = torch.tensor(sentence.heads)
        return Batch(words, tags, heads, torch.tensor([len(s.words) for s in sentences]))


def length_buckets(
    sentences: Sequence[Sentence], size: int, generator: torch.Generator | None = None
) -> list[list[Sentence]]:
    """Batches of sentences of similar length; with a generator, in random order and differently each time."""
    noise = torch.rand(len(sentences), generator=generator) if generator else torch.zeros(len(sentences))
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words) + noise[i].item())
    buckets = [[sentences[i] for i in order[k : k + size]] for k in range(0, len(order), size)]
    if generator is None:
        return buckets
    return [buckets[i] for i in torch.randperm(len(buckets), generator=generator)]
