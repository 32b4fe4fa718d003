"""Dependency parsing one action at a time, beside a parser that scores all arcs at once, on a treebank.

The parser of Goldberg & Nivre 2013, Training Deterministic Parsers with Non-Deterministic Oracles, chooses the actions
of the arc-hybrid system. Losses: the log-probability of a sequence of gold actions; of all actions of cost 0 in the
states that the parser itself reaches (a dynamic oracle); a margin over a beam; and the expected number of correct
heads, by samples. The projective trees of ``projective_tree`` are trained as a conditional random field, and with a
margin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structinf as si
from structinf.demos.parse import Sentence, read_treebank
from structinf.transitions import ArcHybrid, ParserState, select

from .command import Report, run
from .text import Encoder, Lexicon, buckets, pad
from .training import Fit, fit, relax

__all__ = ["main"]

BEAM, SAMPLES = 8, 8
TREE = si.get_oracle("projective_tree")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 1400
    longest: int = 25  # words of a training sentence
    test: int = 800
    epochs: int = 8  # of which the last half has another loss than the gold actions, if the loss needs a trained parser
    batch: int = 16
    hidden: int = 100


def sizes(quick: bool) -> Sizes:
    return Sizes(train=100, longest=8, test=60, epochs=4, batch=8, hidden=50) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Batch(NamedTuple):
    """Numbers of words and tags, (B, n), gold heads, (B, n), and lengths, (B,)."""

    words: Tensor
    tags: Tensor
    heads: Tensor
    lengths: Tensor

    def tree(self) -> Tensor:
        """Return the gold arcs, (B, n + 1, n + 1)."""
        batch, n = self.heads.shape
        return one_hot(self.heads, self.lengths, torch.zeros(batch, n + 1, n + 1))


def one_hot(heads: Tensor, lengths: Tensor, zeros: Tensor) -> Tensor:
    """Return 1 at [head, word] of each word."""
    row, word = (torch.arange(heads.shape[1]) < lengths[:, None]).nonzero(as_tuple=True)
    return zeros.index_put((row, heads[row, word], word + 1), torch.ones(()))


class Corpus:
    """The three parts of a treebank, and the numbers of its words and tags. Training sentences are projective."""

    def __init__(self, folder: Path, size: Sizes) -> None:
        parts = read_treebank(folder)
        short = (s for s in parts["train"] if len(s.words) <= size.longest and is_projective(s.heads))
        self.train = list(islice(short, size.train))
        self.dev, self.test = parts["dev"][: size.test // 2], parts["test"][: size.test]
        self.lexicon = Lexicon(self.train, [*self.dev, *self.test])
        self.tags = {tag: i for i, tag in enumerate(sorted({tag for s in self.train for tag in s.tags}), 2)}

    def batch(self, sentences: Sequence[Sentence]) -> Batch:
        words, lengths = self.lexicon(sentences)
        tags = pad([[self.tags.get(tag, 1) for tag in s.tags] for s in sentences])
        return Batch(words, tags, pad([s.heads for s in sentences], -1), lengths)


def is_projective(heads: Sequence[int]) -> bool:
    arcs = [(min(h, m), max(h, m)) for m, h in enumerate(heads, 1)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)


# ----------------------------------------------------------------------------- models


class Nodes(nn.Module):
    """Vectors (B, n + 1, 2 · hidden) of the root and of the words."""

    def __init__(self, corpus: Corpus, hidden: int) -> None:
        super().__init__()
        self.encoder = Encoder(corpus.lexicon, hidden=hidden, tags=len(corpus.tags) + 2)
        self.root = nn.Parameter(torch.zeros(2 * hidden))

    def forward(self, batch: Batch) -> Tensor:
        words = self.encoder(batch.words, batch.lengths, batch.tags)
        return torch.cat([self.root.expand(len(words), 1, -1), words], 1)


class ArcParser(nn.Module):
    """Scores of all arcs, (B, n + 1, n + 1)."""

    def __init__(self, corpus: Corpus, hidden: int) -> None:
        super().__init__()
        self.nodes = Nodes(corpus, hidden)
        self.head, self.dependent = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        nodes = self.nodes(batch)
        return self.out((self.head(nodes)[:, :, None] + self.dependent(nodes)[:, None]).relu())[..., 0]


class ActionParser(nn.Module):
    """Scores of the actions, from the two nodes at the top of the stack and the next word."""

    def __init__(self, corpus: Corpus, hidden: int) -> None:
        super().__init__()
        self.nodes = Nodes(corpus, hidden)
        # One product with all three matrices, before the first action.
        self.roles = nn.Linear(2 * hidden, 3 * hidden)
        self.out = nn.Linear(hidden, 3)
        self.system = ArcHybrid(self.score)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the inputs of the transition system."""
        return self.roles(self.nodes(batch)).unflatten(2, (3, -1)), batch.lengths

    def score(self, state: ParserState) -> Tensor:
        nodes = torch.stack([state.top(1), state.top(0), state.first()])
        features = [state.inputs.at(node, torch.full_like(node, role)) for role, node in enumerate(nodes)]
        return self.out(torch.stack(features).sum(0).relu())


# ----------------------------------------------------------------------------- losses


def of_arcs(loss: nn.Module) -> Callable[[ArcParser, Batch], Tensor]:
    return lambda model, batch: loss(model(batch), batch.heads, lengths=batch.lengths)


def gold_actions(model: ActionParser, batch: Batch) -> Tensor:
    inputs = model(batch)
    actions = model.system.gold_actions(inputs, batch.heads)
    return -si.sequence_log_prob(model.system, inputs, actions).mean()


def dynamic_oracle(model: ActionParser, batch: Batch) -> Tensor:
    """Follow the parser's own best actions; in each state, maximize the probability of the actions of cost 0."""
    inputs, system = model(batch), model.system
    state, losses = system.start(inputs), []
    while len(running := (~system.done(state)).nonzero()[:, 0]):
        state = select(state, running)
        log_p = system.actions(state).log_softmax(1)
        is_gold = system.costs(state, batch.heads) == 0
        losses.append(-log_p.masked_fill(~is_gold, -torch.inf).logsumexp(1).sum())
        state = system.step(state, log_p.detach().argmax(1))
    return torch.stack(losses).sum() / len(batch.words)


def beam_margin(model: ActionParser, batch: Batch) -> Tensor:
    """Return the largest violation of a margin, the number of wrong heads, among the trees of a beam."""
    inputs, system = model(batch), model.system
    gold = system.gold_actions(inputs, batch.heads)
    beam = si.decode_beam(system, inputs, BEAM, normalize=False)
    found, right = (si.sequence_log_prob(system, inputs, a, normalize=False) for a in (beam.actions, gold))
    cost = (beam.structures * (1 - batch.tree())).sum((2, 3))
    return (found + cost - right).amax(0).clamp(min=0).mean()


def expected_accuracy(model: ActionParser, batch: Batch) -> Tensor:
    value = si.expect(
        lambda tree, gold: (tree * gold).sum((1, 2)),
        model(batch),
        model.system,
        "score_function",
        samples=SAMPLES,
        inputs=batch.tree(),
    )
    return -value.mean()


METHODS: dict[str, tuple[type[Any], Sequence[Callable[..., Tensor]]]] = {
    # The losses of the first and of the second half of the epochs.
    "all arcs, CRF": (ArcParser, [of_arcs(si.FenchelYoungLoss(TREE, "marginals"))] * 2),
    "all arcs, margin": (ArcParser, [of_arcs(si.FenchelYoungLoss(TREE, "map", cost="hamming"))] * 2),
    "gold actions": (ActionParser, [gold_actions] * 2),
    "dynamic oracle": (ActionParser, [gold_actions, dynamic_oracle]),
    "beam margin": (ActionParser, [gold_actions, beam_margin]),
    "expected accuracy": (ActionParser, [gold_actions, expected_accuracy]),
}


# ----------------------------------------------------------------------------- experiment


@torch.no_grad()
def score(model: ArcParser | ActionParser, corpus: Corpus, sentences: Sequence[Sentence], beam: int = 1) -> float:
    """Return the percentage of words with their gold head."""
    right = total = 0.0
    for bucket in buckets(sentences, 32):
        batch = corpus.batch(bucket)
        if isinstance(model, ArcParser):
            trees = relax(model(batch), TREE, lengths=batch.lengths)
        else:
            found = si.decode_beam(model.system, model(batch), beam)
            trees = found.structures[0]  # type: ignore[index]
        right += (trees * batch.tree()).sum().item()
        total += batch.lengths.sum().item()
    return 100 * right / total


def train(corpus: Corpus, method: str, size: Sizes, seed: int) -> tuple[Any, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    kind, (first, second) = METHODS[method]
    model = kind(corpus, size.hidden)
    half = size.epochs // 2
    result = fit(
        model,
        [lambda batch, loss=loss: loss(model, batch) for loss in [first] * half + [second] * (size.epochs - half)],
        lambda: [corpus.batch(bucket) for bucket in buckets(corpus.train, size.batch, generator)],
        lambda: score(model, corpus, corpus.dev),
        rate=2e-3,
        description=f"{method}, seed {seed}",
    )
    return model.eval(), result


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, and print the accuracy of heads on the test set."""
    corpus = Corpus(folder, size)
    counts = ", ".join(str(len(part)) for part in (corpus.train, corpus.dev, corpus.test))
    report.line(f"{folder.name}: {counts} training, development and test sentences\n")
    report.columns({"loss": 17, "heads": 12, f"beam of {BEAM}": 12, "dev heads": 12, "seconds": 0})
    for method in METHODS:
        fits, heads, beams = [], [], []
        for seed in seeds:
            model, result = train(corpus, method, size, seed)
            fits.append(result)
            heads.append(score(model, corpus, corpus.test))
            if isinstance(model, ActionParser):
                beams.append(score(model, corpus, corpus.test, BEAM))
        seconds = f"{sum(f.seconds for f in fits):.0f}"
        report.row(method, heads, beams or "", [f.dev for f in fits], seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3)


if __name__ == "__main__":
    sys.exit(main())
