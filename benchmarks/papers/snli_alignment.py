"""Align the words of two sentences inside a network: relaxed alignments compared, on entailment.

After Niculae, Martins, Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, §5.2, Table 2.
Chen et al. 2017, Enhanced LSTM for Natural Language Inference, use a softmax for each word as attention between two
sentences. Here one structure over all words replaces the softmax: an assignment, or an alignment of each word that
depends on the alignments of its neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .text import Encoder, Lexicon, buckets, lines_of
from .training import Fit, fit, relax

__all__ = ["main"]

LABELS = {"entailment": 0, "neutral": 1, "contradiction": 2}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 8800  # at most, of the pairs within the length limit and not held out
    longest: int = 20  # words of a sentence in training
    held_out: int = 900
    test: int | None = None  # None: all
    epochs: int = 4
    batch: int = 32
    hidden: int = 50


def sizes(quick: bool) -> Sizes:
    return Sizes(train=500, longest=12, held_out=90, test=200, epochs=2, hidden=20) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Side(NamedTuple):
    """One sentence of a pair."""

    words: list[str]


class Pair(NamedTuple):
    """A premise, a hypothesis, and the label of their relation."""

    premise: Side
    hypothesis: Side
    label: int

    @property
    def words(self) -> list[str]:
        """The words of both sentences. Batches group pairs by the number of words."""
        return self.premise.words + self.hypothesis.words


class Batch(NamedTuple):
    """Numbers of words and lengths, of the premises and of the hypotheses, and labels, (B,)."""

    premises: tuple[Tensor, Tensor]
    hypotheses: tuple[Tensor, Tensor]
    labels: Tensor


def read(folder: Path, part: str) -> list[Pair]:
    """Read label, premise and hypothesis, separated by tabs, from each line except the first."""
    _, *lines = lines_of(folder, f"snli_{part}.tsv")
    rows = (line.split("\t") for line in lines)
    return [Pair(Side(first.split()), Side(second.split()), LABELS[label]) for label, first, second in rows]


class Corpus:
    """The development set for training, except its end for the choice of the epoch, and the test set."""

    def __init__(self, folder: Path, size: Sizes) -> None:
        pairs = read(folder, "dev")
        known, self.dev = pairs[: -size.held_out], pairs[-size.held_out :]
        short = [p for p in known if max(len(p.premise.words), len(p.hypothesis.words)) <= size.longest]
        self.train, self.test = short[: size.train], read(folder, "test")[: size.test]
        training, others = (list(chain(*((p.premise, p.hypothesis) for p in part))) for part in self.parts)
        self.lexicon = Lexicon(training, others)

    @property
    def parts(self) -> tuple[list[Pair], list[Pair]]:
        return self.train, [*self.dev, *self.test]

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        sides = (self.lexicon([getattr(pair, side) for pair in pairs]) for side in ("premise", "hypothesis"))
        premises, hypotheses = sides
        return Batch(premises, hypotheses, torch.tensor([pair.label for pair in pairs]))


# ----------------------------------------------------------------------------- alignments

Alignment = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From scores (B, n, m), the scores of moves, and lengths (B, 2) to weights (B, n, m) for either direction: those of
hypothesis words for each premise word, and those of premise words for each hypothesis word."""

REACH = 5  # moves further than these share a score


def each_word(scores: Tensor, moves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return a softmax for each word."""
    inside = in_use(scores, lengths)
    of_premise, of_hypothesis = (
        scores.masked_fill(~inside.any(3 - dim, keepdim=True), -torch.inf).softmax(dim) * inside for dim in (2, 1)
    )
    return of_premise, of_hypothesis


def matching(relaxation: str, **options: Any) -> Alignment:
    """Return one relaxed assignment, shared by both directions."""

    def align(scores: Tensor, moves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mean = relax(scores, "assignment", relaxation, lengths=lengths, **options)
        return mean, mean

    return align


def sequential(relaxation: str, **options: Any) -> Alignment:
    """Return an alignment in which each word picks a word of the other sentence. A move between picks of neighbours
    has a score.
    """

    def of_rows(scores: Tensor, moves: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(scores.shape[2])
        transition = moves[(place - place[:, None]).clamp(-REACH, REACH) + REACH]
        unary = scores.masked_fill(place >= lengths[:, 1, None, None], -torch.inf)
        return si.relax((unary, transition), "chain", relaxation, lengths=lengths[:, 0], **options)[0]

    def align(scores: Tensor, moves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        turned = of_rows(scores.transpose(1, 2), moves, lengths.flip(1))
        return of_rows(scores, moves, lengths), turned.transpose(1, 2)

    return align


def monotonic(relaxation: str, **options: Any) -> Alignment:
    """Return an alignment in which each word picks a word of the other sentence, and picks never go back."""

    def align(scores: Tensor, moves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        columns = relax(scores, "monotonic_alignment", relaxation, lengths=lengths, **options)
        rows = relax(scores.transpose(1, 2), "monotonic_alignment", relaxation, lengths=lengths.flip(1), **options)
        return rows.transpose(1, 2), columns

    return align


# A gap or a residual left after so many iterations does no harm to an attention.
SPARSE = {"tolerance": 1.5e-3, "max_iter": 100, "on_failure": "ignore"}
ALIGNMENTS: dict[str, Alignment] = {
    "softmax": each_word,
    "assignment, SparseMAP": matching("sparsemap", **SPARSE),
    "assignment, Sinkhorn": matching("sinkhorn", tolerance=1e-6, on_failure="ignore"),
    "chain, SparseMAP": sequential("sparsemap", penalty="readout", **SPARSE),
    "monotonic, SparseMAP": monotonic("sparsemap", **SPARSE),
}


def in_use(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return whether both words exist, (B, n, m)."""
    rows, columns = (
        torch.arange(size) < length[:, None] for size, length in zip(scores.shape[1:], lengths.T, strict=True)
    )
    return rows[:, :, None] & columns[:, None]


# ----------------------------------------------------------------------------- model


class Network(nn.Module):
    """A network that returns scores (B, 3) of the labels. It reads, aligns, compares and pools words."""

    def __init__(self, corpus: Corpus, align: Alignment, hidden: int) -> None:
        super().__init__()
        self.align = align
        self.encoder = Encoder(corpus.lexicon, hidden=hidden, dropout=0.3)
        self.moves = nn.Parameter(torch.zeros(2 * REACH + 1))
        self.compare = nn.Sequential(nn.Linear(8 * hidden, hidden), nn.ReLU(), nn.Dropout(0.3))
        self.label = nn.Sequential(nn.Linear(4 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, len(LABELS)))

    def aligned(self, batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
        """Return the states of both sentences, the weights in both directions, and flags of existing word pairs."""
        states = [self.encoder(*side) for side in (batch.premises, batch.hypotheses)]
        scores = states[0] @ states[1].transpose(1, 2)
        lengths = torch.stack([batch.premises[1], batch.hypotheses[1]], 1)
        return states[0], states[1], self.align(scores, self.moves, lengths), in_use(scores, lengths)

    def forward(self, batch: Batch) -> Tensor:
        premise, hypothesis, (forth, back), inside = self.aligned(batch)
        pooled = []
        for own, other, weights, used in (
            (premise, hypothesis, forth, inside.any(2)),
            (hypothesis, premise, back.transpose(1, 2), inside.any(1)),
        ):
            met = weights @ other
            compared = self.compare(torch.cat([own, met, own - met, own * met], 2)) * used[:, :, None]
            pooled += [compared.amax(1), compared.sum(1) / used.sum(1, keepdim=True)]
        return self.label(torch.cat(pooled, 1))


class Score(NamedTuple):
    """Per cent of right labels, and of non-zero weights of word pairs."""

    accuracy: float
    nonzero: float


@torch.no_grad()
def score(model: Network, corpus: Corpus, pairs: Sequence[Pair]) -> Score:
    right = nonzero = cells = 0
    for bucket in buckets(pairs, 64):
        batch = corpus.batch(bucket)
        *_, weights, inside = model.aligned(batch)
        right += int((model(batch).argmax(1) == batch.labels).sum())
        nonzero += sum(int((w > 0).sum()) for w in weights)
        cells += 2 * int(inside.sum())
    return Score(100 * right / len(pairs), 100 * nonzero / cells)


def train(corpus: Corpus, align: Alignment, size: Sizes, seed: int, description: str) -> tuple[Network, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Network(corpus, align, size.hidden)
    result = fit(
        model,
        [lambda batch: nn.functional.cross_entropy(model(batch), batch.labels)] * size.epochs,
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: score(model, corpus, corpus.dev).accuracy,
        rate=2e-3,
        description=description,
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each alignment, and print accuracy on the test set."""
    corpus = Corpus(folder, size)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    report.line(f"{folder.name}: {counts} training, development and test pairs\n")
    titles = {"accuracy, %": 12, "dev accuracy, %": 12, "non-zero weights, %": 13}
    report.columns({"alignment": 21, **titles, "last loss": 12, "seconds an epoch": 0})
    for name, align in ALIGNMENTS.items():
        fits, scores = [], []
        for seed in seeds:
            model, result = train(corpus, align, size, seed, f"{name}, seed {seed}")
            fits.append(result)
            scores.append(score(model, corpus, corpus.test))
        report.row(
            name,
            [s.accuracy for s in scores],
            [f.dev for f in fits],
            [s.nonzero for s in scores],
            [f.losses[-1] for f in fits],
            f"{sum(f.seconds for f in fits) / len(fits) / size.epochs:.0f}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=1)


if __name__ == "__main__":
    sys.exit(main())
