"""Constituency parsing: losses of labelled binary trees compared, on a treebank of bracketed sentences.

A recurrent network scores every span of words with every label, like the parser of Stern, Andreas & Klein 2017, A
Minimal Span-Based Neural Constituency Parser. The structure is a binary tree over the words. Niculae, Martins,
Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, compare the same losses on dependency
trees: a hinge loss, a conditional random field, and SparseMAP.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_sides

import structinf as si

from .command import Report, run
from .text import Encoder, Lexicon, buckets, lines_of, pad
from .training import Fit, fit

__all__ = ["main"]

TREE = si.get_oracle("binary_tree", labelled=True)

LOSSES: dict[str, nn.Module] = {
    "hinge": si.FenchelYoungLoss(TREE, "map", cost="hamming"),
    "CRF": si.FenchelYoungLoss(TREE, "marginals"),
    # In the first steps, hundreds of trees have a weight. The remaining gap does no harm.
    "SparseMAP": si.FenchelYoungLoss(TREE, "sparsemap", tolerance=1.5e-3, max_iter=300, on_failure="ignore"),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 3000
    longest: int = 20  # words of a training sentence
    test: int = 1500  # sentences of the test set, of any length; the development set has a third of the number
    epochs: int = 8
    batch: int = 16
    hidden: int = 100
    labels: int = 30


def sizes(quick: bool) -> Sizes:
    return Sizes(train=400, longest=10, test=150, epochs=5, batch=8, hidden=50, labels=15) if quick else Sizes()


# ----------------------------------------------------------------------------- data

Constituent = tuple[str, int, int]  # label, first word, last word
NONE = ""  # the label of spans outside the constituents


class Sentence(NamedTuple):
    """Words, their tags, and the constituents, outer constituents first."""

    words: list[str]
    tags: list[str]
    constituents: list[Constituent]


def read(folder: Path, part: str) -> Iterator[Sentence]:
    """Read the sentences of the file ``part``.mrg, a tree in Penn Treebank brackets on each line.

    Functions (the SBJ of NP-SBJ), traces and constituents without words are removed.
    """
    for line in lines_of(folder, f"{part}.mrg"):
        sentence = Sentence([], [], [])
        stack: list[list[Any]] = [[]]
        for token in re.findall(r"[()]|[^() ]+", line):
            if token == "(":
                stack.append([])
            elif token == ")":
                node = stack.pop()
                stack[-1].append(node)
            else:
                stack[-1].append(token)
        for node in stack[0]:
            _collect(node, sentence)
        yield sentence


def _collect(node: Sequence[Any], sentence: Sentence) -> None:
    label, *children = node if isinstance(node[0], str) else ("", *node)
    if isinstance(children[0], str):
        if label != "-NONE-":
            sentence.words.append(children[0])
            sentence.tags.append(label)
        return
    first, place = len(sentence.words), len(sentence.constituents)
    for child in children:
        _collect(child, sentence)
    label = re.split("[-=|]", label)[0]
    if label and len(sentence.words) > first:
        sentence.constituents.insert(place, (label, first, len(sentence.words) - 1))


def to_binary(sentence: Sentence) -> list[tuple[int, int, str]]:
    """Return the spans of a binary tree: constituents of the same words are joined, and further children are
    bracketed together.
    """
    chains: dict[tuple[int, int], str] = {}
    for label, *span in sentence.constituents:
        before = chains.get((span[0], span[1]))
        chains[span[0], span[1]] = label if before is None else f"{before}+{label}"

    def split(i: int, j: int) -> Iterator[tuple[int, int, str]]:
        yield i, j, chains.get((i, j), NONE)
        if i < j:
            k = max(k for k in range(i, j) if k == i or (i, k) in chains)
            yield from split(i, k)
            yield from split(k + 1, j)

    return list(split(0, len(sentence.words) - 1))


def from_binary(spans: Sequence[tuple[int, int, str]]) -> list[Constituent]:
    """Return the constituents encoded by a binary tree."""
    return [(label, i, j) for i, j, chain in spans if chain != NONE for label in chain.split("+")]


class Batch(NamedTuple):
    """Numbers of words and tags, (B, n), spans with their labels, (B, 2n - 1, 3), and lengths, (B,)."""

    words: Tensor
    tags: Tensor
    spans: Tensor
    lengths: Tensor


class Corpus:
    """The three parts of a treebank, and the numbers of its words, tags and labels."""

    def __init__(self, folder: Path, size: Sizes) -> None:
        short = (s for s in read(folder, "train") if len(s.words) <= size.longest)
        self.train = list(islice(short, size.train))
        self.dev, self.test = (
            list(islice(read(folder, part), most)) for part, most in (("dev", size.test // 3), ("test", size.test))
        )
        self.lexicon = Lexicon(self.train, [*self.dev, *self.test])
        self.tags = {tag: i for i, tag in enumerate(sorted({tag for s in self.train for tag in s.tags}), 2)}
        chains = Counter(label for s in self.train for _, _, label in to_binary(s))
        del chains[NONE]
        self.labels = [NONE, *(label for label, _ in chains.most_common(size.labels - 1))]
        self.number = {label: i for i, label in enumerate(self.labels)}

    def label(self, chain: str) -> int:
        """Return the number of a label. A rare chain of labels counts as its outermost label."""
        return self.number.get(chain, self.number.get(chain.partition("+")[0], 0))

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        words, lengths = self.lexicon(sentences)
        tags = pad([[self.tags.get(tag, 1) for tag in s.tags] for s in sentences])
        spans = torch.full((len(sentences), 2 * words.shape[1] - 1, 3), -1)
        for b, sentence in enumerate(sentences):
            found = [(i, j, self.label(chain)) for i, j, chain in to_binary(sentence)]
            spans[b, : len(found)] = torch.tensor(found)
        return Batch(words, tags, spans, lengths)


class F1(NamedTuple):
    """Harmonic means of precision and recall, in per cent: of labelled constituents, and of spans of several words."""

    labelled: float
    unlabelled: float


def f1(sentences: Sequence[Sentence], parses: Sequence[Sequence[Constituent]]) -> F1:
    """Return F1 over all constituents of all sentences, with punctuation and without tags of single words."""
    found = []
    for view in (lambda c: Counter(c), lambda c: Counter({(i, j) for _, i, j in c if i < j})):
        pairs = [(view(s.constituents), view(parse)) for s, parse in zip(sentences, parses, strict=True)]
        common = sum((a & b).total() for a, b in pairs)
        found.append(200 * common / max(1, sum(a.total() + b.total() for a, b in pairs)))
    return F1(*found)


def right_branching(sentence: Sentence) -> list[Constituent]:
    """Return the parse of a baseline: every word opens a constituent up to the full stop, with the most frequent
    label.
    """
    last = len(sentence.words) - 1
    stop = last - (sentence.tags[-1] == ".")
    return [("S", 0, last), *(("NP", i, stop) for i in range(stop))]


# ----------------------------------------------------------------------------- model


class Parser(nn.Module):
    """A network that returns scores (B, n, n, L) of labelled spans."""

    def __init__(self, corpus: Corpus, hidden: int) -> None:
        super().__init__()
        self.encoder = Encoder(corpus.lexicon, hidden=hidden, tags=len(corpus.tags) + 2)
        self.first, self.last = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden, bias=False)
        self.label = nn.Linear(hidden, len(corpus.labels))

    def forward(self, batch: Batch) -> Tensor:
        ahead, back = self.encoder(batch.words, batch.lengths, batch.tags).chunk(2, -1)
        # The ends of a span: the forward state before its first word, and the backward state after its last word.
        before, after = pad_sides(ahead[:, :-1], (0, 0, 1, 0)), pad_sides(back[:, 1:], (0, 0, 0, 1))
        first, last = self.first(torch.cat([before, back], -1)), self.last(torch.cat([ahead, after], -1))
        return self.label((first[:, :, None] + last[:, None]).relu())


@torch.no_grad()
def score(model: Parser, corpus: Corpus, sentences: Sequence[Sentence]) -> F1:
    """Return the F1 of the best trees."""
    right, parses = [], []
    for bucket in buckets(sentences, 32):
        batch = corpus.batch(bucket)
        best = si.decode(si.relax(model(batch), TREE, "map", lengths=batch.lengths), TREE, lengths=batch.lengths)
        for sentence, spans in zip(bucket, best.tolist(), strict=True):
            right.append(sentence)
            parses.append(from_binary([(i, j, corpus.labels[k]) for i, j, k in spans if i >= 0]))
    return f1(right, parses)


def train(corpus: Corpus, loss: nn.Module, size: Sizes, seed: int, description: str) -> tuple[Parser, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Parser(corpus, size.hidden)
    result = fit(
        model,
        [lambda batch: loss(model(batch), batch.spans, lengths=batch.lengths)] * size.epochs,
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: score(model, corpus, corpus.dev).labelled,
        rate=2e-3,
        description=description,
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, and print F1 on the test set."""
    corpus = Corpus(folder, size)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    report.line(f"{folder.name}: {counts} training, development and test sentences, {len(corpus.labels)} labels\n")
    titles = {"labelled F1": 12, "unlabelled F1": 12, "labelled dev F1": 12, "loss, first epoch": 0, "last": 12}
    report.columns({"loss": 15, **titles, "seconds": 0})
    report.row("right-branching", *f1(corpus.test, [right_branching(s) for s in corpus.test]), "", "", "", "")
    for name, loss in LOSSES.items():
        fits, scores = [], []
        for seed in seeds:
            model, result = train(corpus, loss, size, seed, f"{name}, seed {seed}")
            fits.append(result)
            scores.append(score(model, corpus, corpus.test))
        report.row(
            name,
            [s.labelled for s in scores],
            [s.unlabelled for s in scores],
            [f.dev for f in fits],
            *([f.losses[epoch] for f in fits] for epoch in (0, -1)),
            f"{sum(f.seconds for f in fits):.0f}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3)


if __name__ == "__main__":
    sys.exit(main())
