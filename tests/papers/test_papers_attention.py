"""The papers' experiment with attention: what it is made of, and a small run of it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers import attention_classification as reviews
from benchmarks.papers.rationale_subsets import Review
from benchmarks.papers.text import Lexicon
from paper_reports import folder, number, tables

pytestmark = pytest.mark.slow

REVIEWS = [Review(text.split(), rating) for text, rating in (("a good film", 2.0), ("a dull plot , a bad film", -2.0))]


class Listed(reviews.Corpus):
    """A corpus of two reviews."""

    def __init__(self) -> None:
        self.train = self.dev = self.test = REVIEWS
        self.lexicon, self.sentiment = Lexicon(REVIEWS, []), {"good", "bad", "dull"}


def model(method: str) -> reviews.Classifier:
    torch.manual_seed(0)
    return reviews.Classifier(Listed().lexicon, reviews.METHODS[method], 4).eval()


@pytest.mark.parametrize("method", reviews.METHODS)
def test_no_weight_is_on_the_padding(method):
    batch = Listed().batch(REVIEWS)
    assert batch.good.tolist() == [1, 0]
    assert batch.listed.sum(1).tolist() == [1, 2]
    context, weights = model(method).attend(batch)
    n = 7 if reviews.METHODS[method].among_words else 1
    assert weights.shape == (2, n, 7)
    assert weights[0, :, 3:].eq(0).all()
    torch.testing.assert_close(weights.sum(2)[:, 0], torch.ones(2))
    assert context.shape == (2, 8)


@pytest.mark.parametrize("method", reviews.METHODS)
def test_a_review_by_itself_has_the_same_score(method):
    one, corpus = model(method), Listed()
    both = one(corpus.batch(REVIEWS))
    alone = torch.cat([one(corpus.batch([review])) for review in REVIEWS])
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-5)


def test_weights_are_measured():
    found = reviews.score(model("mean of all words"), Listed(), REVIEWS)
    assert found.nonzero == 100
    assert found.runs == 1
    assert found.listed == pytest.approx(100 * (1 / 3 + 2 / 7) / 2)


@pytest.mark.full
def test_sentiment_of_reviews(tmp_path, capsys):
    report = tmp_path / "report.md"
    arguments = [str(folder("vader_reviews")), "--quick", "--threads", "1", "--out", str(report)]
    assert reviews.main(arguments) == 0
    (rows,) = tables(report)
    assert [row[0] for row in rows] == list(reviews.METHODS)
    for name, accuracy, nonzero, listed, runs, _, _ in rows:
        assert 35 < number(accuracy) < 85
        assert 3 < number(listed) < 40
        assert number(runs) >= 1
        is_dense = not any(word in name for word in ("max", "squared")) or "softmax" in name
        assert number(nonzero) == 100 if is_dense else number(nonzero) <= 100
