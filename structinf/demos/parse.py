"""Train a dependency parser on a Universal Dependencies treebank.

A recurrent network scores every arc between two words of a sentence, or between the root and a
word; the structure is an arborescence with one arc from the root. The losses differ in the
relaxation, and in the presence of a margin.

The network is the arc-factored parser of Kiperwasser & Goldberg 2016, Simple and Accurate Dependency
Parsing Using Bidirectional LSTM Feature Representations, on gold tags; the losses are compared in
Niculae, Martins, Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, §5.1.
"""

from __future__ import annotations

import lzma
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO, cast

import torch
from conllu import parse_incr
from conllu.exceptions import ParseException
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import structinf as si
from structinf import plot

from .report import Table, percent, progress

__all__ = ["run"]

TREE = si.get_oracle("arborescence", single_root=True)

LOSSES = {
    # The loss is also 0 for equal scores. Without a margin, training drifts towards equal scores, with far worse
    # results.
    "perceptron": si.FenchelYoungLoss(TREE, "map"),
    "svm": si.FenchelYoungLoss(TREE, "map", cost="hamming"),
    "crf": si.FenchelYoungLoss(TREE, "marginals"),
    "sparsemap": si.FenchelYoungLoss(TREE, "sparsemap"),
    "margin-sparsemap": si.FenchelYoungLoss(TREE, "sparsemap", cost="hamming"),
}


class Parser(nn.Module):
    """A network for scores (B, n + 1, n + 1) of the arcs from each head to each word, where the root is number 0."""

    def __init__(self, words: int, tags: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, 100)
        self.tag = nn.Embedding(tags, 25)
        self.context = nn.LSTM(125, 125, batch_first=True, bidirectional=True)
        self.head = nn.Linear(250, 100)
        self.dependent = nn.Linear(250, 100, bias=False)
        self.arc = nn.Linear(100, 1, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        embedded = torch.cat([self.word(batch.words), self.tag(batch.tags)], -1)
        packed = pack_padded_sequence(embedded, batch.lengths + 1, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.context(packed)[0], batch_first=True)
        pairs = torch.tanh(self.head(states)[:, :, None] + self.dependent(states)[:, None])
        return self.arc(pairs).squeeze(-1)


def train_epoch(
    model: Parser, optimizer: torch.optim.Optimizer, loss: nn.Module, batches: list[Batch], description: str
) -> float:
    """Train for one pass over the batches; return the mean loss."""
    model.train()
    total = 0.0
    bar = progress(batches, description)
    for batch in bar:
        value = loss(model(batch), batch.heads, lengths=batch.lengths)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += value.item()
        bar.set_postfix(loss=f"{value.item():.3f}", refresh=False)
    return total / len(batches)


class Accuracy(NamedTuple):
    """Fractions of words with a correct head, and of sentences with a correct tree."""

    heads: float
    trees: float


@torch.no_grad()
def evaluate(model: Parser, batches: list[Batch], description: str) -> Accuracy:
    model.eval()
    right: list[Tensor] = []
    for batch in progress(batches, description):
        trees = si.relax(model(batch), TREE, "map", lengths=batch.lengths)
        heads = si.decode(trees, TREE, lengths=batch.lengths)  # −1 in the padding
        right += [h[:n] == gold[:n] for h, gold, n in zip(heads, batch.heads, batch.lengths, strict=True)]
    return Accuracy(
        heads=torch.cat(right).float().mean().item(),
        trees=torch.stack([r.all() for r in right]).float().mean().item(),
    )


@torch.no_grad()
def draw_picture(model: Parser, encoder: Encoder, sentences: list[Sentence], path: Path) -> None:
    """Draw the sentence of 5 to 12 words with at most four candidate trees and the smallest weight of the best tree."""
    model.eval()
    chosen: tuple[Sentence, si.Solution] | None = None
    largest_ambiguity = -1.0
    for sentence in sentences:
        if 5 <= len(sentence.words) <= 12:
            solution = si.infer(model(encoder([sentence]))[0], TREE, "sparsemap")
            weights = cast(Tensor, solution.weights)
            ambiguity = 1 - weights.max().item() if (weights > 0).sum() <= 4 else -0.5
            if ambiguity > largest_ambiguity:
                chosen, largest_ambiguity = (sentence, solution), ambiguity
    if chosen is None:
        print("no picture: the development set has no sentence of 5 to 12 words")
        return
    sentence, solution = chosen
    gold = torch.tensor(sentence.heads)
    title = "Candidate trees of a sentence, and their weights"
    plot.trees(solution, sentence.words, gold=gold, title=title).savefig(path)
    print(f"picture: {path.resolve()}")


# ----------------------------------------------------------------------------- the treebank

ROOT, UNKNOWN = 0, 1


class Sentence(NamedTuple):
    """Words, their tags, and their heads: 1 for the first word, 0 for the root."""

    words: list[str]
    tags: list[str]
    heads: list[int]


def read_treebank(folder: Path, max_sentences: int | None = None) -> dict[str, list[Sentence]]:
    """Read the sentences of the files ``*train*``, ``*dev*`` and ``*test*`` that end in .conllu or .conllu.xz."""
    if not folder.is_dir():
        raise FileNotFoundError(f"treebank must be a folder, but the folder {folder} does not exist")
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
            sentences = progress(parse_incr(cast(TextIO, lines)), f"reading {file.name}", "sentence")
            for number, tokens in enumerate(sentences, 1):
                # Contractions (id 3-4) and elided words (id 3.1) are not in the tree; their ids are not integers.
                words = [token for token in tokens if isinstance(token["id"], int)]
                heads = [w["head"] for w in words]
                if None in heads or heads.count(0) != 1:
                    raise si.InvalidInputError(f"treebank: sentence {number} of {file} has no tree with one root")
                yield Sentence([w["form"] for w in words], [w["upos"] or "_" for w in words], heads)
        except ParseException as error:
            raise si.InvalidInputError(f"treebank: {file} is not in CoNLL-U: {error}") from error


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
    """A map from lower-cased words and tags to numbers. Words that occur once in training represent unknown words."""

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
    """Return batches of sentences of similar length; with a generator, random batches in random order."""
    noise = torch.rand(len(sentences), generator=generator) if generator else torch.zeros(len(sentences))
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words) + noise[i].item())
    buckets = [[sentences[i] for i in order[k : k + size]] for k in range(0, len(order), size)]
    if generator is None:
        return buckets
    return [buckets[i] for i in torch.randperm(len(buckets), generator=generator)]


# ----------------------------------------------------------------------------- the demo


def run(
    treebank: Path,
    *,
    loss: str = "sparsemap",
    epochs: int = 10,
    max_sentences: int | None = None,
    max_length: int = 60,
    seed: int = 0,
    out: Path = Path(),
) -> None:
    """Train with one of LOSSES, print the unlabelled attachment after each epoch, and save a picture in ``out``.

    ``max_sentences`` limits the sentences read from each file of the folder ``treebank``; training leaves out sentences
    of more than ``max_length`` words.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    parts = read_treebank(treebank, max_sentences)
    sentences = [s for s in parts["train"] if len(s.words) <= max_length]
    if not sentences:
        raise si.InvalidInputError(f"max_length must be larger: no training sentence has {max_length} words or fewer")
    encoder = Encoder(sentences)
    dev, test = ([encoder(bucket) for bucket in length_buckets(parts[part], 32)] for part in ("dev", "test"))
    model = Parser(encoder.word_count, encoder.tag_count)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    counts = f"{len(sentences)} training, {len(parts['dev'])} development, {len(parts['test'])} test sentences"
    print(f"{treebank.resolve().name}: {counts}. Loss: {loss}.\n")

    table = Table({"epoch": 0, "loss": 8, "dev heads": 0, "dev trees": 0, "seconds": 0})
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        batches = [encoder(bucket) for bucket in length_buckets(sentences, 16, generator)]
        value = train_epoch(model, optimizer, LOSSES[loss], batches, f"epoch {epoch} of {epochs}")
        seconds = time.perf_counter() - start
        result = evaluate(model, dev, "development set")
        table.add(epoch, f"{value:.4f}", percent(result.heads), percent(result.trees), f"{seconds:.1f}")
    result = evaluate(model, test, "test set")
    print(f"\ntest: {percent(result.heads)} of the heads (unlabelled attachment), {percent(result.trees)} of the trees")
    out.mkdir(parents=True, exist_ok=True)
    draw_picture(model, encoder, parts["dev"], out / f"structinf-parse-{loss}.png")
