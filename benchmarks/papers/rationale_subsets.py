"""Rate reviews from k of their words: relaxed subsets compared, and the chosen words checked against a lexicon of
sentiment.

After Chen, Song, Wainwright & Jordan 2018, Learning to Explain, and Paulus, Choi, Tarlow, Krause & Maddison 2020,
Gradient Estimation with Stochastic Softmax Tricks, without noise. One network scores the words of a review, and a
subset of k words is relaxed. A second network rates the review from the word embeddings times the subset. After
training, the second network reads only the k best words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .text import PADDING, Lexicon, buckets, lines_of, pad
from .training import Fit, fit, relax

__all__ = ["main"]

# The best temperatures on the development set: of 0.3 and 1, and of 0.3, 1, 3 and 10 for SparseMAP.
RELAXATIONS: dict[str, si.Relaxation | None] = {
    "all words": None,
    "SparseMAP": si.get_relaxation("sparsemap", temperature=3.0),
    "binary entropy": si.get_relaxation("frank_wolfe", regularizer="binary_entropy", temperature=0.3),
    "entropy": si.get_relaxation("frank_wolfe", regularizer="entropy", temperature=0.3),
    "marginals": si.get_relaxation("marginals", temperature=0.3),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    reviews: int | None = None  # None: all
    subsets: tuple[int, ...] = (2, 4)
    epochs: int = 10
    batch: int = 64
    hidden: int = 50


def sizes(quick: bool) -> Sizes:
    return Sizes(reviews=800, subsets=(2,), epochs=4) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Review(NamedTuple):
    """Words and punctuation in lower case, and the mean of the ratings, between -4 and 4."""

    words: list[str]
    rating: float


class Batch(NamedTuple):
    """Numbers of words (B, T), lengths (B,), ratings (B,), and flags of words in the lexicon (B, T)."""

    words: Tensor
    lengths: Tensor
    ratings: Tensor
    listed: Tensor


def words_of(text: str) -> list[str]:
    """Return lower-case words with their apostrophes and hyphens, and punctuation marks."""
    return re.findall(r"\w[\w'-]*\w|\w|[^\w\s]", text.lower())


def read(folder: Path, name: str, shortest: int) -> list[Review]:
    """Read reviews of at least ``shortest`` words: a number, rating and text on each line, with tabs between."""
    rows = (line.split("\t", 2) for line in lines_of(folder, name))
    reviews = (Review(words_of(text), float(rating)) for _, rating, text in rows)
    return [review for review in reviews if len(review.words) >= shortest]


class Corpus:
    """Movie reviews in three parts, and flags of words in the lexicon. Training does not use the lexicon."""

    def __init__(self, folder: Path, size: Sizes) -> None:
        reviews = read(folder, "movieReviewSnippets_GroundTruth.txt", max(size.subsets))
        order = torch.randperm(len(reviews), generator=torch.Generator().manual_seed(0)).tolist()
        reviews = [reviews[i] for i in order[: size.reviews]]
        tenth = len(reviews) // 10
        self.test, self.dev, self.train = reviews[: 2 * tenth], reviews[2 * tenth : 3 * tenth], reviews[3 * tenth :]
        self.lexicon = Lexicon(self.train, [*self.dev, *self.test])
        self.sentiment = {line.split("\t")[0] for line in lines_of(folder, "vader_lexicon.txt")}

    def batch(self, reviews: Sequence[Review]) -> Batch:
        words, lengths = self.lexicon(reviews)
        listed = pad([[int(word in self.sentiment) for word in review.words] for review in reviews])
        return Batch(self.lexicon.known[words], lengths, torch.tensor([r.rating for r in reviews]), listed)


# ----------------------------------------------------------------------------- model


class SubsetRegressor(nn.Module):
    """A network that returns ratings (B,) from a relaxed subset of k words, or from all words without a relaxation."""

    def __init__(self, words: int, k: int, relaxation: si.Relaxation | None, hidden: int) -> None:
        super().__init__()
        self.k, self.relaxation, self.oracle = k, relaxation, si.get_oracle("subset", k=k)
        self.seen, self.read = (
            nn.Sequential(nn.Embedding(words, hidden, padding_idx=PADDING), nn.Dropout(0.5)) for _ in range(2)
        )
        self.score = nn.Linear(hidden, 1)
        self.rate = nn.Sequential(nn.Dropout(0.5), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def subset(self, batch: Batch, hard: bool = False) -> Tensor:
        """Return the weight of each word, (B, T)."""
        if self.relaxation is None:
            return (batch.words != PADDING).float()
        theta = self.score(self.seen(batch.words)).squeeze(2)
        return relax(theta, self.oracle, "map" if hard else self.relaxation, lengths=batch.lengths)

    def forward(self, batch: Batch, hard: bool = False) -> Tensor:
        chosen = self.subset(batch, hard)
        met = (chosen[:, :, None] * self.read(batch.words)).sum(1) / chosen.sum(1, keepdim=True)
        return self.rate(met).squeeze(1)


class Score(NamedTuple):
    """Mean squared errors from k words and from the relaxed subset, and shares in per cent.

    The shares are: lexicon words among the k words, the best reachable share for k words, and words with a weight.
    """

    error: float
    relaxed: float
    precision: float
    support: float


@torch.no_grad()
def score(model: SubsetRegressor, corpus: Corpus, reviews: Sequence[Review]) -> Score:
    sums = torch.zeros(4, dtype=torch.float64)
    for bucket in buckets(reviews, 64):
        batch = corpus.batch(bucket)
        errors = ((model(batch, hard) - batch.ratings).square().sum() for hard in (True, False))
        listed = (model.subset(batch, hard=True) * batch.listed).sum() / model.k
        weighty = ((model.subset(batch) > 0).sum(1) / batch.lengths).sum()
        sums += torch.stack([*errors, 100 * listed, 100 * weighty]).double()
    return Score(*(sums / len(reviews)).tolist())


def train(corpus: Corpus, k: int, name: str, size: Sizes, seed: int) -> tuple[SubsetRegressor, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = SubsetRegressor(corpus.lexicon.known_count, k, RELAXATIONS[name], size.hidden)
    result = fit(
        model,
        [lambda batch: (model(batch) - batch.ratings).square().mean()] * size.epochs,
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: -score(model, corpus, corpus.dev).error,
        rate=5e-3,
        description=f"{name}, k = {k}, seed {seed}",
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def chance(corpus: Corpus, k: int) -> tuple[float, float]:
    """Return the precision, in per cent, of k random words, and of as many lexicon words as possible."""
    listed = [sum(word in corpus.sentiment for word in review.words) for review in corpus.test]
    drawn = [count / len(review.words) for count, review in zip(listed, corpus.test, strict=True)]
    return 100 * sum(drawn) / len(drawn), 100 * sum(min(count, k) for count in listed) / (k * len(listed))


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each relaxation, and print errors and precision on the test set."""
    corpus = Corpus(folder, size)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    ratings = torch.tensor([review.rating for review in corpus.test])
    report.line(
        f"{folder.name}: {counts} training, development and test reviews; variance of the test ratings "
        f"{ratings.var(correction=0).item():.2f}\n"
    )
    titles = {"error, k words": 11, "error, relaxed": 11, "precision, %": 12, "words with a weight, %": 12}
    report.columns({"relaxation": 18, "k": 1, **titles, "seconds": 0})
    for k in size.subsets:
        for title, precision in zip(("random words", "at most"), chance(corpus, k), strict=True):
            report.row(title, k, "", "", precision, "", "")
        for name, relaxation in RELAXATIONS.items():
            if relaxation is None and k != size.subsets[0]:
                continue
            fits, scores = [], []
            for seed in seeds:
                model, result = train(corpus, k, name, size, seed)
                fits.append(result)
                scores.append(score(model, corpus, corpus.test))
            cells = [[getattr(s, field) for s in scores] for field in Score._fields]
            shown = cells if relaxation else ["", cells[1], "", cells[3]]
            report.row(name, k if relaxation else "", *shown, f"{sum(f.seconds for f in fits):.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=1)


if __name__ == "__main__":
    sys.exit(main())
