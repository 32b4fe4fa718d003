"""Compressed files, batches of sentences, and a recurrent network over words."""

from __future__ import annotations

import io
import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["Encoder", "HasWords", "Lexicon", "buckets", "bytes_of", "lines_of", "pad"]

PADDING, UNKNOWN = 0, 1
LONGEST_SPELLING = 20


class HasWords(Protocol):
    """A sentence of any task."""

    @property
    def words(self) -> Sequence[str]: ...


AnySentence = TypeVar("AnySentence", bound=HasWords)


def lines_of(folder: Path, name: str) -> Iterator[str]:
    """Yield the lines of the file ``name``, or of ``name``.xz, without line ends."""
    with io.TextIOWrapper(_open_text(folder, name), encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def bytes_of(folder: Path, name: str) -> bytes:
    """Return the content of the file ``name``, or of ``name``.xz."""
    with _open_text(folder, name) as file:
        return file.read()


def _open_text(folder: Path, name: str) -> IO[bytes]:
    plain, compressed = folder / name, folder / f"{name}.xz"
    if not plain.exists() and not compressed.exists():
        raise FileNotFoundError(f"{folder} holds no {name} and no {name}.xz")
    return plain.open("rb") if plain.exists() else lzma.open(compressed)


def buckets(
    sentences: Sequence[AnySentence], size: int, generator: torch.Generator | None = None
) -> list[list[AnySentence]]:
    """Return batches of sentences of similar length. With a generator, the order is random and different each time."""
    noise = torch.rand(len(sentences), generator=generator) if generator else torch.zeros(len(sentences))
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words) + noise[i].item())
    batches = [[sentences[i] for i in order[k : k + size]] for k in range(0, len(order), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator)] if generator else batches


def pad(rows: Sequence[Sequence[int]], filler: int = PADDING) -> Tensor:
    """Return rows of different lengths as one integer tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


class Lexicon:
    """Numbers for all words of a corpus, each with the inputs of a network.

    Parameters
    ----------
    training, others : sequence of sentences
        Sentences for training, and other sentences. For words only in ``others``, a network sees only the spelling.

    Attributes
    ----------
    known : (words,) Tensor
        The number of the embedding of a word's lower-case form. Rare words share the embedding of unknown words, so
        that training reaches the shared embedding.
    spelling : (words, LONGEST_SPELLING) Tensor
        Numbers of the characters.
    """

    def __init__(self, training: Sequence[HasWords], others: Sequence[HasWords]) -> None:
        counts = Counter(word.lower() for s in training for word in s.words)
        known = {w: i for i, w in enumerate((w for w, count in counts.items() if count > 1), UNKNOWN + 1)}
        characters = {
            c: i for i, c in enumerate(sorted({c for s in training for w in s.words for c in w}), UNKNOWN + 1)
        }
        words = list(dict.fromkeys(word for s in (*training, *others) for word in s.words))
        self.number = {word: i for i, word in enumerate(words, PADDING + 1)}
        self.known = torch.tensor([PADDING, *(known.get(word.lower(), UNKNOWN) for word in words)])
        spelling = [[characters.get(c, UNKNOWN) for c in word[:LONGEST_SPELLING]] for word in words]
        self.spelling = pad([[PADDING] * LONGEST_SPELLING, *spelling])
        self.known_count, self.character_count = len(known) + 2, len(characters) + 2

    def __call__(self, sentences: Sequence[HasWords]) -> tuple[Tensor, Tensor]:
        """Return the numbers of the words, (B, T), and lengths, (B,)."""
        return pad([[self.number[w] for w in s.words] for s in sentences]), torch.tensor(
            [len(s.words) for s in sentences]
        )


class Encoder(nn.Module):
    """States (B, T, 2 · hidden) of a bidirectional LSTM over words, spellings and optionally tags.

    The forward states come first; states in the padding are 0. A convolution over three characters with a maximum
    reads the spelling.
    """

    known: Tensor
    spelling: Tensor

    def __init__(self, lexicon: Lexicon, *, hidden: int, tags: int = 0, dropout: float = 0.4) -> None:
        super().__init__()
        self.register_buffer("known", lexicon.known)
        self.register_buffer("spelling", lexicon.spelling)
        self.word = nn.Embedding(lexicon.known_count, 64, padding_idx=PADDING)
        self.character = nn.Embedding(lexicon.character_count, 16, padding_idx=PADDING)
        self.trigram = nn.Conv1d(16, 48, 3, padding=1)
        self.tag = nn.Embedding(tags, 16) if tags else None
        self.context = nn.LSTM(64 + 48 + 16 * bool(tags), hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, lengths: Tensor, tags: Tensor | None = None) -> Tensor:
        types, place = words.unique(return_inverse=True)
        characters = self.character(self.spelling[types]).transpose(1, 2)
        spelled = self.trigram(characters).relu().amax(2)
        features = [self.word(self.known[words]), spelled[place]]
        if self.tag is not None and tags is not None:
            features.append(self.tag(tags))
        packed = pack_padded_sequence(self.dropout(torch.cat(features, -1)), lengths, True, enforce_sorted=False)
        return self.dropout(pad_packed_sequence(self.context(packed)[0], batch_first=True)[0])
