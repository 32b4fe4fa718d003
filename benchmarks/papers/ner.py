"""Named entities: losses of smoothed dynamic programming compared, on a corpus of words and IOB2 tags.

After Mensch & Blondel 2018, Differentiable Dynamic Programming for Structured Prediction and Attention, §4.2. A
recurrent network and a transition matrix score the tags of a chain. Surrogate losses are Fenchel-Young losses of the
smoothed recursion. Relaxed losses measure the distance between the expected tags and the right tags.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

import structinf as si
from structinf.dp import HypergraphProgram

from .command import Report, run
from .text import Encoder, Lexicon, buckets, lines_of, pad
from .training import Fit, fit

__all__ = ["main"]

CHAIN = cast(HypergraphProgram, si.get_oracle("chain"))
SPARSE = si.SquaredL2()

REGULARIZERS: dict[str, si.Regularizer] = {
    "negentropy": si.Negentropy(),
    "squared l2": SPARSE,
    "entmax 1.5": si.Tsallis(alpha=1.5),
    "none": si.Unregularized(),
}

SURROGATE = {name: si.FenchelYoungLoss(CHAIN, "smoothed", regularizer=omega) for name, omega in REGULARIZERS.items()}
RELAXED = {
    name: si.RelaxedLoss(
        CHAIN, "smoothed", regularizer=omega, distance="kl" if isinstance(omega, si.Negentropy) else "squared_l2"
    )
    for name, omega in REGULARIZERS.items()
    if not isinstance(omega, si.Unregularized)  # hard tags have a gradient of 0
}
COST_AUGMENTED = si.FenchelYoungLoss(CHAIN, "smoothed", regularizer="none", cost="hamming")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    sentences: int | None = None  # of each part, with at most 20 words and an entity; None: all sentences
    epochs: int = 6
    hidden: int = 80
    batch: int = 16


def sizes(quick: bool) -> Sizes:
    return Sizes(sentences=400, epochs=6, hidden=32, batch=5) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Sentence(NamedTuple):
    """Words, and their tags in the IOBES scheme."""

    words: list[str]
    tags: list[str]


class Batch(NamedTuple):
    """Numbers of words and of tags, both (B, T), and lengths, (B,)."""

    words: Tensor
    tags: Tensor
    lengths: Tensor


def read(folder: Path, part: str) -> Iterator[Sentence]:
    """Read the sentences of the file ``part``.iob2: a word, a tab and its tag on each line, and a blank line after a
    sentence.
    """
    rows: list[list[str]] = []
    for line in (*lines_of(folder, f"{part}.iob2"), ""):
        if line:
            rows.append(line.split("\t"))
        elif rows:
            yield Sentence([row[0] for row in rows], to_iobes([row[-1] for row in rows]))
            rows = []


def to_iobes(tags: Sequence[str]) -> list[str]:
    """Convert IOB2 tags to IOBES tags. An I without a preceding tag of its entity begins an entity."""
    places = {(True, True): "S", (True, False): "B", (False, True): "E", (False, False): "I"}
    found = []
    for before, tag, after in zip(["O", *tags], tags, [*tags[1:], "O"], strict=False):
        begins, ends = tag[0] == "B" or before[1:] != tag[1:], after != f"I{tag[1:]}"
        found.append(tag if tag == "O" else places[begins, ends] + tag[1:])
    return found


Entity = tuple[str, int, int]


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the types of the well-formed entities, with their first and last words."""
    found, current_entity = set(), ("", 0)
    for i, tag in enumerate(tags):
        place, _, kind = tag.partition("-")
        if place in "BS":
            current_entity = kind, i
        elif place == "O" or current_entity[0] != kind:
            current_entity = "", 0
        if place in "ES" and current_entity[0]:
            found.add((kind, current_entity[1], i))
            current_entity = "", 0
    return found


def f1(right: Sequence[set[Entity]], found: Sequence[set[Entity]]) -> float:
    """Return the harmonic mean of precision and recall, in per cent."""
    common = sum(len(a & b) for a, b in zip(right, found, strict=True))
    return 200 * common / max(1, sum(map(len, right)) + sum(map(len, found)))


class Corpus:
    """The three parts of a corpus, and the numbers of its words and tags."""

    def __init__(self, folder: Path, most: int | None) -> None:
        self.train, self.dev, self.test = (
            [s for s in read(folder, part) if most is None or (entities(s.tags) and len(s.words) <= 20)][:most]
            for part in ("train", "dev", "test")
        )
        self.lexicon = Lexicon(self.train, [*self.dev, *self.test])
        self.tags = sorted({tag for s in (*self.train, *self.dev, *self.test) for tag in s.tags})
        self.number = {tag: i for i, tag in enumerate(self.tags)}

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        words, lengths = self.lexicon(sentences)
        return Batch(words, pad([[self.number[tag] for tag in s.tags] for s in sentences]), lengths)

    def entities(self, tags: Tensor, length: int) -> set[Entity]:
        return entities([self.tags[i] for i in tags[:length].tolist()])


def look_up(train: Sequence[Sentence], sentences: Sequence[Sentence]) -> list[set[Entity]]:
    """Find the longest names seen in training, each with its most frequent type: a baseline without training."""
    seen: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for words, tags in train:
        for kind, first, last in entities(tags):
            seen[tuple(words[first : last + 1])][kind] += 1
    longest = max(map(len, seen), default=0)
    found: list[set[Entity]] = []
    for words, _ in sentences:
        found.append(set())
        i = 0
        while i < len(words):
            lengths = range(min(longest, len(words) - i), 0, -1)
            length = next((n for n in lengths if tuple(words[i : i + n]) in seen), 0)
            if length:
                kind = seen[tuple(words[i : i + length])].most_common(1)[0][0]
                found[-1].add((kind, i, i + length - 1))
            i += length or 1
    return found


# ----------------------------------------------------------------------------- model


class Tagger(nn.Module):
    """A network that returns scores (B, T, S) of the tags, and scores (S, S) of the transitions."""

    def __init__(self, corpus: Corpus, hidden: int) -> None:
        super().__init__()
        self.encoder = Encoder(corpus.lexicon, hidden=hidden)
        self.tag = nn.Linear(2 * hidden, len(corpus.tags))
        self.transition = nn.Parameter(torch.zeros(len(corpus.tags), len(corpus.tags)))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.tag(self.encoder(batch.words, batch.lengths)), self.transition


@torch.no_grad()
def score(model: Tagger, corpus: Corpus, sentences: Sequence[Sentence]) -> float:
    """Return the F1 of the entities in the best tags."""
    right, found = [], []
    for bucket in buckets(sentences, 64):
        batch = corpus.batch(bucket)
        best = si.relax(model(batch), CHAIN, "map", lengths=batch.lengths)
        tags = si.decode(best, CHAIN, lengths=batch.lengths)
        for row, gold, length in zip(tags, batch.tags, batch.lengths.tolist(), strict=True):
            right.append(corpus.entities(gold, length))
            found.append(corpus.entities(row, length))
    return f1(right, found)


def train(corpus: Corpus, losses: Sequence[nn.Module], size: Sizes, seed: int, description: str) -> tuple[Tagger, Fit]:
    """Train with one loss after another, an epoch each."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Tagger(corpus, size.hidden)

    def steps(loss: nn.Module) -> Callable[[Batch], Tensor]:
        return lambda batch: loss(model(batch), batch.tags, lengths=batch.lengths)

    result = fit(
        model,
        [steps(loss) for loss in losses],
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: score(model, corpus, corpus.dev),
        rate=3e-3,
        description=description,
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- candidates


class Candidates(NamedTuple):
    """The taggings of a sentence with a positive probability, most probable first."""

    sentence: Sentence
    tags: list[list[str]]
    probabilities: list[float]

    def has_long_names(self) -> bool:
        """Whether a candidate has a name of several words."""
        return any(first < last for tags in self.tags for _, first, last in entities(tags))


@torch.no_grad()
def candidates(model: Tagger, corpus: Corpus, sentences: Sequence[Sentence], most: int = 1000) -> list[Candidates]:
    """Return the candidates of each sentence with at most ``most`` candidates."""
    found = []
    for sentence in sentences:
        unary, transition = model(corpus.batch([sentence]))
        try:
            structures, probabilities = CHAIN.enumerate_support((unary, transition[None]), SPARSE, max_structures=most)
        except si.InvalidInputError:
            continue
        tags = structures[0][:, 0].argmax(-1).tolist()
        found.append(Candidates(sentence, [[corpus.tags[i] for i in t] for t in tags], probabilities[:, 0].tolist()))
    return found


def show(candidates: Candidates) -> Iterator[str]:
    """Return the sentence, and the entities in its taggings. Entities with ill-formed tags do not count."""
    words, gold = candidates.sentence
    readings: defaultdict[frozenset[Entity], float] = defaultdict(float)
    for tags, probability in zip(candidates.tags, candidates.probabilities, strict=True):
        readings[frozenset(entities(tags))] += probability
    yield f"*{' '.join(words)}*\n"
    for found, probability in sorted(readings.items(), key=lambda item: -item[1]):
        names = [
            f"{' '.join(words[first : last + 1])} ({kind})" for kind, first, last in sorted(found, key=lambda e: e[1])
        ]
        yield f"- {probability:.3f}: {', '.join(names) or 'no entity'}{', right' if found == entities(gold) else ''}"
    yield ""


def report_candidates(model: Tagger, corpus: Corpus, report: Report) -> None:
    """Print the numbers of candidates of the test sentences, and the candidates of doubtful examples."""
    found = candidates(model, corpus, corpus.test)
    facts = {
        "have a single tagging of positive probability": [len(c.tags) == 1 for c in found],
        "have at most ten": [len(c.tags) <= 10 for c in found],
        "have the right one as the most probable": [c.tags[0] == c.sentence.tags for c in found],
        "have the right one among them": [c.sentence.tags in c.tags for c in found],
    }
    report.line(
        "\nTaggings to which squared l2 (surrogate, last seed) gives a positive probability. Of the test sentences,\n"
    )
    for fact, truths in facts.items():
        report.line(f"- {100 * sum(truths) / len(truths):.0f} % {fact}")
    report.line(
        f"- {len(corpus.test) - len(found)} of {len(corpus.test)} have more than a thousand, and are left out above"
    )
    report.line("\nOf short sentences with few candidates, some of them names of several words, the most doubtful:\n")
    few = [c for c in found if 2 <= len(c.tags) <= 6 and len(c.sentence.words) <= 20 and c.has_long_names()]
    for c in sorted(few, key=lambda c: c.probabilities[0])[:5]:
        for line in show(c):
            report.line(line)


# ----------------------------------------------------------------------------- experiment


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, and print F1 on the test set."""
    corpus = Corpus(folder, size.sentences)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    report.line(f"{folder.name}: {counts} training, development and test sentences, {len(corpus.tags)} tags\n")
    report.columns({"Ω": 10, "loss": 9, "F1": 12, "dev F1": 12, "loss, first epoch": 0, "last": 12, "seconds": 0})
    baseline = f1([entities(s.tags) for s in corpus.test], look_up(corpus.train, corpus.test))
    report.row("names seen", "", baseline, "", "", "", "")
    sparse = None
    for (name, kind), losses in schedules(size.epochs).items():
        fits, scores = [], []
        for seed in seeds:
            model, result = train(corpus, losses, size, seed, f"{name}, {kind}, seed {seed}")
            fits.append(result)
            scores.append(score(model, corpus, corpus.test))
            if losses[-1] is SURROGATE["squared l2"]:
                sparse = model
        first = losses.index(losses[-1])
        means = ([f.losses[epoch] for f in fits] for epoch in (first, -1))
        report.row(name, kind, scores, [f.dev for f in fits], *means, f"{sum(f.seconds for f in fits):.0f}")
    if sparse is not None:
        report_candidates(sparse, corpus, report)


def schedules(epochs: int) -> dict[tuple[str, str], list[nn.Module]]:
    """Return the loss of each epoch, by Ω and kind.

    Relaxed losses start with an epoch of the surrogate loss. If a sparse Ω gives the right tags probability 0, a
    relaxed loss has no gradient, and a network that starts without entities would not improve.
    """
    found = {}
    for name in REGULARIZERS:
        found[name, "surrogate"] = [SURROGATE[name]] * epochs
        if name in RELAXED:
            found[name, "relaxed"] = [SURROGATE[name], *[RELAXED[name]] * (epochs - 1)]
    return {**found, ("none", "hinge"): [COST_AUGMENTED] * epochs}


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3)


if __name__ == "__main__":
    sys.exit(main())
