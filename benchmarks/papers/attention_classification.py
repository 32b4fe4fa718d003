"""Tell good reviews from bad reviews by the attended words: dense, sparse and structured attention compared.

After Kim, Denton, Hoang & Rush 2017, Structured Attention Networks, and Mensch & Blondel 2018, Differentiable Dynamic
Programming, §5, with smaller tasks. A network reads a review, one learnt query attends to the words, and a classifier
reads the result. In a second setting, the words first attend to each other, each word to its head in a latent tree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from structinf.attention import StructuredMultiheadAttention

from .command import Report, run
from .rationale_subsets import Review, read
from .text import PADDING, Encoder, Lexicon, buckets, lines_of, pad
from .training import Fit, fit

__all__ = ["main"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    reviews: int | None = None  # None: all
    epochs: int = 5
    batch: int = 64
    hidden: int = 50


def sizes(quick: bool) -> Sizes:
    return Sizes(reviews=400, epochs=2, hidden=16) if quick else Sizes()


# ----------------------------------------------------------------------------- attention


def uniform(scores: Tensor, dim: int) -> Tensor:
    """Return equal weights for all words."""
    return torch.where(scores.isneginf(), scores, 0).softmax(dim)


class Method(NamedTuple):
    """Arguments of the attention module, and a flag for words that attend to each other instead of a single query."""

    arguments: Mapping[str, Any]
    among_words: bool = False


def segments(regularizer: str) -> Method:
    """Return a smoothed chain of two states over the words."""
    return Method({"oracle": "chain", "relaxation": "smoothed", "regularizer": regularizer})


METHODS = {
    "mean of all words": Method({"weights": uniform}),
    "softmax": Method({"weights": "softmax"}),
    "entmax 1.5": Method({"weights": "entmax15"}),
    "sparsemax": Method({"weights": "sparsemax"}),
    "fusedmax": Method({"weights": "fusedmax"}),
    "segments, negentropy": segments("negentropy"),
    "segments, squared l2": segments("squared_l2"),
    "words, softmax": Method({"weights": "softmax"}, among_words=True),
    "words, sparsemax": Method({"weights": "sparsemax"}, among_words=True),
    "words, heads": Method({"oracle": "arborescence", "relaxation": "marginals"}, among_words=True),
}


# ----------------------------------------------------------------------------- data


class Batch(NamedTuple):
    """Numbers of words (B, T), lengths (B,), labels of good reviews (B,), and flags of words in the lexicon (B, T)."""

    words: Tensor
    lengths: Tensor
    good: Tensor
    listed: Tensor

    @property
    def padding(self) -> Tensor:
        return self.words == PADDING


class Corpus:
    """Movie reviews with a mean rating at least ½ from 0, in three parts.

    Training does not use the lexicon of sentiment. The lexicon measures whether attention goes to words that people
    would choose.
    """

    def __init__(self, folder: Path, size: Sizes) -> None:
        reviews = [r for r in read(folder, "movieReviewSnippets_GroundTruth.txt", 2) if abs(r.rating) >= 0.5]
        order = torch.randperm(len(reviews), generator=torch.Generator().manual_seed(0)).tolist()
        reviews = [reviews[i] for i in order[: size.reviews]]
        tenth = len(reviews) // 10
        self.test, self.dev, self.train = reviews[: 2 * tenth], reviews[2 * tenth : 3 * tenth], reviews[3 * tenth :]
        self.lexicon = Lexicon(self.train, [*self.dev, *self.test])
        self.sentiment = {line.split("\t")[0] for line in lines_of(folder, "vader_lexicon.txt")}

    def batch(self, reviews: Sequence[Review]) -> Batch:
        words, lengths = self.lexicon(reviews)
        listed = pad([[int(word in self.sentiment) for word in review.words] for review in reviews])
        return Batch(words, lengths, torch.tensor([float(r.rating > 0) for r in reviews]), listed)


# ----------------------------------------------------------------------------- model


class Classifier(nn.Module):
    """A network that returns scores (B,) of good reviews."""

    def __init__(self, lexicon: Lexicon, method: Method, hidden: int) -> None:
        super().__init__()
        self.among_words = method.among_words
        self.encoder = Encoder(lexicon, hidden=hidden, dropout=0.3)
        self.query = nn.Parameter(torch.randn(2 * hidden))
        self.attention = StructuredMultiheadAttention(2 * hidden, 1, batch_first=True, **method.arguments)
        self.mix = nn.Sequential(nn.Linear(4 * hidden, 2 * hidden), nn.ReLU())
        self.label = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * hidden, 1))

    def attend(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the input of the classifier, (B, 2 · hidden), and weights (B, n, T) with n = 1 or n = T."""
        states, padding = self.encoder(batch.words, batch.lengths), batch.padding
        if not self.among_words:
            query = self.query.expand(len(states), 1, -1)
            context, weights = self.attention(query, states, states, padding)
            return context.squeeze(1), weights
        context, weights = self.attention(states, states, states, padding, query_padding_mask=padding)
        mixed = self.mix(torch.cat([states, context], -1)).masked_fill(padding[:, :, None], 0)
        return mixed.sum(1) / batch.lengths[:, None], weights

    def forward(self, batch: Batch) -> Tensor:
        return self.label(self.attend(batch)[0]).squeeze(1)


class Score(NamedTuple):
    """Per cent of right labels, of non-zero weights, and of weight on words of the lexicon.

    ``runs`` counts the runs of neighbouring words with a weight, for each query.
    """

    accuracy: float
    nonzero: float
    listed: float
    runs: float


@torch.no_grad()
def score(model: Classifier, corpus: Corpus, reviews: Sequence[Review]) -> Score:
    """Return the score on reviews. Each review counts once, and each query of a review counts equally."""
    sums = torch.zeros(4, dtype=torch.float64)
    for bucket in buckets(reviews, 64):
        batch = corpus.batch(bucket)
        scores, (_, weights) = model(batch), model.attend(batch)
        queries = batch.lengths if model.among_words else torch.ones_like(batch.lengths)
        used = weights > 0
        begins = used & ~nn.functional.pad(used, (1, -1))
        listed = (weights * batch.listed[:, None]).sum((1, 2)) / weights.sum((1, 2)).clamp(min=1e-6)
        right = ((scores > 0) == (batch.good > 0)).double()
        nonzero = used.sum((1, 2)) / (queries * batch.lengths)
        sums += torch.stack([t.double().sum() for t in (right, nonzero, listed, begins.sum((1, 2)) / queries)])
    accuracy, nonzero, listed, runs = (sums / len(reviews)).tolist()
    return Score(100 * accuracy, 100 * nonzero, 100 * listed, runs)


def train(corpus: Corpus, name: str, size: Sizes, seed: int) -> tuple[Classifier, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier(corpus.lexicon, METHODS[name], size.hidden)
    result = fit(
        model,
        [lambda batch: nn.functional.binary_cross_entropy_with_logits(model(batch), batch.good)] * size.epochs,
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: score(model, corpus, corpus.dev).accuracy,
        rate=3e-3,
        description=f"{name}, seed {seed}",
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each kind of attention, and print accuracy and sparsity on the test set."""
    corpus = Corpus(folder, size)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    good = sum(review.rating > 0 for review in corpus.test) / len(corpus.test)
    report.line(
        f"{folder.name}: {counts} training, development and test reviews, {100 * good:.1f} % of the last are good\n"
    )
    titles = {"accuracy, %": 12, "non-zero weights, %": 13, "weight on the lexicon, %": 12, "runs": 12}
    report.columns({"attention": 20, **titles, "dev accuracy, %": 12, "seconds an epoch": 0})
    for name in METHODS:
        fits, scores = [], []
        for seed in seeds:
            model, result = train(corpus, name, size, seed)
            fits.append(result)
            scores.append(score(model, corpus, corpus.test))
        cells = [[getattr(s, field) for s in scores] for field in Score._fields]
        seconds = sum(f.seconds for f in fits) / len(fits) / size.epochs
        report.row(name, *cells, [f.dev for f in fits], f"{seconds:.1f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=2)


if __name__ == "__main__":
    sys.exit(main())
